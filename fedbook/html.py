"""Small tables for notebooks: every name is escaped, every table has a caption."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """An HTML table of plain values."""
    lines = [f"<table><caption>{escape(caption)}</caption>", _row("th", header)]
    lines += [_row("td", row) for row in rows]
    return "\n".join([*lines, "</table>"])


def _row(tag: str, cells: Sequence[Any]) -> str:
    style = ' style="text-align:left"'
    return "<tr>" + "".join(f"<{tag}{style}>{escape(str(c))}</{tag}>" for c in cells) + "</tr>"


def figure(png: str, alt: str, caption: str) -> str:
    """A picture in base64 with its alternative text and caption."""
    image = f'<img alt="{escape(alt)}" src="data:image/png;base64,{png}" style="max-width:100%">'
    return f'<figure style="margin:0">{image}<figcaption>{escape(caption)}</figcaption></figure>'
