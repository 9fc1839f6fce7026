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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbook.errors import FedbookError
from fedbook.files import locked, refused

if TYPE_CHECKING:
    import pandas as pd

Result = dict[str, Any]
FORMAT = 2  # metrics.log["name"] is what stages logged; it was metrics.extra["slot.name"] in 1


def config_key(config: dict[str, Any]) -> str:
    """The first 16 hex digits of the SHA-256 of the configuration in canonical JSON."""
    text = _json(config, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _json(value: dict[str, Any], **style: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False, **style)
    except (TypeError, ValueError, RecursionError) as error:
        raise FedbookError(
            f"a result cannot hold this: {error}", "use numbers that are finite, text and lists"
        ) from None


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


def _shipped() -> Path:
    """The results that come with fedbook: inside a wheel, beside an editable install."""
    inside = Path(__file__).parent / "stored"
    checkout = Path(__file__).parents[1]
    editable = not inside.is_dir() and (checkout / "pyproject.toml").is_file()
    return checkout / "results" if editable else inside


SHIPPED = _shipped()


@dataclass
class Merged:
    """What came of lines from elsewhere: how many were new and known, keys that are here with
    another outcome, and why lines were refused.
    """

    new: int = 0
    known: int = 0
    different: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


class Store:
    """The folder of result files: `<paper>_<scale>.jsonl`.

    Outside a checkout the results that came with the package are read too, before one's own.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = Path(folder) if folder is not None else default_folder()
        asked = folder is not None or self.folder.resolve() == SHIPPED.resolve()
        self._folders = (self.folder,) if asked else (SHIPPED, self.folder)
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
        self._extend([result], file)

    def _extend(self, results: Sequence[Result], file: str) -> None:
        """Add lines, all of them whole or none."""
        lines = "".join(_json({"format": FORMAT, **r}) + "\n" for r in results).encode()
        path = self.folder / f"{file}.jsonl"
        if path.parent != self.folder:
            raise FedbookError(f"{file!r} names another folder", "give the name of a file")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with locked(path), open(path, "a+b", buffering=0) as f:
                end = _whole_length(f)
                f.seek(end)
                rest = f.read()
                if rest and _parse(rest) is not None:
                    lines = b"\n" + lines
                    end += len(rest)
                elif rest:
                    warnings.warn(f"{path}: removed an unfinished last line", stacklevel=3)
                    f.truncate(end)
                try:
                    if f.write(lines) != len(lines):
                        raise OSError(28, "No space left on device")
                    os.fsync(f.fileno())
                except OSError:
                    f.truncate(end)
                    raise
        except OSError as error:
            hint = "free some space or choose another folder with --results DIR"
            raise refused(path, error, hint) from None

    def merge(self, path: Path) -> Merged:
        """Add the lines of another machine's file whose keys are not here, under the file's name.

        A key that is here stays as it is. Of several lines of a key the newest counts.
        """
        found: dict[str, Result] = {}
        out = Merged()
        for where, result in _lines(path):
            try:
                if result is None:
                    raise FedbookError(f"{where} is no whole result")
                found[result["key"]] = _today(result, where)
            except FedbookError as error:
                out.refused.append(error.message)
        here = self.keys()
        new = [r for key, r in found.items() if key not in here]
        both = [key for key in found if key in here]
        for key in both:
            if _outcome(found[key]["metrics"]) != _outcome(here[key]["metrics"]):
                out.different.append(key)
        out.new = len(new)
        out.known = len(both) - len(out.different)
        if new:
            self._extend(new, path.stem)
        return out

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
        for where, result in _lines(path):
            if result is None:
                warnings.warn(f"{where} is broken or unfinished and is ignored", stacklevel=3)
            else:
                results.append(_today(result, where))
        self._cache[path] = (stamp, results)
        return results


def _lines(path: Path) -> Iterator[tuple[str, Result | None]]:
    """Every line that is not empty: where it stands, and its result if it is one."""
    with locked(path, shared=True):
        lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield f"{path}, line {number}", _parse(line)


def _parse(line: bytes) -> Result | None:
    """A result, if the line is one: whole JSON whose key belongs to its configuration."""
    try:
        result = json.loads(line, parse_constant=_no_number)
        whole = isinstance(result["config"], dict) and isinstance(result["metrics"], dict)
        return result if whole and result["key"] == config_key(result["config"]) else None
    except (ValueError, KeyError, TypeError, RecursionError, FedbookError):
        return None


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number in JSON")


def _today(result: Result, where: str) -> Result:
    """A line of any format as one of today's; one from the future is refused. Lines carry their
    format since the second.
    """
    metrics = result["metrics"]
    number = result.get("format", 1 if "extra" in metrics else 2)
    if number not in (1, FORMAT):
        raise FedbookError(
            f"{where} has format {number!r}, this fedbook reads 1 to {FORMAT}",
            "use the fedbook that wrote it, or another folder with --results DIR",
        )
    if number == 1:
        log = {name.rpartition(".")[2]: value for name, value in metrics.get("extra", {}).items()}
        rest = {name: value for name, value in metrics.items() if name != "extra"}
        result = {**result, "format": FORMAT, "metrics": {**rest, "log": log}}
    return result


def _outcome(value: Any) -> Any:
    """What a run measured, without the time it took."""
    if not isinstance(value, dict):
        return value
    return {k: _outcome(v) for k, v in value.items() if not k.endswith("seconds")}


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
