"""What follows from Client2Vec's runs: gains, means of the last tests, times, similarities."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from fedbook.papers.rows import Row
from fedbook.papers.spec import Run, Spec, finished, lookup

Values = list[tuple[int, float]]
WITH_INDEX = ("generate_client_index_time", "total_time_to_fedavg_best")
TIMES = (*WITH_INDEX, "training_total_time", "training_time_to_fedavg_best")


def improvement(spec: Spec, row: Row, runs: Sequence[Run]) -> Values:
    """Table 1, "MI": the cell with the highest mean minus the original, seed by seed."""
    original: dict[int, float] = {}
    cells: dict[str, dict[int, float]] = {}
    for run in finished(runs):
        if run.row.fits(method=row.method, dataset=row["dataset"]):
            plain = run.row["strategy"] == "none"
            cell = original if plain else cells.setdefault(run.row.setting, {})
            cell[run.seed] = run.metrics["best"]
    rest = [cell for cell in cells.values() if set(cell) >= set(original)]
    if not original or not rest:
        return []
    best = max(rest, key=lambda cell: fmean(cell[s] for s in original))
    return [(s, best[s] - original[s]) for s in original]


def last_five(spec: Spec, row: Row, runs: Sequence[Run]) -> Values:
    """The mean over a run's last five tests, where the paper prints the best of all."""
    found = []
    for run in finished(runs):
        if run.row.setting == row.setting and run.row.method == row.method:
            found.append((run.seed, fmean(run.metrics["curves"]["avg_client"][-5:])))
    return found


def duration(spec: Spec, row: Row, runs: Sequence[Run]) -> Values:
    """Table 3, in seconds as measured: making the index, all rounds, the rounds until FedAvg's best
    is reached. Nothing where it never is.
    """
    goal = {r.seed: r.metrics["best"] for r in finished(runs) if r.row.method == "fedavg"}
    found = []
    for run in finished(runs):
        if run.row.method != row.method or run.seed not in goal:
            continue
        seconds = run.metrics["seconds"]
        accuracy = run.metrics["curves"]["avg_client"]
        if row.metric == "generate_client_index_time":
            training: float | None = 0.0
        elif row.metric == "training_total_time":
            training = seconds[-1]
        else:
            training = next((s for s, v in zip(seconds, accuracy) if v >= goal[run.seed]), None)
        index = lookup(run.metrics, "log.index_seconds") if row.metric in WITH_INDEX else None
        if training is not None:
            found.append((run.seed, training + (index or 0.0)))
    return found


def domain_similarity(spec: Spec, row: Row, runs: Sequence[Run]) -> Values:
    """Figure 9: the mean cosine of the clients of two domains; nothing where the data has no such
    domains.
    """
    path = f"log.type_similarity.{row['domain_a']}.{row['domain_b']}"
    values = {run.seed: lookup(run.metrics, path) for run in finished(runs)}
    return [(seed, value) for seed, value in values.items() if value is not None]


DERIVED = {"max_improvement": improvement, "domain_similarity": domain_similarity}
DERIVED["last_five"] = last_five
DERIVED |= dict.fromkeys(TIMES, duration)
