"""From the runs behind a table or figure to a picture and its description: what the papers' figures
share. Only what has been run is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import wrap
from typing import Any

import numpy as np

from fedbook.papers.spec import Run, Spec, arrow, finished, terms

Drawn = tuple[Any, str]  # a figure and its description
Methods = dict[str, list[Run]]
MARKS = "os^vDPX*"


def heading(spec: Spec, runs: Sequence[Run], more: str = "") -> str:
    """The lines above a figure: its id, its scale, the data that was used, and how."""
    done = finished(runs)
    scale = done[0].experiment.scale
    used = ", ".join(dict.fromkeys(r.experiment.dataset["name"] for r in done))
    note = "" if scale == "paper" else "; absolute values not comparable with print"
    how = list(dict.fromkeys(terms(r.experiment) for r in done))
    said = f"\n{' / '.join(how)}" if len(how) < 3 else ""
    return f"{spec.id}, {scale} scale on {used}{more}{note}{said}"


def data_name(runs: Sequence[Run], dataset: str) -> str:
    """A dataset as printed and as run: "domainnet -> pacs"."""
    used = [r.experiment.dataset["name"] for r in runs if r.row["dataset"] == dataset]
    return arrow(dataset, used[0] if used else dataset)


def by_method(runs: Sequence[Run]) -> Methods:
    """The finished runs of each method."""
    found: Methods = {}
    for run in finished(runs):
        found.setdefault(run.row.method, []).append(run)
    return found


def by_setting(runs: Sequence[Run]) -> dict[str, Methods]:
    """The finished runs of each method in each setting."""
    settings: dict[str, list[Run]] = {}
    for run in finished(runs):
        settings.setdefault(run.label, []).append(run)
    return {setting: by_method(own) for setting, own in settings.items()}


def one_per_experiment(runs: Sequence[Run]) -> list[Run]:
    """The finished runs, each once, though several rows may rest on it."""
    return list({r.experiment.key: r for r in finished(runs)}.values())


def panels(
    spec: Spec, runs: Sequence[Run], draw: Callable[[Any, str, Methods], None]
) -> tuple[Any, str]:
    """One panel per setting, drawn by `draw(ax, setting, methods)`; returns the figure and who is
    in it. A panel needs no legend if the first one names all its methods.
    """
    from fedbook import plots

    settings = by_setting(runs)
    first = next(iter(settings.values()))
    fig, axes = plots.panels(len(settings))
    for ax, (setting, methods) in zip(axes, settings.items()):
        draw(ax, "\n".join(wrap(setting, 46)), methods)
        legend = ax.get_legend()
        if legend is not None and ax is not axes[0] and set(methods) <= set(first):
            legend.remove()
    title = heading(spec, runs)
    fig.suptitle(title, fontsize=8)
    names = dict.fromkeys(plots.look(m)["label"] for own in settings.values() for m in own)
    panel = "panel" if len(settings) == 1 else "panels"
    shown = f"{len(settings)} {panel} ({'; '.join(settings)}) with {', '.join(names)}"
    return fig, f"{shown}, {title.partition(', ')[2].partition(';')[0]}."


def learning_curves(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Mean test accuracy of the clients over the rounds."""
    from fedbook import plots

    def draw(ax: Any, setting: str, methods: Methods) -> None:
        series = {m: [r.metrics["curves"]["avg_client"] for r in own] for m, own in methods.items()}
        rounds = max((r.metrics["rounds"] for own in methods.values() for r in own), key=len)
        label = "mean test accuracy of the clients"
        plots.curves(series, rounds, ylabel=label, title=setting, ax=ax)

    fig, who = panels(spec, runs, draw)
    return fig, f"Learning curves, mean test accuracy against round: {who}"


def sorted_clients(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Test accuracy of every client, from worst to best, averaged over seeds rank by rank."""
    from fedbook import plots

    def draw(ax: Any, setting: str, methods: Methods) -> None:
        series = {}
        for method, own in methods.items():
            ranked = [np.sort(r.metrics["clients"]["acc"]) for r in own]
            series[method] = np.mean(ranked, axis=0)
        plots.sorted_scores(series, title=setting, ax=ax)

    fig, who = panels(spec, runs, draw)
    return fig, f"Test accuracy of each client, sorted from worst to best: {who}"


def values_of(spec: Spec, run: Run) -> list[float]:
    """What a run measured of its own row, in the printed unit."""
    return [value for _, value in spec.measured(run.row, [run])]
