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
        "data": dict.fromkeys(("cifar10", "domainnet"), {"name": "digits5_offline", "size": 16}),
        "clients": {"cifar10": 20, "domainnet": [4] * 5},
        "sizes": [[80] * 4] * 5,
        "models": {n: {"name": "cnn", "width": w, "hidden": 32} for n, w in (("resnet18", 8), ("mobilenet_v2", 6))},
        "local": {**SGD, "lr": 0.1, "epochs": 2, "batch_size": 32},
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
            "vit_cct_7_3x1": {"name": "cct_7_3x1"},
            "lstm": {"name": "lstm"},
        },
        "local": {**SGD, "batch_size": 64},
        "domainnet": {"momentum": 0.9},
    },
}
METRICS = {"accuracy": "best"}
NETWORKS = {"cifar10": "resnet18", "domainnet": "mobilenet_v2", "shakespeare": "lstm"}
ROW_OPTIONS = ("strategy", "case_studies", "variant", "tau", "epochs", "weight")


def experiment(row: Row, scale: dict[str, Any], seed: int) -> Experiment | None:
    """The base method alone, or inside client2vec(base, ...) where the row uses a case study."""
    dataset, network = row["dataset"], row["architecture"] or NETWORKS.get(row["dataset"], "")
    if dataset not in scale["data"] or network not in scale["models"]:
        return None
    if row["strategy"] == "best" or row.metric.endswith("_time"):  # follow from other rows; not measured by a run
        return None
    method: dict[str, Any] = {"name": row.method} | scale["local"] | scale.get(dataset, {}) | scale.get(row.method, {})
    if row["client2vec"] or row["case_studies"] not in (None, "none"):
        options = {f"index_{o}" if o == "epochs" else o: row[o] for o in ROW_OPTIONS if row[o] is not None}
        method = method | {"name": "client2vec", "base": row.method} | options
    parts = scale["data"][dataset], partition(row, scale), scale["models"][network], method
    return Experiment(*parts, scale["rounds"], seed, scale["name"], evaluate_every=scale.get("evaluate_every", 1))


def partition(row: Row, scale: dict[str, Any]) -> dict[str, Any]:
    """CIFAR-10 by Dirichlet(0.1) or two classes per client, DomainNet by domain, Shakespeare by role."""
    clients = scale["clients"].get(row["dataset"])
    if row["dataset"] == "shakespeare":
        return {"name": "by_group"}
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
