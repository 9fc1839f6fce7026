"""A table for other hands: as text for a terminal, Markdown, LaTeX, HTML, CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from textwrap import fill
from typing import Any

from fedbook.papers import words
from fedbook.papers.layout import Block, Cell, Grid

WIDTH = 80
HEADS = 50  # columns for the heads of lines
SUFFIXES = {
    ".txt": "text",
    ".md": "md",
    ".tex": "latex",
    ".csv": "csv",
    ".json": "json",
    ".html": "html",
}
FORMATS = tuple(SUFFIXES.values())
TEX = {
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "$": r"\$",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "±": r"$\pm$",
    "→": r"$\rightarrow$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "✓": r"$\checkmark$",
    "–": "--",
    "σ": r"$\sigma$",
    "δ": r"$\delta$",
    "τ": r"$\tau$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
}
SYMBOL = re.compile(r"\b([σT])_(\w+)")  # σ_type, T_g: the only subscripts in `words`


def number(cell: Cell | None, between: str = " ±") -> str:
    """A cell without its mark."""
    if cell is None:
        return words.NONE
    spread = "" if cell.spread is None else f"{between}{cell.spread:.{cell.digits}f}"
    return f"{cell.value:.{cell.digits}f}{spread}"


# -- text ------------------------------------------------------------------------------------------
def text(grid: Grid, width: int = WIDTH) -> str:
    """Lines that fit a terminal; a table that is too wide goes on below. A star marks the best."""
    out = [fill(grid.caption.replace("marked", "starred"), width)]
    for chosen in _pieces(grid, width):
        for block in grid.blocks:
            out += ["", *_piece(grid, block, chosen)]
    return "\n".join(out)


def _starred(cell: Cell | None) -> str:
    return number(cell, "±") + ("*" if cell is not None and cell.best else "")


def _heads(grid: Grid) -> list[int]:
    """The widths of what stands before the numbers; very long ones are cut."""
    cells = [tuple(grid.stub), *grid.lines]
    widths = [max(len(c[i]) for c in cells) for i in range(len(grid.stub))]
    most = HEADS // len(widths)
    return widths if sum(widths) <= HEADS else [min(w, most) for w in widths]


def _stub(labels: Sequence[str], widths: Sequence[int]) -> str:
    cut = [s if len(s) <= w else s[: w - 1] + "…" for s, w in zip(labels, widths)]
    return "".join(s.ljust(w + 2) for s, w in zip(cut, widths))


def _widths(grid: Grid) -> list[int]:
    out = []
    for j, labels in enumerate(grid.columns):
        found = [len(_starred(line[j])) for block in grid.blocks for line in block.cells]
        out.append(max([len(labels[-1]), *found]) + 2)
    return out


def _pieces(grid: Grid, width: int) -> Iterator[list[int]]:
    """The columns in portions that fit; those below one label stay together where they can."""
    widths = _widths(grid)
    room = width - len(_stub(grid.stub, _heads(grid)))
    piece: list[int] = []
    for _, group in groupby(range(len(widths)), key=lambda j: grid.columns[j][:-1] or j):
        own = list(group)
        if piece and sum(widths[j] for j in piece + own) > room:
            yield piece
            piece = []
        for j in own:
            if piece and sum(widths[k] for k in [*piece, j]) > room:
                yield piece
                piece = []
            piece.append(j)
    if piece:
        yield piece


def _piece(grid: Grid, block: Block, chosen: Sequence[int]) -> list[str]:
    """Some columns of a block."""
    heads = _heads(grid)
    widths = _widths(grid)
    out = []
    for level in range(len(grid.columns[0]) - 1):
        line = _stub([""] * len(heads), heads)
        for label, group in groupby(chosen, key=lambda j: grid.columns[j][: level + 1]):
            room = sum(widths[j] for j in group)
            line += label[-1][: room - 2].ljust(room)
        out.append(line.rstrip())
    last = "".join(grid.columns[j][-1].ljust(widths[j]) for j in chosen)
    out.append((_stub(grid.stub, heads) + last).rstrip())
    before: tuple[str, ...] = ("",) * len(grid.stub)
    for labels, cells in zip(grid.lines, block.cells):
        numbers = "".join(_starred(cells[j]).ljust(widths[j]) for j in chosen)
        out.append((_stub(_unrepeated(labels, before), heads) + numbers).rstrip())
        before = labels
    return [f"{block.title}:", *out]


def _unrepeated(labels: Sequence[str], before: Sequence[str]) -> list[str]:
    """The heads of a line; all but the last only where they change."""
    same = True
    out = []
    for i, (label, last) in enumerate(zip(labels, before)):
        same = same and label == last and i < len(labels) - 1 and label not in ("✓", words.NONE)
        out.append("" if same else label)
    return out


# -- Markdown --------------------------------------------------------------------------------------
def md(grid: Grid) -> str:
    """A Markdown table, the best in bold."""
    columns = [", ".join(dict.fromkeys(labels)) for labels in grid.columns]
    out = [f"**{grid.id}** {grid.caption.replace('marked', 'bold')}"]
    for block in grid.blocks:
        out += ["", f"*{block.title}*", ""]
        out.append("| " + " | ".join([*grid.stub, *columns]) + " |")
        out.append("|" + ":--|" * len(grid.stub) + "--:|" * len(columns))
        for labels, line in zip(grid.lines, block.cells):
            cells = [f"**{number(c)}**" if c and c.best else number(c) for c in line]
            out.append("| " + " | ".join([*labels, *cells]) + " |")
    return "\n".join(out)


# -- LaTeX -----------------------------------------------------------------------------------------
def tex(label: str) -> str:
    """Plain text as LaTeX."""
    parts = SYMBOL.split(label)
    out = "".join(TEX.get(c, c) for c in parts[0])
    for letter, below, rest in zip(parts[1::3], parts[2::3], parts[3::3]):
        symbol = {"σ": r"\sigma"}.get(letter, letter)
        out += rf"${symbol}_{{\mathrm{{{below}}}}}$" + "".join(TEX.get(c, c) for c in rest)
    return out


def latex(grid: Grid) -> str:
    """A `table` with booktabs, the best in bold; needs \\usepackage{booktabs,graphicx,amssymb}."""
    columns = len(grid.stub) + len(grid.columns)
    wide = len(grid.columns) > 5
    body = _latex_body(grid, columns)
    lines = [r"\begin{table}[tb]", r"  \centering", r"  \small"]
    lines.append(rf"  \caption{{{tex(grid.caption.replace('marked', 'bold'))}}}")
    lines.append(rf"  \label{{tab:{grid.id.replace('/', '-').replace('_', '-')}}}")
    lines.append(r"  \medskip")
    if wide:
        lines.append(r"  \resizebox{\linewidth}{!}{%")
    lines.append(rf"  \begin{{tabular}}{{{'l' * len(grid.stub)}{'r' * len(grid.columns)}}}")
    lines += [f"    {line}" for line in body]
    lines.append(r"  \end{tabular}" + ("}" if wide else ""))
    lines.append(r"\end{table}")
    return "% \\usepackage{booktabs,graphicx,amssymb}\n" + "\n".join(lines)


def _latex_body(grid: Grid, columns: int) -> list[str]:
    out = [r"\toprule"]
    stub = len(grid.stub)
    for level in range(len(grid.columns[0]) - 1):
        cells = [""] * stub
        rules = []
        at = stub + 1
        for label, group in groupby(grid.columns, key=lambda c: c[: level + 1]):
            span = len(list(group))
            cells.append(rf"\multicolumn{{{span}}}{{c}}{{{tex(label[-1])}}}")
            rules.append(rf"\cmidrule(lr){{{at}-{at + span - 1}}}")
            at += span
        out += [" & ".join(cells) + r" \\", " ".join(rules)]
    last = [tex(s) for s in grid.stub] + [tex(c[-1]) for c in grid.columns]
    out.append(" & ".join(last) + r" \\")
    for block in grid.blocks:
        out.append(r"\midrule")
        title = rf"\multicolumn{{{columns}}}{{l}}{{\emph{{{tex(block.title)}}}}} \\"
        out += [title, r"\addlinespace[2pt]"]
        before: tuple[str, ...] = ("",) * stub
        for labels, line in zip(grid.lines, block.cells):
            shown = [tex(s) for s in _unrepeated(labels, before)]
            before = labels
            out.append(" & ".join(shown + [_latex_cell(c) for c in line]) + r" \\")
    return [*out, r"\bottomrule"]


def _latex_cell(cell: Cell | None) -> str:
    if cell is None:
        return "--"
    value = f"{cell.value:.{cell.digits}f}"
    value = rf"\textbf{{{value}}}" if cell.best else value
    return value if cell.spread is None else rf"{value} $\pm$ {cell.spread:.{cell.digits}f}"


# -- HTML ------------------------------------------------------------------------------------------
def html(grid: Grid) -> str:
    """An HTML table with a caption, header cells with their scope, the best in bold."""
    stub = len(grid.stub)
    out = [
        f"<table><caption>{marked(grid.caption.replace('marked', 'bold'))}</caption>",
        "<thead>",
    ]
    for level in range(len(grid.columns[0]) - 1):
        cells = [f'<td colspan="{stub}"></td>']
        for label, group in groupby(grid.columns, key=lambda c: c[: level + 1]):
            span = len(list(group))
            cells.append(f'<th scope="colgroup" colspan="{span}">{marked(label[-1])}</th>')
        out.append(f"<tr>{''.join(cells)}</tr>")
    names = [*grid.stub, *(c[-1] for c in grid.columns)]
    out.append("<tr>" + "".join(f'<th scope="col">{marked(n)}</th>' for n in names) + "</tr>")
    out.append("</thead>")
    span = stub + len(grid.columns)
    for block in grid.blocks:
        title = f'<th scope="rowgroup" colspan="{span}">{marked(block.title)}</th>'
        out += ["<tbody>", f"<tr>{title}</tr>"]
        for labels, line in zip(grid.lines, block.cells):
            heads = "".join(f'<th scope="row">{marked(label)}</th>' for label in labels)
            cells = [f"<b>{number(c)}</b>" if c and c.best else number(c) for c in line]
            out.append(f"<tr>{heads}{''.join(f'<td>{c}</td>' for c in cells)}</tr>")
        out.append("</tbody>")
    return "\n".join([*out, "</table>"])


def marked(label: str) -> str:
    return SYMBOL.sub(r"\1<sub>\2</sub>", escape(label))


# -- for machines ----------------------------------------------------------------------------------
COLUMNS = "paper paper_spread ours ours_std seeds delta scale verdict".split()


def as_csv(reports: Sequence[dict[str, Any]]) -> str:
    """One line per number: its table, its settings, print and ours."""
    settings = dict.fromkeys(k for rep in reports for n in rep["rows"] for k in n["settings"])
    out = io.StringIO()
    header = ["id", *settings, "method", "metric", "unit", *COLUMNS]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for rep in reports:
        for n in rep["rows"]:
            own = [n["settings"].get(k) for k in settings]
            rest = [n[c] for c in ("method", "metric", "unit", *COLUMNS)]
            writer.writerow([rep["id"], *own, *rest])
    return out.getvalue().rstrip("\n")


def write(reports: Sequence[dict[str, Any]], grids: Sequence[Grid], format: str) -> str:
    """Reports of `fedbook.papers.reproduce` and their tables in one of `FORMATS`."""
    if format == "json":
        return json.dumps(list(reports), indent=1)
    if format == "csv":
        return as_csv(reports)
    how = {"text": text, "md": md, "latex": latex, "html": html}[format]
    return "\n\n".join(how(grid) for grid in grids)
