"""FGPT's runs: shared and group prompts on a frozen ViT, few classes per client.

Laptop scale has the published clients, participation, epochs and rounds, with a fifth of each
client's images, and keeps the frozen blocks in bfloat16; `fgpt/precision` says what that changes.
The study of the prompts' rate is of float32. The spot check on a ViT-Tiny takes 12 rounds, the
study with all of a client's images 24.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedbook.experiment import Experiment
from fedbook.papers.paper import Options, Scale
from fedbook.papers.rows import Row
from fedbook.papers.tune import Grid


@dataclass(frozen=True, kw_only=True)
class Clients:
    """Who holds what: clients and participation by dataset, and for each printed s the classes per
    client. The mean over the last `tail` evaluations is the score.
    """

    backbone: str
    clients: Mapping[str, int | list[int]]
    participation: Mapping[str, float]
    classes: Mapping[int, int]
    tail: int
    sizes: str | list[list[int]] = "equal"  # of the clients of Five-Dataset
    per_client: int = 500  # samples of a client of the Dirichlet split
    limit: list[int] | None = None


SGD = {
    "optimizer": "sgd",
    "lr": 1e-2,
    "momentum": 0.9,
    "weight_decay": 1e-5,
    "epochs": 5,
    "batch_size": 40,
}
TUNED = ("fgpt", "pt_fedavg", "pfedhn", "fed_dualprompt", "moon", "fedmix")
SWEEPS = tuple(f"table{n}" for n in (3, 7, 8, 9, 10, 11))
MAIN = ("table1", "fig2", "fig3")

SMOKE = Scale(
    name="smoke",
    rounds=4,
    evaluate_every=4,
    data=dict.fromkeys(("cifar100", "five_dataset"), {"name": "digits5_offline"}),
    solver={**SGD, "epochs": 1},
    own=Clients(
        backbone="hybrid",
        clients={"cifar100": 100, "five_dataset": [4] * 5},
        participation={"cifar100": 3, "five_dataset": 4},
        classes={10: 4, 5: 2},
        tail=1,
        sizes=[[60] * 4] * 5,
        limit=[10_000, 40],
    ),
)
LAPTOP = Scale(
    name="laptop",
    rounds=60,
    evaluate_every=4,
    seeds=2,
    seeds_of={**dict.fromkeys((*SWEEPS, "spot", "images"), 1), **dict.fromkeys(MAIN, 3)},
    data={
        "cifar100": {"name": "cifar100"},
        "cifar100_c": {"name": "cifar100_c"},
        "five_dataset": {"name": "five_dataset_chars74k"},
    },
    solver={**SGD, "lr": 1e-1},
    methods={**dict.fromkeys(TUNED, {"lr": 1e-1}), "moon": {"lr": 3e-1}},  # chosen by GRID
    own=Clients(
        backbone="hybrid+bf16",
        clients={"cifar100": 100, "cifar100_c": 50, "five_dataset": [4] * 5},
        participation={"cifar100": 5, "cifar100_c": 5, "five_dataset": 2},
        classes={10: 10, 5: 5, 2: 2},
        tail=3,  # of every fourth round: the last ten
        per_client=100,
        limit=[100, 40],
    ),
)
SPOT = replace(LAPTOP, rounds=12, own=replace(LAPTOP.own, tail=1))
WHOLE = replace(LAPTOP, own=replace(LAPTOP.own, backbone="hybrid"))
EVERY = replace(LAPTOP, rounds=24, own=replace(LAPTOP.own, limit=[500, 40]))
LAPTOP = replace(LAPTOP, sized={"spot": SPOT, "prompt_rate": WHOLE, "images": EVERY})
PRINTED = Scale(
    name="paper",
    rounds=60,
    seeds=3,
    data={n: {"name": n, "size": 224} for n in ("cifar100", "cifar100_c", "five_dataset")},
    solver=SGD,
    own=Clients(
        backbone="vit_base_patch16_224.augreg_in21k",
        clients={"cifar100": 100, "cifar100_c": 50, "five_dataset": [4] * 5},
        participation={"cifar100": 0.05, "cifar100_c": 0.1, "five_dataset": 0.1},
        classes={10: 10, 5: 5, 2: 2},
        tail=10,
    ),
)
SCALES = (SMOKE, LAPTOP, PRINTED)
METRICS = {
    "accuracy": "tail",
    "seen_accuracy": "avg_sample",
    "unseen_accuracy": "unseen.avg_sample",
    "shared_prompt_similarity": "log.shared_prompt_similarity",
    "group_prompt_similarity_global": "log.group_prompt_similarity_global",
    "group_prompt_similarity_local": "log.group_prompt_similarity_local",
}
VARIANTS: dict[str, Options] = {
    "fgpt_u": {"name": "fgpt"},
    "fgpt_random_key": {"name": "fgpt"},
    "fgpt_resnet": {"name": "fgpt"},
    "fgpt_fedmix": {"name": "fgpt", "base": "fedmix"},
    "pt_fedavg_share": {"name": "pt_fedavg"},
}
MODELS: dict[str, Options] = {  # all others have one group, as Table 11's PT-FedAvg
    "fgpt": {"name": "fgpt"},
    "fgpt_u": {"name": "fgpt", "top_k": 5},
    "fgpt_random_key": {"name": "fgpt", "keys": "random"},
    "fgpt_resnet": {"name": "fgpt", "selector": "light"},
    "fgpt_fedmix": {"name": "fgpt"},
    "fed_dualprompt": {"name": "fgpt", "learn_keys": True},
    "pt_fedavg_share": {"name": "vpt"},
}
GROUPS = {10: 20, 5: 25, 2: 25}  # s -> G: the best of Table 3; for 2 nothing is printed

# For every method three learning rates, for a third of a run. Other knobs are as printed, or as in
# the method's own paper.
GRID = Grid(
    on=({"dataset": "cifar100", "partition": "pathological", "s": 5},),
    lr=(3e-2, 1e-1, 3e-1),
    more_lr=(),
    knobs=dict.fromkeys(TUNED),
    score="avg_sample",
    part=1 / 3,
)


def experiment(row: Row, scale: Scale[Clients], seed: int) -> Experiment | None:
    """Mean accuracy over the last rounds, pooled over the clients' own test samples."""
    if row["dataset"] not in scale.data:
        return None
    if (row["backbone"] or row["precision"] or row["images"]) and scale.name != "laptop":
        return None
    partition = _partition(row, scale)
    if partition is None:
        return None
    unseen = {"name": "unseen", "clients": row["unseen"]}
    return Experiment(
        dataset=scale.data[row["dataset"]],
        partition=partition,
        model=_model(row, scale.own),
        method=_method(row, scale),
        rounds=scale.rounds,
        seed=seed,
        scale=scale.name,
        evaluate_every=scale.evaluate_every,
        tail=scale.own.tail,
        measures=(unseen,) if row["unseen"] else (),
    )


def _partition(row: Row, scale: Scale[Clients]) -> Options | None:
    dataset = row["dataset"]
    own = scale.own
    partition: Options = {"clients": own.clients[dataset]}
    if dataset == "five_dataset":
        counts = partition.pop("clients")
        partition |= {"name": "by_domain", "counts": counts, "sizes": own.sizes, "shuffle": True}
    elif row["partition"] == "dirichlet":
        if scale.data[dataset]["name"] != "cifar100":
            return None  # nothing else has coarse labels
        partition |= {"name": "pachinko", "per_client": own.per_client}
        partition |= {"beta": row["beta"], "beta_f": 10.0}
    elif row["s"] in own.classes:
        partition |= {"name": "pathological", "s": own.classes[row["s"]]}
    else:
        return None
    if own.limit is not None:
        partition["limit"] = own.limit
    return partition


def _model(row: Row, own: Clients) -> Options:
    model = MODELS.get(row.method, {"name": "vpt", "extra": 1})
    model = model | {"backbone": row["backbone"] or own.backbone, "prompts": 5}
    if row["precision"] == "float32":
        model["backbone"] = own.backbone.removesuffix("+bf16")
    if model["name"] == "fgpt":
        usual = 5 if row["dataset"] == "five_dataset" else GROUPS.get(row["s"], 20)
        model["groups"] = row["num_groups"] or usual
        if row["groups_by"] not in (None, "keys"):
            model["keys"] = row["groups_by"]
    if (row["top_k"] or 1) > 1:
        model["top_k"] = row["top_k"]
    return model


def _method(row: Row, scale: Scale[Clients]) -> Options:
    method: dict[str, Any] = {"name": row.method} | VARIANTS.get(row.method, {})
    tuned = method.get("base", method["name"])
    method |= scale.solver | scale.methods.get(tuned, {})
    method["participation"] = scale.own.participation[row["dataset"]]
    if row["local_epochs"]:  # E = 5 is what a scale's own number of epochs stands for
        method["epochs"] = max(1, round(method["epochs"] * row["local_epochs"] / 5))
    times = row["times_prompt_lr"] or 1
    if times != 1:
        own = {"lr": times * method["lr"]}
        method["param_groups"] = [[pattern, own] for pattern in ("prompts.*", "groups.*")]
    return method
