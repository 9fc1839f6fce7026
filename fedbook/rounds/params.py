"""Parameters by name: what a model shares, how they are copied, what they weigh in bytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

Params = dict[str, Tensor]


def shared_state(model: nn.Module) -> Params:
    """What a model can share: trainable parameters, and buffers unless a frozen layer owns them.

    The tensors are views of the model: writing into them changes it.
    """
    frozen = set()
    for prefix, module in model.named_modules():
        if any(not p.requires_grad for p in module.parameters(recurse=False)):
            for name, _ in module.named_buffers(recurse=False):
                frozen.add(f"{prefix}.{name}" if prefix else name)
    shared = {}
    for name, t in model.state_dict(keep_vars=True).items():
        if t.requires_grad if isinstance(t, nn.Parameter) else name not in frozen:
            shared[name] = t.detach()
    return shared


def body(params: Params) -> Params:
    """What the features z depend on: everything but the head."""
    return {name: t for name, t in params.items() if not name.startswith("head.")}


def clone(params: Params) -> Params:
    return {name: t.detach().clone() for name, t in params.items()}


@torch.no_grad()
def copy_into(target: Params, source: Params) -> None:
    """Write `source` into the tensors of `target` that have its names."""
    if names := list(source):
        torch._foreach_copy_([target[n] for n in names], [source[n] for n in names])


def count_bytes(value: Any) -> int:
    """Bytes of everything in a nest of tensors and numbers (4 per float, 8 per int)."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(map(count_bytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(count_bytes, value))
    if isinstance(value, float):
        return 4
    return 8 if isinstance(value, int) else 0
