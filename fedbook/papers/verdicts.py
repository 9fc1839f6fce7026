"""Verdicts for a terminal: one line per claim at 80 columns, or every check; and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from fedbook.errors import unknown
from fedbook.papers.claims import Judged, _shown, all_claims, judge_all, tally
from fedbook.papers.evidence import AGAINST, FOR, OPEN, Check
from fedbook.results import Store

if TYPE_CHECKING:
    import pandas as pd

    from fedbook.papers.paper import Paper

WIDTH = 80
HEADER = "id     verdict        checks  way  seeds  claim"
LEGEND = (
    "checks: for/against/open; way: share of seeds that point the paper's way;\n"
    "seeds: those there are > those it would take to tell (? unknown)"
)


def choose(store: Store, scale: str | None, which: str | None) -> list[Judged]:
    """All claims, those of a paper, or one."""
    from fedbook.papers import PAPERS

    if which is None or which in PAPERS:
        return judge_all(store, scale, which)
    claims = all_claims()
    if which not in claims:
        raise unknown("paper or claim", which, [*PAPERS, *claims])
    found = judge_all(store, scale, claims[which].paper)
    return [j for j in found if j.claim.id == which]


def line(j: Judged) -> str:
    """A claim in one line of at most 80 characters: see LEGEND."""
    counts = "/".join(str(j.counts[v]) for v in (FOR, AGAINST, OPEN))
    way = "-" if j.share is None else f"{j.share:.0%}"
    seeds = str(j.seeds) if j.seeds else "-"
    if j.verdict == "open":
        seeds += f">{j.seeds_needed or '?'}"
    head = f"{j.claim.id:6} {j.verdict:12} {counts:>8} {way:>4}  {seeds:5}  "
    room = WIDTH - len(head)
    text = j.claim.text
    return head + (text if len(text) <= room else text[: room - 3].rstrip() + "...")


def lines(judged: Sequence[Judged]) -> str:
    """Every claim in one line, and how many got each verdict."""
    out = [HEADER]
    group = ""
    for j in judged:
        here = f"-- {j.claim.paper}, {j.scale}"
        if here != group:
            group = here
            out.append(group)
        out.append(line(j))
    return "\n".join([*out, LEGEND, *summary(judged)])


def summary(judged: Sequence[Judged]) -> list[str]:
    out = []
    for kind, counts in tally(judged).items():
        if sum(counts.values()):
            out.append(f"{kind}: " + ", ".join(f"{n} {verdict}" for verdict, n in counts.items()))
    inside, told = map(sum, zip((0, 0), *(j.print_inside for j in judged)))
    if told:
        out.append(f"the printed difference lies within our interval in {inside} of {told} checks")
    return out


def details(judged: Sequence[Judged]) -> str:
    """Every claim with all its checks."""
    out = []
    for j in judged:
        interval = j.share_interval
        span = "" if interval is None else f" [{interval[0]:.0%}, {interval[1]:.0%}]"
        share = "" if j.share is None else f"{j.share:.0%}{span} of the seeds point its way"
        needed = "" if j.seeds_needed is None else f"{j.seeds_needed} seeds would tell"
        if j.verdict == "open" and j.seeds_needed is None:
            needed = "how many seeds would tell is not known"
        out.append(f"{j.claim.id}  {j.claim.text}")
        facts = [f"{j.verdict} at {j.scale} scale", share, needed if j.verdict == "open" else ""]
        out.append("  " + "; ".join(fact for fact in facts if fact))
        out += [f"  {_check(j, c)}" for c in j.checks]
        inside, told = j.print_inside
        if told:
            said = f"{inside} of {told} checks"
            out.append(f"  the printed difference lies within our interval in {said}")
        if j.missing:
            out.append(f"  {j.missing} more not run")
        if j.print_says is not None and j.print_says.status == "failed":
            out.append(f"  print: {j.print_says.note}")
    wrapped = [wrap(line, WIDTH, subsequent_indent=" " * 4) for line in out]
    return "\n".join(line for lines in wrapped for line in lines)


def _check(j: Judged, c: Check) -> str:
    value, span, seeds = _shown(c)
    printed = j.printed(c.label)
    print_ = "" if printed is None else f"  print {printed:+.3g}"
    width = f"  within {c.width:g}" if c.kind != "order" else ""
    return f"{c.verdict:8} {value:>8} {span:18} seeds {seeds}{print_}{width}  {c.label}"


def frame(judged: Sequence[Judged]) -> pd.DataFrame:
    """Every claim as a line of a table, for a notebook."""
    import pandas as pd

    rows = []
    for j in judged:
        needed = "" if j.verdict != "open" else str(j.seeds_needed or "?")
        inside, told = j.print_inside
        rows.append(
            {
                "id": j.claim.id,
                "claim": j.claim.text,
                "verdict": j.verdict,
                **j.counts,
                "not run": j.missing,
                "seeds its way": "-" if j.share is None else f"{j.share:.0%}",
                "seeds": j.seeds or "-",
                "seeds to tell": needed,
                "print inside": f"{inside} of {told}" if told else "-",
            }
        )
    return pd.DataFrame(rows).set_index("id")


def draw_forest(paper: Paper, scale: str, store: Store, folder: Path | None) -> list[Path]:
    """The forest plot of a paper from stored results; nothing where nothing has run."""
    judged = judge_all(store, scale, paper.key)
    if not any(c.seeds for j in judged for c in j.checks):
        return []
    from fedbook import plots
    from fedbook.papers.forest import forest
    from fedbook.papers.reproduce import headless

    plt = headless()
    with plots.style():
        fig, alt = forest(paper, judged, scale)
    paths = plots.save(fig, f"{paper.key}_claims_{scale}", alt, folder)
    plt.close(fig)
    return paths
