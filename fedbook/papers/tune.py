"""Hyper-parameters, chosen once, on validation data, with the same number of trials for every
method.

The validation samples are training samples that no client holds (`test="unused"`, or "unused_match"
where a client is tested on its own class mix), so a trial trains on exactly the federation of seed
0 and never touches a test sample. Where the clients hold all of them (`by_group`), each gives up
the last fifth of its own ("held_out"). First the learning rates, with the method's own knob as
first listed; then, at the best of them, the other values of the knob. The score is the mean over
the grid's settings of the mean accuracy over types, or of what the grid names. Every trial is a
line of `results/<paper>_<scale>_grid.jsonl`; what was chosen is written into the paper's `SCALES`
by hand, and a test compares the two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from types import ModuleType
from typing import Any

from fedbook.errors import FedbookError
from fedbook.experiment import Experiment
from fedbook.papers.spec import Row, lookup
from fedbook.results import Result, Store

Knob = tuple[
    str | tuple[str, ...], tuple[Any, ...]
]  # an option, or several that are tried together; the values
Options = dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """What is tried: learning rates, one knob per method; a method without one tries `more_lr`
    instead.
    """

    on: tuple[Options, ...]
    lr: tuple[float, ...]
    more_lr: tuple[float, ...]
    knobs: dict[str, Knob | None]
    score: str | tuple[str, ...] = "avg_type"  # of several the mean
    part: float = 1.0  # of a run's rounds, how many a trial lasts

    @property
    def metrics(self) -> tuple[str, ...]:
        return (self.score,) if isinstance(self.score, str) else self.score

    def first(self, method: str) -> list[Options]:
        knob = self.knobs[method]
        if knob is None:
            return [{"lr": lr} for lr in (*self.lr, *self.more_lr)]
        return [{"lr": lr, **turned(knob)[0]} for lr in self.lr]

    def second(self, method: str, best: Options) -> list[Options]:
        knob = self.knobs[method]
        return [] if knob is None else [{**best, **options} for options in turned(knob)[1:]]


def turned(knob: Knob) -> list[Options]:
    """The options that a knob stands for, at each of its values."""
    name, values = knob
    return [{name: v} if isinstance(name, str) else dict(zip(name, v)) for v in values]


def trial(
    module: ModuleType, scale: str, method: str, options: Options, setting: Options
) -> Experiment:
    """The run of a method with these options on one setting, scored on validation data at its
    end.
    """
    base = module.SCALES[scale]
    e = module.experiment(Row(setting, method, ""), {**base, "name": scale, method: options}, 0)
    test = {"by_domain": "unused", "by_group": "held_out"}.get(e.partition["name"], "unused_match")
    rounds = max(1, round(module.GRID.part * e.rounds))
    return dataclasses.replace(
        e, partition={**e.partition, "test": test}, rounds=rounds, evaluate_every=rounds
    )


def scores(
    module: ModuleType, scale: str, results: dict[str, Result]
) -> dict[str, list[tuple[Options, float]]]:
    """(options, validation score) of every trial that has been run on all settings, by method."""
    grid: Grid = module.GRID
    found: dict[str, list[tuple[Options, float]]] = {}
    for method in grid.knobs:
        tried: list[tuple[Options, float]] = []

        def look(
            options: list[Options], method: str = method, tried: list[tuple[Options, float]] = tried
        ) -> None:
            for o in options:
                runs = [results.get(trial(module, scale, method, o, s).key) for s in grid.on]
                values = [
                    lookup(r["metrics"], name)
                    for r in runs
                    if r is not None
                    for name in grid.metrics
                ]
                if len(values) == len(grid.on) * len(grid.metrics) and None not in values:
                    tried.append((o, fmean(v for v in values if v is not None)))

        look(grid.first(method))
        if len(tried) == len(grid.first(method)):
            look(grid.second(method, best(tried)))
        found[method] = tried
    return found


def best(tried: list[tuple[Options, float]]) -> Options:
    """The first of the highest score."""
    return max(tried, key=lambda t: t[1])[0]


def complete(grid: Grid, tried: dict[str, list[tuple[Options, float]]]) -> bool:
    return all(len(tried[m]) == len(grid.first(m)) + len(grid.second(m, {})) for m in grid.knobs)


def tune(
    paper: str, module: ModuleType, scale: str, store: Store, jobs: int, tell: Callable[[str], None]
) -> tuple[dict[str, list[tuple[Options, float]]], list[str]]:
    """Run the trials that are missing; returns all of them with their scores, and what went
    wrong.
    """
    from fedbook.papers.reproduce import compute

    if not hasattr(module, "GRID"):
        raise FedbookError(f"{paper} has no grid yet", "a paper module declares one as GRID")
    grid: Grid = module.GRID
    errors: list[str] = []
    for second in (False, True):
        results = store.keys()
        tried = scores(module, scale, results)
        todo = []
        for method in grid.knobs:
            ready = not second or len(tried[method]) >= len(grid.first(method))
            options = (
                grid.first(method)
                if not second
                else grid.second(method, best(tried[method]))
                if ready
                else []
            )
            for o in options:
                for setting in grid.on:
                    e = trial(module, scale, method, o, setting)
                    if e.key not in results:
                        todo.append((f"{paper}/grid", e))
        tell(f"{'knobs' if second else 'learning rates'}: {len(todo)} runs to compute")
        errors += compute(todo, store, jobs, tell, f"{paper}_{scale}_grid")
    return scores(module, scale, store.keys()), errors


def text(tried: dict[str, list[tuple[Options, float]]]) -> str:
    """The trials as lines for a terminal, the chosen one marked."""
    lines = []
    for method, options in tried.items():
        chosen = best(options) if options else None
        for o, score in options:
            said = "  ".join(f"{k}={v}" for k, v in o.items())
            lines.append(
                f"{method:9} {said:28} {100 * score:6.2f}{'  chosen' if o is chosen else ''}"
            )
    return "\n".join(lines)
