"""Client2Vec (2024): Tables 1-9, Figures 2, 4, 5, 7, 8, 9. An index of each client, used in three places of a round."""

from __future__ import annotations

from typing import Any

from fedbook.experiment import Experiment
from fedbook.papers.draw import learning_curves
from fedbook.papers.spec import Figure, Row, read_rows

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
            **{n: {"name": "cnn", "width": w, "hidden": 32} for n, w in (("resnet18", 8), ("mobilenet_v2", 6))},
            "vit_cct_7_3x1": {"name": "cct", "layers": 1, "width": 32, "heads": 2},
            "lstm": {"name": "lstm", "hidden": 32, "layers": 1},
        },
        "local": {**SGD, "lr": 0.1, "epochs": 2, "batch_size": 32},
        "index": {"index_encoder": "offline/vit+ngram", "index_ffn": 64, "index_limit": 32, "index_samples": 32},
        "index_share": 0.01,
    },
    "laptop": {
        "seeds": 3,
        "rounds": 40,
        "data": {
            "cifar10": {"name": "cifar10"},
            "domainnet": {"name": "pacs", "size": 32},
            "shakespeare": {"name": "shakespeare"},
        },
        "clients": {"cifar10": 50, "domainnet": [10] * 4},
        "models": {
            "resnet18": {"name": "resnet_gn"},
            "mobilenet_v2": {"name": "resnet_gn", "width": 12},
            "lstm": {"name": "lstm"},
        },
        "local": {**SGD, "lr": 5e-2, "epochs": 2, "batch_size": 64},
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
METRICS |= {n: f"extra.sample.{n}" for n in ("within_similarity", "across_similarity", "nearest_domain_accuracy")}
NETWORKS = {"cifar10": "resnet18", "domainnet": "mobilenet_v2", "shakespeare": "lstm"}
OPTIONS = {n: n for n in ("strategy", "case_studies", "variant", "tau", "weight")}
OPTIONS |= {"epochs": "index_epochs", "projection": "index_projection"}
# These indices have no part in that case study, and the table prints nothing.
IMPOSSIBLE = {("local_model_weights", "i"), ("local_model_weights", "i+ii"), ("only_label_index", "i+ii+iii")}


def experiment(row: Row, scale: dict[str, Any], seed: int) -> Experiment | None:
    """The base method alone, or inside client2vec(base, ...) where the row uses a case study.

    A row that asks for the index alone trains for one round. Of the printed epochs E of the index (500 unless a row
    says otherwise) a scale may take a part: `index_share`.
    """
    dataset, network = row["dataset"], row["architecture"] or NETWORKS.get(row["dataset"], "")
    if dataset not in scale["data"] or network not in scale["models"]:
        return None
    if row["strategy"] == "best" or row.metric.endswith("_time"):  # follow from other rows; not measured by a run
        return None
    method: dict[str, Any] = {"name": row.method} | scale["local"] | scale.get(dataset, {}) | scale.get(row.method, {})
    rounds = scale["rounds"]
    if row["client2vec"] or row["case_studies"] not in (None, "none"):
        if (row["variant"], row["case_studies"]) in IMPOSSIBLE:
            return None
        options = {name: row[o] for o, name in OPTIONS.items() if row[o] is not None}
        epochs = max(1, round(options.get("index_epochs", 500) * scale.get("index_share", 1)))
        method = method | scale.get("index", {}) | options | {"index_epochs": epochs}
        method |= {"name": "client2vec", "base": row.method}
        rounds = 1 if row["case_studies"] == "index" else rounds
    parts = scale["data"][dataset], partition(row, scale), scale["models"][network], method
    return Experiment(*parts, rounds, seed, scale["name"], evaluate_every=scale.get("evaluate_every", 1))


def partition(row: Row, scale: dict[str, Any]) -> dict[str, Any]:
    """CIFAR-10 by Dirichlet(0.1) or two classes per client, DomainNet by domain, Shakespeare by role."""
    clients = scale["clients"].get(row["dataset"])
    if row["dataset"] == "shakespeare":
        return {"name": "by_group", "test": "domain"}
    if row["dataset"] == "domainnet":
        return {"name": "by_domain", "counts": clients, "sizes": scale.get("sizes", "equal"), "shuffle": True}
    if row["partition"] == "two_classes_per_client":
        return {"name": "pathological", "clients": clients, "s": 2}
    return {"name": "dirichlet", "clients": clients, "alpha": 0.1, "min_size": 10}


def index_rows(metrics: tuple[str, ...], **settings: tuple[Any, ...]) -> tuple[Row, ...]:
    """Quantities measured on client indices of the DomainNet federation, for every combination of the settings."""
    combos: list[dict[str, Any]] = [{"dataset": "domainnet", "case_studies": "index"}]
    for name, values in settings.items():
        combos = [{**c, name: v} for c in combos for v in values]
    return tuple(Row(c, "fedavg", m, "similarity") for c in combos for m in metrics)


def alone() -> tuple[Row, ...]:
    """Figure 4c-d: case study (ii) alone against the original, for every base algorithm of Table 1."""
    rows = [r for r in read_rows("client2vec_table1_main.csv") if r["case_studies"] == "none"]
    used = [r.settings | {"strategy": "global", "case_studies": "ii"} for r in rows]
    return tuple(Row(s, r.method, "accuracy", "percent") for r, s0 in zip(rows, used) for s in (r.settings, s0))


NEAR = {"real": ("clipart", "painting", "sketch"), "photo": ("art_painting",)}
FAR = {"real": ("infograph", "quickdraw"), "photo": ("sketch",)}
SIMILAR = ("within_similarity", "across_similarity", "nearest_domain_accuracy")
PLOTS = {"table1": learning_curves, "table9": learning_curves}
COUNTS: dict[str, Any] = {}
FIGURES = {
    "fig2": Figure(index_rows(SIMILAR, strategy=("global", "federated"))),
    "fig4": Figure(alone() + read_rows("client2vec_table6_epochs.csv")),
    "fig5": Figure(read_rows("client2vec_table7_weight.csv") + read_rows("client2vec_table5_tau.csv")),
    "fig7": Figure(index_rows(SIMILAR, strategy=("global",), variant=("client2vec", "omit_diversity_loss"))),
    "fig8": Figure(index_rows(SIMILAR, strategy=("global",), projection=("linear", "mlp"))),
    "fig9": Figure(
        index_rows(
            ("domain_similarity",), strategy=("global",), domain_a=("real",), domain_b=NEAR["real"] + FAR["real"]
        )
        + index_rows(
            ("domain_similarity",), strategy=("global",), domain_a=("photo",), domain_b=NEAR["photo"] + FAR["photo"]
        )
    ),
}
