"""The parts of a round, one by one, by hand: bytes, settings, streams, chunks, tallies, tables."""

import contextlib
import dataclasses
import hashlib
import math
import threading
import types
from typing import Any, Literal

import pytest
import torch
from helpers import LOCAL, mlp, near, normed, run, same
from torch import nn

from fedbook import Device, FedbookError, Federation, methods, simulate
from fedbook.models.convnets import Classifier
from fedbook.rounds import (
    BySize,
    CrossEntropy,
    Grouping,
    LocalSolver,
    Method,
    Personal,
    Report,
    Uniform,
)
from fedbook.rounds import evaluation as ev
from fedbook.rounds import lockstep as ls
from fedbook.rounds.halves import Clients
from fedbook.rounds.params import body, copy_into, count_bytes, shared_state
from fedbook.rounds.record import Record, Traffic
from fedbook.rounds.seeds import generator, stream
from fedbook.rounds.stages import Local, Stage, Update, _words, fits, losses, numbered, plain


# -- parameters ------------------------------------------------------------------------------------
def test_bytes_by_hand():
    nest = {"t": torch.zeros(3), "d": torch.zeros(2, dtype=torch.float64), "deep": [1, (2.0, None)]}
    assert count_bytes(nest) == 12 + 16 + 8 + 4
    assert [count_bytes(v) for v in (7, True, 0.5, "text", None, {}, [])] == [8, 8, 4, 0, 0, 0, 0]
    traffic = Traffic()
    for value in (1, 2.0):
        traffic.receive(value)
    traffic.send(torch.zeros(5))
    assert (traffic.up, traffic.down) == (12, 20)


class Nested(nn.Module):
    """A buffer of its own, beside a child that is frozen and one that is not."""

    def __init__(self, own_frozen):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.w = nn.Parameter(torch.zeros(1), requires_grad=not own_frozen)
        self.cold = nn.BatchNorm1d(2).requires_grad_(False)
        self.warm = nn.BatchNorm1d(2)


@pytest.mark.parametrize("own_frozen", [False, True])
def test_a_buffer_is_shared_unless_its_own_layer_is_frozen(own_frozen):
    warm = {f"warm.{n}" for n in nn.BatchNorm1d(2).state_dict()}
    expected = warm if own_frozen else warm | {"seen", "w"}
    model = Nested(own_frozen)
    shared = shared_state(model)
    assert set(shared) == expected
    shared["warm.weight"].fill_(7.0)
    assert torch.equal(model.warm.weight, torch.full((2,), 7.0))  # a view


def test_the_body_is_everything_but_the_head():
    names = ("head.weight", "head.bias", "header.x", "features.head.w", "z")
    params = {n: torch.zeros(1) for n in names}
    assert list(body(params)) == ["header.x", "features.head.w", "z"]


def test_copying_writes_the_names_of_the_source_alone():
    target = {"a": torch.zeros(2), "b": torch.zeros(2)}
    copy_into(target, {"b": torch.ones(2)})
    copy_into(target, {})
    assert target["a"].tolist() == [0, 0] and target["b"].tolist() == [1, 1]


# -- random streams --------------------------------------------------------------------------------
def test_a_stream_is_seven_bytes_of_its_keys_hash():
    """Stored results rest on these numbers: they are those of every release."""
    digest = hashlib.sha256(b"(3, 'sample', 1)").hexdigest()
    assert stream(3, "sample", 1) == int(digest[:14], 16) < 2**56
    assert stream(3, "sample", 1) != stream(3, "sample", 11) != stream(3, "sample1", 1)
    drawn = torch.rand(3, generator=generator(3, "sample", 1))
    again = torch.rand(3, generator=torch.Generator().manual_seed(stream(3, "sample", 1)))
    assert torch.equal(drawn, again)


# -- records ---------------------------------------------------------------------------------------
def record(**changes):
    usual = {"round": 3, "participants": [4, 7], "weights": [0.25, 0.75], "bytes_up": 12345}
    usual |= {"bytes_down": 6789, "train_loss": {4: 0.5, 7: 1.25}, "train_acc": {4: 1.0, 7: 0.5}}
    return Record(**(usual | changes))


def test_a_record_in_words():
    text = "Record(round 3: 2 clients, accuracy 0.750, 12,345 bytes up, 6,789 down)"
    assert repr(record(test_acc=[0.5, 1.0])) == text
    assert repr(record()) == text.replace("accuracy 0.750", "not tested")
    html = record()._repr_html_()
    for cell in ("client", "weight", "training loss", "0.2500", "0.7500", "0.5000", "1.2500"):
        assert f">{cell}</t" in html


def test_accuracy_is_the_global_models_before_the_clients_own():
    nan = math.nan
    assert record(test_acc=[0.25, nan, 0.75], personal_acc=[1.0, 1.0, 1.0]).accuracy == 0.5
    assert record(personal_acc=[1.0, 0.5, nan]).accuracy == 0.75
    assert record(test_acc=[nan]).accuracy is None and record().accuracy is None
    fresh = record()
    assert fresh.seconds == 0.0 and fresh.log == {} and fresh.log is not record().log
    assert Record.from_json(fresh.to_json()) == fresh
    with pytest.raises(TypeError):  # by name only
        Record(3, [4, 7], [0.25, 0.75], {}, {}, 1, 2)


# -- settings --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "value, hint, expected",
    [
        (3, int, True),
        (3.0, int, False),
        (True, int, False),
        (True, float, False),
        (3, float, True),
        (math.nan, float, False),
        (math.inf, float, True),
        ("a", str, True),
        (3, str, False),
        (True, bool, True),
        (1, bool, False),
        (None, float | None, True),
        ("x", float | None, False),
        (2, float | None, True),
        ("sgd", Literal["sgd", "adamw"], True),
        ("lion", Literal["sgd", "adamw"], False),
        ((1,), tuple[int, ...], True),
        ([1], tuple[int, ...], True),
        ({1: 2}, tuple[int, ...], False),
        ({}, dict[str, int], True),
        ([], dict[str, int], False),
        (object(), Any, True),
    ],
)
def test_what_fits_an_annotation(value, hint, expected):
    assert fits(value, hint) is expected


@pytest.mark.parametrize(
    "hint, words",
    [
        (int, "a whole number"),
        (float, "a number"),
        (float | None, "a number or None"),
        (str, "text"),
        (bool, "True or False"),
        (dict[str, int], "a dict"),
        (tuple[int, ...], "a tuple"),
        (Literal["a", "b"], "'a' or 'b'"),
        (Stage, "a Stage"),
    ],
)
def test_annotations_in_words(hint, words):
    assert _words(hint) == words


@pytest.mark.parametrize(
    "participation, clients, count",
    [(1.0, 7, 7), (1, 7, 1), (3, 7, 3), (7, 7, 7), (0.5, 6, 3), (0.01, 7, 1), (0.26, 10, 3)],
)
def test_how_many_take_part(participation, clients, count):
    assert Uniform(participation).count(clients) == count


@pytest.mark.parametrize("participation", [0, -1, 8, 0.0, -0.5, 1.01])
def test_how_many_cannot_take_part(participation):
    with pytest.raises(FedbookError, match="number of the 7 clients"):
        Uniform(participation).count(7)


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 1},
        {"batch_size": 1},
        {"lr": 0.0},
        {"weight_decay": 0.0},
        {"momentum": 0.0},
        {"momentum": 0.999},
        {"clip": 1e-9},
        {"clip": None},
        {"optimizer": "adamw"},
        {"param_groups": (("*", {"lr": 0.0, "momentum": 0.5, "weight_decay": 1}),)},
    ],
)
def test_settings_at_the_edge_are_taken(settings):
    solver = LocalSolver(**settings)
    assert all(getattr(solver, name) == value for name, value in settings.items())


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 0},
        {"epochs": 1.5},
        {"epochs": True},
        {"batch_size": 0},
        {"lr": "fast"},
        {"lr": -1e-9},
        {"lr": math.inf},
        {"weight_decay": -1e-9},
        {"momentum": 1.0},
        {"momentum": -1e-9},
        {"clip": 0.0},
        {"optimizer": "SGD"},
        {"param_groups": (("*",),)},
        {"param_groups": (("*", {}, 1),)},
        {"param_groups": ((3, {}),)},
        {"param_groups": (("*", 3),)},
        {"param_groups": (("*", {"lr": -1.0}),)},
        {"param_groups": (("*", {"lr": math.inf}),)},
        {"param_groups": (("*", {"lr": "fast"}),)},
        {"param_groups": (("*", {"clip": 1.0}),)},
    ],
)
def test_settings_beyond_the_edge_are_refused(settings):
    with pytest.raises(FedbookError, match=next(iter(settings))):
        LocalSolver(**settings)


def test_solvers_build_what_they_say(toy):
    model = mlp(toy)
    frozen, *_ = model.parameters()
    frozen.requires_grad_(False)
    groups = (("head.*", {"lr": 0.5}), ("head.bias", {"lr": 9.0}))
    solver = LocalSolver(lr=0.1, momentum=0.9, weight_decay=0.01, param_groups=groups)
    sgd = solver.build(model)
    assert type(sgd) is torch.optim.SGD and len(sgd.param_groups) == 2  # the first match wins
    head, rest = sgd.param_groups
    assert (head["lr"], head["momentum"], head["weight_decay"]) == (0.5, 0.9, 0.01)
    assert (rest["lr"], rest["momentum"], rest["weight_decay"]) == (0.1, 0.9, 0.01)
    assert {id(p) for p in head["params"]} == {id(p) for p in model.head.parameters()}
    every = {id(p) for g in sgd.param_groups for p in g["params"]}
    assert every == {id(p) for p in model.parameters() if p is not frozen}
    adamw = LocalSolver(optimizer="adamw", lr=0.2, weight_decay=0.3).build(model)
    assert type(adamw) is torch.optim.AdamW and len(adamw.param_groups) == 1
    assert (adamw.param_groups[0]["lr"], adamw.param_groups[0]["weight_decay"]) == (0.2, 0.3)


def test_clipping_bounds_the_whole_gradient(toy):
    model = mlp(toy)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    LocalSolver(clip=0.5).clip_gradient(model)
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    assert float(norm) == pytest.approx(0.5, abs=1e-5)
    before = [p.grad.clone() for p in model.parameters()]
    LocalSolver().clip_gradient(model)
    assert all(torch.equal(a, p.grad) for a, p in zip(before, model.parameters()))


def test_a_client_reports_the_mean_over_its_last_epoch(toy):
    """With a rate of zero every epoch is the same: the loss and accuracy of the model it got."""
    model = mlp(toy)
    local = Local.of(toy, model, client=1, terms=(CrossEntropy(),))
    loss, acc = LocalSolver(lr=0.0, epochs=3, batch_size=5)(local, {}, {})
    index = toy.clients[1].train
    logits = model(toy.inputs(index))
    assert float(loss) == pytest.approx(float(nn.functional.cross_entropy(logits, toy.y[index])))
    assert float(acc) == pytest.approx(float((logits.argmax(1) == toy.y[index]).float().mean()))


def test_losses_of_each_kind():
    reports = [Report(id=k, size=1, loss=1.0 + k, train_loss=3.0 + k) for k in range(2)]
    assert losses(reports, "received").tolist() == [1.0, 2.0]
    assert losses(reports, "training").tolist() == [3.0, 4.0]
    assert losses(reports, "training").dtype == torch.float64
    for kind in (None, "other"):
        with pytest.raises(FedbookError, match="'received' or 'training'"):
            losses(reports, kind)


# -- methods ---------------------------------------------------------------------------------------
def test_slots_and_what_is_kept():
    assert numbered("weigh", ("a", "b")) == {"weigh.0": "a", "weigh.1": "b"}
    slots = ["sample", "objective.0", "solve", "weigh.0", "update"]
    assert list(Method("m").stages()) == slots
    keeping = Personal(keep=("head.*", "*.bn"))
    assert [keeping.keeps(n, None) for n in ("head.w", "a.bn", "header", "bn")] == [1, 1, 0, 0]
    assert not keeping.alone and not Update().uploads and Update().loss is None
    assert not Update().overrides_download() and not Stage().overrides("tell")
    assert Stage().once(None) == (0, 0)


def test_a_stage_as_json():
    found = plain(LocalSolver(param_groups=(("a", {"lr": 1}),)))
    assert found["stage"] == "LocalSolver" and found["param_groups"] == [["a", {"lr": 1}]]
    assert plain((1, "a", None, True, 0.5)) == [1, "a", None, True, 0.5]
    assert plain({"k": (BySize(),)}) == {"k": [{"stage": "BySize", "loss": None}]}
    assert plain(torch.float32) == "torch.float32"


def test_differences_in_words():
    long = tuple((f"layer{i}.*", {"lr": 0.1}) for i in range(9))
    method = Method("m", solve=LocalSolver(lr=0.2, param_groups=long), personal=Personal(("h*",)))
    assert method.difference() == {
        "solve": "LocalSolver(lr=0.2, param_groups=tuple(...))",
        "personal": "Personal(keep=('h*',))",
    }
    two = Method("m", weigh=(BySize(), BySize()))
    assert two.difference() == {"weigh.1": "BySize()"}
    assert repr(Method("m")) == "m = FedAvg"
    assert repr(two).splitlines() == ["m = FedAvg with", "  weigh.1      BySize()"]


# -- devices ---------------------------------------------------------------------------------------
def test_a_device_by_default_changes_nothing():
    device = Device.of("cpu")
    assert Device.of(device) is device and device.torch == torch.device("cpu")
    assert Device.of(torch.device("cpu")) == device
    assert Device().torch == torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert (device.bf16, device.channels_last, device.compile, device.together) == (0, 0, 0, None)
    assert isinstance(device.autocast(), contextlib.nullcontext)
    pictures = torch.zeros(2, 3, 4, 4)
    assert device.images(pictures) is pictures
    last = Device("cpu", channels_last=True)
    assert last.images(pictures).is_contiguous(memory_format=torch.channels_last)
    flat = torch.zeros(2, 5)
    assert last.images(flat) is flat
    with Device("cpu", bf16=True).autocast():
        assert (torch.zeros(2, 2) @ torch.zeros(2, 2)).dtype == torch.bfloat16
    with pytest.raises(FedbookError, match="unknown device 'nowhere'"):
        Device("nowhere").torch  # noqa: B018


@pytest.mark.parametrize("there", [True, False])
def test_a_gpu_is_taken_if_there_is_one(monkeypatch, there):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert Device("auto").torch.type == ("cuda" if there else "cpu")
    assert Device("cpu").torch.type == "cpu"
    if there:
        assert Device("cuda:1").torch == torch.device("cuda:1")
        return
    with pytest.raises(FedbookError, match="torch sees no GPU"):
        Device("cuda").torch  # noqa: B018


# -- evaluation ------------------------------------------------------------------------------------
def test_predictions_do_not_depend_on_the_batch_and_leave_the_mode(toy):
    model = normed()
    index = torch.cat([c.test for c in toy.clients])
    settings = {"device": Device("cpu"), "precomputed": {}}
    model.train()
    loss, classes = ev.predict(model, toy, index, **settings, batch=5)
    assert model.training and not loss.requires_grad
    model.eval()
    logits = model(toy.inputs(index))
    assert torch.equal(classes, logits.argmax(1))
    each = nn.functional.cross_entropy(logits, toy.y[index], reduction="none")
    assert torch.allclose(loss, each, atol=1e-6)
    ev.predict(model, toy, index, **settings)
    assert not model.training
    none = ev.predict(model, toy, index[:0], **settings)
    assert [len(t) for t in none] == [0, 0]


def test_what_a_model_offers_to_compute_once(toy):
    model = mlp(toy)
    assert ev.precompute(model, toy) == {}
    model.precompute = lambda federation: {"n": torch.arange(len(federation.x))}
    assert torch.equal(ev.precompute(model, toy)["n"], torch.arange(len(toy.x)))


def test_one_part_of_some_clients(toy):
    model = mlp(toy)
    some = [toy.clients[2], toy.clients[0]]
    found = ev.evaluate(model, toy, some, part="train", device="cpu")
    for k, c in enumerate(some):
        logits = model(toy.inputs(c.train))
        hits = (logits.argmax(1) == toy.y[c.train]).float()
        assert found.acc[k] == pytest.approx(float(hits.mean()))
        loss = nn.functional.cross_entropy(logits, toy.y[c.train])
        assert found.loss[k] == pytest.approx(float(loss), abs=1e-6)
    tested = ev.evaluate(model, toy)
    assert len(tested.acc) == 4 and tested.acc[2] != found.acc[0]


# -- lock-step -------------------------------------------------------------------------------------
def engine(federation, threads=1, **settings):
    method = methods.get("fedavg", **(LOCAL | {"batch_size": 16}))
    options = {"device": Device("cpu", **settings), "engine": "lockstep", "quiet": True}
    found = simulate(method, federation, mlp(federation), 1, **options)._engine
    found.threads = lambda: threads
    return found


def test_chunks_by_hand(toy):
    assert engine(toy).chunks(10, 16) == [slice(0, 3, 1), slice(3, 6, 1), slice(6, 10, 1)]
    assert engine(toy).chunks(3, 1000) == [slice(0, 1, 1), slice(1, 2, 1), slice(2, 3, 1)]
    assert engine(toy).chunks(4, 32) == [slice(0, 2, 1), slice(2, 4, 1)]
    assert engine(toy, 2).chunks(5, 64) == [
        slice(0, 1, 1),
        slice(1, 3, 2),
        slice(2, 3, 2),
        slice(3, 5, 2),
        slice(4, 5, 2),
    ]
    assert engine(toy, together=5).chunks(9, 1) == [slice(0, 4, 1), slice(4, 9, 1)]
    assert engine(toy, 2).chunks(4, 1) == [slice(0, 4, 2), slice(1, 4, 2)]


def test_a_tally_counts_the_last_epoch_alone():
    """Two clients with batches of 2 and 1, then 1 and nothing; the first step is not of the last
    epoch for client 0."""
    tally = ls.Tally()
    hits = torch.tensor([True, True, True])
    tally.add(torch.tensor([5.0, 2.0]), hits, [2, 1], [False, True])
    tally.add(torch.tensor([3.0]), torch.tensor([True, False]), [2], [True])
    loss, acc = tally.means([2, 1])
    assert loss.tolist() == [3.0, 2.0] and acc.tolist() == [0.5, 1.0]


def test_norms_and_factors_by_client():
    a = torch.tensor([[3.0, 0.0], [0.0, 0.0]])
    b = torch.tensor([[[4.0]], [[2.0]]])
    assert ls.client_norms([a, b]).tolist() == [5.0, 2.0]
    assert ls.per_client(torch.ones(2), b).shape == (2, 1, 1)
    assert ls.per_client(torch.ones(2), torch.ones(2)).shape == (2,)


def test_the_schedule_is_every_sample_once_an_epoch(toy):
    local = Local.of(toy, mlp(toy), client=1)
    plan = list(ls.schedule(local, LocalSolver(epochs=2, batch_size=5)))
    assert [len(part) for part, _ in plan] == [5, 5, 2] * 2
    assert [last for _, last in plan] == [False] * 3 + [True] * 3
    for half in (plan[:3], plan[3:]):
        seen = torch.cat([part for part, _ in half])
        assert sorted(seen.tolist()) == sorted(toy.clients[1].train.tolist())


@pytest.mark.parametrize("clip", [None, 0.05, 1e3])
def test_every_client_is_clipped_by_its_own_norm(toy, clip):
    """In lock-step as one after another."""
    method = methods.get("fedavg", **LOCAL, clip=clip, epochs=2)
    found = [
        simulate(method, toy, mlp(toy), 2, device="cpu", engine=e, quiet=True).run()
        for e in ("loop", "lockstep")
    ]
    assert [f.engine for f in found] == ["loop", "lockstep"] and near(*found, atol=1e-5)


@pytest.mark.parametrize(
    "name, options",
    [
        ("fedavg", {"momentum": 0.9, "weight_decay": 0.01, "epochs": 2, "batch_size": 5}),
        ("fedavg", {"optimizer": "adamw", "lr": 0.01, "epochs": 2, "weight_decay": 0.1}),
        ("fedavg", {"param_groups": (("head.*", {"lr": 0.5}),), "participation": 3}),
        ("fedprox", {"mu": 0.5}),
        ("scaffold", {}),
        ("ditto", {}),
        ("lg_fedavg", {}),
        ("moon", {}),
        ("q_ffl", {}),
    ],
)
def test_lockstep_is_the_loop(toy, name, options):
    """Clients of 8, 12, 20 and 40 samples: parameters, losses, hits, scores and bytes."""
    found = []
    for kind in ("loop", "lockstep"):
        settings = {"device": "cpu", "engine": kind, "quiet": True}
        method = methods.get(name, **(LOCAL | options))
        found.append(simulate(method, toy, mlp(toy), 2, **settings).run())
    assert [f.engine for f in found] == ["loop", "lockstep"] and near(*found, atol=2e-5)
    for a, b in zip(*(f.records for f in found), strict=True):
        assert a.participants == b.participants
        assert (a.bytes_up, a.bytes_down) == (b.bytes_up, b.bytes_down)
        assert list(a.train_loss) == list(b.train_loss)
        for score in ("train_loss", "train_acc", "test_loss", "personal_loss", "personal_f1"):
            ours, theirs = getattr(a, score), getattr(b, score)
            assert (ours is None and theirs is None) or ours == pytest.approx(theirs, abs=1e-4)


def test_chunks_are_computed_side_by_side_and_in_order(toy):
    before = torch.get_num_threads()
    work = engine(toy, 3)
    seen = work._map(lambda c: (c, threading.get_ident(), torch.get_num_threads()), [3, 1, 2])
    assert [c for c, _, _ in seen] == [3, 1, 2] and {n for _, _, n in seen} == {1}
    assert threading.get_ident() not in {who for _, who, _ in seen}
    assert torch.get_num_threads() == before
    alone = engine(toy, 1)._map(lambda c: threading.get_ident(), [1, 2])
    assert alone == [threading.get_ident()] * 2 == engine(toy, 5)._map(lambda c: alone[0], [1, 2])
    two = engine(toy, 2)._map(lambda c: threading.get_ident(), [1, 2])
    assert threading.get_ident() not in two


def test_a_stack_trains_unless_told(toy):
    work = engine(toy)
    start = work._resident()
    assert set(start) == set(work.trained) and work.whole
    with work._stack([start, start]) as stack:
        assert stack._twin.training and stack.clients == 2
    with work._stack([start], training=False) as again:
        assert again is stack and not again._twin.training  # used again


def test_what_is_drawn_after_training_is_the_same_by_both_engines(toy):
    class Drawing(BySize):
        def end(self, local, sent, memory):
            return {"draw": float(torch.rand(()))}

        def __call__(self, state, reports):
            scores, _ = super().__call__(state, reports)
            return scores, {"log": {"draws": [r["draw"] for r in reports]}}

    drawn = []
    for kind in ("loop", "lockstep"):
        settings = {"device": "cpu", "engine": kind, "quiet": True}
        method = methods.get("fedavg", **LOCAL).replace(weigh=(Drawing(loss="training"),))
        drawn.append(simulate(method, toy, mlp(toy), 1, **settings).run().records[0].log["draws"])
    assert drawn[0] == drawn[1] and len(set(drawn[0])) == 4


def test_what_stands_in_the_way_of_a_lock_step(toy):
    class Steps(LocalSolver):
        def step(self, local, optimizer, batch):
            return super().step(local, optimizer, batch)

    class Loops(LocalSolver):
        def __call__(self, local, sent, memory):
            return super().__call__(local, sent, memory)

    class Alone(CrossEntropy):
        pass

    method = methods.get("fedavg", **LOCAL)
    cases = {
        "Steps has steps of its own": method.replace(solve=Steps()),
        "Loops has a loop of its own": method.replace(solve=Loops()),
        "Alone needs a pass of its own": method.replace(objective=(Alone(lockstep=False),)),
    }
    for reason, recipe in cases.items():
        stopped = simulate(recipe, toy, mlp(toy), 1, device="cpu", quiet=True)
        assert stopped.engine == "loop" and ls.obstacle(stopped) == (reason, "")
    compiled = simulate(method, toy, mlp(toy), 1, device="cpu", quiet=True)
    assert ls.obstacle(compiled)[0] is None
    compiled.device = Device("cpu", compile=True)
    assert ls.obstacle(compiled) == ("the model is compiled for one client", "")


def test_leaving_clients_take_their_rows_along():
    stack = types.SimpleNamespace(params={"w": nn.Parameter(torch.arange(6.0).reshape(3, 2))})
    optimizer = torch.optim.SGD(stack.params.values(), lr=1.0, momentum=0.9)
    stack.params["w"].grad = torch.ones(3, 2)
    optimizer.step()
    old = stack.params["w"]
    ls.keep(2, stack, optimizer)
    new = stack.params["w"]
    assert new.tolist() == old[:2].tolist() and optimizer.param_groups[0]["params"] == [new]
    assert list(optimizer.state) == [new]
    assert optimizer.state[new]["momentum_buffer"].tolist() == [[1, 1], [1, 1]]


class Scaled(nn.Module):
    """A trained number that belongs to no layer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.head = nn.Linear(5, 3)

    def embed(self, x):
        return x * self.scale

    def forward(self, x):
        return self.head(self.embed(x))


def test_which_engine_is_chosen(toy):
    def chosen(method="fedavg", engine="auto", model=None, **device):
        built = mlp(toy) if model is None else model
        options = {"device": Device("cpu", **device), "engine": engine, "quiet": True}
        return simulate(methods.get(method, **LOCAL), toy, built, 1, **options).engine

    assert chosen() == chosen(engine="lockstep") == "lockstep"
    assert chosen(engine="loop") == "loop"
    scaled = Scaled()
    assert ls.obstacle(simulate(methods.get("fedavg"), toy, scaled, device="cpu"))[1] == "vmap"
    assert chosen(model=scaled, engine="lockstep") == "lockstep"
    assert chosen(model=scaled) == "loop"  # vmap costs more than it saves on a processor
    with pytest.raises(FedbookError, match="use one of loop, lockstep, auto"):
        chosen(engine="Loop")


# -- a run -----------------------------------------------------------------------------------------
def test_a_run_in_words(toy):
    done = run("fedavg", toy, 12)
    last = repr(done.records[-1])
    assert repr(done) == f"Simulation(fedavg on 4 clients, 12 of 12 rounds, {last})"
    html = done._repr_html_()
    assert html.count("<tr>") == 11  # the last ten, and the heading
    assert all(f">{word}</th>" in html for word in ("round", "clients", "accuracy", "bytes up"))
    assert ">2</td>" not in html and ">3</td>" in html and ">12</td>" in html
    assert f">{done.records[-1].bytes_up:,}</td>" in html
    assert f">{done.records[-1].accuracy:.3f}</td>" in html
    fresh = simulate(methods.get("fedavg"), toy, mlp(toy), 3, quiet=True)
    assert repr(fresh) == "Simulation(fedavg on 4 clients, 0 of 3 rounds)"


def test_a_frame_holds_the_records(toy):
    done = run("ditto", toy, 2, participation=2)
    frame = done.frame()
    assert (
        frame["round"].tolist() == [1] * 4 + [2] * 4
        and frame["client"].tolist() == [0, 1, 2, 3] * 2
    )
    assert frame["type"].tolist() == ["even", "odd"] * 4
    for i, row in frame.iterrows():
        r = done.records[row["round"] - 1]
        weight = dict(zip(r.participants, r.weights)).get(row["client"], 0.0)
        assert row["weight"] == weight
        for name in ("test_loss", "test_acc", "test_f1", "personal_loss", "personal_acc"):
            assert row[name] == getattr(r, name)[i % 4]
        assert row["personal_f1"] == r.personal_f1[i % 4]
        if row["client"] in r.train_loss:
            assert row["train_loss"] == r.train_loss[row["client"]]
            assert row["train_acc"] == r.train_acc[row["client"]]


def test_a_personal_model_is_that_of_the_last_round(toy):
    """Per-FedAvg adapts it by batches that are drawn for the client and the round."""
    done = run("per_fedavg", toy, 2)
    c = toy.clients[2]

    def own(*t):
        return {n: p.clone() for n, p in done.personal_model(c, *t).state_dict().items()}

    assert same(own(), own(2)) and not same(own(), own(1))
    tested = ev.evaluate(done.personal_model(c), toy, [c], device="cpu")
    assert tested.acc[0] == done.records[-1].personal_acc[2]


def test_what_simulate_takes_and_how_long_it_goes(toy, tmp_path):
    with pytest.raises(
        FedbookError, match="takes a method, a federation and a model, got 'fedavg'"
    ):
        simulate("fedavg", toy, mlp(toy))
    with pytest.raises(FedbookError, match="a federation and a model, got None"):
        simulate(methods.get("fedavg"), None, mlp(toy))
    for name in ("rounds", "evaluate_every", "checkpoint_every"):
        with pytest.raises(FedbookError, match=f"^{name} must be a whole number of at least 1"):
            simulate(methods.get("fedavg"), toy, mlp(toy), **{name: 0})
    with pytest.raises(FedbookError, match="^seed must be a whole number of at least 0"):
        simulate(methods.get("fedavg"), toy, mlp(toy), seed=-1)
    usual = simulate(methods.get("fedavg"), toy, mlp(toy), checkpoint=tmp_path, quiet=True)
    assert (usual.rounds, usual.seed) == (10, 0)
    for record in usual:  # every round is tested and saved
        assert record.accuracy is not None
        assert f'"round": {record.round},' in (tmp_path / "latest.json").read_text()
    with pytest.raises(FedbookError, match="its evaluate_every differs"):
        options = {"checkpoint": tmp_path, "evaluate_every": 2, "quiet": True}
        simulate(methods.get("fedavg"), toy, mlp(toy), **options)


def test_what_is_sent_once_is_counted_once(toy):
    """What a stage announces goes to every client, before the first round and never again."""

    class Announcing(BySize):
        def tell(self, federation, client):
            return {"told": 1}

        def announce(self, federation, told):
            assert [t["told"] for t in told] == [1] * 4
            return {"said": torch.zeros(5)}

        def once(self, federation):
            return 100, 1000

    plain_run = run("fedavg", toy, 2)
    method = methods.get("fedavg", **LOCAL)
    found = run(method.replace(weigh=(Announcing(),)), toy, 2)
    first, second = zip(plain_run.records, found.records)
    assert first[1].bytes_up - first[0].bytes_up == 4 * 8 + 100
    assert first[1].bytes_down - first[0].bytes_down == 4 * 20 + 1000
    assert (second[1].bytes_up, second[1].bytes_down) == (second[0].bytes_up, second[0].bytes_down)


def test_traffic_of_fedavg_by_hand(toy):
    """Parameters down; parameters, and the number of samples, up."""
    done = run("fedavg", toy, 1, participation=3)
    size = count_bytes(done.params)
    assert done.records[0].bytes_down == 3 * size
    assert done.records[0].bytes_up == 3 * (size + 8)


def test_a_bad_batch_of_one_is_told_and_other_errors_are_not(toy):
    class Odd(CrossEntropy):
        def __call__(self, local, batch, sent, memory):
            raise ValueError("something else")

    with pytest.raises(ValueError, match="something else"):
        run(methods.get("fedavg", **LOCAL).replace(objective=(Odd(lockstep=False),)), toy)


def test_a_callback_that_says_true_is_the_last_round_told(toy):
    seen = []

    def stop(run, record):
        seen.append(record.round)
        return 1 if record.round == 1 else record.round == 2  # 1 is not True

    options = {"callbacks": [stop], "quiet": True, "device": "cpu"}
    done = simulate(methods.get("fedavg", **LOCAL), toy, mlp(toy), 5, **options).run()
    assert seen == [1, 2] and len(done.records) == 2
    assert same(dict(done.params), {n: t.detach() for n, t in shared_state(done.model).items()})


def test_one_sample_is_enough_and_a_model_for_others_is_refused(toy):
    with pytest.raises(FedbookError, match=r"answers with shape \(1, 2\), there are 3 classes"):
        simulate(methods.get("fedavg"), toy, Classifier(nn.Flatten(), 5, 2))
    more = Classifier(nn.Flatten(), 5, 4)
    assert run(methods.get("fedavg", **LOCAL), toy, 1, more).records[0].accuracy is not None
    alone = Federation.from_arrays(
        [{"train": (torch.zeros(1, 5), [0]), "test": (torch.zeros(0, 5), [])}]
    )
    assert run("fedavg", alone).records[0].weights == [1.0]


def test_every_purpose_has_a_stream_of_its_own(toy):
    """Stored results rest on their names: measuring, training and personal models."""
    seen = {}

    class Watching(Personal):
        def measure(self, local, memory):
            seen["measure", local.round, local.client.id] = local.generator.initial_seed()
            return {}

        def begin(self, local, sent, memory):
            seen["train", local.round, local.client.id] = local.generator.initial_seed()

        def load(self, local, sent, memory):
            seen["personal", local.round, local.client.id] = local.generator.initial_seed()

    run(methods.get("fedavg", **LOCAL).replace(personal=Watching()), toy, 2, seed=5)
    assert seen == {key: stream(5, *key) for key in seen} and len(seen) == 3 * 2 * 4


def test_groups_reach_the_reports_and_their_state_is_kept(toy):
    seen = []

    class Halves(Grouping):
        def init(self, federation, model):
            return {"rounds": 0}

        def __call__(self, state, reports):
            return [r.id // 2 for r in reports], {"rounds": state["rounds"] + 1}

    class Looking(BySize):
        def prepare(self, state, reports):
            seen.append([(r.id, r.group) for r in reports])
            return state

    method = methods.get("fedavg", **LOCAL).replace(grouping=Halves(), weigh=(Looking(),))
    done = run(method, toy, 2)
    assert seen == [[(0, 0), (1, 0), (2, 1), (3, 1)]] * 2
    assert done.state["grouping"] == {"rounds": 2}
    assert same(done, run("fedavg", toy, 2))


@pytest.mark.parametrize("engine, passes", [("loop", [1, 1, 1, 1]), ("lockstep", [4])])
def test_losses_are_measured_together_where_clients_train_so(toy, monkeypatch, engine, passes):
    asked = []
    real = Clients.evaluate

    def spy(self, model, clients=None, part="test"):
        if part == "train":
            asked.append(len(clients))
        return real(self, model, clients, part)

    monkeypatch.setattr(Clients, "evaluate", spy)
    options = {"device": "cpu", "engine": engine, "quiet": True}
    done = simulate(methods.get("q_ffl", **LOCAL), toy, mlp(toy), 1, **options).run()
    assert asked == passes and done.engine == engine


def test_a_model_without_forward_is_refused(toy):
    class Mute(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(5, 3)

        def embed(self, x):
            return x

    with pytest.raises(FedbookError, match="the model has no forward"):
        simulate(methods.get("fedavg"), toy, Mute())


def test_a_checkpoint_names_what_differs(toy, tmp_path):
    method = methods.get("fedavg", **LOCAL)
    run(method, toy, 1, checkpoint=tmp_path)
    other = dataclasses.replace(toy, y=toy.y.flip(0))
    cases = {
        "method": (method.replace(name="mine"), toy, mlp(toy), 0),
        "federation": (method, other, mlp(toy), 0),
        "model": (method, toy, mlp(toy, width=9), 0),
        "seed": (method, toy, mlp(toy), 1),
    }
    for what, (recipe, federation, model, seed) in cases.items():
        with pytest.raises(FedbookError, match=f"its {what} differs"):
            run(recipe, federation, 2, model, seed=seed, checkpoint=tmp_path)
    assert len(run(method, toy, 2, checkpoint=tmp_path).records) == 2


def test_the_first_client_on_the_processor_unless_told(toy):
    local = Local.of(toy, mlp(toy))
    assert local.client is toy.clients[0] and local.device == Device("cpu")
