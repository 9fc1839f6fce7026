"""FGPT's Figure 2 and the pictures of our own studies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedbook.papers.draw import Drawn, Methods, by_method, heading, panels
from fedbook.papers.spec import Run, Spec, finished


def global_against_worst(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Accuracy over all clients against that of the worst one."""
    from fedbook import plots

    def draw(ax: Any, setting: str, methods: Methods) -> None:
        series = {}
        for method, own in methods.items():
            everybody = [r.metrics["tail"] for r in own]
            worst = [r.metrics["worst_client"] for r in own]
            series[method] = (everybody, worst)
        x = "global accuracy"
        y = "worst client's accuracy"
        plots.points(series, xlabel=x, ylabel=y, title=setting, ax=ax)

    fig, who = panels(spec, runs, draw)
    return fig, f"Accuracy over all clients against the worst client's, one marker per seed: {who}"


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
            means = [float(np.mean(v)) for v in found.values()]
            spread = [float(np.std(v)) for v in found.values()]
            ax.errorbar(list(found), means, spread, capsize=2, **look)
            said += [f"{look['label']} {label} at {t} times: {m:.2f}" for t, m in zip(found, means)]
        ax.set(xscale="log", xlabel="learning rate of the prompts / of the head", ylabel=label)
        ax.set_xticks(sorted({r.row["times_prompt_lr"] for r in finished(runs)}), minor=False)
        ax.xaxis.set_major_formatter("{x:g}")
    axes[0].legend(fontsize=7)
    fig.suptitle(heading(spec, runs, "; bars: std over seeds"), fontsize=8)
    return fig, "; ".join(said) + "."
