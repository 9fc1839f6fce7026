"""Files on disk: where packs lie, how they are read, written, downloaded and checked, so that none
is ever half-used.

A pack is ``{root}/{name}.npz`` with ``x, y, split`` and, where there are any, ``domain,
domain_names, class_names`` and further columns. ``{root}/manifest.json`` keeps size, SHA-256 and
counts of every pack from its fetch or first load on.
"""

from __future__ import annotations

import hashlib
import json
import os
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedbook.data.dataset import Columns
from fedbook.errors import FedbookError
from fedbook.files import UNREADABLE, locked, refused, write_atomically

CHUNK = 1 << 20
BOMB_BYTES = 1 << 30  # what unpacks to more than this
BOMB_RATIO = 200  # and to so many times its size is refused
MANY = 100_000  # classes or domains that may go without names
AGAIN = "delete it and fetch or make it again"
ELSEWHERE = "free some space or set FEDBOOK_DATA to a folder of your own"


def root() -> Path:
    """Where data are kept: $FEDBOOK_DATA, else fedbook/ in the user's cache folder."""
    if os.environ.get("FEDBOOK_DATA"):
        return Path(os.environ["FEDBOOK_DATA"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "fedbook"


@contextmanager
def at(folder: Path) -> Iterator[None]:
    """Use another data folder for a while."""
    before = os.environ.get("FEDBOOK_DATA")
    os.environ["FEDBOOK_DATA"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["FEDBOOK_DATA"]
        else:
            os.environ["FEDBOOK_DATA"] = before


def sha256(path: Path) -> str:
    return _digest(path, hashlib.sha256())


def _digest(path: Path, state: Any) -> str:
    with open(path, "rb") as f:
        while block := f.read(CHUNK):
            state.update(block)
    return state.hexdigest()


# --------------------------------------------------------------------------------------------------
# packs


def read_pack(path: Path) -> Columns:
    """A pack, read in full (zip checks every byte's CRC) and checked for shape; anything else is an
    error.
    """
    if not path.is_file():
        raise FedbookError(f"there is no file {path}", "check the path")
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > max(BOMB_BYTES, BOMB_RATIO * path.stat().st_size):
            raise ValueError(f"its {path.stat().st_size:,} bytes would unpack to {size:,}")
        with np.load(path, allow_pickle=False) as pack:
            columns = {k: pack[k] for k in pack.files}
        return _columns(path, columns)
    except UNREADABLE + (zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise FedbookError(f"{path} is broken or cut short: {said}", AGAIN) from error


def _columns(path: Path, columns: dict[str, np.ndarray]) -> Columns:
    """What a pack holds, checked."""
    missing = [k for k in ("x", "y", "split") if k not in columns]
    if missing:
        raise FedbookError(
            f"{path} has no column {', '.join(missing)}", "a pack holds x, y, split[, domain, ...]"
        )
    x = columns.pop("x")
    y = columns.pop("y")
    split = columns.pop("split")
    if x.dtype != np.uint8 or x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[3] != 3):
        raise FedbookError(
            f"{path}: x is {x.dtype} of shape {x.shape}",
            "it must be uint8 [N, H, W] or [N, H, W, 3]",
        )
    if not len(x) or any(len(c) != len(x) or c.ndim != 1 for c in (y, split)):
        raise FedbookError(
            f"{path}: x, y, split have shapes {x.shape}, {y.shape}, {split.shape}", "one row each"
        )
    if not min(x.shape):
        raise FedbookError(f"{path}: x has shape {x.shape}", "pictures need at least one pixel")
    if not np.issubdtype(y.dtype, np.integer) or y.min() < 0 or not np.isin(split, (0, 1)).all():
        raise FedbookError(f"{path}: y must be whole numbers >= 0 and split 0 or 1", AGAIN)
    if "class_names" not in columns and y.max() >= MANY:
        raise FedbookError(f"{path}: label {int(y.max())} without class names", AGAIN)
    classes = [str(c) for c in columns.pop("class_names", np.arange(int(y.max()) + 1))]
    domains = [str(d) for d in columns.pop("domain_names", [])]
    domain = columns.pop("domain", None)
    if y.max() >= len(classes):
        raise FedbookError(
            f"{path}: label {int(y.max())}, but only {len(classes)} class names", AGAIN
        )
    if domain is not None:
        if domain.ndim != 1 or domain.dtype.kind not in "iu":
            raise FedbookError(f"{path}: domain must be one whole number per row", AGAIN)
        most = len(domains) or MANY
        if len(domain) != len(x) or domain.min() < 0 or domain.max() >= most:
            raise FedbookError(
                f"{path}: the domain column does not fit its {len(domains)} names", AGAIN
            )
        domains = domains or [f"domain {d}" for d in range(int(domain.max()) + 1)]
    extra = {
        k: v for k, v in columns.items() if v.ndim and len(v) == len(x) and v.dtype.kind in "iub"
    }
    return Columns(
        x=x, y=y, split=split, class_names=classes, domain=domain, domain_names=domains, extra=extra
    )


def write_pack(path: Path, columns: Columns) -> None:
    """Write a pack, all or nothing."""
    arrays: dict[str, Any] = {
        "x": columns.x,
        "y": columns.y,
        "split": columns.split,
        **columns.extra,
    }
    arrays["class_names"] = np.array(list(columns.class_names))
    if columns.domain is not None:
        arrays |= {"domain": columns.domain, "domain_names": np.array(list(columns.domain_names))}
    with write_atomically(path, ELSEWHERE) as part:
        np.savez(part, **arrays)


def derived(name: str, make: Callable[[], Columns]) -> Columns:
    """Columns that can be computed again: kept in the cache as a pack, remade when missing or
    broken, or kept nowhere.
    """
    path = root() / f"{name}.npz"
    try:
        if path.exists() and sha256(path) == path.with_suffix(".sha256").read_text().strip():
            return read_pack(path)
    except (FedbookError, OSError):
        pass
    columns = make()
    try:
        write_pack(path, columns)
        with write_atomically(path.with_suffix(".sha256")) as part:
            part.write_text(sha256(path))
    except (FedbookError, OSError):
        pass
    return columns


# --------------------------------------------------------------------------------------------------
# manifest


def manifest(folder: Path) -> dict[str, dict[str, Any]]:
    try:
        found = json.loads((folder / "manifest.json").read_text())
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def record(path: Path, columns: Columns) -> dict[str, Any]:
    """Enter a pack in the manifest beside it (silently not, where that folder cannot be
    written).
    """
    stat = path.stat()
    entry = {
        "file": path.name,
        "bytes": stat.st_size,
        "mtime": stat.st_mtime_ns,
        "sha256": sha256(path),
    }
    entry |= {"counts": columns.counts()}
    _remember(path.parent, path.name, entry)
    return entry


def _remember(folder: Path, key: str, entry: dict[str, Any]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder), write_atomically(folder / "manifest.json") as part:
            known = manifest(folder) | {key: entry}
            part.write_text(json.dumps(known, indent=1, sort_keys=True))
    except (FedbookError, OSError):
        pass


def load_recorded(path: Path) -> tuple[Columns, dict[str, Any]]:
    """A pack and its manifest entry. The hash is computed anew whenever size or time of the file
    have changed.
    """
    entry = manifest(path.parent).get(path.name)
    if not isinstance(entry, dict) or not {"bytes", "mtime", "sha256"} <= set(entry):
        columns = read_pack(path)
        return columns, record(path, columns)
    stat = path.stat()
    if (stat.st_size, stat.st_mtime_ns) != (entry["bytes"], entry["mtime"]) and sha256(
        path
    ) != entry["sha256"]:
        read_pack(path)  # a broken file is called broken
        raise FedbookError(
            f"{path} is not the file that was recorded (SHA-256 differs from manifest.json)",
            f"fetch it again, or remove the entry {path.name} from "
            f"{path.parent / 'manifest.json'} to accept it",
        )
    return read_pack(path), entry


# --------------------------------------------------------------------------------------------------
# download


def download(
    url: str,
    target: Path,
    *,
    md5: str | None = None,
    sha256: str | None = None,
    size: int | None = None,
    quiet: bool = False,
    timeout: float = 30.0,
) -> str:
    """Fetch ``url`` into ``target`` and return its SHA-256.

    What has arrived so far lies in ``target.part`` and is continued by the next call. The file gets
    its name only when it is complete and its size and checksum are as published; a wrong one is
    deleted. Where no checksum is published, the first download's is kept in the manifest and every
    later one must equal it.
    """
    part = target.with_name(target.name + ".part")
    try:
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with locked(part):
                try:
                    if not target.exists():  # another process may have been first
                        _receive(url, part, quiet, timeout)
                        _check(part, url, md5, sha256, size)
                        os.replace(part, target)
                finally:
                    if part.exists() and not part.stat().st_size:
                        part.unlink()
        else:
            _check(target, url, md5, sha256, size)
    except OSError as error:
        raise refused(part, error, ELSEWHERE) from error
    found = _digest(target, hashlib.sha256())
    if not (md5 or sha256):
        known = manifest(root()).get(url, {}).get("sha256", found)
        if known != found:
            target.unlink()
            raise FedbookError(
                f"{url} is not the file it was when first fetched: SHA-256 {found} instead of "
                f"{known}",
                f"if it was replaced on purpose, remove its entry from {root() / 'manifest.json'}",
            )
        _remember(root(), url, {"bytes": target.stat().st_size, "sha256": found})
    return found


def _check(path: Path, url: str, md5: str | None, sha256: str | None, size: int | None) -> None:
    wrong = None
    if size is not None and path.stat().st_size != size:
        wrong = f"{path.stat().st_size} bytes instead of {size}"
    for kind, expected in (("MD5", md5), ("SHA-256", sha256)):
        if (
            expected
            and (found := _digest(path, hashlib.new(kind.replace("-", "").lower()))) != expected
        ):
            wrong = f"{kind} {found} instead of {expected}"
    if wrong:
        path.unlink()
        raise FedbookError(
            f"{url} is not the published file: {wrong}", "the download was deleted; try again later"
        )


def _receive(url: str, part: Path, quiet: bool, timeout: float) -> None:
    from tqdm.auto import tqdm

    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "fedbook"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if (
            error.code == 416 and have
        ):  # nothing left to send, or the file became shorter: start again
            os.truncate(part, 0)
            return _receive(url, part, quiet, timeout)
        raise FedbookError(
            f"{url} answers {error.code} {error.reason}", "try later, or place the files by hand"
        ) from error
    except (urllib.error.URLError, TimeoutError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise FedbookError(
            f"cannot reach {url}: {reason}", "check the connection; an offline dataset needs none"
        ) from error
    with answer:
        if answer.status != 206:
            have = 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        bar = tqdm(
            total=total, initial=have, unit="B", unit_scale=True, desc=part.name[:-5], disable=quiet
        )
        with open(part, "ab" if have else "wb") as f, bar:
            while True:
                try:
                    block = answer.read(CHUNK)
                except (OSError, urllib.error.URLError) as error:
                    raise _cut(url, f.tell(), total) from error
                if not block:
                    break
                f.write(block)
                bar.update(len(block))
            arrived = f.tell()
    if total is not None and arrived != total:
        raise _cut(url, arrived, total)


def _cut(url: str, arrived: int, total: int | None) -> FedbookError:
    return FedbookError(
        f"{url} broke off after {arrived} of {total or '?'} bytes",
        "run it again: it continues there",
    )
