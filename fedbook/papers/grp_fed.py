"""GRP-FED (2021): Table 1 and Figures 1, 3, 4, 5. Long-tailed clients; a fair global model and personal ones."""

from __future__ import annotations

from typing import Any

from fedbook.experiment import Experiment
from fedbook.papers.draw import personal_scores
from fedbook.papers.draw_grp_fed import beta_sweep, client_imbalance, mean_and_max_loss, two_clients
from fedbook.papers.spec import Figure, Row

SGD = {"optimizer": "sgd", "momentum": 0.9, "epochs": 5, "batch_size": 64, "lr": 5e-3}
LONG_TAIL = {"name": "long_tail", "rho": 0.7, "tau": 0.5}
PATIENTS = {"name": "by_group", "test": "domain"}  # one client per patient, tested on that patient's own beats
SCALES: dict[str, dict[str, Any]] = {
    "smoke": {
        "seeds": 1,
        "rounds": 6,
        "evaluate_every": 2,
        "data": {"mit_bih": {"name": "ecg_offline"}, "cifar10": {"name": "digits5_offline", "size": 16}},
        "partition": {"mit_bih": PATIENTS, "cifar10": {**LONG_TAIL, "clients": 10, "total": 1500}},
        "model": {
            "mit_bih": {"name": "ecg_resnet", "width": 8, "norm": "group", "hidden": 16},
            "cifar10": {"name": "cnn", "width": 8, "hidden": 32},
        },
        "local": {**SGD, "lr": 5e-2, "epochs": 2},
        "q_ffl": {"q": 10.0},
    },
    "laptop": {
        "seeds": 3,
        "rounds": 40,
        "data": {"mit_bih": {"name": "mitbih"}, "cifar10": {"name": "cifar10"}},
        "partition": {"mit_bih": PATIENTS, "cifar10": {**LONG_TAIL, "clients": 50}},
        "model": {"mit_bih": {"name": "ecg_resnet"}, "cifar10": {"name": "resnet_gn"}},
        "local": {**SGD, "lr": 2e-2, "epochs": 2},
    },
    "paper": {
        "seeds": 3,
        "rounds": 100,
        "data": {"mit_bih": {"name": "mitbih"}, "cifar10": {"name": "cifar10"}},
        "partition": {"mit_bih": PATIENTS, "cifar10": {**LONG_TAIL, "clients": 50}},
        "model": {"mit_bih": {"name": "ecg_resnet"}, "cifar10": {"name": "resnet32"}},
        "local": SGD,
        "q_ffl": {"q": 10.0},
    },
}
SYMBOLS = {"global_test": "t_g", "local_test": "t_l", "personalization": "t_p", "generalization": "t_r"}
METRICS = {name: f"local.{symbol}" for name, symbol in SYMBOLS.items()}
METRICS |= {f"{c}_{name}": f"local.{c}.{symbol}" for c in ("near", "far") for name, symbol in SYMBOLS.items()}
METRICS |= {"best_client_f1": "local.best_client", "worst_client_f1": "local.worst_client"}
ALL = ("local", "fedavg", "afl", "q_ffl", "per_fedavg", "pfedme", "lg_fedavg", "grp_fed")


def experiment(row: Row, scale: dict[str, Any], seed: int) -> Experiment | None:
    """Macro-F1 of the global and the personal models, on everybody's and on one's own test samples."""
    dataset = row["dataset"]
    if dataset not in scale["data"]:
        return None
    method = {"name": row.method} | scale["local"] | scale.get(row.method, {})
    if row["beta"] not in (None, method.get("beta", 0.5)):  # the usual one is the run of Table 1
        method["beta"] = row["beta"]
    parts = scale["data"][dataset], scale["partition"][dataset], scale["model"][dataset]
    every = scale.get("evaluate_every", 1)
    return Experiment(*parts, method, scale["rounds"], seed, scale["name"], evaluate_every=every, local_tests=True)


def rows(methods: tuple[str, ...], metrics: tuple[str, ...], **settings: Any) -> tuple[Row, ...]:
    return tuple(Row({"dataset": "mit_bih", **settings}, m, name, "macro_f1") for m in methods for name in metrics)


BETAS = tuple(round(0.1 * k, 1) for k in range(11))
PLOTS = {"table1": personal_scores}
COUNTS: dict[str, Any] = {}
FIGURES = {
    "fig1": Figure(rows(("fedavg",), ("global_test", "best_client_f1", "worst_client_f1")), client_imbalance),
    "fig3": Figure(rows(("fedavg", "afl", "q_ffl", "grp_fed"), ("global_test",)), mean_and_max_loss),
    "fig4": Figure(
        tuple(
            r for b in BETAS for r in rows(("grp_fed",), ("personalization", "generalization", "local_test"), beta=b)
        ),
        beta_sweep,
    ),
    "fig5": Figure(
        rows(ALL, tuple(f"{c}_{m}" for c in ("near", "far") for m in SYMBOLS if m != "generalization")), two_clients
    ),
}
