"""A trained network as one file: weights in safetensors, and beside them how to build the network
again. Nothing in the file is code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fedbook.callbacks import Callback
from fedbook.errors import FedbookError
from fedbook.experiment import Experiment
from fedbook.federation import Client, Federation
from fedbook.files import write_atomically

if TYPE_CHECKING:
    from fedbook.rounds import Simulation


class Save(Callback):
    """Write the final global model of an experiment's run to a file."""

    def __init__(self, path: str | Path, experiment: Experiment) -> None:
        self.path = Path(path)
        self.experiment = experiment
        if self.path.suffix != ".safetensors":
            raise FedbookError(f"cannot save to {path}", "end the name in .safetensors")

    def begin(self, run: Simulation) -> None:
        if not run.has_global:
            hint = "keep the run with --checkpoint instead"
            raise FedbookError(f"{run.method.name} has no global model to save", hint)

    def end(self, run: Simulation) -> None:
        if run.records and run.records[-1].round == run.rounds:
            run.load(run.params)
            save_model(run, self.experiment, self.path)


def save_model(run: Simulation, experiment: Experiment, path: str | Path) -> None:
    """Write the run's global model. What a method added for training alone is left out where the
    network can be had without it; nothing is written that would not predict the same when loaded.
    """
    from safetensors.torch import save_file

    state = run.model.state_dict()
    weights = {name: t.detach().cpu().clone().contiguous() for name, t in state.items()}
    about = describe(run.federation, experiment)
    plain = network(about, wrapped=False).state_dict()
    about["wrapped"] = not set(plain) <= set(weights)
    if not about["wrapped"]:
        weights = {name: weights[name] for name in plain}
    again = network(about, about["wrapped"])
    again.load_state_dict(weights)
    someone = list(run.federation.clients[:1])
    mine = run.evaluate(run.model, someone, "train").loss
    theirs = run.evaluate(again.to(run.device.torch), someone, "train").loss
    if any(abs(a - b) > 1e-4 * (1 + abs(a)) for a, b in zip(mine, theirs)):
        said = f"{run.method.name}'s network needs the clients' data besides its weights"
        raise FedbookError(f"{said} and cannot be saved", "keep the run with --checkpoint instead")
    with write_atomically(path) as part:
        save_file(weights, part, metadata={"fedbook": json.dumps(about)})


def describe(federation: Federation, experiment: Experiment) -> dict[str, Any]:
    """What it takes to build the network again without the data."""
    types = [c.type for c in federation.clients]
    return {
        "model": experiment.model,
        "method": experiment.method,
        "key": experiment.key,
        "input_shape": list(federation.input_shape),
        "dtype": str(federation.x.dtype).removeprefix("torch."),
        "class_names": list(federation.class_names),
        "type_names": list(federation.type_names),
        "types": types,
        "mean": federation.mean,
        "std": federation.std,
    }


def network(about: dict[str, Any], wrapped: bool) -> nn.Module:
    """The network with fresh weights, on clients without data; `wrapped` as the method trains
    it.
    """
    from fedbook import methods, models
    from fedbook.experiment import part_options
    from fedbook.rounds.halves import announce, tell

    rows = torch.arange(len(about["types"]))
    clients = tuple(Client(i, t, rows[i : i + 1], rows[:0]) for i, t in enumerate(about["types"]))
    x = torch.zeros(len(rows), *about["input_shape"], dtype=getattr(torch, about["dtype"]))
    empty = Federation(
        x=x,
        y=torch.zeros_like(rows),
        clients=clients,
        class_names=tuple(about["class_names"]),
        type_names=tuple(about["type_names"]),
        mean=about["mean"] and tuple(about["mean"]),
        std=about["std"] and tuple(about["std"]),
    )
    model = models.build(about["model"]["name"], empty, **part_options(about["model"]))
    if wrapped:
        method = methods.get(about["method"]["name"], **part_options(about["method"]))
        known = announce(method, empty, [tell(method, empty, c) for c in clients])
        for slot, stage in method.stages().items():
            model = stage.adapt(model, empty, known[slot])
    return model


def load_model(path: str | Path) -> nn.Module:
    """The network in a file that `fedbook run --save` wrote, ready to predict.

    `model.about` says what it was trained on: classes, input shape, the experiment's key.
    """
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FedbookError(f"there is no file {path}", "fedbook run ... --save model.safetensors")
    try:
        with safe_open(str(path), "pt") as file:
            told = (file.metadata() or {}).get("fedbook")
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        hint = "only files of `fedbook run --save` can be loaded; pickles never are"
        raise FedbookError(f"{path} is no safetensors file: {error}", hint) from error
    if told is None:
        raise FedbookError(f"{path} was not written by fedbook", "fedbook run ... --save FILE")
    about = json.loads(told)
    model: Any = network(about, about["wrapped"])
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        hint = "train and save it again with this version"
        raise FedbookError(f"{path} does not fit its network: {error}", hint) from error
    model.about = about
    return model.eval()
