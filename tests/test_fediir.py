"""FedIIR: the mean gradient of the classifier, and the penalty on leaving it."""

import pytest
import torch
import torch.nn.functional as F
from helpers import LOCAL, mlp, only, run, same, traffic
from torch import nn

from fedbook import FedbookError, methods
from fedbook.methods.fediir import GradientAlignment, classifier, head_gradient
from fedbook.rounds import Batch, Equal, Local, Report
from fedbook.rounds.params import count_bytes


@pytest.mark.parametrize("options", [{}, {"participation": 2, "momentum": 0.9}])
def test_without_penalty_it_is_the_uniform_mean_bit_for_bit(toy, options):
    mean = run(methods.get("fedavg", **LOCAL, **options).replace(weigh=(Equal(),)), toy, 3)
    assert same(mean, run("fediir", toy, 3, penalty=0.0, **options))
    assert not same(mean, run("fediir", toy, 3, penalty=0.5, **options))


def test_the_head_gradient_is_its_closed_form(toy):
    """Of a linear head: (p - onehot)^T z / B, and its sum over samples for the bias."""
    batch = Batch(Local.of(toy, mlp(toy), client=2), toy.clients[2].train)
    weight, bias = head_gradient(batch)
    off = batch.logits.softmax(1) - F.one_hot(batch.y, 3)
    assert torch.allclose(weight, off.T @ batch.z / len(batch.y), atol=1e-6)
    assert torch.allclose(bias, off.mean(0), atol=1e-6)


def test_one_client_one_batch_no_memory_has_penalty_zero_at_first(toy):
    """ema = 0: g is the gradient of the very batch the client begins with."""
    seen = []

    class Noted(GradientAlignment):
        def __call__(self, local, batch, sent, memory):
            seen.append(super().__call__(local, batch, sent, memory))
            return seen[-1]

    method = methods.get("fediir", ema=0.0, penalty=1.0, lr=0.5, batch_size=100, epochs=3)
    terms = (method.objective[0], Noted(1.0, 0.0, 100))
    run(method.replace(objective=terms), only(toy, 0))
    assert seen[0].item() < 1e-12 and seen[1].item() > 1e-6


def test_the_mean_is_over_all_batches_of_all_participants(toy):
    """Clients of 8, 12, 20, 40 samples in batches of 8: 1 + 2 + 3 + 5 batches, each counting the
    same.
    """
    model = mlp(toy)
    done = run("fediir", toy, lr=0.0, ema=0.9, batch_size=8)
    grads = []
    for k, c in enumerate(toy.clients):
        for part in c.train.split(8):
            grads.append(head_gradient(Batch(Local.of(toy, model, client=k), part)))
    assert len(grads) == 11
    for got, parts in zip(done.state["objective.1"]["g"], zip(*grads)):
        assert torch.allclose(got, 0.1 * torch.stack(parts).mean(0), atol=1e-6)


def test_the_server_remembers():
    """ema = 0.75: 0.75 8 + 0.25 (2 + 10) / (1 + 3) = 6.75."""
    reports = [
        Report(id=i, size=5, values={"head_gradient": [torch.tensor([s])], "batches": b})
        for i, (s, b) in enumerate([(2.0, 1), (10.0, 3)])
    ]
    state = GradientAlignment(ema=0.75).prepare({"g": [torch.tensor([8.0])]}, reports)
    assert state["g"][0].tolist() == [6.75]


def test_the_penalty_by_hand_and_through_second_derivatives(toy):
    model, g = mlp(toy), torch.Generator().manual_seed(1)
    stage = GradientAlignment(penalty=2.0)
    local = Local.of(toy, model, client=1, terms=(stage,))
    batch, mean = (
        Batch(local, toy.clients[1].train),
        [torch.randn(p.shape, generator=g) for p in classifier(model)],
    )
    value = stage(local, batch, {"g": mean}, {})
    plain = head_gradient(Batch(local, toy.clients[1].train))
    assert value.item() == pytest.approx(
        2 * sum(((a - b) ** 2).sum().item() for a, b in zip(plain, mean)), rel=1e-5
    )

    first = model.features[
        1
    ].weight  # moved by a little, the penalty changes as its derivative says
    (slope,) = torch.autograd.grad(value, first)
    direction = torch.randn(first.shape, generator=g)
    changed = []
    for step in (1e-3, -1e-3):
        with torch.no_grad():
            first.add_(direction, alpha=step)
        changed.append(stage(local, Batch(local, toy.clients[1].train), {"g": mean}, {}).item())
        with torch.no_grad():
            first.sub_(direction, alpha=step)
    assert (changed[0] - changed[1]) / 2e-3 == pytest.approx(
        (slope * direction).sum().item(), rel=0.02
    )


def test_two_exchanges_are_counted(toy):
    ((up, down),) = traffic(run("fedavg", toy))
    head = count_bytes(list(mlp(toy).head.parameters()))
    assert traffic(run("fediir", toy)) == [(up + 4 * (head + 8), down + 4 * head)]


def test_settings_and_models_that_do_not_fit_are_refused(toy):
    for bad in ({"ema": 1.0}, {"penalty": -1.0}):
        with pytest.raises(FedbookError, match="FedIIR"):
            methods.get("fediir", **bad)
    model = mlp(toy)
    model.head = nn.Identity()
    with pytest.raises(FedbookError, match="head"):
        run("fediir", toy, 1, model)
    method = methods.get("fediir")
    assert method.weigh == (Equal(),) and method.objective[1].penalty == 1e-3
