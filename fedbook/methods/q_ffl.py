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
used. Buffers (BatchNorm) are replaced by their mean. `as_coded=True` is FedGCR's code: every D_i is
scaled by the loss of the last client, so all count the same; ||G_i||^2 is the sum over tensors of
norms that are not squared; F_i is the running mean of the loss during local training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.methods.fedavg import fedavg
from fedbook.rounds import Equal, Local, Method, Report, Update, Weigh
from fedbook.rounds.stages import Params, State

FLOOR = 1e-10


def losses(reports: list[Report], training: bool = False) -> Tensor:
    found = [r.train_loss if training else r.loss for r in reports]
    return torch.tensor(found, dtype=torch.float64) + FLOOR


@dataclass(frozen=True)
class LossPower(Weigh):
    """a_i = F_i^q / sum_j F_j^q."""

    needs_loss = True
    q: float = 1.0

    def __call__(self, state: State, reports: list[Report]) -> tuple[Tensor, State]:
        return self.q * losses(reports).log(), state


@dataclass(frozen=True)
class DynamicStep(Update):
    q: float = 1.0
    lr: float = 0.1
    as_coded: bool = False

    def __post_init__(self) -> None:
        if not self.q >= 0:
            raise FedbookError(
                f"q must be at least 0, got {self.q}", "0 is the uniform mean, larger is fairer"
            )
        if not self.lr > 0:
            raise FedbookError(f"q-FFL divides by lr, got {self.lr}", "use a learning rate above 0")

    def init(self, federation: Federation, model: nn.Module) -> State:
        return {"names": [n for n, p in model.named_parameters() if p.requires_grad]}

    def end(self, local: Local, sent: State, memory: State) -> State:
        """eta ||G_i||^2, by which a client tells how far it went."""
        new = dict(local.model.named_parameters())
        norms = torch.stack(
            [(new[n].detach() - w).norm() for n, w in local.received.items() if n in new]
        )
        return {"move": float(norms.sum() if self.as_coded else norms.square().sum() / self.lr)}

    def __call__(
        self, state: State, server: Params, mean: Params, reports: list[Report]
    ) -> tuple[Params, State]:
        F = losses(reports, training=self.as_coded)
        a = torch.softmax(self.q * F.log(), 0)
        move = torch.tensor([r["move"] for r in reports], dtype=torch.float64)
        s = float(1 / (1 + self.q * (a * move / F).sum()))
        if self.as_coded:
            s *= len(reports) * float(a[-1])
        moved = {
            n: torch.lerp(server[n], mean[n], s) if n in state["names"] else mean[n] for n in server
        }
        return moved, state | {"log": {"step": s}}


def q_ffl(q: float = 1.0, as_coded: bool = False, **options: Any) -> Method:
    """q-FFL with fairness `q`; `as_coded` as FedGCR's code has it; `options` are FedAvg's."""
    base = fedavg(**options)
    weigh = Equal() if as_coded else LossPower(q)
    return base.replace(name="q_ffl", weigh=weigh, update=DynamicStep(q, base.solve.lr, as_coded))
