"""One GPU day: which tables to run first at paper scale, what they cost, and what a day buys.

The main tables of the papers come first, then what other claims rest on, then the rest of print;
among equals what costs fewest hours per claim. `fedbook hours --page` writes it into GPU_DAY.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from fedbook import papers
from fedbook.data.catalogue import ENTRIES
from fedbook.errors import FedbookError
from fedbook.files import write_atomically
from fedbook.papers.numbers import Number, Numbers
from fedbook.papers.rehearse import Hours, Price, keys, price, prices
from fedbook.papers.spec import Spec

SCALE = "paper"
DAY = 24.0
NAMES = {"t4": "T4", "a100": "A100"}
MAIN = (
    *("fedgcr/table1", "fedgcr/table2", "fedgcr/table6"),
    *("client2vec/table1", "grp_fed/table1", "fgpt/table1"),
)
BLOCK = re.compile(r"(<!-- hours -->\n).*?(<!-- end of hours -->)", re.S)


class Listening(Numbers):
    """No numbers, but a memory for the tables that were asked for."""

    def __init__(self, paper: papers.Paper) -> None:
        super().__init__(paper, (), SCALE)
        self.asked: set[str] = set()

    def find(
        self, table: str | None, method: str | None, metric: str, **settings: Any
    ) -> list[Number]:
        for spec in self.paper.specs.values():
            if table == spec.name or table is None and any(r.metric == metric for r in spec.rows):
                self.asked.add(spec.id)
        return []


def claims() -> dict[str, list[str]]:
    """The papers' claims that rest on each table."""
    found: dict[str, list[str]] = {}
    for paper in papers.PAPERS.values():
        for claim in paper.claims:
            numbers = Listening(paper)
            list(claim.checks(numbers))
            for id in sorted(numbers.asked) if not claim.own else ():
                found.setdefault(id, []).append(claim.id)
    return found


# -- order -----------------------------------------------------------------------------------------
def order(known: dict[str, Hours]) -> list[Spec]:
    """All tables and figures that are printed or that a claim rests on, in the order in which to
    run them.
    """
    rests = claims()
    all_specs = papers.specs().values()
    left = [s for s in all_specs if s.plan(SCALE) and (s.kind != "study" or s.id in rests)]
    chosen: list[Spec] = []
    paid: set[str] = set()

    def rank(spec: Spec) -> tuple[bool, bool, bool, float]:
        cost = price(spec, SCALE, known, paid)
        count = len(rests.get(spec.id, ()))
        per_claim = cost.hours["a100"] / max(1, count)
        return spec.id not in MAIN, not count, cost.unknown > 0, per_claim

    while left:
        first = min(left, key=rank)
        left.remove(first)
        chosen.append(first)
        paid |= keys(first, SCALE)
    return chosen


def fits(ordered: Sequence[Spec], known: dict[str, Hours], card: str, day: float) -> list[Spec]:
    """The tables that so many hours buy: in order, without those that no longer fit."""
    chosen: list[Spec] = []
    paid: set[str] = set()
    left = day
    for spec in ordered:
        cost = price(spec, SCALE, known, paid)
        if cost.unknown == 0 and cost.hours[card] <= left:
            chosen.append(spec)
            paid |= keys(spec, SCALE)
            left -= cost.hours[card]
    return chosen


# -- as text ---------------------------------------------------------------------------------------
def shown(hours: float) -> str:
    """Hours with as many digits as mean something."""
    digits = 0 if hours == 0 or hours >= 100 else 1 if hours >= 1 else 2
    return f"{hours:.{digits}f}"


def small(spec: Spec) -> bool:
    """Whether a table's networks are so small that a card mostly waits: no ViT is in them."""
    return any("backbone" not in run.experiment.model for run in spec.plan(SCALE))


def lines(ordered: Sequence[Spec], known: dict[str, Hours]) -> Iterator[tuple[Price, list[str]]]:
    """The price of each table, and in words its hours and those so far on each card."""
    total = dict.fromkeys(NAMES, 0.0)
    for spec, cost in zip(ordered, prices(ordered, SCALE, known)):
        words = []
        for card, hours in cost.hours.items():
            total[card] += hours
            own = "?" if cost.unknown else shown(hours)
            least = ">" if small(spec) and cost.runs and not cost.unknown else ""
            words += [least + own, shown(total[card])]
        yield cost, words


def text(ordered: Sequence[Spec], known: dict[str, Hours]) -> str:
    """The order for a terminal."""
    out = [f"{'':20} {'runs':>5}  {'T4 h':>8} {'so far':>8}  {'A100 h':>8} {'so far':>8}"]
    for cost, (t4, t4_sum, a100, a100_sum) in lines(ordered, known):
        hours = f"{t4:>8} {t4_sum:>8}  {a100:>8} {a100_sum:>8}"
        out.append(f"{cost.id:20} {cost.runs:5}  {hours}")
    out.append("float32 at half of a card's peak, not measured; >: small networks take longer;")
    out.append("?: not rehearsed, `fedbook reproduce ID --scale paper --rehearse`")
    return "\n".join(out)


def table(ordered: Sequence[Spec], known: dict[str, Hours]) -> list[str]:
    """The order in Markdown."""
    rests = claims()
    out = ["| | table | claims | runs | T4, hours | so far | A100, hours | so far | data |"]
    out.append("|---:|---|---|---:|---:|---:|---:|---:|---|")
    for place, (cost, hours) in enumerate(lines(ordered, known), 1):
        spec = papers.get(cost.id)
        told = [f"`{cost.id}`", " ".join(rests.get(cost.id, ())), str(cost.runs), *hours]
        out.append(f"| {place} | {' | '.join(told)} | {', '.join(data(spec))} |")
    return out


def data(spec: Spec) -> list[str]:
    """The datasets of a table."""
    return sorted({run.experiment.dataset["name"] for run in spec.plan(SCALE)})


def datasets(ordered: Sequence[Spec]) -> list[str]:
    """What has to be downloaded, in Markdown."""
    out = ["| dataset | MB | by hand |", "|---|---:|---|"]
    for name in sorted({name for spec in ordered for name in data(spec)}):
        parts = ENTRIES[name].members or (name,)
        size = sum(ENTRIES[part].mb for part in parts)
        by_hand = [part for part in parts if ENTRIES[part].by_hand]
        out.append(f"| `{name}` | {size:,.0f} | {', '.join(by_hand)} |")
    return out


def bought(ordered: Sequence[Spec], known: dict[str, Hours], card: str) -> list[str]:
    """What a day on a card buys, and the command for it."""
    chosen = fits(ordered, known, card, DAY)
    if not chosen:
        return [f"No table fits a day on one {NAMES[card]}."]
    used = sum(p.hours[card] for p in prices(chosen, SCALE, known))
    ids = wrap(f"fedbook reproduce --scale {SCALE} {' '.join(s.id for s in chosen)}", 94)
    said = f"A day on one {NAMES[card]} buys these {len(chosen)}, in {shown(used)} hours:"
    return [said, "", *(f"    {line}" for line in " \\\n".join(ids).split("\n"))]


def block(known: dict[str, Hours]) -> str:
    """All that GPU_DAY.md takes from the rehearsal."""
    ordered = order(known)
    parts = [table(ordered, known), *(bought(ordered, known, card) for card in NAMES)]
    return "\n\n".join("\n".join(part) for part in [*parts, datasets(ordered)]) + "\n"


def write(known: dict[str, Hours], root: Path) -> Path:
    """Write it into the page."""
    page = root / "GPU_DAY.md"
    old = page.read_text(encoding="utf-8")
    if not BLOCK.search(old):
        hint = "it needs <!-- hours --> and <!-- end of hours -->"
        raise FedbookError(f"{page} has no place for the hours", hint)
    new = BLOCK.sub(lambda found: f"{found[1]}{block(known)}{found[2]}", old)
    with write_atomically(page) as part:
        part.write_text(new, encoding="utf-8")
    return page
