"""Lock-step is the loop up to rounding: the same batches, records and bytes, for every method."""

import dataclasses
import math
import warnings
from types import SimpleNamespace

import pytest
import torch
from helpers import model_for, vit
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedbook import Device, FedbookError, Federation, methods, models, simulate
from fedbook.methods.client_index import ClientIndex
from fedbook.models.convnets import Classifier
from fedbook.models.stacked import ClientModel, Layout, Stack
from fedbook.papers.fedgcr.scales import FEDGCR_QUIRKS
from fedbook.rounds import CrossEntropy, Objective, Report
from fedbook.rounds.lockstep import Lockstep
from fedbook.rounds.record import Traffic

ALONE = {  # these train client by client, and why
    "fediir": "pass of its own",
    "fedmix": "pass of its own",
    "per_fedavg": "steps of its own",
    "pfedme": "steps of its own",
    "fed_dualprompt": "learned keys",
    "fedbn": "BatchNorm",
}
OPTIONS = {
    "client2vec": {"participation": 4},
    "fedgcr": {"clusters": 2, "lr": 0.01},
    "feddyn": {"lr": 0.05},
}


@pytest.fixture
def double(monkeypatch):
    """Everything in double precision, also what asks for single."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def threads():
    """Sets how many threads torch has, until the test ends."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def ragged(images) -> Federation:
    """Six clients of different sizes, images as doubles."""
    clients = []
    for k, c in enumerate(images.clients):
        clients.append(dataclasses.replace(c, train=c.train[: 6 + 2 * k]))
    x = images.x.double() / 255
    return dataclasses.replace(images, clients=tuple(clients), x=x, mean=None, std=None)


def both(method, federation, model, rounds=3, together=4, **options):
    runs = {}
    for engine in ("loop", "lockstep"):
        device = Device("cpu", together=together)
        settings = {"device": device, "quiet": True, "engine": engine, **options}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runs[engine] = simulate(method, federation, model, rounds, **settings).run()
    return runs["loop"], runs["lockstep"]


def apart(a, b):
    """The largest difference of two runs: parameters, losses, scores."""
    found = [0.0]
    for name, p in a.params.items():
        found.append(float((p - b.params[name]).abs().max()))
    for r, s in zip(a.records, b.records):
        assert (r.participants, r.bytes_up, r.bytes_down) == (
            s.participants,
            s.bytes_up,
            s.bytes_down,
        )
        for name in ("train_loss", "train_acc"):
            mine, other = getattr(r, name), getattr(s, name)
            found += [abs(mine[i] - other[i]) for i in mine]
        for name in ("test_loss", "test_acc", "personal_loss", "personal_acc", "personal_f1"):
            mine, other = getattr(r, name), getattr(s, name)
            assert (mine is None) == (other is None)
            found += [abs(x - y) for x, y in zip(mine or [], other or [])]
    return max(found)


@pytest.mark.parametrize("name", methods.names())
def test_every_method_is_the_same_up_to_rounding(name, ragged, double):
    options = {"lr": 0.05, "batch_size": 4, "epochs": 2} | OPTIONS.get(name, {})
    if name in ("pt_fedavg", "fgpt", "fed_dualprompt", "pfedhn"):
        options["momentum"] = 0.9
    if name == "client2vec":
        g = torch.Generator().manual_seed(0)
        sizes = [len(c.train) for c in ragged.clients]
        feature, label = torch.randn(2, 6, 8, generator=g)
        options["index"] = ClientIndex(feature, label, sizes, list(range(6)))
    loop, lockstep = both(methods.get(name, **options), ragged, model_for(name, ragged).double())
    assert loop.engine == "loop"
    assert lockstep.engine == ("loop" if name in ALONE else "lockstep")
    assert apart(loop, lockstep) < 1e-9


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "per_fedavg", "pfedme", "grp_fed"])
def test_an_epoch_may_end_early(name, ragged, double):
    options = {"lr": 0.05, "batch_size": 4, "epochs": 2}
    model = model_for(name, ragged).double()
    whole, _ = both(methods.get(name, **options), ragged, model, rounds=2)
    for batches, same in ((1, False), (99, True)):  # clients have two to four of them
        method = methods.get(name, batches=batches, **options)
        loop, lockstep = both(method, ragged, model, rounds=2)
        assert apart(loop, lockstep) < 1e-9
        assert (apart(loop, whole) == 0) == same


def test_a_step_on_one_batch_by_hand(ragged, double):
    """One batch of four, drawn by the client's own stream: w - eta grad, and its loss alone is
    told."""
    federation = dataclasses.replace(ragged, clients=ragged.clients[-1:])
    model = model_for("fedavg", federation).double()
    method = methods.get("fedavg", lr=0.1, batch_size=4, batches=1)
    seen = []

    class Watched(CrossEntropy):
        def __call__(self, local, batch, sent, memory):
            seen.append(batch.index)
            return super().__call__(local, batch, sent, memory)

    method = method.replace(objective=(Watched(),))
    run = simulate(method, federation, model, 1, quiet=True, engine="loop").run()
    (index,) = seen
    assert len(index) == 4 < len(federation.clients[0].train)
    loss = nn.functional.cross_entropy(model(federation.inputs(index)), federation.y[index])
    loss.backward()
    (told,) = run.records[0].train_loss.values()
    assert told == pytest.approx(loss.item(), abs=1e-12)
    for name, p in model.named_parameters():
        assert torch.allclose(run.params[name], p - 0.1 * p.grad, atol=1e-12)


@pytest.mark.parametrize("quirk", FEDGCR_QUIRKS)
def test_every_quirk_of_fedgcr_is_the_same(quirk, ragged, double):
    options = {"lr": 0.05, "batch_size": 4} | OPTIONS.get("fedgcr", {})
    method = methods.get("fedgcr", quirks=(quirk,), **options)
    loop, lockstep = both(method, ragged, model_for("fedgcr", ragged).double())
    assert apart(loop, lockstep) < 1e-9


@pytest.mark.parametrize("name", ["fedavg", "ditto", "lg_fedavg", "fedgcr", "moon"])
def test_chunks_side_by_side_are_the_same(name, ragged, double, threads):
    """One thread or three, chunks of one client or of four: the same federation comes out."""
    options = {"lr": 0.05, "batch_size": 4} | OPTIONS.get(name, {})
    model = model_for(name, ragged).double()
    method = methods.get(name, **options)
    if name == "moon":
        method = method.replace(objective=(*method.objective, Layers()))
    loop, alone = both(method, ragged, model)
    threads(3)
    for together in (1, 4):
        _, beside = both(method, ragged, model, together=together)
        assert torch.get_num_threads() == 3
        assert len(beside._engine.chunks(6, 4)) > 1 and apart(loop, beside) < 1e-9


class Layers(Objective):
    """Calls the whole model and a layer of it, which must be the client's own."""

    def __call__(self, local, batch, sent, memory):
        return 0.1 * (batch.model(batch.x) + local.model.head(batch.z)).square().mean()


def test_chunks_hold_everybody_once_and_share_the_work(ragged, threads):
    run = simulate(
        methods.get("fedavg", batch_size=16),
        ragged,
        model_for("fedavg", ragged).double(),
        device="cpu",
        quiet=True,
        engine="lockstep",
    )
    for many in (1, 2, 3):
        threads(many)
        for clients in (1, 2, 7, 10, 50):
            chunks = [list(range(clients)[c]) for c in run._engine.chunks(clients, 16)]
            assert sorted(sum(chunks, [])) == list(range(clients))
            sizes = [len(c) for c in chunks]
            assert max(sizes) <= 4 and max(sizes) - min(sizes) <= 1
            assert all(c == sorted(c) for c in chunks)  # largest clients first


@pytest.mark.parametrize(
    ("shape", "batch", "most"),
    [((3, 224, 224), 64, 1), ((3, 224, 224), 40, 1), ((3, 64, 64), 64, 10), ((1, 90), 64, 10)],
)
def test_a_gpu_takes_one_client_of_large_images_at_a_time(shape, batch, most):
    """A batch of 64 photographs through a ViT fills gigabytes; ten clients' would not fit."""
    engine = object.__new__(Lockstep)
    device = SimpleNamespace(torch=torch.device("cuda"), together=None)
    engine.run = SimpleNamespace(device=device, federation=SimpleNamespace(input_shape=shape))
    chunks = [list(range(20)[c]) for c in engine.chunks(20, batch)]
    assert sorted(sum(chunks, [])) == list(range(20)) and {len(c) for c in chunks} == {most}


@pytest.mark.parametrize("together", [2, 6])
def test_personal_models_are_tested_together(together, ragged, double):
    """Test sets of every size, one of them empty, and batches smaller than any of them."""
    clients = []
    for k, c in enumerate(ragged.clients):
        clients.append(dataclasses.replace(c, test=c.train.repeat(2)[: 5 * k]))
    federation = dataclasses.replace(ragged, clients=tuple(clients))
    method = methods.get("ditto", lr=0.1, batch_size=4)
    model = model_for("ditto", federation).double()
    loop, lockstep = both(method, federation, model, 2, together=together)
    found = lockstep._engine.personal(2, batch=4)
    for name in ("loss", "acc", "f1"):
        wanted = getattr(loop._personal(2), name)
        assert math.isnan(wanted[0]) and math.isnan(getattr(found, name)[0])
        assert wanted[1:] == pytest.approx(getattr(found, name)[1:], abs=1e-9)
    assert len(set(found.loss[1:])) == 5


@pytest.mark.parametrize("norm", ["channels", "vmap"])
def test_both_arrangements_of_a_network(norm, ragged, double, monkeypatch):
    """The general way, vmap, gives what grouped convolutions give."""
    from fedbook.models import stacked

    if norm == "vmap":
        monkeypatch.setattr(stacked, "arrangement", lambda *a: "vmap")
    method = methods.get("moon", lr=0.05, batch_size=4, clip=0.5, momentum=0.9)
    model = models.build("resnet_gn", ragged, width=4, groups=2).double()
    loop, lockstep = both(method, ragged, model, 2)
    assert lockstep._engine.how == norm and apart(loop, lockstep) < 1e-9


@pytest.mark.parametrize("name", ["cnn", "resnet_gn"])
def test_networks_that_normalise_keep_grouped_convolutions(name, images, ragged, double):
    """What prepares the images has three channels, not three of each client."""
    federation = dataclasses.replace(ragged, x=images.x, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1))
    model = models.build(name, federation, width=4).double()
    assert not isinstance(model.prepare, torch.nn.Identity)
    loop, lockstep = both(methods.get("fedavg", lr=0.05, batch_size=4), federation, model, 2)
    assert lockstep._engine.how == "channels" and apart(loop, lockstep) < 1e-9


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("layers", [1, 2])
def test_recurrent_networks(optimizer, layers, double):
    g = torch.Generator().manual_seed(0)
    clients = []
    for n in (7, 12, 20):
        x, y = torch.randint(0, 5, (n, 6), generator=g), torch.randint(0, 5, (n,), generator=g)
        clients.append({"train": (x, y), "test": (x, y)})
    text = Federation.from_arrays(clients, class_names=list("abcde"))
    method = methods.get("fedavg", lr=0.05, batch_size=4, optimizer=optimizer, weight_decay=0.1)
    model = models.build("lstm", text, embedding=3, hidden=4, layers=layers).double()
    loop, lockstep = both(method, text, model)
    assert lockstep.engine == "lockstep" and apart(loop, lockstep) < 1e-9
    chosen = simulate(method, text, model, device="cpu", quiet=True)
    assert chosen.engine == "loop", "on a CPU the loop is faster, as `fedbook bench engines` shows"


def test_signals_and_fedsam(double):
    g = torch.Generator().manual_seed(0)
    clients = []
    for n in (5, 9, 16):
        x, y = torch.randn(n, 2, 40, generator=g), torch.arange(n) % 3
        clients.append({"train": (x, y), "test": (x, y)})
    signals = Federation.from_arrays(clients, class_names=list("abc"))
    signals = dataclasses.replace(signals, x=signals.x.double())
    model = models.build("ecg_resnet", signals, width=4, norm="group", hidden=6).double()
    loop, lockstep = both(methods.get("fedsam", lr=0.1, batch_size=4, clip=1.0), signals, model)
    assert lockstep.engine == "lockstep" and apart(loop, lockstep) < 1e-9


def test_group_prompts_nobody_used_keep_momentum_and_decay_away(ragged, double):
    """A prompt that a client's batch did not select neither moves nor forgets, client by client."""
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.5, "batch_size": 2, "epochs": 3}
    model = models.build("fgpt", ragged, backbone=vit(), groups=5).double()
    loop, lockstep = both(methods.get("fgpt", **options), ragged, model)
    assert lockstep.engine == "lockstep"
    assert apart(loop, lockstep) < 1e-8, "momentum over so many steps makes rounding larger"


def test_what_cannot_go_together_says_so_once(ragged):
    model = model_for("fedavg", ragged)
    for name, reason in ALONE.items():
        net = model_for(name, ragged) if name in ("fed_dualprompt", "fedbn") else model
        with pytest.warns(UserWarning, match=reason) as found:
            run = simulate(
                methods.get(name), ragged, net.double(), engine="lockstep", device="cpu", quiet=True
            )
        assert len(found) == 1 and run.engine == "loop"
    dropout = Classifier(nn.Sequential(nn.Flatten(), nn.Dropout(0.1)), 192, 4).double()
    with pytest.warns(UserWarning, match="dropout"):
        simulate(
            methods.get("fedavg"), ragged, dropout, engine="lockstep", device="cpu", quiet=True
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "auto" decides without a word
        run = simulate(methods.get("fedmix"), ragged, model.double(), device="cpu", quiet=True)
    assert run.engine == "loop"


def test_an_unknown_engine_is_refused(ragged):
    with pytest.raises(FedbookError, match="unknown engine 'fast'"):
        simulate(methods.get("fedavg"), ragged, model_for("fedavg", ragged).double(), engine="fast")


def test_the_global_model_is_untouched_while_clients_train(ragged):
    """`expand` does not copy: an optimizer that works in place would move the server's model."""
    run = simulate(
        methods.get("fedavg", lr=0.5, batch_size=4),
        ragged,
        model_for("fedavg", ragged).double(),
        device="cpu",
        quiet=True,
        engine="lockstep",
    )
    before = {n: p.clone() for n, p in run.params.items()}
    reports = [Report(id=c.id, size=len(c.train)) for c in ragged.clients]
    uploads = [{n: p.clone() for n, p in u.items()} for u in run._engine(reports, 1, Traffic())]
    assert all(torch.equal(p, before[n]) for n, p in run.params.items())
    assert not torch.equal(uploads[0]["head.weight"], before["head.weight"])
    assert not torch.equal(uploads[0]["head.weight"], uploads[1]["head.weight"])


def test_checkpoints_interchange(ragged, double, tmp_path):
    method = methods.get("fedgcr", clusters=2, lr=0.01, batch_size=4)
    model = model_for("fedgcr", ragged).double()
    straight, _ = both(method, ragged, model, 4)
    for first, second in (("loop", "lockstep"), ("lockstep", "loop")):
        for engine, rounds in ((first, 2), (second, 4)):
            run = simulate(
                method,
                ragged,
                model,
                rounds,
                device="cpu",
                checkpoint=tmp_path / first,
                quiet=True,
                engine=engine,
            ).run()
        assert apart(straight, run) < 1e-9


def test_a_term_of_ones_own_runs_unchanged(ragged, double):
    """It asks the model for a layer, a parameter and a second pass over the samples."""

    class Mine(Objective):
        def __call__(self, local, batch, sent, memory):
            again = batch.model.head(batch.model.embed(batch.x))
            return (
                0.1 * batch.z.square().mean()
                + 0.1 * (again + batch.logits.detach()).square().mean()
                + 0.1 * local.model.head.weight.square().sum()
                + 0.1 * sum(p.square().sum() for _, p in local.model.named_parameters())
            )

    method = methods.get("fedavg", lr=0.05, batch_size=4)
    method = method.replace(objective=(CrossEntropy(), Mine()))
    loop, lockstep = both(method, ragged, model_for("fedavg", ragged).double())
    assert lockstep.engine == "lockstep" and apart(loop, lockstep) < 1e-9


# -- the pieces ------------------------------------------------------------------------------------
def test_layout_by_hand():
    layout = Layout([3, 1, 2], torch.device("cpu"))
    rows = torch.arange(6.0)
    assert layout.owner.tolist() == [0, 0, 0, 1, 2, 2]
    assert layout.block(rows).tolist() == [[0, 1, 2], [3, 3, 3], [4, 5, 4]]  # filled with the first
    assert torch.equal(layout.rows(layout.block(rows)), rows)
    assert layout.mean(rows).tolist() == [1, 3, 4.5]
    equal = Layout([2, 2], torch.device("cpu"))
    assert equal.block(rows[:4]).tolist() == [[0, 1], [2, 3]]
    assert equal.mean(rows[:4]).tolist() == [0.5, 2.5]


def test_one_clients_view_is_its_own_model(ragged):
    model = model_for("fedavg", ragged).double()
    starts = []
    for scale in (1.0, 2.0):
        starts.append({n: scale * p.detach() for n, p in model.named_parameters()})
    stack = Stack(model, "channels").begin(starts)
    view = ClientModel(model, stack.of(1), {})
    assert isinstance(view, Classifier) and isinstance(view.head, nn.Linear)
    x = ragged.inputs(torch.arange(3))
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(starts[1][name])
        assert torch.allclose(view.head(view.embed(x)), model(x))
        z, logits = stack.pass_all(x, {}, Layout([1, 2], x.device))
        assert torch.allclose(logits[1:], model(x)[1:])
        assert not torch.allclose(logits[:1], model(x)[:1])


class Calls(TorchDispatchMode):
    """Counts operator calls; those that only make a view launch nothing."""

    VIEWS = "view detach transpose t expand select unsqueeze unbind split permute slice alias"

    def __init__(self):
        super().__init__()
        self.all = self.kernels = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func).split(".")[1].removeprefix("_unsafe_")
        self.all += 1
        self.kernels += name not in self.VIEWS.split()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name, model", [("fedavg", "cnn"), ("fedavg", "resnet_gn"), ("fgpt", "")])
def test_a_fifth_of_the_operator_calls_with_ten_clients(name, model, threads):
    threads(1)  # calls are counted in this one
    g = torch.Generator().manual_seed(0)
    clients = []
    for _ in range(10):
        x = torch.randint(0, 255, (96, 3, 8, 8), generator=g, dtype=torch.uint8)
        y = torch.arange(96) % 4
        clients.append({"train": (x, y), "test": (x[:1], y[:1])})
    federation = Federation.from_arrays(clients)
    net = models.build(model, federation) if model else model_for("fgpt", federation)
    counted = {}
    for engine in ("loop", "lockstep"):
        method = methods.get(name, batch_size=8, epochs=1)
        device = Device("cpu", together=10)  # one chunk
        run = simulate(method, federation, net, device=device, quiet=True, engine=engine)
        reports = [Report(id=c.id, size=96) for c in federation.clients]
        with Calls() as calls:
            for _ in run._engine(reports, 1, Traffic()):
                pass
        counted[engine] = calls
    assert counted["loop"].all >= 5 * counted["lockstep"].all
    assert counted["loop"].kernels >= 5 * counted["lockstep"].kernels


class Tempered(nn.Module):
    """A model with a trained number that belongs to no layer, and too little of an effect to be
    seen in its outputs.
    """

    def __init__(self, inputs, classes):
        super().__init__()
        torch.manual_seed(0)
        self.heat = nn.Parameter(torch.tensor(1e-6))
        self.head = nn.Linear(inputs, classes)

    def embed(self, x):
        return x + self.heat / 10

    def forward(self, x):
        return self.head(self.embed(x))


@pytest.mark.parametrize("name", ["fedavg", "fedsam"])
@pytest.mark.parametrize("engine", ["auto", "lockstep"])
def test_a_parameter_outside_of_any_layer_is_trained_in_lockstep_too(toy, name, engine):
    method = methods.get(name, lr=0.05, batch_size=8, clip=1.0)
    ends = {}
    for way in ("loop", engine):
        model = Tempered(5, 3)
        settings = {"device": "cpu", "engine": way, "quiet": True}
        ends[way] = simulate(method, toy, model, 2, **settings).run().params
    assert abs(float(ends["loop"]["heat"])) > 1e-4
    for key, value in ends["loop"].items():
        assert torch.allclose(value, ends[engine][key], atol=1e-6)


def test_the_received_models_pass_is_made_once_a_round(ragged, double, monkeypatch):
    """The losses' pass leaves z_0; only z_prev needs another, from round 2 on."""
    asked = []
    passes = Lockstep.passes

    def counted(self, starts, index, batch=512):
        asked.append(len(index))
        return passes(self, starts, index, batch)

    monkeypatch.setattr(Lockstep, "passes", counted)
    model = model_for("fedgcr", ragged).double()
    options = {"lr": 0.01, "batch_size": 4}
    clients = len(ragged.clients)
    for name, expected in (("fedgcr", [0, clients, clients]), ("moon", [0, 0] + 4 * [clients])):
        own = {"clusters": 2} if name == "fedgcr" else {}
        method = methods.get(name, **options, **own)
        simulate(method, ragged, model, rounds=3, engine="lockstep", quiet=True).run()
        assert asked == expected, name
        asked.clear()
