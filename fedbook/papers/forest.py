"""All checks of a paper in one picture: our difference with its interval beside the printed one."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import Any

from fedbook.papers.claims import Judged
from fedbook.papers.draw import Drawn
from fedbook.papers.evidence import AGAINST, FOR, OPEN, ORDER, TINY
from fedbook.papers.paper import Paper
from fedbook.papers.spec import arrow

FEW = 8  # checks that can be named beside their line


def forest(paper: Paper, judged: Sequence[Judged], scale: str) -> Drawn:
    """A panel per claim, a line per check, sorted by our difference; right of zero is the paper's
    side. Grey bands are the widths within which two things count as alike.
    """
    from fedbook import plots

    shown = [j for j in judged if j.checks]
    fig, axes = plots.panels(len(shown), 4.6, 3.0)
    for ax, j in zip(axes, shown):
        _panel(ax, j)
    _legend(fig)
    used = _data(paper, scale)
    fig.suptitle(f"{paper.title}, {scale} scale on {used}: every check of every claim", fontsize=9)
    told = [f"{j.claim.id} {j.verdict}, {_counts(j)}" for j in shown]
    what = f"Forest plot of all checks of {paper.title} at {scale} scale on {used}, one panel per"
    return fig, f"{what} claim, our difference with its 95 % interval and print: {'; '.join(told)}."


def _data(paper: Paper, scale: str) -> str:
    """The paper's datasets and what stands for them at this scale."""
    data = paper.scale(scale).data if paper.has(scale) else {}
    words = [arrow(printed, used["name"]) for printed, used in data.items()]
    return ", ".join(words) or "the printed numbers"


def _counts(j: Judged) -> str:
    said = ", ".join(f"{n} {name}" for name, n in j.counts.items())
    return f"{said}, {j.missing} not run" if j.missing else said


def _colours() -> dict[str, str]:
    from fedbook import plots

    return {FOR: plots.GREEN, AGAINST: plots.RED, OPEN: "#777777"}


def _panel(ax: Any, j: Judged) -> None:
    from fedbook import plots

    checks = sorted(j.checks, key=lambda c: c.difference.value)
    for y, c in enumerate(checks):
        colour = _colours()[c.verdict]
        if c.seeds > 1:
            ax.plot(c.interval, [y, y], color=colour, lw=1, zorder=1)
        marker = "o" if c.seeds != 1 else "|"
        ax.plot([c.difference.value], [y], marker, color=colour, ms=3.5, zorder=3)
        printed = j.printed(c.label)
        if printed is not None:
            ax.plot([printed], [y], "D", color=plots.BLUE, mfc="none", ms=3, mew=0.6, zorder=2)
    bands = {c.width for c in checks if c.kind != ORDER}
    for width in bands:
        ax.axvspan(-width, width, color="0.92", zorder=0)
    ax.axvline(0, color="0.3", lw=0.8)
    _limits(ax, j)
    title = f"{j.claim.id}: {j.verdict} ({_counts(j)})\n{fill(j.claim.text, 62)}"
    ax.set_title(title, fontsize=7)
    ax.set_ylim(-1, len(checks))
    ax.set_yticks([])
    if len(checks) <= FEW:
        ax.set_yticks(range(len(checks)), [fill(c.label, 32) for c in checks], fontsize=5)
    side = "difference" if bands else "difference, the paper's way to the right"
    ax.set_xlabel(side, fontsize=7)
    ax.tick_params(axis="x", labelsize=6)


def _limits(ax: Any, j: Judged) -> None:
    """Show all means; of intervals that reach very far, of few seeds, only a part."""
    points = [c.difference.value for c in j.checks]
    points += [p for c in j.checks if (p := j.printed(c.label)) is not None]
    points += [w for c in j.checks for w in (-c.width, c.width)] + [0.0]
    low = min(points)
    high = max(points)
    room = 0.35 * (high - low) if high - low > TINY else 1.0
    ax.set_xlim(low - room, high + room)


def _legend(fig: Any) -> None:
    from matplotlib.lines import Line2D

    from fedbook import plots

    lines = [Line2D([], [], color=c, marker="o", ms=3.5, label=v) for v, c in _colours().items()]
    lines.append(Line2D([], [], color=_colours()[OPEN], marker="|", ls="", label="one seed"))
    printed: dict[str, Any] = {"color": plots.BLUE, "marker": "D", "mfc": "none", "ms": 3, "ls": ""}
    lines.append(Line2D([], [], label="as printed", **printed))
    fig.legend(handles=lines, fontsize=7, loc="outside lower center", ncols=len(lines))
