"""Networks by name: `build("cnn", federation)`. Small ones from scratch, and prompts on frozen,
pretrained ViTs.

A model offers `embed(x, **extra) -> z`, a module `head`, and `forward(x, **extra) = head(embed(x,
**extra))`. Parameters with `requires_grad=False` are never trained, sent or averaged. A model may
offer `precompute(federation)`: tensors with one row per sample that depend on no trained parameter;
the loop computes them once and passes their rows as `extra`.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fedbook import own
from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.models import convnets

SIZED = (nn.Linear, nn.Conv1d, nn.Conv2d)


def builders() -> dict[str, Callable[..., nn.Module]]:
    from fedbook.models import cct, prompts, sequence

    return {**convnets.BUILDERS, **cct.BUILDERS, **sequence.BUILDERS, **prompts.BUILDERS}


def names() -> list[str]:
    """Every model `build` knows."""
    return sorted(builders())


def build(name: str, federation: Federation, seed: int = 0, **options: Any) -> nn.Module:
    """A model for this federation's inputs and classes; the same seed gives the same initial
    weights.
    """
    known = {name: own.load(name)} if own.is_own(name) else builders()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        raise FedbookError(
            f"unknown model {name!r}",
            f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}",
        )
    builder = known[name]
    allowed = set(inspect.signature(builder).parameters) - {"federation", "seed"}
    if not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(builder).parameters.values()):
        if wrong := set(options) - allowed:
            raise FedbookError(
                f"model {name!r} has no option {sorted(wrong)}", f"it takes {sorted(allowed)}"
            )
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = builder(federation, **options)
        if any(not m.weight.numel() for m in model.modules() if isinstance(m, SIZED)):
            raise ValueError("a layer has no unit")
        return model
    except (TypeError, ValueError, RuntimeError, ArithmeticError, LookupError) as error:
        raise FedbookError(
            f"model {name!r} cannot be built with {options} for inputs of shape "
            f"{federation.input_shape}: {error}",
            f"see help(fedbook.models) and its options {sorted(allowed)}",
        ) from error
