"""The one function every aggregation weight passes through, and the weighted sum it feeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedbook.errors import FedbookError

# log-weights of the participants: for all parameters, or by parameter name with "" for the rest
LogWeights = Tensor | dict[str, Tensor]


def add(a: LogWeights, b: LogWeights) -> LogWeights:
    """Log-weights of two factors together; where one names a parameter, the other's rest counts."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a + b
    first = by_name(a)
    second = by_name(b)
    total = {}
    for name in first | second:
        total[name] = first.get(name, first[""]) + second.get(name, second[""])
    return total


def by_name(scores: LogWeights) -> dict[str, Tensor]:
    """Log-weights by parameter name, with "" for the rest."""
    named = scores if isinstance(scores, dict) else {"": scores}
    if "" not in named:
        raise FedbookError(
            "per-parameter scores need an entry '' for all other parameters", "add scores['']"
        )
    return named


def normalise(scores: Tensor | Sequence[float], ids: Sequence[int]) -> list[float]:
    """Log-domain scores -> non-negative weights that sum to 1; NaN and +inf are refused with the
    client's id.

    Adding a constant to every score changes nothing, so a method may hand over any unnormalised
    log-weight: log n_k for FedAvg, q log L_k for loss powers, A_k / lambda for an
    entropy-regularised choice.
    """
    s = torch.as_tensor(scores, dtype=torch.float64).cpu()
    if s.shape != (len(ids),):
        raise FedbookError(
            f"{len(ids)} participants need {len(ids)} scores, got shape {tuple(s.shape)}",
            "one each",
        )
    for id, value in zip(ids, s.tolist()):
        if math.isnan(value) or value == math.inf:
            raise FedbookError(
                f"the aggregation weight of client {id} is "
                f"{'NaN' if math.isnan(value) else 'infinite'}",
                "its reported loss is not a finite positive number; lower the learning rate",
            )
    if bool((s == -math.inf).all()):
        raise FedbookError(
            "every participant has weight zero", "at least one score must be above -inf"
        )
    weights = torch.softmax(s, 0)
    assert abs(float(weights.sum()) - 1) < 1e-12 and bool((weights >= 0).all())
    return weights.tolist()


class Weights:
    """Normalised weights of the participants, with their own set for some parameter names.

    A named set in which nobody has weight (all scores -inf) means: nobody trained this parameter,
    keep the server's.
    """

    def __init__(self, scores: LogWeights, ids: Sequence[int]) -> None:
        named = by_name(scores)
        self.ids = list(ids)
        self.default = normalise(named[""], ids)
        self.named: dict[str, list[float] | None] = {
            name: None if bool((s == -math.inf).all()) else normalise(s, ids)
            for name, s in named.items()
            if name
        }

    def of(self, name: str, k: int) -> float:
        """The weight of the k-th participant for the parameter of that name; 0 where it is to be
        kept.
        """
        w = self.named.get(name, self.default)
        return 0.0 if w is None else w[k]

    def kept(self, name: str) -> bool:
        return name in self.named and self.named[name] is None


class WeightedSum:
    """sum_k w_k theta_k, taken as the participants arrive (in id order) without keeping any of
    them.
    """

    def __init__(self, like: dict[str, Tensor], weights: Weights) -> None:
        self.weights = weights
        self.total = {
            n: torch.zeros_like(t) if t.is_floating_point() else t.clone() for n, t in like.items()
        }
        self.like = like
        self.count = 0

    def add(self, upload: dict[str, Tensor]) -> None:
        if self.weights.named:
            for name, t in upload.items():
                if t.is_floating_point():
                    self.total[name].add_(t, alpha=self.weights.of(name, self.count))
        else:
            if names := [n for n, t in upload.items() if t.is_floating_point()]:
                torch._foreach_add_(
                    [self.total[n] for n in names],
                    [upload[n] for n in names],
                    alpha=self.weights.default[self.count],
                )
        if self.count == 0:  # counters of BatchNorm and the like are copied, never averaged
            for name, t in upload.items():
                if not t.is_floating_point():
                    self.total[name].copy_(t)
        self.count += 1

    def result(self) -> dict[str, Tensor]:
        return {n: self.like[n] if self.weights.kept(n) else t for n, t in self.total.items()}
