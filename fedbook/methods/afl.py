"""AFL: the clients' weights are played against the model, which so learns to do well on the worst
mixture of clients.

Mohri, Sivek and Suresh, "Agnostic Federated Learning", ICML 2019.

    min_w max_lambda sum_i lambda_i F_i(w),    lambda on the simplex
    w^{t+1}      = w^t - eta sum_i lambda_i^t grad F_i(w^t)                                      (a)
    lambda^{t+1} = Proj(lambda^t + eta_lam [F_i(w^t)]),    Proj = nearest point of the simplex   (b)

| symbol | here | default | where |
|---|---|---|---|
| eta_lam (gamma_lambda) | `eta_lam` | 0.1 | Stochastic-AFL; value: fair_flearn's README |
| lambda^0 | `start` | "size", n_i / n | left open; fair_flearn: "uniform" |

Differs from the paper: (a) is a round of local training, then the mean weighted by lambda^t (one
gradient step of one full batch is exactly (a)). The last model is returned, not the mean of all
iterates. With partial participation lambda is restricted to the participants and renormalised, (b)
moves that share among them, and the others keep theirs; if the participants hold no mass at all
they count equally. Differs from fair_flearn: its projection is wrong where a coordinate becomes 0
([1.5, 0.4] gives [1.05, 0]).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.methods.fedavg import fedavg
from fedbook.rounds import Method, Report, Weigh
from fedbook.rounds.stages import State


def project(v: Tensor) -> Tensor:
    """The point of the simplex nearest to v: (v - theta)_+ with theta such that it sums to 1."""
    u = v.sort(descending=True).values
    theta = (u.cumsum(0) - 1) / torch.arange(1, len(u) + 1)
    return (v - theta[(u > theta).sum() - 1]).clamp(min=0)


@dataclass(frozen=True)
class Agnostic(Weigh):
    """lambda, which moves towards the clients with the largest losses."""

    eta_lam: float = 0.1
    start: str = "size"
    loss: str | None = field(default="received", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start not in ("size", "uniform"):
            raise FedbookError(
                f"start must be 'size' or 'uniform', got {self.start!r}", "'size' begins as FedAvg"
            )

    def init(self, federation: Federation, model: nn.Module) -> State:
        return {"lam": {}}  # up to a factor, so that nobody has to know the sum of all sizes

    def __call__(self, state: State, reports: list[Report]) -> tuple[Tensor, State]:
        start = {r.id: r.size if self.start == "size" else 1 for r in reports}
        own = start | state["lam"]
        held = torch.tensor([own[r.id] for r in reports], dtype=torch.float64)
        mass = held.sum()
        lam = held / mass if mass > 0 else torch.full_like(held, 1 / len(held))
        after = mass * project(lam + self.eta_lam * self.losses(reports))  # (b)
        moved = {r.id: value for r, value in zip(reports, after.tolist())}
        return lam.log(), {"lam": state["lam"] | moved}


def afl(eta_lam: float = 0.1, start: str = "size", **options: Any) -> Method:
    """AFL with `eta_lam`; `options` are FedAvg's."""
    return fedavg(**options).replace(name="afl", weigh=(Agnostic(eta_lam, start),))
