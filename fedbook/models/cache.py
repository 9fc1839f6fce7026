"""What a frozen backbone says about an image never changes: compute it once per image, and keep it.

An entry holds one row per sample of a dataset and is named by what was computed, from which images
and with which weights, so changing any of them is another entry. Only rows somebody asked for are
computed (NaN elsewhere), behind a progress bar if there are many; a pass that is stopped goes on
from its last ten thousand. Entries stay in memory (512 MB) and on disk (2 GB), the least recently
used go first. The disk's folder is `FEDBOOK_CACHE`, else
fedbook/features in the user's cache folder; `FEDBOOK_CACHE=off` keeps nothing there.
`FEDBOOK_CACHE_MEMORY_MB` and `FEDBOOK_CACHE_DISK_MB` change the budgets. Processes that want the
same entry wait for the first to make it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.files import UNREADABLE, locked, write_atomically
from fedbook.models.backbones import weights_fingerprint

MB = 2**20
BATCH = 16  # a convolutional stem is fastest on small batches
DAY = 24 * 3600
MANY = 500  # rows worth a progress bar
PAUSE = 60  # seconds between its lines in a log file
SAVED = 10_000  # rows after which a long pass is written, so that a stopped one goes on from there


def images_fingerprint(federation: Federation) -> str:
    """`federation.data_fingerprint`, taken anew: the attribute would not notice images changed in
    place.
    """
    return vars(Federation)["data_fingerprint"].func(federation)


def rows_of(federation: Federation) -> Tensor:
    """Every sample some client trains or is tested on."""
    return torch.cat([i for c in federation.clients for i in (c.train, c.test)]).unique()


def _sha256(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _absent(kept: Tensor, index: Tensor) -> Tensor:
    """Those of `index` whose rows have not been computed."""
    return index[kept[index].flatten(1)[:, 0].isnan()]


def _bar(missing: Tensor, key: str) -> Iterator[Tensor]:
    """Batches of the rows to compute; a bar shows how far it is if there are many."""
    from tqdm.auto import tqdm

    what = f"{key.split('-')[0]} of {len(missing):,} images, once"
    hidden = len(missing) < MANY or bool(os.environ.get("TQDM_DISABLE"))
    redrawn = sys.stderr.isatty() or "ipykernel" in sys.modules
    pace = {} if redrawn else {"mininterval": PAUSE, "maxinterval": PAUSE}
    with tqdm(total=len(missing), desc=what, disable=hidden, **pace) as bar:
        for part in missing.split(BATCH):
            yield part
            bar.update(len(part))


def _whole(part: Tensor) -> Tensor:
    """A batch of full size: kernels round by it, and a row must not depend on who else is asked
    for. So a client that sees its own images alone gets what a simulation of everybody gets.
    """
    return torch.cat([part, part[-1:].expand(BATCH - len(part))]) if len(part) else part


def _megabytes(variable: str, usual: int) -> int:
    text = os.environ.get(variable) or str(usual)
    if not text.isdecimal():
        raise FedbookError(
            f"{variable} is {text!r}, a whole number of megabytes was expected",
            f"for example {variable}={usual}",
        )
    return int(text) * MB


@dataclass
class Cache:
    """Per-image tensors in memory and, with a directory, on disk; budgets in bytes."""

    memory: int = 512 * MB
    disk: int = 2048 * MB
    directory: Path | None = None
    _entries: OrderedDict[str, Tensor] = field(default_factory=OrderedDict, repr=False)

    @classmethod
    def from_environment(cls) -> Cache:
        home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "fedbook" / "features"
        folder = os.environ.get("FEDBOOK_CACHE") or str(home)
        return cls(
            _megabytes("FEDBOOK_CACHE_MEMORY_MB", 512),
            _megabytes("FEDBOOK_CACHE_DISK_MB", 2048),
            None if folder == "off" else Path(folder).expanduser(),
        )

    def rows(
        self, key: str, count: int, index: Tensor, compute: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Entry `key` [count, ...] with the rows at `index` present; `compute(some of index)` gives
        those missing.
        """
        index = index.cpu()
        kept = self._entries.get(key)
        if kept is None or len(_absent(kept, index)):
            with self._alone(key):
                kept = self._fill(key, count, index=index, compute=compute, known=kept)
        self._entries[key] = kept
        self._entries.move_to_end(key)
        while self._entries and sum(map(_size, self._entries.values())) > self.memory:
            self._entries.popitem(last=False)
        return kept

    def _fill(
        self,
        key: str,
        count: int,
        index: Tensor,
        compute: Callable[[Tensor], Tensor],
        known: Tensor | None,
    ) -> Tensor:
        """The entry on disk or in memory, whichever has more of the rows, and the rest computed."""
        kept = self._read(key, count)
        if kept is None or (
            known is not None and len(_absent(known, index)) < len(_absent(kept, index))
        ):
            kept = known
        missing = index if kept is None else _absent(kept, index)
        if not len(missing) and kept is not None:
            return kept
        full = None if kept is None else kept.clone()
        done = 0
        with torch.no_grad():
            for part in _bar(missing, key):
                new = compute(_whole(part)).cpu()[: len(part)]
                if full is None:
                    full = new.new_full((count, *new.shape[1:]), float("nan"))
                full[part] = new
                done += len(part)
                if done == len(missing) or done // SAVED > (done - len(part)) // SAVED:
                    self._write(key, full)
        assert full is not None  # there is at least one part, if an empty one
        return full

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """Keep other processes from making the same entry at the same time."""
        with contextlib.ExitStack() as alone:
            try:
                if self.directory is not None:
                    self.directory.mkdir(parents=True, exist_ok=True)
                    alone.enter_context(locked(self.directory / f"{key}.lock"))
            except OSError as error:
                self._give_up(error)
            yield

    def _give_up(self, error: Exception) -> None:
        """Go on without the disk."""
        warnings.warn(
            f"nothing is kept on disk: {error}; point FEDBOOK_CACHE at a folder of your own, or "
            "set it to off",
            stacklevel=2,
        )
        self.directory = None

    def clear(self) -> None:
        """Forget what is in memory (files stay)."""
        self._entries.clear()

    def _read(self, key: str, count: int) -> Tensor | None:
        from safetensors import SafetensorError, safe_open

        path = self.directory and self.directory / f"{key}.safetensors"
        if path is None or not path.is_file():
            return None
        try:
            with safe_open(path, "pt") as file:
                kept = file.get_tensor("rows")
                whole = (file.metadata() or {}).get("sha256") == _sha256(kept)
            os.utime(path)
        except UNREADABLE + (SafetensorError,):
            return None
        return kept if whole and len(kept) == count else None

    def _write(self, key: str, kept: Tensor) -> None:
        from safetensors.torch import save_file

        if self.directory is None or _size(kept) > self.disk:
            return
        path = self.directory / f"{key}.safetensors"
        try:
            with write_atomically(path) as part:
                save_file({"rows": kept}, part, metadata={"sha256": _sha256(kept)})
            self._trim(path)
        except (FedbookError, OSError) as error:
            self._give_up(error)

    def _trim(self, newest: Path) -> None:
        """Delete the files longest unused until the rest fit; others may be deleting at the same
        time.
        """
        files = []
        for file in newest.parent.glob(".*.part.safetensors"):  # of processes that were killed
            with contextlib.suppress(FileNotFoundError):
                if abs(time.time() - file.stat().st_mtime) > DAY:
                    file.unlink()
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
    compute: Callable[[Tensor, Tensor], Tensor],
    cache: Cache | None = None,
) -> Tensor:
    """`compute(images, their rows)` of every sample a client holds, [N, ...] on the federation's
    device, kept in the cache.
    """
    place = next(frozen.parameters()).device

    def at(index: Tensor) -> Tensor:
        rows = index.to(federation.device)
        return compute(federation.inputs(rows).to(place), rows)

    if federation.x.is_meta:
        return at(torch.arange(len(federation.x), device="meta"))
    key = f"{kind}-{images_fingerprint(federation)}-{weights_fingerprint(frozen)}-{BATCH}"
    return (
        (cache or CACHE).rows(key, len(federation.x), rows_of(federation), at).to(federation.device)
    )
