"""AFL, q-FFL and TERM: what reweighting does, in numbers done by hand."""

import dataclasses
import math

import pytest
import torch
from helpers import LOCAL, mlp, near, resumed, run, same, traffic
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedbook import FedbookError, methods
from fedbook.methods.afl import Agnostic, project
from fedbook.methods.q_ffl import DynamicStep, LossPower
from fedbook.methods.quirks import PublishedStep, Stateless
from fedbook.methods.term import Tilt, tilted
from fedbook.rounds import BySize, Equal, Report, evaluate
from fedbook.rounds.weights import add, normalise


def reports(*clients):
    """(size, loss) of clients 0, 1, ..., the same loss before and during training."""
    found = []
    for i, (n, loss) in enumerate(clients):
        found.append(Report(id=i, size=n, loss=loss, train_loss=loss))
    return found


def shares(stage, clients, state=None):
    """The weights of one factor, or of a tuple of them, and the state of the last."""
    total = torch.zeros(len(clients), dtype=torch.float64)
    for factor in stage if isinstance(stage, tuple) else (stage,):
        scores, after = factor(state or {}, reports(*clients))
        total = add(total, scores)
    return normalise(total, range(len(clients))), after


def uniform(federation, rounds):
    return run(methods.get("fedavg", **LOCAL).replace(weigh=(Equal(),)), federation, rounds)


def term(t):
    return methods.get("term", t=t).weigh


losses = st.lists(st.floats(1e-3, 20), min_size=1, max_size=8)
sizes = st.integers(1, 1000)


# -- AFL -------------------------------------------------------------------------------------------
def test_projection_by_hand():
    assert project(torch.tensor([1.5, 0.4])).tolist() == [1, 0]
    assert project(torch.tensor([0.6, 0.8])).tolist() == pytest.approx([0.4, 0.6])
    assert project(torch.tensor([-3.0])).tolist() == [1]
    assert project(torch.zeros(4)).tolist() == [0.25] * 4


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8))
def test_projection_solves_its_quadratic_programme(values):
    """min |p - v|^2 on the simplex. KKT: v - p is one number where p > 0, and at most that
    elsewhere.
    """
    v = torch.tensor(values, dtype=torch.float64)
    p = project(v)
    assert p.sum().item() == pytest.approx(1, abs=1e-12) and (p >= 0).all()
    gap, inside = v - p, p > 0
    assert (gap[inside] - gap[inside][0]).abs().max() < 1e-12 and (
        gap <= gap[inside][0] + 1e-12
    ).all()
    assert torch.allclose(project(p), p, atol=1e-12)
    assert (p[v.argsort()].diff() >= 0).all()


def test_projection_agrees_with_a_general_solver():
    from scipy.optimize import minimize

    v = torch.tensor([0.9, 0.5, -0.2, 0.45], dtype=torch.float64)
    found = minimize(
        lambda p: ((p - v.numpy()) ** 2).sum(),
        [0.25] * 4,
        bounds=[(0, 1)] * 4,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
        tol=1e-12,
    )
    assert project(v).tolist() == pytest.approx(found.x.tolist(), abs=1e-5)


def test_afl_by_hand():
    """lambda_0 = (1/4, 3/4); after losses (2, 1) and eta 0.1, Proj(0.45, 0.85) = (0.3, 0.7): used
    in the next round.
    """
    stage = Agnostic(eta_lam=0.1)
    w, state = shares(stage, [(10, 2.0), (30, 1.0)], {"lam": {0: 0.25, 1: 0.75}})
    assert w == pytest.approx([0.25, 0.75])
    assert list(state["lam"].values()) == pytest.approx([0.3, 0.7])
    assert shares(stage, [(10, 2.0), (30, 1.0)], state)[0] == pytest.approx([0.3, 0.7])


def test_afl_remembers_and_reaches_a_corner():
    stage, state = Agnostic(eta_lam=0.5), {"lam": {0: 0.5, 1: 0.5}}
    for _ in range(3):
        w, state = shares(stage, [(10, 2.0), (10, 1.0)], state)
    assert list(state["lam"].values()) == [1, 0] and shares(stage, [(10, 1.0), (10, 1.0)], state)[
        0
    ] == [1, 0]


def test_afl_moves_only_the_participants_share():
    """Clients 0 and 1 of three hold 0.4 of the mass: 0.4 Proj((0.25, 0.75) + (0.2, 0.1)) = 0.4
    (0.3, 0.7).
    """
    w, state = shares(Agnostic(0.1), [(10, 2.0), (30, 1.0)], {"lam": {0: 0.1, 1: 0.3, 2: 0.6}})
    assert w == pytest.approx([0.25, 0.75])
    assert list(state["lam"].values()) == pytest.approx([0.12, 0.28, 0.6])
    assert shares(Agnostic(0.1), [(10, 2.0), (30, 1.0)], {"lam": {0: 0.0, 1: 0.0, 2: 1.0}})[0] == [
        0.5,
        0.5,
    ]


@settings(max_examples=30, deadline=None)
@given(losses, st.floats(0, 5))
def test_afl_equal_losses_change_nothing(values, eta):
    clients = [(10 * (i + 1), 1.7) for i in range(len(values))]
    lam = {i: v / sum(values) for i, v in enumerate(values)}
    _, state = shares(Agnostic(eta), clients, {"lam": lam})
    assert list(state["lam"].values()) == pytest.approx(list(lam.values()), abs=1e-9)


def test_afl_without_a_step_is_fedavg_or_the_uniform_mean(toy):
    assert near(run("afl", toy, 3, eta_lam=0.0), run("fedavg", toy, 3))
    assert near(run("afl", toy, 3, eta_lam=0.0, start="uniform"), uniform(toy, 3))
    with pytest.raises(FedbookError, match="start"):
        methods.get("afl", start="middle")


def test_stateless_afl_forgets():
    """omega = (1/4, 3/4), Proj(omega + 0.1 (2, 1)) = (0.3, 0.7) in this round already, and in the
    next one again.
    """
    for _ in range(2):
        w, state = shares(Stateless(0.1), [(10, 2.0), (30, 1.0)])
        assert w == pytest.approx([0.3, 0.7]) and state == {}
    assert methods.get("afl", quirks=("afl_stateless",)).weigh == (Stateless(0.1),)


# -- q-FFL -----------------------------------------------------------------------------------------
def test_q_ffl_without_fairness_is_the_uniform_mean_bit_for_bit(toy):
    assert same(uniform(toy, 2), run("q_ffl", toy, 2, q=0.0))


@pytest.mark.parametrize("q", [0.5, 1.0, 5.0])
def test_q_ffl_is_its_printed_formula(toy, q):
    """w - sum D_i / sum h_i, written out with powers, from what each client reaches when it is
    alone.
    """
    model = mlp(toy)
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    total, h, eta = {n: torch.zeros_like(p) for n, p in start.items()}, 0.0, LOCAL["lr"]
    for c in toy.clients:
        with torch.no_grad():
            F = torch.nn.functional.cross_entropy(model(toy.inputs(c.train)), toy.y[c.train]).item()
        alone = run("fedavg", dataclasses.replace(toy, clients=(c,)))
        G = {n: (start[n] - alone.params[n]) / eta for n in start}
        h += q * F ** (q - 1) * sum((g**2).sum().item() for g in G.values()) + F**q / eta
        total = {n: total[n] + F**q * G[n] for n in start}
    got = run("q_ffl", toy, q=q)
    assert all(torch.allclose(got.params[n], start[n] - total[n] / h, atol=1e-5) for n in start)
    assert 0 < got.records[0].log["step"] < 1


def step(stage, server, mean, clients, moves):
    found = reports(*clients)
    for r, m in zip(found, moves):
        r.values["move"] = m
    state = {"names": ["w"]}
    server, mean = ({"w": torch.tensor(v), "statistic": torch.tensor(v)} for v in (server, mean))
    return {n: t.item() for n, t in stage(state, server, mean, found)[0].items()}


def test_q_ffl_of_one_client_by_hand():
    """F = 4, q = 2, eta = 0.5, w from 3 to 1: G = 4, h = 2 4 16 + 16 / 0.5 = 160, step 16 4 / 160 =
    0.4.
    """
    move = 2.0**2 / 0.5
    got = step(DynamicStep(q=2.0, lr=0.5), 3.0, 1.0, [(7, 4.0)], [move])
    assert got["w"] == pytest.approx(3 - 0.4) and got["statistic"] == 1.0


def test_q_ffl_as_coded_by_hand():
    """F = (1, 3), q = 1, eta = 0.5, G norms (2, 4): the last loss for both, norms not squared.

    h = (1 2 + 1 / 0.5) + (1 4 + 3 / 0.5) = 14, sum D = 3 (G_1 + G_2); the mean moved by 1, so G_1 +
    G_2 = 2 / 0.5 = 4.
    """
    stage = PublishedStep(q=1.0, lr=0.5, loss="training")
    got = step(stage, 3.0, 2.0, [(7, 1.0), (9, 3.0)], [1.0, 2.0])
    assert got["w"] == pytest.approx(3 - 3 * 4 / 14)
    method = methods.get("q_ffl", quirks=("q_ffl_as_coded",))
    assert method.weigh == (Equal(),) and method.update == PublishedStep(loss="training")


def test_q_ffl_as_coded_is_fedgcrs_code(toy):
    """h_i from norms not squared, summed over tensors; then every D_i with the last client's
    loss.
    """
    start, eta, q = dict(mlp(toy).state_dict()), LOCAL["lr"], 2.0
    got = run("q_ffl", toy, q=q, quirks=("q_ffl_as_coded",))
    total, h = {n: torch.zeros_like(p) for n, p in start.items()}, 0.0
    last = got.records[0].train_loss[3]
    for c in toy.clients:
        alone = run("fedavg", dataclasses.replace(toy, clients=(c,)))
        F = got.records[0].train_loss[c.id]
        G = {n: (start[n] - alone.params[n]) / eta for n in start}
        h += q * F ** (q - 1) * sum(g.norm().item() for g in G.values()) + F**q / eta
        total = {n: total[n] + last**q * G[n] for n in start}
    assert all(torch.allclose(got.params[n], start[n] - total[n] / h, atol=1e-5) for n in start)
    assert got.records[0].weights == [0.25] * 4


@settings(max_examples=30, deadline=None)
@given(losses, st.floats(0.01, 10), sizes)
def test_q_ffl_a_larger_loss_gets_a_larger_share(values, q, n):
    first, _ = shares(LossPower(q), [(n, v) for v in values])
    more, _ = shares(LossPower(q), [(n, values[0] * 2), *((n + 1, v) for v in values[1:])])
    assert more[0] >= first[0] - 1e-12 and sum(more) == pytest.approx(1)


def test_q_ffl_survives_zero_loss_and_huge_powers():
    assert shares(LossPower(1000.0), [(1, 9.0), (1, 3.0)])[0] == [1, 0]
    assert shares(LossPower(1.0), [(1, 0.0), (1, 2.0)])[0] == pytest.approx([0, 1], abs=1e-9)
    got = step(DynamicStep(q=0.5, lr=0.1), 3.0, 1.0, [(7, 0.0), (7, 2.0)], [1.0, 1.0])["w"]
    assert math.isfinite(got) and 1 < got <= 3
    assert (
        1 < step(DynamicStep(q=900.0, lr=0.1), 3.0, 1.0, [(7, 9.0), (7, 2.0)], [1.0, 1.0])["w"] <= 3
    )


def test_q_ffl_needs_a_step_and_a_power():
    with pytest.raises(FedbookError, match="lr"):
        methods.get("q_ffl", lr=0.0)
    with pytest.raises(FedbookError, match="q must"):
        methods.get("q_ffl", q=-1.0)


# -- TERM ------------------------------------------------------------------------------------------
def test_term_by_hand():
    """p = (1/4, 3/4), F = (log 9, log 3), t = 1: 9/4 against 9/4."""
    clients = [(10, math.log(9)), (30, math.log(3))]
    assert shares(term(1.0), clients)[0] == pytest.approx([0.5, 0.5])
    w, state = shares(term(2.0), clients)
    assert w == pytest.approx([0.75, 0.25])
    assert state["log"]["tilted_loss"] == pytest.approx(math.log(81 / 4 + 27 / 4) / 2)


def test_term_is_two_factors():
    """p_i e^{t F_i} is n_i / sum n times the tilt, so the tilt alone knows nothing of sizes."""
    assert methods.get("term", t=0.3).weigh == (BySize(), Tilt(0.3))
    clients = [(10, math.log(9)), (30, math.log(3))]
    assert shares(Tilt(1.0), clients)[0] == pytest.approx([0.75, 0.25])


def test_term_at_zero_is_fedavg_bit_for_bit(toy):
    a = run("fedavg", toy, 2)
    assert same(a, run("term", toy, 2, t=0.0)) and near(run("term", toy, 2, t=1e-6), a)


def test_term_limits_and_overflow():
    clients = [(10, 700.0), (10, 1.0), (10, 650.0)]
    assert shares(term(1e3), clients)[0] == [1, 0, 0]
    assert shares(term(-1e3), clients)[0] == [0, 1, 0]
    assert shares(term(5.0), [(10, 2.0), (30, 2.0)])[0] == pytest.approx([0.25, 0.75])


@settings(max_examples=30, deadline=None)
@given(losses, st.floats(-20, 20), st.floats(0, 100))
def test_term_ignores_a_constant(values, t, constant):
    here, _ = shares(term(t), [(i + 1, v) for i, v in enumerate(values)])
    there, _ = shares(term(t), [(i + 1, v + constant) for i, v in enumerate(values)])
    assert here == pytest.approx(there, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(losses, st.floats(-20, 20), st.floats(-20, 20))
def test_tilted_loss_rises_with_t_from_the_least_to_the_largest(values, s, t):
    assume(abs(s) > 1e-6 and abs(t) > 1e-6)
    F, p = (
        torch.tensor(values, dtype=torch.float64),
        torch.full((len(values),), 1 / len(values), dtype=torch.float64),
    )
    low, high = sorted((s, t))
    assert tilted(F, p.log(), low) <= tilted(F, p.log(), high) + 1e-9
    assert min(values) - 1e-9 <= tilted(F, p.log(), t) <= max(values) + 1e-9
    assert tilted(F, p.log(), 0.0) == pytest.approx(sum(values) / len(values))


def test_term_from_the_training_loss(toy):
    late = run("term", toy, t=2.0, quirks=("term_training_loss",)).records[0]
    score = [math.log(len(c.train)) + 2 * late.train_loss[c.id] for c in toy.clients]
    assert late.weights == pytest.approx(normalise(score, range(4)))
    assert late.weights != pytest.approx(run("term", toy, t=2.0).records[0].weights, abs=1e-4)


# -- all three -------------------------------------------------------------------------------------
FAIR = {
    "afl": [{}, {"quirks": ("afl_stateless",)}],
    "q_ffl": [{}, {"quirks": ("q_ffl_as_coded",)}],
    "term": [{"t": 1.0}, {"t": 0.01, "quirks": ("term_training_loss",)}],
}


@pytest.mark.parametrize("name,options", [(n, o) for n in FAIR for o in FAIR[n]])
def test_a_resumed_run_ends_with_the_same_bits(name, options, toy, tmp_path):
    straight = run(name, toy, 4, participation=3, **options)
    again = resumed(name, toy, tmp_path / "run", participation=3, **options)
    assert same(straight, again)
    assert [r.weights for r in straight.records] == [r.weights for r in again.records]


@pytest.mark.parametrize("name", FAIR)
def test_the_loss_is_the_only_number_more_that_is_sent(name, toy):
    ((up, down),) = traffic(run("fedavg", toy))
    more = 4 * 4 + (4 * 4 if name == "q_ffl" else 0)  # and q-FFL's norm
    assert traffic(run(name, toy)) == [(up + more, down)]


@pytest.mark.parametrize("name", FAIR)
def test_the_worst_client_gains(name, toy):
    """A client with wrong labels has the largest loss; after some rounds its training loss is lower
    than FedAvg's.
    """
    options = {"afl": {"eta_lam": 0.3}, "q_ffl": {"q": 2.0}, "term": {"t": 3.0}}[name]
    y = toy.y.clone()
    y[toy.clients[0].train] = (y[toy.clients[0].train] + 1) % 3
    odd = dataclasses.replace(toy, y=y)

    def worst(method, **o):
        return max(evaluate(run(method, odd, 12, **o).model, odd, part="train", device="cpu").loss)

    assert worst(name, **options) < worst("fedavg")


def test_stages_have_their_methods_defaults():
    method = methods.get("q_ffl")
    assert method.update == DynamicStep() and method.weigh == (LossPower(),)
