"""FedLC: logits are lowered where a client has few samples, so that rare classes keep a margin.

Zhang, Li, Li, Xu, Wu, Ding and Wu, "Federated Learning with Label Distribution Skew via Logits
Calibration", ICML 2022. With f the logits and n_c the client's own number of samples of class c:

    s_c = f_c - tau n_c^{-1/4}                                                                   (a)
    l   = -log( e^{s_y} / sum_c e^{s_c} )                                                        (b)

| symbol | here | default | where |
|---|---|---|---|
| tau | `tau` | 1.0 | Client2Vec, appendix D.2 |
| n_c of an absent class | `absent` | 1e-8 | a shift of 100 tau: the class leaves (b) |

Only the training loss is shifted; tests use the plain logits.

Differs from the paper: it prints the sum in (b) without c = y. That loss has no lower bound, and
two public reproductions report that it collapses; it is the quirk "fedlc_as_printed". No code of
the authors was found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from fedbook.errors import FedbookError
from fedbook.methods.fedavg import fedavg
from fedbook.rounds import Batch, Local, Method, Objective
from fedbook.rounds.stages import State


def calibrate(logits: Tensor, counts: Tensor, tau: float, absent: float = 1e-8) -> Tensor:
    """f_c - tau n_c^{-1/4}."""
    n = counts.float().clamp(min=absent)
    return logits - tau * n.pow(-0.25)  # (a)


@dataclass(frozen=True)
class CalibratedCrossEntropy(Objective):
    tau: float = 1.0
    absent: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.tau >= 0 and 0 < self.absent <= 1):
            raise FedbookError(
                f"FedLC needs tau of at least 0 and absent in (0, 1], got {self.tau} and "
                f"{self.absent}",
                "try tau=1.0, absent=1e-8",
            )

    def begin(self, local: Local, sent: State, memory: State) -> None:
        if "counts" not in memory:
            memory["counts"] = local.federation.class_counts(local.client)

    def __call__(self, local: Local, batch: Batch, sent: State, memory: State) -> Tensor:
        s = calibrate(batch.logits, memory["counts"], self.tau, self.absent)
        return self.compare(s, batch.y)

    def compare(self, s: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(s, y)  # (b)


def fedlc(tau: float = 1.0, absent: float = 1e-8, **options: Any) -> Method:
    """FedLC with margin `tau`; `options` are FedAvg's."""
    return fedavg(**options).replace(name="fedlc", objective=(CalibratedCrossEntropy(tau, absent),))
