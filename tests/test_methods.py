"""Methods as compositions of stages: what they are made of, how they print, how they are asked
for."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from helpers import LOCAL, mlp, near, normed, run, same
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbook import FedbookError, methods, simulate
from fedbook.methods.fedprox import Proximal
from fedbook.methods.term import Tilt
from fedbook.rounds import (
    Batch,
    BySize,
    CrossEntropy,
    Equal,
    Local,
    Personal,
    Record,
    Stage,
    Update,
    Weigh,
)
from fedbook.rounds.params import shared_state
from fedbook.rounds.weights import Weights, add


# -- weigh: a tuple whose log-weights add up -------------------------------------------------------
def test_log_weights_of_two_factors_add_up():
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])
    assert add(a, b).tolist() == [11, 22]
    named = {"": b, "head": torch.tensor([5.0, 6.0])}
    for total in (add(a, named), add(named, a)):
        assert {n: t.tolist() for n, t in total.items()} == {"": [11, 22], "head": [6, 8]}
    other = {"": a, "body": torch.tensor([0.5, 0.5])}
    total = add(named, other)
    assert {n: t.tolist() for n, t in total.items()} == {
        "": [11, 22],
        "head": [6, 8],  # where one names a parameter, the other's rest counts
        "body": [10.5, 20.5],
    }


def test_nobodys_parameter_stays_nobodys():
    """-inf for all means: keep the server's. No further factor changes that."""
    named = {"": torch.zeros(2), "g": torch.full((2,), -math.inf)}
    w = Weights(add(named, torch.tensor([3.0, 4.0])), [0, 1])
    assert w.kept("g") and not w.kept("other")


scores = st.lists(st.floats(-50, 50), min_size=3, max_size=3).map(torch.tensor)
log_weights = st.one_of(
    scores, st.fixed_dictionaries({"": scores}, optional={"a": scores, "b": scores})
)


@settings(max_examples=50, deadline=None)
@given(log_weights, log_weights, log_weights)
def test_the_order_of_factors_does_not_matter(a, b, c):
    def by_name(total):
        return {"": total} if isinstance(total, torch.Tensor) else total

    first, second = by_name(add(add(a, b), c)), by_name(add(c, add(b, a)))
    assert first.keys() == second.keys() and near(first, second, 1e-3)


@dataclasses.dataclass(frozen=True)
class HeadBy(Weigh):
    """Weights for the head alone; `rest` is those of everything else."""

    head: tuple[float, ...] = ()
    rest: bool = True

    def __call__(self, state, reports):
        found = {"head.weight": torch.tensor(self.head).log().double()}
        if self.rest:
            found[""] = torch.zeros(len(reports), dtype=torch.float64)
        return found, state


def test_a_factor_for_one_parameter_leaves_the_others(toy):
    """n_k (0, 0, 0, 1) for the head's weight, n_k for the rest."""
    method = methods.get("fedavg", **LOCAL)
    plain = run(method, toy)
    done = run(method.replace(weigh=(BySize(), HeadBy((0.0, 0.0, 0.0, 1.0)))), toy)
    last = run("fedavg", dataclasses.replace(toy, clients=toy.clients[3:]))
    for name, t in done.params.items():
        wanted = last if name == "head.weight" else plain
        assert torch.allclose(t, wanted.params[name], atol=1e-6), name
    assert done.records[0].weights == plain.records[0].weights


def test_a_factor_must_say_what_counts_for_the_rest(toy):
    method = methods.get("fedavg", **LOCAL).replace(weigh=(HeadBy((1.0,) * 4, rest=False),))
    with pytest.raises(FedbookError, match="an entry '' for all other parameters"):
        run(method, toy)


def test_factors_multiply_in_a_round(toy):
    """Equal() is the factor 1, twice BySize() is n_k^2."""
    base = methods.get("fedavg", **LOCAL)
    plain = run(base, toy)
    assert same(plain, run(base.replace(weigh=(BySize(), Equal())), toy))
    squares = [len(c.train) ** 2 for c in toy.clients]
    done = run(base.replace(weigh=(BySize(), BySize())), toy)
    assert done.records[0].weights == pytest.approx([n / sum(squares) for n in squares])
    a, b = (run(base.replace(weigh=w), toy) for w in ((BySize(), Tilt(2.0)), (Tilt(2.0), BySize())))
    assert a.records[0].weights == pytest.approx(b.records[0].weights)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"weigh": BySize()}, r"weigh must be a tuple.*got BySize.*weigh=\(MyStage\(\),\)"),
        ({"weigh": [BySize()]}, "weigh must be a tuple of at least one stage, got list"),
        ({"weigh": ()}, "weigh must be a tuple of at least one stage, got tuple"),
        ({"weigh": (CrossEntropy(),)}, "weigh holds a CrossEntropy, which is no Weigh"),
        ({"weigh": (BySize,)}, "weigh holds a .*, which is no Weigh"),
        ({"objective": CrossEntropy()}, "objective must be a tuple.*got CrossEntropy"),
        ({"objective": (CrossEntropy(), BySize())}, "objective holds a BySize"),
    ],
)
def test_what_is_no_tuple_of_stages_is_refused(changes, message):
    with pytest.raises(FedbookError, match=message):
        methods.get("fedavg").replace(**changes)


def test_what_the_server_reads_is_what_the_stages_say():
    reads = {name: methods.get(name).reads for name in methods.names()}
    fair = {"fedgcr", "afl", "q_ffl", "term", "grp_fed"}
    assert {n for n, kinds in reads.items() if kinds} == fair
    assert all(reads[n] == {"received"} for n in fair)
    both = methods.get("term").replace(update=methods.get("q_ffl").update)
    assert both.reads == {"received"}
    late = methods.get("q_ffl", quirks=("q_ffl_as_coded",))
    assert late.reads == {"training"}


# -- the log ---------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Logging(BySize):
    name: str = "q"

    def __call__(self, state, reports):
        scores, _ = super().__call__(state, reports)
        return scores, {"log": {self.name: len(reports)}}


@dataclasses.dataclass(frozen=True)
class Sending(Update):
    name: str = "h"

    def measure(self, local, memory):
        return {self.name: 1.0}

    def __call__(self, state, server, mean, reports):
        return mean, {"log": {"q": sum(r[self.name] for r in reports)}}


def test_what_a_stage_logs_is_flat(toy):
    method = methods.get("fedavg").replace(weigh=(Logging(), Logging("n")), update=Sending())
    clash = method.replace(weigh=(Logging("n"),))
    record = run(clash, toy).records[0]
    assert record.log == {"n": 4, "q": 4.0}
    with pytest.raises(FedbookError, match=r"two stages of fedavg log \['q'\]"):
        run(method, toy)


def test_two_stages_may_not_report_the_same_name(toy):
    base = methods.get("fedgcr", customization=False, clusters=2)
    with pytest.raises(FedbookError, match=r"two stages of fedgcr report \['h'\]"):
        run(base.replace(update=Sending("h")), toy)


# -- printing --------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", methods.names())
def test_a_method_prints_as_its_difference_from_fedavg(name):
    method = methods.get(name)
    text = repr(method)
    assert len(text) < 400 and text.startswith(f"{method.name} = FedAvg")
    for slot, stage in method.difference().items():
        assert f"  {slot:12} {stage}" in text.splitlines()
    assert (method.difference() == {}) == (name == "fedavg")


def test_prints_by_hand():
    assert repr(methods.get("fedavg")) == "fedavg = FedAvg"
    term = repr(methods.get("term", t=0.3, lr=0.01)).splitlines()
    assert [line.split(maxsplit=1) for line in term[1:]] == [
        ["solve", "LocalSolver(lr=0.01)"],
        ["weigh.1", "Tilt(t=0.3)"],
    ]
    assert term[0] == "term = FedAvg with"
    moon = methods.get("moon", mu=0.5).difference()
    assert moon == {"objective.1": "ModelContrast(weight=0.5)"}
    personal = methods.get("fedavg").replace(personal=Personal(keep=("head.*",)))
    assert personal.difference() == {"personal": "Personal(keep=('head.*',))"}
    q = methods.get("q_ffl").difference()
    assert q["weigh.0"] == "LossPower(loss='received')", "FedAvg reads no loss"


def test_tables_escape_names(toy):
    bad = "<script>alert('x')</script>&"
    method = methods.get("fedavg", **LOCAL).replace(name=bad, personal=Personal(keep=("<b>",)))
    done = run(method, toy, 2)
    for shown in (method, done, done.records[-1]):
        html = shown._repr_html_()
        assert html.startswith("<table>") and html.endswith("</table>") and "<caption>" in html
        assert "<script>" not in html and "<b>" not in html
    assert "&lt;script&gt;" in method._repr_html_() and "&lt;b&gt;" in method._repr_html_()
    assert "&lt;script&gt;" in done._repr_html_()
    assert simulate(method, toy, mlp(toy), 2, quiet=True)._repr_html_().count("<tr>") == 1


def test_a_record_is_shown_with_its_clients(toy):
    record = run("fedavg", toy, participation=2).records[0]
    html = record._repr_html_()
    assert html.count("<tr>") == 3
    for id, weight in zip(record.participants, record.weights):
        row = f">{id}</td>", f">{weight:.4f}</td>", f">{record.train_loss[id]:.4f}</td>"
        assert all(cell in html for cell in row)
    assert "2 clients" in repr(record) and f"{record.accuracy:.3f}" in repr(record)
    untested = dataclasses.replace(record, test_acc=None)
    assert "not tested" in repr(untested) and untested.accuracy is None
    nan = float("nan")  # clients without test samples
    assert dataclasses.replace(record, test_acc=[nan, 0.5, nan, 0.7]).accuracy == 0.6
    assert dataclasses.replace(record, test_acc=[nan] * 4).accuracy is None


def test_a_record_survives_json(toy):
    import json

    for name in ("fedavg", "grp_fed", "term"):
        record = run(name, toy, epochs=1, lr=0.05).records[0]
        assert Record.from_json(json.loads(json.dumps(record.to_json()))) == record


# -- asking for one --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "name, option, hint",
    [
        ("fedgcr", "lam_1", "did you mean lam1"),
        ("fedgcr", "cluster_n", "did you mean cluster"),
        ("fedavg", "momentun", "did you mean momentum"),
        ("fedprox", "learning", "known: mu, participation"),
        ("fgpt", "treshold", "did you mean threshold"),
        ("pt_fedavg", "weightdecay", "did you mean weight_decay"),
        ("client2vec", "gama", "did you mean gamma"),
    ],
)
def test_a_wrong_option_names_the_nearest(name, option, hint):
    with pytest.raises(FedbookError, match=f"unknown option of {name} '{option}'.*{hint}"):
        methods.get(name, **{option: 1})


@pytest.mark.parametrize("name", methods.names())
def test_every_option_is_listed_and_can_be_set(name, capsys):
    known = methods.options(name)
    assert {"participation", "lr", "epochs", "batch_size", "optimizer", "clip"} <= set(known)
    assert methods.get(name, **known).describe() == methods.get(name).describe()
    methods.help(name)
    said = capsys.readouterr().out
    for option, default in known.items():
        assert f"  {option} = {default!r}\n" in said
    module = __import__(f"fedbook.methods.{name}", fromlist=[name])
    assert said.startswith(module.__doc__.splitlines()[0])


def test_help_for_an_unknown_method():
    with pytest.raises(FedbookError, match="did you mean scaffold"):
        methods.help("scafold")


# -- Local.of --------------------------------------------------------------------------------------
def test_the_turn_of_one_client_outside_a_simulation(toy):
    model = normed()
    local = Local.of(toy, model, client=2, terms=(CrossEntropy(), Proximal(3.0)))
    assert local.client is toy.clients[2] and (local.round, local.rounds) == (1, 1)
    assert same(local.received, shared_state(model))
    batches = list(local.batches(8))
    assert [len(b.y) for b in batches] == [8, 8, 4]
    assert sorted(torch.cat([b.index for b in batches]).tolist()) == sorted(
        toy.clients[2].train.tolist()
    )
    batch = next(local.batches(100, shuffle=False))
    plain = F.cross_entropy(model.train()(toy.inputs(toy.clients[2].train)), batch.y)
    assert local.loss(batch).item() == pytest.approx(plain.item(), abs=1e-6)

    with torch.no_grad():
        model.head.bias += 2.0  # received is a copy, so this is a move of length 2 sqrt(3)
    assert not same(local.received, shared_state(model))
    moved = Batch(local, toy.clients[2].train)
    expected = F.cross_entropy(model(moved.x), moved.y) + 1.5 * 12.0
    assert local.loss(moved).item() == pytest.approx(expected.item(), abs=1e-5)


def test_what_a_client_trains_and_its_features(toy):
    model = normed()
    model.features[1].requires_grad_(False)
    local = Local.of(toy, model)
    assert set(local.trained()) == {n for n, p in model.named_parameters() if p.requires_grad}
    kept = {n: t for n, t in local.received.items() if not n.startswith("head.")}
    assert set(Local.of(toy, model, received=kept).trained()) == {
        "features.2.weight",
        "features.2.bias",
    }
    index = toy.clients[1].train
    z = local.features(index)
    assert not z.requires_grad and torch.equal(z, model.eval().embed(toy.inputs(index)))


def test_local_takes_keywords_only_and_refuses_unknown_clients(toy):
    with pytest.raises(TypeError):
        Local(toy.clients[0], toy, mlp(toy), {})
    with pytest.raises(TypeError):
        Local.of(toy, mlp(toy), 1)
    with pytest.raises(FedbookError):
        Local.of(toy, mlp(toy), client=17)


def test_a_stage_that_does_nothing_is_fedavg(toy):
    """Every hook is optional."""
    stage = Stage()
    assert not any(
        stage.overrides(hook)
        for hook in ("tell", "announce", "adapt", "once", "measure", "prepare", "send", "begin")
    )
    assert methods.get("fedmix").objective[0].overrides("tell")
    assert not methods.get("fedprox").objective[1].overrides("measure")
