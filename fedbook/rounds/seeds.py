"""One random stream for every purpose, so that no draw depends on what was drawn before it."""

from __future__ import annotations

import hashlib

import torch


def stream(*key: int | str) -> int:
    """The seed of one (run, purpose, round, client)."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:7], "big")


def generator(*key: int | str) -> torch.Generator:
    return torch.Generator().manual_seed(stream(*key))
