"""The loop's arithmetic, done again by hand."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from helpers import mlp, model_for, near, normed, run, same, vit
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedbook import FedbookError, methods, models, simulate
from fedbook.methods.client_index import ClientIndex
from fedbook.models.convnets import Classifier
from fedbook.rounds import BySize, Equal, LocalSolver, Personal, Replace, Uniform, Weigh, evaluate
from fedbook.rounds.params import count_bytes, shared_state
from fedbook.rounds.seeds import generator
from fedbook.rounds.weights import WeightedSum, Weights, normalise


def one_round(method, federation):
    return run(method, federation, 1, models.build("linear", federation, seed=7))


# -- weights ---------------------------------------------------------------------------------------
@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-700, 700), min_size=1, max_size=12), st.floats(-1e3, 1e3), st.randoms())
def test_weights_sum_to_one_ignore_constants_and_follow_their_client(scores, constant, rnd):
    ids = list(range(len(scores)))
    w = normalise(scores, ids)
    assert math.isclose(sum(w), 1, abs_tol=1e-12) and min(w) >= 0
    assert all(
        math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12)
        for a, b in zip(w, normalise([s + constant for s in scores], ids))
    )
    order = rnd.sample(ids, len(ids))
    assert normalise([scores[i] for i in order], order) == pytest.approx(
        [w[i] for i in order], abs=1e-12
    )


def test_bad_weights_name_the_client():
    with pytest.raises(FedbookError, match="client 5 is NaN"):
        normalise([0.0, math.nan], [2, 5])
    with pytest.raises(FedbookError, match="client 2 is infinite"):
        normalise([math.inf, 0.0], [2, 5])
    with pytest.raises(FedbookError, match="weight zero"):
        normalise([-math.inf, -math.inf], [2, 5])
    with pytest.raises(FedbookError, match="2 participants"):
        normalise([1.0], [2, 5])


def test_weights_per_parameter_and_parameters_nobody_trained():
    none = torch.tensor([-math.inf, -math.inf])
    w = Weights(
        {"": torch.log(torch.tensor([1.0, 3.0])), "a": torch.tensor([0.0, -math.inf]), "b": none},
        [0, 1],
    )
    server = {n: torch.full((1,), 9.0) for n in "abc"} | {"n": torch.tensor([4])}
    total = WeightedSum(server, w)
    total.add({n: torch.full((1,), 1.0) for n in "abc"} | {"n": torch.tensor([7])})
    total.add({n: torch.full((1,), 2.0) for n in "abc"} | {"n": torch.tensor([8])})
    assert {n: t.item() for n, t in total.result().items()} == {
        "a": 1.0,
        "b": 9.0,
        "c": 1.75,
        "n": 7,
    }


# -- FedAvg ----------------------------------------------------------------------------------------
def test_full_batch_fedavg_is_one_centralised_gradient_step(toy):
    """E = 1, full batch, everybody: sum p_k (w - eta g_k) is gradient descent on the pooled
    data.
    """
    done = one_round(methods.get("fedavg", lr=0.3, batch_size=1000), toy)
    model = models.build("linear", toy, seed=7)
    index = torch.cat([c.train for c in toy.clients])
    F.cross_entropy(model(toy.inputs(index)), toy.y[index]).backward()
    for name, p in model.named_parameters():
        assert torch.allclose(done.params[name], p.detach() - 0.3 * p.grad, atol=1e-6)


def test_two_clients_by_hand():
    """Scalar least-squares-like toy: logits (0, w x) and one sample each, so the step can be
    written down.
    """
    from fedbook import Federation

    fed = Federation.from_arrays(
        [
            {"train": ([[1.0]], [0]), "test": ([[1.0]], [0])},
            {"train": ([[2.0]] * 3, [1] * 3), "test": ([[2.0]], [1])},
        ]
    )

    class Scalar(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1))
            self.head = nn.Identity()

        def embed(self, x):
            return torch.cat([torch.zeros_like(x), x * self.w], 1)

        def forward(self, x):
            return self.embed(x)

    done = simulate(
        methods.get("fedavg", lr=1.0, batch_size=10), fed, Scalar(), rounds=1, quiet=True
    ).run()
    # at w = 0 both classes have probability 1/2: client 0 moves by -1/2 * 1, client 1 by +1/2 * 2;
    # weights 1/4 and 3/4
    assert done.params["w"].item() == pytest.approx(0.25 * -0.5 + 0.75 * 1.0)
    assert done.records[0].weights == pytest.approx([0.25, 0.75])
    assert done.records[0].train_loss[0] == pytest.approx(math.log(2))


class Keeping(Replace):
    """Remembers what the first participant sent."""

    def __call__(self, state, server, mean, reports):
        return mean, reports[0]["upload"]


def test_one_client_gives_its_own_weights(toy):
    alone = dataclasses.replace(toy, clients=toy.clients[2:3])
    method = methods.get("fedavg", lr=0.1, batch_size=4).replace(update=Keeping(uploads=True))
    done = one_round(method, alone)
    assert same(done, done.state["update"])


def test_nothing_moves_without_a_step(toy):
    done = one_round(methods.get("fedavg", lr=0.0), toy)
    before = models.build("linear", toy, seed=7).state_dict()
    assert all(torch.allclose(done.params[n], before[n], atol=1e-7) for n in before)


def test_fedavgm_without_momentum_is_fedavg(toy):
    a = one_round(methods.get("fedavg", lr=0.1, batch_size=4), toy)
    m = one_round(methods.get("fedavgm", server_momentum=0.0, lr=0.1, batch_size=4), toy)
    assert near(a, m)


def test_fedavgm_velocity_under_a_constant_update():
    """Delta constant for k rounds: v_k = Delta (1 - m^k) / (1 - m)."""
    from fedbook.methods.fedavgm import ServerMomentum

    update, model = ServerMomentum(0.9), nn.Linear(1, 1, bias=False)
    model.weight.data.zero_()
    state, server = update.init(None, model), {"weight": torch.zeros(1, 1)}
    for _ in range(5):
        server, state = update(state, server, {"weight": server["weight"] - 2.0}, [])
    assert state["v"]["weight"].item() == pytest.approx(2.0 * (1 - 0.9**5) / (1 - 0.9))


def test_fedavgm_options():
    from fedbook.methods.fedavgm import ServerMomentum

    assert methods.get("fedavgm").name == "fedavgm"
    assert methods.get("fedavgm").update == ServerMomentum()
    for momentum in (0, 1):
        assert methods.get("fedavgm", server_momentum=momentum).update.server_momentum == momentum
    for momentum in (-0.1, 1.1, 1.5):
        with pytest.raises(FedbookError, match="momentum"):
            methods.get("fedavgm", server_momentum=momentum)


def test_weigh_stages():
    from fedbook.rounds import Report

    reports = [Report(id=0, size=10), Report(id=1, size=30)]
    assert normalise(BySize()({}, reports)[0], [0, 1]) == pytest.approx([0.25, 0.75])
    assert normalise(Equal()({}, reports)[0], [0, 1]) == pytest.approx([0.5, 0.5])


# -- the model given -------------------------------------------------------------------------------
def looks(model):
    """All there is to see of a model: values, modes, what is trained, which parts it has."""
    values = {n: t.clone() for n, t in model.state_dict().items()}
    modes = {n: m.training for n, m in model.named_modules()}
    return values, modes, {n: p.requires_grad for n, p in model.named_parameters()}


def unchanged(before, model):
    (values, *rest), (now, *rest_now) = before, looks(model)
    return same(values, now) and rest == rest_now


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("name", methods.names())
def test_simulate_leaves_the_model_as_it_was_and_the_same_call_gives_the_same(images, name, mode):
    """A cell of a notebook run twice does not go on training. Whatever the stages add to the model
    (means, projections, wrappers) is added to a copy.
    """
    options = {"batch_size": 8, "participation": 3}
    if name == "client2vec":
        options["index"] = ClientIndex(torch.eye(6, 5), None, [16] * 6, range(6))
    if name == "moon":
        options["projection"] = 5
    model = model_for(name, images).train(mode)
    before = looks(model)
    method = methods.get(name, **options)
    cell = [simulate(method, images, model, 2, quiet=True).run() for _ in range(2)]
    assert unchanged(before, model)
    assert same(*cell)
    first, second = ([dataclasses.replace(r, seconds=0) for r in c.records] for c in cell)
    assert first == second
    if cell[0].params:
        assert not same(cell[0], simulate(method, images, model, 3, quiet=True).run())
    if method.personal is not None:
        cell[0].personal_model(images.clients[0])
        assert unchanged(before, model)


def test_statistics_of_the_model_given_stay_too(toy):
    model = normed()
    before = looks(model)
    for name in ("fedavg", "ditto", "grp_fed", "fedsam"):
        run(name, toy, 2, model, lr=0.05, epochs=1)
    assert unchanged(before, model)


def test_run_model_holds_the_final_weights(toy):
    model = mlp(toy)
    done = run("fedavg", toy, 2, model)
    assert done.model is not model
    assert same(done, shared_state(done.model)) and not same(done, shared_state(model))
    x = toy.inputs(toy.clients[0].test)
    assert not torch.equal(done.model.eval()(x), model.eval()(x))


def test_frozen_parameters_are_shared_and_trained_ones_are_copies(images):
    model = models.build("vpt", images, backbone=vit())
    sim = simulate(methods.get("fedavg"), images, model, 1, device="cpu", quiet=True)
    here = dict(sim.model.named_parameters())
    for name, p in model.named_parameters():
        assert (here[name] is p) == (not p.requires_grad), name
    assert any(not p.requires_grad for p in model.parameters())
    for name, t in sim.params.items():  # the server's are neither the resident's nor the caller's
        owners = here[name], dict(model.named_parameters())[name]
        assert t.data_ptr() not in [p.data_ptr() for p in owners]


# -- determinism and order -------------------------------------------------------------------------
def test_same_seed_same_bits_and_another_seed_another_result(toy):
    fedavg = methods.get("fedavg", participation=2, lr=0.1, batch_size=4)
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(len(results))  # the caller's own random state must not matter
        done = simulate(
            fedavg, toy, models.build("mlp", toy, seed=7), rounds=3, seed=seed, quiet=True
        ).run()
        results.append(done.params)
    assert same(results[0], results[1]) and not same(results[0], results[2])


def test_the_callers_random_state_is_left_alone(toy):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one_round(methods.get("fedavg"), toy)
    assert torch.equal(torch.rand(3), expected)


def test_the_order_in_which_clients_are_drawn_or_listed_changes_nothing(toy):
    class Reversed(Uniform):
        def __call__(self, *a):
            ids, state = super().__call__(*a)
            return ids[::-1], state

    fedavg = methods.get("fedavg", participation=3, lr=0.1, batch_size=4)
    a, b = one_round(fedavg, toy), one_round(fedavg.replace(sample=Reversed(3)), toy)
    assert same(a, b)
    everybody = methods.get("fedavg", lr=0.1, batch_size=4)
    c = one_round(everybody, toy)
    d = one_round(everybody, dataclasses.replace(toy, clients=toy.clients[::-1]))
    assert same(c, d)


def test_a_clients_turn_does_not_depend_on_who_else_took_part(toy):
    """Dropout and shuffling come from the client's own stream."""

    def build():
        torch.manual_seed(3)
        return Classifier(nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5)), 8, 3)

    class Only(Uniform):
        def __call__(self, state, federation, round, rng):
            return [2], state

    method = methods.get("fedavg", lr=0.1, batch_size=4)
    alone = simulate(method.replace(sample=Only()), toy, build(), rounds=1, quiet=True).run()
    together = simulate(method, toy, build(), rounds=1, quiet=True).run()
    assert alone.records[0].train_loss[2] == together.records[0].train_loss[2]


# -- stages that look at losses, late weights, personal layers -------------------------------------
@dataclasses.dataclass(frozen=True)
class ByLoss(Weigh):
    loss: str | None = dataclasses.field(default="received", kw_only=True)

    def __call__(self, state, reports):
        found = self.losses(reports)
        return found.log(), {"log": {"losses": found.tolist()}}


def test_loss_is_measured_at_the_received_model(toy):
    done = one_round(methods.get("fedavg").replace(weigh=(ByLoss(),)), toy)
    model = models.build("linear", toy, seed=7)
    losses = [
        F.cross_entropy(model(toy.inputs(c.train)), toy.y[c.train]).item() for c in toy.clients
    ]
    assert done.records[0].log["losses"] == pytest.approx(losses, abs=1e-5)
    assert done.records[0].weights == pytest.approx([x / sum(losses) for x in losses], abs=1e-5)


def test_late_weights_see_the_training_loss(toy):
    done = one_round(methods.get("fedavg").replace(weigh=(ByLoss(loss="training"),)), toy)
    losses = list(done.records[0].train_loss.values())
    assert done.records[0].weights == pytest.approx([x / sum(losses) for x in losses])


def test_late_and_running_sums_agree(toy):
    a = one_round(methods.get("fedavg", batch_size=4), toy)
    late = methods.get("fedavg", batch_size=4).replace(weigh=(BySize(loss="training"),))
    assert late.reads == {"training"} and same(a, one_round(late, toy))


def test_personal_layers_stay_at_home_and_are_not_counted(toy):
    method = methods.get("fedavg", lr=0.1, batch_size=4).replace(
        personal=Personal(keep=("head.*",))
    )
    done = simulate(
        method, toy, models.build("mlp", toy, seed=7, width=6), rounds=2, quiet=True
    ).run()
    assert set(done.params) == {"features.1.weight", "features.1.bias"}
    per_client = count_bytes(done.params)
    assert done.records[0].bytes_down == 4 * per_client and done.records[0].bytes_up == 4 * (
        per_client + 8
    )
    heads = [done.memory[i]["kept"]["head.weight"] for i in range(4)]
    assert not torch.equal(heads[0], heads[1])
    assert done.records[0].test_acc is None and len(done.records[0].personal_acc) == 4
    model = done.personal_model(toy.clients[1])
    assert torch.equal(model.head.weight, heads[1])


def test_batchnorm_statistics_are_averaged_and_counters_copied(toy):
    torch.manual_seed(0)
    model = Classifier(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)), 4, 3)
    done = simulate(
        methods.get("fedavg", lr=0.1, batch_size=4), toy, model, rounds=1, quiet=True
    ).run()
    assert done.params["features.1.num_batches_tracked"].item() == len(toy.clients[0].train) // 4
    assert not torch.equal(done.params["features.1.running_mean"], torch.zeros(4))
    momentum = simulate(
        methods.get("fedavgm", lr=0.1, batch_size=4), toy, model, rounds=1, quiet=True
    )
    assert "features.1.running_mean" not in momentum.state["update"]["v"]


def test_frozen_parameters_and_their_buffers_are_not_shared():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    assert set(shared_state(model)) == {"1.weight", "1.bias"}


def test_parameter_groups(toy):
    solver = LocalSolver(lr=0.1, param_groups=(("head.*", {"lr": 0.0}),))
    done = one_round(methods.get("fedavg").replace(solve=solver), toy)
    before = models.build("linear", toy, seed=7).state_dict()
    assert all(
        torch.equal(done.params[n], before[n]) or torch.allclose(done.params[n], before[n])
        for n in before
    )
    moved = one_round(
        methods.get("fedavg").replace(
            solve=LocalSolver(lr=0.1, param_groups=(("nothing*", {"lr": 0.0}),))
        ),
        toy,
    )
    assert not torch.allclose(moved.params["head.weight"], before["head.weight"])


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_training_learns(images, optimizer):
    method = methods.get(
        "fedavg",
        lr=0.05 if optimizer == "sgd" else 5e-3,
        optimizer=optimizer,
        epochs=2,
        batch_size=8,
    )
    done = simulate(method, images, models.build("mlp", images), rounds=8, quiet=True).run()
    assert sum(done.records[-1].test_acc) / 6 > 0.9 > 0.6 > sum(done.records[0].test_loss) / 600


# -- evaluation ------------------------------------------------------------------------------------
def test_evaluation_matches_scikit_learn_per_client(images):
    from sklearn.metrics import accuracy_score, f1_score, log_loss

    model = models.build("mlp", images, seed=3)
    scores = evaluate(model, images)
    for i, c in enumerate(images.clients):
        with torch.no_grad():
            logits = model(images.inputs(c.test))
        y, predicted = images.y[c.test].numpy(), logits.argmax(1).numpy()
        assert scores.acc[i] == pytest.approx(accuracy_score(y, predicted))
        assert scores.loss[i] == pytest.approx(
            log_loss(y, logits.softmax(1).double().numpy(), labels=range(4)), abs=1e-5
        )
        assert scores.f1[i] == pytest.approx(
            f1_score(y, predicted, average="macro", labels=sorted(set(y)), zero_division=0)
        )


def test_shared_test_sets_are_scored_for_each_owner(images):
    shared = tuple(dataclasses.replace(c, test=images.clients[0].test) for c in images.clients)
    scores = evaluate(models.build("mlp", images), dataclasses.replace(images, clients=shared))
    assert len(set(scores.acc)) == 1 and len(scores.acc) == 6


# -- records, errors -------------------------------------------------------------------------------
def test_frame_has_a_row_per_round_and_client(toy):
    done = simulate(
        methods.get("fedavg", participation=2),
        toy,
        models.build("linear", toy),
        rounds=3,
        quiet=True,
    ).run()
    frame = done.frame()
    assert len(frame) == 12 and frame.groupby("round")["weight"].sum().tolist() == pytest.approx(
        [1, 1, 1]
    )
    assert (frame["weight"] > 0).sum() == 6 and frame["personal_acc"].isna().all()


def test_evaluate_every(toy):
    done = simulate(
        methods.get("fedavg"),
        toy,
        models.build("linear", toy),
        rounds=5,
        evaluate_every=2,
        quiet=True,
    ).run()
    assert [r.test_acc is not None for r in done.records] == [False, True, False, True, True]


@pytest.mark.parametrize(
    "options,message",
    [
        ({"rounds": 0}, "rounds must be"),
        ({"rounds": 2.5}, "rounds must be"),
        ({"device": "tpu9"}, "unknown device"),
    ],
)
def test_bad_simulations(toy, options, message):
    with pytest.raises(FedbookError, match=message):
        simulate(methods.get("fedavg"), toy, models.build("linear", toy), quiet=True, **options)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"participation": 0.0}, "participation"),
        ({"participation": 9}, "participation"),
        ({"lr": float("nan")}, "lr must be"),
        ({"epochs": 0}, "epochs"),
        ({"batches": 0}, "batches"),
        ({"optimizer": "lion"}, "optimizer"),
        ({"momentun": 0.9}, "momentun"),
    ],
)
def test_bad_method_options(toy, options, message):
    with pytest.raises(FedbookError, match=message):
        one_round(methods.get("fedavg", **options), toy)


def test_divergence_names_client_and_round(toy):
    with pytest.raises(FedbookError, match=r"diverged: client \d, round \d+.*lower lr"):
        simulate(
            methods.get("fedavg", lr=1e30, epochs=3),
            toy,
            models.build("mlp", toy),
            rounds=3,
            quiet=True,
        ).run()


def test_a_frozen_model_is_refused(toy):
    model = models.build("linear", toy).requires_grad_(False)
    with pytest.raises(FedbookError, match="no trainable parameter"):
        simulate(methods.get("fedavg"), toy, model, quiet=True)


def test_a_model_without_features_is_refused(toy):
    with pytest.raises(FedbookError, match="no embed"):
        simulate(methods.get("fedavg"), toy, nn.Linear(5, 3), quiet=True)


def test_unknown_names_suggest_the_nearest(toy):
    with pytest.raises(FedbookError, match="did you mean fedavg"):
        methods.get("fedavgg")
    with pytest.raises(FedbookError, match="no option \\['depth'\\]"):
        models.build("mlp", toy, depth=3)


def test_method_description_tells_methods_apart():
    a, b = methods.get("fedavg", lr=0.1).describe(), methods.get("fedavg", lr=0.2).describe()
    assert a != b and a["solve"]["lr"] == 0.1 and a["weigh.0"]["stage"] == "BySize"


def test_streams_differ_by_purpose_round_and_client():
    draws = {
        torch.rand(1, generator=generator(*k)).item()
        for k in [(0, "a", 1, 1), (0, "a", 1, 2), (0, "b", 1, 1), (1, "a", 1, 1)]
    }
    assert len(draws) == 4
