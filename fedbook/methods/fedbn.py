"""FedBN: normalisation layers stay with the clients, everything else is FedAvg.

Li, Jiang, Zhang, Kamp and Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization", ICLR 2021.

    w_{k,l}^{t+1} = sum_j p_j w_{j,l}^{t+1}   for every layer l that is no BN layer   (Algorithm 1)
    w_{k,l}^{t+1} = the client's own          for BN layers: scale, shift and running statistics

| symbol | here | default | where |
|---|---|---|---|
| BN layers | `layers` | ("BatchNorm",) | section 4.1; ("GroupNorm", "LayerNorm") works alike |

Differs from the paper: the mean is weighted by n_k (the paper's clients are of one size). Clients
are tested with their own model only; one that never took part has the initial BN layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.methods.fedavg import fedavg
from fedbook.rounds import Method, Personal
from fedbook.rounds.stages import State


@dataclass(frozen=True)
class OwnLayers(Personal):
    """Layers of these kinds, by the beginning of their class name, never leave the client."""

    layers: tuple[str, ...] = ("BatchNorm",)

    def keeps(self, name: str, model: nn.Module) -> bool:
        layer = model.get_submodule(name.rpartition(".")[0])
        return type(layer).__name__.startswith(self.layers)

    def init(self, federation: Federation, model: nn.Module) -> State:
        if not any(self.keeps(name, model) for name, _ in model.named_parameters()):
            raise FedbookError(
                f"{type(model).__name__} has no layer of kind {' or '.join(self.layers)}",
                'use a model that has, or name others: layers=("GroupNorm",)',
            )
        return {}


def fedbn(layers: tuple[str, ...] = ("BatchNorm",), **options: Any) -> Method:
    """FedBN keeping `layers`; `options` are FedAvg's."""
    return fedavg(**options).replace(name="fedbn", personal=OwnLayers(layers=tuple(layers)))
