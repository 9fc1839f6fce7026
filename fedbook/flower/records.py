"""Parameters and what stages send, as Flower's records and back, bit for bit.

What comes from another machine is looked at before it is used: `parameters`, `unpack`, `numbers`
and `settings` refuse what is not as it should be.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedbook.errors import FedbookError
from fedbook.rounds.checkpoint import flatten, unflatten
from fedbook.rounds.params import Params

CPU = torch.device("cpu")
SAME = "run the same fedbook with the same method and model on the server and all clients"
NO_NUMBER = "lower lr or set clip, or look for NaN in the client's samples"
SETTINGS = {"run": str, "method": str, "round": int, "rounds": int, "seed": int, "counted": int}
KINDS = {str: "text", int: "a whole number of at least 0"}
# what reading a broken record raises; none of it is to end a server
BROKEN: tuple[type[Exception], ...] = (LookupError, TypeError, ValueError, AttributeError)
BROKEN += (ArithmeticError, RuntimeError, EOFError, MemoryError)


def arrays(params: Params) -> ArrayRecord:
    """Parameters by name as one record."""
    found = {}
    for name, t in params.items():
        found[name] = Array(t.detach().cpu().contiguous().numpy())
    return ArrayRecord(found)


def tensors(record: ArrayRecord) -> Params:
    """The parameters of a record."""
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}


def pack(records: RecordDict, name: str, value: Any) -> None:
    """Add a nest of dicts, lists, tensors and numbers: tensors as arrays, the rest as JSON."""
    found: dict[str, Tensor] = {}
    nest = flatten(value, found)
    records[name] = ConfigRecord({"nest": json.dumps(nest)})
    if found:
        records[f"{name}.arrays"] = arrays(found)


def unpack(records: RecordDict, name: str) -> dict[str, Any]:
    """What `pack` added, where that was a dict."""
    if name not in records.config_records:
        raise FedbookError(f"a message without {name} came", SAME)
    stored = records.array_records.get(f"{name}.arrays", ArrayRecord())
    try:
        nest = json.loads(str(records.config_records[name]["nest"]))
        found = unflatten(nest, tensors(stored), CPU)
    except BROKEN as error:
        raise FedbookError(f"{name} of a message cannot be read: {error!r}", SAME) from None
    if not isinstance(found, dict):
        raise FedbookError(f"{name} of a message is a {type(found).__name__}, no dict", SAME)
    return found


def parameters(records: RecordDict, like: Params, name: str = "parameters") -> Params:
    """Parameters of these names, shapes and kinds, and finite where these are."""
    if name not in records.array_records:
        raise FedbookError(f"a message without {name} came", SAME)
    record = records.array_records[name]
    if odd := sorted(record.keys() ^ like.keys()):
        what = "has no" if odd[0] in like else "has an unknown"
        raise FedbookError(f"a message {what} parameter {odd[0]!r}", SAME)
    for key, array in record.items():  # before anything is unpacked
        if tuple(array.shape) != tuple(like[key].shape):
            raise FedbookError(
                f"parameter {key!r} of a message has shape {tuple(array.shape)}, "
                f"{tuple(like[key].shape)} was expected",
                SAME,
            )
    try:
        found = tensors(record)
    except BROKEN as error:
        raise FedbookError(f"parameters of a message cannot be read: {error!r}", SAME) from None
    for key, t in found.items():
        if t.shape != like[key].shape or t.dtype != like[key].dtype:
            raise FedbookError(
                f"parameter {key!r} of a message is {t.dtype} of shape {tuple(t.shape)}, "
                f"{like[key].dtype} of shape {tuple(like[key].shape)} was expected",
                SAME,
            )
        if bool((like[key].isfinite() & ~t.to(like[key].device).isfinite()).any()):
            raise FedbookError(f"parameter {key!r} of a message is not finite", NO_NUMBER)
    return found


def numbers(records: RecordDict, name: str, wanted: Iterable[str]) -> dict[str, float]:
    """The numbers of a record that has exactly these."""
    if name not in records.metric_records:
        raise FedbookError(f"a message without {name} came", SAME)
    found = dict(records.metric_records[name])
    names = sorted(wanted)
    if sorted(found) != names or any(isinstance(v, list) for v in found.values()):
        raise FedbookError(f"{name} of a message are {found}, numbers {names} were expected", SAME)
    return found  # type: ignore[return-value]


def settings(records: RecordDict) -> dict[str, Any]:
    """What every message of the server says of the run."""
    if "run" not in records.config_records:
        raise FedbookError("a message that belongs to no run came", SAME)
    found: dict[str, Any] = dict(records.config_records["run"])
    for name, kind in SETTINGS.items():
        value: Any = found.get(name)
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            raise FedbookError(f"{name} of a message must be {KINDS[kind]}, got {value!r}", SAME)
    if found["round"] and not found["counted"] <= found["round"] <= found["rounds"]:
        raise FedbookError(
            f"a message of round {found['round']} came, after {found['counted']} of "
            f"{found['rounds']} rounds",
            SAME,
        )
    return found


def weight(records: RecordDict) -> int:
    """Bytes of the records' contents as Flower holds them: arrays with their headers, texts, and
    eight for a number.
    """
    total = 0
    for record in records.values():
        for value in record.values():
            if isinstance(value, Array):
                total += len(value.data)
            else:
                total += len(value.encode()) if isinstance(value, str) else 8
    return total
