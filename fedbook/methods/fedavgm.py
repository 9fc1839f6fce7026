"""FedAvgM: FedAvg with momentum at the server.

Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019.

    Delta_k = w^t - w_k
    v^{t+1} = m v^t + sum_{k in S_t} p_k Delta_k
    w^{t+1} = w^t - eta_s v^{t+1}

| symbol | here | default | where |
|---|---|---|---|
| m (beta in the paper) | `server_momentum` | 0.9 | section 4.3; Client2Vec sweeps 0.1, 0.5, 1.0 |
| eta_s | `server_lr` | 1.0 | section 4.3 |

Differs from the paper: nothing in the equations. Plain heavy-ball, not Nesterov (as one public
library has it). Buffers such as BatchNorm statistics are replaced by their mean without momentum,
since they are not moved by gradients. m = 1 never forgets a past step: it is allowed, and diverges.
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
class ServerMomentum(Update):
    server_momentum: float = 0.9
    server_lr: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.server_momentum <= 1:
            raise FedbookError(
                f"server_momentum must lie in [0, 1], got {self.server_momentum}", "try 0.9"
            )

    def init(self, federation: Federation, model: nn.Module) -> State:
        return {
            "v": {n: torch.zeros_like(p) for n, p in model.named_parameters() if p.requires_grad}
        }

    def __call__(
        self, state: State, server: Params, mean: Params, reports: list[Report]
    ) -> tuple[Params, State]:
        moved = dict(mean)
        velocity = {}
        for name, v in state["v"].items():
            if name in server:  # not a layer that stays personal
                velocity[name] = self.server_momentum * v + (server[name] - mean[name])  # v^{t+1}
                moved[name] = server[name] - self.server_lr * velocity[name]  # w^{t+1}
        return moved, {"v": velocity}


def fedavgm(server_momentum: float = 0.9, server_lr: float = 1.0, **options: Any) -> Method:
    return fedavg(**options).replace(
        name="fedavgm", update=ServerMomentum(server_momentum, server_lr)
    )
