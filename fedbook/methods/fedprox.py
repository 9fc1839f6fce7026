"""FedProx: a proximal term holds every client near the model it received.

Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020.

    w_k = argmin_w F_k(w) + (mu / 2) ||w - w^t||^2                                               (2)

| symbol | here | default | where |
|---|---|---|---|
| mu | `mu` | 0.01 | section 5.1 tunes 0.001, 0.01, 0.1, 1 |

Differs from the paper: every client does the same number of epochs (no stragglers), and the mean is
weighted by n_k over uniformly drawn clients, as FedAvg does it; the paper draws with probability
n_k / n and takes the plain mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbook.errors import FedbookError
from fedbook.methods.fedavg import fedavg
from fedbook.rounds import Batch, CrossEntropy, Local, Method, Objective
from fedbook.rounds.stages import State


@dataclass(frozen=True)
class Proximal(Objective):
    mu: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.mu >= 0:
            raise FedbookError(f"mu must be at least 0, got {self.mu}", "0 is FedAvg; try 0.01")

    def __call__(self, local: Local, batch: Batch, sent: State, memory: State) -> Tensor:
        total = torch.zeros((), device=batch.y.device)
        for name, w in local.trained().items():
            total = total + (w - local.received[name]).square().sum()
        return self.mu / 2 * total  # (2)


def fedprox(mu: float = 0.01, **options: Any) -> Method:
    """FedProx with strength `mu`; `options` are FedAvg's."""
    return fedavg(**options).replace(name="fedprox", objective=(CrossEntropy(), Proximal(mu)))
