"""A table or figure of a paper as data: its printed rows, the run behind each row at each scale,
paper against ours.

A row is one printed number: settings (dataset, dif, s, ...), method, metric, value. A paper's
`experiment(row, scale, seed)` says which run measures it, so a table needs no code of its own:
adding a method to `fedbook.methods` and its settings to the paper's `SCALES` fills every table the
method appears in.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedbook import metrics
from fedbook.experiment import Experiment
from fedbook.results import Result

if TYPE_CHECKING:
    import pandas as pd

SCALES = ("smoke", "laptop", "paper")
PUBLISHED = Path(__file__).parent / "published"
FACTOR = {"percent": 100.0, "percentage_points": 100.0, "million": 1e-6}
FACTOR["mflops_as_printed"] = (
    0.5e-9  # the printed unit is M, the numbers are billions of multiply-adds
)
POINT = {"percent": 1.0, "percentage_points": 1.0, "macro_f1": 0.01, "similarity": 0.01}
NOT_SETTINGS = {
    "paper",
    "table",
    "symbol",
    "method",
    "metric",
    "value",
    "std",
    "unit",
    "spread_kind",
    "method_label",
}
NOT_SETTINGS |= {"note"}


@dataclass(frozen=True)
class Row:
    """One printed number (or, in a figure, one quantity to measure: value None)."""

    settings: dict[str, Any]
    method: str
    metric: str
    unit: str = ""
    value: float | None = None
    std: float | None = None
    spread: str = ""
    note: str = ""

    @property
    def setting(self) -> str:
        return " ".join(f"{k}={v}" if k != "dataset" else str(v) for k, v in self.settings.items())

    def __getitem__(self, name: str) -> Any:
        return self.settings.get(name)

    def __hash__(self) -> int:
        return hash((self.setting, self.method, self.metric))


def number(text: str) -> Any:
    """A printed cell as a number if it is one; whole numbers stay whole."""
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def read_csv(name: str) -> list[dict[str, str]]:
    """A file of `published/` as a list of dicts of strings."""
    with open(PUBLISHED / name, newline="", encoding="utf-8") as f:
        return list(csv.DictReader(f))


@cache
def read_rows(name: str) -> tuple[Row, ...]:
    """The rows of a published table."""
    rows = []
    for r in read_csv(name):
        settings = {k: number(v) for k, v in r.items() if k not in NOT_SETTINGS and v != ""}
        settings = {
            k: int(v) if isinstance(v, float) and v == int(v) and k == "s" else v
            for k, v in settings.items()
        }
        value, std = (float(r[k]) if r[k] else None for k in ("value", "std"))
        rows.append(
            Row(
                settings,
                r["method"],
                r["metric"],
                r["unit"],
                value,
                std,
                r["spread_kind"],
                r["note"],
            )
        )
    return tuple(rows)


@dataclass(frozen=True)
class Figure:
    """What a figure measures and how it is drawn: `plot(spec, runs) -> (figure, alt text)`.

    `title` is needed only by a study of our own, which is in no paper's list of figures.
    """

    rows: tuple[Row, ...] = ()
    plot: Callable[[Spec, list[Run]], tuple[Any, str]] | None = None
    title: str = ""


@dataclass(frozen=True)
class Run:
    """A row's settings and method, one seed of it, and the stored result if it has run."""

    row: Row
    seed: int
    experiment: Experiment
    result: Result | None = None


@dataclass(frozen=True)
class Spec:
    """One table or figure."""

    id: str
    paper: str
    kind: str  # table | figure | sketch | study
    title: str
    module: ModuleType = field(repr=False)
    rows: tuple[Row, ...] = field(default=(), repr=False)
    plot: Callable[[Spec, list[Run]], tuple[Any, str]] | None = field(default=None, repr=False)
    count: Callable[[Row], float] | None = field(default=None, repr=False)  # see `counted`

    @property
    def name(self) -> str:
        return self.id.split("/")[1]

    def counted(self, row: Row) -> bool:
        """Whether a number is counted (parameters, FLOPs) and needs no training."""
        return self.count is not None and row.metric not in self.module.METRICS

    def experiment(self, row: Row, scale: str, seed: int) -> Experiment | None:
        """The run behind a row, or None if its method, or the drawing of its figure, is not there
        yet.
        """
        if (
            self.counted(row)
            or scale not in self.module.SCALES
            or (self.kind != "table" and self.plot is None)
        ):
            return None
        e = self.module.experiment(row, dict(self.module.SCALES[scale], name=scale), seed)
        return e if e is not None and e.built else None

    @cached_property
    def _built(self) -> tuple[bool, ...]:
        def ready(r: Row) -> bool:
            return (
                self.counted(r)
                or r.metric in self._derived
                or any(self.experiment(r, s, 0) for s in SCALES)
            )

        return tuple(ready(r) for r in self.rows)

    @property
    def _derived(self) -> dict[str, Callable[[Spec, Row, Sequence[Run]], list[tuple[int, float]]]]:
        """Metrics that follow from several runs, as a paper's DERIVED says: `f(spec, row, runs) ->
        [(seed, value)]`.
        """
        return getattr(self.module, "DERIVED", {})

    @property
    def built(self) -> str:
        """ "yes", "partial" (some rows' methods exist) or "no"; a sketch has nothing to build."""
        if self.kind == "sketch":
            return "sketch"
        return "yes" if self.rows and all(self._built) else "partial" if any(self._built) else "no"

    def seeds(self, scale: str, seeds: int | None = None) -> int:
        """How often a table is repeated: as asked for, else the scale's number, which may differ
        for single tables.
        """
        own = self.module.SCALES[scale]
        return seeds or own.get("seeds_of", {}).get(self.name, own.get("seeds", 1))

    def runs(
        self, scale: str, seeds: int | None = None, results: dict[str, Result] | None = None
    ) -> list[Run]:
        """Every run behind the table at a scale, once each, with its stored result where there is
        one.
        """
        found: dict[tuple[str, str, int], Run] = {}
        for row in self.rows:
            for seed in range(self.seeds(scale, seeds)):
                tag = (row.setting, row.method, seed)
                if tag not in found and (e := self.experiment(row, scale, seed)) is not None:
                    found[tag] = Run(row, seed, e, e.find(results or {}))
        return list(found.values())

    def measured(self, row: Row, runs: Sequence[Run]) -> list[tuple[int, float]]:
        """(seed, value in the printed unit) of a row, from the runs that have finished."""
        if self.counted(row):
            assert self.count is not None
            return [(0, self.count(row) * FACTOR.get(row.unit, 1.0))]
        if row.metric in self._derived:
            return [
                (s, v * FACTOR.get(row.unit, 1.0))
                for s, v in self._derived[row.metric](self, row, runs)
            ]
        tag, out = (row.setting, row.method), []
        for run in runs:
            if run.result is not None and (run.row.setting, run.row.method) == tag:
                value = lookup(
                    run.result["metrics"], self.module.METRICS.get(row.metric, row.metric)
                )
                if value is not None:
                    out.append((run.seed, value * FACTOR.get(row.unit, 1.0)))
        return out

    def tabulate(
        self, scale: str, results: dict[str, Result], seeds: int | None = None
    ) -> list[dict[str, Any]]:
        """Paper against ours, one dict per printed row; a verdict only at paper scale."""
        runs = self.runs(scale, seeds, results)
        table = []
        for row, built in zip(self.rows, self._built):
            values = [v for _, v in self.measured(row, runs)]
            ours = sum(values) / len(values) if values else None
            spread = metrics.seed_spread(values) if len(values) > 1 else None
            delta = ours - row.value if ours is not None and row.value is not None else None
            table.append(
                {
                    "setting": row.setting,
                    "method": row.method,
                    "metric": row.metric,
                    "paper": row.value,
                    "paper_spread": row.std,
                    "ours": ours,
                    "ours_std": spread,
                    "seeds": len(values),
                    "delta": delta,
                    "scale": scale,
                    "verdict": self._verdict(row, scale, ours, spread, built),
                }
            )
        return table

    def _verdict(
        self, row: Row, scale: str, ours: float | None, spread: float | None, built: bool
    ) -> str:
        if not built:
            return "not built yet"
        if ours is None:
            return "not run"
        if row.value is None:
            return "nothing printed"
        if scale != "paper" and not self.counted(row):
            return f"not comparable ({scale})"
        return "reproduced" if abs(ours - row.value) <= tolerance(row, spread) else "differs"


def tolerance(row: Row, spread: float | None) -> float:
    """How far ours may lie from print to count as reproduced: a point, two standard deviations,
    half a digit.
    """
    printed = printed_std(row) or 0.0
    digits = (
        0.5 * 10.0 ** -len(str(row.value).partition(".")[2].rstrip("0"))
        if row.unit == "million"
        else 0.0
    )
    return max(
        POINT.get(row.unit, 0.05 * abs(row.value or 0)) if not digits else digits,
        2 * math.hypot(printed, spread or 0),
    )


def printed_std(row: Row) -> float | None:
    """The printed spread as a standard deviation (FGPT prints variances)."""
    return (
        math.sqrt(row.std) if row.std is not None and row.spread.startswith("variance") else row.std
    )


def lookup(values: dict[str, Any], path: str) -> float | None:
    """metrics["a"]["b"] for "a.b", None where it was not measured."""
    found: Any = values
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return float(found) if isinstance(found, (int, float)) else None


def ordering(table: Iterable[dict[str, Any]]) -> tuple[int, int]:
    """(pairs of methods that ours orders as print does, pairs compared), within each setting and
    metric.
    """
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for r in table:
        if r["paper"] is not None and r["ours"] is not None:
            groups.setdefault((r["setting"], r["metric"]), []).append(r)
    agree = total = 0
    for rows in groups.values():
        for i, a in enumerate(rows):
            for b in rows[:i]:
                if a["paper"] != b["paper"]:
                    total += 1
                    agree += (a["paper"] > b["paper"]) == (a["ours"] > b["ours"])
    return agree, total


def frame(
    specs: Iterable[Spec], scale: str, results: dict[str, Result] | None = None
) -> pd.DataFrame:
    """Tidy numbers of one paper for its claims: printed ones (scale="published"), or ours with one
    row per seed.

    Columns: table ("table1", "fig3"), the settings, method, metric, value, std, seed, scale.
    """
    import pandas as pd

    out: list[dict[str, Any]] = []
    for spec in specs:
        runs = spec.runs(scale, None, results) if scale != "published" else []
        for row in spec.rows:
            base = {
                "table": spec.name,
                **row.settings,
                "method": row.method,
                "metric": row.metric,
                "scale": scale,
            }
            if scale == "published":
                out.append({**base, "value": row.value, "std": printed_std(row), "seed": 0})
                if row.spread.startswith("variance"):
                    out.append(
                        {
                            **base,
                            "metric": "spread",
                            "value": printed_std(row),
                            "std": None,
                            "seed": 0,
                        }
                    )
            else:
                out += [
                    {**base, "value": v, "std": None, "seed": s}
                    for s, v in spec.measured(row, runs)
                ]
        for run in runs:
            out += _curves(spec, run, scale)
    columns = ["table", "method", "metric", "value", "std", "seed", "scale"]
    table = pd.DataFrame(out, columns=None if out else columns)
    return table[table["value"].notna()].reset_index(drop=True)


def _curves(spec: Spec, run: Run, scale: str) -> list[dict[str, Any]]:
    """What a run measured at every round, as rows with a `round`; and its spread over the last
    rounds.
    """
    if run.result is None:
        return []
    m = run.result["metrics"]
    base = {
        "table": spec.name,
        **run.row.settings,
        "method": run.row.method,
        "scale": scale,
        "std": None,
    }
    base["seed"] = run.seed
    rows = []
    if m.get("tail_std") is not None:
        rows.append({**base, "metric": "spread", "value": 100 * m["tail_std"]})
    if spec.kind == "figure":
        for name, values in m.get("curves", {}).items():
            rows += [
                {**base, "metric": f"curve.{name}", "round": r, "value": v}
                for r, v in zip(m["rounds"], values)
            ]
    return rows


def estimate(experiment: Experiment, results: Iterable[Result]) -> float | None:
    """Seconds the run will take, from earlier runs of the same shape: same data and model, if
    possible same method.
    """

    def rate(same: Callable[[Result], bool]) -> float | None:
        per_round = [r["seconds"] / r["config"]["rounds"] for r in results if same(r)]
        return median(per_round) * experiment.rounds if per_round else None

    results = list(results)
    shape = lambda r: all(r["config"][k] == getattr(experiment, k) for k in ("dataset", "model"))  # noqa: E731
    return rate(
        lambda r: shape(r) and r["config"]["method"]["name"] == experiment.method["name"]
    ) or rate(shape)
