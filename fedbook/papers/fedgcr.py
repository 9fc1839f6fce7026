"""FedGCR (AAAI 2024): Tables 1-14, Figure 3. Prompts on a frozen ViT; domains of unequal numbers of clients (DIF)."""

from __future__ import annotations

from typing import Any

from fedbook.data.partition import PUBLISHED
from fedbook.experiment import Experiment
from fedbook.papers.draw import sorted_clients
from fedbook.papers.spec import Figure, Row

ADAMW = {"optimizer": "adamw", "epochs": 1}
SCALES: dict[str, dict[str, Any]] = {
    "smoke": {
        "seeds": 1,
        "rounds": 4,
        "evaluate_every": 4,
        "data": dict.fromkeys(("digit_five", "domainnet", "pacs"), {"name": "digits5_offline"}),
        "sizes": {"sizes": "rule", "scale": 0.05},
        "order": {"domainnet": (3, 4, 2, 1, 0), "pacs": (2, 0, 4, 3)},
        "swapped": {"digit_five": (1, 0, 3, 4, 2), "domainnet": (4, 3, 2, 0, 1), "pacs": (0, 2, 3, 4)},
        "model": {"name": "vpt", "backbone": "bundled", "prompts": 4},
        "local": {**ADAMW, "lr": 2e-2, "batch_size": 16},
    },
    "laptop": {
        "seeds": 3,
        "rounds": 40,
        "data": {
            "digit_five": {"name": "digits5_chars74k"},
            "domainnet": {"name": "emoji7"},
            "pacs": {"name": "pacs", "size": 32},
        },
        "sizes": {"sizes": "rule", "scale": 0.3},
        "order": {
            "digit_five": ("mnist", "usps", "font_digits", "mnist_m", "scene_digits"),
            "pacs": PUBLISHED["pacs"].order,
        },
        "swapped": {
            "digit_five": ("usps", "mnist", "font_digits", "scene_digits", "mnist_m"),
            "domainnet": (1, 0, 2, 3, 4, 6, 5),
            "pacs": PUBLISHED["pacs"].swapped,
        },
        "model": {"name": "vpt", "backbone": "bundled", "prompts": 4},
        "local": {**ADAMW, "lr": 1e-2, "batch_size": 32},
    },
    "paper": {
        "seeds": 3,
        "rounds": 50,
        "data": {n: {"name": n, "size": 224} for n in ("digit_five", "domainnet", "pacs")},
        "sizes": {},
        "order": {name: p.order for name, p in PUBLISHED.items()},
        "swapped": {name: p.swapped for name, p in PUBLISHED.items()},
        "model": {"name": "vpt", "backbone": "vit_base_patch16_224.augreg_in21k", "prompts": 4},
        "local": {**ADAMW, "lr": 1e-3, "batch_size": 64},
    },
}
METRICS = {"avg": "avg_type", "clustering_accuracy": "extra.weigh.clustering_accuracy"}
VARIANTS: dict[str, dict[str, Any]] = {
    "fedgr_only": {"name": "fedgcr", "customization": False},
    "fedgc_only": {"name": "fedgcr", "reweighting": False},
}
MODELS = {"fedgcr": "fedgc", "fedgc_only": "fedgc"}
ROW_OPTIONS = {"t_prime": "clusters", "delta": "delta", "clustering_algo": "cluster"}


def experiment(row: Row, scale: dict[str, Any], seed: int) -> Experiment | None:
    """All clients take part; a client is tested on its domain's test set (at DIF 1 on its share of it)."""
    dataset, dif = row["dataset"], row["dif"] or 10
    sizes = scale["sizes"] or {"sizes": dataset}
    partition = {"name": "by_domain", "dif": dif, "test": "split" if dif == 1 else "domain", **sizes}
    if order := scale["swapped" if row["majority_domain"] else "order"].get(dataset):
        partition["order"] = list(order)
    model = scale["model"] | ({"name": MODELS[row.method]} if row.method in MODELS else {})
    method = {"name": row.method} | VARIANTS.get(row.method, {}) | scale["local"] | scale.get(row.method, {})
    method |= {option: row[name] for name, option in ROW_OPTIONS.items() if row[name] is not None}
    parts, every = (scale["data"][dataset], partition, model, method), scale.get("evaluate_every", 1)
    return Experiment(*parts, scale["rounds"], seed, scale["name"], evaluate_every=every)


PLOTS = {f"table{n}": sorted_clients for n in (1, 2, 6, 7)}
COUNTS: dict[str, Any] = {}
FIGURES = {
    "fig3": Figure(
        tuple(
            Row({"dataset": d, "dif": 10}, "fedgcr", m, "fraction")
            for d in ("digit_five", "domainnet")
            for m in ("knn_purity_h", "knn_purity_frozen")
        )
    )
}
