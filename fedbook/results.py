"""One JSON line per finished run, keyed by a hash of its full configuration, so that nothing is
ever computed twice.

A line is written in one go, under a lock, and flushed to the disk; a fragment left by a kill is
reported, never used, and removed by the next append. Each line carries its own scale, seed,
versions, device and seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbook.errors import FedbookError

if TYPE_CHECKING:
    import pandas as pd

Result = dict[str, Any]


def config_key(config: dict[str, Any]) -> str:
    """The first 16 hex digits of the SHA-256 of the configuration in canonical JSON."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def default_folder(kind: str = "results") -> Path:
    """./results (or ./figures) inside a checkout of fedbook, else the user's own data folder."""
    if chosen := os.environ.get(f"FEDBOOK_{kind.upper()}"):
        return Path(chosen)
    for folder in (Path.cwd(), *Path.cwd().parents):
        package = folder / "fedbook" / "papers" / "__init__.py"
        if package.is_file() and (folder / "pyproject.toml").is_file():
            return folder / kind
    share = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return share / "fedbook" / kind


SHIPPED = Path(__file__).parent / "stored"  # in the wheel only: the checkout's results/


class Store:
    """The folder of result files: `<paper>_<scale>.jsonl`.

    Outside a checkout the results that came with the package are read too, before one's own.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = Path(folder) if folder is not None else default_folder()
        self._folders = (SHIPPED, self.folder) if folder is None else (self.folder,)
        self._cache: dict[Path, tuple[tuple[int, int], list[Result]]] = {}

    def check_writable(self) -> None:
        """Fail before the first run rather than after it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            probe = self.folder / f".write-{os.getpid()}"
            probe.write_bytes(b"fedbook")
            probe.unlink()
        except OSError as error:
            raise FedbookError(
                f"cannot write results in {self.folder}: {error.strerror or error}",
                "choose another folder with --results DIR or FEDBOOK_RESULTS",
            ) from None

    def append(self, result: Result, file: str) -> None:
        """Add one line, whole or not at all."""
        line = (json.dumps(result, sort_keys=True, allow_nan=False) + "\n").encode()
        path = self.folder / f"{file}.jsonl"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(path, "a+b", buffering=0) as f, _lock(f):
                end = _whole_length(f)
                f.seek(end)
                rest = f.read()
                if rest and _parse(rest) is not None:
                    line = b"\n" + line
                    end += len(rest)
                elif rest:
                    warnings.warn(f"{path}: removed an unfinished last line", stacklevel=2)
                    f.truncate(end)
                try:
                    if f.write(line) != len(line):
                        raise OSError(28, "No space left on device")
                    os.fsync(f.fileno())
                except OSError:
                    f.truncate(end)
                    raise
        except OSError as error:
            raise FedbookError(
                f"could not write the result of a finished run to {path}: "
                f"{error.strerror or error}",
                "free some space or choose another folder with --results DIR; nothing "
                "half-written was left",
            ) from None

    def load(self, **where: Any) -> list[Result]:
        """All whole lines whose fields equal those asked for, the newest line of a key winning."""
        found: dict[str, Result] = {}
        for folder in self._folders:
            for path in sorted(folder.glob("*.jsonl")):
                for r in self._read(path):
                    found.pop(r["key"], None)
                    found[r["key"]] = r
        return [r for r in found.values() if all(r.get(k) == v for k, v in where.items())]

    def keys(self) -> dict[str, Result]:
        """Every result by its key."""
        return {r["key"]: r for r in self.load()}

    def frame(self, **where: Any) -> pd.DataFrame:
        """One row per run: key, spec, scale, seed, seconds, `config.*` and `metrics.*` columns."""
        import pandas as pd

        rows = [{k: v for k, v in r.items() if k != "versions"} for r in self.load(**where)]
        return pd.json_normalize(rows)

    def _read(self, path: Path) -> list[Result]:
        stat = path.stat()
        stamp = (stat.st_mtime_ns, stat.st_size)
        if path in self._cache and self._cache[path][0] == stamp:
            return self._cache[path][1]
        results = []
        for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
            if line.strip() and (result := _parse(line)) is not None:
                results.append(result)
            elif line.strip():
                warnings.warn(
                    f"{path}, line {number} is broken or unfinished and is ignored", stacklevel=3
                )
        self._cache[path] = (stamp, results)
        return results


def _parse(line: bytes) -> Result | None:
    """A result, if the line is one: whole JSON whose key belongs to its configuration."""
    try:
        result = json.loads(line)
        return result if result["key"] == config_key(result["config"]) else None
    except (ValueError, KeyError, TypeError):
        return None


def _whole_length(f: Any) -> int:
    """The length of the file up to and including its last newline."""
    end = f.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - 65536)
        f.seek(start)
        at = f.read(end - start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0


@contextmanager
def _lock(f: Any) -> Iterator[None]:
    """An exclusive lock on an open file, where the system has them."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    fcntl.flock(f, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(f, fcntl.LOCK_UN)
