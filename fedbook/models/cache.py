"""What a frozen backbone says about an image never changes: compute it once per image, and keep it.

An entry holds one row per sample of a dataset and is named by what was computed, from which images
and with which weights, so changing any of them is another entry. Only rows somebody asked for are
computed (NaN elsewhere). Least recently used entries go first when a budget is full: 512 MB in
memory, 2 GB on disk. The disk is used only when a directory is named: `FEDBOOK_CACHE=dir`;
`FEDBOOK_CACHE_MEMORY_MB` and `FEDBOOK_CACHE_DISK_MB` change the budgets.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.models.backbones import weights_fingerprint

MB = 2**20
BATCH = 256


def images_fingerprint(federation: Federation) -> str:
    """`federation.data_fingerprint`, taken anew: the attribute would not notice images changed in
    place.
    """
    return vars(Federation)["data_fingerprint"].func(federation)


def rows_of(federation: Federation) -> Tensor:
    """Every sample some client trains or is tested on."""
    return torch.cat([i for c in federation.clients for i in (c.train, c.test)]).unique()


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


@dataclass
class Cache:
    """Per-image tensors in memory and, with a directory, on disk; budgets in bytes."""

    memory: int = 512 * MB
    disk: int = 2048 * MB
    directory: Path | None = None
    _entries: OrderedDict[str, Tensor] = field(default_factory=OrderedDict, repr=False)

    @classmethod
    def from_environment(cls) -> Cache:
        folder = os.environ.get("FEDBOOK_CACHE")
        return cls(
            int(os.environ.get("FEDBOOK_CACHE_MEMORY_MB", 512)) * MB,
            int(os.environ.get("FEDBOOK_CACHE_DISK_MB", 2048)) * MB,
            Path(folder) if folder else None,
        )

    def rows(
        self, key: str, count: int, index: Tensor, compute: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Entry `key` [count, ...] with the rows at `index` present; `compute(some of index)` gives
        those missing.
        """
        index = index.cpu()
        kept = self._entries.get(key)
        if kept is None:
            kept = self._read(key, count)
        missing = index if kept is None else index[kept[index].flatten(1)[:, 0].isnan()]
        if len(missing):
            with torch.no_grad():
                new = torch.cat([compute(part).cpu() for part in missing.split(BATCH)])
            kept = (
                new.new_full((count, *new.shape[1:]), float("nan"))
                if kept is None
                else kept.clone()
            )
            kept[missing] = new
            self._write(key, kept)
        assert kept is not None
        self._entries[key] = kept
        self._entries.move_to_end(key)
        while self._entries and sum(map(_size, self._entries.values())) > self.memory:
            self._entries.popitem(last=False)
        return kept

    def clear(self) -> None:
        """Forget what is in memory (files stay)."""
        self._entries.clear()

    def _read(self, key: str, count: int) -> Tensor | None:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self.directory and self.directory / f"{key}.safetensors"
        if path is None or not path.is_file():
            return None
        try:
            kept = load_file(path)["rows"]
            os.utime(path)
        except (SafetensorError, KeyError, OSError):
            return None
        return kept if len(kept) == count else None

    def _write(self, key: str, kept: Tensor) -> None:
        from safetensors.torch import save_file

        if self.directory is None or _size(kept) > self.disk:
            return
        path = self.directory / f"{key}.safetensors"
        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            save_file({"rows": kept}, part)
            os.replace(part, path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise FedbookError(
                f"cannot write to the cache: {error}", "point FEDBOOK_CACHE elsewhere, or unset it"
            ) from error
        self._trim(path)

    def _trim(self, newest: Path) -> None:
        """Delete the files longest unused until the rest fit; others may be deleting at the same
        time.
        """
        files = []
        for file in newest.parent.glob("*.safetensors"):
            with contextlib.suppress(FileNotFoundError):
                files.append((file == newest, file.stat().st_mtime, file.stat().st_size, file))
        total = sum(size for _, _, size, _ in files)
        for is_newest, _, size, file in sorted(files):
            if total > self.disk and not is_newest:
                file.unlink(missing_ok=True)
                total -= size


CACHE = Cache.from_environment()


def per_image(
    kind: str,
    federation: Federation,
    frozen: nn.Module,
    compute: Callable[[Tensor], Tensor],
    cache: Cache | None = None,
) -> Tensor:
    """`compute(images)` of every sample a client holds, [N, ...] on the federation's device, kept
    in the cache.
    """
    place = next(frozen.parameters()).device

    def at(index: Tensor) -> Tensor:
        return compute(federation.inputs(index.to(federation.device)).to(place))

    if federation.x.is_meta:
        return at(torch.arange(len(federation.x), device="meta"))
    key = f"{kind}-{images_fingerprint(federation)}-{weights_fingerprint(frozen)}"
    return (
        (cache or CACHE).rows(key, len(federation.x), rows_of(federation), at).to(federation.device)
    )
