"""Parameters and what stages send, as Flower's records and back, bit for bit."""

from __future__ import annotations

import json
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedbook.errors import FedbookError
from fedbook.rounds.checkpoint import flatten, unflatten
from fedbook.rounds.params import Params

CPU = torch.device("cpu")


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


def unpack(records: RecordDict, name: str) -> Any:
    """What `pack` added."""
    if name not in records:
        raise FedbookError(
            f"a message without {name!r} came", "run the same fedbook on the server and the clients"
        )
    stored = records.array_records.get(f"{name}.arrays", ArrayRecord())
    return unflatten(json.loads(str(records.config_records[name]["nest"])), tensors(stored), CPU)


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
