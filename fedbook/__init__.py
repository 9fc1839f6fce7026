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
    from fedbook import callbacks, data, methods, metrics, models, notebook, papers, plots
    from fedbook.data import partition
    from fedbook.experiment import Experiment
    from fedbook.federation import Client, Federation, federate
    from fedbook.results import Store
    from fedbook.rounds import (
        Batch,
        BySize,
        CrossEntropy,
        Device,
        Equal,
        Grouping,
        Local,
        LocalSolver,
        Method,
        Objective,
        Personal,
        Record,
        Report,
        Sample,
        Simulation,
        Update,
        Weigh,
        evaluate,
        simulate,
    )
    from fedbook.saved import load_model

__version__ = "0.1.0"
__all__ = [
    "Batch",
    "BySize",
    "Client",
    "CrossEntropy",
    "Device",
    "Equal",
    "Experiment",
    "FedbookError",
    "Federation",
    "Grouping",
    "Local",
    "LocalSolver",
    "Method",
    "Objective",
    "Personal",
    "Record",
    "Report",
    "Sample",
    "Simulation",
    "Store",
    "Update",
    "Weigh",
    "callbacks",
    "data",
    "evaluate",
    "federate",
    "load_model",
    "methods",
    "metrics",
    "models",
    "notebook",
    "papers",
    "partition",
    "plots",
    "simulate",
]
# where a name lives; what is not here is a module of its own or lives in `rounds`
_HOME = {
    "Client": "federation",
    "Federation": "federation",
    "federate": "federation",
    "partition": "data",
    "Experiment": "experiment",
    "Store": "results",
    "load_model": "saved",
}
_MODULES = {"callbacks", "data", "methods", "metrics", "models", "notebook", "papers", "plots"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fedbook' has no attribute {name!r}")
    if name in _MODULES:
        return importlib.import_module(f"fedbook.{name}")
    return getattr(importlib.import_module(f"fedbook.{_HOME.get(name, 'rounds')}"), name)


def __dir__() -> list[str]:
    """What tab completion offers."""
    return sorted({*globals(), *__all__})
