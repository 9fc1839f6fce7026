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
are tested, here the latter. Their alpha_i = alpha
(mean n) / n_i is the quirk "feddyn_as_coded".
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
    Method,
    Objective,
    Replace,
    Report,
    Update,
)
from fedbook.rounds.params import Params
from fedbook.rounds.stages import State


@dataclass(frozen=True)
class DynamicRegulariser(Objective):
    alpha: float = 0.1
    dual: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.alpha >= 0 or (self.dual and self.alpha == 0):
            raise FedbookError(
                f"FedDyn needs alpha above 0, got {self.alpha}",
                "try alpha=0.1; with dual=False 0 is allowed and means the uniform mean",
            )

    def begin(self, local: Local, sent: State, memory: State) -> None:
        if self.dual and "h" not in memory:
            memory["h"] = {n: torch.zeros_like(p) for n, p in local.trained().items()}

    def strength(self, local: Local) -> float:
        """alpha of this client."""
        return self.alpha

    def __call__(self, local: Local, batch: Batch, sent: State, memory: State) -> Tensor:
        total = torch.zeros((), device=batch.y.device)
        for name, w in local.trained().items():
            away = w - local.received[name]
            total = total + (away + memory["h"][name] if self.dual else away).square().sum()
        return self.strength(local) / 2 * total  # (a)

    def end(self, local: Local, sent: State, memory: State) -> State:
        if self.dual:
            for name, w in local.trained().items():
                memory["h"][name] = memory["h"][name] + (w.detach() - local.received[name])  # (b)
        return {}


@dataclass(frozen=True)
class AddMeanDrift(Update):
    uploads: bool = field(default=True, kw_only=True)

    def init(self, federation: Federation, model: nn.Module) -> State:
        h = {n: torch.zeros_like(p) for n, p in model.named_parameters() if p.requires_grad}
        return {"h": h, "clients": len(federation)}

    def __call__(
        self, state: State, server: Params, mean: Params, reports: list[Report]
    ) -> tuple[Params, State]:
        moved = dict(mean)
        h = {}
        for name, old in state["h"].items():
            if name in server:  # not a layer that stays personal
                drift = torch.stack([r["upload"][name] - server[name] for r in reports]).sum(0)
                h[name] = old + drift / state["clients"]  # (1/M) sum h_i, from (b)
                moved[name] = mean[name] + h[name]  # (c)
        return moved, {**state, "h": h}


def feddyn(
    alpha: float = 0.1, dual: bool = True, clip: float | None = 10.0, **options: Any
) -> Method:
    """FedDyn of strength `alpha`; `dual=False` keeps h_i = 0; `options` are FedAvg's."""
    return fedavg(clip=clip, **options).replace(
        name="feddyn",
        objective=(CrossEntropy(), DynamicRegulariser(alpha, dual)),
        weigh=(Equal(),),
        update=AddMeanDrift() if dual else Replace(),
    )
