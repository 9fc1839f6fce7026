"""FedAdam: the server takes the mean change for a gradient and moves by Adam.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar and McMahan, "Adaptive Federated
Optimization", ICLR 2021, Algorithm 2.

    D   = sum_k p_k w_k - w^t
    m   = beta_1 m + (1 - beta_1) D
    v   = beta_2 v + (1 - beta_2) D^2,    v^0 = tau^2
    w^{t+1} = w^t + eta m / (sqrt(v) + tau)

| symbol | here | default | where |
|---|---|---|---|
| eta | `server_lr` | 0.01 | section 5 tunes it |
| beta_1, beta_2 | `beta1`, `beta2` | 0.9, 0.99 | section 5 |
| tau | `tau` | 1e-3 | section 5 |

No bias correction, and v starts at tau^2, both as in the paper (Flower starts it at 0 and corrects
the bias). Buffers (BatchNorm) are replaced by their mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.methods.fedavg import fedavg
from fedbook.rounds import Method, Report, Update
from fedbook.rounds.params import Params
from fedbook.rounds.stages import State


@dataclass(frozen=True)
class ServerAdam(Update):
    server_lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.tau > 0):
            raise FedbookError(
                "FedAdam needs beta1 and beta2 in [0, 1) and a positive tau, got "
                f"{self.beta1}, {self.beta2}, {self.tau}",
                "try 0.9, 0.99, 1e-3",
            )

    def init(self, federation: Federation, model: nn.Module) -> State:
        trained = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
        return {
            "m": {n: torch.zeros_like(p) for n, p in trained.items()},
            "v": {n: torch.full_like(p, self.tau**2) for n, p in trained.items()},
        }

    def __call__(
        self, state: State, server: Params, mean: Params, reports: list[Report]
    ) -> tuple[Params, State]:
        new = dict(mean)
        m = dict(state["m"])
        v = dict(state["v"])
        for name in m:
            if name in server:  # not a layer that stays personal
                D = mean[name] - server[name]
                m[name] = self.beta1 * m[name] + (1 - self.beta1) * D
                v[name] = self.beta2 * v[name] + (1 - self.beta2) * D.square()
                new[name] = server[name] + self.server_lr * m[name] / (v[name].sqrt() + self.tau)
        return new, {"m": m, "v": v}


def fedadam(
    server_lr: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    **options: Any,
) -> Method:
    """FedAdam; `options` are FedAvg's."""
    update = ServerAdam(server_lr, beta1, beta2, tau)
    return fedavg(**options).replace(name="fedadam", update=update)
