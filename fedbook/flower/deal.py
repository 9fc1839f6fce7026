"""One file per client and a roster for the server: what each side of a deployment may hold."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context

from fedbook.errors import FedbookError
from fedbook.federation import Federation

ROSTER = "roster.safetensors"


def deal(federation: Federation, folder: str | Path) -> Path:
    """Write every client's own samples into a file of its own, and the roster into another.

    A node needs `client-ID.safetensors` alone, the server `roster.safetensors` alone.
    """
    folder = Path(folder)
    for c in federation.clients:
        federation.only(c.id).save(folder / f"client-{c.id}.safetensors")
    federation.roster().save(folder / ROSTER)
    return folder


def _folder(context: Context) -> Path:
    """Where the data are: the node says so, else the run."""
    found = context.node_config.get("data") or context.run_config.get("data")
    if not found:
        raise FedbookError(
            "no folder with the data is known",
            "set data in [tool.flwr.app.config], or --node-config 'data=\"FOLDER\"'",
        )
    return Path(str(found))


def partition_of(context: Context) -> Federation:
    """The samples of the client that a node is, out of the folder that `deal` wrote."""
    id = context.node_config["partition-id"]
    return Federation.load(_folder(context) / f"client-{id}.safetensors")


def roster_of(context: Context) -> Federation:
    """Who there is, out of the folder that `deal` wrote."""
    return Federation.load(_folder(context) / ROSTER)
