"""FedDyn: drifts, their mean, and the minimiser they lead to."""

import dataclasses

import pytest
import torch
from torch import nn

from fedbook import FedbookError, Federation, methods, models, simulate
from fedbook.methods.feddyn import AddMeanDrift, DynamicRegulariser
from fedbook.models.convnets import Classifier
from fedbook.rounds import Batch, Device, Equal, Local, Objective, Report
from fedbook.rounds.params import count_bytes

LOCAL = {"lr": 0.1, "batch_size": 4}


def run(name, federation, rounds=1, model=None, **options):
    model = model or models.build("mlp", federation, seed=7, width=8)
    return simulate(
        methods.get(name, **{**LOCAL, **options}), federation, model, rounds, quiet=True
    ).run()


def bits(a, b):
    return a.params.keys() == b.params.keys() and all(
        torch.equal(a.params[n], b.params[n]) for n in a.params
    )


def uniform(federation, rounds, **options):
    method = methods.get("fedavg", **{**LOCAL, **options}).replace(weigh=Equal())
    return simulate(
        method, federation, models.build("mlp", federation, seed=7, width=8), rounds, quiet=True
    ).run()


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "epochs": 2}, {"participation": 2}])
def test_without_alpha_and_with_h_at_zero_it_is_the_uniform_mean_bit_for_bit(toy, options):
    assert bits(
        run("feddyn", toy, 3, alpha=0.0, dual=False, **options),
        uniform(toy, 3, clip=10.0, **options),
    )
    assert not bits(
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
    start = models.build("mlp", toy, seed=7, width=8).state_dict()
    assert all(torch.equal(done.params[n], start[n]) for n in start)
    assert all(not t.any() for t in done.state["update"]["h"].values())


# -- one parameter, done by hand -------------------------------------------------------------------
class Number(nn.Module):
    """w; the data are ignored."""

    def __init__(self, w=0.0):
        super().__init__()
        self.w, self.head = nn.Parameter(torch.tensor(w)), nn.Identity()

    def embed(self, x):
        return x.new_zeros(len(x), 3) + 0 * self.w

    def forward(self, x):
        return self.head(self.embed(x))


@dataclasses.dataclass(frozen=True)
class Parabola(Objective):
    """F_i(w) = a_i (w - c_i)^2 / 2, with a and c by client id."""

    a: tuple[float, ...]
    c: tuple[float, ...]

    def __call__(self, local, batch, sent, memory):
        a, c = self.a[local.client.id], self.c[local.client.id]
        return a * (local.model.w - c) ** 2 / 2


def two_clients():
    x, y = torch.zeros(4, 5), torch.zeros(4).long()
    return Federation.from_arrays(
        [{"train": (x, y), "test": (x, y)}] * 2, class_names=["a", "b", "c"]
    )


def parabolas(name, rounds, a, c, start=0.0, **options):
    method = methods.get(name, batch_size=4, **options)
    method = method.replace(objective=(Parabola(a, c), *method.objective[1:]))
    return simulate(method, two_clients(), Number(start), rounds, device="cpu", quiet=True).run()


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
    model = models.build("mlp", toy, seed=7, width=8)
    g = torch.Generator().manual_seed(3)
    named = dict(model.named_parameters())
    received, h = (
        {n: torch.randn(p.shape, generator=g) for n, p in named.items()} for _ in range(2)
    )
    stage = DynamicRegulariser(0.3)
    rng = torch.Generator().manual_seed(0)
    local = Local(toy.clients[0], toy, model, received, 1, rng, Device("cpu"), (stage,), {}, {})
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
    for weigh in (Equal(), methods.get("fedavg").weigh):
        method = methods.get("feddyn", participation=1, **LOCAL).replace(weigh=weigh)
        done = simulate(method, toy, models.build("mlp", toy, seed=7, width=8), 3, quiet=True).run()
        assert len(done.memory) < 4
        for name, mean in done.state["update"]["h"].items():
            total = sum(m["objective.1"]["h"][name] for m in done.memory.values())
            assert torch.allclose(mean, total / 4, atol=1e-6) and mean.any()


def test_update_by_hand():
    """Uploads 1 and 3 to a server at 0 of M = 4 clients: (1/M) sum h = 1, added to whatever the
    weighted mean is.
    """
    reports = [
        Report(i, 5, values={"upload": {"w": torch.tensor(v)}}) for i, v in enumerate((1.0, 3.0))
    ]
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
    assert (plain.records[0].bytes_up, plain.records[0].bytes_down) == (
        dyn.records[0].bytes_up,
        dyn.records[0].bytes_down,
    )
    assert plain.records[0].bytes_down == 4 * count_bytes(plain.params)


def test_batchnorm_is_averaged_without_drift(toy):
    torch.manual_seed(0)
    model = Classifier(nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU()), 6, 3)
    done = run("feddyn", toy, 2, model)
    assert (
        "features.1.running_mean" not in done.state["update"]["h"]
        and "features.1.weight" in done.state["update"]["h"]
    )
    assert (done.params["features.1.running_var"] > 0).all()


def test_as_coded_divides_alpha_by_relative_size(toy):
    """Sizes 8, 12, 20, 40: mean 20, so client 0 has 2.5 alpha and client 3 half of it."""
    model = models.build("mlp", toy, seed=7, width=8)
    received = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    values = {}
    for coded in (False, True):
        stage = DynamicRegulariser(0.1, False, coded)
        for c in toy.clients:
            local = Local(
                c, toy, model, received, 1, torch.Generator(), Device("cpu"), (stage,), {}, {}
            )
            values[coded, c.id] = stage(local, Batch(local, c.train[:2]), {}, {}).item()
    assert [values[True, i] / values[False, i] for i in range(4)] == pytest.approx(
        [2.5, 20 / 12, 1.0, 0.5]
    )


def test_a_stopped_run_goes_on(toy, tmp_path):
    whole = run("feddyn", toy, 4, participation=2)

    def part(rounds):
        model = models.build("mlp", toy, seed=7, width=8)
        method = methods.get("feddyn", participation=2, **LOCAL)
        return simulate(method, toy, model, rounds, checkpoint=tmp_path, quiet=True).run()

    part(2)
    assert bits(whole, part(4))
