"""Client2Vec (2024): Tables 1-9, Figures 2, 4, 5, 7, 8, 9. An index of each client, used in three
places of a round."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from fedbook.experiment import Experiment
from fedbook.papers.draw import learning_curves
from fedbook.papers.draw_client2vec import (
    domain_map,
    epochs_and_aggregation,
    index_maps,
    ladder,
    local_training,
    sweeps,
)
from fedbook.papers.spec import Figure, Row, Run, Spec, lookup, read_rows
from fedbook.papers.tune import Grid

SGD = {"optimizer": "sgd", "lr": 1e-2, "epochs": 5, "weight_decay": 5e-5, "participation": 0.1}
SCALES: dict[str, dict[str, Any]] = {
    "smoke": {
        "seeds": 1,
        "rounds": 6,
        "evaluate_every": 2,
        "data": {
            **dict.fromkeys(("cifar10", "domainnet"), {"name": "digits5_offline", "size": 16}),
            "shakespeare": {"name": "roles_offline"},
        },
        "clients": {"cifar10": 20, "domainnet": [4] * 5},
        "sizes": [[80] * 4] * 5,
        "models": {
            **{
                n: {"name": "cnn", "width": w, "hidden": 32}
                for n, w in (("resnet18", 8), ("mobilenet_v2", 6))
            },
            "vit_cct_7_3x1": {"name": "cct", "layers": 1, "width": 32, "heads": 2},
            "lstm": {"name": "lstm", "hidden": 32, "layers": 1},
        },
        "local": {**SGD, "lr": 0.1, "epochs": 2, "batch_size": 32},
        "index": {
            "index_encoder": "offline/hybrid+ngram",
            "index_ffn": 64,
            "index_limit": 32,
            "index_samples": 32,
        },
        "index_share": 0.01,
    },
    "laptop": {
        "seeds": 3,
        "seeds_of": dict.fromkeys((f"table{n}" for n in range(2, 10)), 1)
        | dict.fromkeys((f"fig{n}" for n in (2, 4, 5, 7, 8, 9)), 1),  # the study `local` has three
        "rounds": 30,
        "evaluate_every": 3,
        "data": {
            "cifar10": {"name": "cifar10", "size": 16},
            "domainnet": {"name": "pacs", "size": 32},
            "shakespeare": {"name": "shakespeare", "fraction": 0.04, "length": 40, "limit": 60},
        },
        "clients": {"cifar10": 50, "domainnet": [10] * 4},
        "limit": {"cifar10": [400, 100], "domainnet": [300, 60]},
        "models": {
            "resnet18": {"name": "cnn", "width": 8, "hidden": 64},
            "mobilenet_v2": {"name": "cnn", "width": 6, "hidden": 48},
            "vit_cct_7_3x1": {"name": "cct", "layers": 1, "width": 32, "heads": 2},
            "lstm": {"name": "lstm", "hidden": 64, "layers": 1},
        },
        "fedavg": {"lr": 0.1},
        "fedavgm": {"lr": 0.05, "server_momentum": 0.7},
        "feddyn": {"lr": 0.1, "alpha": 0.01},
        "moon": {"lr": 0.1, "mu": 1.0},
        "fedlc": {"lr": 0.1, "tau": 0.5},
        "fediir": {"lr": 0.1, "penalty": 0.001},
        "client2vec": {"lr": 0.1, "weight": 1.0},  # these seven: see GRID
        "local": {**SGD, "lr": 1e-1, "epochs": 2, "batch_size": 20},
        "times_lr": {"shakespeare": 10},
        "index": {"index_ffn": 64, "index_limit": 32, "index_samples": 16},
        "index_share": 0.12,
    },
    "paper": {
        "seeds": 3,
        "rounds": 100,
        "data": {
            "cifar10": {"name": "cifar10"},
            "domainnet": {"name": "domainnet", "variant": "random50", "size": 64},
            "shakespeare": {"name": "shakespeare"},
        },
        "clients": {"cifar10": 100, "domainnet": [10] * 6},
        "models": {
            "resnet18": {"name": "resnet18", "pretrained": True},
            "mobilenet_v2": {"name": "mobilenet_v2", "pretrained": True},
            "vit_cct_7_3x1": {"name": "cct"},
            "lstm": {"name": "lstm"},
        },
        "local": {**SGD, "batch_size": 64},
        "domainnet": {"momentum": 0.9},
    },
}
METRICS = {"accuracy": "best"}
METRICS |= {
    n: f"extra.sample.{n}"
    for n in ("within_similarity", "across_similarity", "nearest_domain_accuracy")
}
NETWORKS = {"cifar10": "resnet18", "domainnet": "mobilenet_v2", "shakespeare": "lstm"}
OPTIONS = {n: n for n in ("strategy", "case_studies", "variant", "tau", "weight", "detach")}
OPTIONS |= {"epochs": "index_epochs", "projection": "index_projection"}
# What need not be said again, so that a sweep shares its usual point with the main table.
USUAL = {"variant": "client2vec", "index_projection": "linear"}
USUAL_OF = {"global": {"tau": 1.0, "weight": 5.0}, "federated": {"tau": 0.1, "weight": 1.0}}
# These indices have no part in that case study, and the table prints nothing.
IMPOSSIBLE = {
    ("local_model_weights", "i"),
    ("local_model_weights", "i+ii"),
    ("only_label_index", "i+ii+iii"),
}
IMPOSSIBLE |= {("omit_orthogonal_regularization", "i"), ("omit_orthogonal_regularization", "i+ii")}
OURS = {
    "tau",
    "weight",
}  # options that client2vec has itself: a base algorithm's are passed on as base_...

# How hyper-parameters are chosen (fedbook tune client2vec): for every base algorithm four trials,
# two learning rates with its own knob as first listed, then two more values of the knob at the best
# rate; FedAvg tries two more rates. The same for Client2Vec's weight of (iii): all three studies on
# FedAvg, GLOBAL index; only the weight is used elsewhere.
GRID = Grid(
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

# Own study: what of (iii) as printed stops the learning, one change at a time.
LOCAL: dict[str, dict[str, Any]] = {
    "without (iii)": {"case_studies": "none"},
    "printed, w = 5": {"weight": 5.0},
    "w = 1": {"weight": 1.0},
    "w = 0.2": {"weight": 0.2},
    "w = 5, KL alone": {"weight": 5.0, "variant": "omit_orthogonal_regularization"},
    "w = 5, KL detached": {"weight": 5.0, "detach": True},
}


def local_rows() -> tuple[Row, ...]:
    """(iii) alone on FedAvg, GLOBAL index."""
    base = {"strategy": "global", "case_studies": "iii"}
    return tuple(
        Row(
            {"dataset": d, "change": name}
            | (change if name.startswith("without") else base | change),
            "fedavg",
            "accuracy",
            "percent",
        )
        for d in ("cifar10", "domainnet")
        for name, change in LOCAL.items()
    )


def experiment(row: Row, scale: dict[str, Any], seed: int) -> Experiment | None:
    """The base method alone, or inside client2vec(base, ...) where the row uses a case study.

    A row that asks for the index alone trains for one round. Of the printed epochs E of the index
    (500 unless a row says otherwise) a scale may take a part: `index_share`.
    """
    dataset, network = row["dataset"], row["architecture"] or NETWORKS.get(row["dataset"], "")
    if dataset not in scale["data"] or network not in scale["models"]:
        return None
    if row["strategy"] == "best":  # follows from other rows
        return None
    base = "fedavg" if row.method == "client2vec" else row.method
    method: dict[str, Any] = (
        {"name": base} | scale["local"] | scale.get(dataset, {}) | scale.get(base, {})
    )
    method["lr"] *= scale.get("times_lr", {}).get(dataset, 1)
    rounds = scale["rounds"]
    if row.method == "client2vec" or row["client2vec"] or row["case_studies"] not in (None, "none"):
        if (row["variant"], row["case_studies"]) in IMPOSSIBLE:
            return None
        options = {"strategy": "global", "case_studies": "i+ii+iii"}
        own = dict(scale.get("client2vec", {}))
        lr = own.pop("lr", method["lr"])
        method["lr"] = lr if row.method == "client2vec" else method["lr"]
        options |= own if "iii" in (row["case_studies"] or "iii") else {}
        options |= {name: row[o] for o, name in OPTIONS.items() if row[o] is not None}
        usual = USUAL | USUAL_OF[options["strategy"]]
        options = {k: v for k, v in options.items() if v != usual.get(k)}
        epochs = max(1, round(options.get("index_epochs", 500) * scale.get("index_share", 1)))
        method = (
            {f"base_{k}" if k in OURS else k: v for k, v in method.items()}
            | scale.get("index", {})
            | options
        )
        method |= {"name": "client2vec", "base": base, "index_epochs": epochs}
        rounds = 1 if row["case_studies"] == "index" else rounds
    parts = scale["data"][dataset], partition(row, scale), scale["models"][network], method
    return Experiment(
        *parts, rounds, seed, scale["name"], evaluate_every=scale.get("evaluate_every", 1)
    )


def partition(row: Row, scale: dict[str, Any]) -> dict[str, Any]:
    """CIFAR-10 by Dirichlet(0.1) or two classes per client, DomainNet by domain, Shakespeare by
    role.
    """
    clients = scale["clients"].get(row["dataset"])
    if row["dataset"] == "shakespeare":
        return {"name": "by_group", "test": "domain"}
    limit = {"limit": scale["limit"][row["dataset"]]} if "limit" in scale else {}
    if row["dataset"] == "domainnet":
        sizes = scale.get("sizes", "equal")
        return {"name": "by_domain", "counts": clients, "sizes": sizes, "shuffle": True} | limit
    if row["partition"] == "two_classes_per_client":
        return {"name": "pathological", "clients": clients, "s": 2} | limit
    return {"name": "dirichlet", "clients": clients, "alpha": 0.1, "min_size": 10} | limit


# -- what follows from several runs ----------------------------------------------------------------
def improvement(spec: Spec, row: Row, runs: Sequence[Run]) -> list[tuple[int, float]]:
    """Table 1, "MI": the cell with the highest mean minus the original, seed by seed."""
    cells: dict[str, dict[int, float]] = {}
    for run in runs:
        if run.result is not None and (run.row.method, run.row["dataset"]) == (
            row.method,
            row["dataset"],
        ):
            cells.setdefault(run.row.setting, {})[run.seed] = run.result["metrics"]["best"]
    plain = next((c for s, c in cells.items() if "strategy=none" in s), {})
    rest = [c for s, c in cells.items() if "strategy=none" not in s and set(c) >= set(plain)]
    if not plain or not rest:
        return []
    best = max(rest, key=lambda c: fmean(c[s] for s in plain))
    return [(s, best[s] - plain[s]) for s in plain]


def duration(spec: Spec, row: Row, runs: Sequence[Run]) -> list[tuple[int, float]]:
    """Table 3, in seconds as measured: making the index, all rounds, the rounds until FedAvg's best
    is reached.
    """
    done = {(r.row.method, r.seed): r.result["metrics"] for r in runs if r.result is not None}
    found = []
    for (method, seed), m in done.items():
        goal = done.get(("fedavg", seed), {}).get("best")
        if method != row.method or goal is None:
            continue
        index = (
            (lookup(m, "extra.sample.index_seconds") or 0.0) if row.metric in WITH_INDEX else 0.0
        )
        reached = [s for s, v in zip(m["seconds"], m["curves"]["avg_client"]) if v >= goal]
        training = {"generate_client_index_time": 0.0, "training_total_time": m["seconds"][-1]}.get(
            row.metric, reached[0] if reached else None
        )
        if training is not None:  # None: never reached
            found.append((seed, index + training))
    return found


def domain_similarity(spec: Spec, row: Row, runs: Sequence[Run]) -> list[tuple[int, float]]:
    """Figure 9: the mean cosine of the clients of two domains; nothing where the data has no such
    domains.
    """
    path = f"extra.sample.type_similarity.{row['domain_a']}.{row['domain_b']}"
    values = {r.seed: lookup(r.result["metrics"], path) for r in runs if r.result is not None}
    return [(s, v) for s, v in values.items() if v is not None]


WITH_INDEX = ("generate_client_index_time", "total_time_to_fedavg_best")
DERIVED = {"max_improvement": improvement, "domain_similarity": domain_similarity}
DERIVED |= dict.fromkeys(
    (*WITH_INDEX, "training_total_time", "training_time_to_fedavg_best"), duration
)


# -- figures ---------------------------------------------------------------------------------------
def index_rows(metrics: tuple[str, ...], **settings: tuple[Any, ...]) -> tuple[Row, ...]:
    """Quantities measured on client indices of the DomainNet federation, for every combination of
    the settings.
    """
    combos: list[dict[str, Any]] = [{"dataset": "domainnet", "case_studies": "index"}]
    for name, values in settings.items():
        combos = [{**c, name: v} for c in combos for v in values]
    return tuple(Row(c, "fedavg", m, "similarity") for c in combos for m in metrics)


def alone() -> tuple[Row, ...]:
    """Figure 4c-d: case study (ii) alone against the original, for every base algorithm of
    Table 1.
    """
    rows = [r for r in read_rows("client2vec_table1_main.csv") if r["case_studies"] == "none"]
    used = [r.settings | {"strategy": "global", "case_studies": "ii"} for r in rows]
    return tuple(
        Row(s, r.method, "accuracy", "percent")
        for r, s0 in zip(rows, used)
        for s in (r.settings, s0)
    )


NEAR = {"real": ("clipart", "painting", "sketch"), "photo": ("art_painting",)}
FAR = {"real": ("infograph", "quickdraw"), "photo": ("sketch",)}
SIMILAR = ("within_similarity", "across_similarity", "nearest_domain_accuracy")
PLOTS = {"table1": ladder, "table9": learning_curves}
COUNTS: dict[str, Any] = {}
FIGURES = {
    "fig2": Figure(index_rows(SIMILAR, strategy=("global", "federated")), index_maps),
    "fig4": Figure(alone() + read_rows("client2vec_table6_epochs.csv"), epochs_and_aggregation),
    "fig5": Figure(
        read_rows("client2vec_table7_weight.csv") + read_rows("client2vec_table5_tau.csv"), sweeps
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
    "local": Figure(
        local_rows(), local_training, "Own study: what of case study (iii) stops the learning"
    ),
    "fig9": Figure(
        tuple(
            row
            for centre in ("real", "photo")
            for row in index_rows(
                ("domain_similarity",),
                strategy=("global",),
                domain_a=(centre,),
                domain_b=NEAR[centre] + FAR[centre],
            )
        ),
        domain_map,
    ),
}
