"""FedGCR on five styles of digits: the server finds the clients' types, and few-image types are
served better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedbook import plots
from fedbook.experiment import Experiment
from fedbook.metrics import type_means
from fedbook.papers import fedgcr
from fedbook.papers.draw import MARKS
from fedbook.papers.evidence import Cell, above, below
from fedbook.papers.fedgcr.scales import ADAMW, SMALL, Domains
from fedbook.papers.paper import Scale
from fedbook.papers.rows import Row
from fedbook.papers.spec import Run, Spec, finished, lookup
from fedbook.papers.tune import Grid
from fedbook.tour.stop import QUICK, SEEDS, Effect, Found, Part, Picture, Stop, interval, mean

COUNTS = (3, 4, 5, 6, 7)  # T' of Table 3; there are five types
RULE = {"sizes": "rule", "scale": 0.05, "limit": [10_000, 30], "shuffle": True}
SCALE = Scale(
    name=QUICK,
    rounds=10,
    evaluate_every=10,
    seeds=SEEDS,
    data={"digit_five": {"name": "digits5_offline"}},
    solver={**ADAMW, "lr": 5e-3, "batch_size": 8},
    methods={"fedavg": {"lr": 0.04}, "fedgcr": {"lr": 2e-3, "q": 1.0}},  # chosen by GRID
    own=Domains(
        model=SMALL,
        sizes={"digit_five": RULE},
        order={},
        swapped={},
    ),
)
# For either method four rates, then two more: of the rate, or of FedGCR's power.
GRID = Grid(
    on=({"dataset": "digit_five", "dif": 10},),
    lr=(2e-3, 5e-3, 1e-2, 2e-2),
    more_lr=(1e-3, 4e-2),
    knobs={"fedavg": None, "fedgcr": ("q", (1.0, 0.0, 2.0))},
)


def experiment(row: Row, scale: Scale[Any], seed: int) -> Experiment:
    """One run with T' = T stands for all T': at its end the clients are grouped with each."""
    settings = {k: v for k, v in row.settings.items() if k != "t_prime"}
    e = fedgcr.experiment(replace(row, settings=settings), scale, seed)
    assert e is not None
    if row.method != "fedgcr" or not row.metric:  # a trial of the grid needs no more
        return e
    return replace(e, measures=({"name": "type_tests", "counts": list(COUNTS)},))


def grouped(spec: Spec, row: Row, runs: Sequence[Run]) -> list[tuple[int, float]]:
    """The clustering accuracy of a row's T'; of a run with this T' where there is one."""
    out = []
    for run in runs:
        if run.result is not None and run.row.setting == row.setting:
            kept = run.metrics.get("types", {}).get("clustering_accuracy_by_count")
            at = kept and kept[str(row["t_prime"])]
            value = at if kept else lookup(run.metrics, "log.clustering_accuracy")
            out += [(run.seed, value)] if value is not None else []
    return out


def accuracy(found: Found, count: int) -> Cell:
    return found.cell("table3", "fedgcr", "clustering_accuracy", t_prime=count)


def score(found: Found, method: str, metric: str) -> Cell:
    return found.cell("table1", method, metric)


def worst(found: Found, method: str) -> Cell:
    """The accuracy of the worst client in percent."""
    runs = [run for run in found.runs("table1") if run.row.method == method]
    return Cell({run.seed: 100 * run.metrics["worst_client"] for run in runs})


def effects(found: Found) -> list[Effect]:
    right = accuracy(found, 5)
    few = accuracy(found, 3)
    h, frozen = (found.cell("fig3", "fedgcr", f"knn_purity_{x}") for x in ("h", "frozen"))
    return [
        Effect(
            text="With T' = T = 5 groups more clients are grouped by type than with T' = 3",
            check=above("clustering", right, few),
            unit="points",
            claims=("gcr6",),
        ),
        Effect(
            text="The type prompt h keeps images of one type closer together than the frozen "
            "feature does (share of the ten nearest)",
            check=above("purity", h, frozen),
            claims=("gcr11",),
        ),
        Effect(
            text="FedGCR is above FedAvg in Avg, the mean over types",
            check=above("avg", score(found, "fedgcr", "avg"), score(found, "fedavg", "avg")),
            unit="points",
            claims=("gcr1",),
        ),
        Effect(
            text="FedGCR's accuracy differs less between types (sigma_type)",
            check=below(
                "sigma", score(found, "fedgcr", "sigma_type"), score(found, "fedavg", "sigma_type")
            ),
            unit="points",
            claims=("gcr2",),
        ),
    ]


def pictures(found: Found) -> list[Picture]:
    return [
        clustering(found),
        type_map(found),
        sorted_clients(found),
        *at_published_size(found),
    ]


def clustering(found: Found) -> Picture:
    """Table 3 as a picture."""
    printed = {}
    for row in found.stop.specs["table3"].rows:
        printed[row["t_prime"]] = row.value
    fig, (ax,) = plots.panels(1)
    ours = [interval(list(accuracy(found, t).by_seed.values())) for t in COUNTS]
    centre, half = np.array(ours).T
    ax.errorbar(COUNTS, centre, half, capsize=3, color=plots.RED, marker="*", label="this machine")
    print_ = [np.nan if printed[t] is None else float(printed[t] or 0) for t in COUNTS]
    ax.plot(COUNTS, print_, "o:", color="#777777", mfc="none", label="print")
    ax.axvline(5, color="#bbbbbb", linewidth=0.8)
    ax.set(
        xlabel="groups asked for, T'  (there are 5 types)", ylabel="clients in a right group (%)"
    )
    ax.set(xticks=COUNTS, ylim=(0, 105))
    ax.legend(loc="lower right")
    said = ", ".join(f"T'={t} {value:.0f} %" for t, value in zip(COUNTS, centre))
    return Picture(
        figure=fig,
        title="The server finds the types",
        caption="Clustering accuracy against the number of groups (Table 3, DIF 10). Bars: 95 % "
        f"interval over {found.stop.scale.seeds} seeds. Print is Digit-Five with a ViT-B/16.",
        alt=f"Clustering accuracy rises with the number of groups: {said}; print dotted beside it.",
    )


def type_map(found: Found) -> Picture:
    """h of test images, by type."""
    run = found.runs("fig3")[0]
    types = run.metrics["types"]
    names = run.metrics["type_names"]
    kinds = np.array(types["type"])
    xy = np.array(types["map_h"])
    fig, (ax,) = plots.panels(1)
    for t, name in enumerate(names):
        look: dict[str, Any] = {
            "s": 14,
            "color": plots.type_colours(len(names))[t],
            "marker": MARKS[t],
        }
        ax.scatter(*xy[kinds == t].T, label=name, **look)
    ax.set(xticks=[], yticks=[], xlabel="t-SNE 1", ylabel="t-SNE 2")
    fig.legend(loc="outside lower center", ncols=3)
    purity = {x: f"{types[f'knn_purity_{x}']:.2f}" for x in ("h", "frozen")}
    return Picture(
        figure=fig,
        title="What the type prompt knows",
        caption="The type prompt h of test images (Figure 3), one point per image, seed 0. Of an "
        f"image's ten nearest a share of {purity['h']} is of its own type, {purity['frozen']} by "
        "the frozen feature.",
        alt=f"A map of test images of five types ({', '.join(names)}) by their type prompt; "
        f"share of nearest neighbours of the same type {purity['h']}.",
    )


def sorted_clients(found: Found) -> Picture:
    """Each client's accuracy, FedAvg against FedGCR."""
    fig, (ax,) = plots.panels(1)
    told = []
    for method in ("fedavg", "fedgcr"):
        own = [run for run in found.runs("table1") if run.row.method == method]
        ranked = np.sort([run.metrics["clients"]["acc"] for run in own], axis=1) * 100
        centre, half = np.array([interval(column) for column in ranked.T]).T
        x = np.arange(1, len(centre) + 1)
        look = plots.look(method)
        ax.plot(x, centre, **look)
        ends = np.clip((centre - half, centre + half), 0, 100)
        ax.fill_between(x, *ends, color=look["color"], alpha=0.15, linewidth=0)
        told.append(f"{look['label']} from {centre[0]:.0f} to {centre[-1]:.0f} %")
    ax.set(xlabel="client, from worst to best", ylabel="test accuracy (%)", ylim=(0, 100))
    ax.axhline(10, color="#bbbbbb", linewidth=0.8, label="chance")
    fig.legend(loc="outside lower center", ncols=3)
    return Picture(
        figure=fig,
        title="Who is served how well",
        caption="Test accuracy of every client, sorted (DIF 10: ten clients of the first type, "
        f"one of the last). Bands: 95 % interval over {found.stop.scale.seeds} seeds by rank.",
        alt=f"Test accuracy of the clients sorted from worst to best: {'; '.join(told)}.",
    )


def at_published_size(found: Found) -> list[Picture]:
    """Accuracy by type in the stored runs on PACS, at the printed rate and tuned."""
    spec = found.stop.paper.specs["fedgcr/protocols"]
    runs = finished(spec.runs("laptop", results=found.stored))
    out = []
    for protocol, how in (("printed", "one rate for all, as printed"), ("tuned", "each tuned")):
        own = [r for r in runs if (r.row["dataset"], r.row["protocol"]) == ("pacs", protocol)]
        methods = {m: [r for r in own if r.row.method == m] for m in ("fedavg", "fedgcr")}
        if all(methods.values()):
            out.append(types_served(methods, how))
    return out


def types_served(methods: dict[str, list[Run]], how: str) -> Picture:
    """Accuracy by type of each method's runs."""
    fig, (ax,) = plots.panels(1)
    told = []
    for shift, (method, own) in zip((-0.08, 0.08), methods.items()):
        clients = [r.metrics["clients"] for r in own]
        scores = [100 * type_means(c["acc"], c["type"]) for c in clients]
        centre, half = np.array([interval(column) for column in zip(*scores)]).T
        look = plots.look(method) | {"linestyle": ""}
        ax.errorbar(np.arange(len(centre)) + shift, centre, half, capsize=3, **look)
        told.append(f"{look['label']} {', '.join(f'{v:.0f}' for v in centre)}")
    names = [name.split("_")[0] for name in own[0].metrics["type_names"]]
    many = Counter(clients[0]["type"])
    ticks = [f"{name}\n({many[t]})" for t, name in enumerate(names)]
    ax.set(xlabel="type (its clients)", ylabel="test accuracy (%)", ylim=(0, 100))
    ax.set_xticks(range(len(names)), ticks)
    fig.legend(loc="outside lower center", ncols=2)
    return Picture(
        figure=fig,
        title=f"At published size, {how} (stored)",
        caption="PACS with the published clients and images, DIF 10, accuracy by type. Stored "
        f"laptop runs, not made on this machine. Bars: 95 % interval over {len(own)} seeds.",
        alt=f"Accuracy on the types {', '.join(names)} in percent: {'; '.join(told)}.",
    )


def lines(found: Found) -> list[str]:
    heads = "".join(f"{t:>8}" for t in COUNTS)
    values = "".join(f"{mean(accuracy(found, t), 0):>8}" for t in COUNTS)
    a, b = (mean(score(found, m, "avg")) for m in ("fedavg", "fedgcr"))
    c, d = (mean(worst(found, m)) for m in ("fedavg", "fedgcr"))
    return [
        f"{'groups asked for':25}{heads}",
        f"{'clients grouped right (%)':25}{values}",
        f"{'accuracy (%)':25}  mean over types: FedAvg {a}, FedGCR {b}",
        f"{'':25}  worst client:    FedAvg {c}, FedGCR {d}",
    ]


STOP = Stop(
    paper=fedgcr.PAPER,
    scale=SCALE,
    motto="finds the types of clients, and serves them alike",
    idea="Clients come in types. A small network turns each image into a type prompt h; the "
    "server groups clients by their mean h and gives groups that lag behind more weight.",
    shows="22 clients of five styles of digits, ten of the first style and one of the last. Rates "
    "and FedGCR's power were chosen on validation images, with as many trials for either method.",
    parts=(
        Part(
            name="table3",
            keep=lambda row: row["dif"] == 10,
            note="Here the clients of one run with T' = T are grouped with each T' at its end; "
            "print has a run for each.",
        ),
        Part(
            name="table1",
            keep=lambda row: row["dif"] == 10 and row.method in ("fedavg", "fedgcr"),
        ),
        Part(name="fig3", keep=lambda row: row["dataset"] == "digit_five", tabulated=False),
    ),
    claims=("gcr1", "gcr2", "gcr6", "gcr11"),
    grid=GRID,
    experiment=experiment,
    derived={"clustering_accuracy": grouped},
    effects=effects,
    pictures=pictures,
    lines=lines,
)
