"""What numbers can tell: paired differences over seeds, their 95 % intervals, and three answers.

A `Cell` is a quantity measured with several seeds, or an exact one (printed, counted). A `Check` is
one comparison of two cells. Seeds are paired: two methods run with one seed saw the same clients
and samples, so their difference is taken seed by seed, d_s = a_s - b_s, over the seeds both have.

    mean(d) +- t_(n-1, 0.975) sd(d) / sqrt(n)                      the 95 % interval of n seeds

The check is *for* the paper if the whole interval lies on the paper's side, *against* it if it lies
on the other side, and *open* otherwise. One seed has no interval: it is open, unless the quantity
is exact. That two things are alike is not shown by a difference that is not clear: it is *for* if
the whole interval lies within the width the claim names, that is two one-sided tests at 2.5 % each,
and *against* if it lies outside of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import combinations
from statistics import fmean, stdev

ORDER = "order"
ALIKE = "alike"
DIFFERENT = "different"
FOR = "for"
AGAINST = "against"
OPEN = "open"
MANY = 1000  # seeds that nobody will run
TINY = 1e-9


@dataclass(frozen=True)
class Cell:
    """A quantity: a value for every seed, or one exact value; neither where it is not known.

    Cells can be added, subtracted and multiplied by numbers, seed by seed; what is not known stays
    so.
    """

    by_seed: Mapping[int, float] = field(default_factory=dict)
    exact: float | None = None

    @property
    def known(self) -> bool:
        return self.exact is not None or bool(self.by_seed)

    @property
    def value(self) -> float:
        """The mean over seeds."""
        return self.exact if self.exact is not None else fmean(self.by_seed.values())

    def with_(self, other: Cell | float, f: Callable[[float, float], float]) -> Cell:
        """f of both, seed by seed over the seeds that both have."""
        if not isinstance(other, Cell):
            other = Cell(exact=float(other))
        mine = self.exact
        theirs = other.exact
        if not self.known or not other.known:
            return Cell()
        if mine is not None and theirs is not None:
            return Cell(exact=f(mine, theirs))
        if theirs is not None:
            return Cell({s: f(v, theirs) for s, v in self.by_seed.items()})
        if mine is not None:
            return Cell({s: f(mine, v) for s, v in other.by_seed.items()})
        common = [s for s in self.by_seed if s in other.by_seed]
        return Cell({s: f(self.by_seed[s], other.by_seed[s]) for s in common})

    def __add__(self, other: Cell | float) -> Cell:
        return self.with_(other, lambda a, b: a + b)

    def __sub__(self, other: Cell | float) -> Cell:
        return self.with_(other, lambda a, b: a - b)

    def __mul__(self, factor: float) -> Cell:
        return self.with_(factor, lambda a, b: a * b)

    def __neg__(self) -> Cell:
        return self * -1.0


@cache
def quantile(p: float, seeds: int) -> float:
    """The p-quantile of Student's t of so many seeds."""
    from scipy.special import stdtrit

    return float(stdtrit(seeds - 1, p))


@cache
def seeds_for(effect: float) -> int | None:
    """The seeds at which a difference of `effect` standard deviations is told with a probability of
    80 %; None beyond MANY.
    """
    for n in range(2, MANY + 1):
        if effect * math.sqrt(n) >= quantile(0.975, n) + quantile(0.8, n):
            return n
    return None


@dataclass(frozen=True, kw_only=True)
class Check:
    """One comparison. `difference` is counted the paper's way: above zero is what the paper says.

    `kind` is ORDER, or ALIKE (DIFFERENT) where the claim says that two things lie within (beyond)
    `width` of each other. `equal` lets a difference of zero pass.
    """

    label: str
    difference: Cell
    kind: str = ORDER
    width: float = 0.0
    equal: bool = False

    @property
    def known(self) -> bool:
        return self.difference.known

    @property
    def exact(self) -> bool:
        return self.difference.exact is not None

    @property
    def seeds(self) -> int:
        """How many seeds both sides have; 0 for an exact quantity."""
        return len(self.difference.by_seed)

    def distance(self, d: float) -> float:
        """How far a difference lies on the paper's side, negative on the other."""
        if self.kind == ORDER:
            return d
        return self.width - abs(d) if self.kind == ALIKE else abs(d) - self.width

    @property
    def margin(self) -> float:
        """How far the mean lies on the paper's side."""
        return self.distance(self.difference.value)

    @property
    def holds(self) -> bool:
        """Whether the mean lies on the paper's side, clearly or not."""
        return self.margin > TINY or (self.equal and self.margin >= -TINY)

    @property
    def agree(self) -> int:
        """How many seeds by themselves lie on the paper's side."""
        return sum(self.points(seed) for seed in self.difference.by_seed)

    def points(self, seed: int) -> bool:
        """Whether one seed by itself lies on the paper's side."""
        return self.distance(self.difference.by_seed[seed]) > (-TINY if self.equal else TINY)

    @property
    def spread(self) -> float:
        """The standard deviation of the difference over seeds."""
        return stdev(self.difference.by_seed.values())

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the difference; everything, where there is one seed only."""
        if self.difference.exact is not None:
            return self.difference.exact, self.difference.exact
        if self.seeds < 2:
            return -math.inf, math.inf
        half = quantile(0.975, self.seeds) * self.spread / math.sqrt(self.seeds)
        return self.difference.value - half, self.difference.value + half

    @property
    def verdict(self) -> str:
        """FOR, AGAINST or OPEN."""
        low, high = self.interval
        if self.kind == ORDER:
            if low > TINY or (self.equal and low >= -TINY):
                return FOR
            tie = self.exact and not self.equal  # of seeds, a tie tells nothing
            return AGAINST if high < -TINY or (tie and high <= TINY) else OPEN
        inside = -self.width < low and high < self.width
        outside = low >= self.width or high <= -self.width
        if inside:
            return FOR if self.kind == ALIKE else AGAINST
        if outside:
            return AGAINST if self.kind == ALIKE else FOR
        return OPEN

    @property
    def seeds_needed(self) -> int | None:
        """The seeds it takes to tell, if mean and spread stay as they are: those it has where it
        tells already, None where that is not known or more than MANY.
        """
        if self.verdict != OPEN:
            return self.seeds
        if self.seeds < 2 or abs(self.margin) <= TINY:
            return None
        needed = seeds_for(round(abs(self.margin) / self.spread, 4))
        return None if needed is None else max(needed, self.seeds + 1)


# -- ways to compare -------------------------------------------------------------------------------
def cell(x: Cell | float) -> Cell:
    return x if isinstance(x, Cell) else Cell(exact=float(x))


def above(label: str, a: Cell | float, b: Cell | float, equal: bool = False) -> Check:
    """a > b (or >= with `equal`)."""
    return Check(label=label, difference=cell(a) - b, equal=equal)


def below(label: str, a: Cell | float, b: Cell | float, equal: bool = False) -> Check:
    """a < b (or <= with `equal`)."""
    return Check(label=label, difference=cell(b) - a, equal=equal)


def within(label: str, a: Cell | float, b: Cell | float, width: float) -> Check:
    """a and b lie less than `width` apart."""
    return Check(label=label, difference=cell(a) - b, kind=ALIKE, width=width)


def beyond(label: str, a: Cell | float, b: Cell | float, width: float) -> Check:
    """a and b lie more than `width` apart."""
    return Check(label=label, difference=cell(a) - b, kind=DIFFERENT, width=width)


def alike(label: str, cells: Mapping[str, Cell], width: float) -> Iterable[Check]:
    """Every two of the cells lie less than `width` apart."""
    for (one, a), (other, b) in combinations(cells.items(), 2):
        yield within(f"{label} {one} and {other}", a, b, width)


def best(cells: Iterable[Cell], low: bool = False) -> Cell:
    """The highest (lowest) of the cells, unknown while one is."""
    known = list(cells)
    if not known or not all(c.known for c in known):
        return Cell()
    return (min if low else max)(known, key=lambda c: c.value)


def mean(cells: Iterable[Cell]) -> Cell:
    """The mean of the cells, unknown while one is."""
    known = list(cells)
    if not known:
        return Cell()
    total = known[0]
    for c in known[1:]:
        total = total + c
    return total * (1 / len(known))


def favourite(cells: Mapping[float, Cell]) -> Cell:
    """The key of the highest cell, seed by seed."""
    if not cells or not all(c.known for c in cells.values()):
        return Cell()
    if all(c.exact is not None for c in cells.values()):
        return Cell(exact=max(cells, key=lambda k: cells[k].value))
    seeds = set.intersection(*(set(c.by_seed) for c in cells.values()))
    return Cell({s: max(cells, key=lambda k: cells[k].by_seed[s]) for s in sorted(seeds)})
