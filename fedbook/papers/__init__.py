"""Every table and figure of the four papers by id (`fedgcr/table1`, `client2vec/fig2`), and the
papers' claims.

specs()                  all of them, in the papers' order
get("fedgcr/table1")     one: its printed rows, the runs behind it, paper against ours
claims.evaluate(store)   what the papers say, checked against stored results
"""

from __future__ import annotations

import difflib
import importlib
import re
from functools import cache

from fedbook.errors import FedbookError
from fedbook.papers.spec import SCALES, Row, Spec, read_csv, read_rows

PAPERS = ("fedgcr", "client2vec", "grp_fed", "fgpt")
TITLES = {"fedgcr": "FedGCR", "client2vec": "Client2Vec", "grp_fed": "GRP-FED", "fgpt": "FGPT"}
HEADLINE = ("fedgcr/table1", "client2vec/table9", "grp_fed/table1", "fgpt/table2", "fgpt/table4")

__all__ = ["HEADLINE", "PAPERS", "SCALES", "Row", "Spec", "get", "specs"]


@cache
def specs() -> dict[str, Spec]:
    """All tables and figures by id."""
    found: dict[str, Spec] = {}
    tables, figures = read_csv("tables_index.csv"), read_csv("figures.csv")
    for paper in PAPERS:
        module = importlib.import_module(f"fedbook.papers.{paper}")
        for t in tables:
            if t["paper"].replace("grpfed", "grp_fed") == paper:
                name = f"table{t['table']}"
                rows, plot, count = (
                    read_rows(t["file"]),
                    module.PLOTS.get(name),
                    module.COUNTS.get(name),
                )
                title = t["content"][0].upper() + t["content"][1:]
                found[f"{paper}/{name}"] = Spec(
                    f"{paper}/{name}", paper, "table", title, module, rows, plot, count
                )
        shown: dict[str, list[dict[str, str]]] = {}
        for f in figures:
            if f["paper"].replace("grpfed", "grp_fed") == paper:
                shown.setdefault("fig" + re.findall(r"\d+", f["figure"])[0], []).append(f)
        for name, panels in shown.items():
            kind = "sketch" if all(p["data_needed"] == "none" for p in panels) else "figure"
            figure = module.FIGURES.get(name)
            title = "; ".join(p["shows"][0].upper() + p["shows"][1:] for p in panels)
            rows, plot = (figure.rows, figure.plot) if figure else ((), None)
            found[f"{paper}/{name}"] = Spec(
                f"{paper}/{name}", paper, kind, title, module, rows, plot
            )
        for name, figure in module.FIGURES.items():
            if figure.title:
                id = f"{paper}/{name}"
                found[id] = Spec(id, paper, "study", figure.title, module, figure.rows, figure.plot)
    return found


def get(id: str) -> Spec:
    """One table or figure."""
    known = specs()
    if id not in known:
        near = difflib.get_close_matches(id, known, 1, 0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        raise FedbookError(
            f"unknown table or figure {id!r}", f"{hint}`fedbook list` shows all {len(known)}"
        )
    return known[id]
