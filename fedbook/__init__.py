"""fedbook: federated learning for groups of clients, taught and reproduced in notebooks.

    from fedbook import data, federate, methods, models, simulate
    federation = federate(data.load("digits5_offline"), "by_domain", dif=5)
    run = simulate(methods.get("fedavg"), federation, models.build("cnn", federation), rounds=10)

Data flows one way: data -> federation -> rounds(method, model) -> results -> metrics -> plots and
tables -> notebooks. Heavy libraries (timm, transformers, scikit-learn, matplotlib, pandas) are
imported where they are used, not here.
"""

from fedbook import data, methods, metrics, models
from fedbook.errors import FedbookError
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
