"""A table or figure of a paper as data: its printed rows, the run behind each row at each scale,
paper against ours.

A row is one printed number. The paper's `experiment(row, scale, seed)` says which run measures it,
so a table needs no code of its own: a method's settings in the paper's scales fill every table the
method appears in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedbook import metrics
from fedbook.experiment import Experiment
from fedbook.html import table
from fedbook.papers.rows import POINT, Row
from fedbook.results import Result

if TYPE_CHECKING:
    from fedbook.papers.paper import Paper, Plot


@dataclass(frozen=True, kw_only=True)
class Run:
    """A row's settings and method, one seed of it, and the stored result if it has run.

    `label` are the settings as printed and, where they differ, as run: "domainnet -> emoji7".
    """

    row: Row
    seed: int
    experiment: Experiment
    label: str
    result: Result | None = None
    diverged: bool = False  # it was run, and there is nothing to measure

    @property
    def metrics(self) -> dict[str, Any]:
        """What a finished run measured."""
        assert self.result is not None, "only a finished run has metrics"
        return self.result["metrics"]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One table or figure."""

    id: str
    kind: str  # table | figure | sketch | study
    title: str
    paper: Paper = field(repr=False)
    rows: tuple[Row, ...] = field(default=(), repr=False)
    plot: Plot | None = field(default=None, repr=False)
    count: Callable[[Row], float] | None = field(default=None, repr=False)
    down: tuple[str, ...] = field(default=(), repr=False)  # the printed layout, see layout.py
    across: tuple[str, ...] = field(default=(), repr=False)
    best_over: tuple[str, ...] = field(default=(), repr=False)

    @property
    def name(self) -> str:
        """The id without the paper: "table1"."""
        return self.id.split("/")[1]

    def counted(self, row: Row) -> bool:
        """Whether a number is counted (parameters, FLOPs) and needs no training."""
        return self.count is not None and row.metric not in self.paper.metrics

    def experiment(self, row: Row, scale: str, seed: int) -> Experiment | None:
        """The run behind a row, or None where this scale of the paper has none."""
        if self.counted(row) or not self.paper.has(scale):
            return None
        size = self.paper.scale(scale)
        return self.paper.experiment(row, size.sized.get(self.name, size), seed)

    def available(self, row: Row, scale: str) -> bool:
        """Whether this scale can put a number beside the printed one."""
        return (
            self.counted(row)
            or row.metric in self.paper.derived
            or self.experiment(row, scale, 0) is not None
        )

    @property
    def built(self) -> str:
        """Whether its rows have runs: "yes", "partial", "no"; a drawing is a "sketch"."""
        if self.kind == "sketch":
            return "sketch"
        scales = [s.name for s in self.paper.scales]
        ready = [any(self.available(row, s) for s in scales) for row in self.rows]
        return "yes" if ready and all(ready) else "partial" if any(ready) else "no"

    def seeds(self, scale: str, seeds: int | None = None) -> int:
        """How often a table is repeated: as asked for, else as its scale says."""
        own = self.paper.scale(scale)
        return seeds or own.seeds_of.get(self.name, own.seeds)

    @cached_property
    def _plans(self) -> dict[tuple[str, int], list[Run]]:
        return {}

    def plan(self, scale: str, seeds: int | None = None) -> list[Run]:
        """Every run behind the table at a scale, once each, without results."""
        if not self.paper.has(scale):
            return []
        count = self.seeds(scale, seeds)
        if (scale, count) not in self._plans:
            found: dict[tuple[str, str, int], Run] = {}
            for row in self.rows:
                for seed in range(count):
                    tag = (row.setting, row.method, seed)
                    if tag not in found and (e := self.experiment(row, scale, seed)) is not None:
                        label = as_run(row, e, self.paper.as_run)
                        found[tag] = Run(row=row, seed=seed, experiment=e, label=label)
            self._plans[scale, count] = list(found.values())
        return self._plans[scale, count]

    def runs(
        self, scale: str, seeds: int | None = None, results: dict[str, Result] | None = None
    ) -> list[Run]:
        """The planned runs, with their stored results where there are any."""
        planned = self.plan(scale, seeds)
        if not results:
            return planned
        return [_with_result(run, run.experiment.find(results)) for run in planned]

    def measured(self, row: Row, runs: Iterable[Run]) -> list[tuple[int, float]]:
        """(seed, value in the printed unit) of a row, from the runs that have finished."""
        if self.counted(row):
            assert self.count is not None
            return [(0, self.count(row) * row.factor)]
        if row.metric in self.paper.derived:
            found = self.paper.derived[row.metric](self, row, list(runs))
            return [(seed, value * row.factor) for seed, value in found]
        path = self.paper.metrics.get(row.metric, row.metric)
        out = []
        for run in runs:
            if run.row.method == row.method and run.row.setting == row.setting and run.result:
                value = lookup(run.metrics, path)
                if value is not None:
                    out.append((run.seed, value * row.factor))
        return out

    def tabulate(
        self, scale: str, results: dict[str, Result], seeds: int | None = None
    ) -> list[dict[str, Any]]:
        """Paper against ours, one dict per printed row; a verdict only at paper scale."""
        runs = self.runs(scale, seeds, results)
        labels = {run.row.setting: run.label for run in runs}
        diverged = {(run.row.setting, run.row.method) for run in runs if run.diverged}
        out = []
        for row in self.rows:
            values = [v for _, v in self.measured(row, runs)]
            ours = sum(values) / len(values) if values else None
            spread = metrics.seed_spread(values) if len(values) > 1 else None
            delta = ours - row.value if ours is not None and row.value is not None else None
            gone = (row.setting, row.method) in diverged
            out.append(
                {
                    "setting": row.setting,
                    "settings": row.settings,
                    "unit": row.unit,
                    "as_run": labels.get(row.setting, row.setting),
                    "method": row.method,
                    "metric": row.metric,
                    "paper": row.value,
                    "paper_spread": row.std,
                    "ours": ours,
                    "ours_std": spread,
                    "seeds": len(values),
                    "delta": delta,
                    "scale": scale,
                    "verdict": self._verdict(row, scale, ours, spread, gone),
                }
            )
        return out

    def _verdict(
        self, row: Row, scale: str, ours: float | None, spread: float | None, gone: bool
    ) -> str:
        if ours is None and gone:
            return "diverged"
        if ours is None:
            return "not run" if self.available(row, scale) else "nothing to run"
        if row.value is None:
            return "nothing printed"
        if scale != "paper" and not self.counted(row):
            return f"not comparable ({scale})"
        return "reproduced" if abs(ours - row.value) <= tolerance(row, spread) else "differs"

    def _repr_html_(self) -> str:
        """The printed rows, a line per setting and method, a column per metric."""
        names = list(dict.fromkeys(r.metric for r in self.rows))
        lines: dict[tuple[str, str], dict[str, Any]] = {}
        for row in self.rows:
            shown = "-" if row.value is None else f"{row.value:g}"
            lines.setdefault((row.setting, row.method), {})[row.metric] = shown
        body = [(*who, *(cells.get(m, "") for m in names)) for who, cells in lines.items()]
        caption = f"{self.id}: {self.title} ({len(self.rows)} printed numbers)"
        return table(caption, ("setting", "method", *names), body)


def _with_result(run: Run, result: Result | None) -> Run:
    if result is not None and "diverged" in result["metrics"]:
        return replace(run, diverged=True)
    return replace(run, result=result)


def as_run(row: Row, e: Experiment, paths: Mapping[str, str]) -> str:
    """A row's settings in words, with what was run instead: "domainnet -> emoji7 dif=10".

    `paths` says where in the experiment a setting is found: {"s": "partition.s"}.
    """
    words = []
    for name, printed in row.settings.items():
        part, _, option = paths.get(name, "dataset.name" if name == "dataset" else "").partition(
            "."
        )
        used = getattr(e, part).get(option, printed) if part else printed
        word = arrow(printed, used)
        words.append(word if name == "dataset" else f"{name}={word}")
    return " ".join(words)


def arrow(printed: Any, used: Any) -> str:
    """What was printed and, if it is something else, what was used: "domainnet -> emoji7"."""
    same = str(printed).replace("_", "") == str(used).replace("_", "")
    return str(printed) if same else f"{printed} -> {used}"


def terms(e: Experiment) -> str:
    """How a run was made, in words: "5 clients a round, 2 epochs, 20 rounds"."""
    share = e.method.get("participation", 1.0)
    who = f"{share} clients a round"
    if isinstance(share, float):
        who = "all clients" if share == 1 else f"{share:.0%} of the clients a round"
    epochs = e.method.get("epochs")
    words = [who, f"{epochs} epoch{'' if epochs == 1 else 's'}" if epochs else ""]
    if batches := e.method.get("batches"):
        words.append(f"of {batches} mini-batch{'' if batches == 1 else 'es'}")
    words.append(f"{e.rounds} round{'' if e.rounds == 1 else 's'}")
    return ", ".join(word for word in words if word)


def tolerance(row: Row, spread: float | None) -> float:
    """How far ours may lie from print to count as reproduced: a point (of numbers in millions, half
    a printed digit) or two standard deviations.
    """
    if row.unit == "million":
        point = 0.5 * 10.0 ** -len(str(row.value).partition(".")[2].rstrip("0"))
    else:
        point = POINT.get(row.unit, 0.05 * abs(row.value or 0))
    return max(point, 2 * math.hypot(row.printed_std or 0.0, spread or 0.0))


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


def finished(runs: Sequence[Run]) -> list[Run]:
    """The runs that have a result."""
    return [run for run in runs if run.result is not None]
