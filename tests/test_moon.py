"""MOON: its term by hand, what it is without it, and the two models it compares with."""

import copy
import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from helpers import mlp, normed, resumed, run, same, traffic, vit
from torch import nn

from fedbook import FedbookError, methods, models
from fedbook.methods.moon import ModelContrast, Projected, contrast
from fedbook.rounds import Batch, Local


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
    memory = {"objective.0": memory}
    return Local.of(federation, model, client=1, round=2, terms=(term,), memory=memory)


@pytest.mark.parametrize("batchnorm", [True, False])
def test_references_are_the_two_models_in_eval_mode(toy, batchnorm):
    received, last = (normed(nn.Tanh) if batchnorm else mlp(toy) for _ in range(2))
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
    if not batchnorm:
        assert term(local, batch, {}, memory).item() == pytest.approx(expected.item(), abs=1e-6)
    rows = torch.searchsorted(memory["index"], index)
    assert torch.allclose(memory["z"][rows], torch.stack([z_glob, z_prev], 1), atol=1e-6)
    term.end(local, {}, memory)
    assert set(memory) == {"previous"} and torch.equal(
        memory["previous"]["features.1.weight"], received.features[1].weight
    )


def by_hand(federation, mu, tau, rounds, epochs, lr):
    """Algorithm 1 of the paper in plain torch, one batch per epoch."""
    server, previous = mlp(federation), {}
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
@pytest.mark.parametrize("batchnorm", [True, False])
def test_without_its_term_it_is_fedavg_bit_for_bit(toy, batchnorm):
    options = {"epochs": 2, "momentum": 0.9}
    model = normed(nn.Tanh) if batchnorm else mlp(toy)
    plain = run("fedavg", toy, 3, model, **options)
    assert same(plain, run("moon", toy, 3, model, mu=0.0, **options))


def test_the_first_turn_of_a_client_is_fedavgs(toy):
    first, second = (
        [run(n, toy, rounds, epochs=2) for n in ("fedavg", "moon")] for rounds in (1, 2)
    )
    assert same(*first) and not same(*second)


def test_nothing_more_travels(toy):
    assert traffic(run("fedavg", toy, 2)) == traffic(run("moon", toy, 2))


def test_a_resumed_run_ends_with_the_same_bits(toy, tmp_path):
    straight = run("moon", toy, 4, participation=2, epochs=2)
    assert same(straight, resumed("moon", toy, tmp_path / "run", participation=2, epochs=2))


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
    inner = mlp(toy)
    head = inner.head.weight.shape
    model = Projected(inner, 16, 3)
    x = toy.inputs(torch.arange(4))
    assert head == (3, 8) and model.embed(x).shape == (4, 16) and model(x).shape == (4, 3)
    assert torch.equal(model.embed(x), model.projection(inner.embed(x)))
    names = {n for n, _ in model.named_parameters()}
    assert not any(n.startswith("model.head") for n in names)
    assert {n.split(".")[0] for n in names} == {"model", "projection", "head"}
    a, b = (run("moon", toy, 2, projection=16) for _ in range(2))
    assert same(a, b) and set(a.params) == names
    assert all(not torch.equal(a.params[n], p) for n, p in model.named_parameters())


def test_a_projection_keeps_what_the_model_precomputes(images):
    done = run(
        "moon", images, 2, models.build("linear_probe", images, backbone=vit()), projection=5
    )
    assert set(done.precomputed) == {"cls"}
    assert {n.split(".")[0] for n in done.params} == {"projection", "head"}


def test_mistakes_are_named(toy):
    wrong = {"weight must be at least 0": {"mu": -1.0}, "tau must be positive": {"tau": 0.0}}
    for message, options in wrong.items():
        with pytest.raises(FedbookError, match=message):
            methods.get("moon", **options)
    model = mlp(toy)
    model.head = nn.Sequential(model.head)
    with pytest.raises(FedbookError, match="linear head, got Sequential"):
        run("moon", toy, model=model, projection=4)


def test_training_learns(images):
    done = run(
        "moon", images, 8, models.build("mlp", images), mu=0.5, lr=0.05, epochs=2, batch_size=8
    )
    assert sum(done.records[-1].test_acc) / 6 > 0.8
