"""SCAFFOLD: control variates take the clients' drift out of every local step.

Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, "SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning", ICML 2020.

    y_i   <- y_i - eta_l (g_i(y_i) - c_i + c),    y_i starts at x                                (3)
    c_i^+ =  c_i - c + (x - y_i) / (K eta_l)                                        (4, option II)
    x     <- x + (eta_g / |S|) sum_i (y_i - x),   c <- c + (1 / N) sum_i (c_i^+ - c_i)           (5)

| symbol | here | default | where |
|---|---|---|---|
| eta_l, eta_g | `lr`, `server_lr` | FedAvg's, 1.0 | Algorithm 1; the experiments use eta_g = 1 |
| K | local steps: epochs x batches | | section 3 |
| c, c_i | control variates of server and clients, 0 at first | | Algorithm 1 |

(3) is the gradient of one more term of the objective, <c - c_i, y>. What travels besides the model:
c down, c_i^+ - c_i up. Differs from the paper: c_i^+ is option II, as in its experiments. The local
optimizer must be plain SGD, otherwise (4) is no gradient; weight decay and clipping are refused for
the same reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.methods.fedavg import fedavg
from fedbook.rounds import (
    Batch,
    CrossEntropy,
    Equal,
    Local,
    LocalSolver,
    Method,
    Objective,
    Report,
    Update,
)
from fedbook.rounds.params import Params
from fedbook.rounds.stages import State


@dataclass(frozen=True)
class Control(Objective):
    """<c - c_i, y>, whose gradient is the correction of (3)."""

    def __call__(self, local: Local, batch: Batch, sent: State, memory: State) -> Tensor:
        c = local.sent["update"]["c"]
        c_i = local.memory["update"]["c"]
        total = torch.zeros((), device=batch.y.device)
        for name, y in local.trained().items():
            total = total + ((c[name] - c_i[name]) * y).sum()  # (3)
        return total


@dataclass(frozen=True)
class ControlVariates(Update):
    """c at the server, c_i with the clients; the model moves by eta_g towards the mean."""

    solve: LocalSolver = LocalSolver()
    server_lr: float = 1.0

    def init(self, federation: Federation, model: nn.Module) -> State:
        zeros = {n: torch.zeros_like(p) for n, p in model.named_parameters() if p.requires_grad}
        return {"c": zeros, "clients": len(federation)}

    def send(self, state: State, id: int) -> State:
        return {"c": state["c"]}

    def begin(self, local: Local, sent: State, memory: State) -> None:
        if "c" not in memory:
            memory["c"] = {n: torch.zeros_like(y) for n, y in local.trained().items()}

    def end(self, local: Local, sent: State, memory: State) -> State:
        K = self.solve.epochs * self.solve.steps_of(len(local.client.train))
        change = {}
        for name, y in local.trained().items():
            step = (local.received[name] - y.detach()) / (K * self.solve.lr)
            change[name] = step - sent["c"][name]  # c_i^+ - c_i (4)
            memory["c"][name] = memory["c"][name] + change[name]
        return {"control": change}

    def __call__(
        self, state: State, server: Params, mean: Params, reports: list[Report]
    ) -> tuple[Params, State]:
        new = dict(mean)
        c = dict(state["c"])
        for name in reports[0]["control"]:
            new[name] = torch.lerp(server[name], mean[name], self.server_lr)  # (5)
            changes = torch.stack([r["control"][name] for r in reports])
            c[name] = c[name] + changes.sum(0) / state["clients"]
        return new, {**state, "c": c}


def scaffold(server_lr: float = 1.0, **options: Any) -> Method:
    """SCAFFOLD; `options` are FedAvg's, without momentum, weight decay and clipping."""
    base = fedavg(**options)
    solve = base.solve
    if solve.optimizer != "sgd" or solve.momentum or solve.weight_decay or solve.clip is not None:
        raise FedbookError(
            "SCAFFOLD needs plain SGD at the clients",
            "leave out optimizer, momentum, weight_decay and clip",
        )
    return base.replace(
        name="scaffold",
        objective=(CrossEntropy(), Control()),
        weigh=(Equal(),),
        update=ControlVariates(solve, server_lr),
    )
