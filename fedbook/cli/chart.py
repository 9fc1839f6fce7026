"""Curves in a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

MARKS = "ox+*"


def chart(
    series: Mapping[str, Sequence[float]], x: Sequence[int], *, width: int = 76, height: int = 9
) -> str:
    """Each series as marks over x, the range of all of them on the left, a legend below."""
    known = [v for values in series.values() for v in values if math.isfinite(v)]
    if not known:
        return "no numbers to draw"
    low = min(known)
    high = max(known)
    if high - low < 1e-9:
        low = low - 0.5
        high = high + 0.5
    room = width - 9
    grid = [[" "] * room for _ in range(height)]
    for mark, values in zip(MARKS, series.values()):
        for column, i in _places(len(values), room):
            if math.isfinite(values[i]):
                row = round((values[i] - low) / (high - low) * (height - 1))
                grid[height - 1 - row][column] = mark
    lines = []
    for r, cells in enumerate(grid):
        told = f"{high - (high - low) * r / (height - 1):7.3f}" if r % 4 == 0 else ""
        lines.append(f"{told:>7} |{''.join(cells)}".rstrip())
    lines.append(" " * 8 + "+" + "-" * room)
    ends = f"{x[0]}"
    last = f"round {x[-1]}"
    lines.append(" " * 9 + ends + last.rjust(room - len(ends)))
    names = "   ".join(f"{mark} {name}" for mark, name in zip(MARKS, series))
    return "\n".join([*lines, " " * 9 + names])


def _places(count: int, room: int) -> list[tuple[int, int]]:
    """(column, index): every value has a column, or every column a value."""
    if count == 1:
        return [(0, 0)]
    if count <= room:
        return [(round(i * (room - 1) / (count - 1)), i) for i in range(count)]
    return [(c, round(c * (count - 1) / (room - 1))) for c in range(room)]
