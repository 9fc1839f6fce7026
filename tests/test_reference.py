"""fedbook's own code against numbers that reference implementations gave on toy inputs.

Each file of `tests/reference` holds inputs, the output of the named function at the named commit,
and what was adapted to run it; no reference code is kept here. Networks and data are tiny and in
double precision, samples come in the order in which they are stored.
"""

import copy
import json
import math
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedbook import methods, simulate
from fedbook.federation import Client, Federation
from fedbook.models.convnets import Classifier
from fedbook.models.prompts import FGPT
from fedbook.rounds import Method

FOLDER = Path(__file__).parent / "reference"
FIXTURES = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
FIELDS = "method repository commit file function what inputs output vary tolerance note".split()
CHANGES = [(name, constant) for name, f in FIXTURES.items() for constant in f["vary"]]

Output = dict[str, Any]
ADAPTERS: dict[str, Callable[[str, Output, Output], Output]] = {}


def adapter(*names: str) -> Callable[[Callable], Callable]:
    """Marks a function (method, inputs, options) -> output as fedbook's side of these fixtures."""

    def mark(function: Callable) -> Callable:
        ADAPTERS.update(dict.fromkeys(names, function))
        return function

    return mark


# -- the tests -------------------------------------------------------------------------------------
@pytest.fixture(autouse=True)
def exact(monkeypatch):
    """Double precision wherever fedbook says float, and nothing is shuffled."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(torch, "randperm", lambda n, **_: torch.arange(n))
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("name", FIXTURES)
def test_fixture_is_complete(name):
    assert list(FIXTURES[name]) == FIELDS
    assert (FOLDER / f"{name}.json").stat().st_size < 50_000
    assert name in ADAPTERS and FIXTURES[name]["vary"]


@pytest.mark.parametrize("name", FIXTURES)
def test_agrees_with_the_reference(name):
    fixture = FIXTURES[name]
    found = ours(name, fixture["inputs"])
    assert difference(found, fixture["output"]) <= fixture["tolerance"]


@pytest.mark.parametrize("name, constant", CHANGES)
def test_a_change_of_a_thousandth_is_noticed(name, constant):
    """What the comparison is worth: a constant that is off by 0.1 % (a count by one) fails it."""
    fixture = FIXTURES[name]
    inputs = copy.deepcopy(fixture["inputs"])
    value = inputs["options"][constant]
    inputs["options"][constant] = value + 1 if isinstance(value, int) else value * 1.001
    assert difference(ours(name, inputs), fixture["output"]) > fixture["tolerance"]


def ours(name: str, inputs: Output) -> Output:
    """What fedbook makes of a fixture's inputs."""
    method = FIXTURES[name]["method"]
    if method not in methods.names():
        pytest.skip(f"{method} is not part of fedbook yet")
    return ADAPTERS[name](method, inputs, inputs["options"])


def difference(found: Any, expected: Any) -> float:
    """The largest absolute difference of two nests of numbers of one and the same shape."""
    if isinstance(found, Tensor):
        found = found.tolist()
    if isinstance(expected, dict):
        assert sorted(found) == sorted(expected)
        return max(difference(found[k], v) for k, v in expected.items())
    if isinstance(expected, list):
        assert isinstance(found, list) and len(found) == len(expected)
        return max(difference(a, b) for a, b in zip(found, expected))
    assert math.isfinite(found)
    return abs(found - expected)


# -- the toy world ---------------------------------------------------------------------------------
def federation(clients: list[Output], types: list[int] | None = None) -> Federation:
    """Clients with the given samples, tested on what they train on."""
    types = types or [0] * len(clients)
    x, y = (torch.cat([torch.tensor(c[k]) for c in clients]) for k in "xy")
    members, start = [], 0
    for i, c in enumerate(clients):
        index = torch.arange(start, start := start + len(c["y"]))
        members.append(Client(i, types[i], index, index))
    names = tuple(map(str, range(int(y.max()) + 1)))
    return Federation(x, y, tuple(members), names, tuple(map(str, range(max(types) + 1))))


def network(params: Output) -> Classifier:
    """Linear, tanh, linear."""
    shape = torch.tensor(params["features.0.weight"]).shape
    features = nn.Sequential(nn.Linear(shape[1], shape[0]), nn.Tanh())
    model = Classifier(features, shape[0], len(params["head.bias"]))
    model.load_state_dict({n: torch.tensor(v) for n, v in params.items()})
    return model


def simulation(method: Method, inputs: Output, model: nn.Module | None = None) -> Any:
    """A run of the method on the fixture's clients and network, not yet started."""
    clients = federation(inputs["clients"], inputs.get("types"))
    model = network(inputs["params"]) if model is None else model
    return simulate(method, clients, model, inputs["rounds"], device="cpu", quiet=True)


def weights(run: Any) -> list[list[float]]:
    """What the participants counted, round by round."""
    return [record.weights for record in run.records]


def personal(run: Any) -> list[dict[str, Tensor]]:
    """Every client's own parameters and statistics."""
    return [
        {n: t.clone() for n, t in run.personal_model(c).state_dict().items() if t.ndim}
        for c in run.federation.clients
    ]


# -- fedbook's side --------------------------------------------------------------------------------
@adapter("fedavg", "fedavgm", "fedadam", "fedprox", "scaffold", "feddyn", "moon", "fediir")
@adapter("per_fedavg", "per_fedavg_exact", "fedsam", "fedlc", "harmofl_step", "q_ffl")
def global_model(method: str, inputs: Output, options: Output) -> Output:
    return {"params": simulation(methods.get(method, **options), inputs).run().params}


@adapter("fedadam_zero_start")
def fedadam_zero_start(method: str, inputs: Output, options: Output) -> Output:
    run = simulation(methods.get(method, **options), inputs)
    for v in run.state["update"]["v"].values():
        v.zero_()
    return {"params": run.run().params}


@adapter("q_ffl_as_coded", "feddyn_as_coded", "fedmix_as_coded")
def global_model_as_coded(method: str, inputs: Output, options: Output) -> Output:
    built = methods.get(method, quirks=[f"{method}_as_coded"], **options)
    return {"params": simulation(built, inputs).run().params}


@adapter("afl")
def afl(method: str, inputs: Output, options: Output) -> Output:
    run = simulation(methods.get(method, **options), inputs).run()
    return {"params": run.params, "weights": weights(run)}


@adapter("afl_stateless")
def afl_stateless(method: str, inputs: Output, options: Output) -> Output:
    run = simulation(methods.get(method, quirks=["afl_stateless"], **options), inputs).run()
    return {"params": run.params, "weights": weights(run)}


@adapter("afl_projection")
def afl_projection(method: str, inputs: Output, options: Output) -> Output:
    from fedbook.methods.afl import project

    found = [project(options["scale"] * torch.tensor(v)).tolist() for v in inputs["vectors"]]
    return {"projected": found}


@adapter("term")
def term(method: str, inputs: Output, options: Output) -> Output:
    return {"weights": weights(simulation(methods.get(method, **options), inputs).run())}


@adapter("term_training_loss")
def term_training_loss(method: str, inputs: Output, options: Output) -> Output:
    run = simulation(methods.get(method, quirks=["term_training_loss"], **options), inputs).run()
    return {"params": run.params, "weights": weights(run)}


@adapter("pfedme", "ditto")
def global_and_personal(method: str, inputs: Output, options: Output) -> Output:
    run = simulation(methods.get(method, **options), inputs).run()
    return {"params": {n: t.clone() for n, t in run.params.items()}, "personal": personal(run)}


@adapter("lg_fedavg")
def lg_fedavg(method: str, inputs: Output, options: Output) -> Output:
    return {"personal": personal(simulation(methods.get(method, **options), inputs).run())}


@adapter("fedbn")
def fedbn(method: str, inputs: Output, options: Output) -> Output:
    layers = OrderedDict(fc=nn.Linear(4, 3), bn=nn.BatchNorm1d(3), act=nn.Tanh())
    model = Classifier(nn.Sequential(layers), 3, 3)
    start = {n: torch.tensor(v) for n, v in inputs["params"].items()}
    model.load_state_dict(start, strict=False)
    run = simulation(methods.get(method, **options), inputs, model).run()
    return {"personal": personal(run)}


@adapter("pfedhn")
def pfedhn(method: str, inputs: Output, options: Output) -> Output:
    start = inputs["start"]
    model = Classifier(nn.Sequential(nn.Linear(4, 3), nn.Tanh()), 3, 3)
    run = simulation(methods.get(method, generate=("*",), **options), inputs, model)
    state = run.state["update"]
    state["phi"] = {n: torch.tensor(start["phi"][n]) for n in state["phi"]}
    state["v"] = torch.tensor(start["v"])
    run.run()
    state = run.state["update"]
    return {"phi": state["phi"], "v": state["v"], "params": run.params}


@adapter("harmofl_amplitude")
def harmofl_amplitude(method: str, inputs: Output, options: Output) -> Output:
    from fedbook.methods.harmofl import AmplitudeNorm

    images = [torch.tensor(x) for x in inputs["images"]]
    images[1] = options["gain"] * images[1]
    clients = federation([{"x": x.tolist(), "y": [0] * len(x)} for x in images])
    return {
        str(window): [AmplitudeNorm(clients, window)(x).tolist() for x in images]
        for window in (0.0, 0.3)
    }


class Keys(FGPT):
    """Of FGPT's model only the keys; an image is its own query."""

    def __init__(self, keys: list[list[float]]) -> None:
        nn.Module.__init__(self)
        self.keys = nn.Parameter(torch.tensor(keys))
        self.centre = nn.Parameter(torch.zeros(self.keys.shape[1]), requires_grad=False)
        self.relu = False

    def query(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        return x


@adapter("fed_dualprompt")
def fed_dualprompt(method: str, inputs: Output, options: Output) -> Output:
    model, x = Keys(inputs["keys"]), torch.tensor(inputs["queries"])
    local, batch = SimpleNamespace(model=model), SimpleNamespace(x=x, precomputed={})
    pull: Any = methods.get(method, **options).objective[-1]
    loss = pull(local, batch, {}, {})
    loss.backward()
    return {
        "selected": model.select(x)[:, 0],
        "loss": float(loss.detach()),
        "gradient": model.keys.grad,
    }


class GroupModel(nn.Module):
    """One prompt, a GC-Net and a head on a frozen encoder, as small as they can be."""

    encoder: Tensor
    mixer: Tensor

    def __init__(self, encoder: Tensor, mixer: Tensor) -> None:
        super().__init__()
        self.register_buffer("encoder", encoder, persistent=False)
        self.register_buffer("mixer", mixer, persistent=False)
        width = len(mixer)
        self.prompts = nn.ParameterList([torch.zeros(1, width)])
        self.gc_net = nn.Sequential(nn.Linear(width, width))
        self.head = nn.Linear(width, 3)

    def h(self, x: Tensor, **extra: Tensor) -> Tensor:
        return self.gc_net(torch.tanh(x @ self.encoder))

    def embed(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        prompt = self.prompts[0] + (self.h(x) if h is None else h)
        return torch.tanh(torch.tanh(x @ self.encoder) + prompt @ self.mixer)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x))


@adapter("fedgcr_as_published")
def fedgcr_as_published(method: str, inputs: Output, options: Output) -> Output:
    model = GroupModel(torch.tensor(inputs["encoder"]), torch.tensor(inputs["mixer"]))
    model.load_state_dict({n: torch.tensor(v) for n, v in inputs["params"].items()})
    run = simulation(methods.get(method, quirks=["as_published"], **options), inputs, model)
    torch.set_default_dtype(torch.float32)  # samples are counted in it
    run.run()
    return {"params": run.params, "weights": weights(run)}


@adapter("finch")
def finch(method: str, inputs: Output, options: Output) -> Output:
    from fedbook.methods.clustering import cluster

    vectors = torch.tensor(inputs["vectors"])
    return {"labels": cluster(vectors, options["clusters"], "finch", normalise=False)}


@adapter("finch_unstructured")
def finch_unstructured(method: str, inputs: Output, options: Output) -> Output:
    cases = [{"vectors": v} for v in inputs["vectors"]]
    return {"labels": [finch(method, case, options)["labels"] for case in cases]}
