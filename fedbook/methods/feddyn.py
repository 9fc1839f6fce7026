"""FedDyn: a local regulariser that follows each client, so that local minima agree with the global
one.

Acar, Zhao, Matas Navarro, Mattina, Whatmough and Saligrama, "Federated Learning Based on Dynamic
Regularization", ICLR 2021. With h_i the drift client i has gathered (the paper's gradient dual
divided by -alpha):

    w_i     = argmin_w F_i(w) + alpha <w, h_i - w^t> + (alpha / 2) ||w||^2                       (a)
    h_i    <- h_i + (w_i - w^t)                                                                  (b)
    w^{t+1} = mean_{i in S_t} w_i + (1/M) sum_{i=1..M} h_i                                       (c)

| symbol | here | default | where |
|---|---|---|---|
| alpha | `alpha` | 0.1 | Client2Vec, appendix D.2; the authors' example 0.01 |
| gradient norm | `clip` | 10.0 | Client2Vec, appendix D.2; the authors' code |
| M | number of clients | | those never drawn count with h_i = 0 |

(a) is computed as (alpha / 2) ||w - w^t + h_i||^2, which differs from it by a constant and has the
same gradient. The clients' mean in (c) is not weighted by size; another `weigh` takes its place,
while (b) goes on counting everybody alike. h_i stays with the client, and the server keeps (1/M)
sum h_i: nothing but w travels. Buffers (BatchNorm) have no h and are replaced by their mean.

In this form alpha = 0 is not FedAvg: h_i is gathered without ever being felt. So alpha must be
above 0 unless `dual=False` keeps h_i = 0; then the local term is FedProx's, and alpha = 0 is the
uniform mean.

Differs from the authors' code: there the quadratic part is the optimiser's weight decay, so the
gradient is clipped without it; and both the mean of the active clients and the server's own model
are tested, here the latter. `as_coded=True` has their alpha_i = alpha (mean n) / n_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

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
    Method,
    Objective,
    Replace,
    Report,
    Update,
)
from fedbook.rounds.stages import Params, State


def shared(local: Local) -> dict[str, nn.Parameter]:
    """The parameters a client trains and the server gave it."""
    named = local.model.named_parameters()
    return {n: p for n, p in named if p.requires_grad and n in local.received}


@dataclass(frozen=True)
class DynamicRegulariser(Objective):
    alpha: float = 0.1
    dual: bool = True
    as_coded: bool = False

    def __post_init__(self) -> None:
        if not self.alpha >= 0 or (self.dual and self.alpha == 0):
            raise FedbookError(
                f"FedDyn needs alpha above 0, got {self.alpha}",
                "try alpha=0.1; with dual=False 0 is allowed and means the uniform mean",
            )

    def begin(self, local: Local, sent: State, memory: State) -> None:
        if self.dual and "h" not in memory:
            memory["h"] = {n: torch.zeros_like(p) for n, p in shared(local).items()}

    def __call__(self, local: Local, batch: Batch, sent: State, memory: State) -> Tensor:
        alpha, clients = self.alpha, local.federation.clients
        if self.as_coded:
            alpha *= sum(len(c.train) for c in clients) / len(clients) / len(local.client.train)
        total = torch.zeros((), device=batch.y.device)
        for name, w in shared(local).items():
            away = w - local.received[name]
            total = total + (away + memory["h"][name] if self.dual else away).square().sum()
        return alpha / 2 * total  # (a)

    def end(self, local: Local, sent: State, memory: State) -> State:
        if self.dual:
            for name, w in shared(local).items():
                memory["h"][name] = memory["h"][name] + (w.detach() - local.received[name])  # (b)
        return {}


@dataclass(frozen=True)
class AddMeanDrift(Update):
    wants_uploads: ClassVar[bool] = True

    def init(self, federation: Federation, model: nn.Module) -> State:
        h = {n: torch.zeros_like(p) for n, p in model.named_parameters() if p.requires_grad}
        return {"h": h, "clients": len(federation)}

    def __call__(
        self, state: State, server: Params, mean: Params, reports: list[Report]
    ) -> tuple[Params, State]:
        moved, h = dict(mean), {}
        for name, old in state["h"].items():
            if name in server:  # not a layer that stays personal
                drift = torch.stack([r["upload"][name] - server[name] for r in reports]).sum(0)
                h[name] = old + drift / state["clients"]  # (1/M) sum h_i, from (b)
                moved[name] = mean[name] + h[name]  # (c)
        return moved, {**state, "h": h}


def feddyn(
    alpha: float = 0.1,
    dual: bool = True,
    as_coded: bool = False,
    clip: float | None = 10.0,
    **options: Any,
) -> Method:
    """FedDyn of strength `alpha`; `dual=False` keeps h_i = 0; `as_coded` has alpha by size;
    `options` are FedAvg's.
    """
    return fedavg(clip=clip, **options).replace(
        name="feddyn",
        objective=(CrossEntropy(), DynamicRegulariser(alpha, dual, as_coded)),
        weigh=Equal(),
        update=AddMeanDrift() if dual else Replace(),
    )
