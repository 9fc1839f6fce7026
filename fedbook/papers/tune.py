"""Hyper-parameters, chosen once, on validation data, with the same number of trials for every
method.

The validation samples are training samples that no client holds (`test="unused"`, or "unused_match"
where a client is tested on its own class mix), so a trial trains on exactly the federation of seed
0 (of several seeds, if the grid says so) and never touches a test sample. Where the clients hold
all of them (`by_group`), each gives up the last fifth of its own ("held_out"). First the learning
rates, with the method's own knob as first listed; then, at the best of them, the other values of
the knob. The score is the mean over the grid's settings and seeds of the mean accuracy over types,
or of what the grid names. Every trial is a line of `results/<paper>_<scale>_grid.jsonl`; what was
chosen is written into the paper's scale by hand, and a test compares the two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedbook.errors import FedbookError
from fedbook.experiment import Experiment
from fedbook.papers.rows import Row
from fedbook.papers.spec import lookup
from fedbook.results import Result, Store

if TYPE_CHECKING:
    from fedbook.papers.paper import Paper

Options = dict[str, Any]
Knob = tuple[str | tuple[str, ...], tuple[Any, ...]]  # an option, or several turned together
Tried = list[tuple[Options, float]]  # options and their validation score
VALIDATION = {"by_domain": "unused", "by_group": "held_out"}


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What is tried: learning rates, one knob per method; a method without one tries `more_lr`
    instead.
    """

    on: tuple[Options, ...]
    lr: tuple[float, ...]
    more_lr: tuple[float, ...]
    knobs: Mapping[str, Knob | None]
    score: str | tuple[str, ...] = "avg_type"  # of several the mean
    part: float = 1.0  # of a run's rounds, how many a trial lasts
    every: int | None = None  # rounds between two tests; None: one test, at a trial's end
    seeds: int = 1

    @property
    def places(self) -> list[tuple[Options, int]]:
        """Where a trial is run: every setting with every seed."""
        return [(setting, seed) for setting in self.on for seed in range(self.seeds)]

    @property
    def metrics(self) -> tuple[str, ...]:
        return (self.score,) if isinstance(self.score, str) else self.score

    def first(self, method: str) -> list[Options]:
        """The trials that need no other."""
        knob = self.knobs[method]
        if knob is None:
            return [{"lr": lr} for lr in (*self.lr, *self.more_lr)]
        return [{"lr": lr, **turned(knob)[0]} for lr in self.lr]

    def second(self, method: str, best: Options) -> list[Options]:
        """The trials that start from the best of the first."""
        knob = self.knobs[method]
        return [] if knob is None else [{**best, **options} for options in turned(knob)[1:]]


def turned(knob: Knob) -> list[Options]:
    """The options that a knob stands for, at each of its values."""
    name, values = knob
    if isinstance(name, str):
        return [{name: v} for v in values]
    return [dict(zip(name, v)) for v in values]


def grid_of(paper: Paper) -> Grid:
    """The paper's grid."""
    if paper.grid is None:
        raise FedbookError(f"{paper.key} has no grid", "give the paper one: Paper(grid=...)")
    return paper.grid


def trial(
    paper: Paper, scale: str, method: str, options: Options, setting: Options, seed: int = 0
) -> Experiment:
    """The run of a method with these options on one setting, tested on validation data."""
    own = paper.scale(scale)
    own = dataclasses.replace(own, methods={**own.methods, method: options})
    e = paper.experiment(Row(settings=setting, method=method), own, seed)
    if e is None:
        raise FedbookError(
            f"{paper.key} has no run of {method} on {setting} at {scale} scale",
            "a grid's settings must be rows of the paper",
        )
    test = VALIDATION.get(e.partition["name"], "unused_match")
    grid = grid_of(paper)
    rounds = max(1, round(grid.part * e.rounds))
    return dataclasses.replace(
        e,
        partition={**e.partition, "test": test},
        rounds=rounds,
        evaluate_every=grid.every or rounds,
    )


def score(
    paper: Paper, scale: str, method: str, options: Options, results: dict[str, Result]
) -> float | None:
    """The validation score of a trial, 0 where it diverged; None until it has run everywhere."""
    values = []
    grid = grid_of(paper)
    for setting, seed in grid.places:
        result = results.get(trial(paper, scale, method, options, setting, seed).key)
        for name in grid.metrics:
            value = None if result is None else lookup(result["metrics"], name)
            if result is not None and "diverged" in result["metrics"]:
                value = 0.0
            if value is None:
                return None
            values.append(value)
    return fmean(values)


def scores(paper: Paper, scale: str, results: dict[str, Result]) -> dict[str, Tried]:
    """(options, validation score) of every trial that has been run everywhere, by method."""
    grid = grid_of(paper)
    found: dict[str, Tried] = {}
    for method in grid.knobs:

        def look(options: list[Options], method: str = method) -> Tried:
            seen = [(o, score(paper, scale, method, o, results)) for o in options]
            return [(o, value) for o, value in seen if value is not None]

        first = grid.first(method)
        tried = look(first)
        if len(tried) == len(first):
            tried = tried + look(grid.second(method, best(tried)))
        found[method] = tried
    return found


def best(tried: Tried) -> Options:
    """The first of the highest score."""
    return max(tried, key=lambda t: t[1])[0]


def complete(grid: Grid, tried: dict[str, Tried]) -> bool:
    return all(len(tried[m]) == len(grid.first(m)) + len(grid.second(m, {})) for m in grid.knobs)


def tune(
    paper: Paper, scale: str, store: Store, jobs: int, tell: Callable[[str], None]
) -> tuple[dict[str, Tried], list[str]]:
    """Run the trials that are missing; returns all of them with their scores, and what went
    wrong.
    """
    from fedbook.papers.reproduce import compute

    grid = grid_of(paper)
    errors: list[str] = []
    for name in ("learning rates", "knobs"):
        results = store.keys()
        todo = []
        for method, tried in scores(paper, scale, results).items():
            options = grid.first(method)
            if name == "knobs":
                ready = len(tried) >= len(options)
                options = grid.second(method, best(tried)) if ready else []
            for o in options:
                for setting, seed in grid.places:
                    e = trial(paper, scale, method, o, setting, seed)
                    if e.key not in results:
                        todo.append((f"{paper.key}/grid", e))
        tell(f"{name}: {len(todo)} runs to compute")
        errors += compute(todo, store, jobs, tell, f"{paper.key}_{scale}_grid")
    return scores(paper, scale, store.keys()), errors


def text(tried: dict[str, Tried]) -> str:
    """The trials as lines for a terminal, the chosen one marked."""
    lines = []
    for method, options in tried.items():
        chosen = best(options) if options else None
        for o, value in options:
            said = "  ".join(f"{k}={v}" for k, v in o.items())
            mark = "  chosen" if o is chosen else ""
            lines.append(f"{method:9} {said:28} {100 * value:6.2f}{mark}")
    return "\n".join(lines)
