"""The same method object on Flower: a strategy for the server, a `ClientApp` for the clients.

    from fedbook import flower

    run = flower.run_local(method, federation, model, rounds=3)      # as `simulate`, by messages
    run.records, run.params, run.grid.exchanged                 # and every message that was sent

    app = flower.client_app(method, model)           # client_app.py of a Flower app
    app = flower.server_app(method, model)           # server_app.py

The server holds a roster (who there is, not what they have), a client its own samples and nothing
of anybody else's. `fedbook flower new DIR` writes an app and deals the data out. MOVING.md, beside
this file, is for those who come from Flower or pfl-research.
"""

from __future__ import annotations

from fedbook.errors import FedbookError

try:
    import flwr  # noqa: F401
except ImportError:
    raise FedbookError(
        "fedbook.flower needs Flower, and flwr is not installed", "pip install 'fedbook[flower]'"
    ) from None

from fedbook.flower.client import Site, client_app
from fedbook.flower.deal import deal, partition_of, roster_of
from fedbook.flower.local import LocalGrid, run_local
from fedbook.flower.server import FedbookStrategy, server_app

__all__ = [
    "FedbookStrategy",
    "LocalGrid",
    "Site",
    "client_app",
    "deal",
    "partition_of",
    "roster_of",
    "run_local",
    "server_app",
]
