"""A stop of the tour: one paper at quick scale, what it should show, and what came out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fedbook import plots
from fedbook.experiment import Experiment
from fedbook.papers.evidence import Cell, Check
from fedbook.papers.numbers import Numbers, measured
from fedbook.papers.paper import Derived, Paper, Scale
from fedbook.papers.rows import Row
from fedbook.papers.spec import Run, Spec, finished
from fedbook.papers.tune import Grid
from fedbook.results import Result

QUICK = "quick"
SEEDS = 3
Keep = Callable[[Row], bool]
Chosen = Callable[[Row, Scale[Any], int], Experiment | None]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A table or figure of which the tour runs the rows that `keep` lets through, and `extra` ones
    that the paper does not print. `tabulated` puts it on the page as a table, with a `note` in its
    caption.
    """

    name: str
    keep: Keep = lambda row: True
    extra: tuple[Row, ...] = ()
    tabulated: bool = True
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What the paper says should be seen, and whether every seed shows it.

    `check` compares seed by seed, above zero is the paper's way; `claims` are those of the paper
    that say it, whose verdict stands in where the quick run cannot show it.
    """

    text: str
    check: Check
    unit: str = ""
    claims: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return self.check.known and self.check.agree == self.check.seeds

    @property
    def seeds(self) -> str:
        """In how many seeds it is seen: "3 of 3 seeds"."""
        if not self.check.known:
            return "not run"
        return f"{self.check.agree} of {self.check.seeds} seeds"

    @property
    def size(self) -> str:
        """The mean difference with half the width of its 95 % interval: "+4.1 ± 1.3 points"."""
        if not self.check.known:
            return ""
        low, high = self.check.interval
        digits = 1 if self.unit == "points" else 2
        said = f"{self.check.difference.value:+.{digits}f}"
        if math.isfinite(high):
            said += f" ± {(high - low) / 2:.{digits}f}"
        return f"{said} {self.unit}".rstrip()


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A drawn figure with a caption for everybody and a description for those who cannot see it."""

    figure: Any = field(repr=False)
    title: str
    caption: str
    alt: str


@dataclass(frozen=True, kw_only=True)
class Stop:
    """One paper of the tour. `effects`, `pictures` and `lines` (for a terminal) are made from what
    was found.
    """

    paper: Paper
    scale: Scale[Any]
    motto: str
    idea: str
    shows: str
    parts: tuple[Part, ...]
    claims: tuple[str, ...]
    effects: Callable[[Found], list[Effect]]
    pictures: Callable[[Found], list[Picture]]
    lines: Callable[[Found], list[str]]
    grid: Grid | None = None  # what its settings were chosen from
    experiment: Chosen | None = None
    derived: Mapping[str, Derived] = field(default_factory=dict)

    @cached_property
    def quick(self) -> Paper:
        """The paper with the quick scale, whose runs may measure more than the paper's."""
        own = self.experiment or self.paper.experiment

        def experiment(row: Row, scale: Scale[Any], seed: int) -> Experiment | None:
            return (own if scale.name == QUICK else self.paper.experiment)(row, scale, seed)

        return replace(
            self.paper,
            scales=(*self.paper.scales, self.scale),
            experiment=experiment,
            derived={**self.paper.derived, **self.derived},
            grid=self.grid,
        )

    @cached_property
    def specs(self) -> dict[str, Spec]:
        """The tables and figures with the rows of the tour alone, by name."""
        found = {}
        for part in self.parts:
            spec = self.quick.specs[f"{self.paper.key}/{part.name}"]
            rows = tuple(row for row in spec.rows if part.keep(row)) + part.extra
            found[part.name] = replace(spec, rows=rows)
        return found


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the runs of a stop measured; `stored` are the results that come with fedbook."""

    stop: Stop
    results: dict[str, Result] = field(repr=False)
    stored: dict[str, Result] = field(default_factory=dict, repr=False)

    def runs(self, name: str) -> list[Run]:
        """The finished runs behind a table or figure."""
        return finished(self.stop.specs[name].runs(QUICK, results=self.results))

    @cached_property
    def numbers(self) -> Numbers:
        """All numbers, ready for questions."""
        found = []
        for spec in self.stop.specs.values():
            found += list(measured(spec, QUICK, self.results))
        return Numbers(self.stop.quick, found, QUICK)

    def cell(self, name: str, method: str | None, metric: str, **settings: Any) -> Cell:
        return self.numbers.cell(name, method, metric, **settings)

    @cached_property
    def effects(self) -> list[Effect]:
        return self.stop.effects(self)

    @cached_property
    def pictures(self) -> list[Picture]:
        with plots.style():
            return self.stop.pictures(self)


def mean(cell: Cell, digits: int = 1) -> str:
    """A quantity's mean in words."""
    return f"{cell.value:.{digits}f}" if cell.known else "-"


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval (t over seeds), no width for one value."""
    check = Check(label="", difference=Cell(dict(enumerate(values))))
    half = check.interval[1] - check.difference.value
    return check.difference.value, half if math.isfinite(half) else 0.0
