"""FedLC: shifted logits, in numbers done by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import mlp, run, same

from fedbook import FedbookError, Federation, methods
from fedbook.methods.fedlc import CalibratedCrossEntropy, calibrate
from fedbook.methods.quirks import UnboundedCrossEntropy
from fedbook.rounds import Batch, Local


def federation(*counts):
    """One client per list of class counts, 5-d inputs."""
    g = torch.Generator().manual_seed(0)
    clients = []
    for c in counts:
        y = torch.repeat_interleave(torch.tensor(c))
        x = torch.randn(len(y), 5, generator=g) + y[:, None]
        clients.append({"train": (x, y), "test": (x[:2], y[:2])})
    return Federation.from_arrays(clients, class_names=["a", "b", "c"])


def loss(fed, stage):
    """The stage's loss on a client's whole data, the logits it was made of, and plain
    cross-entropy.
    """
    local, memory = Local.of(fed, mlp(fed), terms=(stage,)), {}
    stage.begin(local, {}, memory)
    batch = Batch(local, fed.clients[0].train)
    value = stage(local, batch, {}, memory)
    return value, batch.logits, F.cross_entropy(batch.logits, batch.y)


def test_the_shift_by_hand():
    """n = (1, 16, 81, 0): n^{-1/4} = 1, 1/2, 1/3 and, with 1e-8 for none, 100."""
    s = calibrate(torch.zeros(1, 4, dtype=torch.float64), torch.tensor([1, 16, 81, 0]), tau=2.0)
    assert s[0].tolist() == pytest.approx([-2, -1, -2 / 3, -200], rel=1e-6)


def test_the_loss_by_hand():
    """Counts (1, 16, 0): margins 1 and 1/2, and the third class is out."""
    fed = federation([1, 16, 0])
    value, logits, _ = loss(fed, CalibratedCrossEntropy(1.0))
    f = logits.double()
    shifted = [torch.stack([r[0] - 1, r[1] - 0.5]) for r in f]  # the absent class has left the sum
    y = fed.y[fed.clients[0].train]
    expected = sum(-s[c] + torch.logsumexp(s, 0) for s, c in zip(shifted, y.tolist())) / len(y)
    assert value.item() == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize("options", [{}, {"participation": 2}, {"momentum": 0.9, "epochs": 2}])
def test_tau_zero_is_fedavg_bit_for_bit(toy, options):
    assert same(run("fedlc", toy, 3, tau=0.0, **options), run("fedavg", toy, 3, **options))
    assert not same(run("fedlc", toy, 3, tau=1.0, **options), run("fedavg", toy, 3, **options))


def test_equal_counts_are_cross_entropy():
    value, _, plain = loss(federation([6, 6, 6]), CalibratedCrossEntropy(3.0))
    assert value.item() == pytest.approx(plain.item(), abs=1e-6)
    other = loss(federation([6, 6, 7]), CalibratedCrossEntropy(3.0))[0]
    assert other.item() != pytest.approx(plain.item(), abs=1e-4)


def test_a_constant_added_to_all_shifts_changes_nothing():
    f, y = torch.randn(7, 4, generator=torch.Generator().manual_seed(0)), torch.arange(7) % 4
    s = calibrate(f, torch.tensor([1, 5, 9, 40]), tau=1.5)
    assert F.cross_entropy(s, y).item() == pytest.approx(
        F.cross_entropy(s + 3.7, y).item(), abs=1e-5
    )


def test_an_absent_class_gets_no_probability_and_no_gradient():
    value, logits, _ = loss(federation([5, 7, 0]), CalibratedCrossEntropy(1.0))
    (g,) = torch.autograd.grad(value, logits)
    assert g[:, 2].abs().max() < 1e-30 and g[:, :2].abs().max() > 1e-3


def test_rare_classes_get_the_larger_margin():
    """With logits 0 the loss of a class is -log softmax of the shifts: dearer the rarer the
    class.
    """
    s = calibrate(torch.zeros(3), torch.tensor([1, 10, 100]), tau=1.0)
    losses = [F.cross_entropy(s[None], torch.tensor([c])).item() for c in range(3)]
    assert losses == sorted(losses, reverse=True) and losses[0] > math.log(3) > losses[2]


def test_the_printed_form_leaves_out_the_own_class_and_has_no_floor():
    fed = federation([3, 4, 5])
    value, logits, _ = loss(fed, UnboundedCrossEntropy(0.0))
    y, f = fed.y[fed.clients[0].train], logits
    by_hand = sum(
        torch.logsumexp(torch.cat([r[:c], r[c + 1 :]]), 0) - r[c] for r, c in zip(f, y.tolist())
    ) / len(y)
    assert value.item() == pytest.approx(by_hand.item(), abs=1e-5)
    (stage,) = methods.get("fedlc", quirks=("fedlc_as_printed",)).objective
    local = Local.of(fed, mlp(fed), terms=(stage,))
    batch = Batch(local, fed.clients[0].train[:1])
    batch.__dict__["logits"] = torch.tensor([[1000.0, 0.0, 0.0]])
    assert stage(local, batch, {}, {"counts": torch.tensor([3, 4, 5])}).item() < -900


def test_counts_are_the_clients_own_and_only_training_is_shifted(toy):
    done = run("fedlc", toy, 1)
    for c in toy.clients:
        assert done.memory[c.id]["objective.0"]["counts"].tolist() == toy.class_counts(c).tolist()
    assert done.records[0].bytes_up == run("fedavg", toy).records[0].bytes_up
    batch = toy.clients[0].test
    assert torch.equal(
        done.model(toy.inputs(batch)), done.model.head(done.model.embed(toy.inputs(batch)))
    )
    assert 0 < done.records[0].train_acc[3] <= 1


def test_wrong_settings_are_refused():
    for bad in ({"tau": -1.0}, {"absent": 0.0}, {"absent": 2.0}):
        with pytest.raises(FedbookError, match="FedLC"):
            methods.get("fedlc", **bad)
