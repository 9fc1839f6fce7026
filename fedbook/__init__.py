"""fedbook: federated learning for groups of clients, taught and reproduced in notebooks.

    from fedbook import data, methods, models, simulate
    federation = data.load("digits5_offline").by_domain(dif=5)

Data flows one way: data -> federation -> rounds(method, model) -> results -> metrics -> plots and tables -> notebooks.
Heavy libraries (timm, transformers, scikit-learn, matplotlib, pandas) are imported where they are used, not here.
"""

from fedbook import data, methods, metrics, models
from fedbook.errors import FedbookError
from fedbook.federation import Client, Federation
from fedbook.rounds import Device, Method, simulate

__version__ = "0.1.0"
__all__ = ["Client", "Device", "Federation", "FedbookError", "Method", "data", "methods", "metrics", "models", "simulate"]
