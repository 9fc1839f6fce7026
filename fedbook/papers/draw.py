"""From the runs behind a table or figure to a picture and its description; only what has been run is drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fedbook.papers.spec import Run, Spec

Drawn = tuple[Any, str]


def _panels(spec: Spec, runs: list[Run], draw: Callable[[Any, str, dict[str, list[Run]]], None]) -> tuple[Any, str]:
    """One panel per setting, with the finished runs of each method in it; returns the figure and who is in it."""
    from fedbook import plots

    settings: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        if run.result is not None:
            settings.setdefault(run.row.setting, {}).setdefault(run.row.method, []).append(run)
    fig, axes = plots.panels(len(settings))
    for ax, (setting, methods) in zip(axes, settings.items()):
        draw(ax, setting, methods)
        if ax is not axes[0] and set(methods) <= set(next(iter(settings.values()))) and (legend := ax.get_legend()):
            legend.remove()  # the first panel names them all
    scale = runs[0].experiment.scale if runs else ""
    used = ", ".join(dict.fromkeys(r.experiment.dataset["name"] for r in runs if r.result))
    note = "" if scale == "paper" else "; absolute values not comparable with print"
    fig.suptitle(f"{spec.id}, {scale} scale on {used}{note}", fontsize=8)
    seen = list(dict.fromkeys(plots.look(m)["label"] for methods in settings.values() for m in methods))
    return fig, f"{len(settings)} panels ({'; '.join(settings)}) with {', '.join(seen)}, {scale} scale on {used}."


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
        series = {m: [_metric(r)["curves"]["train_loss_max"] for r in rs] for m, rs in methods.items()}
        plots.curves(series, _longest(methods), "highest training loss of a client", setting, ax)

    fig, who = _panels(spec, runs, draw)
    return fig, f"Highest training loss of a client against round: {who}"


def sorted_clients(spec: Spec, runs: list[Run]) -> Drawn:
    """Test accuracy of every client, from worst to best, averaged over seeds rank by rank."""
    from fedbook import plots

    def draw(ax: Any, setting: str, methods: dict[str, list[Run]]) -> None:
        series = {m: np.mean([np.sort(_metric(r)["clients"]["acc"]) for r in rs], axis=0) for m, rs in methods.items()}
        plots.sorted_scores(series, title=setting, ax=ax)

    fig, who = _panels(spec, runs, draw)
    return fig, f"Test accuracy of each client, sorted from worst to best: {who}"


def personal_scores(spec: Spec, runs: list[Run]) -> Drawn:
    """Personalisation T_p against generalisation T_r: a method that gives up neither lies top right."""
    from fedbook import plots

    def draw(ax: Any, setting: str, methods: dict[str, list[Run]]) -> None:
        local = {m: [_metric(r)["local"] for r in rs] for m, rs in methods.items()}
        series = {m: ([x["t_p"] for x in v], [x["t_r"] for x in v]) for m, v in local.items()}
        plots.points(series, "personalisation $T_p$ (macro-F1)", "generalisation $T_r$ (macro-F1)", setting, ax, True)
        ax.set(xlim=(0, 1), ylim=(0, 1))

    fig, who = _panels(spec, runs, draw)
    return fig, f"Macro-F1 on the own test set (T_p) against the global test set (T_r), one marker per seed: {who}"


def global_against_worst(spec: Spec, runs: list[Run]) -> Drawn:
    """Accuracy over all clients against that of the worst one."""
    from fedbook import plots

    def draw(ax: Any, setting: str, methods: dict[str, list[Run]]) -> None:
        series = {
            m: ([_metric(r)["tail"] for r in rs], [_metric(r)["worst_client"] for r in rs]) for m, rs in methods.items()
        }
        plots.points(series, "global accuracy", "worst client's accuracy", setting, ax)

    fig, who = _panels(spec, runs, draw)
    return fig, f"Accuracy over all clients against the worst client's, one marker per seed: {who}"
