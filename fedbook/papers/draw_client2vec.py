"""Client2Vec's pictures: who is like whom by the index, and accuracy along what a figure varies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedbook.papers.draw import Drawn, _metric

if TYPE_CHECKING:
    from fedbook.papers.spec import Run, Spec

SAID = {
    "omit_diversity_loss": "without $L_{div}$",
    "client2vec": "with $L_{div}$",
    "linear": "linear projection",
    "mlp": "MLP projection",
}
PARTS = {"both": "whole index", "feature": "feature index"}
STEPS = ("i", "ii", "i+ii", "i+ii+iii")


def _unique(runs: list[Run]) -> list[Run]:
    return list({r.experiment.key: r for r in runs if r.result is not None}.values())


def _title(spec: Spec, runs: list[Run]) -> str:
    e = next(r.experiment for r in runs if r.result is not None)
    used = ", ".join(
        dict.fromkeys(r.experiment.dataset["name"] for r in runs if r.result is not None)
    )
    note = "" if e.scale == "paper" else "; absolute values not comparable with print"
    return f"{spec.id}, {e.scale} scale on {used}{note}"


# -- heat maps -------------------------------------------------------------------------------------
def gap(cosines: np.ndarray, types: np.ndarray) -> tuple[float, float]:
    """Mean cosine of two clients of one domain, and of two domains."""
    same, other = types[:, None] == types, ~np.eye(len(types), dtype=bool)
    return float(cosines[same & other].mean()), float(cosines[~same].mean())


def index_maps(spec: Spec, runs: list[Run]) -> Drawn:
    """Cosine similarity of all pairs of clients, ordered by domain, on one colour scale."""
    from fedbook import plots

    maps: list[tuple[str, np.ndarray, np.ndarray, list[str]]] = []
    for run in _unique(runs):
        m, row = _metric(run), run.row
        types = np.array(m["clients"]["type"])
        order = np.argsort(types, kind="stable")
        named = [row["strategy"].upper()] + [
            SAID[row[k]] for k in ("variant", "projection") if row[k]
        ]
        named += [f"{run.experiment.method['index_epochs']} epochs"] if row["epochs"] else []
        for part in PARTS if spec.name == "fig2" else ("feature",):
            cosines = np.array(m["extra"]["sample"]["similarity"][part])[np.ix_(order, order)]
            maps.append((", ".join([*named, PARTS[part]]), cosines, types[order], m["type_names"]))
    low = min(0.0, *(float(c.min()) for _, c, _, _ in maps))
    columns = 2 if len(maps) > 1 else 1
    lines = -(-len(maps) // columns)
    with plots.style() as plt:
        fig, grid = plt.subplots(
            lines,
            columns,
            figsize=(3.9 * columns + 0.6, 3.7 * lines),
            squeeze=False,
            layout="constrained",
        )
        axes, told, picture = list(grid.flat), [], None
        for ax in axes[len(maps) :]:
            ax.set_axis_off()
        for ax, (name, cosines, types, names) in zip(axes, maps):
            picture = ax.imshow(cosines, vmin=low, vmax=1, interpolation="nearest")
            within, across = gap(cosines, types)
            edges = np.flatnonzero(np.diff(types)) + 0.5
            for edge in edges:
                ax.axhline(edge, color="white", lw=0.8)
                ax.axvline(edge, color="white", lw=0.8)
            middle = [float(np.flatnonzero(types == t).mean()) for t in np.unique(types)]
            labels = [names[t] for t in np.unique(types)]
            ax.set_xticks(middle, labels, rotation=30, ha="right", fontsize=6)
            ax.set_yticks(middle, labels, fontsize=6)
            ax.set(title=f"{name}\nwithin {within:.2f}, across {across:.2f}")
            ax.grid(False)
            told.append(
                f"{name}: mean within a domain {within:.2f}, across domains {across:.2f}".replace(
                    "$", ""
                )
            )
        fig.colorbar(picture, ax=axes, shrink=0.8, label="cosine similarity")
        fig.suptitle(_title(spec, runs), fontsize=8)
    return (
        fig,
        "Similarity of all pairs of clients, ordered by domain, one colour scale. "
        + "; ".join(told)
        + ".",
    )


def domain_map(spec: Spec, runs: list[Run]) -> Drawn:
    """Mean similarity of the clients of two domains."""
    from fedbook import plots

    run = _unique(runs)[0]
    m = _metric(run)
    names, found = m["type_names"], m["extra"]["sample"]["type_similarity"]
    values = np.array(
        [[np.nan if found[a][b] is None else found[a][b] for b in names] for a in names]
    )
    low = min(0.0, float(np.nanmin(values)))
    with plots.style() as plt:
        fig, ax = plt.subplots(
            figsize=(1.6 + 0.6 * len(names), 1.2 + 0.6 * len(names)), layout="constrained"
        )
        picture = ax.imshow(values, vmin=low, vmax=1)
        for i, j in np.ndindex(values.shape):
            dark = values[i, j] < (low + 1) / 2
            ax.text(
                j,
                i,
                f"{values[i, j]:.2f}",
                ha="center",
                va="center",
                color="white" if dark else "black",
            )
        ax.set_xticks(range(len(names)), names, rotation=30, ha="right")
        ax.set_yticks(range(len(names)), names)
        ax.grid(False)
        fig.colorbar(picture, ax=ax, shrink=0.8, label="mean cosine similarity")
        fig.suptitle(_title(spec, runs), fontsize=7)
    pairs = [(names[i], names[j], values[i, j]) for i in range(len(names)) for j in range(i)]
    said = "; ".join(f"{a} and {b} {v:.2f}" for a, b, v in sorted(pairs, key=lambda p: -p[2]))
    return fig, f"Mean similarity of feature indices between domains, from the most alike: {said}."


# -- lines -----------------------------------------------------------------------------------------
def _lines(
    ax: Any, spec: Spec, runs: list[Run], option: str, dataset: str, strategy: str, say: str = "{}"
) -> list[str]:
    """Accuracy of every base algorithm along the values of an option, beginning with the algorithm
    without an index.
    """
    from fedbook import plots

    found: dict[str, dict[Any, list[float]]] = {}
    for run in runs:
        if run.row["dataset"] == dataset and run.row["strategy"] in ("none", strategy):
            at = "original" if run.row["strategy"] == "none" else run.row[option]
            for _, value in spec.measured(run.row, [run]) if at is not None else ():
                found.setdefault(run.row.method, {}).setdefault(at, []).append(value)
    keys = {k for points in found.values() for k in points} - {"original"}
    order = ["original", *sorted(keys, key=lambda k: STEPS.index(k) if k in STEPS else k)]
    told = []
    for method, points in found.items():
        x = [i for i, k in enumerate(order) if k in points]
        values = [points[order[i]] for i in x]
        mean, at = [float(np.mean(v)) for v in values], plots.look(method)
        ax.plot(x, mean, **at)
        if max(map(len, values)) > 1:
            ends = [min(v) for v in values], [max(v) for v in values]
            ax.fill_between(x, *ends, color=at["color"], alpha=0.12, linewidth=0)
        told.append(f"{at['label']} " + ", ".join(f"{v:.1f}" for v in mean))
    names = [say.format(k) if k != "original" else "original" for k in order]
    ax.set_xticks(range(len(order)), names, fontsize=7)
    ax.set(title=f"{dataset}, {strategy.upper()}", ylabel="best mean accuracy (%)")
    return [f"{dataset} {strategy}, {' / '.join(names)}: {'; '.join(told)}"] if told else []


def _finish(
    fig: Any, axes: list[Any], spec: Spec, runs: list[Run], told: list[str], what: str
) -> Drawn:
    shown: dict[str, Any] = {}
    for ax in axes:
        handles, labels = ax.get_legend_handles_labels()
        shown |= dict(zip(labels, handles))
    axes[0].legend(shown.values(), shown.keys(), fontsize=6)
    fig.suptitle(_title(spec, runs), fontsize=8)
    return fig, f"{what} {'. '.join(told)}."


def _datasets(runs: list[Run]) -> list[str]:
    return list(dict.fromkeys(r.row["dataset"] for r in runs if r.result is not None))


def ladder(spec: Spec, runs: list[Run]) -> Drawn:
    """Table 1: one case study after the other on top of every base algorithm."""
    from fedbook import plots

    pairs = [(d, s) for s in ("federated", "global") for d in _datasets(runs)]
    fig, axes = plots.panels(len(pairs))
    told = [
        t
        for ax, (d, s) in zip(axes, pairs)
        for t in _lines(ax, spec, runs, "case_studies", d, s, "+{}")
    ]
    return _finish(
        fig,
        axes,
        spec,
        runs,
        told,
        "Accuracy in percent as case studies are added, line per algorithm.",
    )


def sweeps(spec: Spec, runs: list[Run]) -> Drawn:
    """Figure 5: the weight of (iii) and the temperature of (i)."""
    from fedbook import plots

    kinds = [
        (o, say, s)
        for o, say in (("weight", "w={}"), ("tau", r"$\tau$={}"))
        for s in ("federated", "global")
    ]
    fig, axes = plots.panels(len(kinds), 3.6, 3.0)
    told = [
        t
        for ax, (o, say, s) in zip(axes, kinds)
        for t in _lines(ax, spec, runs, o, "cifar10", s, say)
    ]
    return _finish(
        fig,
        axes,
        spec,
        runs,
        told,
        "Accuracy in percent against the weight of the local regulariser "
        "and the sampling temperature, line per algorithm.",
    )


def epochs_and_aggregation(spec: Spec, runs: list[Run]) -> Drawn:
    """Figure 4: epochs of the index network (a, b), and (ii) alone against the original (c, d)."""
    from fedbook import plots

    rest = [r for r in runs if r.row["case_studies"] in ("none", "ii")]
    fig, axes = plots.panels(2 + len(_datasets(rest)))
    told = []
    for ax, strategy in zip(axes, ("federated", "global")):
        told += _lines(ax, spec, runs, "epochs", "cifar10", strategy, "E={}")
    for ax, dataset in zip(axes[2:], _datasets(rest)):
        told += _lines(ax, spec, rest, "case_studies", dataset, "global", "+{} alone")
    return _finish(
        fig,
        axes,
        spec,
        runs,
        told,
        "Accuracy in percent against index epochs, and with improved "
        "aggregation alone, line per algorithm.",
    )


def local_training(spec: Spec, runs: list[Run]) -> Drawn:
    """Accuracy of FedAvg with (iii) changed in one thing at a time."""
    from fedbook import plots

    found: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        if run.result is not None:
            here = found.setdefault(run.experiment.dataset["name"], {})
            here.setdefault(run.row["change"], []).append(100 * _metric(run)["best"])
    fig, axes = plots.panels(len(found))
    told = []
    for ax, (dataset, changes) in zip(axes, found.items()):
        names, values = list(changes)[::-1], list(changes.values())[::-1]
        means, spread = [float(np.mean(v)) for v in values], [float(np.std(v)) for v in values]
        colour = [plots.BLACK if n.startswith("without") else plots.ORANGE for n in names]
        ax.barh(range(len(names)), means, xerr=spread, color=colour)
        ax.set_yticks(range(len(names)), names)
        ax.set(title=dataset, xlabel="best accuracy (%)")
        told += [f"{dataset}, {n}: {m:.1f}" for n, m in zip(names[::-1], means[::-1])]
    fig.suptitle(_title(spec, runs), fontsize=8)
    return fig, "FedAvg with case study (iii) alone. " + "; ".join(told) + "."
