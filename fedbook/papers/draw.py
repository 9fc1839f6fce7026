"""From the runs behind a table or figure to a picture and its description: what the papers' figures
share. Only what has been run is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import wrap
from typing import Any

from fedbook.papers import words
from fedbook.papers.layout import in_words, used_values
from fedbook.papers.spec import Run, Spec, arrow, finished, terms

Drawn = tuple[Any, str]  # a figure and its description
Methods = dict[str, list[Run]]
MARKS = "os^vDPX*"


def heading(spec: Spec, runs: Sequence[Run], more: str = "") -> str:
    """The lines above a figure: its id, its scale, the data that was used, how often and how."""
    done = finished(runs)
    scale = done[0].experiment.scale
    used = ", ".join(dict.fromkeys(r.experiment.dataset["name"] for r in done))
    note = "" if scale == "paper" else "; absolute values not comparable with print"
    how = list(dict.fromkeys(terms(r.experiment) for r in done))
    said = f"\n{' / '.join(how)}" if len(how) < 3 else ""
    return f"{spec.id}, {scale} scale on {used}, {seeds(done)}{more}{note}{said}"


def seeds(runs: Sequence[Run]) -> str:
    """How many seeds the numbers rest on, in words."""
    found: dict[tuple[str, str], set[int]] = {}
    for run in finished(runs):
        found.setdefault((run.row.setting, run.row.method), set()).add(run.seed)
    counts = sorted({len(s) for s in found.values()})
    return " or ".join(map(str, counts)) + (" seed" if counts == [1] else " seeds")


def data_name(runs: Sequence[Run], dataset: str) -> str:
    """A dataset as printed and as run: "DomainNet → pacs"."""
    used = [r.experiment.dataset["name"] for r in runs if r.row["dataset"] == dataset]
    said = words.value("dataset", dataset)
    return f"{said} → {used[0]}" if used and "->" in arrow(dataset, used[0]) else said


def by_method(runs: Sequence[Run]) -> Methods:
    """The finished runs of each method."""
    found: Methods = {}
    for run in finished(runs):
        found.setdefault(run.row.method, []).append(run)
    return found


def by_setting(spec: Spec, runs: Sequence[Run]) -> dict[str, Methods]:
    """The finished runs of each method in each setting, which is told in words: "Digit-Five →
    digits5_chars74k, DIF = 10", without what is the same everywhere. Settings of one method are
    left out where others have several: they compare nothing.
    """
    done = finished(runs)
    used = used_values(spec, done)
    names = dict.fromkeys(k for r in done for k in r.row.settings)
    varied = [k for k in names if len({r.row[k] for r in done}) > 1]
    settings: dict[str, list[Run]] = {}
    for run in done:
        told = [
            in_words(k, run.row[k], used) for k in varied or ["dataset"] if run.row[k] is not None
        ]
        settings.setdefault(", ".join(told) or "as usual", []).append(run)
    all_of = {setting: by_method(own) for setting, own in settings.items()}
    return {setting: methods for setting, methods in all_of.items() if len(methods) > 1} or all_of


def shown_in(settings: dict[str, Methods]) -> list[Run]:
    """The runs of these panels."""
    return [run for methods in settings.values() for own in methods.values() for run in own]


def one_per_experiment(runs: Sequence[Run]) -> list[Run]:
    """The finished runs, each once, though several rows may rest on it."""
    return list({r.experiment.key: r for r in finished(runs)}.values())


def panels(
    spec: Spec, runs: Sequence[Run], draw: Callable[[Any, str, Methods], None]
) -> tuple[Any, str]:
    """One panel per setting, drawn by `draw(ax, setting, methods)`; returns the figure and who is
    in it.
    """
    from fedbook import plots

    settings = by_setting(spec, runs)
    fig, axes = plots.panels(len(settings))
    for ax, (setting, methods) in zip(axes, settings.items()):
        draw(ax, "\n".join(wrap(setting, 46)), methods)
    plots.legend_outside(fig, axes)
    title = heading(spec, shown_in(settings))
    fig.suptitle(title, fontsize=8)
    names = dict.fromkeys(plots.look(m)["label"] for own in settings.values() for m in own)
    panel = "panel" if len(settings) == 1 else "panels"
    shown = f"{len(settings)} {panel} ({'; '.join(settings)}) with {', '.join(names)}"
    return fig, f"{shown}, {title.partition(', ')[2].partition(';')[0]}."


def learning_curves(spec: Spec, runs: Sequence[Run]) -> Drawn:
    """Mean accuracy of the clients over the rounds."""
    from fedbook import plots

    images = "validation" if runs[0].row["validation"] else "test"

    def draw(ax: Any, setting: str, methods: Methods) -> None:
        series = {m: [r.metrics["curves"]["avg_client"] for r in own] for m, own in methods.items()}
        rounds = max((r.metrics["rounds"] for own in methods.values() for r in own), key=len)
        label = f"mean {images} accuracy of the clients"
        plots.curves(series, rounds, ylabel=label, title=setting, ax=ax)

    fig, who = panels(spec, runs, draw)
    return fig, f"Learning curves, mean {images} accuracy against round: {who}"


def values_of(spec: Spec, run: Run) -> list[float]:
    """What a run measured of its own row, in the printed unit."""
    return [value for _, value in spec.measured(run.row, [run])]


def compared(runs: Sequence[Run], panel: str, setting: str) -> list[Any]:
    """The panels, one for each value of `panel`, that have runs of at least two values of
    `setting`; all of them if none has.
    """
    found: dict[Any, set[Any]] = {}
    for run in finished(runs):
        found.setdefault(run.row[panel], set()).add(run.row[setting])
    return [p for p, values in found.items() if len(values) > 1] or list(found)
