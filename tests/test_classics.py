"""FedProx, SCAFFOLD, FedBN, Ditto and FedAdam: what they reduce to, and numbers done by hand.

Most are of one parameter w and two clients with F_i(w) = a_i (w - c_i)^2 / 2, where one full batch
is one exact gradient step.
"""

import math

import pytest
import torch
from helpers import (
    LOCAL,
    mlp,
    near,
    normed,
    only,
    parabolas,
    personal,
    resumed,
    run,
    same,
    traffic,
)
from torch import nn

from fedbook import FedbookError, methods
from fedbook.models.convnets import Classifier
from fedbook.rounds import Equal
from fedbook.rounds.params import count_bytes, shared_state

# F_0 = w^2 / 2 and F_1 = 3 (w - 4)^2 / 2: gradients 2 and -6 at w = 2
A, C = (1.0, 3.0), (0.0, 4.0)


def slope(i, w):
    return A[i] * (w - C[i])


def uniform(federation, rounds, model=None, **options):
    method = methods.get("fedavg", **{**LOCAL, **options}).replace(weigh=(Equal(),))
    return run(method, federation, rounds, model)


@pytest.mark.parametrize("name", ["fedprox", "scaffold", "ditto", "fedadam", "fedbn"])
def test_a_resumed_run_ends_with_the_same_bits(name, toy, tmp_path):
    straight = run(name, toy, 4, normed(), participation=2)
    again = resumed(name, toy, tmp_path / "run", normed(), participation=2)
    assert same(straight, again)
    assert straight.records[-1].personal_acc == again.records[-1].personal_acc
    if straight.method.personal is not None:
        assert all(same(personal(straight, i), personal(again, i)) for i in range(4))


# -- FedProx ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "epochs": 2}, {"participation": 2}])
@pytest.mark.parametrize("model", [mlp, lambda federation: normed()])
def test_fedprox_without_mu_is_fedavg_bit_for_bit(toy, options, model):
    plain = run("fedavg", toy, 3, model(toy), **options)
    assert same(plain, run("fedprox", toy, 3, model(toy), mu=0.0, **options))
    assert not same(plain, run("fedprox", toy, 3, model(toy), mu=0.5, **options))


def test_one_full_batch_step_of_fedprox_is_fedavgs(toy):
    """At w = w^t the proximal term has no gradient; the second step feels it."""
    one = {"batch_size": 100}
    assert same(run("fedavg", toy, 3, **one), run("fedprox", toy, 3, mu=5.0, **one))
    two = {"batch_size": 100, "epochs": 2}
    assert not near(run("fedavg", toy, **two), run("fedprox", toy, mu=5.0, **two), 1e-4)


def test_fedprox_by_hand():
    """From w = 2 with mu = 1, two steps of 0.1. Client 0: 1.8, then the gradient is 1.8 - 0.2, so
    1.64. Client 1: 2.6, then 3 (-1.4) + 0.6 = -3.6, so 2.96. Sizes 1 : 3, so the mean is 2.63.
    """
    options = {"start": 2.0, "sizes": (2, 6), "mu": 1.0, "lr": 0.1, "epochs": 2}
    done = parabolas("fedprox", 1, A, C, **options)
    assert done.params["w"].item() == pytest.approx(0.25 * 1.64 + 0.75 * 2.96, abs=1e-6)


def test_fedprox_solves_its_subproblem():
    """argmin F_i + mu / 2 (w - w^t)^2 = (a c + mu w^t) / (a + mu), from w^t = 2."""
    done = parabolas("fedprox", 1, A, C, start=2.0, mu=5.0, lr=0.1, epochs=100)
    minima = [(a * c + 5 * 2.0) / (a + 5) for a, c in zip(A, C)]
    assert done.params["w"].item() == pytest.approx(sum(minima) / 2, abs=1e-5)


def test_fedprox_refuses_a_repulsion():
    with pytest.raises(FedbookError, match="mu must be at least 0"):
        methods.get("fedprox", mu=-0.1)


# -- SCAFFOLD --------------------------------------------------------------------------------------
def variates(done):
    """c, and c_i by client."""
    own = {i: memory["update"]["c"]["w"].item() for i, memory in done.memory.items()}
    return done.state["update"]["c"]["w"].item(), own


def test_scaffold_two_rounds_by_hand():
    """From x = 2, one step of 0.1, all variates 0.

    Round 1: y = 2 - 0.1 (2, -6) = (1.8, 2.6), so x = 2.2; c_i = (x - y_i) / 0.1 = (2, -6) are the
    clients' gradients and c = -2 is their mean. Round 2: gradients (2.2, -5.4), corrected (2.2 - 2
    - 2, -5.4 + 6 - 2) = (-1.8, -1.4); y = (2.38, 2.34), x = 2.36; c_i = (2 + 2 - 1.8, -6 + 2 - 1.4)
    = (2.2, -5.4), again the gradients, and c = -1.6.
    """
    first = parabolas("scaffold", 1, A, C, start=2.0, lr=0.1)
    assert first.params["w"].item() == pytest.approx(2.2, abs=1e-6)
    c, own = variates(first)
    assert c == pytest.approx(-2, abs=1e-5) and own == pytest.approx({0: 2, 1: -6}, abs=1e-5)
    second = parabolas("scaffold", 2, A, C, start=2.0, lr=0.1)
    assert second.params["w"].item() == pytest.approx(2.36, abs=1e-6)
    c, own = variates(second)
    assert c == pytest.approx(-1.6, abs=1e-5) and own == pytest.approx({0: 2.2, 1: -5.4}, abs=1e-5)


def by_hand(participants, steps, lr, server_lr, start=2.0):
    """(3), (4) and (5) in plain numbers; returns x, c and c_i."""
    x, c, own = start, 0.0, [0.0, 0.0]
    for chosen in participants:
        ends, changes = [], []
        for i in chosen:
            y = x
            for _ in range(steps[i]):
                y -= lr * (slope(i, y) - own[i] + c)
            new = own[i] - c + (x - y) / (steps[i] * lr)
            ends.append(y)
            changes.append(new - own[i])
            own[i] = new
        x += server_lr * (sum(ends) / len(ends) - x)
        c += sum(changes) / 2
    return x, c, own


@pytest.mark.parametrize("participation", [1.0, 1])
def test_scaffold_with_several_steps_and_few_clients(participation):
    """K is counted per client: 2 epochs of 1 and of 3 batches; N counts those not drawn, too."""
    options = {"lr": 0.05, "server_lr": 0.5, "epochs": 2, "batch_size": 2}
    options |= {"participation": participation, "sizes": (2, 5), "start": 2.0}
    done = parabolas("scaffold", 5, A, C, **options)
    participants = [r.participants for r in done.records]
    x, c, own = by_hand(participants, (2, 6), 0.05, 0.5)
    assert done.params["w"].item() == pytest.approx(x, abs=1e-5)
    found, mine = variates(done)
    assert found == pytest.approx(c, abs=1e-4) and mine == pytest.approx(
        {i: own[i] for i in mine}, abs=1e-4
    )


def test_c_is_the_mean_gradient_after_one_full_batch(toy):
    """Everybody, one step: c_i is the gradient at x of client i, and c the plain mean of them."""
    done = run("scaffold", toy, 1, batch_size=100)
    model = mlp(toy)
    names = [n for n, _ in model.named_parameters()]
    total = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for client in toy.clients:
        loss = nn.functional.cross_entropy(model(toy.inputs(client.train)), toy.y[client.train])
        grads = dict(zip(names, torch.autograd.grad(loss, list(model.parameters()))))
        assert near(done.memory[client.id]["update"]["c"], grads, 1e-5)
        total = {n: total[n] + grads[n] / 4 for n in names}
    assert near(done.state["update"]["c"], total, 1e-5)


@pytest.mark.parametrize("options", [{"batch_size": 100}, {"epochs": 3}, {"participation": 2}])
def test_scaffold_starts_as_the_uniform_mean_bit_for_bit(toy, options):
    """While all variates are 0 there is nothing to correct."""
    assert same(run("scaffold", toy, 1, **options), uniform(toy, 1, **options))


def test_corrections_cancel_over_everybodys_single_steps(toy):
    """sum_i (c - c_i) = 0, so x moves as the uniform mean does in every round; not so with a second
    step, whose gradient is taken elsewhere.
    """
    one, two = {"batch_size": 100}, {"batch_size": 100, "epochs": 2}
    assert near(run("scaffold", toy, 4, **one), uniform(toy, 4, **one))
    assert not near(run("scaffold", toy, 4, **two), uniform(toy, 4, **two), 1e-3)


def test_scaffold_finds_the_minimiser_of_the_average_and_fedavg_does_not():
    """(1 0 + 3 4) / 4 = 3; FedAvg's clients go to their own minima, whose mean is 2."""
    local = {"lr": 0.1, "epochs": 20}
    plain = parabolas("fedavg", 30, A, C, **local)
    assert plain.params["w"].item() == pytest.approx(2.0, abs=0.2)
    done = parabolas("scaffold", 30, A, C, **local)
    assert done.params["w"].item() == pytest.approx(3.0, abs=1e-4)
    assert variates(done)[0] == pytest.approx(0.0, abs=1e-3)


def test_scaffold_sends_as_much_again(toy):
    model = normed()
    trained = count_bytes({n: p for n, p in model.named_parameters()})
    plain = traffic(run("fedavg", toy, 2, model))
    extra = 4 * trained
    assert traffic(run("scaffold", toy, 2, model)) == [(u + extra, d + extra) for u, d in plain]


def test_scaffold_needs_plain_sgd():
    for wrong in ({"momentum": 0.9}, {"optimizer": "adamw"}, {"weight_decay": 0.1}, {"clip": 1.0}):
        with pytest.raises(FedbookError, match="plain SGD"):
            methods.get("scaffold", **wrong)


# -- FedBN -----------------------------------------------------------------------------------------
OWN = {"features.2.weight", "features.2.bias"}
OWN |= {f"features.2.{n}" for n in ("running_mean", "running_var", "num_batches_tracked")}


def test_fedbn_keeps_normalisation_at_home(toy):
    done = run("fedbn", toy, 2, normed())
    everything = shared_state(normed())
    assert set(everything) - set(done.params) == OWN
    assert all(set(done.memory[i]["kept"]) == OWN for i in range(4))
    sent = count_bytes(done.params)
    assert sent == count_bytes(everything) - (4 * 4 * 6 + 8)
    assert traffic(done) == [(4 * (sent + 8), 4 * sent)] * 2
    for name in OWN - {"features.2.num_batches_tracked"}:
        kept = [done.memory[i]["kept"][name] for i in range(4)]
        assert not any(torch.equal(a, b) for a in kept for b in kept if a is not b), name


def test_fedbn_averages_all_other_layers(toy):
    """Each client alone gives w_k, the server of one client having its model."""
    done = run("fedbn", toy, 1, normed())
    total = sum(len(c.train) for c in toy.clients)
    mean = {n: torch.zeros_like(t) for n, t in done.params.items()}
    for i, c in enumerate(toy.clients):
        alone = run("fedbn", only(toy, i), 1, normed())
        assert same(alone.memory[i]["kept"], done.memory[i]["kept"])
        mean = {n: mean[n] + len(c.train) / total * t for n, t in alone.params.items()}
    assert near(done, mean)


def test_fedbn_of_one_client_is_fedavg(toy):
    """Its layers come back round by round as they were."""
    plain, own = (run(name, only(toy, 1), 3, normed()) for name in ("fedavg", "fedbn"))
    assert same({**own.params, **own.memory[1]["kept"]}, plain)
    assert own.records[-1].test_acc is None
    assert own.records[-1].personal_loss == pytest.approx(plain.records[-1].test_loss, abs=1e-6)


def test_fedbn_tests_each_client_with_its_own_layers(toy):
    done = run("fedbn", toy, 1, normed(), participation=2)
    start = normed().state_dict()
    for c in toy.clients:
        model = done.personal_model(c)
        known = done.memory.get(c.id, {"kept": {n: start[n] for n in OWN}})["kept"]
        assert (c.id in done.memory) == (c.id in done.records[0].participants)
        found = model.state_dict()
        assert same({n: found[n] for n in OWN}, {n: known[n] for n in OWN})
        assert same({n: found[n] for n in done.params}, done)
    assert done.records[0].test_acc is None and len(done.records[0].personal_acc) == 4


def test_fedbn_needs_such_layers_and_takes_others(toy):
    with pytest.raises(FedbookError, match="Classifier has no layer of kind BatchNorm"):
        run("fedbn", toy, 1, mlp(toy))
    model = Classifier(nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.ReLU()), 6, 3)
    done = run("fedbn", toy, 1, model, layers=("GroupNorm", "LayerNorm"))
    assert set(done.memory[0]["kept"]) == {"features.1.weight", "features.1.bias"}


# -- Ditto -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "epochs": 2}, {"participation": 2}])
@pytest.mark.parametrize("model", [mlp, lambda federation: normed()])
def test_dittos_global_model_is_fedavgs_bit_for_bit_and_nothing_more_is_sent(toy, options, model):
    plain = run("fedavg", toy, 3, model(toy), **options)
    ditto = run("ditto", toy, 3, model(toy), **options)
    assert same(plain, ditto) and traffic(plain) == traffic(ditto)
    for a, b in zip(plain.records, ditto.records):
        assert (a.test_acc, a.test_loss, a.train_loss) == (b.test_acc, b.test_loss, b.train_loss)
    assert not near(personal(ditto, 3), {n: plain.params[n] for n in personal(ditto, 3)}, 1e-4)


def test_ditto_by_hand():
    """lambda = 1, one step of 0.1, from w = v_i = 2.

    Round 1: v = 2 - 0.1 (2, -6) = (1.8, 2.6), as w_i; w = 2.2, held near which the next step is:
    the received model is w^2 = 2.2, so v_0 = 1.8 - 0.1 (1.8 + (1.8 - 2.2)) = 1.66 and v_1 = 2.6 -
    0.1 (3 (-1.4) + 0.4) = 2.98.
    """
    for rounds, expected in ((1, (1.8, 2.6)), (2, (1.66, 2.98))):
        done = parabolas("ditto", rounds, A, C, start=2.0, lr=0.1, lam=1.0)
        v = [personal(done, i)["w"].item() for i in (0, 1)]
        assert v == pytest.approx(expected, abs=1e-6)
    assert done.params["w"].item() == pytest.approx(2.2 - 0.1 * (2.2 - 5.4) / 2, abs=1e-6)


@pytest.mark.parametrize("lam", [0.0, 1.0, 50.0])
def test_ditto_solves_its_subproblem(lam):
    """argmin F_i(v) + lam / 2 (v - w^t)^2 = (a c + lam w) / (a + lam): the client's own minimum at
    lam = 0, and ever nearer to w as lam grows.
    """
    done = parabolas("ditto", 1, A, C, start=2.0, lr=0.018, epochs=900, lam=lam)
    v = [personal(done, i)["w"].item() for i in (0, 1)]
    assert v == pytest.approx([(a * c + lam * 2.0) / (a + lam) for a, c in zip(A, C)], abs=1e-3)
    assert max(abs(x - 2.0) for x in v) <= 6 / max(lam, 1)


def test_ditto_without_lambda_trains_locally_from_where_it_starts(toy):
    """v_k of round 1 is what client k makes of w^0 alone; later rounds go on from v_k, not from
    w^t.
    """
    local = {"batch_size": 100, "epochs": 3}
    for rounds in (1, 2):
        done = run("ditto", toy, rounds, lam=0.0, **local)
        for i in range(4):
            alone = run("fedavg", only(toy, i), rounds, **local)
            assert near(personal(done, i), alone, 1e-5)


def test_ditto_keeps_v_near_w_when_lambda_is_large(toy):
    start = dict(mlp(toy).named_parameters())

    def away(lam):
        done = run("ditto", toy, 1, lam=lam, lr=0.02, epochs=20, batch_size=100)
        return max(
            (t - start[n]).abs().max().item()
            for i in range(4)
            for n, t in personal(done, i).items()
        )

    far, nearer, nearest = (away(lam) for lam in (0.0, 5.0, 45.0))
    assert nearest < nearer / 3 < far / 6


def test_who_never_took_part_in_ditto_has_the_global_model(toy):
    done = run("ditto", toy, 1, participation=2)
    for i in range(4):
        assert same(personal(done, i), done) == (i not in done.records[0].participants)


# -- FedAdam ---------------------------------------------------------------------------------------
def test_fedadam_two_rounds_by_hand():
    """Sizes 1 : 3 and steps of 0.1 from w = 2: D = 0.25 (-0.2) + 0.75 0.6 = 0.4 in round 1."""
    options = {"start": 2.0, "sizes": (2, 6), "lr": 0.1, "server_lr": 0.5, "tau": 0.01}
    options |= {"beta1": 0.8, "beta2": 0.9}
    w, m, v = 2.0, 0.0, 0.01**2
    for rounds in (1, 2):
        D = -0.1 * (0.25 * slope(0, w) + 0.75 * slope(1, w))
        assert rounds == 2 or D == pytest.approx(0.4)
        m = 0.8 * m + 0.2 * D
        v = 0.9 * v + 0.1 * D**2
        w += 0.5 * m / (math.sqrt(v) + 0.01)
        done = parabolas("fedadam", rounds, A, C, **options)
        assert done.params["w"].item() == pytest.approx(w, abs=1e-5)
        state = done.state["update"]
        assert (state["m"]["w"].item(), state["v"]["w"].item()) == pytest.approx((m, v), rel=1e-4)


def test_fedadam_that_does_not_step_stays(toy):
    done = run("fedadam", toy, 3, server_lr=0.0)
    assert same(done, dict(mlp(toy).state_dict()))
    assert all(t.any() for t in done.state["update"]["m"].values())


def test_without_memory_fedadam_is_a_step_of_bounded_length(toy):
    """beta_1 = beta_2 = 0: w + eta D / (|D| + tau), so no coordinate moves by more than eta."""
    plain = run("fedavg", toy)
    done = run("fedadam", toy, beta1=0.0, beta2=0.0, server_lr=0.02, tau=1e-3)
    start = mlp(toy).state_dict()
    for name, w in start.items():
        D = plain.params[name] - w
        assert torch.allclose(done.params[name], w + 0.02 * D / (D.abs() + 1e-3), atol=1e-6)
        assert (done.params[name] - w).abs().max() <= 0.02 + 1e-6


def test_fedadam_replaces_buffers_and_sends_nothing_more(toy):
    done, plain = run("fedadam", toy, 1, normed()), run("fedavg", toy, 1, normed())
    assert traffic(done) == traffic(plain)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(done.params[f"features.2.{name}"], plain.params[f"features.2.{name}"])
    assert set(done.state["update"]["m"]) == {n for n, _ in normed().named_parameters()}


@pytest.mark.parametrize("wrong", [{"beta1": 1.0}, {"beta2": -0.1}, {"tau": 0.0}])
def test_fedadam_refuses_wrong_settings(wrong):
    with pytest.raises(FedbookError, match="FedAdam needs"):
        methods.get("fedadam", **wrong)


def test_fedprox_by_default():
    from fedbook.methods.fedprox import Proximal

    method = methods.get("fedprox")
    assert method.name == "fedprox" and method.objective[1] == Proximal() == Proximal(0.01)
