"""FGPT: Tables 1-4, 6-11, Figures 2 and 3, and our own studies: unseen clients, the prompts'
rate, precision, a real ViT, an oracle's groups, and more images.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

from fedbook.papers.draw import learning_curves
from fedbook.papers.fgpt import measures as measures
from fedbook.papers.fgpt.claims import CLAIMS
from fedbook.papers.fgpt.counts import counted
from fedbook.papers.fgpt.figures import (
    accuracy_curves,
    by_prompt_rate,
    global_against_worst,
    grouped_by,
    seen_and_unseen,
)
from fedbook.papers.fgpt.scales import GRID, METRICS, SCALES, experiment
from fedbook.papers.paper import Figure, Paper
from fedbook.papers.rows import Row

MAIN = ("fgpt", "fgpt_u", "pt_fedavg", "pfedhn", "fed_dualprompt", "moon", "fedmix")
TEN, FEW = ({"dataset": "cifar100", "partition": "pathological", "s": s} for s in (10, 5))
FIVE = {"dataset": "five_dataset", "partition": "by_dataset"}


def row(settings: dict[str, Any], method: str, metric: str, unit: str = "percent") -> Row:
    return Row(settings=settings, method=method, metric=metric, unit=unit)


def prompt_rates() -> tuple[Row, ...]:
    """Accuracy and similarity of prompts as the prompts' rate is multiplied."""
    rows = []
    for method, times in product(("pt_fedavg", "fgpt"), (1, 10, 50)):
        where = {**FEW, "times_prompt_lr": times}
        rows.append(row(where, method, "accuracy"))
        for name in ("shared_prompt_similarity", "group_prompt_similarity_local"):
            rows.append(row(where, method, name, ""))
    return tuple(rows)


PRECISION = tuple(
    row({**where, "precision": precision}, method, "accuracy")
    for where, precision, method in product(
        (TEN, FEW), ("float32", "bfloat16"), ("pt_fedavg", "fgpt")
    )
)
VIT_TINY = "vit_tiny_patch16_224.augreg_in21k_ft_in1k@128+bf16"
SPOT = tuple(  # with the best baseline of the grid
    row({**FEW, "backbone": VIT_TINY}, method, "accuracy")
    for method in ("pt_fedavg", "pfedhn", "fgpt")
)
GROUPING = tuple(
    row({**where, "groups_by": by}, "pt_fedavg" if by == "nothing" else "fgpt", "accuracy")
    for where, oracle in ((FEW, "classes"), (FIVE, "types"))
    for by in ("nothing", "keys", oracle)
)
IMAGES = tuple(row({**FEW, "images": 500}, m, "accuracy") for m in ("pt_fedavg", "fgpt"))
UNSEEN = product(("fgpt", "pt_fedavg", "pfedhn"), ("seen_accuracy", "unseen_accuracy"))
PAPER = Paper(
    key="fgpt",
    title="FGPT",
    reference=(
        "Deng, Thrampoulidis and Li: Heterogeneous Federated Learning with Group-Aware Prompt "
        "Tuning. arXiv:2310.18285v1, 2023"
    ),
    published=Path(__file__).parent / "published",
    scales=SCALES,
    experiment=experiment,
    metrics=METRICS,
    as_run={
        "s": "partition.s",
        "local_epochs": "method.epochs",
        "participation": "method.participation",
    },
    plots={"table1": learning_curves},
    counts={"table2": counted, "table10": counted},
    figures={
        "fig2": Figure(
            tuple(row(s, m, "worst_client") for s in (TEN, FEW, FIVE) for m in MAIN),
            global_against_worst,
        ),
        "fig3": Figure(
            tuple(row(s, m, "accuracy") for s in (TEN, FEW) for m in MAIN), accuracy_curves
        ),
        "unseen": Figure(
            tuple(row({**FEW, "unseen": 10}, m, metric) for m, metric in UNSEEN),
            seen_and_unseen,
            "Own study: clients that were never sampled, tested without fine-tuning",
        ),
        "prompt_rate": Figure(
            prompt_rates(),
            by_prompt_rate,
            "Own study: do the prompts move enough? A higher learning rate for prompts than for "
            "the head",
        ),
        "spot": Figure(
            SPOT,
            learning_curves,
            "Own study: does it carry over to a real ViT? CIFAR-100 at s = 5 on ViT-Tiny/16, 128 "
            "px, a fifth of the rounds",
        ),
        "precision": Figure(
            PRECISION,
            learning_curves,
            "Own study: what do bfloat16 blocks change? FGPT and PT-FedAvg in both precisions",
        ),
        "grouping": Figure(
            GROUPING,
            grouped_by,
            "Own study: groups by an oracle, the domain or a cluster of classes, instead of keys",
        ),
        "images": Figure(
            IMAGES,
            learning_curves,
            "Own study: do group prompts get enough images? All 500 of a client at s = 5",
        ),
    },
    grid=GRID,
    claims=CLAIMS,
)
