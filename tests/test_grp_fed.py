"""GRP-FED: the power that adapts, weights in the log domain, and a personal extractor held by a
discriminator."""

import copy
import dataclasses
import json
import math

import pytest
import torch
from helpers import LOCAL, mlp, personal, run, same, traffic
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbook import FedbookError, methods, metrics, papers
from fedbook.experiment import Experiment, alike, run_together
from fedbook.methods.grp_fed import (
    AdaptivePower,
    AdversarialLocal,
    adapted,
    discriminator_loss,
    generator_loss,
)
from fedbook.papers.grp_fed import scales as paper
from fedbook.papers.reproduce import together
from fedbook.results import _outcome
from fedbook.rounds import Equal, LocalSolver, Report
from fedbook.rounds.params import count_bytes
from fedbook.rounds.weights import normalise

QUICK = {"epochs": 2, "batch_size": 4, "lr": 0.05}


def weights(losses, q, eta_q=0.5, spread=None):
    stage = AdaptivePower(q, eta_q)
    reports = [Report(id=i, size=10 + i, loss=v) for i, v in enumerate(losses)]
    scores, state = stage({"q": q, "spread": spread}, reports)
    return normalise(scores, range(len(losses))), state


losses = st.lists(st.floats(1e-2, 50), min_size=2, max_size=8)
powers = st.floats(-5, 20)


# -- Eq. 2 and 3 -----------------------------------------------------------------------------------
def test_weights_by_hand():
    """L = (1, 2), q = 10: 1 against 1024. The spread is 1/2; there is none to compare with, so q
    stays.
    """
    w, state = weights([1.0, 2.0], 10.0)
    assert w == pytest.approx([1 / 1025, 1024 / 1025])
    assert state["q"] == 10 and state["spread"] == pytest.approx(0.5)
    assert state["log"]["effective_clients"] == pytest.approx(1025**2 / (1 + 1024**2))
    assert weights([1.0, 3.0], 1.0, spread=1.0)[0] == pytest.approx([0.25, 0.75])


def test_the_power_by_hand():
    """The spread goes from 1/2 to 1: q + 0.5 (1 - 0.5) / 0.75 = 1 + 1/3, and lambda = (1, 3^q) / (1
    + 3^q).
    """
    w, state = weights([1.0, 3.0], 1.0, spread=0.5)
    assert state["q"] == pytest.approx(4 / 3) and w[1] / w[0] == pytest.approx(3 ** (4 / 3))
    assert weights([1.0, 3.0], 1.0, eta_q=0.0, spread=0.5)[1]["q"] == 1.0


@settings(max_examples=50, deadline=None)
@given(powers, st.floats(0, 10), st.floats(0, 10), st.floats(0, 3))
def test_the_power_moves_antisymmetrically_and_not_far(q, a, b, eta):
    there, back = adapted(q, a, b, eta) - q, adapted(q, b, a, eta) - q
    assert there == pytest.approx(-back, abs=1e-9) and abs(there) <= 2 * eta + 1e-9
    assert adapted(q, a, a, eta) == q
    assert math.copysign(1, there) == math.copysign(1, b - a) or there == 0


def test_the_power_moves_farthest_from_and_to_nothing():
    assert adapted(10.0, 0.0, 0.3, 0.5) == 11.0 and adapted(10.0, 0.3, 0.0, 0.5) == 9.0
    assert adapted(10.0, 0.0, 0.0, 0.5) == 10.0


def test_the_power_moves_little():
    """In small steps q follows eta_q log s: a spread 100 times smaller takes 10 to 7.70."""
    q, spread = 10.0, 1.0
    for _ in range(1000):
        q, spread = (
            adapted(q, spread, spread * 0.01 ** (1 / 1000), 0.5),
            spread * 0.01 ** (1 / 1000),
        )
    assert q == pytest.approx(10 + 0.5 * math.log(0.01), abs=1e-3)


@settings(max_examples=50, deadline=None)
@given(losses, powers, st.floats(0.01, 100))
def test_the_unit_of_the_loss_does_not_matter(values, q, c):
    assert weights(values, q)[0] == pytest.approx(weights([c * v for v in values], q)[0], abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(losses, powers)
def test_neutral_settings_are_the_uniform_mean(values, q):
    n = len(values)
    assert weights(values, 0.0)[0] == pytest.approx([1 / n] * n)
    assert weights([1.7] * n, q)[0] == pytest.approx([1 / n] * n)
    assert weights(values, 0.0)[1]["log"]["effective_clients"] == pytest.approx(n)


def test_a_large_power_takes_the_largest_loss_and_survives():
    assert weights([700.0, 3.0, 650.0], 1e4)[0] == pytest.approx([1, 0, 0])
    assert weights([1e-300, 1.0], 10.0)[0] == pytest.approx([0, 1])
    assert weights([0.0, 0.0], 10.0)[0] == [0.5, 0.5]


def test_what_is_logged_each_round(toy):
    result = run("grp_fed", toy, 3, **QUICK)
    logs = [r.log for r in result.records]
    assert logs[0]["q"] == 10.0
    for before, now, record in zip(logs, logs[1:], result.records[1:]):
        moved = adapted(before["q"], before["spread"], now["spread"], 0.5)
        assert now["q"] == pytest.approx(moved) and now["q"] != before["q"]
        assert now["effective_clients"] == pytest.approx(1 / sum(w**2 for w in record.weights))
    assert 1 <= logs[-1]["effective_clients"] < 4


def test_the_loss_is_that_of_the_received_model_or_of_the_last_epoch(toy):
    received, late = (
        run("grp_fed", toy, 1, loss=x, q=2.0, **QUICK) for x in ("received", "training")
    )
    F = torch.nn.functional
    model = mlp(toy)
    with torch.no_grad():
        L = [
            F.cross_entropy(model(toy.inputs(c.train)), toy.y[c.train]).item() for c in toy.clients
        ]
    assert received.records[0].weights == pytest.approx(
        [v**2 / sum(u**2 for u in L) for v in L], rel=1e-4
    )
    L = list(late.records[0].train_loss.values())
    assert late.records[0].weights == pytest.approx(
        [v**2 / sum(u**2 for u in L) for v in L], rel=1e-4
    )
    assert methods.get("grp_fed").reads == {"received"}
    assert methods.get("grp_fed", loss="training").reads == {"training"}
    with pytest.raises(FedbookError, match="loss must be"):
        run("grp_fed", toy, loss="last_batch", **QUICK)


def test_without_power_the_global_model_is_the_uniform_mean_bit_for_bit(toy):
    """And whatever happens to the personal extractors leaves no trace in it."""
    plain = methods.get("fedavg", momentum=0.9, **QUICK).replace(weigh=(Equal(),))
    ours = run("grp_fed", toy, 3, q=0.0, eta_q=0.0, **QUICK)
    assert same(ours, run(plain, toy, 3))
    assert not same(ours, run("grp_fed", toy, 3, q=1.0, **QUICK))


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1))
def test_the_local_test_is_no_larger_than_twice_the_smaller_nor_than_the_mean(p, r):
    hm = float(metrics.harmonic_mean(p, r))
    assert hm <= 2 * min(p, r) + 1e-12 and hm <= (p + r) / 2 + 1e-12


# -- the adversarial losses ------------------------------------------------------------------------
def slopes(f, *logits):
    leaves = [torch.tensor([s], requires_grad=True) for s in logits]
    return [g.item() for g in torch.autograd.grad(f(*leaves), leaves)]


def test_losses_by_hand():
    """D = 3/4 at the logit log 3. Printed: log(1 - D); cross-entropy: -log D."""
    s = torch.tensor([math.log(3)])
    assert generator_loss(s, "printed").item() == pytest.approx(math.log(1 / 4))
    assert generator_loss(s, "bce").item() == pytest.approx(-math.log(3 / 4))
    g, l = torch.tensor([math.log(3)]), torch.tensor([-math.log(3)])
    assert discriminator_loss(g, l, "printed").item() == pytest.approx(2 * math.log(1 / 4))
    assert discriminator_loss(g, l, "bce").item() == pytest.approx(-2 * math.log(3 / 4))
    both = torch.nn.functional.binary_cross_entropy_with_logits
    assert discriminator_loss(g, l, "bce") == pytest.approx(
        (both(g, torch.ones(1)) + both(l, torch.zeros(1))).item()
    )


@pytest.mark.parametrize("gan_loss", ["bce", "printed"])
def test_both_forms_point_the_same_way(gan_loss):
    for s in (-4.0, 0.0, 4.0):
        on_global, on_local = slopes(lambda g, l: discriminator_loss(g, l, gan_loss), s, s)
        assert on_global < 0 < on_local, "D rises on global features and falls on personal ones"
        assert slopes(lambda v: generator_loss(v, gan_loss), s)[0] < 0, (
            "personal features look more global"
        )


def test_only_cross_entropy_has_its_slope_where_d_errs():
    """D calls a global feature personal (logit -4): slope -sigmoid(-4) as printed, -sigmoid(4) for
    cross-entropy.
    """
    wrong = {
        k: slopes(lambda g, l, k=k: discriminator_loss(g, l, k), -4.0, 0.0)[0]
        for k in ("bce", "printed")
    }
    right = {
        k: slopes(lambda g, l, k=k: discriminator_loss(g, l, k), 4.0, 0.0)[0]
        for k in ("bce", "printed")
    }
    sigmoid = 1 / (1 + math.exp(4))
    assert wrong["printed"] == pytest.approx(-sigmoid) and right["printed"] == pytest.approx(
        -(1 - sigmoid)
    )
    assert wrong["bce"] == pytest.approx(-(1 - sigmoid)) and right["bce"] == pytest.approx(-sigmoid)
    far = torch.tensor([80.0])
    assert generator_loss(far, "printed") < -70 and generator_loss(far, "bce") >= 0


# -- personal extractors ---------------------------------------------------------------------------
def extractor(result, i):
    return {n: p for n, p in personal(result, i).items() if n.startswith("features.")}


def test_beta_one_ignores_the_discriminator(toy):
    """Another discriminator, another loss of it: the same extractors bit for bit; not so at beta =
    1/2.
    """
    results = {
        b: [
            run("grp_fed", toy, 2, beta=b, gan_loss=k, hidden=h, **QUICK)
            for k, h in (("bce", 64), ("printed", 5))
        ]
        for b in (1.0, 0.5)
    }
    for i in range(4):
        assert same(extractor(results[1.0][0], i), extractor(results[1.0][1], i))
        assert not same(extractor(results[0.5][0], i), extractor(results[0.5][1], i))


def test_beta_zero_ignores_the_labels(toy):
    y = toy.y.clone()
    y[toy.clients[2].train] = (y[toy.clients[2].train] + 1) % 3
    odd = dataclasses.replace(toy, y=y)
    for beta in (0.0, 0.5):
        a, b = (run("grp_fed", f, 1, beta=beta, **QUICK) for f in (toy, odd))
        assert same(extractor(a, 2), extractor(b, 2)) == (beta == 0)


def test_the_classifier_is_fixed_in_the_local_step(toy):
    class Watched(AdversarialLocal):
        def train(self, local, D, *rest):
            before = [p.detach().clone() for p in local.model.head.parameters()]
            super().train(local, D, *rest)
            after = list(local.model.head.parameters())
            assert all(torch.equal(p, q) for p, q in zip(before, after)) and all(
                p.requires_grad for p in after
            )
            assert torch.equal(after[0], local.received["head.weight"])
            seen.append(local.client.id)

    seen = []
    base = methods.get("grp_fed", **QUICK)
    watched = Watched(beta=0.5, hidden=8, solve=base.solve)
    result = run(base.replace(personal=watched), toy, 2)
    assert seen == [0, 1, 2, 3] * 2
    assert torch.equal(personal(result, 1)["head.weight"], result.params["head.weight"]), (
        "tested with the newest C"
    )


def test_one_local_step_by_hand(toy):
    """beta = 1, one epoch of one batch: theta^l - eta grad of the cross-entropy under the received
    classifier.
    """
    n = len(toy.clients[0].train)
    result = run(
        "grp_fed", toy, 1, beta=1.0, epochs=1, batch_size=n, lr=0.1, momentum=0.0, participation=1.0
    )
    model = mlp(toy)
    index = toy.clients[0].train
    torch.nn.functional.cross_entropy(model(toy.inputs(index)), toy.y[index]).backward()
    wanted = {f"features.{k}": p - 0.1 * p.grad for k, p in model.features.named_parameters()}
    got = extractor(result, 0)
    assert all(torch.allclose(got[k], wanted[k], atol=1e-6) for k in wanted)


@pytest.mark.parametrize("gan_loss", ["bce", "printed"])
def test_a_small_step_on_the_regulariser_makes_features_look_more_global(toy, gan_loss):
    """Judged by the discriminator as it was before; at beta = 0 nothing else pulls at the
    extractor.
    """

    class Watched(AdversarialLocal):
        def train(self, local, D, *rest):
            def looks_personal():
                with torch.no_grad():
                    z = local.model.embed(toy.inputs(local.client.train))
                    return generator_loss(judge(z), gan_loss).item()

            judge, before = copy.deepcopy(D), None
            before = looks_personal()
            super().train(local, D, *rest)
            change.append(looks_personal() - before)

    change = []
    slow = LocalSolver(lr=1e-3, batch_size=40)
    watched = Watched(beta=0.0, gan_loss=gan_loss, hidden=8, solve=slow)
    run(methods.get("fedavg").replace(personal=watched), toy, 1)
    assert len(change) == 4 and max(change) < 0


def test_extractors_and_discriminators_are_remembered_but_never_sent(toy):
    ours = run("grp_fed", toy, 2, **QUICK)
    plain = traffic(run("fedavg", toy, 2, **QUICK))
    assert plain[0][1] == 4 * count_bytes(ours.params)
    assert traffic(ours) == [(up + 4 * 4, down) for up, down in plain], "and every client's loss"
    assert traffic(run("grp_fed", toy, 2, loss="training", **QUICK)) == plain
    kept = ours.memory[0]["personal"]
    assert (
        set(kept["extractor"]) == {"features.1.weight", "features.1.bias"}
        and len(kept["discriminator"]) == 4
    )
    assert not same(kept["extractor"], ours.memory[1]["personal"]["extractor"])
    assert not same(kept["discriminator"], ours.memory[1]["personal"]["discriminator"])


def test_who_never_took_part_has_the_global_extractor(toy):
    result = run("grp_fed", toy, 1, participation=2, **QUICK)
    for i in range(4):
        assert same(personal(result, i), result) == (i not in result.records[0].participants)


@pytest.mark.parametrize("start", ["own", "received"])
def test_where_a_personal_extractor_starts(toy, start):
    """With steps of size 0 it ends where it starts: at the first model ever received, or at the
    last one.
    """
    base = methods.get("grp_fed", start=start, **QUICK)
    still = dataclasses.replace(base.personal, solve=LocalSolver(lr=0.0, batch_size=4))
    rounds = [run(base.replace(personal=still), toy, n) for n in (1, 2)]
    first, second = (
        rounds[0].memory[0]["personal"]["extractor"],
        rounds[1].memory[0]["personal"]["extractor"],
    )
    wanted = first if start == "own" else {n: p for n, p in rounds[0].params.items() if n in first}
    assert same(second, wanted) and same(first, second) == (start == "own")


def test_personal_extractors_fit_on_any_method(toy):
    base = methods.get("q_ffl", **LOCAL)
    result = run(base.replace(personal=AdversarialLocal(solve=base.solve)), toy, 2)
    assert same(result, run(base, toy, 2)) and len(result.records[-1].personal_f1) == 4


def test_wrong_settings():
    for wrong in ({"gan_loss": "hinge"}, {"beta": 1.5}, {"start": "zero"}):
        with pytest.raises(FedbookError, match=next(iter(wrong))):
            AdversarialLocal(solve=LocalSolver(), **wrong)


# -- the paper -------------------------------------------------------------------------------------
@pytest.mark.parametrize("id", ["table1", "fig1", "fig3", "fig4", "fig5"])
def test_every_row_has_a_run_at_every_scale(id):
    spec = papers.get(f"grp_fed/{id}")
    assert spec.built == "yes"
    for scale in ("smoke", "laptop", "paper"):
        runs = spec.runs(scale, seeds=1)
        assert {(r.row.setting, r.row.method) for r in runs} == {
            (r.setting, r.method) for r in spec.rows
        }
        assert len({r.experiment.key for r in runs}) == len(runs)
        for r in runs:
            r.experiment.build_method()


def test_smoke_needs_no_download_and_figures_use_the_runs_of_the_table():
    def keys(id):
        return {r.experiment.key: r.experiment for r in papers.get(f"grp_fed/{id}").runs("smoke")}

    table = keys("table1")
    assert {e.dataset["name"] for e in table.values()} == {"ecg_offline", "digits5_offline"}
    assert set(keys("fig1")) | set(keys("fig3")) | set(keys("fig5")) < set(table)
    assert len(keys("fig4")) == 11 and len(set(keys("fig4")) & set(table)) == 1, (
        "beta = 0.5 is the run of Table 1"
    )
    assert {e.method.get("beta") for e in keys("fig4").values()} == {None, *paper.BETAS} - {0.5}
    for e in table.values():
        if e.method["name"] == "q_ffl":
            assert e.method["q"] == 10


def test_studies_change_one_thing_each():
    table = {r.experiment.key for r in papers.get("grp_fed/table1").runs("laptop")}
    for id in ("printed", "weights", "choices", "adaptive", "split", "longer", "fig4_own"):
        spec = papers.get(f"grp_fed/{id}")
        assert spec.built == "yes" and spec.kind == "study"
        for r in spec.runs("laptop"):
            assert (r.experiment.key in table) != bool(r.row["on"]), (
                "without the change it is the run of Table 1"
            )
            method = r.experiment.build_method()
            if r.row["change"] == "as_printed" and r.row["on"]:
                assert method.weigh[0].q == 10 and method.personal.start == "own"
    own = {r.row["beta"]: r.experiment.key for r in papers.get("grp_fed/fig4_own").runs("laptop")}
    printed = papers.get("grp_fed/printed").runs("laptop")
    assert own[0.5] in {r.experiment.key for r in printed if r.row["change"] == "own_start"}, (
        "the same run"
    )


@pytest.mark.parametrize(
    "id",
    "fig1 fig3 fig4 fig5 fig4_own printed weights choices adaptive longer".split(),
)
def test_figures_are_drawn_from_results(id):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    spec = papers.get(f"grp_fed/{id}")
    scores = {"t_g": 0.5, "t_p": 0.7, "t_r": 0.4, "t_l": 0.5, "effective_clients": 2.0}
    counts = [[30, 2, i] for i in range(1, 9)]
    local = {
        **scores,
        "near": {"client": 1, **scores},
        "far": {"client": 7, **scores},
        "class_counts": counts,
    }
    curves = {"global_loss_mean": [1.0, 0.5], "global_loss_max": [2.0, 1.5]}
    measured = {
        "local": local,
        "rounds": [1, 2],
        "curves": curves,
        "clients": {"f1": [0.2, 0.9, None]},
    }
    runs = [dataclasses.replace(r, result={"metrics": measured}) for r in spec.runs("smoke")]
    fig, alt = spec.plot(spec, runs)
    panels = {
        "fig1": 3,
        "fig3": 2,
        "fig4": 1,
        "fig5": 2,
        "fig4_own": 1,
        "printed": 3,
        "weights": 2,
        "choices": 2,
        "adaptive": 1,
        "longer": 3,
    }
    assert len(fig.axes) == panels[id] and alt.endswith(".") and len(alt) > 60
    assert "not comparable" in fig.get_suptitle()
    plt.close(fig)


def test_a_run_keeps_effective_clients_and_powers_over_time():
    beats = {"name": "ecg_offline", "patients": 4, "beats": 20, "length": 30}
    model = {"name": "ecg_resnet", "width": 4, "norm": "group", "hidden": 4}
    method = {"name": "grp_fed", "q": 10.0, "epochs": 1, "batch_size": 16, "lr": 0.01}
    e = Experiment(
        dataset=beats,
        partition={"name": "by_group", "test": "domain"},
        model=model,
        method=method,
        rounds=4,
        evaluate_every=2,
        measures=({"name": "local_tests"},),
    )
    curves = e.run()["metrics"]["curves"]
    assert len(curves["q"]) == len(curves["effective_clients"]) == 2
    assert all(1 <= n <= 4 for n in curves["effective_clients"]) and abs(curves["q"][-1] - 10) <= 3
    plain = dataclasses.replace(e, method={"name": "fedavg", "lr": 0.01})
    assert "q" not in plain.run()["metrics"]["curves"]


def test_runs_with_one_global_model_give_the_same_together_as_alone():
    """beta, the start and the discriminator are no matter of the global model; q is."""
    beats = {"name": "ecg_offline", "patients": 4, "beats": 60, "length": 30}
    quick = {"name": "grp_fed", "epochs": 2, "batch_size": 8, "lr": 0.05, "q": 0.5}
    quick["participation"] = 3
    changes = ({"beta": 0.2}, {"start": "received"}, {"hidden": 8, "beta": 0.9})
    runs = []
    for change in ({}, *changes, {"q": 2.0}):
        e = Experiment(
            dataset=beats,
            partition={"name": "by_group", "test": "domain"},
            model={"name": "ecg_resnet", "width": 4, "norm": "group", "hidden": 4},
            method=quick | change,
            rounds=4,
            evaluate_every=2,
            measures=({"name": "local_tests"}, {"name": "global_losses"}),
        )
        runs.append(("grp_fed/fig4", e))
    *same_global, other = runs
    assert together(runs) == [same_global, [other]]
    assert [len(g) for g in together(same_global * 2)] == [6, 2]
    alone = [e.run() for _, e in same_global]
    assert len({json.dumps(r["metrics"]["local"]) for r in alone}) == 4
    for one, line in zip(alone, run_together([e for _, e in same_global])):
        assert _outcome(one["metrics"]) == _outcome(line["metrics"])
        assert one["config"] == line["config"] and one["method"] == line["method"]
        assert line["together"] == 4


def test_personal_models_that_have_a_say_in_the_global_one_are_trained_alone():
    spec = papers.get("grp_fed/table1").runs("smoke")
    sharing = {r.row.method for r in spec if alike(r.experiment) != r.experiment.key}
    assert sharing == {"grp_fed"}


@pytest.mark.parametrize("dataset", ["mit_bih", "cifar10"])
def test_every_method_survives_the_smoke_settings(dataset):
    for r in papers.get("grp_fed/table1").runs("smoke"):
        if r.row["dataset"] == dataset:
            found = dataclasses.replace(r.experiment, rounds=2, evaluate_every=2).run()["metrics"][
                "local"
            ]
            assert 0 <= found["t_g"] <= 1 and 0 <= found["t_l"] <= 1, r.row.method
