"""FGPT on five styles of digits: a prompt for everybody, and one per group of images."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np

from fedbook import plots
from fedbook.experiment import Experiment, load_dataset
from fedbook.papers import fgpt
from fedbook.papers.evidence import Cell, above
from fedbook.papers.fgpt import FIVE
from fedbook.papers.fgpt.scales import SGD, Clients
from fedbook.papers.paper import Scale
from fedbook.papers.rows import Row
from fedbook.papers.spec import Run
from fedbook.papers.tune import Grid
from fedbook.tour.stop import QUICK, SEEDS, Effect, Found, Part, Picture, Stop, interval, mean

USUAL = 5  # group prompts on Five-Dataset
SWEEP = (10, 20)  # more, of our own
SCALE = Scale(
    name=QUICK,
    rounds=6,
    evaluate_every=6,
    seeds=SEEDS,
    data={"five_dataset": {"name": "digits5_offline"}},
    solver={**SGD, "lr": 1e-1, "epochs": 2, "batch_size": 20},
    methods={"pt_fedavg": {"lr": 0.3}, "fgpt": {"lr": 0.1}},  # chosen by GRID
    own=Clients(
        backbone="hybrid",
        clients={"five_dataset": [4] * 5},
        participation={"five_dataset": 10},
        classes={},
        tail=1,
        sizes=[[40] * 4] * 5,
        limit=[10_000, 12],
    ),
)
GRID = Grid(
    on=(FIVE,),
    lr=(3e-2, 1e-1, 3e-1),
    more_lr=(),
    knobs={"pt_fedavg": None, "fgpt": None},
    score="avg_sample",
)


def experiment(row: Row, scale: Scale[Any], seed: int) -> Experiment | None:
    """The paper's, which also tells whom the group prompts serve."""
    e = fgpt.experiment(row, scale, seed)
    if e is None or row.method != "fgpt" or not row.metric:  # a trial of the grid needs no more
        return e
    return replace(e, measures=({"name": "served"},))


def more(groups: int) -> Row:
    """FGPT with another number of group prompts than the paper's."""
    where = {**FIVE, "num_groups": groups}
    return Row(settings=where, method="fgpt", metric="accuracy", unit="percent")


def score(found: Found, method: str, groups: int | None = None) -> Cell:
    return found.cell("table1", method, "accuracy", num_groups=groups)


def by_groups(found: Found) -> dict[int, Cell]:
    """FGPT's accuracy by its number of group prompts."""
    cells = {groups: score(found, "fgpt", groups) for groups in SWEEP}
    return dict(sorted((cells | {USUAL: score(found, "fgpt")}).items()))


def looked_into(found: Found) -> list[Run]:
    """The runs whose groups are shown, a seed each."""
    return [r for r in found.runs("table1") if r.row.fits(method="fgpt", num_groups=10)]


def effects(found: Found) -> list[Effect]:
    told = {}
    for name in ("type", "class"):
        values = {run.seed: run.metrics["served"][f"tells_{name}"] for run in looked_into(found)}
        told[name] = Cell(values)
    return [
        Effect(
            text="The groups follow the style of an image more than its digit (mutual information)",
            check=above("style", told["type"], told["class"]),
        ),
        Effect(
            text="FGPT is above PT-FedAvg, which has one prompt in place of the group's",
            check=above("lead", score(found, "fgpt"), score(found, "pt_fedavg")),
            unit="points",
            claims=("fgpt1",),
        ),
    ]


def pictures(found: Found) -> list[Picture]:
    return [gallery(found), whom(found), by_size(found)]


def gallery(found: Found) -> Picture:
    """The training images nearest to each key."""
    run = looked_into(found)[0]
    rows = run.metrics["served"]["images"]
    x = load_dataset(json.dumps(run.experiment.dataset)).x
    columns = max(map(len, rows))
    counts = np.array(run.metrics["served"]["counts"])
    names = run.metrics["type_names"]
    most = [f"{g + 1} {names[int(c.argmax())]}" for g, c in enumerate(counts.T) if c.any()]
    with plots.style() as plt:
        size = (4.4, 0.45 * len(rows))
        fig, grid = plt.subplots(len(rows), columns, figsize=size, squeeze=False)
        fig.subplots_adjust(left=0.08, right=1, bottom=0, top=1, hspace=0.1, wspace=0.1)
        for g, line in enumerate(grid):
            for ax in line:
                ax.set_axis_off()
            for ax, i in zip(line, rows[g]):
                ax.imshow(x[i].permute(1, 2, 0))
            fig.text(0.04, 1 - (g + 0.5) / len(rows), str(g + 1), ha="center", va="center")
    return Picture(
        figure=fig,
        title="The images a group prompt serves",
        caption="Each line: the training images nearest to the fixed key of one of "
        f"{len(rows)} groups among those that chose it, seed 0. Nobody told the keys of styles.",
        alt=f"{len(rows)} lines of small digit images, one line per group prompt. Most frequent "
        f"style of the images that chose it: {'; '.join(most)}.",
    )


def whom(found: Found) -> Picture:
    """Share of each style's training images that a group serves."""
    run = looked_into(found)[0]
    counts = np.array(run.metrics["served"]["counts"], dtype=float)
    names = run.metrics["type_names"]
    share = 100 * counts / counts.sum(1, keepdims=True)
    fig, (ax,) = plots.panels(1)
    shown = ax.imshow(share, aspect="auto", vmin=0)
    ax.set_yticks(range(len(names)), names)
    groups = [str(g + 1) for g in range(share.shape[1])]
    ax.set_xticks(range(len(groups)), groups)
    ax.set(xlabel="group prompt")
    ax.grid(False)
    fig.colorbar(shown, ax=ax, shrink=0.8, label="images of the style (%)")
    top = [
        f"{name} mostly by {int(row.argmax()) + 1} ({row.max():.0f} %)"
        for name, row in zip(names, share)
    ]
    return Picture(
        figure=fig,
        title="Who uses which group prompt",
        caption="Share of each style's training images that choose a group, seed 0. Clients of one "
        "style share prompts without knowing of each other.",
        alt=f"Heat map of styles by group prompts: {'; '.join(top)}.",
    )


def by_size(found: Found) -> Picture:
    """Accuracy against the numbers that a client sends."""
    fig, (ax,) = plots.panels(1)
    told = []
    shown = [("pt_fedavg", None), *(("fgpt", g) for g in by_groups(found))]
    for method, groups in shown:
        same = None if groups == USUAL else groups
        runs = [r for r in found.runs("table1") if r.row.fits(method=method)]
        runs = [r for r in runs if r.row["num_groups"] == same]
        size = runs[0].metrics["parameters"]["trainable"]
        centre, half = interval([100 * r.metrics["tail"] for r in runs])
        look = plots.look(method)
        first = groups in (None, min(by_groups(found)))
        keys = {"color": look["color"], "marker": look["marker"], "linestyle": ""}
        ax.errorbar(size, centre, half, capsize=3, label=look["label"] if first else None, **keys)
        name = look["label"] + (f", {groups} groups" if groups else "")
        if groups:
            ax.annotate(f"G = {groups}", (size, centre), (4, 6), textcoords="offset points")
        told.append(f"{name}: {size:,} numbers, {centre:.0f} %")
    ax.set(xlabel="numbers trained and sent by a client", ylabel="test accuracy (%)", ylim=(0, 100))
    ax.axhline(10, color="#bbbbbb", linewidth=0.8, label="chance")
    fig.legend(loc="outside lower center", ncols=3)
    total = found.runs("table1")[0].metrics["parameters"]["all"]
    return Picture(
        figure=fig,
        title="Accuracy against the prompts' size",
        caption=f"What travels are prompts and a head, of {total:,} numbers in the network. "
        f"Bars: 95 % interval over {found.stop.scale.seeds} seeds.",
        alt=f"Test accuracy against the numbers that are trained: {'; '.join(told)}.",
    )


def lines(found: Found) -> list[str]:
    cells = by_groups(found)
    run = found.runs("table1")[0]
    share = run.metrics["parameters"]["trainable"] / run.metrics["parameters"]["all"]
    return [
        f"{'group prompts':25}" + "".join(f"{g:>8}" for g in cells),
        f"{'FGPT, accuracy (%)':25}" + "".join(f"{mean(c):>8}" for c in cells.values()),
        f"{'PT-FedAvg':25}{mean(score(found, 'pt_fedavg')):>8}   sends {share:.1%} of the network",
    ]


STOP = Stop(
    paper=fgpt.PAPER,
    scale=SCALE,
    motto="a prompt for everybody, and one for each group of images",
    idea="The network stays frozen; clients train a few prompts. Besides those for everybody, "
    "each image gets the prompt of its group, chosen by fixed keys.",
    shows="20 clients, four of each of five styles of digits; 10 take part in a round.",
    parts=(
        Part(
            name="table1",
            keep=lambda row: (
                row["dataset"] == "five_dataset" and row.method in ("fgpt", "pt_fedavg")
            ),
            extra=tuple(
                Row(
                    settings={**FIVE, "num_groups": g},
                    method="fgpt",
                    metric="accuracy",
                    unit="percent",
                )
                for g in SWEEP
            ),
        ),
        Part(name="table2"),
    ),
    claims=("fgpt1", "fgpt9", "fgpt12"),
    grid=GRID,
    experiment=experiment,
    effects=effects,
    pictures=pictures,
    lines=lines,
)
