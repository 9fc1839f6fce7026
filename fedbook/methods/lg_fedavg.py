"""LG-FedAvg: clients learn their own representation, and share only the layers above it.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov and Morency, "Think Locally, Act Globally:
Federated Learning with Local and Global Representations", 2020.

    theta_m^l, theta_m^g <- SGD on F_m(theta_m^l, theta^g)          both, on the client          (a)
    theta^g = (1/|S_t|) sum_{m in S_t} theta_m^g           only the upper layers travel          (b)
    global test: argmax (1/M) sum_m p(y | x; theta_m^l, theta^g)    ensemble of all clients' models

| symbol | here | default | where |
|---|---|---|---|
| theta^g | `shared` | ("head.*",), the classifier | paper: upper layers; GRP-FED: classifier |

With `shared=()` it is Local, with `shared=("*",)` the uniform mean of FedAvg.

Differs from the authors' code: it starts from a FedAvg model trained before; here all start from
the same random weights, as the other methods do. It keeps each client's model of best *test*
accuracy; here the last one counts. Differs from a public library that keeps the first layers
global: the paper shares the last. The authors' ensemble averages log-probabilities; here, as the
paper says, probabilities.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import Any

from torch import nn

from fedbook.methods.fedavg import fedavg
from fedbook.rounds import Equal, Method, Personal


@dataclass(frozen=True)
class LowerLayers(Personal):
    """Everything stays at home but what matches a pattern of `shared`."""

    shared: tuple[str, ...] = ("head.*",)

    def keeps(self, name: str, model: nn.Module) -> bool:
        return not any(fnmatch.fnmatch(name, pattern) for pattern in self.shared)


def lg_fedavg(shared: tuple[str, ...] = ("head.*",), **options: Any) -> Method:
    """LG-FedAvg sharing the layers that match `shared`; `options` are FedAvg's."""
    personal = LowerLayers(shared=tuple(shared))
    return fedavg(**options).replace(name="lg_fedavg", weigh=(Equal(),), personal=personal)  # (b)
