"""What the papers say, judged: supported, contradicted, mixed, or open.

A claim is a generator of checks (`fedbook.papers.evidence`) over a paper's numbers, the printed
ones or ours at some scale. Each check is for the paper, against it, or open. The claim is

    supported      if no check is against it and more than half are for it,
    contradicted   if of those that can tell more are against it than for it,
    mixed          if some are for it and at least as many as are against it,
    open           otherwise, and whenever so few checks tell that chance alone could have done it:
                   of many checks one in twenty tells something although there is nothing to tell.

Tolerances ("similar", "about one point") are written in the claim. Printed numbers are taken at
their word: what is printed is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from fedbook.html import table as html_table
from fedbook.papers.evidence import AGAINST, FOR, OPEN, Check, above, below, quantile
from fedbook.papers.numbers import Number, Numbers, numbers
from fedbook.papers.rows import Row
from fedbook.results import Store

__all__ = ["Claim", "Claims", "Judged", "Number", "Numbers", "evaluate", "judge_all", "numbers"]

VERDICTS = ("supported", "contradicted", "mixed", "open")
CHANCE = 0.05
Claimed = Callable[[Numbers], Iterable[Check]]


# -- verdicts --------------------------------------------------------------------------------------
def by_chance(telling: int, checks: int) -> float:
    """The probability that at least so many of the checks tell something, if each of them does so
    by chance once in twenty.
    """
    none = 0.0
    for k in range(telling):
        none += math.comb(checks, k) * CHANCE**k * (1 - CHANCE) ** (checks - k)
    return 1 - none


def verdict(counts: dict[str, int], missing: int = 0) -> str:
    """What so many checks for, against and open (and so many not run) say together."""
    known = sum(counts.values())
    telling = counts[FOR] + counts[AGAINST]
    if not telling or by_chance(telling, known) > CHANCE + 1e-12:
        return "open"
    if counts[AGAINST] > counts[FOR]:
        return "contradicted"
    if counts[AGAINST]:
        return "mixed"
    return "supported" if counts[FOR] > (known + missing) / 2 else "open"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim before one set of numbers."""

    claim: Claim
    checks: Sequence[Check]
    scale: str
    missing: int = 0
    print_says: Judged | None = field(default=None, repr=False)

    @property
    def counts(self) -> dict[str, int]:
        """How many checks are for, against, open."""
        found = [c.verdict for c in self.checks]
        return {v: found.count(v) for v in (FOR, AGAINST, OPEN)}

    @property
    def verdict(self) -> str:
        return verdict(self.counts, self.missing)

    @property
    def status(self) -> str:
        """By the means alone: held if every check does, failed if one does not."""
        if any(not c.holds for c in self.checks):
            return "failed"
        return "untested" if self.missing or not self.checks else "held"

    @property
    def tightest(self) -> Check | None:
        """The check with the smallest margin."""
        return min(self.checks, key=lambda c: c.margin, default=None)

    @property
    def seeds(self) -> int:
        """The seeds that every check has; 0 where all are exact."""
        return min((c.seeds for c in self.checks if not c.exact), default=0)

    @property
    def share(self) -> float | None:
        """Of all comparisons of single seeds, the share that points the paper's way."""
        if not self.checks:
            return None
        way = [c.holds if c.exact else c.agree for c in self.checks]
        return sum(way) / sum(1 if c.exact else c.seeds for c in self.checks)

    @property
    def share_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of that share over seeds, of the checks that have several; None where
        none do. The checks of one seed hang together, so seeds are what is counted.
        """
        several = [c for c in self.checks if c.seeds > 1]
        if not several:
            return None
        common = set.intersection(*(set(c.difference.by_seed) for c in several))
        if len(common) < 2:
            return None
        shares = [fmean(c.points(seed) for c in several) for seed in common]
        half = quantile(0.975, len(shares)) * stdev(shares) / math.sqrt(len(shares))
        return max(0.0, fmean(shares) - half), min(1.0, fmean(shares) + half)

    @property
    def print_inside(self) -> tuple[int, int]:
        """In how many checks the printed difference lies within the interval of ours, of how many
        that have both.
        """
        found = [self._inside(c) for c in self.checks]
        return found.count(True), len(found) - found.count(None)

    def _inside(self, c: Check) -> bool | None:
        printed = self.printed(c.label)
        if printed is None or c.seeds < 2:
            return None
        return c.interval[0] <= printed <= c.interval[1]

    @property
    def seeds_needed(self) -> int | None:
        """The seeds at which more than half of the checks would tell; None if that is not known or
        beyond all measure.
        """
        needed = [c.seeds_needed for c in self.checks]
        finite = sorted(n for n in needed if n is not None)
        half = (len(self.checks) + self.missing) // 2
        return finite[half] if len(finite) > half else None

    def to_json(self, details: bool = False) -> dict[str, Any]:
        """Ready for JSON; with `details` every check."""
        tight = self.tightest
        interval = self.share_interval
        out: dict[str, Any] = {
            "id": self.claim.id,
            "paper": self.claim.paper,
            "text": self.claim.text,
            "status": self.status,
            "margin": None if tight is None else round(tight.margin, 6),
            "clear": None if tight is None or tight.seeds == 1 else tight.verdict != OPEN,
            "seeds": self.seeds,
            "scale": self.scale,
            "note": self.note,
            "verdict": self.verdict,
            "own_study": self.claim.own,
            "checks_for": self.counts[FOR],
            "checks_against": self.counts[AGAINST],
            "checks_open": self.counts[OPEN],
            "checks_missing": self.missing,
            "share": None if self.share is None else round(self.share, 4),
            "share_interval": None if interval is None else [round(x, 4) for x in interval],
            "seeds_needed": self.seeds_needed,
            "print_inside": list(self.print_inside),
        }
        if details:
            out["checks"] = [self._check(c) for c in self.checks]
        return out

    def _check(self, c: Check) -> dict[str, Any]:
        finite = c.exact or c.seeds > 1
        return {
            "label": c.label,
            "verdict": c.verdict,
            "kind": c.kind,
            "width": c.width,
            "difference": round(c.difference.value, 6),
            "interval": [round(x, 6) for x in c.interval] if finite else None,
            "seeds": c.seeds,
            "agree": c.agree,
            "seeds_needed": c.seeds_needed,
            "printed": self.printed(c.label),
            "print_inside": self._inside(c),
        }

    def printed(self, label: str) -> float | None:
        """The printed difference of a check, if both its numbers are printed."""
        for c in self.print_says.checks if self.print_says else ():
            if c.label == label:
                return round(c.difference.value, 6)
        return None

    @property
    def note(self) -> str:
        """One line: how many checks hold by their means, which do not, what print says."""
        said = self._means()
        if self.print_says is not None and self.print_says.status == "failed":
            against = self.print_says.note.split("against it: ")[-1]
            said += f". The printed numbers contradict it: {against}"
        return said

    def _means(self) -> str:
        tight = self.tightest
        if tight is None:
            return "no numbers in print" if self.scale == "published" else "no results yet"
        failed = [c for c in self.checks if not c.holds]
        parts = [f"{len(self.checks) - len(failed)} of {len(self.checks)} checks hold"]
        if self.missing:
            parts.append(f"{self.missing} more not run")
        if failed:
            shown = "; ".join(f"{c.label} ({c.margin:+.3g})" for c in failed[:3])
            more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
            parts.append(f"against it: {shown}{more}")
        else:
            parts.append(f"tightest: {tight.label}")
        if tight.seeds > 1:
            parts.append(f"{tight.agree}/{tight.seeds} seeds agree there")
        return ", ".join(parts)

    def _repr_html_(self) -> str:
        rows = []
        for c in self.checks:
            rows.append((c.label, *_shown(c), self.printed(c.label) or "", c.verdict))
        caption = f"{self.claim.id}, {self.scale}: {self.verdict}. {self.claim.text}"
        header = ("check", "difference", "95 % interval", "seeds", "printed", "")
        return html_table(caption, header, rows)


def _shown(c: Check) -> tuple[str, str, str]:
    """A check's difference, interval and seeds in words."""
    low, high = c.interval
    span = f"[{low:+.3g}, {high:+.3g}]" if c.seeds > 1 else "exact" if c.exact else "one seed"
    return f"{c.difference.value:+.3g}", span, str(c.seeds or "-")


# -- claims ----------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of a paper, or with `own` a question of ours, and the checks it stands for."""

    id: str
    paper: str
    text: str
    checks: Claimed = field(repr=False)
    own: bool = False

    def judge(self, t: Numbers, print_says: Judged | None = None) -> Judged:
        """The claim before these numbers."""
        asked = list(self.checks(t))
        known = [c for c in asked if c.known]
        missing = 0 if t.scale == "published" else len(asked) - len(known)
        return Judged(
            claim=self, checks=known, scale=t.scale, missing=missing, print_says=print_says
        )

    def on(self, t: Numbers) -> dict[str, Any]:
        """The judgement, ready for JSON."""
        return self.judge(t).to_json()

    def _repr_html_(self) -> str:
        kind = "own study" if self.own else "claim"
        return html_table(self.id, ("paper", kind), [(self.paper, self.text)])


class Claims(list[Claim]):
    """A paper's claims, in order. Used as a decorator, it turns a generator of checks into one:

    @claims("gcr1", "FedGCR has the highest Avg")
    def gcr1(t): ...
    """

    def __init__(self, paper: str) -> None:
        super().__init__()
        self.paper = paper

    def __call__(self, id: str, text: str, own: bool = False) -> Callable[[Claimed], Claimed]:
        def register(checks: Claimed) -> Claimed:
            self.append(Claim(id=id, paper=self.paper, text=text, checks=checks, own=own))
            return checks

        return register


def label(table: str, settings: dict[str, Any], *more: str) -> str:
    """The name of a check: its table, its settings, and more."""
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
                name = label(table, settings, f"{metric} over {other}")
                yield below(name, mine, theirs) if low else above(name, mine, theirs)


def all_claims() -> dict[str, Claim]:
    """Every claim by id, in the papers' order."""
    from fedbook.papers import PAPERS

    return {c.id: c for paper in PAPERS.values() for c in paper.claims}


def judge_all(store: Store, scale: str | None = None, paper: str | None = None) -> list[Judged]:
    """Every claim (of one paper) at a scale ("published" included), or at the larger of paper and
    laptop that has results for it.

    Smoke scale, seconds of training, says nothing about a paper and is only looked at when asked
    for.
    """
    from fedbook.papers import PAPERS, find_paper

    out = []
    for p in [find_paper(paper)] if paper else PAPERS.values():
        chosen = (scale,) if scale else ("paper", "laptop")
        tables = {s: numbers(p, s, store) for s in (*chosen, "published")}
        for c in p.claims:
            print_says = None if scale == "published" else c.judge(tables["published"])
            found = [c.judge(tables[s], print_says) for s in chosen]
            told = [j for j in found if j.status != "untested"] or [j for j in found if j.checks]
            out.append((told or found[-1:])[0])
    return out


def evaluate(
    store: Store, scale: str | None = None, paper: str | None = None
) -> list[dict[str, Any]]:
    """The same, ready for JSON."""
    return [j.to_json() for j in judge_all(store, scale, paper)]


def tally(judged: Iterable[Judged]) -> dict[str, dict[str, int]]:
    """How many claims of the papers, and how many own studies, got each verdict."""
    out = {kind: dict.fromkeys(VERDICTS, 0) for kind in ("claims", "own studies")}
    for j in judged:
        out["own studies" if j.claim.own else "claims"][j.verdict] += 1
    return out
