"""FGPT's Figures 2 and 3 and the pictures of our own studies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedbook.papers.draw import Drawn, Methods, by_method, compared, data_name, heading
from fedbook.papers.layout import in_words, used_values
from fedbook.papers.spec import Run, Spec, finished


def _parts(runs: Sequence[Run]) -> dict[str, dict[Any, Methods]]:
    """The methods by dataset and by s, the classes per client."""
    found: dict[str, dict[Any, list[Run]]] = {}
    for run in finished(runs):
        found.setdefault(run.row["dataset"], {}).setdefault(run.row["s"], []).append(run)
    return {d: {s: by_method(own) for s, own in parts.items()} for d, parts in found.items()}


def _classes(spec: Spec, runs: Sequence[Run], s: Any) -> str:
    return in_words("s", s, used_values(spec, finished(runs)))


def global_against_worst(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Figure 2: accuracy over all clients against that of the worst one. As in print, one panel per
    dataset; markers are filled where clients have more classes, open where they have fewer.
    """
    from fedbook import plots

    parts = _parts(runs)
    fig, axes = plots.panels(len(parts))
    told = []
    for ax, (dataset, settings) in zip(axes, parts.items()):
        title = data_name(runs, dataset)
        named: set[str] = set()
        for k, (s, methods) in enumerate(settings.items()):
            for method, own in methods.items():
                look = plots.look(method)
                x = [r.metrics["tail"] for r in own]
                y = [r.metrics["worst_client"] for r in own]
                face = "none" if k else look["color"]
                marks: dict[str, Any] = {"marker": look["marker"], "markeredgecolor": look["color"]}
                marks |= {"markerfacecolor": face, "linestyle": "none", "clip_on": False}
                label = None if method in named else look["label"]
                named.add(method)
                ax.plot(x, y, markersize=7, label=label, **marks)
                where = "" if s is None else f", {_classes(spec, runs, s)}"
                pair = f"{np.mean(x):.2f} / {np.mean(y):.2f}"
                told.append(f"{title}{where}, {look['label']} {pair}")
        many = [_classes(spec, runs, s) for s in settings if s is not None]
        note = f"\nfilled: {many[0]}; open: {many[1]}" if len(many) == 2 else ""
        ax.set(title=title + note, xlabel="global accuracy", ylabel="worst client's accuracy")
        ax.set_ylim(0, max(0.05, 1.05 * ax.get_ylim()[1]))
    plots.legend_outside(fig, axes)
    fig.suptitle(heading(spec, runs, "; one marker per seed"), fontsize=8)
    return fig, f"Accuracy over all clients / of the worst client: {'; '.join(told)}."


def accuracy_curves(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Figure 3: accuracy over the rounds, as in print solid where clients have more classes and
    dashed where they have fewer.
    """
    from fedbook import plots

    [settings] = _parts(runs).values()
    fig, (ax,) = plots.panels(1, 6.2, 4.0)
    told = []
    named: set[str] = set()
    for k, (s, methods) in enumerate(settings.items()):
        for method, own in methods.items():
            look = plots.look(method) | {"linestyle": "--" if k else "-"}
            rounds = own[0].metrics["rounds"]
            mean = np.mean([r.metrics["curves"]["avg_sample"] for r in own], axis=0)
            shown = look | {"label": None if method in named else look["label"]}
            named.add(method)
            ax.plot(rounds, mean, markevery=max(1, len(rounds) // 6), **shown)
            told.append(f"{look['label']}, {_classes(spec, runs, s)}: {mean[-1]:.2f}")
    said = [_classes(spec, runs, s) for s in settings]
    title = f"{data_name(runs, next(iter(_parts(runs))))}; solid: {said[0]}, dashed: {said[-1]}"
    ax.set(title=title, xlabel="round", ylabel="test accuracy", ylim=(0, None))
    plots.legend_outside(fig, [ax])
    fig.suptitle(heading(spec, runs, "; mean over seeds"), fontsize=8)
    return fig, f"Test accuracy against round; at the end {'; '.join(told)}."


def seen_and_unseen(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Test accuracy of every client that trained and of every client that never did, with the
    pooled means.
    """
    from fedbook import plots

    methods = by_method(runs)
    fig, (ax,) = plots.panels(1, width=5.2)
    rng = np.random.default_rng(0)
    said = []
    ticks = {}
    for k, (method, own) in enumerate(methods.items()):
        look = plots.look(method)
        trained = [(r.metrics["clients"]["acc"], r.metrics["avg_sample"]) for r in own]
        unseen = [(r.metrics["unseen"]["acc"], r.metrics["unseen"]["avg_sample"]) for r in own]
        sides = ((k - 0.18, "trained", "o", trained), (k + 0.18, "never sampled", "D", unseen))
        for at, name, marker, scores in sides:
            acc = np.concatenate([each for each, _ in scores])
            mean = 100 * np.mean([pooled for _, pooled in scores])
            x = at + rng.uniform(-0.1, 0.1, len(acc))
            ax.plot(x, 100 * acc, marker, ms=3, alpha=0.5, color=look["color"], mew=0)
            ax.plot([at - 0.14, at + 0.14], [mean, mean], color="black", lw=1.5)
            ticks[at] = name.replace(" ", "\n")
            said.append(f"{look['label']} {name} {mean:.1f}")
        top = ax.get_xaxis_transform()
        ax.text(k, 1.02, look["label"], ha="center", fontsize=8, transform=top)
    ax.set_xticks(list(ticks), list(ticks.values()), fontsize=7)
    ax.set(ylabel="test accuracy of a client (%)", ylim=(0, 100))
    fig.suptitle(heading(spec, runs, "; bar: over all their test samples"), fontsize=8)
    held = len(finished(runs)[0].metrics["unseen"]["clients"])
    what = f"Test accuracy of each client, {held} of them held out; pooled means:"
    return fig, f"{what} {'; '.join(said)}."


def by_prompt_rate(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Accuracy, and how much the clients' prompts still agree after local training, against the
    prompts' rate.
    """
    from fedbook import plots

    fig, axes = plots.panels(2)
    said = []
    for ax, label in zip(axes, ("accuracy (%)", "cosine of clients' prompts")):
        for method, own in by_method(runs).items():
            look = plots.look(method)
            found: dict[int, list[float]] = {}
            for r in own:
                similarity = r.metrics["log"].get("shared_prompt_similarity", np.nan)
                value = 100 * r.metrics["tail"] if ax is axes[0] else similarity
                found.setdefault(r.row["times_prompt_lr"], []).append(value)
            means, bars = plots.over_seeds(list(found.values()))
            ax.errorbar(list(found), means, bars, capsize=2, **look)
            said += [f"{look['label']} {label} at {t} times: {m:.2f}" for t, m in zip(found, means)]
        ax.set(xscale="log", xlabel="learning rate of the prompts / of the head", ylabel=label)
        ax.set_xticks(sorted({r.row["times_prompt_lr"] for r in finished(runs)}), minor=False)
        ax.xaxis.set_major_formatter("{x:g}")
    plots.legend_outside(fig, axes)
    fig.suptitle(heading(spec, runs, "; bars: lowest to highest seed"), fontsize=8)
    what = "Accuracy and agreement of prompts against the prompts' rate over the head's."
    return fig, f"{what} {'; '.join(said)}."


def grouped_by(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Accuracy without groups, with groups by keys and by an oracle: a line for the mean, a dot for
    each seed.
    """
    from fedbook import plots

    datasets = compared(runs, "dataset", "groups_by")
    fig, axes = plots.panels(len(datasets), width=3.6)
    said = []
    for ax, dataset in zip(axes, datasets):
        found: dict[str, list[float]] = {}
        for r in finished(runs):
            if r.row["dataset"] == dataset:
                found.setdefault(r.row["groups_by"], []).append(100 * r.metrics["tail"])
        title = data_name(runs, dataset)
        for k, (by, values) in enumerate(found.items()):
            colour = plots.type_colours(3)[k]
            ax.hlines(np.mean(values), k - 0.25, k + 0.25, color=colour)
            ax.plot([k] * len(values), values, "o", color=colour)
            said.append(f"{title}, by {by}: {np.mean(values):.1f}")
        ax.set_xticks(range(len(found)), list(found))
        ax.margins(x=0.2, y=0.15)
        ax.set(title=title, xlabel="images are grouped by", ylabel="accuracy (%)")
    fig.suptitle(heading(spec, runs, "; dots: seeds, lines: their mean"), fontsize=8)
    return fig, f"Accuracy by how images are grouped. {'; '.join(said)}."
