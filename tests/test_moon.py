"""MOON: its term by hand, what it is without it, and the two models it compares with."""

import copy
import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from test_fgpt import vit
from torch import nn

from fedbook import FedbookError, methods, models, simulate
from fedbook.methods.fedgcr import contrast
from fedbook.methods.moon import ModelContrast, Projected
from fedbook.models.convnets import Classifier
from fedbook.rounds import Batch, Device, Local

LOCAL = {"lr": 0.1, "batch_size": 4}


def build(federation, name="mlp", **options):
    return models.build(
        name, federation, seed=7, **({"width": 8} if name == "mlp" else {}), **options
    )


def normed():
    """A model with BatchNorm."""
    torch.manual_seed(0)
    return Classifier(
        nn.Sequential(nn.Flatten(), nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh()), 6, 3
    )


def run(name, federation, rounds=1, model=None, **options):
    method = methods.get(name, **{**LOCAL, **options})
    return simulate(
        method, federation, model or build(federation), rounds, device="cpu", quiet=True
    ).run()


def bits(a, b):
    return (
        all(torch.equal(a.params[n], b.params[n]) for n in a.params)
        and a.params.keys() == b.params.keys()
    )


# -- the term --------------------------------------------------------------------------------------
def test_the_term_by_hand():
    """cos(z, z_glob) = 1 and cos(z, z_prev) = 0: -log e^2 / (e^2 + 1)."""
    z = torch.tensor([[3.0, 0.0]])
    others = torch.tensor([[[1.0, 0.0], [0.0, 5.0]]])
    assert contrast(z, others, 0, 0.5).item() == pytest.approx(math.log(1 + math.exp(-2)))
    assert contrast(z, others.flip(1), 0, 0.5).item() == pytest.approx(math.log(1 + math.exp(2)))


def test_equal_references_give_log_two_and_no_gradient():
    g = torch.Generator().manual_seed(0)
    z, other = torch.randn(6, 4, generator=g).requires_grad_(), torch.randn(6, 4, generator=g)
    loss = contrast(z, torch.stack([other, other], 1), 0, 0.5)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2)) and torch.equal(z.grad, torch.zeros_like(z))


def turn(federation, model, term, memory):
    rng = torch.Generator().manual_seed(0)
    return Local(
        federation.clients[1],
        federation,
        model,
        {},
        2,
        rng,
        Device("cpu"),
        (term,),
        {},
        {"objective.0": memory},
    )


@pytest.mark.parametrize("make", [normed, None])
def test_references_are_the_two_models_in_eval_mode(toy, make):
    make = make or (lambda: build(toy))
    received, last = make(), make()
    for p in last.parameters():
        p.data += 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    for m, n in ((received, 3), (last, 5)):  # statistics of their own
        m.train()(toy.inputs(torch.arange(n * 4)))
    term, memory = ModelContrast(), {}
    term.end(turn(toy, last, term, {}), {}, memory)
    assert set(memory) == {"previous"} and not any(
        n.startswith("head.") for n in memory["previous"]
    )

    before = copy.deepcopy(received.state_dict())
    local = turn(toy, received, term, memory)
    term.begin(local, {}, memory)
    assert all(torch.equal(t, before[n]) for n, t in received.state_dict().items())
    index = toy.clients[1].train[torch.tensor([5, 0, 7])]
    batch = Batch(local, index)
    z_glob, z_prev = (m.eval().embed(toy.inputs(index)).detach() for m in (received, last))
    assert not torch.allclose(z_glob, z_prev, atol=1e-2)
    z = received.train().embed(batch.x)
    s = torch.stack([F.cosine_similarity(z, z_glob), F.cosine_similarity(z, z_prev)], 1) / 0.5
    expected = -s.log_softmax(1)[:, 0].mean()
    if make is not normed:
        assert term(local, batch, {}, memory).item() == pytest.approx(expected.item(), abs=1e-6)
    rows = torch.searchsorted(memory["index"], index)
    assert torch.allclose(memory["z"][rows], torch.stack([z_glob, z_prev], 1), atol=1e-6)
    term.end(local, {}, memory)
    assert set(memory) == {"previous"} and torch.equal(
        memory["previous"]["features.1.weight"], received.features[1].weight
    )


def by_hand(federation, mu, tau, rounds, epochs, lr):
    """Algorithm 1 of the paper in plain torch, one batch per epoch."""
    server, previous = build(federation), {}
    for _ in range(rounds):
        total = {n: torch.zeros_like(p) for n, p in server.state_dict().items()}
        for c in federation.clients:
            w, x, y = copy.deepcopy(server), federation.inputs(c.train), federation.y[c.train]
            for _ in range(epochs):
                z = w.embed(x)
                loss = F.cross_entropy(w.head(z), y)
                if c.id in previous:
                    others = [m.embed(x).detach() for m in (server, previous[c.id])]
                    s = torch.stack([F.cosine_similarity(z, o) for o in others], 1) / tau
                    loss = loss - mu * s.log_softmax(1)[:, 0].mean()
                for p, g in zip(w.parameters(), torch.autograd.grad(loss, list(w.parameters()))):
                    p.data -= lr * g
            previous[c.id] = w
            for n, p in w.state_dict().items():
                total[n] += p * len(c.train) / sum(len(k.train) for k in federation.clients)
        server.load_state_dict(total)
    return server.state_dict()


def test_three_rounds_written_out(toy):
    two = dataclasses.replace(toy, clients=toy.clients[:2])
    got = run("moon", two, 3, mu=2.0, tau=0.4, epochs=3, batch_size=100)
    expected = by_hand(two, 2.0, 0.4, 3, 3, 0.1)
    assert all(torch.allclose(got.params[n], expected[n], atol=1e-5) for n in expected)
    without = run("fedavg", two, 3, epochs=3, batch_size=100)
    assert any(not torch.allclose(got.params[n], without.params[n], atol=1e-3) for n in expected)


# -- what it reduces to, what it keeps -------------------------------------------------------------
@pytest.mark.parametrize("model", [build, lambda f: normed()])
def test_without_its_term_it_is_fedavg_bit_for_bit(toy, model):
    options = {"epochs": 2, "momentum": 0.9}
    assert bits(
        run("fedavg", toy, 3, model(toy), **options),
        run("moon", toy, 3, model(toy), mu=0.0, **options),
    )


def test_the_first_turn_of_a_client_is_fedavgs(toy):
    first, second = (
        [run(n, toy, rounds, epochs=2) for n in ("fedavg", "moon")] for rounds in (1, 2)
    )
    assert bits(*first) and not bits(*second)


def test_nothing_more_travels(toy):
    plain, done = run("fedavg", toy, 2), run("moon", toy, 2)
    assert [(r.bytes_up, r.bytes_down) for r in plain.records] == [
        (r.bytes_up, r.bytes_down) for r in done.records
    ]


def test_a_resumed_run_ends_with_the_same_bits(toy, tmp_path):
    straight = run("moon", toy, 4, participation=2, epochs=2)
    for rounds in (2, 4):
        method = methods.get("moon", participation=2, epochs=2, **LOCAL)
        again = simulate(
            method, toy, build(toy), rounds, device="cpu", checkpoint=tmp_path / "run", quiet=True
        ).run()
    assert bits(straight, again)


@pytest.mark.parametrize("name", ["vpt", "fgpt", "linear_probe"])
def test_it_works_on_prompts(images, name):
    options = {"groups": 4, "layer": 2, "centre": True} if name == "fgpt" else {}
    model = models.build(name, images, seed=3, backbone=vit(), **options)
    done = run("moon", images, 3, model)
    assert all(torch.isfinite(t).all() for t in done.params.values())
    kept = {n for n in done.params if not n.startswith("head.")}
    assert all(set(m["objective.1"]) == {"previous"} for m in done.memory.values())
    assert set(done.memory[0]["objective.1"]["previous"]) == kept


# -- the projection head ---------------------------------------------------------------------------
def test_the_projection_head_stands_between_features_and_classifier(toy):
    inner = build(toy)
    head = inner.head.weight.shape
    model = Projected(inner, 16, 3)
    x = toy.inputs(torch.arange(4))
    assert head == (3, 8) and model.embed(x).shape == (4, 16) and model(x).shape == (4, 3)
    assert torch.equal(model.embed(x), model.projection(inner.embed(x)))
    names = {n for n, _ in model.named_parameters()}
    assert not any(n.startswith("model.head") for n in names)
    assert {n.split(".")[0] for n in names} == {"model", "projection", "head"}
    a, b = (run("moon", toy, 2, projection=16) for _ in range(2))
    assert bits(a, b) and set(a.params) == names
    assert all(not torch.equal(a.params[n], p) for n, p in model.named_parameters())


def test_a_projection_keeps_what_the_model_precomputes(images):
    done = run(
        "moon", images, 2, models.build("linear_probe", images, backbone=vit()), projection=5
    )
    assert set(done.extra) == {"cls"}
    assert {n.split(".")[0] for n in done.params} == {"projection", "head"}


def test_mistakes_are_named(toy):
    for options in ({"mu": -1.0}, {"tau": 0.0}):
        with pytest.raises(FedbookError, match="positive tau"):
            methods.get("moon", **options)
    model = build(toy)
    model.head = nn.Sequential(model.head)
    with pytest.raises(FedbookError, match="linear head, got Sequential"):
        run("moon", toy, model=model, projection=4)


def test_training_learns(images):
    done = run(
        "moon", images, 8, models.build("mlp", images), mu=0.5, lr=0.05, epochs=2, batch_size=8
    )
    assert sum(done.records[-1].test_acc) / 6 > 0.8
