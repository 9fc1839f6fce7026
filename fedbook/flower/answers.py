"""What a client's answer must be; anything else is refused, and the server goes on without it."""

from __future__ import annotations

import math
from typing import Any

from flwr.app import RecordDict

from fedbook.errors import FedbookError
from fedbook.flower.records import NO_NUMBER, SAME, numbers, parameters, unpack
from fedbook.rounds.halves import SCORES, Server
from fedbook.rounds.params import Params
from fedbook.rounds.stages import Method, State


def who(content: RecordDict) -> tuple[int, bool]:
    """Which client a node is, and whether it has heard what was announced."""
    said = unpack(content, "who")
    id = said.get("client")
    informed = said.get("informed")
    if type(id) is not int or type(informed) is not bool:
        raise FedbookError(f"a node must say which client it is, it said {said}", SAME)
    return id, informed


def told_by(method: Method, content: RecordDict) -> dict[str, State]:
    """What a client tells once, by slot."""
    told = unpack(content, "told")
    if odd := sorted(told.keys() ^ method.stages().keys()):
        raise FedbookError(f"what was told of {odd} does not fit {method.name}", SAME)
    return told


def measured(method: Method, content: RecordDict) -> tuple[float | None, State]:
    """The loss of the model that a client received, where it is read, and what stages measured."""
    said = unpack(content, "measured")
    loss = said.get("loss")
    values = said.get("values")
    if not isinstance(values, dict):
        raise FedbookError(f"measured values must be a dict, got {values!r}", SAME)
    if "received" in method.reads and not _finite(loss):
        raise FedbookError(f"a measured loss must be a number, got {loss!r}", NO_NUMBER)
    return loss, values


def trained(params: Params, content: RecordDict) -> tuple[dict[str, float], State, Params]:
    """Sizes and losses, what stages send, and parameters like the server's."""
    seen = numbers(content, "metrics", ("num-examples", "train_loss", "train_acc"))
    size = seen["num-examples"]
    if type(size) is not int or size < 1:
        raise FedbookError(f"num-examples must be a whole number above 0, got {size!r}", SAME)
    for name in ("train_loss", "train_acc"):
        if not _finite(seen[name]):
            raise FedbookError(f"{name} must be a number, got {seen[name]!r}", NO_NUMBER)
    return seen, unpack(content, "values"), parameters(content, params)


def tested(server: Server, content: RecordDict) -> dict[str, float]:
    """The scores of the global model and of the client's own, as far as there are such."""
    kinds = ["test"] * server.has_global
    kinds += ["personal"] * (server.method.personal is not None)
    return numbers(content, "scores", [f"{kind}_{name}" for kind in kinds for name in SCORES])


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
