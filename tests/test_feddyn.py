"""FedDyn: drifts, their mean, and the minimiser they lead to."""

import pytest
import torch
from helpers import LOCAL, mlp, normed, parabolas, resumed, run, same, traffic

from fedbook import FedbookError, methods
from fedbook.methods.feddyn import AddMeanDrift, DynamicRegulariser
from fedbook.methods.quirks import SizedRegulariser
from fedbook.rounds import Batch, BySize, Equal, Local, Report
from fedbook.rounds.params import count_bytes


def uniform(federation, rounds, **options):
    method = methods.get("fedavg", **{**LOCAL, **options}).replace(weigh=(Equal(),))
    return run(method, federation, rounds)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "epochs": 2}, {"participation": 2}])
def test_without_alpha_and_with_h_at_zero_it_is_the_uniform_mean_bit_for_bit(toy, options):
    assert same(
        run("feddyn", toy, 3, alpha=0.0, dual=False, **options),
        uniform(toy, 3, clip=10.0, **options),
    )
    assert not same(
        run("feddyn", toy, 3, alpha=0.1, dual=False, **options),
        uniform(toy, 3, clip=10.0, **options),
    )


def test_alpha_zero_with_h_is_refused():
    for alpha in (0.0, -1.0, float("nan")):
        with pytest.raises(FedbookError, match="alpha"):
            methods.get("feddyn", alpha=alpha)
    assert (
        methods.get("feddyn").solve.clip == 10.0 and methods.get("feddyn").objective[1].alpha == 0.1
    )


def test_where_nobody_moves_nothing_moves(toy):
    done = run("feddyn", toy, 3, lr=0.0)
    assert same(done, dict(mlp(toy).state_dict()))
    assert all(not t.any() for t in done.state["update"]["h"].values())


# -- one parameter, done by hand -------------------------------------------------------------------
def test_two_clients_by_hand():
    """F_0 = w^2 / 2, F_1 = 3 (w - 4)^2 / 2, alpha = 1, one step of 0.1 each, from w = 2.

    Round 1: gradients 2 and -6 (the regulariser's are 0), so w_i = 1.8 and 2.6, h = (-0.2, 0.6),
    mean h = 0.2, and w = 2.2 + 0.2 = 2.4. Round 2: gradients 2.4 - 0.2 and 3 (-1.6) + 0.6, so w_i =
    2.4 - 0.22 and 2.4 + 0.42; h = (-0.42, 1.02), mean 0.3; w = 2.5 + 0.3.
    """
    done = parabolas("feddyn", 2, (1.0, 3.0), (0.0, 4.0), start=2.0, alpha=1.0, lr=0.1)
    assert done.params["w"].item() == pytest.approx(2.8, abs=1e-6)
    h = [done.memory[i]["objective.1"]["h"]["w"].item() for i in (0, 1)]
    assert h == pytest.approx([-0.42, 1.02], abs=1e-6)


def test_it_finds_the_minimiser_of_the_average_and_fedavg_does_not():
    """Curvatures 1 and 9: argmin of the average is (1 0 + 9 4) / 10 = 3.6; FedAvg's local optima
    average to 2.
    """
    a, c, local = (1.0, 9.0), (0.0, 4.0), {"lr": 0.1, "epochs": 40}
    assert parabolas("fedavg", 10, a, c, **local).params["w"].item() == pytest.approx(2.0, abs=0.05)
    dyn = parabolas("feddyn", 20, a, c, alpha=2.0, clip=None, **local)
    assert dyn.params["w"].item() == pytest.approx(3.6, abs=1e-3)
    h = [dyn.memory[i]["objective.1"]["h"]["w"].item() for i in (0, 1)]
    assert 2.0 * h[0] == pytest.approx(
        -3.6, abs=0.01
    )  # -alpha h_i is the client's gradient at the solution
    assert 2.0 * h[1] == pytest.approx(9 * 0.4, abs=0.01)


def test_the_gradient_is_the_printed_one(toy):
    """alpha <w, h - w^t> + alpha / 2 ||w||^2, of which ours is a constant away."""
    model = mlp(toy)
    g = torch.Generator().manual_seed(3)
    named = dict(model.named_parameters())
    received, h = (
        {n: torch.randn(p.shape, generator=g) for n, p in named.items()} for _ in range(2)
    )
    stage = DynamicRegulariser(0.3)
    local = Local.of(toy, model, received=received, terms=(stage,))
    batch = Batch(local, toy.clients[0].train)
    ours = torch.autograd.grad(stage(local, batch, {}, {"h": h}), list(named.values()))
    printed = sum(
        0.3 * (w * (h[n] - received[n])).sum() + 0.15 * (w**2).sum() for n, w in named.items()
    )
    for a, b in zip(ours, torch.autograd.grad(printed, list(named.values()))):
        assert torch.allclose(a, b, atol=1e-6)


# -- bookkeeping -----------------------------------------------------------------------------------
def test_the_server_knows_the_mean_of_all_drifts(toy):
    """Also of clients never drawn, whose h is 0, and under weights that are not uniform."""
    for weigh in (Equal(), BySize()):
        method = methods.get("feddyn", participation=1, **LOCAL).replace(weigh=(weigh,))
        done = run(method, toy, 3)
        assert len(done.memory) < 4
        for name, mean in done.state["update"]["h"].items():
            total = sum(m["objective.1"]["h"][name] for m in done.memory.values())
            assert torch.allclose(mean, total / 4, atol=1e-6) and mean.any()


def test_update_by_hand():
    """Uploads 1 and 3 to a server at 0 of M = 4 clients: (1/M) sum h = 1, added to whatever the
    weighted mean is.
    """
    reports = []
    for i, v in enumerate((1.0, 3.0)):
        reports.append(Report(id=i, size=5, values={"upload": {"w": torch.tensor(v)}}))
    state = {"h": {"w": torch.tensor(0.5)}, "clients": 4}
    server, mean = ({"w": torch.tensor(v), "count": torch.tensor(v)} for v in (0.0, 2.5))
    moved, state = AddMeanDrift()(state, server, mean, reports)
    assert (
        moved["w"].item() == 2.5 + 1.5
        and state["h"]["w"].item() == 1.5
        and moved["count"].item() == 2.5
    )


def test_only_the_model_travels(toy):
    plain, dyn = run("fedavg", toy), run("feddyn", toy)
    assert traffic(plain) == traffic(dyn)
    assert plain.records[0].bytes_down == 4 * count_bytes(plain.params)


def test_batchnorm_is_averaged_without_drift(toy):
    done = run("feddyn", toy, 2, normed())
    h = done.state["update"]["h"]
    assert "features.2.running_mean" not in h and "features.2.weight" in h
    assert (done.params["features.2.running_var"] > 0).all()


def test_as_coded_divides_alpha_by_relative_size(toy):
    """Sizes 8, 12, 20, 40: mean 20, so client 0 has 2.5 alpha and client 3 half of it."""
    model = mlp(toy)
    received = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    ratios = []
    for c in toy.clients:
        local = Local.of(toy, model, client=c.id, received=received)
        batch = Batch(local, c.train[:2])
        plain, coded = (s(0.1, False) for s in (DynamicRegulariser, SizedRegulariser))
        ratios.append((coded(local, batch, {}, {}) / plain(local, batch, {}, {})).item())
    assert ratios == pytest.approx([2.5, 20 / 12, 1.0, 0.5])
    method = methods.get("feddyn", alpha=0.3, quirks=("feddyn_as_coded",))
    assert method.objective[1] == SizedRegulariser(0.3)


def test_a_stopped_run_goes_on(toy, tmp_path):
    whole = run("feddyn", toy, 4, participation=2)
    assert same(whole, resumed("feddyn", toy, tmp_path, participation=2))
