"""The tour as one HTML file without links to anything outside: figures, tables, verdicts."""

from __future__ import annotations

import base64
import io
import platform
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbook import plots
from fedbook.experiment import versions
from fedbook.files import write_atomically
from fedbook.papers import words
from fedbook.papers.claims import VERDICTS, Judged, tally
from fedbook.papers.export import marked
from fedbook.papers.rows import Row
from fedbook.papers.spec import Spec, terms
from fedbook.tour.stop import QUICK, Effect, Found, Part, Picture

if TYPE_CHECKING:
    from fedbook.tour import Tour

STORED = "laptop"
MARKS = {True: "✓", False: "✗"}
COMMANDS = (
    ("fedbook lab", "the book: notebooks that explain each equation and run it"),
    ("fedbook list", "every table and figure of the four papers"),
    ("fedbook reproduce fedgcr/table3 --scale laptop", "one table as stored here, minutes each"),
    ("fedbook claims", "what the papers say, judged on the stored results"),
    ("fedbook claims gcr6", "one claim with all its checks"),
    ("fedbook run fedavg digits5_offline --rounds 20", "one run of your own"),
)


def write(tour: Tour, folder: Path) -> Path:
    """FOLDER/index.html, whole or not at all."""
    path = folder / "index.html"
    with write_atomically(path) as part:
        part.write_text(html(tour), encoding="utf-8")
    return path


def html(tour: Tour) -> str:
    """The whole page."""
    style = files("fedbook.tour").joinpath("page.css").read_text(encoding="utf-8")
    title = "Four papers on federated learning with groups of clients"
    body = [
        f"<header><h1>{title}</h1>{_lead(tour)}{_contents(tour)}</header>",
        "<main>",
        *(_section(tour, found) for found in tour.found),
        _surroundings(tour),
        "</main>",
    ]
    head = f'<meta charset="utf-8"><title>{title}</title><style>{style}</style>'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    scheme = '<meta name="color-scheme" content="light dark">'
    icon = '<link rel="icon" href="data:,">'
    head = f"{head}{view}{scheme}{icon}"
    text = "\n".join(body)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{text}\n</body></html>\n'


# -- the parts -------------------------------------------------------------------------------------
def _lead(tour: Tour) -> str:
    seeds = tour.seeds
    held = sum(e.holds for found in tour.found for e in found.effects)
    asked = sum(len(found.effects) for found in tour.found)
    return (
        f"<p>fedbook ran the ideas of four papers on this machine: {tour.runs} short runs with "
        f"{seeds} seed{'s' * (seeds > 1)} each, on data that come with it. <strong>{held} of "
        f"{asked}</strong> things the papers say are seen in every seed. Data and networks are "
        "small, so the numbers are not those of print; what can be compared is which is higher."
        "</p>"
    )


def _contents(tour: Tour) -> str:
    cards = []
    for found in tour.found:
        paper = found.stop.paper
        marks = "".join(f"<li>{_mark(e)} {escape(e.text)}</li>" for e in found.effects)
        name = f'<a href="#{escape(paper.key)}">{escape(paper.title)}</a>'
        motto = f"<p>{escape(found.stop.motto)}</p>"
        cards.append(f'<section class="card"><h2>{name}</h2>{motto}<ul>{marks}</ul></section>')
    return f'<div class="cards">{"".join(cards)}</div>'


def _section(tour: Tour, found: Found) -> str:
    stop = found.stop
    paper = stop.paper
    judged = tour.judged[paper.key]
    effects = "".join(f"<li>{_effect(e, judged)}</li>" for e in found.effects)
    figures = "".join(_figure(paper.key, i, p) for i, p in enumerate(found.pictures, 1))
    tables = [_table(tour, found, part) for part in stop.parts if part.tabulated]
    return "\n".join(
        [
            f'<section id="{escape(paper.key)}"><h2>{escape(paper.title)}</h2>',
            f'<p class="reference">{escape(paper.reference)}</p>',
            f"<p><strong>The idea.</strong> {escape(stop.idea)}</p>",
            f"<p><strong>This run.</strong> {escape(stop.shows)} {escape(_how(found))}</p>",
            f'<ul class="effects">{effects}</ul>',
            f'<div class="figures">{figures}</div>',
            *tables,
            _verdicts(stop.claims, judged),
            "</section>",
        ]
    )


def _how(found: Found) -> str:
    """How the runs were made."""
    said = [terms(run.experiment) for run in found.runs(found.stop.parts[0].name)]
    used = {run.experiment.dataset["name"] for run in found.runs(found.stop.parts[0].name)}
    return f"Data: {', '.join(sorted(used))}; {' / '.join(dict.fromkeys(said))}."


def _mark(effect: Effect) -> str:
    kind = "yes" if effect.holds else "no"
    word = "seen in every seed" if effect.holds else "not seen in every seed"
    return f'<span class="{kind}" role="img" aria-label="{word}">{MARKS[effect.holds]}</span>'


def _effect(effect: Effect, judged: Sequence[Judged]) -> str:
    said = f"{_mark(effect)} {escape(effect.text)}: <strong>{escape(effect.size)}</strong>, "
    said += f"{escape(effect.seeds)}."
    stored = [j for j in judged if j.claim.id in effect.claims]
    if stored and not effect.holds:
        said += " So small a run does not show it. The stored laptop results say: "
        told = [f"{escape(j.claim.id)} {_badge(j.verdict)} ({escape(_told(j))})" for j in stored]
        said += "; ".join(told)
    return said


def _told(j: Judged) -> str:
    """What the stored runs say of a claim, in a few words."""
    if not j.checks:
        return "no results yet"
    counts = ", ".join(f"{n} {verdict}" for verdict, n in j.counts.items())
    return f"checks: {counts}; {j.share:.0%} of the seeds point the paper's way"


def _figure(key: str, number: int, picture: Picture) -> str:
    buffer = io.BytesIO()
    with plots.style():
        picture.figure.savefig(buffer, format="svg", metadata={"Date": None})
    data = base64.b64encode(buffer.getvalue()).decode()
    image = f'<img alt="{escape(picture.alt)}" src="data:image/svg+xml;base64,{data}">'
    caption = f"<strong>{escape(picture.title)}.</strong> {escape(picture.caption)}"
    return f'<figure id="{escape(key)}-{number}">{image}<figcaption>{caption}</figcaption></figure>'


# -- tables ----------------------------------------------------------------------------------------
def _table(tour: Tour, found: Found, part: Part) -> str:
    """A table of the paper: a line per setting and method, for each metric print, stored, here."""
    spec = found.stop.specs[part.name]
    stored = spec.tabulate(STORED, tour.stored)
    here = spec.tabulate(QUICK, found.results)
    metrics = list(dict.fromkeys(row.metric for row in spec.rows))
    fixed, varying = _settings(spec.rows)
    lines: dict[tuple[str, ...], dict[str, tuple[str, str, str]]] = {}
    for row, a, b in zip(spec.rows, stored, here):
        said = [words.value(k, row[k]) for k in varying]
        cells = (_value(a, "paper"), _value(a, "ours"), _value(b, "ours"))
        lines.setdefault((words.value("method", row.method), *said), {})[row.metric] = cells
    left = [words.setting(k) for k in ("method", *varying)]
    top = "".join(f'<th scope="col" rowspan="2">{marked(h)}</th>' for h in left)
    top += "".join(f'<th scope="colgroup" colspan="3">{_metric(spec, m)}</th>' for m in metrics)
    sub = f'<th scope="col">print</th><th scope="col">{STORED}</th><th scope="col">here</th>'
    body = []
    for who, numbers in lines.items():
        heads = "".join(f'<th scope="row">{escape(w)}</th>' for w in who)
        values = [v for m in metrics for v in numbers.get(m, ("", "", ""))]
        body.append(f"<tr>{heads}{_cells(values)}</tr>")
    caption = f"{_title(spec)}{_fixed(fixed)}. {_data(tour, spec)} {part.note}"
    head = f"<thead><tr>{top}</tr><tr>{sub * len(metrics)}</tr></thead>"
    return _captioned(spec.id, caption, f"{head}<tbody>{''.join(body)}</tbody>")


def _metric(spec: Spec, name: str) -> str:
    """A metric as the paper writes it, with its unit."""
    units = {row.unit for row in spec.rows if row.metric == name and row.unit}
    said = ", ".join(words.UNITS.get(unit, unit) for unit in sorted(units))
    return marked(words.metric(name)) + (f"<br><small>{escape(said)}</small>" if said else "")


def _settings(rows: Sequence[Row]) -> tuple[dict[str, Any], list[str]]:
    """The settings that all rows share, and the names of those that vary."""
    names = list(dict.fromkeys(k for row in rows for k in row.settings))
    fixed = {k: rows[0][k] for k in names if len({row[k] for row in rows}) == 1}
    return fixed, [k for k in names if k not in fixed]


def _fixed(fixed: dict[str, Any]) -> str:
    left = ("dataset", "case_studies")
    said = [words.assigned(k, v) for k, v in fixed.items() if k not in left]
    return f" ({', '.join(said)})" if said else ""


def _title(spec: Spec) -> str:
    kind, number = ("Table", spec.name[5:]) if spec.kind == "table" else ("Figure", spec.name[3:])
    return f"{kind} {number}: {spec.title}"


def _data(tour: Tour, spec: Spec) -> str:
    """Which data stand behind the three columns."""
    printed = sorted({row["dataset"] for row in spec.rows if row["dataset"]})
    said = f"Print: {', '.join(printed)}; " if printed else ""
    for name, scale in ((STORED, STORED), ("here", QUICK)):
        runs = spec.runs(scale, results=tour.results if scale == QUICK else tour.stored)
        used = sorted({run.experiment.dataset["name"] for run in runs if run.result})
        if used:
            said += f"{name}: {', '.join(used)}; "
    return f"{said}± is the standard deviation over seeds." if said else "Counted, not trained."


def _value(cell: dict[str, Any], which: str) -> str:
    value = cell[which]
    spread = cell["ours_std"] if which == "ours" else None
    if value is None:
        return "–"
    digits = 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f}" + (f" ± {spread:.{digits}f}" if spread is not None else "")


def _cells(values: Iterable[str]) -> str:
    kinds = ("print", "stored", "here")
    return "".join(f'<td class="{kinds[i % 3]}">{escape(v)}</td>' for i, v in enumerate(values))


def _captioned(id: str, caption: str, table: str, kind: str = "") -> str:
    """A caption as wide as the page, and a table that scrolls sideways on a narrow screen, by
    keyboard too.
    """
    name = escape(id.replace("/", "-"))
    table = f'<table class="{kind}" aria-labelledby="{name}">{table}</table>'
    region = f'<div class="scroll" tabindex="0" role="region" aria-labelledby="{name}">'
    return f'<p class="caption" id="{name}">{escape(caption)}</p>{region}{table}</div>'


# -- verdicts, surroundings ------------------------------------------------------------------------
def _badge(verdict: str) -> str:
    return f'<span class="verdict {escape(verdict)}">{escape(verdict)}</span>'


def _verdicts(ids: Sequence[str], judged: Sequence[Judged]) -> str:
    """The claims this stop is about, judged on the stored results, and the tally of all."""
    shown = [j for j in judged if j.claim.id in ids]
    head = "".join(
        f'<th scope="col">{h}</th>'
        for h in ("claim", "", "verdict", "for / against / open", "seeds")
    )
    rows = []
    for j in shown:
        counts = " / ".join(str(n) for n in j.counts.values())
        cells = (escape(j.claim.text), _badge(j.verdict), counts, str(j.seeds or "–"))
        name = f'<th scope="row">{escape(j.claim.id)}</th>'
        rows.append(f"<tr>{name}{''.join(f'<td>{c}</td>' for c in cells)}</tr>")
    total = tally(judged)["claims"]
    all_of_them = ", ".join(f"{total[v]} {v}" for v in VERDICTS)
    caption = (
        f"What the stored {STORED} results say of these claims. All {sum(total.values())} claims "
        f"of the paper: {all_of_them}."
    )
    table = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return _captioned(f"{judged[0].claim.paper}-verdicts", caption, table, "claims")


def _surroundings(tour: Tour) -> str:
    facts = versions() | {"machine": platform.machine(), "processes": tour.jobs}
    facts |= {"runs": tour.runs, "computed now": tour.computed, "seconds": round(tour.seconds)}
    facts["date"] = tour.date
    pairs = "".join(
        f"<tr><th scope='row'>{escape(str(k))}</th><td>{escape(str(v))}</td></tr>"
        for k, v in facts.items()
    )
    commands = "".join(
        f"<li><code>{escape(c)}</code> <span>{escape(what)}</span></li>"
        for c, what in (("fedbook reproduce", "this page"), *COMMANDS)
    )
    return (
        '<section id="surroundings"><h2>How it was made</h2>'
        f"{_captioned('environment', 'Environment', f'<tbody>{pairs}</tbody>')}"
        f"<h3>Commands</h3><ul class='commands'>{commands}</ul></section>"
    )
