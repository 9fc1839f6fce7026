"""A run on disk: safetensors for tensors, JSON for the rest, never half-written, no pickle.

latest.json            which files belong together (replaced atomically, so it always names a
complete state) state-000012.safetensors   every tensor of the state after round 12 records.jsonl
one line per finished round; what lies beyond latest.json's length is ignored
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


def flatten(value: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """Replace each tensor in a nest of dicts and lists by a reference, and collect it."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach().cpu().contiguous()
        return {"__tensor__": path}
    if isinstance(value, dict):
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


def write_atomically(path: Path, content: bytes) -> None:
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as f:
            f.write(content)
            f.flush()
            os.fsync(f.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


class Checkpoint:
    """The folder of one run. `identity` (method, data, seed, ...) must be the same when the run
    goes on.
    """

    def __init__(self, folder: str | Path, identity: dict[str, Any]) -> None:
        self.folder, self.identity = Path(folder), identity
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
        head = self.folder / "latest.json"
        if not head.exists():
            return None
        try:
            latest = json.loads(head.read_bytes())
            blob = (self.folder / latest["tensors"]).read_bytes()
            if hashlib.sha256(blob).hexdigest() != latest["sha256"]:
                raise ValueError(f"{latest['tensors']} does not match its hash")
            state = unflatten(latest["state"], load(blob), device)
            lines = (
                (self.folder / "records.jsonl").read_bytes()[: latest["records_bytes"]].splitlines()
            )
            records = [json.loads(line) for line in lines]
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise FedbookError(
                f"the checkpoint in {self.folder} cannot be read: {error}",
                "delete the folder to start again",
            ) from None
        for key, value in self.identity.items():
            if latest["identity"].get(key) != json.loads(json.dumps(value)):
                raise FedbookError(
                    f"the checkpoint in {self.folder} belongs to another run: its {key} differs",
                    "use another folder, or delete this one",
                )
        return state, records

    def save(self, round: int, state: dict[str, Any], records: list[dict[str, Any]]) -> None:
        """Keep the state after a round and the records since the last one; only the newest state
        stays.
        """
        tensors: dict[str, Tensor] = {}
        nest = flatten(state, tensors)
        blob = save({k: v.clone() for k, v in tensors.items()})
        name = f"state-{round:06d}.safetensors"
        write_atomically(self.folder / name, blob)
        log = self.folder / "records.jsonl"
        kept = self._kept_bytes()
        with log.open("r+b" if log.exists() else "w+b") as f:
            f.truncate(kept)
            f.seek(kept)
            f.write("".join(json.dumps(r) + "\n" for r in records).encode())
            f.flush()
            os.fsync(f.fileno())
            length = f.tell()
        latest = {"round": round, "tensors": name, "sha256": hashlib.sha256(blob).hexdigest()}
        latest |= {"records_bytes": length, "state": nest, "identity": self.identity}
        write_atomically(self.folder / "latest.json", json.dumps(latest).encode())
        for old in self.folder.glob("state-*"):
            if old.name != name:
                old.unlink()

    def _kept_bytes(self) -> int:
        head = self.folder / "latest.json"
        return json.loads(head.read_bytes())["records_bytes"] if head.exists() else 0
