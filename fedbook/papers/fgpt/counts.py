"""What FGPT's Tables 2 and 10 count: parameters and FLOPs at ViT-B/16, without allocating weights.

Counting takes seconds, so what was counted is kept in `counted.csv`; `write()` counts again, and a
test compares.
"""

from __future__ import annotations

import csv
import dataclasses
from functools import cache
from pathlib import Path

from fedbook.papers.fgpt.scales import PRINTED, experiment
from fedbook.papers.rows import Row, read_csv, read_rows

FOLDER = Path(__file__).parent
TABLES = ("table2_parameters", "table10_resources")


@cache
def count_parameters(row: Row) -> float:
    """Table 2, counted on networks of 100 classes whose weights are never allocated."""
    import torch

    with torch.device("meta"):
        if row["architecture"] != "vit_b16":
            import torchvision

            network = getattr(torchvision.models, row["architecture"])(num_classes=100)
        else:
            from timm import create_model

            classes = 100 if row.method == "fedavg" else 0
            network = create_model("vit_base_patch16_224", num_classes=classes)
        if row.method == "fgpt":
            from fedbook.models import prompts

            network = prompts.fgpt(100, backbone=network)
    return float(sum(p.numel() for p in network.parameters() if p.requires_grad))


@cache
def cost_of(method: str) -> tuple[float, float]:
    """FLOPs of one update and of one test of an image at ViT-B/16, 224 px, FGPT's query not
    included.
    """
    from fedbook import cost

    row = Row(settings={"dataset": "cifar100", "s": 10}, method=method)
    e = experiment(row, PRINTED, 0)
    assert e is not None
    e = dataclasses.replace(e, method={**e.method, "epochs": 1})
    counted = cost.cost(e, (3, 224, 224), 100, [500] * 100)
    return 1e9 * counted["gflop_per_image_and_round"], 1e9 * counted["gflop_per_image_tested"]


@cache
def cost_of_query(light: bool) -> float:
    """FLOPs of the pass that chooses the group: the plain ViT-B/16, or ResNet-50."""
    import torch
    import torchvision
    from timm import create_model

    from fedbook.cost import Counter

    with torch.device("meta"), torch.no_grad(), Counter() as counter:
        if light:
            network = torchvision.models.resnet50()
        else:
            network = create_model("vit_base_patch16_224", num_classes=0)
        network.eval()(torch.zeros(1, 3, 224, 224))
    return float(counter.flops)


def count_flops(row: Row) -> float:
    """Table 10, per image; a client's turn is played without doing its arithmetic (`fedbook.cost`).

    An update is one epoch over the image with what the method adds: MOON's two reference passes,
    FedMix's derivative with respect to the image. The last layer is computed for the class token
    only. pFedHN's hypernetwork runs on the server and is not counted.
    """
    update, test = cost_of("fgpt" if row.method == "fgpt_resnet" else row.method)
    if row.metric in ("training_flops_per_update", "total_flops_coefficient_of_updates"):
        return update
    query = cost_of_query(row.method == "fgpt_resnet") if row.method.startswith("fgpt") else 0.0
    if row.metric in ("embedding_inference_flops", "total_flops_term_embedding"):
        return query
    return test + query


def count(row: Row) -> float:
    """A number of Table 2 or 10, counted now."""
    return count_parameters(row) if row["architecture"] else count_flops(row)


@cache
def kept() -> dict[tuple[str, str, str], float]:
    """What was counted, by setting, method and metric."""
    lines = read_csv(FOLDER / "counted.csv")
    return {(r["setting"], r["method"], r["metric"]): float(r["value"]) for r in lines}


def counted(row: Row) -> float:
    """A number of Table 2 or 10 as it was counted."""
    return kept()[row.setting, row.method, row.metric]


def to_count() -> list[Row]:
    """The rows of Tables 2 and 10 that need no training."""
    rows = [r for name in TABLES for r in read_rows(FOLDER / "published" / f"{name}.csv")]
    return [r for r in rows if r.metric != "accuracy"]


def write() -> None:
    """Count everything again."""
    from fedbook.files import write_atomically

    with write_atomically(FOLDER / "counted.csv") as part, open(part, "w", newline="") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(["setting", "method", "metric", "value"])
        for row in to_count():
            out.writerow([row.setting, row.method, row.metric, f"{count(row):.12g}"])
