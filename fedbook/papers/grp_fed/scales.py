"""GRP-FED's runs: long-tailed clients; a fair global model and personal ones.

Laptop scale keeps all 46 patients and all 50 clients, 24 of which take part in a round (Algorithm 1
draws some, the paper does not say how many). A patient has at most 40 training beats of a class, a
beat 90 values, which flattens the class mix; the images are of 16 x 16 pixels, 3,200 in all, for a
ResNet-8 with GroupNorm. The printed q_0 = 10 lets a few clients make up the mean, and a personal
extractor that never sees the global one again (Algorithm 1) cannot generalise, so Table 1 has the
power and the start chosen on validation data, q-FFL with the same list of powers, and the printed
setting is a study of its own (`printed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedbook.experiment import Experiment
from fedbook.papers.paper import Options, Scale
from fedbook.papers.rows import Row
from fedbook.papers.tune import Grid


@dataclass(frozen=True, kw_only=True)
class Patients:
    """Partition and model by dataset, and what differs between the datasets: `solver_of`,
    `rounds_of`, and the factor `step_of` on all step sizes. `fixed` holds options of methods that
    were not tuned.
    """

    partition: Mapping[str, Options]
    model: Mapping[str, Options]
    solver_of: Mapping[str, Options] = field(default_factory=dict)
    rounds_of: Mapping[str, int] = field(default_factory=dict)
    step_of: Mapping[str, float] = field(default_factory=dict)
    fixed: Mapping[str, Options] = field(default_factory=dict)


SGD = {"optimizer": "sgd", "momentum": 0.9, "epochs": 5, "batch_size": 64, "lr": 5e-3}
LONG_TAIL = {"name": "long_tail", "rho": 0.7, "tau": 0.5}
BY_PATIENT = {"name": "by_group", "test": "domain"}  # tested on the patient's own beats
STEPS = ("lr", "personal_lr", "alpha")
POWERS = (1.0, 0.1, 0.5, 2.0, 5.0, 10.0)  # of q-FFL and GRP-FED
BETAS = tuple(round(0.1 * k, 1) for k in range(11))  # of Figure 4
ALL = ("local", "fedavg", "afl", "q_ffl", "per_fedavg", "pfedme", "lg_fedavg", "grp_fed")

SMOKE = Scale(
    name="smoke",
    rounds=6,
    evaluate_every=2,
    data={
        "mit_bih": {"name": "ecg_offline", "patients": 8, "beats": 70, "length": 60},
        "cifar10": {"name": "digits5_offline", "size": 16},
    },
    solver={**SGD, "lr": 5e-2, "epochs": 2, "batch_size": 16},
    methods={
        "q_ffl": {"q": 10.0},
        "pfedme": {"personal_lr": 0.02},  # with momentum, the authors' 0.09 diverges on the digits
        "grp_fed": {"q": 1.0, "start": "received"},
    },
    own=Patients(
        partition={"mit_bih": BY_PATIENT, "cifar10": {**LONG_TAIL, "clients": 10, "total": 1500}},
        model={
            "mit_bih": {"name": "ecg_resnet", "width": 8, "norm": "group", "hidden": 16},
            "cifar10": {"name": "cnn", "width": 8, "hidden": 32},
        },
    ),
)
LAPTOP = Scale(
    name="laptop",
    rounds=160,
    evaluate_every=8,
    seeds=3,
    seeds_of={"fig4": 1, "fig4_own": 1, "choices": 1},
    data={
        "mit_bih": {"name": "mitbih", "limit": 40, "length": 90},
        "cifar10": {"name": "cifar10", "size": 16},
    },
    solver={**SGD, "lr": 1e-1, "epochs": 1, "batch_size": 32, "participation": 24},
    methods={  # chosen by GRID
        "local": {"lr": 0.05},
        "fedavg": {"lr": 0.15},
        "afl": {"lr": 0.05, "eta_lam": 0.1},
        "q_ffl": {"lr": 0.1, "q": 0.1},
        "per_fedavg": {"lr": 0.1, "alpha": 0.01},
        "pfedme": {"lr": 0.1, "personal_lr": 0.1},
        "lg_fedavg": {"lr": 0.05},
        "grp_fed": {"lr": 0.05, "q": 2.0, "start": "received"},
    },
    own=Patients(
        partition={
            "mit_bih": BY_PATIENT,
            "cifar10": {**LONG_TAIL, "clients": 50, "total": 3200, "limit": [5000, 60]},
        },
        model={
            "mit_bih": {"name": "ecg_resnet", "width": 16, "norm": "group", "hidden": 32},
            "cifar10": {"name": "resnet_gn", "width": 8, "hidden": 64},
        },
        solver_of={"cifar10": {"batch_size": 16}},
        rounds_of={"cifar10": 80},
        # of the steps chosen on MIT-BIH: FedAvg was tried with 0.05 and 0.15 on unused images
        step_of={"cifar10": 0.5},
        # lr * lam must not exceed 1; K = 5 would double the cost
        fixed={"pfedme": {"lam": 5.0, "steps": 2}},
    ),
)
PRINTED = Scale(
    name="paper",
    rounds=100,
    seeds=3,
    data={"mit_bih": {"name": "mitbih"}, "cifar10": {"name": "cifar10"}},
    solver=SGD,
    methods={"q_ffl": {"q": 10.0}},
    own=Patients(
        partition={"mit_bih": BY_PATIENT, "cifar10": {**LONG_TAIL, "clients": 50}},
        model={"mit_bih": {"name": "ecg_resnet"}, "cifar10": {"name": "resnet32"}},
    ),
)
SCALES = (SMOKE, LAPTOP, PRINTED)
SYMBOLS = {
    "global_test": "t_g",
    "local_test": "t_l",
    "personalization": "t_p",
    "generalization": "t_r",
}
METRICS = {
    "best_client_f1": "local.best_client",
    "worst_client_f1": "local.worst_client",
    "effective_clients": "local.effective_clients",
}
for _name, _symbol in SYMBOLS.items():
    METRICS[_name] = f"local.{_symbol}"
    METRICS |= {f"{client}_{_name}": f"local.{client}.{_symbol}" for client in ("near", "far")}

# For every method eight trials of 0.4 runs on MIT-BIH: two learning rates with its own knob as
# first listed, then six more values of the knob at the better rate; a method without one tries six
# more rates. The score is the mean of T_g and T_l on the last fifth of the training beats. GRP-FED
# tries the powers with personal extractors that start from what is received, and one with its own.
GRID = Grid(
    on=({"dataset": "mit_bih"},),
    lr=(5e-2, 1e-1),
    more_lr=(1e-2, 2e-2, 3e-2, 1.5e-1, 2e-1, 3e-1),
    knobs={
        "local": None,
        "fedavg": None,
        "afl": ("eta_lam", (0.1, 0.003, 0.01, 0.03, 0.3, 1.0, 3.0)),
        "q_ffl": ("q", (*POWERS, 0.2)),
        "per_fedavg": ("alpha", (0.01, 0.001, 0.003, 0.03, 0.1, 0.3, 1.0)),
        "pfedme": ("personal_lr", (0.05, 0.005, 0.01, 0.02, 0.03, 0.1, 0.2)),  # 0.5 diverges
        "lg_fedavg": None,
        "grp_fed": (("q", "start"), (*((q, "received") for q in POWERS), (1.0, "own"))),
    },
    score=("local.t_g", "local.t_l"),
    part=0.4,
)
# Own studies, one change at a time against the run of Table 1. The last one changes the data.
STUDY: dict[str, Options] = {
    "q_10": {"q": 10.0},
    "as_printed": {"q": 10.0, "start": "own"},
    "own_start": {"start": "own"},
    "uniform": {"q": 0.0, "eta_q": 0.0},
    "uniform_as_fedavg": {"q": 0.0, "lr": LAPTOP.methods["fedavg"]["lr"]},  # FedAvg without n_m
    "q_10_training_loss": {"q": 10.0, "loss": "training"},
    "gan_printed": {"gan_loss": "printed"},
    "random_split": {},
}


def experiment(row: Row, scale: Scale[Patients], seed: int) -> Experiment | None:
    """Macro-F1 of the global and the personal models, on everybody's and on one's own test
    samples.
    """
    dataset = row["dataset"]
    if dataset not in scale.data:
        return None
    data = dict(scale.data[dataset])
    method = _method(row, scale)
    if row["change"] and row["on"]:
        method |= STUDY[row["change"]]
        if row["change"] == "random_split":
            if data["name"] != "mitbih":
                return None  # only a recording has neighbouring beats to part
            data["split"] = "random"
    if row["beta"] not in (None, method.get("beta", 0.5)):  # the usual one is the run of Table 1
        method["beta"] = row["beta"]
    return Experiment(
        dataset=data,
        partition=scale.own.partition[dataset],
        model=scale.own.model[dataset],
        method=method,
        rounds=scale.own.rounds_of.get(dataset, scale.rounds),
        seed=seed,
        scale=scale.name,
        evaluate_every=scale.evaluate_every,
        measures=({"name": "local_tests"}, {"name": "global_losses"}),
    )


def _method(row: Row, scale: Scale[Patients]) -> Options:
    own = scale.own
    method: Options = {"name": row.method} | scale.solver | own.fixed.get(row.method, {})
    method |= own.solver_of.get(row["dataset"], {}) | scale.methods.get(row.method, {})
    for name in STEPS:
        if name in method:
            method[name] = round(method[name] * own.step_of.get(row["dataset"], 1), 6)
    return method
