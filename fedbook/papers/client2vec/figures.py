"""Client2Vec's pictures: who is like whom by the index, and accuracy along what a figure varies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedbook.papers.draw import (
    Drawn,
    compared,
    data_name,
    heading,
    one_per_experiment,
    values_of,
)
from fedbook.papers.spec import Run, Spec, finished

SAID = {
    "omit_diversity_loss": "without $L_{div}$",
    "client2vec": "with $L_{div}$",
    "linear": "linear projection",
    "mlp": "MLP projection",
}
PARTS = {"both": "whole index", "feature": "feature index"}
STEPS = ("i", "ii", "i+ii", "i+ii+iii")


# -- heat maps -------------------------------------------------------------------------------------
def gap(cosines: np.ndarray, types: np.ndarray) -> tuple[float, float]:
    """Mean cosine of two clients of one domain, and of two domains."""
    same = types[:, None] == types
    other = ~np.eye(len(types), dtype=bool)
    return float(cosines[same & other].mean()), float(cosines[~same].mean())


def _named(run: Run) -> list[str]:
    """What a panel varies, in words."""
    row = run.row
    words = [row["strategy"].upper()]
    words += [SAID[row[k]] for k in ("variant", "projection") if row[k]]
    if row["epochs"]:
        words.append(f"{run.experiment.method['index_epochs']} epochs")
    return words


def index_maps(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Cosine similarity of all pairs of clients, ordered by domain, on one colour scale; of the
    first seed.
    """
    from fedbook import plots

    runs = [run for run in runs if run.seed == 0]
    maps: list[tuple[str, np.ndarray, np.ndarray, list[str]]] = []
    for run in one_per_experiment(runs):
        types = np.array(run.metrics["clients"]["type"])
        order = np.argsort(types, kind="stable")
        for part in PARTS if spec.name == "fig2" else ("feature",):
            cosines = np.array(run.metrics["log"]["similarity"][part])[np.ix_(order, order)]
            name = ", ".join([*_named(run), PARTS[part]])
            maps.append((name, cosines, types[order], run.metrics["type_names"]))
    low = min(0.0, *(float(cosines.min()) for _, cosines, _, _ in maps))
    columns = 2 if len(maps) > 1 else 1
    lines = -(-len(maps) // columns)
    told = []
    with plots.style() as plt:
        size = (3.9 * columns + 0.6, 3.7 * lines)
        fig, grid = plt.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
        axes = list(grid.flat)
        for ax in axes[len(maps) :]:
            ax.set_axis_off()
        picture = None
        for ax, (name, cosines, types, names) in zip(axes, maps):
            picture = ax.imshow(cosines, vmin=low, vmax=1, interpolation="nearest")
            mark_domains(ax, types, names)
            within, across = gap(cosines, types)
            ax.set(title=f"{name}\nwithin {within:.2f}, across {across:.2f}")
            means = f"mean within a domain {within:.2f}, across domains {across:.2f}"
            told.append(f"{name}: {means}".replace("$", ""))
        fig.colorbar(picture, ax=axes, shrink=0.8, label="cosine similarity")
        fig.suptitle(heading(spec, runs), fontsize=8)
    what = "Similarity of all pairs of clients, ordered by domain, one colour scale."
    return fig, f"{what} {'; '.join(told)}."


def mark_domains(ax: Any, types: np.ndarray, names: Sequence[str]) -> None:
    """White lines between domains, their names in the middle."""
    for edge in np.flatnonzero(np.diff(types)) + 0.5:
        ax.axhline(edge, color="white", lw=0.8)
        ax.axvline(edge, color="white", lw=0.8)
    middle = [float(np.flatnonzero(types == t).mean()) for t in np.unique(types)]
    labels = [names[t] for t in np.unique(types)]
    ax.set_xticks(middle, labels, rotation=30, ha="right", fontsize=6)
    ax.set_yticks(middle, labels, fontsize=6)
    ax.grid(False)


def domain_map(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Mean similarity of the clients of two domains."""
    from fedbook import plots

    found = [run.metrics for run in one_per_experiment(runs)]
    names = found[0]["type_names"]
    similar = [m["log"]["type_similarity"] for m in found]
    each = [[[s[a][b] for b in names] for a in names] for s in similar]
    values = np.array(each, dtype=float).mean(0)  # over seeds
    low = min(0.0, float(np.nanmin(values)))
    with plots.style() as plt:
        size = (1.6 + 0.6 * len(names), 1.2 + 0.6 * len(names))
        fig, ax = plt.subplots(figsize=size, layout="constrained")
        picture = ax.imshow(values, vmin=low, vmax=1)
        for i, j in np.ndindex(values.shape):
            colour = "white" if values[i, j] < (low + 1) / 2 else "black"
            ax.text(j, i, f"{values[i, j]:.2f}", ha="center", va="center", color=colour)
        ax.set_xticks(range(len(names)), names, rotation=30, ha="right")
        ax.set_yticks(range(len(names)), names)
        ax.grid(False)
        fig.colorbar(picture, ax=ax, shrink=0.8, label="mean cosine similarity")
        fig.suptitle(heading(spec, runs), fontsize=7)
    pairs = [(values[i, j], names[i], names[j]) for i in range(len(names)) for j in range(i)]
    said = "; ".join(f"{a} and {b} {v:.2f}" for v, a, b in sorted(pairs, key=lambda p: -p[0]))
    return fig, f"Mean similarity of feature indices between domains, from the most alike: {said}."


# -- points ----------------------------------------------------------------------------------------
def _lines(
    ax: Any,
    spec: Spec,
    runs: Sequence[Run],
    *,
    option: str,
    dataset: str,
    strategy: str,
    say: str = "{}",
    what: str = "",
) -> list[str]:
    """Accuracy of every base algorithm along the values of an option, beginning with the algorithm
    without an index.
    """
    from fedbook import plots

    found: dict[str, dict[Any, list[float]]] = {}
    for run in runs:
        if run.row["dataset"] != dataset or run.row["strategy"] not in ("none", strategy):
            continue
        at = "original" if run.row["strategy"] == "none" else run.row[option]
        values = values_of(spec, run)
        if at is not None and values:
            found.setdefault(run.row.method, {}).setdefault(at, []).extend(values)
    keys = {k for points in found.values() for k in points} - {"original"}
    order = ["original", *sorted(keys, key=lambda k: STEPS.index(k) if k in STEPS else k)]
    names = ["original", *(say.format(k) for k in order[1:])]
    plots.dodged(found, order, names, ax)
    ax.tick_params(axis="x", labelsize=7)
    title = f"{data_name(runs, dataset)}, {strategy.upper()}"
    ax.set(title=title + (f", {what}" if what else ""), ylabel="best mean accuracy (%)")
    told = []
    for method, points in found.items():
        means = ", ".join(f"{np.mean(points[k]):.1f}" for k in order if k in points)
        told.append(f"{plots.look(method)['label']} {means}")
    return [f"{title}, {' / '.join(names)}: {'; '.join(told)}"] if told else []


def _finish(
    fig: Any, axes: list[Any], spec: Spec, runs: Sequence[Run], told: list[str], what: str
) -> Drawn:
    """One legend for all panels, one axis for all panels of a dataset, a heading, a description."""
    from fedbook import plots

    for name in {ax.get_title().split(",")[0] for ax in axes}:
        own = [ax for ax in axes if ax.get_title().split(",")[0] == name]
        ends = [ax.get_ylim() for ax in own]
        for ax in own:
            ax.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
    plots.legend_outside(fig, axes)
    fig.suptitle(heading(spec, runs, "; bars: lowest to highest seed"), fontsize=8)
    return fig, f"{what} {'. '.join(told)}."


def ladder(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Table 1: one case study after the other on top of every base algorithm."""
    from fedbook import plots

    datasets = dict.fromkeys(r.row["dataset"] for r in finished(runs))
    pairs = [(s, d) for s in ("federated", "global") for d in datasets]
    known = {(run.row["strategy"], run.row["dataset"]) for run in finished(runs)}
    pairs = [pair for pair in pairs if pair in known] or pairs
    fig, axes = plots.panels(len(pairs))
    told = []
    for ax, (s, d) in zip(axes, pairs):
        told += _lines(ax, spec, runs, option="case_studies", dataset=d, strategy=s, say="+{}")
    what = "Accuracy in percent as case studies are added, marker per algorithm."
    return _finish(fig, axes, spec=spec, runs=runs, told=told, what=what)


def sweeps(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Figure 5: the weight of (iii) and the temperature of (i)."""
    from fedbook import plots

    options = (("weight", "w={}", "weight w"), ("tau", r"$\tau$={}", r"temperature $\tau$"))
    kinds = [(*o, s) for o in options for s in ("federated", "global")]
    fig, axes = plots.panels(len(kinds), 3.6, 3.0, columns=2)
    told = []
    for ax, (o, say, what, s) in zip(axes, kinds):
        where = {"dataset": "cifar10", "strategy": s}
        told += _lines(ax, spec, runs, option=o, say=say, what=what, **where)
    what = (
        "Accuracy in percent against the weight of the local regulariser and the sampling "
        "temperature, marker per algorithm."
    )
    return _finish(fig, axes, spec=spec, runs=runs, told=told, what=what)


def index_epochs(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Table 6 and Figure 4a-b: epochs of the index network."""
    from fedbook import plots

    fig, axes = plots.panels(2)
    told = []
    for ax, s in zip(axes, ("federated", "global")):
        told += _lines(ax, spec, runs, option="epochs", dataset="cifar10", strategy=s, say="E={}")
    what = "Accuracy in percent against index epochs, marker per algorithm."
    return _finish(fig, axes, spec=spec, runs=runs, told=told, what=what)


def aggregation_alone(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Figure 4c-d: (ii) alone against the original."""
    from fedbook import plots

    datasets = compared(runs, "dataset", "case_studies")
    runs = [run for run in runs if run.row["dataset"] in datasets]
    fig, axes = plots.panels(len(datasets))
    along = {"option": "case_studies", "strategy": "global", "say": "+{} alone"}
    told = []
    for ax, dataset in zip(axes, datasets):
        told += _lines(ax, spec, runs, dataset=dataset, **along)
    what = "Accuracy in percent with improved aggregation alone, marker per algorithm."
    return _finish(fig, axes, spec=spec, runs=runs, told=told, what=what)


def best_and_last(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """The steps of Table 1 by the best of all tests, and by the mean of the last five."""
    from fedbook import plots

    fig, axes = plots.panels(2)
    told = []
    order = ["none", *STEPS]
    scores = {"best of all tests, as printed": "accuracy", "mean of the last five": "last_five"}
    for ax, (title, metric) in zip(axes, scores.items()):
        found: dict[str, dict[str, list[float]]] = {}
        for run in finished(runs):
            values = spec.measured(replace(run.row, metric=metric), [run])
            at = found.setdefault(run.row.method, {})
            at.setdefault(run.row["case_studies"], []).extend(v for _, v in values)
        there = [s for s in order if any(s in points for points in found.values())]
        names = ["original" if s == "none" else f"+{s}" for s in there]
        plots.dodged(found, there, names, ax)
        ax.set(title=title, ylabel="mean accuracy of clients (%)")
        for method, points in found.items():
            means = ", ".join(f"{np.mean(points[s]):.1f}" for s in there if s in points)
            told.append(f"{title}, {plots.look(method)['label']}: {means}")
    what = "The same runs of CIFAR-10, GLOBAL index, scored in two ways."
    return _finish(fig, axes, spec=spec, runs=runs, told=told, what=what)


def local_training(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Accuracy of FedAvg with (iii) read in one way or another, a panel per learning rate."""
    from fedbook import plots

    rates = list(dict.fromkeys(run.row["lr"] for run in runs))
    names = list(dict.fromkeys(run.row["change"] for run in runs))
    colour = [plots.BLACK if n.startswith("without") else plots.ORANGE for n in names]
    fig, axes = plots.panels(len(rates), 4.4, 3.4)
    told = []
    for ax, rate in zip(axes, rates):
        here = {run.row["change"]: run for run in runs if run.row["lr"] == rate}
        values = [(values_of(spec, here[n]) or [0.0])[0] for n in names]
        said = [_outcome(here[n], value) for n, value in zip(names, values)]
        ax.barh(range(len(names)), values, color=colour)
        for y, (value, text) in enumerate(zip(values, said)):
            ax.text(value + 0.5, y, text, va="center", fontsize=7)
        ax.set_axisbelow(True)
        ax.set(title=f"rate {rate:g}", xlabel="best accuracy on validation images (%)")
        ax.set_xlim(right=1.2 * max(*values, 1.0))
        ax.set_yticks(range(len(names)), names if ax is axes[0] else [])
        ax.invert_yaxis()
        told.append(f"Rate {rate:g}: " + "; ".join(f"{n}: {t}" for n, t in zip(names, said)))
    fig.suptitle(heading(spec, runs), fontsize=8)
    return fig, f"FedAvg with case study (iii) alone. {'. '.join(told)}."


def _outcome(run: Run, value: float) -> str:
    return "diverged" if run.diverged else f"{value:.1f}" if run.result else "not run"
