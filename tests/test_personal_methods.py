"""Local, LG-FedAvg, per-FedAvg and pFedMe: reductions, and a quadratic where every step is known in
closed form."""

import dataclasses

import pytest
import torch
from helpers import normed, only, personal, resumed, run, same, traffic
from torch import nn

from fedbook import FedbookError, Federation, methods, metrics
from fedbook.models.convnets import Classifier
from fedbook.papers.grp_fed.measures import local_tests
from fedbook.rounds import Equal, Objective
from fedbook.rounds.params import count_bytes

LOCAL = {"lr": 0.05, "batch_size": 4}


# -- Local -----------------------------------------------------------------------------------------
def test_local_with_one_client_is_centralised_training(toy):
    one = only(toy, 3)
    assert same(personal(run("local", one, 3), 0), run("fedavg", one, 3))


def test_local_clients_know_nothing_of_each_other(toy):
    together = run("local", toy, 3, momentum=0.9)
    for i in range(4):
        assert same(personal(together, i), personal(run("local", only(toy, i), 3, momentum=0.9), 0))


def test_local_sends_nothing(toy):
    result = run("local", toy, 2)
    assert result.params == {} and all(r.bytes_up == r.bytes_down == 0 for r in result.records)
    assert result.records[0].test_acc is None and len(result.records[0].personal_f1) == 4


@pytest.mark.parametrize("name", ["local", "lg_fedavg"])
def test_the_global_test_without_a_global_model_is_that_of_the_ensemble(name, toy):
    result = run(name, toy, 2)
    everybody = torch.cat([c.test for c in toy.clients])
    mean = 0.0
    with torch.no_grad():
        for c in toy.clients:
            mean = mean + result.personal_model(c)(toy.inputs(everybody)).softmax(1) / 4
    assert local_tests(result)["t_g"] == metrics.macro_f1(toy.y[everybody], mean.argmax(1), 3)


def test_a_global_model_generalises_as_it_is_tested_globally(toy):
    found = local_tests(run("fedavg", toy, 2))
    assert found["t_r"] == found["t_g"] and found["t_p"] != found["t_g"]


def test_near_and_far_clients(toy):
    """Client 2 is given the class mix of all, client 0 a single class: they are the two cases of
    Figure 5.
    """
    y = toy.y.clone()
    y[toy.clients[0].train] = 2
    for c in toy.clients[1:]:
        y[c.train] = torch.arange(len(c.train)) % 3
    odd = dataclasses.replace(toy, y=y)
    result = run("per_fedavg", odd, 2)
    found = local_tests(result)
    counts = torch.tensor(found["class_counts"])
    assert counts.tolist() == [odd.class_counts(c).tolist() for c in odd.clients]
    share = counts / counts.sum(1, keepdim=True)
    apart = (share - counts.sum(0) / counts.sum()).abs().sum(1)
    assert found["far"]["client"] == 0 and found["near"]["client"] == int(apart.argmin())
    last = result.records[-1]
    assert (
        found["far"]["t_g"] == pytest.approx(last.test_f1[0])
        and found["far"]["t_p"] == last.personal_f1[0]
    )
    assert found["far"]["t_l"] == pytest.approx(
        metrics.harmonic_mean(found["far"]["t_p"], found["far"]["t_r"])
    )


# -- LG-FedAvg -------------------------------------------------------------------------------------
def test_lg_fedavg_sharing_nothing_is_local(toy):
    nothing, local = run("lg_fedavg", toy, 3, shared=()), run("local", toy, 3)
    assert all(same(personal(nothing, i), personal(local, i)) for i in range(4))
    assert nothing.records[0].bytes_up == 0


def test_lg_fedavg_sharing_everything_is_the_uniform_mean(toy):
    everything = run("lg_fedavg", toy, 3, shared=("*",), **LOCAL)
    mean = run(methods.get("fedavg", **LOCAL).replace(weigh=(Equal(),)), toy, 3)
    assert same(everything.params, mean.params) and not same(
        mean.params, run("fedavg", toy, 3, **LOCAL).params
    )


def test_lg_fedavg_shares_the_upper_layers_only(toy):
    result = run("lg_fedavg", toy, 2)
    assert set(result.params) == {"head.weight", "head.bias"}
    head = count_bytes(result.params)
    assert result.records[0].bytes_down == 4 * head and result.records[0].bytes_up == 4 * (head + 8)
    mine = [personal(result, i) for i in range(4)]
    assert torch.equal(mine[0]["head.weight"], mine[1]["head.weight"])
    assert not torch.equal(mine[0]["features.1.weight"], mine[1]["features.1.weight"])


# -- a quadratic: f(theta) = (theta - c)' A (theta - c) / 2, theta the weights of the head ---------
A, C = torch.tensor([[2.0, 0.5], [0.5, 1.0]]), torch.tensor([1.0, -2.0])


@dataclasses.dataclass(frozen=True)
class Quadratic(Objective):
    def __call__(self, local, batch, sent, memory):
        gap = local.model.head.weight.flatten() - C
        return gap @ A @ gap / 2


def bowl(name, rounds=1, batches=1, **options):
    """The weights on the server after some rounds of one client on the quadratic, from theta = (0,
    0).
    """
    x, y = torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)
    federation = Federation.from_arrays([{"train": (x, y), "test": (x, y)}])
    model = Classifier(nn.Flatten(), 2, 1)
    nn.init.zeros_(model.head.weight)
    options = {"batch_size": 4 // batches, **options}
    method = methods.get(name, **options).replace(objective=(Quadratic(),))
    result = run(method, federation, rounds, model)
    server = result.params["head.weight"].flatten().clone()
    own = result.personal_model(federation.clients[0]).head.weight.detach().flatten()
    return server, own


def slope(theta):
    return A @ (theta - C)


# -- per-FedAvg ------------------------------------------------------------------------------------
@pytest.mark.parametrize("exact", [False, True])
def test_per_fedavg_without_an_inner_step_is_fedavg_bit_for_bit(toy, exact):
    options = {"momentum": 0.9, "epochs": 2}
    a = run("per_fedavg", toy, 3, alpha=0.0, exact=exact, **options)
    assert same(a.params, run("fedavg", toy, 3, **options).params)
    assert not same(a.params, run("per_fedavg", toy, 3, alpha=0.1, exact=exact, **options).params)
    assert [personal(a, i)["head.bias"].tolist() for i in (0, 1)] == [
        a.params["head.bias"].tolist()
    ] * 2


def test_per_fedavg_leaves_running_statistics_to_the_outer_pass(toy):
    a = run("per_fedavg", toy, 2, normed(), alpha=0.0, exact=True, batch_size=4)
    assert same(a.params, run("fedavg", toy, 2, normed(), batch_size=4).params)


def test_per_fedavg_on_a_quadratic():
    """From theta_0 = 0: first order theta_0 - b A (w~ - c); exact has (I - a A) before the
    gradient.
    """
    a, b, start = 0.2, 0.5, torch.zeros(2)
    inner = start - a * slope(start)
    first, _ = bowl("per_fedavg", alpha=a, lr=b)
    assert torch.allclose(first, start - b * slope(inner), atol=1e-6)
    exact, own = bowl("per_fedavg", alpha=a, lr=b, exact=True)
    assert torch.allclose(exact, start - b * (torch.eye(2) - a * A) @ slope(inner), atol=1e-6)
    assert torch.allclose(own, exact - a * slope(exact), atol=1e-6)
    assert torch.allclose(
        first - start, torch.linalg.inv(torch.eye(2) - a * A) @ (exact - start), atol=1e-6
    )


def test_per_fedavg_momentum_is_that_of_the_outer_steps():
    """Two batches: v_1 = g_1, v_2 = 0.9 v_1 + g_2, with g taken after an inner step that has no
    momentum.
    """
    a, b, w, v = 0.2, 0.1, torch.zeros(2), torch.zeros(2)
    for _ in range(2):
        v = 0.9 * v + slope(w - a * slope(w))
        w = w - b * v
    got, own = bowl("per_fedavg", alpha=a, lr=b, momentum=0.9, batches=2, adapt_steps=3)
    assert torch.allclose(got, w, atol=1e-6)
    for _ in range(3):
        w = w - a * slope(w)
    assert torch.allclose(own, w, atol=1e-6)


def test_per_fedavg_adapts_without_a_look_at_test_samples(toy):
    y = toy.y.clone()
    for c in toy.clients:
        y[c.test] = 0
    a, b = (run("per_fedavg", f, 2, alpha=0.1) for f in (toy, dataclasses.replace(toy, y=y)))
    assert all(same(personal(a, i), personal(b, i)) for i in range(4))
    assert not same(personal(a, 0), a.params)
    with pytest.raises(FedbookError, match="alpha"):
        methods.get("per_fedavg", alpha=-0.1)


# -- pFedMe ----------------------------------------------------------------------------------------
def near(w, lam):
    """argmin f + lam / 2 |theta - w|^2 = (A + lam I)^-1 (A c + lam w)."""
    return torch.linalg.solve(A + lam * torch.eye(2), A @ C + lam * w)


def test_pfedme_in_closed_form():
    lam, eta = 3.0, 0.1
    w, theta = bowl("pfedme", lam=lam, lr=eta, steps=200, personal_lr=0.2)
    assert torch.allclose(theta, near(torch.zeros(2), lam), atol=1e-5)
    assert torch.allclose(w, eta * lam * theta, atol=1e-5)
    w2, theta2 = bowl("pfedme", rounds=2, lam=lam, lr=eta, steps=200, personal_lr=0.2)
    assert torch.allclose(theta2, near(w, lam), atol=1e-5)
    assert torch.allclose(w2, w - eta * lam * (w - theta2), atol=1e-5)


def test_pfedme_counts_its_steps_and_starts_where_it_was():
    """K = 1, two batches: theta_1 = -p A(0 - c); w_1 = eta lam theta_1; theta_2 from theta_1,
    pulled to w_1.
    """
    lam, eta, p = 2.0, 0.25, 0.1
    theta, w = torch.zeros(2), torch.zeros(2)
    for _ in range(2):
        theta = theta - p * (slope(theta) + lam * (theta - w))
        w = w - eta * lam * (w - theta)
    got, own = bowl("pfedme", lam=lam, lr=eta, steps=1, personal_lr=p, batches=2)
    assert torch.allclose(got, w, atol=1e-6) and torch.allclose(own, theta, atol=1e-6)


def test_pfedme_limits():
    w, theta = bowl("pfedme", lam=4.0, lr=0.25, steps=100, personal_lr=0.1)
    assert torch.allclose(w, theta, atol=1e-6), "eta lam = 1"
    w, theta = bowl("pfedme", lam=1e5, lr=1e-5, steps=50, personal_lr=1e-5)
    assert theta.norm() < 1e-4, "lam to infinity keeps theta at w"


def test_pfedme_server_mixes():
    full, _ = bowl("pfedme", lam=3.0, lr=0.1)
    assert torch.allclose(bowl("pfedme", lam=3.0, lr=0.1, beta=0.5)[0], full / 2, atol=1e-6)
    frozen, theta = bowl("pfedme", rounds=3, lam=3.0, lr=0.1, beta=0.0)
    assert torch.equal(frozen, torch.zeros(2)) and theta.norm() > 0.1


def test_pfedme_tests_the_personal_models_and_sends_only_w(toy):
    result = run("pfedme", toy, 2, participation=2, lr=0.05)
    taken = set().union(*(r.participants for r in result.records))
    assert traffic(result) == traffic(run("fedavg", toy, 2, participation=2))
    for i in range(4):
        known = result.memory.get(i, {}).get("solve", {}).get("theta", result.params)
        assert same(personal(result, i), known) and (i in taken) == (known is not result.params)
    assert len(result.records[-1].test_acc) == len(result.records[-1].personal_acc) == 4


def test_pfedme_refuses_what_cannot_work():
    with pytest.raises(FedbookError, match="jump past"):
        methods.get("pfedme", lr=0.1, lam=15.0)
    with pytest.raises(FedbookError, match="lam > 0"):
        methods.get("pfedme", lam=0.0)


# -- all four --------------------------------------------------------------------------------------
OWN = [
    ("local", {}),
    ("lg_fedavg", {}),
    ("per_fedavg", {"alpha": 0.1}),
    ("pfedme", {}),
    ("grp_fed", {"epochs": 2}),
]


@pytest.mark.parametrize("name,options", OWN)
def test_a_resumed_run_ends_with_the_same_bits(name, options, toy, tmp_path):
    options = {**LOCAL, "participation": 3, **options}
    straight = run(name, toy, 4, **options)
    again = resumed(name, toy, tmp_path / "run", **options)
    assert same(straight, again)
    assert all(same(personal(straight, i), personal(again, i)) for i in range(4))
    assert straight.records[-1].personal_f1 == again.records[-1].personal_f1


@pytest.mark.parametrize("name,options", OWN)
def test_running_statistics_do_not_get_in_the_way(name, options, toy):
    result = run(name, toy, 2, normed(), **{**LOCAL, **options})
    own = result.personal_model(toy.clients[1])
    assert all(torch.isfinite(t).all() for t in own.state_dict().values())
    assert own.features[2].num_batches_tracked > 0
