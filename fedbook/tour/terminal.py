"""The tour for a terminal: one block per paper, at most 60 lines of 80 columns."""

from __future__ import annotations

import os
import sys
from textwrap import wrap
from typing import TYPE_CHECKING, TextIO

from fedbook.papers.claims import VERDICTS, tally
from fedbook.tour.stop import Effect, Found

if TYPE_CHECKING:
    from fedbook.tour import Tour

WIDTH = 80
LINES = 60
COLOURS = {"bold": "1", "green": "32", "yellow": "33", "grey": "90"}


def coloured(stream: TextIO | None = None) -> bool:
    """Whether to write colours: on a terminal, unless NO_COLOR asks for none."""
    stream = sys.stdout if stream is None else stream
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str, on: bool) -> str:
    return f"\033[{COLOURS[colour]}m{text}\033[0m" if on else text


def text(tour: Tour, colour: bool = False) -> str:
    """The whole summary."""
    out = []
    for found in tour.found:
        out += [*_block(tour, found, colour), ""]
    note = f"{tour.runs} runs, {tour.seeds} seeds, {tour.computed} computed now in "
    note += f"{tour.seconds:.0f} s. + seen in every seed, - not."
    return "\n".join([*out, paint(note, "grey", colour)])


def _block(tour: Tour, found: Found, colour: bool) -> list[str]:
    paper = found.stop.paper
    out = [f"{paint(paper.title, 'bold', colour)}: {found.stop.motto}"]
    out += [f"  {line}" for line in found.stop.lines(found)]
    for effect in found.effects:
        out += _effect(effect, colour)
    total = tally(tour.judged[paper.key])["claims"]
    said = ", ".join(f"{total[v]} {v}" for v in VERDICTS)
    return [*out, paint(f"  claims at laptop scale: {said}", "grey", colour)]


def _effect(effect: Effect, colour: bool) -> list[str]:
    """The sentence, its mark before it, its size and seeds after it."""
    mark = paint("+", "green", colour) if effect.holds else paint("-", "yellow", colour)
    lines = wrap(f"{effect.text}: {effect.size}, {effect.seeds}", WIDTH - 4)
    return [f"  {mark} {lines[0]}", *(f"    {line}" for line in lines[1:])]
