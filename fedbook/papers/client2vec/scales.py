"""Client2Vec's runs: an index of each client, used in three places of a round.

Laptop scale has the published federation of CIFAR-10: 100 clients by Dirichlet(0.1), ten of which
train five epochs in each of 100 rounds, on images of 32 x 32 pixels. The network, a CNN of 70
thousand parameters, has 51.2, 49.4 and 49.8 % (three seeds) with FedAvg on validation images
(`pilot`); print has 42.2 % on test images. PACS stands for DomainNet, ten clients a domain, with a
ResNet-8. Shakespeare has the published tenth of all samples, roles as clients, of each at most 300
samples of 40 characters. The sweeps have a smaller federation (`SMALL`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fedbook.experiment import Experiment
from fedbook.papers.paper import Options, Scale
from fedbook.papers.rows import Row
from fedbook.papers.tune import Grid


@dataclass(frozen=True, kw_only=True)
class Indexing:
    """Clients by dataset, networks by the paper's name, and how the index is made: of the printed
    epochs only `index_share` are trained. `methods_of` holds what was chosen for a dataset other
    than the grid's.
    """

    clients: Mapping[str, int | list[int]]
    models: Mapping[str, Options]
    index: Options = field(default_factory=dict)
    index_share: float = 1.0
    sizes: str | list[list[int]] = "equal"  # of DomainNet's clients
    limit: Mapping[str, list[int]] = field(default_factory=dict)
    solver_of: Mapping[str, Options] = field(default_factory=dict)  # by dataset
    methods_of: Mapping[str, Mapping[str, Options]] = field(default_factory=dict)


SGD = {"optimizer": "sgd", "lr": 1e-2, "epochs": 5, "weight_decay": 5e-5, "participation": 0.1}
INDEX = ("fig2", "fig7", "fig8", "fig9")  # no training but the index's
SWEEPS = (*(f"table{n}" for n in (2, 4, 5, 6, 7, 8)), "fig5", *INDEX)
ONE_SEED = tuple(name for name in (*SWEEPS, "table9", "local") if name not in INDEX)
SMALL_CCT = {"name": "cct", "layers": 1, "width": 32, "heads": 2}

SMOKE = Scale(
    name="smoke",
    rounds=6,
    evaluate_every=2,
    data={
        **dict.fromkeys(("cifar10", "domainnet"), {"name": "digits5_offline", "size": 16}),
        "shakespeare": {"name": "roles_offline"},
    },
    solver={**SGD, "lr": 0.1, "epochs": 2, "batch_size": 32},
    own=Indexing(
        clients={"cifar10": 20, "domainnet": [4] * 5},
        sizes=[[80] * 4] * 5,
        models={
            "resnet18": {"name": "cnn", "width": 8, "hidden": 32},
            "mobilenet_v2": {"name": "cnn", "width": 6, "hidden": 32},
            "vit_cct_7_3x1": SMALL_CCT,
            "lstm": {"name": "lstm", "hidden": 32, "layers": 1},
        },
        index={
            "index_encoder": "offline/hybrid+ngram",
            "index_ffn": 64,
            "index_limit": 32,
            "index_samples": 32,
        },
        index_share=0.01,
    ),
)
SMALL = Scale(  # for the sweeps: half the clients, images of 16 x 16 pixels, a third of the rounds
    name="laptop",
    rounds=30,
    evaluate_every=3,
    data={
        "cifar10": {"name": "cifar10", "size": 16},
        "domainnet": {"name": "pacs", "size": 32},
    },
    solver={**SGD, "lr": 1e-1, "epochs": 2, "batch_size": 20},
    methods={  # chosen by SMALL_GRID
        "fedavg": {"lr": 0.1},
        "fedavgm": {"lr": 0.05, "server_momentum": 0.7},
        "feddyn": {"lr": 0.1, "alpha": 0.01},
        "moon": {"lr": 0.1, "mu": 1.0},
        "fedlc": {"lr": 0.1, "tau": 0.5},
        "fediir": {"lr": 0.1, "penalty": 0.001},
        "client2vec": {"lr": 0.1, "weight": 1.0},
    },
    own=Indexing(
        clients={"cifar10": 50, "domainnet": [10] * 4},
        limit={"cifar10": [400, 100], "domainnet": [300, 60]},
        models={
            "resnet18": {"name": "cnn", "width": 8, "hidden": 64},
            "mobilenet_v2": {"name": "cnn", "width": 6, "hidden": 48},
            "vit_cct_7_3x1": SMALL_CCT,
        },
        index={"index_ffn": 64, "index_limit": 32, "index_samples": 16},
        index_share=0.12,
    ),
)
PACS: dict[str, Options] = {  # chosen by PACS_GRID
    "fedavg": {"lr": 0.05},
    "fedavgm": {"lr": 0.1, "server_momentum": 0.7},
    "feddyn": {"lr": 0.1, "alpha": 0.01},
    "moon": {"lr": 0.05, "mu": 1.0},
    "client2vec": {"lr": 0.05, "weight": 0.2},
}
TEXT: dict[str, Options] = {  # chosen by TEXT_GRID
    "fedavg": {"lr": 2.0},
    "fedavgm": {"lr": 0.5, "server_momentum": 0.7},
    "feddyn": {"lr": 1.0, "alpha": 0.01},
    "moon": {"lr": 2.0, "mu": 1.0},
    "fedlc": {"lr": 2.0, "tau": 0.5},  # not tuned
    "client2vec": {"lr": 2.0, "weight": 0.2},
}
LAPTOP = Scale(
    name="laptop",
    rounds=100,
    evaluate_every=5,
    seeds=3,
    seeds_of=dict.fromkeys(ONE_SEED, 1),
    sized=dict.fromkeys(SWEEPS, SMALL),
    data={
        "cifar10": {"name": "cifar10"},
        "domainnet": {"name": "pacs", "size": 32},
        "shakespeare": {"name": "shakespeare", "length": 40, "limit": 300},
    },
    solver={**SGD, "lr": 5e-2, "batch_size": 64},
    methods={  # the first four chosen by GRID, the others not tuned yet: FedAvg's rate
        "fedavg": {"lr": 0.05},
        "fedavgm": {"lr": 0.025, "server_momentum": 0.7},
        "feddyn": {"lr": 0.1, "alpha": 0.01},
        "moon": {"lr": 0.1, "mu": 1.0},
        "fedlc": {"lr": 0.05, "tau": 0.5},
        "fediir": {"lr": 0.05, "penalty": 0.001},
    },
    own=Indexing(
        clients={"cifar10": 100, "domainnet": [10] * 4},
        limit={"cifar10": [2700, 500], "domainnet": [800, 200]},
        models={
            "resnet18": {"name": "cnn", "width": 8, "hidden": 64},
            "mobilenet_v2": {"name": "resnet_gn", "width": 8},
            "vit_cct_7_3x1": SMALL_CCT,
            "lstm": {"name": "lstm", "hidden": 64, "layers": 1},
        },
        methods_of={"domainnet": PACS, "shakespeare": TEXT},
        index={"index_ffn": 64, "index_limit": 64, "index_samples": 32},
        index_share=0.12,
    ),
)
PRINTED = Scale(
    name="paper",
    rounds=100,
    seeds=3,
    data={
        "cifar10": {"name": "cifar10"},
        "domainnet": {"name": "domainnet", "variant": "random50", "size": 64},
        "shakespeare": {"name": "shakespeare"},
    },
    solver={**SGD, "batch_size": 64},
    own=Indexing(
        clients={"cifar10": 100, "domainnet": [10] * 6},
        models={
            "resnet18": {"name": "resnet18", "pretrained": True},
            "mobilenet_v2": {"name": "mobilenet_v2", "pretrained": True},
            "vit_cct_7_3x1": {"name": "cct"},
            "lstm": {"name": "lstm"},
        },
        solver_of={"domainnet": {"momentum": 0.9}},
    ),
)
SCALES = (SMOKE, LAPTOP, PRINTED)
SIMILAR = ("within_similarity", "across_similarity", "nearest_domain_accuracy")
METRICS = {"accuracy": "best"} | {name: f"log.{name}" for name in SIMILAR}
NETWORKS = {"cifar10": "resnet18", "domainnet": "mobilenet_v2", "shakespeare": "lstm"}
OPTIONS = {  # a row's setting -> the option of client2vec
    "strategy": "strategy",
    "case_studies": "case_studies",
    "variant": "variant",
    "tau": "tau",
    "weight": "weight",
    "detach": "detach",
    "reduction": "reduction",
    "epochs": "index_epochs",
    "projection": "index_projection",
}
# What need not be said again, so that a sweep shares its usual point with the main table.
USUAL = {
    "variant": "client2vec",
    "index_projection": "linear",
    "reduction": "mean",
    "detach": False,
}
USUAL_OF = {"global": {"tau": 1.0, "weight": 5.0}, "federated": {"tau": 0.1, "weight": 1.0}}
# These indices have no part in that case study, and the table prints nothing.
IMPOSSIBLE = {
    ("local_model_weights", "i"),
    ("local_model_weights", "i+ii"),
    ("only_label_index", "i+ii+iii"),
    ("omit_orthogonal_regularization", "i"),
    ("omit_orthogonal_regularization", "i+ii"),
}
OURS = ("tau", "weight")  # client2vec has these itself: a base algorithm's are passed as base_...

# For every base algorithm three trials of 40 rounds on CIFAR-10, with two seeds each: three
# learning rates. With one seed FedAvg's was 0.1, at which the second seed diverges. Knobs are those
# that SMALL_GRID chose. The score is the best of eight tests: with ten of 100 clients a round, of
# few classes each, a single one is a matter of luck. FedLC and FedIIR are not tuned.
GRID = Grid(
    on=({"dataset": "cifar10"},),
    lr=(2.5e-2, 5e-2, 1e-1),
    more_lr=(),
    knobs={
        "fedavg": None,
        "fedavgm": ("server_momentum", (0.7,)),
        "feddyn": ("alpha", (0.01,)),
        "moon": ("mu", (1.0,)),
    },
    score="best",
    part=0.4,
    every=5,
    seeds=2,
)
# The same on PACS and Shakespeare. Then three trials of the weight of (iii), all three
# studies on FedAvg at its rate, GLOBAL index. Shakespeare has one seed: it tests many more samples.
WEIGHTS = {"client2vec": ("weight", (5.0, 1.0, 0.2))}
PACS_GRID = replace(GRID, on=({"dataset": "domainnet"},))
PACS_WEIGHT = replace(PACS_GRID, lr=(PACS["fedavg"]["lr"],), knobs=WEIGHTS)
TEXT_GRID = replace(GRID, on=({"dataset": "shakespeare"},), lr=(0.5, 1.0, 2.0), seeds=1)
TEXT_WEIGHT = replace(TEXT_GRID, lr=(TEXT["fedavg"]["lr"],), knobs=WEIGHTS)
ON_PACS, ON_TEXT = (
    replace(LAPTOP, methods=chosen, own=replace(LAPTOP.own, methods_of={}))
    for chosen in (PACS, TEXT)
)
# Of the smaller federation, four trials a method: two learning rates with its own knob as first
# listed, then two more values of the knob at the best rate; FedAvg tries two more rates. The same
# for Client2Vec's weight of (iii): all three studies on FedAvg, GLOBAL index; only the weight is
# used elsewhere.
SMALL_GRID = Grid(
    on=({"dataset": "cifar10"}, {"dataset": "domainnet"}),
    lr=(5e-2, 1e-1),
    more_lr=(2e-2, 2e-1),
    knobs={
        "fedavg": None,
        "fedavgm": ("server_momentum", (0.9, 0.5, 0.7)),
        "feddyn": ("alpha", (0.1, 0.01, 1.0)),
        "moon": ("mu", (1.0, 0.1, 5.0)),
        "fedlc": ("tau", (1.0, 0.1, 0.5)),
        "fediir": ("penalty", (1e-3, 1e-2, 1e-1)),
        "client2vec": ("weight", (1.0, 5.0, 0.2)),
    },
    score="avg_client",
)


def experiment(row: Row, scale: Scale[Indexing], seed: int) -> Experiment | None:
    """The base method alone, or inside client2vec(base, ...) where the row uses a case study.

    A row that asks for the index alone trains for one round.
    """
    dataset = row["dataset"]
    network = row["architecture"] or NETWORKS.get(dataset, "")
    if dataset not in scale.data or network not in scale.own.models:
        return None
    if row["strategy"] == "best" or (row["variant"], row["case_studies"]) in IMPOSSIBLE:
        return None  # follows from other rows, or prints nothing
    if row["validation"] and not scale.own.limit:
        return None  # the clients hold all images
    partition = _partition(row, scale.own)
    rounds = 1 if row["case_studies"] == "index" else scale.rounds
    if row["validation"]:  # on the images of a trial, and if nothing is said as long
        partition["test"] = "unused_match"
        rounds = row["rounds"] or max(1, round(GRID.part * rounds))
    return Experiment(
        dataset=scale.data[dataset],
        partition=partition,
        model=scale.own.models[network],
        method=_indexed(row, scale) if _uses_index(row) else _base(row, scale),
        rounds=rounds,
        seed=seed,
        scale=scale.name,
        evaluate_every=scale.evaluate_every,
    )


def _uses_index(row: Row) -> bool:
    named = row.method == "client2vec" or bool(row["client2vec"])
    return named or row["case_studies"] not in (None, "none")


def _base(row: Row, scale: Scale[Indexing]) -> Options:
    """The algorithm without an index; the paper's own row rests on FedAvg."""
    name = "fedavg" if row.method == "client2vec" else row.method
    method: Options = {"name": name} | scale.solver | scale.own.solver_of.get(row["dataset"], {})
    method |= _chosen(name, row, scale)
    return method | ({"lr": row["lr"]} if row["lr"] else {})


def _chosen(name: str, row: Row, scale: Scale[Indexing]) -> Options:
    """What a grid chose, on this dataset if there is one for it."""
    return {**scale.methods, **scale.own.methods_of.get(row["dataset"], {})}.get(name, {})


def _indexed(row: Row, scale: Scale[Indexing]) -> Options:
    """The algorithm inside client2vec, with what the row asks for and is not usual."""
    base = _base(row, scale)
    options: Options = {"strategy": "global", "case_studies": "i+ii+iii"}
    tuned = dict(_chosen("client2vec", row, scale))
    lr = tuned.pop("lr", base["lr"])
    if row.method == "client2vec":
        base["lr"] = lr
    if "iii" in (row["case_studies"] or "iii"):
        options |= tuned
    options |= {name: row[o] for o, name in OPTIONS.items() if row[o] is not None}
    epochs = options.get("index_epochs", 500)  # as printed
    usual = USUAL | USUAL_OF[options["strategy"]]
    options = {k: v for k, v in options.items() if v != usual.get(k)}
    method = {f"base_{k}" if k in OURS else k: v for k, v in base.items()}
    method |= scale.own.index | options
    method |= {"name": "client2vec", "base": base["name"]}
    method["index_epochs"] = max(1, round(epochs * scale.own.index_share))
    return method


def _partition(row: Row, own: Indexing) -> Options:
    """CIFAR-10 by Dirichlet(0.1) or two classes per client, DomainNet by domain, Shakespeare by
    role.
    """
    dataset = row["dataset"]
    if dataset == "shakespeare":
        return {"name": "by_group", "test": "domain"}
    clients = own.clients[dataset]
    limit = {"limit": own.limit[dataset]} if own.limit else {}
    if dataset == "domainnet":
        return {"name": "by_domain", "counts": clients, "sizes": own.sizes, "shuffle": True} | limit
    if row["partition"] == "two_classes_per_client":
        return {"name": "pathological", "clients": clients, "s": 2} | limit
    return {"name": "dirichlet", "clients": clients, "alpha": 0.1, "min_size": 10} | limit
