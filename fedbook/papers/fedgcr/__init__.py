"""FedGCR: Tables 1-14, Figure 3, and our own studies of what the published runs did otherwise."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

from fedbook.papers.fedgcr import measures as measures
from fedbook.papers.fedgcr.claims import CLAIMS
from fedbook.papers.fedgcr.figures import (
    by_type,
    clustering_by_count,
    grouped_on,
    protocols_side_by_side,
    quirk_bars,
    type_maps,
    validation_curves,
)
from fedbook.papers.fedgcr.scales import (
    GRID,
    METRICS,
    PUBLISHED,
    SCALES,
    SPOT_RATES,
    STUDY,
    experiment,
)
from fedbook.papers.paper import Figure, Paper
from fedbook.papers.rows import Row

SCORES = ("avg", "sigma_type", "sigma_client")
METHODS = ("fedavg", "afl", "q_ffl", "term", "harmofl", "fedsam", "fedmix", "fedgcr")


def row(method: str, metric: str, dataset: str = "digit_five", **settings: object) -> Row:
    """A quantity of our own at DIF 10, in percent."""
    where = {"dataset": dataset, "dif": 10, **settings}
    return Row(settings=where, method=method, metric=metric, unit="percent")


def purities() -> tuple[Row, ...]:
    """Figure 3 in numbers: the purity of h and of the frozen feature."""
    rows = []
    for dataset, name in product(("digit_five", "domainnet"), ("h", "frozen")):
        where = {"dataset": dataset, "dif": 10}
        metric = f"knn_purity_{name}"
        rows.append(Row(settings=where, method="fedgcr", metric=metric, unit="fraction"))
    return tuple(rows)


QUIRKS = tuple(
    row(d.method, "avg", "pacs", quirk=q, on=on) for q, d in STUDY.items() for on in (0, 1)
)
GROUPING = tuple(
    row("fedgcr", metric, dataset, cluster_on=on)
    for dataset, on, metric in product(
        ("pacs", "digit_five"), ("h", "frozen", "types"), ("clustering_accuracy", *SCORES)
    )
)
PROTOCOLS = tuple(
    row(method, metric, dataset, protocol=protocol)
    for dataset, protocol, method, metric in product(
        ("pacs", "digit_five"), ("printed", "published", "tuned"), METHODS, SCORES
    )
    if protocol != "published" or method in PUBLISHED
)
VIT_TINY = "vit_tiny_patch16_224.augreg_in21k_ft_in1k@128+bf16"
SPOT = tuple(  # the ablation and the two best baselines of Table 6
    row(method, metric, "pacs", backbone=VIT_TINY)
    for method, metric in product(
        ("fedavg", "afl", "term", "fedgr_only", "fedgc_only", "fedgcr"), SCORES
    )
)
RATES = tuple(
    row(method, "avg", "pacs", backbone=VIT_TINY, validation=1, lr=lr)
    for method, lr in product(("fedavg", "afl", "term", "fedgcr"), SPOT_RATES)
)
PRECISION = tuple(
    row(method, metric, "pacs", precision=precision)
    for precision, method, metric in product(
        ("float32", "bfloat16"), ("fedavg", "fedgcr"), ("avg", "sigma_type")
    )
)
HALVES = tuple(  # FedGR alone trains what FedAvg trains: four plain prompts and a head
    row(method, metric, dataset, rate_of=rate_of)
    for dataset, (rate_of, method), metric in product(
        ("pacs", "domainnet"),
        (
            ("fedavg", "fedavg"),
            ("fedavg", "fedgr_only"),
            ("fedgcr", "fedgr_only"),
            ("fedgcr", "fedgc_only"),
            ("fedgcr", "fedgcr"),
        ),
        SCORES,
    )
)
CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (  # each alone, on validation images
    ("fedgcr", {}),
    ("fedgcr", {"cluster_on": "frozen"}),
    ("fedgcr", {"normalise": 0}),
    ("fedgcr", {"prompts": 2}),
    ("fedgcr", {"prompts": 8}),
    ("fedavg", {}),
    ("fedavg", {"prompts": 2}),
    ("fedavg", {"prompts": 8}),
)
SETTINGS = tuple(
    row(method, "avg", "pacs", validation=1, rounds=30, **change) for method, change in CHANGES
)
ROUNDS = tuple(
    row(method, "avg", dataset, validation=1)
    for dataset, method in product(("pacs", "digit_five", "domainnet"), ("fedavg", "fedgcr"))
)
PAPER = Paper(
    key="fedgcr",
    title="FedGCR",
    reference=(
        "Cheng, Yeh, Chen, Pastor and Chen: FedGCR: Achieving Performance and Fairness for "
        "Federated Learning with Distinct Client Types via Group Customization and Reweighting. "
        "AAAI 2024, and its extended version"
    ),
    published=Path(__file__).parent / "published",
    scales=SCALES,
    experiment=experiment,
    metrics=METRICS,
    as_run={"t_prime": "method.clusters"},
    plots=dict.fromkeys(("table1", "table2", "table6", "table7"), by_type)
    | {"table3": clustering_by_count},
    figures={
        "fig3": Figure(purities(), type_maps),
        "quirks": Figure(
            QUIRKS,
            quirk_bars,
            "Own study: what each departure of the published code from the paper is worth in Avg",
        ),
        "grouping": Figure(
            GROUPING,
            grouped_on,
            "Own study: what is the grouping worth? Clients grouped by h, by the frozen feature, "
            "and by their true types",
        ),
        "spot": Figure(
            SPOT,
            by_type,
            "Own study: does it carry over to a real ViT? Table 6 at DIF 10 on ViT-Tiny/16, 128 px",
        ),
        "spot_rates": Figure(
            RATES,
            by_type,
            "Own study: the rates of the spot check. Accuracy on validation images, ViT-Tiny/16",
        ),
        "rounds": Figure(
            ROUNDS,
            validation_curves,
            "Own study: how many rounds are enough? Accuracy on validation images, tuned",
        ),
        "settings": Figure(
            SETTINGS,
            by_type,
            "Own study: what is clustered, whether h is normalised, how many prompts. Avg on "
            "validation images, tuned",
        ),
        "halves": Figure(
            HALVES,
            by_type,
            "Own study: FedGCR's halves at its own rate, and FedGR at the rate of plain prompts",
        ),
        "precision": Figure(
            PRECISION,
            by_type,
            "Own study: what do bfloat16 blocks change? Table 6 at DIF 10 in both precisions",
        ),
        "protocols": Figure(
            PROTOCOLS,
            protocols_side_by_side,
            "Own study: how much of the printed lead is the protocol? One rate for all, the "
            "authors' departures, and every method tuned with the same budget",
        ),
    },
    grid=GRID,
    claims=CLAIMS,
)
