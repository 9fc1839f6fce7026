"""Numbers at the edge: each has one outcome, the same by both engines.

The first line of every test's docstring is a row of HARDENING.md.
"""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

from fedbook import FedbookError, Federation, methods, metrics, models, simulate
from fedbook.models.convnets import Classifier
from fedbook.rounds import CrossEntropy, Device, Weigh, evaluate
from fedbook.rounds.evaluation import score

NAN = float("nan")


@pytest.fixture(params=["loop", "lockstep"])
def run(request):
    def go(federation, model=None, rounds=2, **options):
        model = model or models.build("linear", federation)
        own = {"engine": request.param, "quiet": True, "device": options.pop("device", "cpu")}
        method = options.pop("method", None) or methods.get("fedavg", **options)
        return simulate(method, federation, model, rounds, **own).run()

    return go


def federation(sizes=(6, 7), classes=3, test=4, dim=5, dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    clients = []
    for n in sizes:
        x, y = torch.randn(n + test, dim, generator=g).to(dtype), torch.arange(n + test) % classes
        clients.append({"train": (x[:n], y[:n]), "test": (x[n:], y[n:])})
    return Federation.from_arrays(clients, class_names=[*"abcdefgh"[:classes]])


def replaced(own, row, value):
    x = own.x.clone()
    x[row] = value
    return dataclasses.replace(own, x=x)


def numbers(result):
    return all(bool(t.isfinite().all()) for t in result.params.values())


# -- not a number ----------------------------------------------------------------------------------
@pytest.mark.parametrize("value", [NAN, math.inf])
def test_in_training_data(run, value):
    """NaN or infinity in a training sample | stops in that round and names the client"""
    own = federation()
    with pytest.raises(FedbookError, match="diverged: client 1, round 1.*lower lr"):
        run(replaced(own, int(own.clients[1].train[2]), value))


def test_in_test_data(run):
    """NaN in a test sample | its answer counts as wrong; the client's loss is NaN, nobody else's"""
    own = federation()
    row = own.clients[1].test[0]
    assert int(own.y[row]) == 1
    relabelled = dataclasses.replace(own, y=own.y.clone())
    relabelled.y[row] = 0  # an argmax over NaN says class 0
    record = run(replaced(relabelled, int(row), NAN)).records[-1]
    assert math.isnan(record.test_loss[1]) and math.isfinite(record.test_loss[0])
    assert record.test_acc[1] <= 0.75


@dataclasses.dataclass(frozen=True)
class Broken(CrossEntropy):
    """A loss that becomes NaN in the second round."""

    def __call__(self, local, batch, sent, memory):
        loss = super().__call__(local, batch, sent, memory)
        return loss * (NAN if local.round == 2 else 1.0)

    together = None


def test_in_a_loss(tmp_path):
    """A loss becomes NaN | stops; the last checkpoint is untouched"""
    own = federation()
    method = methods.get("fedavg").replace(objective=(Broken(),))
    model = models.build("linear", own)
    with pytest.raises(FedbookError, match="diverged: client 0, round 2, loss nan"):
        options = {"checkpoint": tmp_path, "engine": "loop", "quiet": True}
        simulate(method, own, model, 3, **options).run()
    assert '"round": 1' in (tmp_path / "latest.json").read_text()


@pytest.mark.parametrize(
    ("value", "said"), [(NAN, "client 0 is NaN"), (math.inf, "infinite"), (-math.inf, "zero")]
)
def test_in_weights(run, value, said):
    """A weight is NaN or infinite, or all are zero | stops and names the client"""

    @dataclasses.dataclass(frozen=True)
    class Odd(Weigh):
        def __call__(self, state, reports):
            return torch.full((len(reports),), value, dtype=torch.float64), state

    with pytest.raises(FedbookError, match=said):
        run(federation(), method=methods.get("fedavg").replace(weigh=(Odd(),)))


def test_weights_beyond_any_float():
    """Weights of 10^-10000 and 10^10000 | normalised in the log domain"""
    from fedbook.rounds.weights import normalise

    assert normalise([-23000.0, -23000.0], [0, 1]) == [0.5, 0.5]
    assert normalise([23000.0, 0.0], [0, 1]) == [1.0, 0.0]
    assert normalise([-math.inf, 0.0], [0, 1]) == [0.0, 1.0]


def test_scores_by_hand():
    """A client knows one of three classes | its macro-F1 is that class's F1"""
    scores = score(
        torch.tensor([0, 0, 0, 1]),
        3,
        loss=torch.tensor([1.0, 2.0, 3.0, 4.0]),
        predicted=torch.tensor([0, 1, 0, 1]),
        y=torch.tensor([0, 0, 0, 1]),
        classes=3,
    )
    assert scores.acc[:2] == pytest.approx([2 / 3, 1.0]) and scores.loss[:2] == [2.0, 4.0]
    assert scores.f1[:2] == pytest.approx([0.8, 1.0])  # 2 TP / (2 TP + FN) = 4 / 5
    assert math.isnan(scores.acc[2]) and math.isnan(scores.loss[2]) and math.isnan(scores.f1[2])
    own = federation()
    assert len(evaluate(models.build("linear", own), own).acc) == 2


# -- few samples -----------------------------------------------------------------------------------
def test_one_sample(run):
    """A client with one training sample | trains like any other"""
    result = run(federation(sizes=(1, 9)))
    assert numbers(result) and result.records[0].weights == pytest.approx([0.1, 0.9])


def test_one_class(run):
    """A client that knows one class only | trains like any other"""
    own = federation()
    y = own.y.clone()
    y[own.clients[0].train] = 2
    result = run(dataclasses.replace(own, y=y), rounds=3)
    assert numbers(result) and result.records[-1].train_acc[0] >= 0


def test_a_class_never_seen(run):
    """A class without a single sample | a column that learns to be low; its F1 does not count"""
    own = federation()
    own = dataclasses.replace(own, class_names=("a", "b", "c", "never"))
    model = models.build("linear", own)
    result = run(own, model, rounds=5)
    change = result.params["head.bias"] - model.head.bias.detach()
    assert numbers(result) and int(change.argmin()) == 3 and change[3] < 0
    assert all(math.isfinite(f) for f in result.records[-1].test_f1)
    assert metrics.macro_f1([0, 1], [0, 1], 3) == pytest.approx(2 / 3)
    assert metrics.macro_f1([0, 1], [0, 1], 3, "present") == 1.0


def test_no_test_data(run):
    """A client without test samples | scores NaN and is left out of every mean"""
    own = federation()
    first = dataclasses.replace(own.clients[0], test=own.clients[0].test[:0])
    own = dataclasses.replace(own, clients=(first, own.clients[1]))
    record = run(own).records[-1]
    assert math.isnan(record.test_acc[0]) and math.isfinite(record.accuracy)
    assert metrics.summarise(record, [0, 0], [0, 4])["avg_client"] == record.test_acc[1]


def test_no_test_data_at_all(run):
    """No client has a test sample | trains; scores are NaN, a result is refused"""
    own = federation(test=0)
    record = run(own).records[-1]
    assert record.accuracy is None and all(math.isnan(a) for a in record.test_acc)
    with pytest.raises(FedbookError, match="no client has a test sample"):
        metrics.summarise(record, [0, 0], [0, 0])
    assert all(math.isnan(a) for a in evaluate(models.build("linear", own), own).acc)


def normed(norm):
    return Classifier(nn.Sequential(nn.Flatten(), nn.Linear(5, 4), norm(), nn.ReLU()), 4, 3)


@pytest.mark.parametrize("sizes", [(1, 8), (9, 8)])
def test_batch_norm_and_one_sample(run, sizes):
    """A batch of one sample (the client's only one, or the last) and BatchNorm | stops, says why"""
    with pytest.raises(FedbookError, match="batch of one sample came to a BatchNorm"):
        run(federation(sizes), normed(lambda: nn.BatchNorm1d(4)), batch_size=8)


def test_group_norm_and_one_sample(run):
    """Batches of one sample and GroupNorm | trains"""
    assert numbers(run(federation((1, 3)), normed(lambda: nn.GroupNorm(2, 4)), batch_size=1))


# -- precision -------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_half_precision_data(run, dtype):
    """Samples in float16, bfloat16 or float64 | computed in float32"""
    own = federation(dtype=dtype)
    result = run(own)
    assert numbers(result) and {t.dtype for t in result.params.values()} == {torch.float32}
    exact = dataclasses.replace(own, x=own.x.float())
    same = run(exact)
    assert all(torch.equal(result.params[n], same.params[n]) for n in same.params)


def test_bf16_arithmetic(run):
    """bfloat16 arithmetic (Device(bf16=True)) | parameters stay float32 and finite"""
    result = run(federation(), device=Device("cpu", bf16=True), lr=0.05)
    assert numbers(result) and {t.dtype for t in result.params.values()} == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_in_half_precision(run, dtype):
    """A model whose weights are float16 or bfloat16 | refused before it starts"""
    own = federation()
    with pytest.raises(FedbookError, match="the model cannot take samples"):
        run(own, models.build("linear", own).to(dtype))


def test_labels_of_every_kind():
    """Labels as uint8, int32, float (whole) or bool | whole numbers; others are refused"""
    x = torch.zeros(2, 3)
    for y in (np.array([0, 1], np.uint8), np.array([0, 1], np.int32), [0.0, 1.0], [False, True]):
        assert Federation.from_arrays([{"train": (x, y)}]).y.tolist() == [0, 1]
    for wrong in ([0, NAN], [0, 0.5], [0, math.inf], [0, -1]):
        with pytest.raises(FedbookError, match="whole numbers|lie in"):
            Federation.from_arrays([{"train": (x, wrong)}])


def test_metrics_of_what_is_no_number():
    """NaN among the clients' scores given to a metric | the metric is NaN, never a number"""
    for metric in (metrics.avg_client, metrics.worst_client, metrics.sigma_client, metrics.bottom):
        assert math.isnan(metric([NAN, 0.5]))
    assert math.isnan(metrics.avg_type([NAN, 0.5], [0, 1]))
    assert math.isnan(metrics.avg_sample([NAN, 0.5], [1, 1]))
