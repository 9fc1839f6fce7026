"""Every picture. Okabe-Ito colours; colour, marker and line style are fixed per method in every
figure of the book, and the methods of one paper's figures all have colours of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbook.federation import Federation

OKABE_ITO = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PINK = OKABE_ITO
GREY = "#808080"  # yellow cannot be seen on white
SOLID = "-"
DASH = "--"
DOT = ":"
DASHDOT = "-."

# (label, colour, marker, line): the four papers' methods are solid stars, a line style marks a
# family of baselines
METHODS: dict[str, tuple[str, str, str, Any]] = {
    "fedavg": ("FedAvg", BLACK, "o", SOLID),
    "fedavgm": ("FedAvgM", ORANGE, "s", DASH),
    "feddyn": ("FedDyn", BLUE, "^", DASH),
    "moon": ("MOON", SKY, "v", DASH),
    "fedlc": ("FedLC", RED, "D", DASH),
    "fediir": ("FedIIR", PINK, "P", DASH),
    "fedprox": ("FedProx", SKY, "h", DASHDOT),
    "scaffold": ("SCAFFOLD", PINK, "d", DASHDOT),
    "fedbn": ("FedBN", GREY, "p", DASHDOT),
    "ditto": ("Ditto", GREEN, "H", DASHDOT),
    "fedadam": ("FedAdam", RED, "X", DASHDOT),
    "afl": ("AFL", SKY, "<", DOT),
    "q_ffl": ("q-FFL", GREEN, ">", DOT),
    "term": ("TERM", BLUE, "X", DOT),
    "harmofl": ("Harmo-FL", ORANGE, "^", DASHDOT),
    "fedsam": ("FedSAM", PINK, "v", DASHDOT),
    "fedmix": ("FedMix", GREY, "s", DASHDOT),
    "local": ("Local", GREY, "x", DOT),
    "per_fedavg": ("per-FedAvg", ORANGE, "D", DOT),
    "pfedme": ("pFedMe", PINK, "p", DOT),
    "lg_fedavg": ("LG-FedAvg", RED, "h", DASHDOT),
    "pt_fedavg": ("PT-FedAvg", BLACK, "d", DASHDOT),
    "pfedhn": ("pFedHN", PINK, "<", DASH),
    "fed_dualprompt": ("Fed-DualPrompt", BLUE, ">", DASHDOT),
    "fedgcr": ("FedGCR", RED, "*", SOLID),
    "client2vec": ("Client2Vec", GREEN, "*", SOLID),
    "grp_fed": ("GRP-FED", BLUE, "*", SOLID),
    "fgpt": ("FGPT", ORANGE, "*", SOLID),
    # variants of a method
    "fgpt_u": ("FGPT-U", RED, "8", DASH),
    "fgpt_random_key": ("FGPT, random keys", SKY, "1", DOT),
    "fgpt_fedmix": ("FGPT + FedMix", BLUE, "H", DASHDOT),
    "fgpt_resnet": ("FGPT-ResNet", GREEN, "2", DASHDOT),
    "fedgr_only": ("FedGR only", PINK, "3", DASH),
    "fedgc_only": ("FedGC only", GREEN, "4", DOT),
    "pt_fedavg_share": ("PT-FedAvg-share", GREY, "1", DOT),
}
STYLE: Any = {
    "figure.dpi": 110,
    "savefig.dpi": 200,
    "font.size": 9,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 5,
    "pdf.fonttype": 42,
    "svg.hashsalt": "fedbook",
    "image.cmap": "cividis",
}


@contextmanager
def style():
    """The book's look, for the figures drawn inside."""
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        yield plt


def look(method: str) -> dict[str, Any]:
    """The fixed label, colour, marker and line style of a method, as keywords for `Axes.plot`."""
    label, colour, marker, line = METHODS.get(method, (method, "#444444", ".", SOLID))
    return {"label": label, "color": colour, "marker": marker, "linestyle": line}


def type_colours(types: int) -> list[str]:
    """One colour per type; beyond eight, steps of cividis."""
    if types <= len(OKABE_ITO) - 1:
        return [BLUE, ORANGE, GREEN, PINK, SKY, RED, BLACK][:types]
    import matplotlib

    return [
        matplotlib.colors.to_hex(c)
        for c in matplotlib.colormaps["cividis"](np.linspace(0, 1, types))
    ]


def save(fig: Figure, name: str, alt: str, folder: str | Path | None = None) -> list[Path]:
    """Write NAME.png and NAME.pdf, and the description for those who cannot see it as NAME.txt and
    inside the PNG.
    """
    from fedbook.errors import FedbookError
    from fedbook.files import write_atomically
    from fedbook.results import default_folder

    folder = Path(folder) if folder is not None else default_folder("figures")
    kinds = {
        ".png": {"Description": alt, "Software": None},
        ".pdf": {"Subject": alt, "CreationDate": None},
    }
    paths = []
    try:
        for suffix, meta in kinds.items():
            paths.append(folder / (name + suffix))
            with write_atomically(paths[-1]) as part:
                dpi = STYLE["savefig.dpi"]
                fig.savefig(part, metadata=meta, dpi=dpi, bbox_inches="tight")
        with write_atomically(folder / f"{name}.txt") as part:
            part.write_text(alt + "\n", encoding="utf-8")
    except OSError as error:
        raise FedbookError(
            f"cannot write figures in {folder}: {error.strerror or error}",
            "choose another --figures DIR",
        ) from None
    return paths


def literal(name: str) -> str:
    """A name as it is: a dollar sign in it begins no formula."""
    return name.replace("$", r"\$")


def partition(federation: Federation, ax: Axes | None = None) -> Axes:
    """Clients x classes: a dot's area is the number of training samples, its colour the client's
    type.
    """
    with style() as plt:
        clients = len(federation)
        classes = federation.num_classes
        if ax is None:
            _, ax = plt.subplots(
                figsize=(min(12, 2.5 + 0.28 * clients), min(8, 1.6 + 0.24 * classes))
            )
        counts = np.stack([federation.class_counts(c).cpu().numpy() for c in federation.clients])
        colours = type_colours(federation.num_types)
        area = min(260.0, 9000.0 / max(clients, classes)) / max(1, counts.max())
        for t, name in enumerate(federation.type_names):
            mine = [i for i, c in enumerate(federation.clients) if c.type == t]
            if mine:
                x, y = np.meshgrid(mine, range(classes), indexing="ij")
                ax.scatter(
                    x,
                    y,
                    s=counts[mine] * area,
                    color=colours[t],
                    edgecolor="white",
                    linewidth=0.3,
                    label=literal(name),
                )
        ax.set(
            xlabel="client", ylabel="class", xlim=(-0.7, clients - 0.3), ylim=(-0.7, classes - 0.3)
        )
        if clients <= 40:
            ax.set_xticks(range(clients), [str(c.id) for c in federation.clients], fontsize=7)
        if classes <= 30:
            ax.set_yticks(range(classes), [literal(c) for c in federation.class_names])
        ax.grid(False)
        if federation.num_types > 1:
            legend = ax.legend(title="type", loc="center left", bbox_to_anchor=(1.01, 0.5))
            for handle in legend.legend_handles:
                handle.set_sizes([40])  # type: ignore[union-attr]
    return ax


def curves(
    series: Mapping[str, Sequence[Sequence[float]]],
    rounds: Sequence[int],
    ylabel: str = "accuracy",
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """A line per method over rounds: the mean over seeds, with a band from the lowest to the
    highest seed; of more than four methods, whose bands would hide each other, a bar at the end.
    """
    with style() as plt:
        if ax is None:
            _, ax = plt.subplots(figsize=(4.6, 3.2))
        step = 0.015 * (rounds[-1] - rounds[0])
        for k, (method, runs) in enumerate(series.items(), 1):
            values = np.asarray(runs, dtype=float)
            at = look(method)
            ax.plot(rounds, values.mean(0), markevery=max(1, len(rounds) // 8), **at)
            if len(values) > 1 and len(series) > 4:
                means, bars = over_seeds([values[:, -1].tolist()])
                ax.errorbar([rounds[-1] + k * step], means, bars, color=at["color"], fmt="none")
            elif len(values) > 1:
                ax.fill_between(
                    rounds, values.min(0), values.max(0), color=at["color"], alpha=0.15, linewidth=0
                )
        ax.set(xlabel="round", ylabel=ylabel, title=title)
        ax.locator_params(axis="x", integer=True)
        beside(ax)
    return ax


def sorted_scores(
    series: Mapping[str, Sequence[float]],
    ylabel: str = "test accuracy",
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Each method's clients from worst to best: a flat line is fair, a low left end leaves somebody
    behind.
    """
    with style() as plt:
        if ax is None:
            _, ax = plt.subplots(figsize=(4.6, 3.2))
        for method, values in series.items():
            v = np.sort(np.asarray(values, dtype=float))
            ax.plot(range(1, len(v) + 1), v, markevery=max(1, len(v) // 8), **look(method))
        ax.set(xlabel="client, from worst to best", ylabel=ylabel, title=title, ylim=(0, 1))
        ax.locator_params(axis="x", integer=True)
        beside(ax)
    return ax


def points(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    xlabel: str,
    ylabel: str,
    title: str = "",
    ax: Axes | None = None,
    diagonal: bool = False,
) -> Axes:
    """A cloud per method in a plane of two scores."""
    with style() as plt:
        if ax is None:
            _, ax = plt.subplots(figsize=(4.2, 3.6))
        if diagonal:
            ax.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, zorder=0)
        for method, (x, y) in series.items():
            at = look(method)
            size = 90 if at["marker"] == "*" else 40
            ax.scatter(
                x,
                y,
                s=size,
                color=at["color"],
                marker=at["marker"],
                label=at["label"],
                linewidths=0.8,
            )
        ax.set(xlabel=xlabel, ylabel=ylabel, title=title)
        beside(ax)
    return ax


def over_seeds(values: Sequence[Sequence[float]]) -> tuple[list[float], list[list[float]]]:
    """Means, and how far the lowest and the highest seed lie from each: what `errorbar` takes."""
    means = [float(np.mean(v)) for v in values]
    low = [max(0.0, m - min(v)) for m, v in zip(means, values)]
    high = [max(0.0, max(v) - m) for m, v in zip(means, values)]
    return means, [low, high]


def dodged(
    series: Mapping[str, Mapping[Any, Sequence[float]]],
    order: Sequence[Any],
    names: Sequence[str],
    ax: Axes,
) -> None:
    """Categories side by side, the methods of each a little apart: a marker at the mean over seeds,
    a bar from the lowest to the highest. Nothing joins them, since nothing lies between.
    """
    step = 0.7 / max(1, len(series))
    for k, (method, found) in enumerate(series.items()):
        known = [(i, found[at]) for i, at in enumerate(order) if at in found]
        x = [i + step * (k - (len(series) - 1) / 2) for i, _ in known]
        means, bars = over_seeds([v for _, v in known])
        marks = {name: v for name, v in look(method).items() if name != "linestyle"}
        marks["markersize"] = 9 if marks["marker"] == "*" else 5
        ax.errorbar(x, means, bars, linestyle="none", elinewidth=1.1, **marks)
    ax.set_xticks(range(len(order)), names)
    ax.set_xlim(-0.5, len(order) - 0.5)
    for edge in range(1, len(order)):
        ax.axvline(edge - 0.5, color="#DDDDDD", linewidth=0.6, zorder=0)
    ax.grid(False, axis="x")


def beside(ax: Axes) -> None:
    """A legend to the right of the axes, outside the data."""
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=7)


def mark_cut(ax: Axes) -> None:
    """Two strokes across the foot of a y-axis that does not begin at zero."""
    bottom, top = ax.get_ylim()
    if len(ax.get_yticks()) and 0 < bottom < top and ax.get_yscale() == "linear":
        for at in (0.015, 0.04):
            stroke: dict[str, Any] = {"transform": ax.transAxes, "clip_on": False, "zorder": 5}
            ax.plot([-0.015, 0.015], [at - 0.012, at + 0.012], color="black", lw=0.9, **stroke)


def legend_outside(fig: Figure, axes: Sequence[Axes], title: str = "") -> None:
    """One legend for all panels, below them: what each label looks like, once. Axes that do not
    begin at zero get a mark.
    """
    shown: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels()):
            shown.setdefault(label, handle)
        if (legend := ax.get_legend()) is not None:
            legend.remove()
        mark_cut(ax)
    if shown:
        columns = min(len(shown), max(2, int(fig.get_figwidth() / 1.25)))
        where: dict[str, Any] = {"loc": "outside lower center", "ncols": columns}
        fig.legend(shown.values(), shown.keys(), title=title or None, fontsize=7, **where)


def panels(
    count: int, width: float = 4.4, height: float = 3.2, columns: int = 3
) -> tuple[Figure, list[Axes]]:
    """A figure with that many axes side by side, at most `columns` in a row."""
    with style() as plt:
        columns = min(columns, max(1, count))
        lines = math.ceil(max(1, count) / columns)
        fig, axes = plt.subplots(
            lines,
            columns,
            figsize=(width * columns, height * lines),
            squeeze=False,
            layout="constrained",
        )
        flat = list(axes.ravel())
        for ax in flat[count:]:
            ax.set_axis_off()
    return fig, flat[:count]
