"""A paper's numbers, printed or ours, in one tidy form that claims can ask questions of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedbook.papers.evidence import Cell
from fedbook.papers.rows import Row
from fedbook.papers.spec import Run, Spec, finished
from fedbook.results import Result, Store

if TYPE_CHECKING:
    from fedbook.papers.paper import Paper


@dataclass(frozen=True, kw_only=True)
class Number:
    """One number with its settings: measured with a seed (at a round), or exact, without a seed."""

    table: str
    settings: dict[str, Any]
    method: str
    metric: str
    value: float
    seed: int | None = None
    round: int | None = None


class Numbers:
    """A paper's numbers at one scale with questions: cells by settings, and what the paper printed
    settings for.
    """

    def __init__(self, paper: Paper, found: Iterable[Number], scale: str) -> None:
        self.paper = paper
        self.found = list(found)
        self.scale = scale
        self._by_metric: dict[str, list[Number]] = {}
        self._by_table: dict[tuple[str, str], list[Number]] = {}
        for n in self.found:
            self._by_metric.setdefault(n.metric, []).append(n)
            self._by_table.setdefault((n.table, n.metric), []).append(n)

    def find(
        self, table: str | None, method: str | None, metric: str, **settings: Any
    ) -> list[Number]:
        """The numbers with these settings; None stands for any table, any method."""
        if table is None:
            known = self._by_metric.get(metric, [])
        else:
            known = self._by_table.get((table, metric), [])
        out = []
        for n in known:
            same = all(n.settings.get(k) == v for k, v in settings.items())
            if same and method in (None, n.method):
                out.append(n)
        return out

    def cell(self, table: str | None, method: str | None, metric: str, **settings: Any) -> Cell:
        """The numbers with these settings as one quantity."""
        return _cell(self.find(table, method, metric, **settings))

    def over_rounds(
        self,
        table: str,
        method: str,
        metric: str,
        summary: Callable[[list[float]], float],
        **settings: Any,
    ) -> Cell:
        """A summary of every seed's curve."""
        curves: dict[int | None, dict[int, float]] = {}
        for n in self.find(table, method, f"curve.{metric}", **settings):
            curves.setdefault(n.seed, {})[n.round or 0] = n.value
        by_seed = {}
        for seed, points in curves.items():
            by_seed[seed or 0] = summary([points[r] for r in sorted(points)])
        return Cell(by_seed)

    def rows(self, *tables: str, **where: Any) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
        """(table, settings, methods in print) for every setting of the printed tables that fits
        `where`.
        """
        for name in tables:
            groups: dict[str, tuple[dict[str, Any], list[str]]] = {}
            for row in self.paper.specs[f"{self.paper.key}/{name}"].rows:
                if row.fits(**where):
                    methods = groups.setdefault(row.setting, (row.settings, []))[1]
                    if row.method not in methods:
                        methods.append(row.method)
            for settings, methods in groups.values():
                yield name, settings, methods


def _cell(found: Iterable[Number]) -> Cell:
    """The mean over the numbers of each seed."""
    seeds: dict[int | None, list[float]] = {}
    for n in found:
        seeds.setdefault(n.seed, []).append(n.value)
    if None in seeds:
        return Cell(exact=fmean(seeds[None]))
    return Cell({seed: fmean(values) for seed, values in seeds.items() if seed is not None})


def printed(spec: Spec) -> Iterator[Number]:
    """The printed numbers of a table; of a printed variance also its root, as the metric
    "spread".
    """
    for row in spec.rows:
        where: dict[str, Any] = {"table": spec.name, "settings": row.settings, "method": row.method}
        if row.value is not None:
            yield Number(metric=row.metric, value=row.value, **where)
        if row.printed_std is not None and row.spread.startswith("variance"):
            yield Number(metric="spread", value=row.printed_std, **where)


def measured(spec: Spec, scale: str, results: dict[str, Result]) -> Iterator[Number]:
    """Our numbers of a table, one per seed; of a figure also the curves of its runs."""
    runs = spec.runs(scale, None, results)
    own: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        own.setdefault((run.row.setting, run.row.method), []).append(run)
    for row in spec.rows:
        derived = row.metric in spec.paper.derived
        yield from _measured(spec, row, runs if derived else own.get((row.setting, row.method), []))
    for run in finished(runs):
        yield from _over_rounds(spec, run)


def _measured(spec: Spec, row: Row, runs: list[Run]) -> Iterator[Number]:
    for seed, value in spec.measured(row, runs):
        yield Number(
            table=spec.name,
            settings=row.settings,
            method=row.method,
            metric=row.metric,
            value=value,
            seed=None if spec.counted(row) else seed,
        )


def _over_rounds(spec: Spec, run: Run) -> Iterator[Number]:
    """The spread over a run's last rounds, and for a figure what it measured at every round."""
    found = run.metrics
    where: dict[str, Any] = {"table": spec.name, "settings": run.row.settings}
    where |= {"method": run.row.method, "seed": run.seed}
    if found.get("tail_std") is not None:
        yield Number(metric="spread", value=100 * found["tail_std"], **where)
    if spec.kind != "figure":
        return
    for name, values in found.get("curves", {}).items():
        for round, value in zip(found["rounds"], values):
            if value is not None:
                yield Number(metric=f"curve.{name}", value=value, round=round, **where)


def numbers(paper: Paper | str, scale: str, store: Store | None = None) -> Numbers:
    """A paper's numbers: printed (scale="published"), or from the store."""
    from fedbook.papers import find_paper

    if isinstance(paper, str):
        paper = find_paper(paper)
    found: list[Number] = []
    results = store.keys() if store is not None else {}
    for spec in paper.specs.values():
        found += printed(spec) if scale == "published" else measured(spec, scale, results)
    return Numbers(paper, found, scale)
