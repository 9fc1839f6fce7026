"""Client2Vec on five styles of digits: one vector per client, alike within a style."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedbook import plots
from fedbook.papers import client2vec
from fedbook.papers.client2vec.figures import gap, mark_domains
from fedbook.papers.client2vec.scales import SMOKE
from fedbook.papers.evidence import Cell, above
from fedbook.papers.paper import Scale
from fedbook.tour.stop import QUICK, SEEDS, Effect, Found, Part, Picture, Stop, mean

STRATEGIES = ("global", "federated")
SCALE = Scale(
    name=QUICK,
    rounds=1,
    seeds=SEEDS,
    data={"domainnet": {"name": "digits5_offline", "size": 16}},
    solver=SMOKE.solver,
    own=replace(SMOKE.own, index_share=0.02),  # ten epochs of the printed 500
)


def similar(found: Found, strategy: str, where: str) -> Cell:
    return found.cell("fig2", None, f"{where}_similarity", strategy=strategy)


def apart(found: Found, strategy: str) -> Cell:
    """Similarity within a style minus that across styles."""
    return similar(found, strategy, "within") - similar(found, strategy, "across")


def effects(found: Found) -> list[Effect]:
    gaps = {s: apart(found, s) for s in STRATEGIES}
    near = Effect(
        text="Clients of one style are more alike than clients of two (GLOBAL index)",
        check=above("global", gaps["global"], 0.0),
        claims=("c2v1",),
    )
    same = Effect(
        text="So they are when nobody sees the clients' features (FEDERATED index)",
        check=above("federated", gaps["federated"], 0.0),
        claims=("c2v1",),
    )
    clear = Effect(
        text="The GLOBAL index parts the styles more clearly than the FEDERATED one",
        check=above("both", gaps["global"], gaps["federated"]),
        claims=("c2v2",),
    )
    return [near, same, clear]


def pictures(found: Found) -> list[Picture]:
    return [heat_map(found, s) for s in STRATEGIES]


def heat_map(found: Found, strategy: str) -> Picture:
    """Cosines of all pairs of clients, seed 0."""
    run = next(run for run in found.runs("fig2") if run.row["strategy"] == strategy)
    types = np.array(run.metrics["clients"]["type"])
    order = np.argsort(types, kind="stable")
    cosines = np.array(run.metrics["log"]["similarity"]["feature"])[np.ix_(order, order)]
    within, across = gap(cosines, types[order])
    fig, (ax,) = plots.panels(1, height=3.8)
    shown = ax.imshow(cosines, vmin=min(0.0, cosines.min()), vmax=1, interpolation="nearest")
    mark_domains(ax, types[order], run.metrics["type_names"])
    fig.colorbar(shown, ax=ax, shrink=0.8, label="cosine similarity")
    said = f"{within:.2f} within a style, {across:.2f} across styles"
    return Picture(
        figure=fig,
        title=f"Who is like whom, {strategy.upper()} index",
        caption=f"Similarity of the feature indices of {len(types)} clients (Figure 2), seed 0: "
        f"{said}.",
        alt=f"Heat map of the similarity of all pairs of clients ordered by style, "
        f"{strategy.upper()} index; mean cosine {said}.",
    )


def lines(found: Found) -> list[str]:
    out = [f"{'cosine of two clients':25}{'within':>10}{'across':>10}{'gap':>10}"]
    for s in STRATEGIES:
        cells = (similar(found, s, "within"), similar(found, s, "across"), apart(found, s))
        values = "".join(f"{mean(c, 2):>10}" for c in cells)
        out.append(f"{s.upper() + ' index':25}{values}")
    return out


STOP = Stop(
    paper=client2vec.PAPER,
    scale=SCALE,
    motto="one vector per client says who is like whom",
    idea="Before training, one network makes a vector of every client's images and labels. "
    "Similar vectors mean similar data, which sampling, averaging and local training can use.",
    shows="20 clients, four of each of five styles of digits.",
    parts=(Part(name="fig2"),),
    claims=("c2v1", "c2v2"),
    effects=effects,
    pictures=pictures,
    lines=lines,
)
