"""A run on disk: safetensors for tensors, JSON for the rest, never half-written, no pickle.

    latest.json               which files belong together; it always names a complete state
    state-000012.safetensors  every tensor of the state after round 12
    records.jsonl             one line per finished round; what lies beyond the length that
                              latest.json tells is ignored

Two processes may find the same state, but only one goes on from it: who comes second to save finds
a latest.json that is not the one it left, and stops.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedbook.errors import FedbookError
from fedbook.files import UNREADABLE, locked, refused, write_atomically

FORMAT = 1  # of latest.json and what it names; those without a number are of the first
ELSEWHERE = "free some space or use another folder; the last state that was saved is whole"


def flatten(value: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """Replace each tensor in a nest of dicts and lists by a reference, and collect it."""
    if isinstance(value, Tensor):
        name = f"{len(tensors)}{path}"  # numbered: "a/b" may be one key or two
        tensors[name] = value.detach().cpu().contiguous()
        return {"__tensor__": name}
    if isinstance(value, dict) and all(isinstance(k, (str, int, float)) for k in value):
        return {"__dict__": [[k, flatten(v, tensors, f"{path}/{k}")] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return [flatten(v, tensors, f"{path}/{i}") for i, v in enumerate(value)]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise FedbookError(
        f"state {path or '/'} holds a {type(value).__name__}, which a checkpoint cannot keep",
        "use tensors, numbers, strings, lists and dicts",
    )


def unflatten(value: Any, tensors: dict[str, Tensor], device: torch.device) -> Any:
    if isinstance(value, dict):
        if "__tensor__" in value:
            return tensors[value["__tensor__"]].to(device)
        return {k: unflatten(v, tensors, device) for k, v in value["__dict__"]}
    if isinstance(value, list):
        return [unflatten(v, tensors, device) for v in value]
    return value


class Checkpoint:
    """The folder of one run. `identity` (method, data, seed, ...) must be the same when the run
    goes on.
    """

    def __init__(self, folder: str | Path, identity: dict[str, Any]) -> None:
        self.folder = Path(folder)
        self.identity = identity
        self._head = self.folder / "latest.json"
        self._known: bytes | None = None  # what latest.json said when it was last read or written
        if self.folder.exists() and not self.folder.is_dir():
            raise FedbookError(
                f"checkpoint {self.folder} is a file, a folder was expected", "name another place"
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FedbookError(
                f"cannot make the checkpoint folder {self.folder}: {error.strerror}",
                "name a place you may write to",
            ) from None

    def restore(self, device: torch.device) -> tuple[dict[str, Any], list[dict]] | None:
        """The last complete state and the records up to it, or None for a new run."""
        if not self._head.exists():
            return None
        try:
            with locked(self.folder):
                self._known = self._head.read_bytes()
                latest = json.loads(self._known)
                if latest.get("format", 1) != FORMAT:
                    raise ValueError(f"format {latest['format']}, this fedbook reads {FORMAT}")
                blob = self._file(latest["tensors"]).read_bytes()
                log = self._file("records.jsonl").read_bytes()[: latest["records_bytes"]]
            if hashlib.sha256(blob).hexdigest() != latest["sha256"]:
                raise ValueError(f"{latest['tensors']} does not match its hash")
            state = unflatten(latest["state"], load(blob), device)
            records = [json.loads(line) for line in log.splitlines()]
            if len(records) != latest["round"]:
                raise ValueError(f"{len(records)} records of {latest['round']} rounds")
            known = dict(latest["identity"])
        except UNREADABLE + (SafetensorError,) as error:
            said = str(error) or type(error).__name__
            raise FedbookError(
                f"the checkpoint in {self.folder} cannot be read: {said}",
                "delete the folder to start again",
            ) from None
        for key, value in self.identity.items():
            if known.get(key) != json.loads(json.dumps(value)):
                raise FedbookError(
                    f"the checkpoint in {self.folder} belongs to another run: its {key} differs",
                    "use another folder, or delete this one",
                )
        return state, records

    def _file(self, name: str) -> Path:
        """A file of this folder and no other."""
        if Path(name).name != name:
            raise ValueError(f"{name!r} lies elsewhere")
        return self.folder / name

    def save(self, round: int, state: dict[str, Any], records: list[dict[str, Any]]) -> None:
        """Keep the state after a round and the records since the last one; only the newest state
        stays.
        """
        tensors: dict[str, Tensor] = {}
        nest = flatten(state, tensors)
        blob = save({k: v.clone() for k, v in tensors.items()})
        lines = "".join(json.dumps(r) + "\n" for r in records).encode()
        try:
            with locked(self.folder):
                self._save(round, nest, blob, lines)
        except OSError as error:
            raise refused(self.folder, error, ELSEWHERE) from error

    def _save(self, round: int, nest: Any, blob: bytes, lines: bytes) -> None:
        found = self._head.read_bytes() if self._head.exists() else None
        if found != self._known:
            raise FedbookError(
                f"another process goes on with the checkpoint in {self.folder}",
                "let it finish, or use another folder",
            )
        kept = 0 if found is None else json.loads(found)["records_bytes"]
        name = f"state-{round:06d}.safetensors"
        with write_atomically(self.folder / name, ELSEWHERE) as part:
            part.write_bytes(blob)
        log = self.folder / "records.jsonl"
        with log.open("r+b" if log.exists() else "w+b") as f:
            f.truncate(kept)
            f.seek(kept)
            f.write(lines)
            f.flush()
            os.fsync(f.fileno())
        latest = {"format": FORMAT, "round": round, "tensors": name}
        latest |= {"sha256": hashlib.sha256(blob).hexdigest(), "records_bytes": kept + len(lines)}
        latest |= {"state": nest, "identity": self.identity}
        content = json.dumps(latest).encode()
        with write_atomically(self._head, ELSEWHERE) as part:
            part.write_bytes(content)
        self._known = content
        # older states, and what a killed process left half-written
        for old in (*self.folder.glob("state-*"), *self.folder.glob(".*.part.*")):
            if old.name != name:
                old.unlink()
