"""A Flower app of an experiment: `fedbook flower new DIR --method fedgcr --dataset NAME`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fedbook import models
from fedbook.errors import FedbookError
from fedbook.experiment import Experiment
from fedbook.federation import Federation
from fedbook.files import write_atomically
from fedbook.flower.deal import deal
from fedbook.rounds.device import Device
from fedbook.rounds.halves import Server, announce, tell

PACKAGE = "fedbook_app"

PYPROJECT = """\
[project]
name = "{name}"
version = "1.0.0"
description = "{method} on {dataset}, by fedbook"
license = {{ text = "Apache-2.0" }}
dependencies = []  # fedbook and flwr are there; so the app starts without a network

[tool.flwr.app]
publisher = "fedbook"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

[tool.flwr.app.config]
rounds = {rounds}
seed = {seed}
evaluate-every = {evaluate_every}
timeout = 600  # seconds to wait for answers
at-once = 0  # how many clients work at the same time; 0: all
data = '{data}'
checkpoint = '{run}'
"""

TASK = '''\
"""What the server and the clients agree on."""

from fedbook import methods, models


def method():
    return methods.get({method})


def model(federation):
    return models.build({model})
'''

CLIENT = f'''\
"""A client: it sees its own samples and nothing of anybody else's."""

from fedbook.flower import client_app
from {PACKAGE}.task import method, model

app = client_app(method, model)
'''

SERVER = f'''\
"""The server: it sees no sample."""

from fedbook.flower import server_app
from {PACKAGE}.task import method, model

app = server_app(method, model)
'''

README = """\
# {method} on {dataset}

{clients} clients. Their samples lie in `data/client-ID.safetensors`, one file each; the server
reads `data/roster.safetensors`, which has none. `{package}/task.py` is the method and the model.

In simulation, all in one machine:

    flwr run . --stream \\
        --federation-config "num-supernodes={clients} client-resources-num-cpus=1"

As real processes (one SuperNode per client; move its file of `data/` to its machine):

    flower-superlink --insecure --disable-runtime-dependency-installation
    flower-supernode --insecure --superlink 127.0.0.1:8000 --port 9100 \\
        --node-config 'partition-id=0 num-partitions={clients} memory="/var/lib/fedbook"'
    flwr run . CONNECTION --stream      # [superlink.CONNECTION] in $FLWR_HOME/config.toml

Flower starts a process for every message, and each imports torch. Where that takes longer than the
work, start a node with `--isolation process`, and beside it a process that forks for a message:

    python -m fedbook.flower.warm --insecure --runtime-api-address 127.0.0.1:9100

`memory` is where a node keeps what the method remembers of its client, so that it survives a
restart. The run's records and parameters lie in `run/`; the same command goes on from there, so
delete the folder to begin anew. Flower returns 0 even if a run fails: look at its log, or at
`run/records.jsonl`.
"""


def new(folder: str | Path, experiment: Experiment) -> Path:
    """Write an app that `flwr run` starts, and deal the data out for it."""
    folder = Path(folder).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedbookError(f"{folder} is there already", "name a new folder")
    name = experiment.method["name"]
    if name == "client2vec":
        raise FedbookError(
            "client2vec begins with an index of everybody, which is made before and apart",
            "write an app of another method, and use methods.get('client2vec', index=...) in it",
        )
    federation = experiment.build_federation()
    check(experiment, federation)
    dataset = Path(str(experiment.dataset["name"])).stem
    facts: dict[str, Any] = {
        "name": re.sub(r"[^a-z0-9]+", "-", f"{name}-{dataset}".lower()).strip("-"),
        "method": name,
        "dataset": dataset,
        "package": PACKAGE,
        "rounds": experiment.rounds,
        "seed": experiment.seed,
        "evaluate_every": experiment.evaluate_every,
        "clients": len(federation),
        "data": folder / "data",
        "run": folder / "run",
    }
    model = dict(experiment.model)
    call = [repr(model.pop("name")), "federation", f"seed={experiment.seed}"]
    task = TASK.format(method=call_of(experiment.method), model=", ".join(call + options(model)))
    files = {
        "pyproject.toml": PYPROJECT.format(**facts),
        "README.md": README.format(**facts),
        f"{PACKAGE}/__init__.py": "",
        f"{PACKAGE}/task.py": task,
        f"{PACKAGE}/client_app.py": CLIENT,
        f"{PACKAGE}/server_app.py": SERVER,
    }
    deal(federation, folder / "data")
    for path, text in files.items():
        with write_atomically(folder / path) as part:
            part.write_text(text)
    return folder


def check(experiment: Experiment, federation: Federation) -> None:
    """Refuse a model that the method cannot train before anything is written."""
    model = dict(experiment.model)
    built = models.build(model.pop("name"), federation, seed=experiment.seed, **model)
    settings: dict[str, Any] = {"rounds": experiment.rounds, "seed": experiment.seed}
    method = experiment.build_method()
    told = [tell(method, federation, c) for c in federation.clients]
    known = announce(method, federation, told)
    Server(method, federation, built, **settings, device=Device("cpu"), known=known)


def call_of(part: dict[str, Any]) -> str:
    """The arguments of a call that makes a part of an experiment."""
    return ", ".join([repr(part["name"]), *options({k: v for k, v in part.items() if k != "name"})])


def options(part: dict[str, Any]) -> list[str]:
    return [f"{k}={v!r}" for k, v in part.items()]
