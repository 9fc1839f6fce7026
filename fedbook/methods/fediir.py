"""FedIIR: what predicts in the same way everywhere, found by making the classifier's gradients
agree between clients.

Guo, Guo, Cao, Wu and Chang, "Out-of-Distribution Generalization of Federated Learning via Implicit
Invariant Relationships", ICML 2023. With phi the classifier, and B_i the batches of client i:

    g^t = ema g^{t-1} + (1 - ema) (mean over batches b of all i in S_t of grad_phi CE(b; w^t)),
    g^0 = 0                                                                                      (a)
    l   = CE(b) + lambda || grad_phi CE(b) - g^t ||^2                                            (b)

| symbol | here | default | where |
|---|---|---|---|
| lambda | `penalty` | 1e-3 | Client2Vec, appendix D.2 |
| ema | `ema` | 0.95 | the authors' code; Client2Vec tunes 0.95, 0.5, 0.1 |
| phi | the model's `head` | | |

A round has two exchanges: participants first send the sum of their batch gradients at the received
model, and get g^t before they train. (b) is differentiated through grad_phi, which costs little
since phi is the last layer. Clients count alike, as in the authors' code, so `penalty=0` is the
uniform mean.

Differs from the authors' code: the batches of (a) are taken in the samples' own order, with the
model in eval mode. One public library never stores g^t, so that its mean is always (1 - ema) times
the current one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.methods.fedavg import fedavg
from fedbook.rounds import Batch, CrossEntropy, Equal, Local, Method, Objective, Report
from fedbook.rounds.stages import State


def classifier(model: Any) -> list[nn.Parameter]:
    """phi."""
    return [p for p in model.head.parameters() if p.requires_grad]


def head_gradient(batch: Batch, create_graph: bool = False) -> tuple[Tensor, ...]:
    """grad_phi CE of a batch."""
    loss = F.cross_entropy(batch.logits, batch.y)
    return torch.autograd.grad(loss, classifier(batch.model), create_graph=create_graph)


@dataclass(frozen=True)
class GradientAlignment(Objective):
    penalty: float = 1e-3
    ema: float = 0.95
    batch_size: int = 32
    lockstep: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.penalty >= 0 and 0 <= self.ema < 1):
            raise FedbookError(
                f"FedIIR needs a penalty of at least 0 and ema in [0, 1), got {self.penalty} and "
                f"{self.ema}",
                "try penalty=1e-3, ema=0.95",
            )

    def init(self, federation: Federation, model: nn.Module) -> State:
        if not classifier(model):
            raise FedbookError(
                f"FedIIR compares gradients of the head, that of {type(model).__name__} is not "
                "trained",
                "use a model with a linear head",
            )
        return {"g": [torch.zeros_like(p) for p in classifier(model)]}

    def measure(self, local: Local, memory: State) -> State:
        total = [torch.zeros_like(p) for p in classifier(local.model)]
        count = 0
        for batch in local.batches(self.batch_size, shuffle=False):
            with torch.no_grad():
                _ = batch.z  # so that the gradient stops at phi
            torch._foreach_add_(total, head_gradient(batch))
            count += 1
        return {"head_gradient": total, "batches": count}

    def prepare(self, state: State, reports: list[Report]) -> State:
        batches = sum(r["batches"] for r in reports)
        now = [
            torch.stack(parts).sum(0) / batches
            for parts in zip(*(r["head_gradient"] for r in reports))
        ]
        return {
            "g": [self.ema * old + (1 - self.ema) * new for old, new in zip(state["g"], now)]
        }  # (a)

    def send(self, state: State, id: int) -> State:
        return {"g": state["g"]}

    def __call__(self, local: Local, batch: Batch, sent: State, memory: State) -> Tensor:
        apart = [a - b for a, b in zip(head_gradient(batch, create_graph=True), sent["g"])]
        return self.penalty * torch.stack([d.square().sum() for d in apart]).sum()  # (b)


def fediir(penalty: float = 1e-3, ema: float = 0.95, **options: Any) -> Method:
    """FedIIR with strength `penalty` and memory `ema` of the mean gradient; `options` are
    FedAvg's.
    """
    base = fedavg(**options)
    term = GradientAlignment(penalty, ema, base.solve.batch_size)
    return base.replace(name="fediir", objective=(CrossEntropy(), term), weigh=(Equal(),))
