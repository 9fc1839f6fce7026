"""Verdicts on made-up numbers with known answers: intervals cover what they should, equivalence is
shown and not assumed, many checks on nothing tell nothing."""

import math

import numpy as np
import pytest
from scipy import stats

from fedbook.papers.claims import Claim, Judged, by_chance, tally, verdict
from fedbook.papers.evidence import (
    MANY,
    Cell,
    above,
    alike,
    below,
    best,
    beyond,
    favourite,
    mean,
    seeds_for,
    within,
)
from fedbook.papers.verdicts import WIDTH, details, line, lines


def seeds(*values):
    return Cell(dict(enumerate(values)))


# -- cells -----------------------------------------------------------------------------------------
def test_cells_are_combined_seed_by_seed():
    a, b = Cell({0: 1.0, 1: 2.0, 5: 9.0}), Cell({1: 0.5, 0: 4.0})
    assert (a - b).by_seed == {0: -3.0, 1: 1.5}
    assert (a + 1).by_seed == {0: 2.0, 1: 3.0, 5: 10.0} and (a * 2).value == 8.0
    assert (Cell(exact=3.0) - b).by_seed == {0: -1.0, 1: 2.5}
    assert (Cell(exact=3.0) - 1).exact == 2.0
    assert not (a - Cell()).known and not (Cell() + 1).known
    assert not (Cell({0: 1.0}) - Cell({1: 1.0})).known, "no seed in common"


def test_what_is_not_known_stays_so():
    known, unknown = seeds(1.0, 2.0), Cell()
    for cells in ([known, unknown], []):
        assert not best(cells).known and not mean(cells).known
    assert not favourite({1.0: known, 2.0: unknown}).known
    assert best([seeds(1.0), seeds(3.0)]).value == 3.0
    assert best([seeds(1.0), seeds(3.0)], low=True).value == 1.0
    assert mean([seeds(1.0, 2.0), seeds(3.0, 6.0)]).by_seed == {0: 2.0, 1: 4.0}
    assert favourite({10.0: seeds(1, 5), 20.0: seeds(3, 4)}).by_seed == {0: 20.0, 1: 10.0}


# -- checks ----------------------------------------------------------------------------------------
def test_an_interval_by_hand():
    c = above("x", seeds(3.0, 5.0, 7.0), seeds(2.0, 3.0, 4.0))  # differences 1, 2, 3
    half = 4.302653 / math.sqrt(3)
    assert c.interval == pytest.approx((2 - half, 2 + half), rel=1e-6)
    assert c.verdict == "open" and c.holds and (c.seeds, c.agree, c.margin) == (3, 3, 2.0)
    low, high = stats.t.interval(0.95, 2, loc=2, scale=1 / math.sqrt(3))
    assert c.interval == pytest.approx((low, high))


def test_pairing_removes_what_seeds_share():
    shared = np.array([0.0, 30.0, -20.0, 10.0])
    a, b = seeds(*(shared + [1.0, 1.1, 0.9, 1.0])), seeds(*shared)
    assert above("x", a, b).verdict == "for" and above("x", b, a).verdict == "against"
    assert below("x", b, a).verdict == "for"


def test_one_seed_is_open_unless_exact():
    assert above("x", seeds(5.0), seeds(1.0)).verdict == "open"
    assert above("x", Cell(exact=5.0), 1.0).verdict == "for"
    assert above("x", Cell(exact=1.0), 5.0).verdict == "against"
    assert above("x", seeds(5.0), seeds(1.0)).seeds_needed is None


def test_no_difference_at_all():
    same = seeds(1.0, 1.0, 1.0)
    assert above("x", same, same).verdict == "open" and not above("x", same, same).holds
    assert above("x", same, same).seeds_needed is None
    assert above("x", Cell(exact=1.0), 1.0).verdict == "against"
    assert above("x", same, same, equal=True).verdict == "for"
    assert below("x", same, 1.0, equal=True).verdict == "for"


def test_alike_is_shown_not_assumed():
    near, noisy, far = seeds(0.1, 0.0, -0.1), seeds(5.0, 0.0, -5.0), seeds(9.0, 9.1, 8.9)
    assert within("x", near, 0.0, 1.0).verdict == "for"
    assert within("x", noisy, 0.0, 1.0).verdict == "open", "not clearly different is not alike"
    assert within("x", noisy, 0.0, 1.0).holds
    assert within("x", far, 0.0, 1.0).verdict == "against"
    assert beyond("x", far, 0.0, 1.0).verdict == "for"
    assert beyond("x", near, 0.0, 1.0).verdict == "against"
    assert beyond("x", noisy, 0.0, 1.0).verdict == "open"
    assert within("x", Cell(exact=0.5), 0.0, 1.0).margin == 0.5
    pairs = list(alike("d", {"a": near, "b": near, "c": far}, 1.0))
    assert [c.label for c in pairs] == ["d a and b", "d a and c", "d b and c"]
    assert [c.verdict for c in pairs] == ["for", "against", "against"]


# -- by simulation ---------------------------------------------------------------------------------
@pytest.mark.parametrize("n", [2, 3, 5])
def test_the_interval_covers_the_truth_in_95_of_100(n):
    rng = np.random.default_rng(n)
    covered = 0
    for d in rng.normal(0.7, 2.0, (4000, n)):
        low, high = above("x", seeds(*d), 0.0).interval
        covered += low <= 0.7 <= high
    assert covered / 4000 == pytest.approx(0.95, abs=0.012)


def test_two_tests_call_alike_what_lies_at_the_edge_in_1_of_40_at_most():
    rng = np.random.default_rng(0)
    wrong = sum(within("x", seeds(*d), 0.0, 1.0).verdict == "for" for d in edge(rng, 4000))
    assert wrong / 4000 < 0.03


def edge(rng, count):
    """Differences of five seeds whose truth lies exactly at the width."""
    return rng.normal(1.0, 0.4, (count, 5))


def test_the_seeds_it_would_take_are_enough():
    """A difference of one standard deviation: with that many seeds four runs in five tell."""
    n = seeds_for(1.0)
    assert n == 10
    rng = np.random.default_rng(1)
    told = sum(above("x", seeds(*d), 0.0).verdict == "for" for d in rng.normal(1, 1, (3000, n)))
    assert 0.77 < told / 3000 < 0.87
    assert seeds_for(0.01) is None and seeds_for(0.5) > n > seeds_for(3.0)
    assert above("x", seeds(*np.tile([2.0, 0.0], 2)), 0.0).seeds_needed <= MANY


def test_checks_on_nothing_leave_a_claim_open():
    rng = np.random.default_rng(2)
    told = 0
    for _ in range(300):
        checks = [above("x", seeds(*d), 0.0) for d in rng.normal(0, 1, (40, 3))]
        told += judged(checks).verdict != "open"
    assert told / 300 < 0.08


# -- verdicts --------------------------------------------------------------------------------------
def judged(checks, missing=0, own=False):
    claim = Claim(id="x1", paper="fedgcr", text="a claim", checks=lambda t: checks, own=own)
    return Judged(claim=claim, checks=checks, scale="laptop", missing=missing)


@pytest.mark.parametrize(
    "counts, missing, expected",
    [
        ((1, 0, 0), 0, "supported"),
        ((0, 1, 0), 0, "contradicted"),
        ((0, 0, 9), 0, "open"),
        ((0, 0, 0), 5, "open"),
        ((6, 0, 5), 0, "supported"),
        ((5, 0, 6), 0, "open"),  # not most of them
        ((6, 0, 5), 5, "open"),  # most are not even run
        ((6, 1, 0), 0, "mixed"),
        ((3, 3, 0), 0, "mixed"),
        ((3, 4, 20), 0, "contradicted"),
        ((1, 0, 62), 0, "open"),
        ((0, 1, 62), 0, "open"),  # one of 63 within chance refutes nothing
        ((0, 9, 54), 0, "contradicted"),
    ],
)
def test_what_checks_say_together(counts, missing, expected):
    assert verdict(dict(zip(("for", "against", "open"), counts)), missing) == expected


def test_chance():
    assert by_chance(1, 1) == pytest.approx(0.05) and by_chance(0, 9) == 1.0
    assert by_chance(1, 20) == pytest.approx(1 - 0.95**20)
    assert by_chance(3, 20) == pytest.approx(stats.binom.sf(2, 20, 0.05))


def test_the_share_is_counted_over_seeds():
    checks = [above("a", seeds(1.0, 1.0, 1.0), 0.0), above("b", seeds(1.0, -1.0, -1.0), 0.0)]
    j = judged(checks)
    assert j.share == pytest.approx(4 / 6)
    low, high = j.share_interval
    assert low < 4 / 6 < high <= 1.0
    assert judged([above("a", seeds(1.0), 0.0)]).share_interval is None
    assert judged([]).share is None and judged([]).status == "untested"


def test_seeds_that_would_tell_half_of_the_checks():
    clear, close = seeds(5.0, 5.1, 4.9), seeds(3.0, 0.5, 1.0)
    need = above("x", close, 0.0).seeds_needed
    assert need > 3 and above("x", clear, 0.0).seeds_needed == 3
    assert judged([above("x", c, 0.0) for c in (clear, clear, close)]).seeds_needed == 3
    assert judged([above("x", c, 0.0) for c in (clear, close, close)]).seeds_needed == need
    assert judged([above("x", seeds(1.0), 0.0)]).seeds_needed is None


def test_own_studies_are_counted_apart():
    sure = [above("x", Cell(exact=1.0), 0.0)]
    counts = tally([judged(sure), judged(sure), judged([], own=True)])
    assert counts["claims"]["supported"] == 2 and sum(counts["claims"].values()) == 2
    assert counts["own studies"] == {"supported": 0, "contradicted": 0, "mixed": 0, "open": 1}


def test_lines_fit_a_terminal_and_details_name_every_check():
    noisy = seeds(1.0, -3.0, 2.5)
    j = judged([above(f"table{i} a long name of a check", noisy, 0.0) for i in range(99)])
    assert len(line(j)) <= WIDTH and max(map(len, lines([j]).split("\n"))) <= WIDTH
    assert "0/0/99" in line(j) and "3>" in line(j)
    text = details([j])
    assert all(f"table{i} " in text for i in range(99)) and "seeds would tell" in text
    html = j._repr_html_()
    assert html.count("<tr>") == 100 and "x1, laptop: open. a claim" in html
    assert "a claim" in j.claim._repr_html_()
