"""FedGCR (AAAI 2024): Tables 1-14, Figure 3. Prompts on a frozen ViT; domains of unequal numbers of
clients (DIF).

Laptop scale keeps the published client counts and about 420 training images at every DIF, so that
DIF changes who holds them and not how many there are. T' is kept in relation to the number of
types: emoji7 has seven domains where DomainNet has six, so its T' is one higher than the printed
one.
"""

from __future__ import annotations

from typing import Any

from fedbook.data.partition import PUBLISHED
from fedbook.experiment import Experiment
from fedbook.methods.fedgcr import PUBLISHED_MODEL, QUIRKS
from fedbook.papers.draw import by_size, clustering_by_count, quirk_bars, sorted_clients, type_maps
from fedbook.papers.spec import Figure, Row
from fedbook.papers.tune import Grid

ADAMW = {"optimizer": "adamw", "epochs": 1}
SCALES: dict[str, dict[str, Any]] = {
    "smoke": {
        "seeds": 1,
        "rounds": 4,
        "evaluate_every": 4,
        "data": dict.fromkeys(("digit_five", "domainnet", "pacs"), {"name": "digits5_offline"}),
        "sizes": {"sizes": "rule", "scale": 0.05},
        "order": {"domainnet": (3, 4, 2, 1, 0), "pacs": (2, 0, 4, 3)},
        "swapped": {
            "digit_five": (1, 0, 3, 4, 2),
            "domainnet": (4, 3, 2, 0, 1),
            "pacs": (0, 2, 3, 4),
        },
        "types": {"domainnet": 5},
        "model": {"name": "vpt", "backbone": "hybrid", "prompts": 4},
        "local": {**ADAMW, "lr": 2e-2, "batch_size": 16},
    },
    "laptop": {
        "seeds": 3,
        "seeds_of": dict.fromkeys(("table3", "table4", "table7", "table8", "table9"), 1)
        | dict.fromkeys(("table10", "table11", "table14", "fig3", "quirks", "size"), 1),
        "rounds": 20,
        "evaluate_every": 10,
        "data": {
            "digit_five": {"name": "digits5_chars74k", "limit": [6000, 300]},
            "domainnet": {"name": "emoji7"},
            "pacs": {"name": "pacs", "size": 32},
        },
        "sizes": {"sizes": "rule", "min_size": 8, "shuffle": True},
        "part": {
            "digit_five": {1: 0.13, 5: 0.028, 10: 0.03},
            "domainnet": {1: 0.22, 5: 0.43, 10: 0.48},
            "pacs": {1: 0.08, 5: 0.15, 10: 0.18},
        },
        "types": {"domainnet": 7},
        "order": {
            "digit_five": ("mnist", "usps", "font_digits", "mnist_m", "scene_digits"),
            "pacs": PUBLISHED["pacs"].order,
        },
        "swapped": {
            "digit_five": ("usps", "mnist", "font_digits", "scene_digits", "mnist_m"),
            "domainnet": (1, 0, 2, 3, 4, 6, 5),
            "pacs": PUBLISHED["pacs"].swapped,
        },
        "model": {"name": "vpt", "backbone": "hybrid", "prompts": 4},
        "local": {**ADAMW, "lr": 4e-2, "batch_size": 16},
        "fedavg": {"lr": 4e-2},  # these eight: see GRID
        "afl": {"lr": 4e-2, "eta_lam": 0.01},
        "q_ffl": {"lr": 4e-2, "q": 0.01},
        "term": {"lr": 8e-2, "t": 0.5},
        "harmofl": {"lr": 2e-2, "window": 0.0},
        "fedsam": {"lr": 8e-2, "rho": 0.01},
        "fedmix": {"lr": 2e-2, "lam": 0.01},
        "fedgcr": {"lr": 8e-2, "q": 1.0},
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
METRICS = {
    "avg": "avg_type",
    "clustering_accuracy": "extra.weigh.clustering_accuracy",
    "knn_purity_h": "types.knn_purity_h",
    "knn_purity_frozen": "types.knn_purity_frozen",
}
VARIANTS: dict[str, dict[str, Any]] = {
    "fedgr_only": {"name": "fedgcr", "customization": False},
    "fedgc_only": {"name": "fedgcr", "reweighting": False},
}
MODELS = {"fedgcr": "fedgc", "fedgc_only": "fedgc"}
TYPES = {"digit_five": 5, "domainnet": 6, "pacs": 4}
# How hyper-parameters are chosen (fedbook tune fedgcr): for every method six trials, four learning
# rates with its own knob as first listed, then two more values of the knob at the best rate;
# FedAvg, which has none, tries two more rates.
GRID = Grid(
    on=({"dataset": "digit_five", "dif": 10}, {"dataset": "pacs", "dif": 10}),
    lr=(1e-2, 2e-2, 4e-2, 8e-2),
    more_lr=(2.5e-3, 5e-3),
    knobs={
        "fedavg": None,
        "afl": ("eta_lam", (0.1, 0.01, 0.5)),
        "q_ffl": ("q", (0.01, 0.1, 1.0)),
        "term": ("t", (0.1, 0.5, 2.0)),
        "harmofl": ("window", (None, 0.0, 0.1)),
        "fedsam": ("rho", (0.05, 0.01, 0.2)),
        "fedmix": ("lam", (0.05, 0.01, 0.2)),
        "fedgcr": ("q", (1.0, 0.0, 2.0)),
    },
)
# What the published runs did otherwise, one at a time: (method, options of the method, options of
# the model).
STUDY: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "harmofl_lr_x10": ("harmofl", {"lr": 10.0}, {}),
    "fedsam_lr_x10": ("fedsam", {"lr": 10.0}, {}),
    "fedavg_6_prompts": ("fedavg", {}, {"prompts": 6}),
    "q_ffl_6_prompts": ("q_ffl", {}, {"prompts": 6}),
    "q_ffl_as_coded": ("q_ffl", {"as_coded": True}, {}),
    "fedmix_as_coded": ("fedmix", {"as_coded": True}, {}),
    "afl_stateless": ("afl", {"stateless": True}, {}),
    "prompt_tiling": ("fedgcr", {}, {"tiled": True}),
    "dropout": ("fedgcr", {}, {"dropout": 0.1}),
    **{quirk: ("fedgcr", {"quirks": [quirk]}, {}) for quirk in QUIRKS},
    "as_published": ("fedgcr", {"preset": "as_published"}, PUBLISHED_MODEL),
}


def experiment(row: Row, scale: dict[str, Any], seed: int) -> Experiment | None:
    """All clients take part; a client is tested on its domain's test set (at DIF 1 on its share of
    it).
    """
    dataset, dif = row["dataset"], row["dif"] or 10
    partition = {"name": "by_domain", "dif": dif, "test": "split" if dif == 1 else "domain"}
    partition |= scale["sizes"] or {"sizes": dataset}
    if "part" in scale:
        partition["scale"] = scale["part"][dataset][dif]
    if order := scale["swapped" if row["majority_domain"] else "order"].get(dataset):
        partition["order"] = list(order)
    name = VARIANTS.get(row.method, {}).get("name", row.method)
    model = scale["model"] | ({"name": MODELS[row.method]} if row.method in MODELS else {})
    method = (
        {"name": row.method} | VARIANTS.get(row.method, {}) | scale["local"] | scale.get(name, {})
    )
    shift = scale.get("types", {}).get(dataset, TYPES[dataset]) - TYPES[dataset]
    asked = {"clusters": row["t_prime"], "delta": row["delta"], "cluster": row["clustering_algo"]}
    usual = {
        "clusters": TYPES[dataset],
        "delta": 0.5,
        "cluster": "gmm",
    }  # not said again: the run of the main table
    method |= {
        k: v + shift if k == "clusters" else v
        for k, v in asked.items()
        if v not in (None, usual[k])
    }
    if row["cluster_on"] == "frozen":
        method["cluster_on"] = "frozen"
    if row["quirk"] and row["on"]:
        _, options, of_model = STUDY[row["quirk"]]
        lr = method["lr"] * options.get("lr", 1.0)
        method, model = method | options | {"lr": lr}, model | of_model
        if row.method == "fedgcr":
            method["rounds"] = scale["rounds"]  # R of the lambda schedule
    rounds = scale["rounds"] * (row["times_rounds"] or 1)
    if (row["times_images"] or 1) > 1:
        if "scale" not in partition:
            return None  # at paper scale there are no more images
        partition["scale"] = round(partition["scale"] * row["times_images"], 4)
    parts, every = (
        (scale["data"][dataset], partition, model, method),
        scale.get("evaluate_every", 1),
    )
    types = row.metric.startswith("knn_purity")
    return Experiment(*parts, rounds, seed, scale["name"], evaluate_every=every, type_tests=types)


PLOTS = {f"table{n}": sorted_clients for n in (1, 2, 6, 7)} | {"table3": clustering_by_count}
COUNTS: dict[str, Any] = {}
FIGURES = {
    "fig3": Figure(
        tuple(
            Row({"dataset": d, "dif": 10}, "fedgcr", m, "fraction")
            for d in ("digit_five", "domainnet")
            for m in ("knn_purity_h", "knn_purity_frozen")
        ),
        type_maps,
    ),
    "quirks": Figure(
        tuple(
            Row(
                {"dataset": "digit_five", "dif": 10, "quirk": q, "on": on},
                STUDY[q][0],
                "avg",
                "percent",
            )
            for q in STUDY
            for on in (0, 1)
        ),
        quirk_bars,
        "Own study: what each departure of the published code from the paper is worth in Avg",
    ),
    "grouping": Figure(
        tuple(
            Row({"dataset": d, "dif": 10, "cluster_on": on}, "fedgcr", metric, "percent")
            for d in ("digit_five", "pacs")
            for on in ("h", "frozen")
            for metric in ("clustering_accuracy", "avg", "sigma_type", "sigma_client")
        ),
        sorted_clients,
        "Own study: does it matter that training blurs the groups? Clustering on h and on the "
        "frozen feature",
    ),
    "size": Figure(
        tuple(
            Row(
                {"dataset": "digit_five", "dif": 10, "times_images": i, "times_rounds": r},
                method,
                metric,
                "percent",
            )
            for i, r in ((1, 1), (2, 2))
            for method in ("fedavg", "fedgcr")
            for metric in ("avg", "sigma_type")
        ),
        by_size,
        "Own study: does FedGCR's lead depend on how many images and rounds there are?",
    ),
}
