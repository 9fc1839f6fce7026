"""FedGCR's Figure 3, Table 3 as a picture, and the pictures of our own studies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from fedbook.papers.draw import (
    MARKS,
    Drawn,
    by_method,
    by_setting,
    compared,
    data_name,
    heading,
    one_per_experiment,
    shown_in,
    values_of,
)
from fedbook.papers.spec import Run, Spec, finished


def type_maps(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """t-SNE of test images of every type, of the first seed: the frozen feature beside h, the
    prompt GC-Net makes of it. Purities are means over seeds.
    """
    from fedbook import plots

    by_data: dict[str, list[Run]] = {}
    for run in one_per_experiment(runs):
        by_data.setdefault(run.row["dataset"], []).append(run)
    shown = [own[0] for own in by_data.values()]
    with plots.style() as plt:
        size = (8, 3.4 * len(shown))
        fig, grid = plt.subplots(len(shown), 2, figsize=size, squeeze=False, layout="constrained")
    told = []
    for line, run in zip(grid, shown):
        found = run.metrics["types"]
        kinds = np.array(found["type"])
        names = run.metrics["type_names"]
        colours = plots.type_colours(len(names))
        for ax, name, title in zip(line, ("frozen", "h"), ("frozen feature", "type prompt h")):
            xy = np.array(found[f"map_{name}"])
            for t, label in enumerate(names):
                look = {"s": 9, "color": colours[t], "marker": MARKS[t % len(MARKS)]}
                ax.scatter(*xy[kinds == t].T, label=label, **look)
            own = [r.metrics["types"][f"knn_purity_{name}"] for r in by_data[run.row["dataset"]]]
            said = f"{title}, purity {np.mean(own):.2f}"
            data = data_name([run], run.row["dataset"])
            ax.set(title=f"{data}\n{said}", xlabel="t-SNE 1", ylabel="t-SNE 2")
            ax.set(xticks=[], yticks=[])
            told.append(f"{data} {said}")
        plots.beside(line[-1])
    more = ", FedGCR at DIF 10; maps of the first seed, purities of all"
    fig.suptitle(heading(spec, runs, more), fontsize=8)
    what = "Maps of test images coloured by type; share of the ten nearest of the same type."
    return fig, f"{what} {'; '.join(told)}."


def by_type(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Mean accuracy of the clients of every type, from the types served worst to the best: who is
    left behind, and by which method.
    """
    from fedbook import plots

    settings = by_setting(spec, runs)
    fig, axes = plots.panels(len(settings), 5.4, 3.2, columns=1 if len(settings) == 1 else 2)
    told = []
    for ax, (setting, methods) in zip(axes, settings.items()):
        found: dict[str, dict[str, list[float]]] = {}
        for method, own in methods.items():
            for run in own:
                acc = np.array(run.metrics["clients"]["acc"], dtype=float)
                kinds = np.array(run.metrics["clients"]["type"])
                for t, name in enumerate(run.metrics["type_names"]):
                    value = float(acc[kinds == t].mean())
                    found.setdefault(method, {}).setdefault(name, []).append(value)
        names = list(next(iter(found.values())))
        level = {n: np.mean([np.mean(points[n]) for points in found.values()]) for n in names}
        order = sorted(names, key=level.__getitem__)
        plots.dodged(found, order, [n.replace("_", " ") for n in order], ax)
        ax.tick_params(axis="x", labelsize=7)
        ax.set(title=setting, ylabel="mean accuracy of its clients", ylim=(0, 1))
        worst = [f"{plots.look(m)['label']} {np.mean(p[order[0]]):.2f}" for m, p in found.items()]
        told.append(f"{setting}, {order[0]}: {', '.join(worst)}")
    plots.legend_outside(fig, axes)
    more = "; bars: lowest to highest seed"
    fig.suptitle(heading(spec, shown_in(settings), more), fontsize=8)
    what = "Mean accuracy of the clients of each type, marker per method; at the type served"
    return fig, f"{what} worst: {'; '.join(told)}."


def clustering_by_count(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Clustering accuracy against T', paper and ours."""
    from fedbook import plots

    counts: dict[int, dict[int, list[float]]] = {}
    for run in runs:
        at = counts.setdefault(run.row["dif"], {}).setdefault(run.row["t_prime"], [])
        at += values_of(spec, run)
    printed = {(r["dif"], r["t_prime"]): r.value for r in spec.rows}
    fig, (ax,) = plots.panels(1)
    told = []
    for i, (dif, found) in enumerate(sorted(counts.items())):
        x = [t for t in sorted(found) if found[t]]
        ours = [float(np.mean(found[t])) for t in x]
        look: dict[str, Any] = {"color": plots.type_colours(3)[i], "marker": MARKS[i]}
        ax.plot(x, ours, label=f"ours, DIF {dif}", **look)
        paper = [printed[dif, t] or np.nan for t in x]
        ax.plot(x, paper, ls=":", mfc="none", label=f"as printed, DIF {dif}", **look)
        told.append(f"DIF {dif}: " + ", ".join(f"T'={t} {v:.0f}" for t, v in zip(x, ours)))
    ax.set(xlabel="clusters asked for, T'", ylabel="clustering accuracy (%)", ylim=(0, 102))
    ax.set_xticks(sorted({t for found in counts.values() for t in found}))
    plots.legend_outside(fig, [ax])
    fig.suptitle(heading(spec, runs), fontsize=8)
    what = "Clustering accuracy in percent against the number of clusters, paper dotted:"
    return fig, f"{what} {'; '.join(told)}."


def quirk_bars(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """How much Avg changes when one departure of the published code is switched on."""
    from fedbook import plots

    pairs: dict[str, dict[int, list[float]]] = {}
    methods = {}
    for run in runs:
        methods[run.row["quirk"]] = run.row.method
        values = values_of(spec, run)
        if values:
            pairs.setdefault(run.row["quirk"], {}).setdefault(run.row["on"], []).extend(values)
    both = {quirk: sides for quirk, sides in pairs.items() if len(sides) == 2}
    change = {quirk: float(np.mean(v[1]) - np.mean(v[0])) for quirk, v in both.items()}
    order = sorted(change, key=change.__getitem__)
    fig, (ax,) = plots.panels(1)
    fig.set_size_inches(6.5, 0.22 * len(order) + 1.2)
    colours = [plots.look(methods[q])["color"] for q in order]
    ax.barh([q.replace("_", " ") for q in order], [change[q] for q in order], color=colours)
    for method in dict.fromkeys(methods[q] for q in order):
        look = plots.look(method)
        ax.bar(0, 0, color=look["color"], label=f"of {look['label']}")
    plots.legend_outside(fig, [ax])
    ax.axvline(0, color="0.3", lw=0.8)
    ax.tick_params(axis="y", labelsize=7)
    ax.set(xlabel="change of Avg (percentage points) when switched on")
    fig.suptitle(heading(spec, runs, ", DIF 10"), fontsize=8)
    what = "How Avg changes, in points, when one departure of the published code is switched on:"
    return fig, f"{what} {'; '.join(f'{q} {change[q]:+.1f}' for q in order)}."


def validation_curves(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Mean accuracy over clients on validation images, round by round, one panel per dataset."""
    from fedbook import plots

    done = finished(runs)
    datasets = list(dict.fromkeys(run.row["dataset"] for run in done))
    fig, axes = plots.panels(len(datasets), 3.4, 2.8)
    told = []
    for ax, dataset in zip(axes, datasets):
        here = [run for run in done if run.row["dataset"] == dataset]
        title = data_name(here, dataset)
        for method, own in by_method(here).items():
            look = plots.look(method)
            for run in own:
                curve = run.metrics["curves"]["avg_client"]
                shown = look if run is own[0] else {**look, "label": None}
                ax.plot(run.metrics["rounds"], curve, **shown)
            told.append(f"{title}, {look['label']} {', '.join(f'{v:.2f}' for v in curve)}")
        ax.set(title=title, xlabel="round", ylabel="validation accuracy")
    plots.legend_outside(fig, axes)
    fig.suptitle(heading(spec, runs, ", DIF 10"), fontsize=8)
    return fig, f"Accuracy every {run.experiment.evaluate_every} rounds. {'; '.join(told)}."


def protocols_side_by_side(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Avg and sigma_type of every method under each protocol, one panel per dataset and score."""
    from fedbook import plots

    names = {"printed": "one rate for all", "published": "authors' departures", "tuned": "tuned"}
    datasets = compared(runs, "dataset", "protocol")
    runs = [run for run in runs if run.row["dataset"] in datasets]
    scores = (("avg_type", "Avg (%)"), ("sigma_type", "$\\sigma_{type}$ (points)"))
    fig, axes = plots.panels(2 * len(datasets), 5.4, 3.2, columns=2)
    told = []
    for ax, (dataset, (metric, label)) in zip(axes, product(datasets, scores)):
        here = [run for run in finished(runs) if run.row["dataset"] == dataset]
        found: dict[str, dict[str, list[float]]] = {}
        for method, own in by_method(here).items():
            for run in own:
                value = 100 * run.metrics[metric]
                found.setdefault(method, {}).setdefault(run.row["protocol"], []).append(value)
        shown = [p for p in names if any(p in points for points in found.values())]
        plots.dodged(found, shown, [names[p] for p in shown], ax)
        ax.set(ylabel=label, title=data_name(here, dataset))
        for method, points in found.items():
            for protocol, values in points.items():
                name = plots.look(method)["label"]
                told.append(f"{dataset} {name} {protocol} {metric} {np.mean(values):.1f}")
    plots.legend_outside(fig, axes)
    fig.suptitle(heading(spec, runs, ", DIF 10; bars: lowest to highest seed"), fontsize=8)
    what = "Avg and sigma_type of every method under each protocol."
    return fig, f"{what} {'; '.join(told)}."


def grouped_on(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Every client's accuracy with groups made of h, of the frozen feature, or given as the true
    types, in one panel per dataset.
    """
    from matplotlib.ticker import MaxNLocator

    from fedbook import plots

    sides = {
        "h": ("groups by h", plots.RED, "*", -0.25),
        "frozen": ("by the frozen feature", "black", "o", 0.0),
        "types": ("by the true types", plots.BLUE, "s", 0.25),
    }
    datasets = compared(runs, "dataset", "cluster_on")
    runs = [run for run in runs if run.row["dataset"] in datasets]
    fig, axes = plots.panels(len(datasets))
    told = []
    for ax, dataset in zip(axes, datasets):
        title = data_name(runs, dataset)
        for on, (label, colour, marker, shift) in sides.items():
            own = [
                r
                for r in finished(runs)
                if (r.row["dataset"], r.row["cluster_on"]) == (dataset, on)
            ]
            if not own:
                continue
            ranked = np.array([np.sort(r.metrics["clients"]["acc"]) for r in own])
            x = np.arange(1, ranked.shape[1] + 1) + shift
            centre = ranked.mean(0)
            reach = np.array([centre - ranked.min(0), ranked.max(0) - centre])
            ax.errorbar(x, centre, reach, color=colour, marker=marker, linestyle="", label=label)
            ends = f"worst {ranked.mean(0)[0]:.2f}, mean {ranked.mean():.2f}"
            told.append(f"{title}, {label}: {ends}")
        ax.set(
            title=title, xlabel="client, from worst to best", ylabel="test accuracy", ylim=(0, 1)
        )
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    plots.legend_outside(fig, axes)
    fig.suptitle(heading(spec, runs, "; bars: lowest to highest seed"), fontsize=8)
    return fig, f"Test accuracy of each client, sorted from worst to best. {'; '.join(told)}."
