"""Ditto: beside the global model every client trains its own, held near the global one.

Li, Hu, Beirami and Smith, "Ditto: Fair and Robust Federated Learning Through Personalization",
ICML 2021.

    v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w^t))                        (Algorithm 1, (2))

| symbol | here | default | where |
|---|---|---|---|
| lambda | `lam` | 0.1 | section 4: tuned in 0.05, 0.1, 0.2 and more |
| s, eta | `epochs`, `lr`, ... | as for the global model | Algorithm 1 |

The global model is FedAvg's, untouched. v_k starts as the first w^t the client receives, and only
moves in rounds in which the client takes part. Nothing of it is sent.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from fedbook.methods.fedavg import fedavg
from fedbook.methods.fedprox import Proximal
from fedbook.rounds import Local, LocalSolver, Method, Personal
from fedbook.rounds.params import clone, copy_into
from fedbook.rounds.stages import State


@dataclass(frozen=True)
class NearGlobal(Personal):
    lam: float = field(default=0.1, kw_only=True)
    solve: LocalSolver = field(default=LocalSolver(), kw_only=True)

    def end(self, local: Local, sent: State, memory: State) -> State:
        """Train v_k in the resident model, then put back what is to be uploaded."""
        here = local.model.state_dict()
        upload = clone({name: here[name] for name in local.received})
        copy_into(here, memory.get("v", local.received))
        terms = (*local.terms, Proximal(self.lam))
        self.solve(dataclasses.replace(local, terms=terms), sent, memory)
        memory["v"] = clone({name: here[name] for name in local.received})
        copy_into(here, upload)
        return {}

    def load(self, local: Local, sent: State, memory: State) -> None:
        copy_into(local.model.state_dict(), memory.get("v", {}))


def ditto(lam: float = 0.1, **options: Any) -> Method:
    """Ditto with strength `lam`; `options` are FedAvg's and hold for both models."""
    base = fedavg(**options)
    return base.replace(name="ditto", personal=NearGlobal(lam=lam, solve=base.solve))
