"""FedGCR's Figure 3, Table 3 as a picture, and the pictures of our own studies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedbook.papers.draw import (
    MARKS,
    Drawn,
    by_method,
    data_name,
    heading,
    one_per_experiment,
    values_of,
)
from fedbook.papers.spec import Run, Spec


def type_maps(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """t-SNE of test images of every type: the frozen feature beside h, the prompt GC-Net makes of
    it.
    """
    from fedbook import plots

    shown = one_per_experiment(runs)
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
            said = f"{title}, purity {found[f'knn_purity_{name}']:.2f}"
            data = data_name([run], run.row["dataset"])
            ax.set(title=f"{data}\n{said}", xlabel="t-SNE 1", ylabel="t-SNE 2")
            ax.set(xticks=[], yticks=[])
            told.append(f"{data} {said}")
        line[0].legend(fontsize=6, markerscale=1.5)
    more = f", after {shown[0].experiment.rounds} rounds of FedGCR at DIF 10"
    fig.suptitle(heading(spec, runs, more), fontsize=8)
    what = "Maps of test images coloured by type; share of the ten nearest of the same type."
    return fig, f"{what} {'; '.join(told)}."


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
        ax.plot(x, paper, ls=":", mfc="none", label="as printed", **look)
        told.append(f"DIF {dif}: " + ", ".join(f"T'={t} {v:.0f}" for t, v in zip(x, ours)))
    ax.set(xlabel="clusters asked for, T'", ylabel="clustering accuracy (%)", ylim=(None, 102))
    ax.set_xticks(sorted({t for found in counts.values() for t in found}))
    ax.legend(fontsize=6)
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
    ax.axvline(0, color="0.3", lw=0.8)
    ax.tick_params(axis="y", labelsize=7)
    ax.set(xlabel="change of Avg (percentage points) when switched on")
    fig.suptitle(heading(spec, runs, ", DIF 10"), fontsize=8)
    what = "How Avg changes, in points, when one departure of the published code is switched on:"
    return fig, f"{what} {'; '.join(f'{q} {change[q]:+.1f}' for q in order)}."


def by_size(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Avg and sigma_type of the methods as images and rounds are multiplied."""
    from fedbook import plots

    fig, axes = plots.panels(2)
    said = []
    shown = (("avg_type", "Avg (%)"), ("sigma_type", "$\\sigma_{type}$ (points)"))
    for ax, (metric, label) in zip(axes, shown):
        for method, own in by_method(runs).items():
            found = {}
            for run in own:
                at = f"images x{run.row['times_images']}\nrounds x{run.row['times_rounds']}"
                found[at] = 100 * run.metrics[metric]
            look = plots.look(method)
            ax.plot(list(found), list(found.values()), **look)
            for at, value in found.items():
                said.append(f"{look['label']} {metric} {' '.join(at.split())}: {value:.1f}")
        ax.set(ylabel=label)
    axes[0].legend(fontsize=7)
    fig.suptitle(heading(spec, runs, ", DIF 10"), fontsize=8)
    return fig, "; ".join(said) + "."
