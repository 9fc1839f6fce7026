"""TERM: the mean loss is replaced by its tilted mean, which leans to the largest loss (t > 0) or
the least (t < 0).

Li, Beirami, Sanjabi and Smith, "Tilted Empirical Risk Minimization", ICLR 2021.

    R_t(w) = (1/t) log sum_i p_i e^{t F_i(w)},    R_0 = sum_i p_i F_i                            (1)
    grad R_t = sum_i a_i grad F_i,    a_i = p_i e^{t F_i} / sum_j p_j e^{t F_j}                  (2)

| symbol | here | default | where |
|---|---|---|---|
| t | `t` | 0.1 | the authors' federated example; FedGCR's code: 0.01 |
| p_i | n_i / sum n | | paper: 1 / N per sample, the same for clients as groups |

Differs from the paper: (2) weighs the models reached after local training, not single gradients;
F_i is taken at the received model. Differs from the authors' federated code: there p_i = 1 / |S|,
and the normaliser is a decaying mean over rounds (half old, half new) of exponentials shifted by
each round's own largest loss, so the weights need not sum to 1. Here they do. It also divides by
the number of samples twice. At t = 0.01, the value of FedGCR's code, the weights are those of
FedAvg to about one per cent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedbook.methods.fedavg import fedavg
from fedbook.rounds import BySize, Method, Report, Weigh
from fedbook.rounds.stages import State


def tilted(F: Tensor, log_p: Tensor, t: float) -> float:
    """R_t of the losses F under the distribution p."""
    return float((log_p + t * F).logsumexp(0) / t if t else log_p.exp() @ F)  # (1)


@dataclass(frozen=True)
class Tilt(Weigh):
    """The factor e^{t F_i} of (2); p_i is a factor of its own."""

    t: float = 0.1
    loss: str | None = field(default="received", kw_only=True)

    def __call__(self, state: State, reports: list[Report]) -> tuple[Tensor, State]:
        F = self.losses(reports)
        p = torch.tensor([r.size for r in reports], dtype=torch.float64)
        log = {"tilted_loss": tilted(F, p.log().log_softmax(0), self.t)}
        return self.t * F, {"log": log}  # (2)


def term(t: float = 0.1, **options: Any) -> Method:
    """TERM with tilt `t`; `options` are FedAvg's."""
    return fedavg(**options).replace(name="term", weigh=(BySize(), Tilt(t)))
