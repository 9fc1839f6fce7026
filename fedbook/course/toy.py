"""A round on made-up clients: numbers small enough to check by hand, and one's own for every
student."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbook.errors import FedbookError

if TYPE_CHECKING:
    from fedbook.rounds import Method


def numbers(student: str, assignment: str) -> np.random.Generator:
    """The student's own source of numbers: the same name and assignment give the same numbers."""
    name = " ".join(str(student or "").lower().split())
    if not name:
        raise FedbookError("write your name first", 'STUDENT = "ada" in the first cell of code')
    digest = hashlib.sha256(f"{assignment}/{name}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def weigh(
    method: Method,
    sizes: Sequence[int],
    losses: Sequence[float],
    groups: Sequence[int] | None = None,
    *,
    rounds: int = 1,
) -> np.ndarray:
    """What the library's method lets each client count in the last of `rounds` equal rounds, for
    clients with these numbers of samples, losses at the received model, and groups.
    """
    from fedbook.rounds import Report
    from fedbook.rounds.weights import normalise

    members = [None] * len(sizes) if groups is None else [int(g) for g in groups]
    total: Any = 0.0
    for stage in method.weigh:
        state = _begin(stage, sizes)
        for _ in range(rounds):
            reports = [
                Report(id=k, size=int(n), loss=float(L), group=g)
                for k, (n, L, g) in enumerate(zip(sizes, losses, members))
            ]
            scores, state = stage(state, reports)
        total = total + scores
    return np.array(normalise(total, range(len(sizes))))


def _begin(stage: Any, sizes: Sequence[int]) -> dict[str, Any]:
    """A stage's state before round 1 of a federation of clients with these sizes."""
    import torch

    from fedbook.federation import Federation

    arrays = [{"train": (np.zeros((int(n), 1), "float32"), np.zeros(int(n), int))} for n in sizes]
    return stage.init(Federation.from_arrays(arrays), torch.nn.Linear(1, 1))
