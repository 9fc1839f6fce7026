"""Client2Vec: Tables 1-9, Figures 2, 4, 5, 7, 8, 9, and our own study of its local training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedbook.papers.client2vec.claims import CLAIMS, FAR, NEAR
from fedbook.papers.client2vec.derived import DERIVED
from fedbook.papers.client2vec.figures import (
    aggregation_alone,
    best_and_last,
    domain_map,
    index_epochs,
    index_maps,
    ladder,
    local_training,
    sweeps,
)
from fedbook.papers.client2vec.scales import (
    GRID,
    METRICS,
    ON_PACS,
    ON_TEXT,
    PACS_GRID,
    PACS_WEIGHT,
    SCALES,
    SIMILAR,
    SMALL,
    SMALL_GRID,
    TEXT_GRID,
    TEXT_WEIGHT,
    experiment,
)
from fedbook.papers.draw import learning_curves
from fedbook.papers.paper import Figure, Paper
from fedbook.papers.rows import Row, read_rows

PUBLISHED = Path(__file__).parent / "published"
# Own study: what could w || z_P B^f ||_1 mean, and which reading gives the printed kind of gain?
READINGS: dict[str, dict[str, Any]] = {
    "sum over clients, as printed, w = 5": {"weight": 5.0, "reduction": "sum"},
    "sum over clients, w = 1": {"weight": 1.0, "reduction": "sum"},
    "mean over clients, w = 5": {"weight": 5.0},
    "mean over clients, w = 1": {"weight": 1.0},
    "mean, KL detached, w = 5": {"weight": 5.0, "detach": True},
    "mean of cosines, w = 5": {"weight": 5.0, "reduction": "cosine"},
    "mean of cosines, w = 1": {"weight": 1.0, "reduction": "cosine"},
    "cosines, KL detached, w = 5": {"weight": 5.0, "reduction": "cosine", "detach": True},
    "KL alone, w = 5": {"weight": 5.0, "variant": "omit_orthogonal_regularization"},
}


def accuracy(settings: dict[str, Any], method: str = "fedavg") -> Row:
    return Row(settings=settings, method=method, metric="accuracy", unit="percent")


# FedAvg on validation images for the printed number of rounds; print has 42.2 % on test images
PILOT = (accuracy({"dataset": "cifar10", "validation": 1, "rounds": 100}),)
RATES = (0.1, 0.05, 0.01)  # the last as printed


def local_rows() -> tuple[Row, ...]:
    """(iii) alone on FedAvg, GLOBAL index, on validation images, at three learning rates."""
    rows = []
    for lr in RATES:
        trial = {"dataset": "cifar10", "validation": 1, "lr": lr}
        rows.append(accuracy({**trial, "change": "without (iii)", "case_studies": "none"}))
        for name, change in READINGS.items():
            where = {**trial, "change": name, "strategy": "global", "case_studies": "iii"}
            rows.append(accuracy(where | {"reduction": "mean", "detach": False} | change))
    return tuple(rows)


def index_rows(metrics: tuple[str, ...], **settings: tuple[Any, ...]) -> tuple[Row, ...]:
    """Quantities measured on client indices of the DomainNet federation, for every combination of
    the settings.
    """
    combos: list[dict[str, Any]] = [{"dataset": "domainnet", "case_studies": "index"}]
    for name, values in settings.items():
        combos = [{**c, name: v} for c in combos for v in values]
    rows = []
    for where in combos:
        for metric in metrics:
            rows.append(Row(settings=where, method="fedavg", metric=metric, unit="similarity"))
    return tuple(rows)


def alone() -> tuple[Row, ...]:
    """Figure 4c-d: case study (ii) alone against the original, for every base algorithm of
    Table 1.
    """
    rows = []
    for row in read_rows(PUBLISHED / "table1_main.csv"):
        if row["case_studies"] == "none":
            indexed = row.settings | {"strategy": "global", "case_studies": "ii"}
            rows += [accuracy(row.settings, row.method), accuracy(indexed, row.method)]
    return tuple(rows)


def two_scores() -> tuple[Row, ...]:
    """The CIFAR-10 rows of Table 1 with a GLOBAL index: the best test, and the last five."""
    rows = []
    for row in read_rows(PUBLISHED / "table1_main.csv"):
        if row["dataset"] == "cifar10" and row["strategy"] in ("none", "global"):
            rows += [
                replace(row, value=None, std=None, metric=m) for m in ("accuracy", "last_five")
            ]
    return tuple(rows)


def between_domains() -> tuple[Row, ...]:
    """Figure 9: DomainNet's real against the others, PACS's photo against the others."""
    rows: tuple[Row, ...] = ()
    for centre in ("real", "photo"):
        pairs = {"domain_a": (centre,), "domain_b": NEAR[centre] + FAR[centre]}
        rows += index_rows(("domain_similarity",), strategy=("global",), **pairs)
    return rows


PAPER = Paper(
    key="client2vec",
    title="Client2Vec",
    reference=(
        "Guo, Wang, Tang and Lin: Client2Vec: Improving Federated Learning by Distribution Shifts "
        "Aware Client Indexing. 2024"
    ),
    published=PUBLISHED,
    scales=SCALES,
    experiment=experiment,
    metrics=METRICS,
    as_run={"architecture": "model.name", "epochs": "method.index_epochs"},
    plots={"table1": ladder, "table6": index_epochs, "table9": learning_curves},
    derived=DERIVED,
    figures={
        "fig2": Figure(index_rows(SIMILAR, strategy=("global", "federated")), index_maps),
        "fig4": Figure(alone(), aggregation_alone),  # c-d; a-b are Table 6
        "fig5": Figure(
            read_rows(PUBLISHED / "table7_weight.csv") + read_rows(PUBLISHED / "table5_tau.csv"),
            sweeps,
        ),
        "fig7": Figure(
            index_rows(
                SIMILAR,
                strategy=("global",),
                epochs=(500, 1000),
                variant=("client2vec", "omit_diversity_loss"),
            ),
            index_maps,
        ),
        "fig8": Figure(
            index_rows(SIMILAR, strategy=("global",), projection=("linear", "mlp")), index_maps
        ),
        "fig9": Figure(between_domains(), domain_map),
        "maximum": Figure(
            two_scores(),
            best_and_last,
            "Own study: how much of a gain is the maximum over noise?",
        ),
        "pilot": Figure(
            PILOT,
            learning_curves,
            "Own study: does FedAvg learn as much as in print? Accuracy on validation images",
        ),
        "local": Figure(
            local_rows(),
            local_training,
            "Own study: which reading of case study (iii) brings the printed gain?",
        ),
    },
    grid=GRID,
    more_grids={
        "small": (SMALL, SMALL_GRID),
        "pacs": (ON_PACS, PACS_GRID),
        "pacs_weight": (ON_PACS, PACS_WEIGHT),
        "text": (ON_TEXT, TEXT_GRID),
        "text_weight": (ON_TEXT, TEXT_WEIGHT),
    },
    claims=CLAIMS,
)
