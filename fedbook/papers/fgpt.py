"""FGPT (2023): Tables 1-4, 6-11 and Figures 2, 3. Shared and group prompts on a frozen ViT, few
classes per client."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

from fedbook.experiment import Experiment
from fedbook.papers.draw import (
    by_prompt_rate,
    global_against_worst,
    learning_curves,
    seen_and_unseen,
)
from fedbook.papers.spec import Figure, Row
from fedbook.papers.tune import Grid

SGD = {
    "optimizer": "sgd",
    "lr": 1e-2,
    "momentum": 0.9,
    "weight_decay": 1e-5,
    "epochs": 5,
    "batch_size": 40,
}
LATE = list(range(50, 100))  # the bundled backbone saw classes 0-49
SCALES: dict[str, dict[str, Any]] = {
    "smoke": {
        "seeds": 1,
        "rounds": 4,
        "evaluate_every": 4,
        "tail": 1,
        "data": {
            "cifar100": {"name": "digits5_offline"},
            "five_dataset": {"name": "digits5_offline"},
        },
        "clients": {"cifar100": 100, "five_dataset": [4] * 5},
        "sizes": [[60] * 4] * 5,
        "participation": {"cifar100": 3, "five_dataset": 4},
        "classes_per_client": {10: 4, 5: 2},
        "backbone": "hybrid",
        "local": {**SGD, "epochs": 1},
    },
    "laptop": {
        "seeds": 3,
        "seeds_of": dict.fromkeys(
            ("table3", "table4", "table6", "table7", "table8", "table9", "table10", "table11"), 1
        ),
        "rounds": 20,
        "evaluate_every": 2,
        "tail": 5,
        "limit": [60, 16],
        "per_client": 60,
        "data": {
            "cifar100": {"name": "cifar100", "classes": LATE},
            "cifar100_c": {"name": "cifar100_c", "classes": LATE},
            "five_dataset": {"name": "five_dataset_chars74k"},
        },
        "clients": {"cifar100": 50, "cifar100_c": 50, "five_dataset": [4] * 5},
        "participation": {"cifar100": 5, "cifar100_c": 5, "five_dataset": 2},
        "classes_per_client": {10: 5, 5: 3, 2: 2},
        "backbone": "hybrid",
        "local": {**SGD, "lr": 1e-1, "epochs": 2, "batch_size": 20},
        "fgpt": {"lr": 1e-1},  # these six: see GRID
        "pt_fedavg": {"lr": 1e-1},
        "pfedhn": {"lr": 1e-1, "server_lr": 0.1},
        "fed_dualprompt": {"lr": 1e-1, "pull": 1.0},
        "moon": {"lr": 1e-1, "mu": 0.1},
        "fedmix": {"lr": 1e-1, "lam": 0.01},
    },
    "paper": {
        "seeds": 3,
        "rounds": 60,
        "tail": 10,
        "data": {n: {"name": n, "size": 224} for n in ("cifar100", "cifar100_c", "five_dataset")},
        "clients": {"cifar100": 100, "cifar100_c": 50, "five_dataset": [4] * 5},
        "participation": {"cifar100": 0.05, "cifar100_c": 0.1, "five_dataset": 0.1},
        "classes_per_client": {10: 10, 5: 5, 2: 2},
        "backbone": "vit_base_patch16_224.augreg_in21k",
        "local": SGD,
    },
}
METRICS = {
    "accuracy": "tail",
    "seen_accuracy": "avg_sample",
    "unseen_accuracy": "unseen.avg_sample",
} | {
    name: f"extra.update.{name}"
    for name in (
        "shared_prompt_similarity",
        "group_prompt_similarity_global",
        "group_prompt_similarity_local",
    )
}
VARIANTS: dict[str, dict[str, Any]] = {
    "fgpt_u": {"name": "fgpt"},
    "fgpt_random_key": {"name": "fgpt"},
    "fgpt_resnet": {"name": "fgpt"},
    "fgpt_fedmix": {"name": "fgpt", "base": "fedmix"},
    "pt_fedavg_share": {"name": "pt_fedavg"},
}
MODELS: dict[
    str, dict[str, Any]
] = {  # all others: FGPT's prompts with one group, as Table 11's PT-FedAvg
    "fgpt": {"name": "fgpt"},
    "fgpt_u": {"name": "fgpt", "top_k": 5},
    "fgpt_random_key": {"name": "fgpt", "keys": "random"},
    "fgpt_resnet": {"name": "fgpt", "selector": "light"},
    "fgpt_fedmix": {"name": "fgpt"},
    "fed_dualprompt": {"name": "fgpt", "learn_keys": True},
    "pt_fedavg_share": {"name": "vpt"},
}
GROUPS = {
    10: 20,
    5: 25,
    2: 25,
}  # classes per client -> G: the best of Table 3; for 2 nothing is printed

# How hyper-parameters are chosen (fedbook tune fgpt): for every method five trials, three learning
# rates with its own knob as first listed, then two more values of the knob at the best rate;
# PT-FedAvg and FGPT try two more rates.
GRID = Grid(
    on=({"dataset": "cifar100", "partition": "pathological", "s": 5},),
    lr=(2e-2, 5e-2, 1e-1),
    more_lr=(1e-2, 2e-1),
    knobs={
        "fgpt": None,
        "pt_fedavg": None,
        "pfedhn": ("server_lr", (0.1, 0.01, 1.0)),
        "fed_dualprompt": ("pull", (1.0, 0.1, 0.01)),
        "moon": ("mu", (1.0, 0.1, 5.0)),
        "fedmix": ("lam", (0.05, 0.01, 0.2)),
    },
    score="avg_sample",
)


def experiment(row: Row, scale: dict[str, Any], seed: int) -> Experiment | None:
    """Mean accuracy over the last rounds, pooled over the clients' own test samples."""
    dataset = row["dataset"]
    if dataset not in scale["data"]:
        return None
    clients = scale["clients"][dataset]
    if dataset == "five_dataset":
        partition: dict[str, Any] = {
            "name": "by_domain",
            "counts": clients,
            "sizes": scale.get("sizes", "equal"),
            "shuffle": True,
        }
    elif row["partition"] == "dirichlet":
        each = scale.get("per_client", 500)
        partition = {
            "name": "pachinko",
            "clients": clients,
            "per_client": each,
            "beta": row["beta"],
            "beta_f": 10.0,
        }
        if scale["data"][dataset]["name"] != "cifar100":  # nothing else has coarse labels
            return None
    elif row["s"] in scale["classes_per_client"]:
        partition = {
            "name": "pathological",
            "clients": clients,
            "s": scale["classes_per_client"][row["s"]],
        }
    else:
        return None
    if "limit" in scale:
        partition["limit"] = scale["limit"]
    model = MODELS.get(row.method, {"name": "vpt", "extra": 1}) | {
        "backbone": scale["backbone"],
        "prompts": 5,
    }
    if model["name"] == "fgpt":
        usual = 5 if dataset == "five_dataset" else GROUPS.get(row["s"], 20)
        model |= {"groups": row["num_groups"] or usual}
    model |= {"top_k": row["top_k"]} if (row["top_k"] or 1) > 1 else {}
    variant = VARIANTS.get(row.method, {})
    settings = scale.get(variant.get("base") or variant.get("name", row.method), {})
    method = {"name": row.method} | variant | scale["local"] | settings
    method["participation"] = scale["participation"][dataset]
    if row["local_epochs"]:  # E = 5 is what a scale's own number of epochs stands for
        method["epochs"] = max(1, round(method["epochs"] * row["local_epochs"] / 5))
    if (times := row["times_prompt_lr"] or 1) != 1:
        own = {"lr": times * method["lr"]}
        method["groups"] = [[pattern, own] for pattern in ("prompts.*", "groups.*")]
    every, tail, unseen = scale.get("evaluate_every", 1), scale["tail"], row["unseen"] or 0
    parts = scale["data"][dataset], partition, model, method, scale["rounds"], seed, scale["name"]
    return Experiment(*parts, evaluate_every=every, tail=tail, unseen=unseen)


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

            network = create_model(
                "vit_base_patch16_224", num_classes=100 if row.method == "fedavg" else 0
            )
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

    e = experiment(
        Row({"dataset": "cifar100", "s": 10}, method, ""), dict(SCALES["paper"], name="paper"), 0
    )
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
        network = (
            torchvision.models.resnet50()
            if light
            else create_model("vit_base_patch16_224", num_classes=0)
        )
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
    return (
        query
        if row.metric in ("embedding_inference_flops", "total_flops_term_embedding")
        else test + query
    )


MAIN = ("fgpt", "fgpt_u", "pt_fedavg", "pfedhn", "fed_dualprompt", "moon", "fedmix")
PATHOLOGICAL: tuple[dict[str, Any], ...] = tuple(
    {"dataset": "cifar100", "partition": "pathological", "s": s} for s in (10, 5)
)
FIVE: dict[str, Any] = {"dataset": "five_dataset", "partition": "by_dataset"}
PLOTS = {"table1": learning_curves}
COUNTS = {"table2": count_parameters, "table10": count_flops}
FIGURES = {
    "fig2": Figure(
        tuple(Row(s, m, "worst_client", "percent") for s in (*PATHOLOGICAL, FIVE) for m in MAIN),
        global_against_worst,
    ),
    "unseen": Figure(
        tuple(
            Row({**PATHOLOGICAL[1], "unseen": 10}, m, metric, "percent")
            for m in ("fgpt", "pt_fedavg", "pfedhn")
            for metric in ("seen_accuracy", "unseen_accuracy")
        ),
        seen_and_unseen,
        "Own study: clients that were never sampled, tested without fine-tuning",
    ),
    "prompt_rate": Figure(
        tuple(
            Row(
                {**PATHOLOGICAL[1], "times_prompt_lr": times},
                m,
                metric,
                "percent" if metric == "accuracy" else "",
            )
            for m in ("pt_fedavg", "fgpt")
            for times in (1, 10, 50)
            for metric in ("accuracy", "shared_prompt_similarity", "group_prompt_similarity_local")
        ),
        by_prompt_rate,
        "Own study: do the prompts move enough? A higher learning rate for prompts than for the "
        "head",
    ),
    "fig3": Figure(
        tuple(Row(s, m, "accuracy", "percent") for s in PATHOLOGICAL for m in MAIN), learning_curves
    ),
}
