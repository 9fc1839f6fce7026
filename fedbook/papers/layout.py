"""A table in the paper's own layout: some settings go down, some across, what is constant goes into
the caption, and print and ours stand one below the other.

Which settings go where is written in the columns `down`, `across` and `best_over` of a paper's
`published/tables.csv`; without them the settings go down, the metrics (or the methods) across.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedbook.papers import words
from fedbook.papers.spec import Run, Spec, arrow

Key = tuple[Any, ...]
Numbers = dict[str, Any]  # a line of `Spec.tabulate`
Used = dict[tuple[str, Any], set[Any]]  # (setting, printed value): the values that were run


@dataclass(frozen=True)
class Cell:
    """One number of a table."""

    value: float
    spread: float | None
    digits: int
    best: bool = False


@dataclass(frozen=True)
class Block:
    """All cells of one source: print, or ours; None where there is no number."""

    title: str
    cells: list[list[Cell | None]]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table that is ready to be written down. `stub` names the heads of the lines; a column has
    one label per level.
    """

    id: str
    caption: str
    stub: list[str]
    lines: list[tuple[str, ...]]
    columns: list[tuple[str, ...]]
    blocks: list[Block]

    def _repr_html_(self) -> str:
        from fedbook.papers.export import html

        return html(self)


def lay_out(spec: Spec, numbers: Sequence[Numbers], scale: str, seeds: int | None = None) -> Grid:
    """The table `spec` with these numbers, which `spec.tabulate(scale, ...)` made."""
    runs = spec.plan(scale, seeds)
    used = used_values(spec, runs)
    down, across = axes(spec)
    settings = list(dict.fromkeys(k for n in numbers for k in n["settings"]))
    rest = [k for k in settings if k not in (*down, *across)]
    fixed = {k: _all(numbers, k)[0] for k in rest if len(_all(numbers, k)) == 1}
    extra = _dependent(numbers, [k for k in rest if k not in fixed], (*down, *across), used)

    def label(name: str, value: Any, alone: bool) -> str:
        said = words.assigned(name, value) if alone else words.value(name, value)
        said = _as_run(said, name, value, used)
        more = [e for e in extra.get((name, value), []) if e != words.NONE]
        return f"{said} ({', '.join(more)})" if more else said

    lines = _ranked(numbers, down)
    columns = _ranked(numbers, across)
    found = {(_at(n, down), _at(n, across)): n for n in numbers}
    shown: list[Block] = []
    for title, field, spread in _sources(numbers, scale):
        best = _best(spec, numbers, field)
        digits = _digits(numbers, field)
        cells = []
        for line in lines:
            cells.append(
                [_cell(found.get((line, c)), field, spread, digits, best) for c in columns]
            )
        shown.append(Block(title, cells))
    return Grid(
        id=spec.id,
        caption=_caption(spec, numbers, fixed, used, scale),
        stub=[words.setting(k) for k in down],
        lines=[tuple(label(k, v, False) for k, v in zip(down, line)) for line in lines],
        columns=[tuple(label(k, v, True) for k, v in zip(across, c)) for c in columns],
        blocks=shown,
    )


def axes(spec: Spec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What goes down and what goes across."""
    if spec.down or spec.across:
        return spec.down, spec.across
    kept: list[str] = []
    for name in dict.fromkeys(k for row in spec.rows for k in row.settings):
        before = {tuple(row[k] for k in kept) for row in spec.rows}
        if len({tuple(row[k] for k in (*kept, name)) for row in spec.rows}) > len(before):
            kept.append(name)  # it does not follow from the others
    if len({row.metric for row in spec.rows}) > 1:
        return (*kept, "method"), ("metric",)
    return tuple(kept) or ("metric",), ("method",)


def _value(n: Numbers, name: str) -> Any:
    return n[name] if name in ("method", "metric") else n["settings"].get(name)


def _at(n: Numbers, names: Iterable[str]) -> Key:
    return tuple(_value(n, name) for name in names)


def _all(numbers: Sequence[Numbers], name: str) -> list[Any]:
    return list(dict.fromkeys(_value(n, name) for n in numbers))


def _ranked(numbers: Sequence[Numbers], names: Sequence[str]) -> list[Key]:
    """All keys along an axis, outer settings first, values in the order of print."""
    rank = [{v: i for i, v in enumerate(_all(numbers, name))} for name in names]
    keys = dict.fromkeys(_at(n, names) for n in numbers)
    return sorted(keys, key=lambda key: [r[v] for r, v in zip(rank, key)])


def _dependent(
    numbers: Sequence[Numbers],
    names: Sequence[str],
    along: Sequence[str],
    used: Used,
) -> dict[tuple[str, Any], list[str]]:
    """Settings that follow from one on an axis ("DomainNet" was trained with "MobileNet V2"): what
    to say of them beside that one.
    """
    out: dict[tuple[str, Any], list[str]] = {}
    for name in names:
        for axis in along:
            pairs = {(_value(n, axis), _value(n, name)) for n in numbers}
            if axis not in ("method", "metric") and len(pairs) == len(_all(numbers, axis)):
                for at, v in pairs:
                    said = in_words(name, v, used)
                    out.setdefault((axis, at), []).append(said)
                break
    return out


def used_values(spec: Spec, runs: Sequence[Run]) -> Used:
    """What the runs used for a printed value, as far as an experiment can say: ("dataset",
    "domainnet") became {"pacs"}.
    """
    paths = {"dataset": "dataset.name"} | dict(spec.paper.as_run)
    out: Used = {}
    for run in runs:
        for name, path in paths.items():
            part, _, option = path.partition(".")
            printed = run.row[name]
            if printed is not None and option in getattr(run.experiment, part):
                used = getattr(run.experiment, part)[option]
                out.setdefault((name, printed), set()).add(used)
    return out


def in_words(name: str, value: Any, used: Used) -> str:
    """A setting as printed and, where that was another, as run: "s = 10 → 5"."""
    return _as_run(words.assigned(name, value), name, value, used)


def _as_run(said: str, name: str, value: Any, used: Used) -> str:
    """A label, with what was run instead where that is one other thing."""
    found = used.get((name, value), set())
    if len(found) == 1 and "->" in arrow(value, *found):
        return f"{said} → {next(iter(found))}"
    return said


def _sources(numbers: Sequence[Numbers], scale: str) -> list[tuple[str, str, str]]:
    """(title, field of the value, field of its spread) of print and ours, where they have any."""
    out = []
    if any(n["paper"] is not None for n in numbers):
        out.append(("as printed", "paper", "paper_spread"))
    if any(n["ours"] is not None for n in numbers):
        out.append((f"ours, {scale} scale", "ours", "ours_std"))
    return out


def _digits(numbers: Sequence[Numbers], field: str) -> dict[str, int]:
    """How many decimals the numbers of a metric need."""
    out = {}
    for name in {n["metric"] for n in numbers}:
        sizes = [abs(n[field]) for n in numbers if n["metric"] == name and n[field] is not None]
        most = max(sizes, default=0.0)
        out[name] = 0 if most >= 1000 else 2 if most > 1 else 3
    return out


def _best(spec: Spec, numbers: Sequence[Numbers], field: str) -> set[Key]:
    """The numbers that are best among those that differ in `best_over` alone. Where some of them
    have not been run nobody is.
    """
    down, across = axes(spec)
    held = [k for k in (*down, *across) if k not in spec.best_over]
    groups: dict[Key, list[Numbers]] = {}
    for n in numbers if spec.best_over else ():
        groups.setdefault((n["metric"], *_at(n, held)), []).append(n)
    out = set()
    for group in groups.values():
        known = [n for n in group if n[field] is not None]
        whole = field == "paper" or not any(n["verdict"] == "not run" for n in group)
        side = words.better(group[0]["metric"])
        if len(known) > 1 and whole and side:
            top = (max if side == words.UP else min)(round(n[field], 4) for n in known)
            out |= {_who(n) for n in known if round(n[field], 4) == top}
    return out


def _who(n: Numbers) -> Key:
    return (n["setting"], n["method"], n["metric"])


def _cell(
    n: Numbers | None, field: str, spread: str, digits: dict[str, int], best: set[Key]
) -> Cell | None:
    if n is None or n[field] is None:
        return None
    around = n[spread]
    if around is not None and math.isnan(around):
        around = None
    return Cell(n[field], around, digits[n["metric"]], _who(n) in best)


def _caption(
    spec: Spec,
    numbers: Sequence[Numbers],
    fixed: dict[str, Any],
    used: Used,
    scale: str,
) -> str:
    """Where the table is from, what all its numbers have in common, and how ours were made."""
    kind = {"table": "Table", "figure": "Figure"}.get(spec.kind, "")
    number = spec.name.removeprefix("table").removeprefix("fig")
    which = f", {kind} {number}" if kind and number.isdigit() else ""
    down, across = axes(spec)
    common = []
    for name in ("method", "metric"):
        if name not in (*down, *across) and len(_all(numbers, name)) == 1:
            common.append(words.value(name, _all(numbers, name)[0]))
    for name, value in fixed.items():
        if value is not None and words.assigned(name, value) != words.NONE:
            common.append(in_words(name, value, used))
    units = [words.UNITS.get(u, u) for u in dict.fromkeys(n["unit"] for n in numbers) if u]
    end = "" if spec.title.endswith(("?", ".")) else "."
    said = [f"{spec.paper.title}{which}: {spec.title}{end}"]
    if common:
        said.append(f"{', '.join(common)}.")
    if units:
        said.append(f"In {', '.join(units)}.")
    said += _about_spreads(spec, numbers, scale)
    return " ".join(said)


def _about_spreads(spec: Spec, numbers: Sequence[Numbers], scale: str) -> list[str]:
    out = []
    printed = {row.spread for row in spec.rows if row.std is not None}
    if printed:
        kinds = ", ".join(sorted(words.SPREADS.get(s, s) for s in printed))
        out.append(f"Spread as printed: {kinds}.")
    seeds = sorted({n["seeds"] for n in numbers if n["seeds"]})
    if not spec.plan(scale) and seeds:
        out.append("Ours: counted, nothing is trained.")
    elif seeds:
        count = " or ".join(map(str, seeds)) + (" seed" if seeds == [1] else " seeds")
        how = count if seeds == [1] else f"{count}, mean ± standard deviation"
        out.append(f"Ours: {scale} scale, {how}.")
    if spec.best_over:
        out.append("The best is marked.")
    return out
