"""A paper as a value: its printed tables, its scales, the run behind every row, its figures and
claims.

A paper is a package: `scales.py` says how large its runs are and which run measures a row,
`figures.py` what is drawn, `claims.py` what its text says, `published/` what it prints; its
`__init__.py` puts them together as one `Paper`. To add one, write such a package and name it in
`fedbook.papers.PAPERS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fedbook.errors import FedbookError, unknown
from fedbook.papers.rows import Row, read_csv, read_rows
from fedbook.papers.spec import Run, Spec

if TYPE_CHECKING:
    from fedbook.experiment import Experiment
    from fedbook.papers.claims import Claim
    from fedbook.papers.tune import Grid

LAYOUT = ("down", "across", "best_over")  # columns of tables.csv
Options = dict[str, Any]
Own = TypeVar("Own")
Plot = Callable[[Spec, Sequence[Run]], tuple[Any, str]]  # a figure and its description
Count = Callable[[Row], float]
Derived = Callable[[Spec, Row, Sequence[Run]], list[tuple[int, float]]]  # (seed, value) of a row


@dataclass(frozen=True, kw_only=True)
class Scale(Generic[Own]):
    """How large a paper's runs are: numbers and names only.

    `data` maps the paper's name of a dataset to the one that is used; `solver` holds options of
    every method, `methods` those of single ones, `own` what only this paper needs. `seeds_of` gives
    single tables a number of seeds of their own, `sized` another size.
    """

    name: str
    rounds: int
    data: Mapping[str, Options]
    solver: Options
    own: Own
    methods: Mapping[str, Options] = field(default_factory=dict)
    seeds: int = 1
    seeds_of: Mapping[str, int] = field(default_factory=dict)
    evaluate_every: int = 1
    sized: Mapping[str, Scale[Own]] = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """What a figure measures and how it is drawn. Only a study of our own, which no paper lists,
    needs a title.
    """

    rows: tuple[Row, ...]
    plot: Plot
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Paper:
    """Everything fedbook knows about one paper.

    `experiment(row, scale, seed)` is the run behind a row, None where a scale has none. `metrics`
    maps a printed metric to its path in a result's metrics. `plots` draws tables; `counts` counts
    what needs no training, `derived` computes what follows from several runs. `as_run` says where
    in an experiment a printed setting is found, so that print and run can stand side by side.
    `more_grids` are for runs of another size or on other data, each with the scale it is for.
    """

    key: str
    title: str
    reference: str
    published: Path
    scales: tuple[Scale[Any], ...]
    experiment: Callable[[Row, Scale[Any], int], Experiment | None]
    metrics: Mapping[str, str]
    figures: Mapping[str, Figure]
    claims: tuple[Claim, ...]
    grid: Grid | None
    more_grids: Mapping[str, tuple[Scale[Any], Grid]] = field(default_factory=dict)
    plots: Mapping[str, Plot] = field(default_factory=dict)
    counts: Mapping[str, Count] = field(default_factory=dict)
    derived: Mapping[str, Derived] = field(default_factory=dict)
    as_run: Mapping[str, str] = field(default_factory=dict)

    def scale(self, name: str) -> Scale[Any]:
        """One of its scales by name."""
        for scale in self.scales:
            if scale.name == name:
                return scale
        raise unknown(f"scale of {self.key}", name, [s.name for s in self.scales])

    def with_grid(self, name: str) -> Paper:
        """The same paper with another of its grids, and the scale of that."""
        if name not in self.more_grids:
            raise unknown(f"grid of {self.key}", name, self.more_grids)
        scale, grid = self.more_grids[name]
        return replace(self, scales=(scale,), grid=grid)

    def has(self, scale: str) -> bool:
        return any(s.name == scale for s in self.scales)

    @cached_property
    def specs(self) -> dict[str, Spec]:
        """Its tables and figures by id, in the order of the paper, then our own studies."""
        return self._tables() | self._figures() | self._studies()

    def _tables(self) -> dict[str, Spec]:
        found = {}
        for line in read_csv(self.published / "tables.csv"):
            name = f"table{line['table']}"
            rows = read_rows(self.published / line["file"])
            title = _sentence(line["content"])
            plot = self.plots.get(name)
            spec = self._spec(name, "table", title, rows=rows, plot=plot)
            down, across, best = (tuple((line.get(k) or "").split()) for k in LAYOUT)
            found[spec.id] = replace(spec, down=down, across=across, best_over=best)
        return found

    def _figures(self) -> dict[str, Spec]:
        panels: dict[str, list[dict[str, str]]] = {}
        for line in read_csv(self.published / "figures.csv"):
            number = re.findall(r"\d+", line["figure"])[0]
            panels.setdefault(f"fig{number}", []).append(line)
        found = {}
        for name, lines in panels.items():
            title = "; ".join(_sentence(line["shows"]) for line in lines)
            if all(line["data_needed"] == "none" for line in lines):
                found[f"{self.key}/{name}"] = self._spec(name, "sketch", title)
            elif name in self.figures:
                figure = self.figures[name]
                found[f"{self.key}/{name}"] = self._spec(
                    name, "figure", title, rows=figure.rows, plot=figure.plot
                )
            else:
                raise FedbookError(
                    f"{self.key} prints data in {name} but draws none",
                    "add it to the paper's figures",
                )
        return found

    def _studies(self) -> dict[str, Spec]:
        found = {}
        for name, figure in self.figures.items():
            if figure.title:
                found[f"{self.key}/{name}"] = self._spec(
                    name, "study", figure.title, rows=figure.rows, plot=figure.plot
                )
        return found

    def _spec(
        self,
        name: str,
        kind: str,
        title: str,
        *,
        rows: tuple[Row, ...] = (),
        plot: Plot | None = None,
    ) -> Spec:
        return Spec(
            id=f"{self.key}/{name}",
            kind=kind,
            title=title,
            paper=self,
            rows=rows,
            plot=plot,
            count=self.counts.get(name),
        )


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
