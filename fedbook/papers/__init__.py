"""Every table and figure of the papers by id (`fedgcr/table1`, `client2vec/fig2`), and the papers'
claims.

PAPERS["fedgcr"]         a paper: its scales, tables, figures, claims
get("fedgcr/table1")     one table: its printed rows, the runs behind it, paper against ours
claims.evaluate(store)   what the papers say, checked against stored results
"""

from __future__ import annotations

from fedbook.errors import unknown
from fedbook.experiment import Experiment
from fedbook.papers import client2vec, fedgcr, fgpt, grp_fed
from fedbook.papers.paper import Figure, Paper, Scale
from fedbook.papers.rows import Row
from fedbook.papers.spec import Run, Spec

PAPERS = {p.key: p for p in (fedgcr.PAPER, client2vec.PAPER, grp_fed.PAPER, fgpt.PAPER)}
HEADLINE = ("fedgcr/table1", "client2vec/table9", "grp_fed/table1", "fgpt/table2", "fgpt/table4")

__all__ = [
    "HEADLINE",
    "PAPERS",
    "Figure",
    "Paper",
    "Row",
    "Run",
    "Scale",
    "Spec",
    "get",
    "find_paper",
    "planned",
    "scales",
    "specs",
]


def specs() -> dict[str, Spec]:
    """All tables and figures by id, in the papers' order."""
    found: dict[str, Spec] = {}
    for p in PAPERS.values():
        found |= p.specs
    return found


def get(id: str) -> Spec:
    """One table or figure."""
    known = specs()
    if id not in known:
        raise unknown("table or figure", id, known, f"`fedbook list` shows all {len(known)}")
    return known[id]


def find_paper(key: str) -> Paper:
    """One paper."""
    if key not in PAPERS:
        raise unknown("paper", key, PAPERS)
    return PAPERS[key]


def scales() -> list[str]:
    """The names of all scales, smallest first."""
    return list(dict.fromkeys(s.name for p in PAPERS.values() for s in p.scales))


def planned(method: str, dataset: str, scale: str, seed: int = 0) -> Experiment | None:
    """The run of a paper that trains this method on this dataset at this scale, if there is one."""
    for spec in specs().values():
        for row in spec.rows:
            if row.fits(method=method, dataset=dataset):
                e = spec.experiment(row, scale, seed)
                if e is not None and e.dataset["name"] == dataset:
                    return e
    return None
