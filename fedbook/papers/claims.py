"""What the papers say, as functions over tidy numbers: held, failed or untested, with the margin.

A claim is a generator of checks over numbers: the printed ones, or ours at some scale. Each check
compares two means over seeds; the claim holds if all its checks do, fails if one does, and is
untested as long as some number is missing. The margin is that of the tightest check, in the unit of
the table (negative: by how much the worst check fails), and it is `clear` when its size exceeds the
pooled standard deviation of the two. Tolerances ("similar", "about one point") are written in the
claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from fedbook.papers.rows import Row
from fedbook.papers.spec import Run, Spec, finished
from fedbook.results import Result, Store

if TYPE_CHECKING:
    from fedbook.papers.paper import Paper


@dataclass(frozen=True)
class Cell:
    """A number with its spread: the mean over seeds, and the seeds it is the mean of."""

    value: float
    std: float | None = None
    by_seed: dict[int, float] = field(default_factory=dict)

    def combine(
        self, other: Cell, f: Callable[[float, float], float], std: Callable[[float, float], float]
    ) -> Cell:
        both = {s: f(v, other.by_seed[s]) for s, v in self.by_seed.items() if s in other.by_seed}
        spread = (
            std(self.std, other.std) if self.std is not None and other.std is not None else None
        )
        return Cell(f(self.value, other.value), spread, both)

    def __sub__(self, other: Cell | float) -> Cell:
        return self.combine(_cell(other), lambda a, b: a - b, math.hypot)

    def __add__(self, other: Cell | float) -> Cell:
        return self.combine(_cell(other), lambda a, b: a + b, math.hypot)

    def __mul__(self, factor: float) -> Cell:
        spread = None if self.std is None else abs(factor) * self.std
        return Cell(factor * self.value, spread, {s: factor * v for s, v in self.by_seed.items()})


def _cell(x: Cell | float) -> Cell:
    return x if isinstance(x, Cell) else Cell(float(x), 0.0)


@dataclass(frozen=True)
class Check:
    """One comparison: ok is None where a number is missing."""

    label: str
    ok: bool | None
    margin: float | None = None
    clear: bool | None = None
    seeds: int = 0
    agree: int = 0


def above(label: str, a: Cell | float | None, b: Cell | float | None, equal: bool = False) -> Check:
    """a > b (or >= with `equal`)."""
    if a is None or b is None:
        return Check(label, None)
    a, b = _cell(a), _cell(b)
    margin = a.value - b.value
    pooled = (
        math.sqrt((a.std**2 + b.std**2) / 2) if a.std is not None and b.std is not None else None
    )
    known = [x for x in (a, b) if x.by_seed]
    seeds = min((len(x.by_seed) for x in known), default=0)
    common = [s for s in range(64) if all(s in x.by_seed for x in known)] if known else []
    pairs = [(a.by_seed.get(s, a.value), b.by_seed.get(s, b.value)) for s in common]
    agree = sum(x > y or (equal and x >= y) for x, y in pairs)
    ok = margin > 1e-12 or (equal and margin >= -1e-9)
    return Check(label, ok, margin, None if pooled is None else abs(margin) > pooled, seeds, agree)


def below(label: str, a: Cell | float | None, b: Cell | float | None, equal: bool = False) -> Check:
    return above(
        label, None if a is None else _cell(a) * -1, None if b is None else _cell(b) * -1, equal
    )


def holds(label: str, ok: bool | None) -> Check:
    """A check that is a yes or no, without a margin."""
    return Check(label, ok)


@dataclass(frozen=True, kw_only=True)
class Number:
    """One number with its settings: printed, or measured with one seed (at one round)."""

    table: str
    settings: dict[str, Any]
    method: str
    metric: str
    value: float
    std: float | None = None
    seed: int = 0
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

    def cell(
        self, table: str | None, method: str | None, metric: str, **settings: Any
    ) -> Cell | None:
        """The mean over seeds of the numbers with these settings, None if there are none."""
        found = self.find(table, method, metric, **settings)
        if not found:
            return None
        seeds: dict[int, list[float]] = {}
        for n in found:
            seeds.setdefault(n.seed, []).append(n.value)
        by_seed = {seed: fmean(values) for seed, values in sorted(seeds.items())}
        values = list(by_seed.values())
        printed = [n.std for n in found if n.std is not None]
        std = stdev(values) if len(values) > 1 else fmean(printed) if printed else None
        return Cell(fmean(values), std, by_seed)

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

    def curve(self, table: str, method: str, metric: str, **settings: Any) -> list[float] | None:
        """The mean over seeds at every round."""
        rounds: dict[int, list[float]] = {}
        for n in self.find(table, method, f"curve.{metric}", **settings):
            rounds.setdefault(n.round or 0, []).append(n.value)
        return [fmean(rounds[r]) for r in sorted(rounds)] or None


def printed(spec: Spec) -> Iterator[Number]:
    """The printed numbers of a table; of a printed variance also its root, as the metric
    "spread".
    """
    for row in spec.rows:
        where: dict[str, Any] = {"table": spec.name, "settings": row.settings, "method": row.method}
        std = row.printed_std
        if row.value is not None:
            yield Number(metric=row.metric, value=row.value, std=std, **where)
        if std is not None and row.spread.startswith("variance"):
            yield Number(metric="spread", value=std, **where)


def measured(spec: Spec, scale: str, results: dict[str, Result]) -> Iterator[Number]:
    """Our numbers of a table, one per seed; of a figure also the curves of its runs."""
    runs = spec.runs(scale, None, results)
    own: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        own.setdefault((run.row.setting, run.row.method), []).append(run)
    for row in spec.rows:
        where: dict[str, Any] = {"table": spec.name, "settings": row.settings, "method": row.method}
        derived = row.metric in spec.paper.derived
        behind = runs if derived else own.get((row.setting, row.method), [])
        for seed, value in spec.measured(row, behind):
            yield Number(metric=row.metric, value=value, seed=seed, **where)
    for run in finished(runs):
        yield from _over_rounds(spec, run)


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


def label(table: str, settings: dict[str, Any], *more: str) -> str:
    return " ".join([table, Row(settings=settings, method="").setting, *more]).strip()


def leads(
    t: Numbers,
    method: str,
    metric: str,
    *tables: str,
    low: bool = False,
    over: Sequence[str] | None = None,
) -> Iterator[Check]:
    """The method is ahead of every other one (or those named) in every printed setting of the
    tables.
    """
    for table, settings, methods in t.rows(*tables, metric=metric):
        mine = t.cell(table, method, metric, **settings)
        for other in methods:
            if other != method and (over is None or other in over):
                theirs = t.cell(table, other, metric, **settings)
                yield (below if low else above)(
                    label(table, settings, f"{metric} over {other}"), mine, theirs
                )


def best(cells: Iterable[Cell | None], low: bool = False) -> Cell | None:
    """The highest (lowest) of the cells, None while one is missing."""
    known = list(cells)
    if any(c is None for c in known) or not known:
        return None
    pick = min if low else max
    return pick((c for c in known if c is not None), key=lambda c: c.value)


def mean(cells: Iterable[Cell | None]) -> Cell | None:
    """The mean of the cells, None while one is missing."""
    known = list(cells)
    total: Cell | None = None
    for c in known:
        if c is None:
            return None
        total = c if total is None else total + c
    return None if total is None else total * (1 / len(known))


def spread(cells: Iterable[Cell | None]) -> Cell | None:
    """Highest minus lowest."""
    known = list(cells)
    high, low = best(known), best(known, low=True)
    return None if high is None or low is None else high - low


Claimed = Callable[[Numbers], Iterator[Check]]


@dataclass(frozen=True, kw_only=True)
class Claim:
    id: str
    paper: str
    text: str
    checks: Claimed

    def on(self, t: Numbers) -> dict[str, Any]:
        """The verdict over one table of numbers."""
        checks = list(self.checks(t))
        if t.scale == "published":
            checks = [c for c in checks if c.ok is not None]
        known = [c for c in checks if c.ok is not None]
        failed = [c for c in known if not c.ok]
        missing = len(checks) - len(known)
        status = "failed" if failed else "untested" if missing or not known else "held"
        measured = [c for c in known if c.margin is not None]
        tight = min(measured, key=lambda c: c.margin) if measured else None  # type: ignore[arg-type, return-value]
        return {
            "id": self.id,
            "paper": self.paper,
            "text": self.text,
            "status": status,
            "margin": None if tight is None or tight.margin is None else round(tight.margin, 6),
            "clear": None if tight is None else tight.clear,
            "seeds": min((c.seeds for c in measured), default=0) if t.scale != "published" else 0,
            "scale": t.scale,
            "note": self._note(checks, known, failed, tight, t.scale),
        }

    def _note(
        self,
        checks: list[Check],
        known: list[Check],
        failed: list[Check],
        tight: Check | None,
        scale: str,
    ) -> str:
        if not known:
            return "no numbers in print" if scale == "published" else "no results yet"
        parts = [f"{len(known) - len(failed)} of {len(known)} checks hold"]
        if len(checks) > len(known):
            parts.append(f"{len(checks) - len(known)} more not run")
        if failed:
            shown = "; ".join(
                f"{c.label}" + (f" ({c.margin:+.3g})" if c.margin is not None else "")
                for c in failed[:3]
            )
            parts.append(
                f"against it: {shown}" + (f" and {len(failed) - 3} more" if len(failed) > 3 else "")
            )
        elif tight is not None:
            parts.append(f"tightest: {tight.label}")
        if tight is not None and tight.seeds > 1:
            parts.append(f"{tight.agree}/{tight.seeds} seeds agree there")
        return ", ".join(parts)


class Claims(list[Claim]):
    """A paper's claims, in order. Used as a decorator, it turns a generator of checks into one:

    @claims("gcr1", "FedGCR has the highest Avg")
    def gcr1(t): ...
    """

    def __init__(self, paper: str) -> None:
        super().__init__()
        self.paper = paper

    def __call__(self, id: str, text: str) -> Callable[[Claimed], Claimed]:
        def register(checks: Claimed) -> Claimed:
            self.append(Claim(id=id, paper=self.paper, text=text, checks=checks))
            return checks

        return register


def all_claims() -> dict[str, Claim]:
    """Every claim by id, in the papers' order."""
    from fedbook.papers import PAPERS

    return {c.id: c for paper in PAPERS.values() for c in paper.claims}


def evaluate(store: Store, scale: str | None = None) -> list[dict[str, Any]]:
    """Every claim at a scale ("published" included), or at the larger of paper and laptop that has
    results for it.

    Smoke scale, seconds of training, says nothing about a paper and is only looked at when asked
    for.
    """
    from fedbook.papers import PAPERS

    out = []
    for paper in PAPERS.values():
        chosen = (scale,) if scale else ("paper", "laptop")
        tables = {s: numbers(paper, s, store) for s in (*chosen, "published")}
        for c in paper.claims:
            verdicts = [c.on(tables[s]) for s in chosen]
            told = [v for v in verdicts if v["status"] != "untested"]
            told += [v for v in verdicts if v["margin"] is not None]
            verdict = (told or verdicts[-1:])[0]
            print_says = c.on(tables["published"])
            if scale != "published" and print_says["status"] == "failed":
                against = print_says["note"].split("against it: ")[-1]
                verdict["note"] += f". The printed numbers contradict it: {against}"
            out.append(verdict)
    return out
