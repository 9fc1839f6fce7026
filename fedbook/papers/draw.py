"""From the runs behind a table or figure to a picture and its description; only what has been run
is drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fedbook.papers.spec import Run, Spec

Drawn = tuple[Any, str]
MARKS = "os^vDPX*"


def _panels(
    spec: Spec, runs: list[Run], draw: Callable[[Any, str, dict[str, list[Run]]], None]
) -> tuple[Any, str]:
    """One panel per setting, with the finished runs of each method in it; returns the figure and
    who is in it.
    """
    from fedbook import plots

    settings: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        if run.result is not None:
            settings.setdefault(run.row.setting, {}).setdefault(run.row.method, []).append(run)
    fig, axes = plots.panels(len(settings))
    for ax, (setting, methods) in zip(axes, settings.items()):
        draw(ax, setting, methods)
        if (
            ax is not axes[0]
            and set(methods) <= set(next(iter(settings.values())))
            and (legend := ax.get_legend())
        ):
            legend.remove()  # the first panel names them all
    scale = runs[0].experiment.scale if runs else ""
    used = ", ".join(dict.fromkeys(r.experiment.dataset["name"] for r in runs if r.result))
    note = "" if scale == "paper" else "; absolute values not comparable with print"
    fig.suptitle(f"{spec.id}, {scale} scale on {used}{note}", fontsize=8)
    seen = list(
        dict.fromkeys(plots.look(m)["label"] for methods in settings.values() for m in methods)
    )
    return (
        fig,
        f"{len(settings)} panels ({'; '.join(settings)}) with {', '.join(seen)}, {scale} scale "
        f"on {used}.",
    )


def _metric(run: Run) -> dict[str, Any]:
    assert run.result is not None
    return run.result["metrics"]


def _longest(runs: dict[str, list[Run]]) -> list[int]:
    return max((_metric(r)["rounds"] for rs in runs.values() for r in rs), key=len)


def learning_curves(spec: Spec, runs: list[Run]) -> Drawn:
    """Mean test accuracy of the clients over the rounds."""
    from fedbook import plots

    def draw(ax: Any, setting: str, methods: dict[str, list[Run]]) -> None:
        series = {m: [_metric(r)["curves"]["avg_client"] for r in rs] for m, rs in methods.items()}
        plots.curves(series, _longest(methods), "mean test accuracy of the clients", setting, ax)

    fig, who = _panels(spec, runs, draw)
    return fig, f"Learning curves, mean test accuracy against round: {who}"


def loss_curves(spec: Spec, runs: list[Run]) -> Drawn:
    """The highest training loss among the participants over the rounds."""
    from fedbook import plots

    def draw(ax: Any, setting: str, methods: dict[str, list[Run]]) -> None:
        series = {
            m: [_metric(r)["curves"]["train_loss_max"] for r in rs] for m, rs in methods.items()
        }
        plots.curves(series, _longest(methods), "highest training loss of a client", setting, ax)

    fig, who = _panels(spec, runs, draw)
    return fig, f"Highest training loss of a client against round: {who}"


def sorted_clients(spec: Spec, runs: list[Run]) -> Drawn:
    """Test accuracy of every client, from worst to best, averaged over seeds rank by rank."""
    from fedbook import plots

    def draw(ax: Any, setting: str, methods: dict[str, list[Run]]) -> None:
        series = {
            m: np.mean([np.sort(_metric(r)["clients"]["acc"]) for r in rs], axis=0)
            for m, rs in methods.items()
        }
        plots.sorted_scores(series, title=setting, ax=ax)

    fig, who = _panels(spec, runs, draw)
    return fig, f"Test accuracy of each client, sorted from worst to best: {who}"


def personal_scores(spec: Spec, runs: list[Run]) -> Drawn:
    """Personalisation T_p against generalisation T_r: a method that gives up neither lies top
    right.
    """
    from fedbook import plots

    def draw(ax: Any, setting: str, methods: dict[str, list[Run]]) -> None:
        local = {m: [_metric(r)["local"] for r in rs] for m, rs in methods.items()}
        series = {m: ([x["t_p"] for x in v], [x["t_r"] for x in v]) for m, v in local.items()}
        plots.points(
            series,
            "personalisation $T_p$ (macro-F1)",
            "generalisation $T_r$ (macro-F1)",
            setting,
            ax,
            True,
        )
        ax.set(xlim=(0, 1), ylim=(0, 1))

    fig, who = _panels(spec, runs, draw)
    return (
        fig,
        "Macro-F1 on the own test set (T_p) against the global test set (T_r), one marker per "
        f"seed: {who}",
    )


def global_against_worst(spec: Spec, runs: list[Run]) -> Drawn:
    """Accuracy over all clients against that of the worst one."""
    from fedbook import plots

    def draw(ax: Any, setting: str, methods: dict[str, list[Run]]) -> None:
        series = {
            m: ([_metric(r)["tail"] for r in rs], [_metric(r)["worst_client"] for r in rs])
            for m, rs in methods.items()
        }
        plots.points(series, "global accuracy", "worst client's accuracy", setting, ax)

    fig, who = _panels(spec, runs, draw)
    return fig, f"Accuracy over all clients against the worst client's, one marker per seed: {who}"


def type_maps(spec: Spec, runs: list[Run]) -> Drawn:
    """t-SNE of test images of every type: the frozen feature beside h, the prompt GC-Net makes of
    it.
    """
    from fedbook import plots

    shown = list({r.experiment.key: r for r in runs if r.result is not None}.values())
    with plots.style() as plt:
        fig, grid = plt.subplots(
            len(shown), 2, figsize=(8, 3.4 * len(shown)), squeeze=False, layout="constrained"
        )
    axes, told = list(grid.flat), []
    for i, run in enumerate(shown):
        m, data = _metric(run)["types"], run.experiment.dataset["name"]
        names = _metric(run)["type_names"]
        colours = plots.type_colours(len(names))
        for ax, name, title in zip(
            axes[2 * i :], ("frozen", "h"), ("frozen feature", "type prompt h")
        ):
            xy, kinds = np.array(m[f"map_{name}"]), np.array(m["type"])
            for t, label in enumerate(names):
                ax.scatter(
                    xy[kinds == t, 0],
                    xy[kinds == t, 1],
                    s=9,
                    color=colours[t],
                    marker=MARKS[t % len(MARKS)],
                    label=label,
                )
            ax.set(
                title=f"{data}: {title}, purity {m[f'knn_purity_{name}']:.2f}",
                xlabel="t-SNE 1",
                ylabel="t-SNE 2",
            )
            ax.set(xticks=[], yticks=[])
            told.append(f"{data} {title}: purity {m[f'knn_purity_{name}']:.2f}")
        axes[2 * i].legend(fontsize=6, markerscale=1.5)
    scale = shown[0].experiment.scale
    fig.suptitle(
        f"{spec.id}, {scale} scale, after {shown[0].experiment.rounds} rounds of FedGCR at DIF 10",
        fontsize=8,
    )
    return (
        fig,
        "Maps of test images coloured by type; share of the ten nearest of the same type. "
        + "; ".join(told)
        + ".",
    )


def clustering_by_count(spec: Spec, runs: list[Run]) -> Drawn:
    """Clustering accuracy against T', paper and ours."""
    from fedbook import plots

    counts: dict[int, dict[int, list[float]]] = {}
    for run in runs:
        for _, value in spec.measured(run.row, [run]):
            counts.setdefault(run.row["dif"], {}).setdefault(run.row["t_prime"], []).append(value)
    printed = {(r["dif"], r["t_prime"]): r.value or np.nan for r in spec.rows}
    fig, axes = plots.panels(1)
    for i, (dif, found) in enumerate(sorted(counts.items())):
        x, color = sorted(found), plots.type_colours(3)[i]
        ours, mark = [float(np.mean(found[t])) for t in x], MARKS[i]
        axes[0].plot(x, ours, color=color, marker=mark, label=f"ours, DIF {dif}")
        axes[0].plot(
            x,
            [printed[dif, t] for t in x],
            color=color,
            marker=mark,
            ls=":",
            mfc="none",
            label="as printed",
        )
    axes[0].set(xlabel="clusters asked for, T'", ylabel="clustering accuracy (%)", ylim=(None, 102))
    axes[0].set_xticks(sorted({t for found in counts.values() for t in found}))
    axes[0].legend(fontsize=6)
    e = next(r.experiment for r in runs if r.result)
    fig.suptitle(f"{spec.id}, {e.scale} scale on {e.dataset['name']}", fontsize=8)
    means = "; ".join(
        f"DIF {d}: " + ", ".join(f"T'={t} {np.mean(v):.0f}" for t, v in sorted(c.items()))
        for d, c in counts.items()
    )
    return (
        fig,
        f"Clustering accuracy in percent against the number of clusters, paper dotted: {means}.",
    )


def quirk_bars(spec: Spec, runs: list[Run]) -> Drawn:
    """How much Avg changes when one departure of the published code is switched on."""
    from fedbook import plots

    pairs: dict[str, dict[int, list[float]]] = {}
    for run in runs:
        for _, value in spec.measured(run.row, [run]):
            pairs.setdefault(run.row["quirk"], {}).setdefault(run.row["on"], []).append(value)
    change = {q: float(np.mean(v[1]) - np.mean(v[0])) for q, v in pairs.items() if set(v) == {0, 1}}
    order = sorted(change, key=change.__getitem__)
    methods = {r.row["quirk"]: r.row.method for r in runs}
    fig, axes = plots.panels(1)
    fig.set_size_inches(6.5, 0.22 * len(order) + 1.2)
    axes[0].barh(
        [q.replace("_", " ") for q in order],
        [change[q] for q in order],
        color=[plots.look(methods[q])["color"] for q in order],
    )
    axes[0].axvline(0, color="0.3", lw=0.8)
    axes[0].tick_params(axis="y", labelsize=7)
    axes[0].set(xlabel="change of Avg (percentage points) when switched on")
    e = next(r.experiment for r in runs if r.result)
    fig.suptitle(f"{spec.id}, {e.scale} scale on {e.dataset['name']}, DIF 10, one seed", fontsize=8)
    return (
        fig,
        "How Avg changes, in points, when one departure of the published code is switched on: "
        + "; ".join(f"{q} {change[q]:+.1f}" for q in order)
        + ".",
    )


def by_size(spec: Spec, runs: list[Run]) -> Drawn:
    """Avg and sigma_type of the methods as images and rounds are multiplied."""
    from fedbook import plots

    fig, axes = plots.panels(2)
    said = []
    for ax, metric, label in zip(
        axes, ("avg_type", "sigma_type"), ("Avg (%)", "$\\sigma_{type}$ (points)")
    ):
        found: dict[str, dict[str, float]] = {}
        for run in runs:
            if run.result is not None:
                at = f"images x{run.row['times_images']}\nrounds x{run.row['times_rounds']}"
                found.setdefault(run.row.method, {})[at] = 100 * _metric(run)[metric]
        for method, values in found.items():
            ax.plot(list(values), list(values.values()), **plots.look(method))
            said += [
                f"{plots.look(method)['label']} {metric} {' '.join(k.split())}: {v:.1f}"
                for k, v in values.items()
            ]
        ax.set(ylabel=label)
    axes[0].legend(fontsize=7)
    e = next(r.experiment for r in runs if r.result)
    fig.suptitle(f"{spec.id}, {e.scale} scale on {e.dataset['name']}, DIF 10, one seed", fontsize=8)
    return fig, "; ".join(said) + "."


def seen_and_unseen(spec: Spec, runs: list[Run]) -> Drawn:
    """Test accuracy of every client that trained and of every client that never did, with the
    pooled means.
    """
    from fedbook import plots

    found: dict[str, list[Run]] = {}
    for run in runs:
        if run.result is not None:
            found.setdefault(run.row.method, []).append(run)
    fig, (ax,) = plots.panels(1, width=5.2)
    said, rng = [], np.random.default_rng(0)
    for k, (method, own) in enumerate(found.items()):
        look = plots.look(method)
        for shift, name in ((-0.18, "trained"), (0.18, "never sampled")):
            new = name != "trained"
            acc = np.concatenate([_metric(r)["unseen" if new else "clients"]["acc"] for r in own])
            mean = np.mean(
                [
                    _metric(r)["unseen"]["avg_sample"] if new else _metric(r)["avg_sample"]
                    for r in own
                ]
            )
            at = k + shift + rng.uniform(-0.1, 0.1, len(acc))
            ax.plot(
                at, 100 * acc, "o" if not new else "D", ms=3, alpha=0.5, color=look["color"], mew=0
            )
            ax.plot([k + shift - 0.14, k + shift + 0.14], [100 * mean] * 2, color="black", lw=1.5)
            said.append(f"{look['label']} {name} {100 * mean:.1f}")
    ticks = [
        (k + d, n)
        for k in range(len(found))
        for d, n in ((-0.18, "trained"), (0.18, "never\nsampled"))
    ]
    ax.set_xticks([t for t, _ in ticks], [n for _, n in ticks], fontsize=7)
    for k, method in enumerate(found):
        ax.text(
            k,
            1.02,
            plots.look(method)["label"],
            ha="center",
            fontsize=8,
            transform=ax.get_xaxis_transform(),
        )
    ax.set(ylabel="test accuracy of a client (%)", ylim=(0, 100))
    e = next(r.experiment for r in runs if r.result)
    fig.suptitle(
        f"{spec.id}, {e.scale} scale on {e.dataset['name']}; bar: over all their test samples",
        fontsize=8,
    )
    return (
        fig,
        f"Test accuracy of each client, {e.unseen} of them held out; pooled means: "
        + "; ".join(said)
        + ".",
    )


def by_prompt_rate(spec: Spec, runs: list[Run]) -> Drawn:
    """Accuracy, and how much the clients' prompts still agree after local training, against the
    prompts' rate.
    """
    from fedbook import plots

    done = [r for r in runs if r.result is not None]
    fig, axes = plots.panels(2)
    said = []
    for ax, label in zip(axes, ("accuracy (%)", "cosine of clients' prompts")):
        for method in dict.fromkeys(r.row.method for r in done):
            look = plots.look(method)
            found: dict[int, list[float]] = {}
            for r in done:
                if r.row.method == method:
                    similarity = _metric(r)["extra"]["update"].get(
                        "shared_prompt_similarity", np.nan
                    )
                    value = 100 * _metric(r)["tail"] if ax is axes[0] else similarity
                    found.setdefault(r.row["times_prompt_lr"], []).append(value)
            means = [float(np.mean(v)) for v in found.values()]
            ax.errorbar(
                list(found), means, [float(np.std(v)) for v in found.values()], capsize=2, **look
            )
            said += [f"{look['label']} {label} at {t} times: {m:.2f}" for t, m in zip(found, means)]
        ax.set(xscale="log", xlabel="learning rate of the prompts / of the head", ylabel=label)
        ax.set_xticks(sorted({r.row["times_prompt_lr"] for r in done}), minor=False)
        ax.xaxis.set_major_formatter("{x:g}")
    axes[0].legend(fontsize=7)
    e = done[0].experiment
    fig.suptitle(
        f"{spec.id}, {e.scale} scale on {e.dataset['name']}; bars: std over seeds", fontsize=8
    )
    return fig, "; ".join(said) + "."
