"""q-FFL, solved by q-FedAvg: clients with a higher loss count more, and the step shrinks as the
objective bends.

Li, Sanjabi, Beirami and Smith, "Fair Resource Allocation in Federated Learning", ICLR 2020.

    min_w sum_i F_i(w)^{q+1} / (q+1)
    G_i = (w^t - w_i) / eta,  D_i = F_i^q G_i,  h_i = q F_i^{q-1} ||G_i||^2 + F_i^q / eta
    w^{t+1} = w^t - sum_i D_i / sum_i h_i                                              (Algorithm 2)

The same without powers that overflow: with a_i = F_i^q / sum_j F_j^q the mean is sum_i a_i w_i, and

    w^{t+1} = w^t + s (sum_i a_i w_i - w^t), s = 1 / (1 + q sum_i a_i (||w^t - w_i||^2 / eta) / F_i)

| symbol | here | default | where |
|---|---|---|---|
| q | `q` | 1.0 | FedGCR 1; GRP-FED 10 |
| eta = 1 / L | `lr` | FedAvg's | the local step size stands for the Lipschitz constant |

Differs from the paper: p_i, the probability of being drawn, is what `participation` makes it, and
no n_i enters the sum (as in the authors' code), so q = 0 is the uniform mean. F_i + 1e-10 inside
powers, also theirs. With AdamW, 1 / eta does not estimate a Lipschitz constant; the nominal lr is
used. Buffers (BatchNorm) are replaced by their mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.methods.fedavg import fedavg
from fedbook.rounds import Local, Method, Report, Update, Weigh
from fedbook.rounds.params import Params
from fedbook.rounds.stages import State, losses

FLOOR = 1e-10


@dataclass(frozen=True)
class LossPower(Weigh):
    """a_i = F_i^q / sum_j F_j^q."""

    q: float = 1.0
    loss: str | None = field(default="received", kw_only=True)

    def __call__(self, state: State, reports: list[Report]) -> tuple[Tensor, State]:
        F = self.losses(reports) + FLOOR
        return self.q * F.log(), state


@dataclass(frozen=True)
class DynamicStep(Update):
    """The step s towards the mean."""

    q: float = 1.0
    lr: float = 0.1
    loss: str | None = field(default="received", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.q >= 0:
            raise FedbookError(
                f"q must be at least 0, got {self.q}", "0 is the uniform mean, larger is fairer"
            )
        if not self.lr > 0:
            raise FedbookError(f"q-FFL divides by lr, got {self.lr}", "use a learning rate above 0")

    def init(self, federation: Federation, model: nn.Module) -> State:
        return {"names": [n for n, p in model.named_parameters() if p.requires_grad]}

    def moved(self, local: Local) -> Tensor:
        """eta ||G_i||^2."""
        norms = [(w.detach() - local.received[n]).norm() for n, w in local.trained().items()]
        return torch.stack(norms).square().sum() / self.lr

    def end(self, local: Local, sent: State, memory: State) -> State:
        return {"move": float(self.moved(local))}

    def length(self, a: Tensor, move: Tensor, F: Tensor) -> float:
        """s."""
        return float(1 / (1 + self.q * (a * move / F).sum()))

    def __call__(
        self, state: State, server: Params, mean: Params, reports: list[Report]
    ) -> tuple[Params, State]:
        F = losses(reports, self.loss) + FLOOR
        a = torch.softmax(self.q * F.log(), 0)
        move = torch.tensor([r["move"] for r in reports], dtype=torch.float64)
        s = self.length(a, move, F)
        new = dict(mean)
        for name in state["names"]:
            if name in server:  # not a layer that stays personal
                new[name] = torch.lerp(server[name], mean[name], s)
        return new, state | {"log": {"step": s}}


def q_ffl(q: float = 1.0, **options: Any) -> Method:
    """q-FFL with fairness `q`; `options` are FedAvg's."""
    base = fedavg(**options)
    step = DynamicStep(q, base.solve.lr)
    return base.replace(name="q_ffl", weigh=(LossPower(q),), update=step)
