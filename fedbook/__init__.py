"""fedbook: federated learning for groups of clients, taught and reproduced in notebooks.

    from fedbook import data, federate, methods, models, simulate
    federation = federate(data.load("digits5_offline"), "by_domain", dif=5)
    run = simulate(methods.get("fedavg"), federation, models.build("cnn", federation), rounds=10)

Data flows one way: data -> federation -> rounds(method, model) -> results -> metrics -> plots and
tables -> notebooks. Every name below is imported when it is first used, so that `fedbook list` need
not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedbook.errors import FedbookError

if TYPE_CHECKING:
    from fedbook import data, methods, metrics, models
    from fedbook.federation import Client, Federation, federate
    from fedbook.rounds import Device, Method, simulate

__version__ = "0.1.0"
__all__ = [
    "Client",
    "Device",
    "Federation",
    "FedbookError",
    "Method",
    "data",
    "federate",
    "methods",
    "metrics",
    "models",
    "simulate",
]
_HOME = {
    "Client": "federation",
    "Federation": "federation",
    "federate": "federation",
    "Device": "rounds",
    "Method": "rounds",
    "simulate": "rounds",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fedbook' has no attribute {name!r}")
    if name in _HOME:
        return getattr(importlib.import_module(f"fedbook.{_HOME[name]}"), name)
    return importlib.import_module(f"fedbook.{name}")
