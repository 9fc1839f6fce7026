"""FGPT: weights group by group by hand, what stays where it is, its reductions and variants, and
clients never seen."""

import copy
import dataclasses
import math

import pytest
import torch
from helpers import only, same, vit
from helpers import run as run_method
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedbook import FedbookError, methods, models, papers, simulate
from fedbook.experiment import alike, run_together
from fedbook.methods.fedmix import MeanMixup
from fedbook.methods.fgpt import AveragedKeys, GroupCounts, effective
from fedbook.methods.pt_fedavg import PromptSimilarity, mean_cosine
from fedbook.models.backbones import Prepare
from fedbook.models.prompts import FGPT, Selector, vpt
from fedbook.results import _outcome
from fedbook.rounds import Report, evaluate
from fedbook.rounds.weights import Weights

LOCAL = {"epochs": 1, "batch_size": 8, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}


def build(federation, name="fgpt", **options):
    usual = {"groups": 6, "layer": 2, "centre": True} if name == "fgpt" else {}
    return models.build(name, federation, seed=3, backbone=vit(), **(usual | options))


def run(federation, rounds=1, model=None, name="fgpt", *, checkpoint=None, **options):
    method = methods.get(name, **(LOCAL | options))
    return run_method(method, federation, rounds, model or build(federation), checkpoint=checkpoint)


def state(model):
    return {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}


def counted(model, federation, client):
    chosen = model.select(model.query(federation.inputs(client.train)))[:, 0]
    return torch.bincount(chosen, minlength=len(model.groups))


def report(id, size, counts, **values):
    return Report(id=id, size=size, values={"counts": torch.tensor(counts), **values})


# -- Algorithm 1, line 19 --------------------------------------------------------------------------
def test_weights_by_hand():
    stage = GroupCounts()
    reports = [report(3, 30, [20, 10, 0]), report(8, 10, [0, 10, 0])]
    scores, state = stage({"total": [0, 0, 1]}, reports)
    w = Weights(scores, [3, 8])
    assert w.default == pytest.approx([0.75, 0.25])  # alpha
    assert [w.of("groups.0", k) for k in (0, 1)] == [1.0, 0.0]
    assert [w.of("groups.1", k) for k in (0, 1)] == pytest.approx([0.5, 0.5])
    assert w.kept("groups.2") and not w.kept("groups.1") and not w.kept("prompts.1")
    assert state["log"] == {
        "usage": [20, 20, 0],
        "total": [20, 20, 1],
        "effective": effective([20, 20, 1]),
    }
    assert effective([7, 7, 0, 7]) == pytest.approx(3) and effective([0, 5]) == 1


def test_the_successors_threshold_weighs_alike_in_small_groups():
    scores, _ = GroupCounts(threshold=20)(
        {"total": [0] * 4}, [report(0, 9, [20, 9, 0, 7]), report(1, 9, [0, 12, 0, 0])]
    )
    w = Weights(scores, [0, 1])
    assert [w.of(f"groups.{g}", 0) for g in range(4)] == pytest.approx([0.5, 9 / 21, 0, 0.5])
    assert w.kept("groups.2")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), min_size=5, max_size=5), min_size=1, max_size=6))
def test_beta_sums_to_one_for_every_group_in_use(counts):
    reports = [report(i, 1 + sum(c), c) for i, c in enumerate(counts)]
    w = Weights(GroupCounts()({"total": [0] * 5}, reports)[0], range(len(counts)))
    for g, used in enumerate(map(sum, zip(*counts))):
        assert w.kept(f"groups.{g}") == (used == 0)
        assert sum(w.of(f"groups.{g}", k) for k in range(len(counts))) == pytest.approx(
            1 if used else 0
        )


def test_two_clients_are_averaged_group_by_group(images):
    """Each client alone gives W_i (the server of one client has its model); both together are the
    weighted sums.
    """
    both = dataclasses.replace(
        images,
        clients=(
            images.clients[0],
            dataclasses.replace(images.clients[4], train=images.clients[4].train[:6]),
        ),
    )
    model = build(both)
    start, n = state(model), torch.stack([counted(model, both, c) for c in both.clients]).double()
    assert (n.sum(0) == 0).any() and ((n > 0).sum(0) == 2).any() and ((n > 0).sum(0) == 1).any()
    alone = [run(only(both, i), model=copy.deepcopy(model)).params for i in (0, 1)]
    got = run(both, model=model).params
    for name, p in got.items():
        if name.startswith("groups."):
            g = int(name.split(".")[1])
            if n[:, g].sum() == 0:
                assert torch.equal(p, start[name])
                continue
            weight = (n[:, g] / n[:, g].sum()).tolist()
        else:
            weight = [16 / 22, 6 / 22]
        assert torch.allclose(p, sum(w * a[name] for w, a in zip(weight, alone)), atol=1e-6), name


def test_prompts_nobody_selects_feel_neither_momentum_nor_decay(images):
    for base in ("pt_fedavg", "fedmix"):
        model, alone = build(images), only(images, 2, 5)
        start, used = state(model), counted(model, images, alone.clients[0])
        done = run(alone, 3, model, base=base, epochs=2, batch_size=2)
        moved = [
            not torch.equal(done.params[f"groups.{g}"], start[f"groups.{g}"]) for g in range(6)
        ]
        assert moved == (used > 0).tolist() and 0 < sum(moved) < 6


def test_one_group_is_pt_fedavg_with_a_prompt_at_layer_u(images):
    plain, grouped = build(images, "vpt", extra=1, layer=2), build(images, groups=1, centre=False)
    same = {
        "groups.0": plain.prompts["2"][0],
        "prompts.1": plain.prompts["1"],
    } | plain.head.state_dict(prefix="head.")
    grouped.load_state_dict(same, strict=False)
    a = run(images, 3, plain, "pt_fedavg", participation=3)
    b = run(images, 3, grouped, participation=3)
    assert torch.allclose(a.params["prompts.2"][0], b.params["groups.0"], atol=1e-6)
    for name in ("prompts.1", "head.weight", "head.bias"):
        assert torch.allclose(a.params[name], b.params[name], atol=1e-6)
    assert not torch.allclose(a.params["prompts.2"], plain.prompts["2"].new_zeros(1, 12), atol=1e-3)


def test_fgpt_u_differs_only_when_tested(images):
    one, many = (run(images, 2, build(images, top_k=k)) for k in (1, 3))
    assert same(one, many)
    assert one.records[-1].test_loss != many.records[-1].test_loss


# -- what travels, what is logged, what is computed ------------------------------------------------
def test_usage_is_logged_and_counts_travel(images):
    model = build(images)
    n = {c.id: counted(model, images, c) for c in images.clients}
    done = run(images, 2, model, participation=2)
    total = torch.zeros(6, dtype=torch.int64)
    size = 4 * (5 * 12 + 6 * 12 + 12 * 4 + 4)
    for r in done.records:
        usage = sum(n[i] for i in r.participants)
        total += usage
        assert r.log["usage"] == usage.tolist() and sum(r.log["usage"]) == 32
        assert r.log["total"] == total.tolist() and 1 < r.log["effective"] <= 6
        assert r.bytes_down == 2 * size and r.bytes_up == 2 * (size + 8 + 6 * 8)
    assert set(done.params) == {
        "prompts.1",
        "head.weight",
        "head.bias",
        *(f"groups.{g}" for g in range(6)),
    }


def test_the_query_is_computed_once(images):
    method = methods.get("fgpt", **LOCAL, participation=2)
    sim = simulate(method, images, build(images), 2, device="cpu", quiet=True)
    seen = []
    sim.model.backbone.patch_embed.register_forward_hook(
        lambda _, inputs, __: seen.append(len(inputs[0]))
    )
    sim.run()
    assert sum(seen) == 2 * (
        2 * 16 + 6 * 8
    )  # two rounds of two clients' training images and everybody's tests


def test_similarities_by_hand():
    e = torch.eye(3)
    assert mean_cosine(torch.stack([e[0], 2 * e[1], 3 * e[0]])) == pytest.approx(1 / 3)
    server = {
        "prompts.1": torch.zeros(2, 3),
        "groups.0": e[0],
        "groups.1": e[1],
        "groups.2": e[2],
        "head.bias": e[0],
    }
    one = {**server, "prompts.1": torch.stack([e[0], e[1]]), "groups.0": e[1]}
    two = {
        **server,
        "prompts.1": torch.stack([e[0], e[0]]),
        "groups.0": e[1] + e[2],
        "groups.1": e[0],
    }
    mean = {**server, "groups.0": e[1], "groups.1": e[1]}
    reports = []
    for i, upload in enumerate((one, two)):
        reports.append(Report(id=i, size=5, values={"upload": upload}))
    updated, state = PromptSimilarity()({}, server, mean, reports)
    assert updated is mean
    assert state["log"] == {
        "shared_prompt_similarity": pytest.approx(0.5),  # cosines 1 and 0
        "group_prompt_similarity_local": pytest.approx(
            1 / math.sqrt(2)
        ),  # group 0; nobody else changed 1 and 2
        "group_prompt_similarity_global": pytest.approx(
            1 / 3
        ),  # of the pairs only (0, 1) is parallel
    }


def test_table_11_is_logged_where_there_are_prompts(images):
    shared, local, between = (
        "shared_prompt_similarity",
        "group_prompt_similarity_local",
        "group_prompt_similarity_global",
    )

    def logged(**options):
        return {k for k in run(images, **options).records[0].log if "similarity" in k}

    assert logged(model=build(images, "vpt"), name="pt_fedavg") == {shared}
    assert logged(model=build(images, "vpt", extra=1, layer=2), name="pt_fedavg") == {shared, local}
    assert logged() == {shared, local, between}
    assert logged(participation=1) == {between}
    assert logged(model=build(images, "linear_probe"), name="pt_fedavg") == set()


def test_a_resumed_run_ends_with_the_same_bits(images, tmp_path):
    options = LOCAL | {"participation": 3, "pull": 1.0}
    straight = run(images, 4, build(images, learn_keys=True), **options)
    for rounds in (2, 4):
        model = build(images, learn_keys=True)
        again = run(images, rounds, model, checkpoint=tmp_path / "run", **options)
    assert same(straight, again)
    assert [r.log for r in straight.records] == [r.log for r in again.records]


def test_training_learns(images):
    done = run(images, 6, epochs=2, weight_decay=1e-5)
    assert sum(done.records[-1].test_loss) < 0.97 * sum(done.records[0].test_loss)


# -- variants --------------------------------------------------------------------------------------
def test_the_prompted_query_is_that_of_shared_prompts_alone(images):
    m, x = build(images, prompted_query=True, centre=False), images.inputs(torch.arange(9))
    plain = vpt(4, m.backbone, prompts=5)
    plain.prompts["1"].data = m.prompts["1"].data
    assert torch.allclose(m.query(x), plain.embed(x), atol=1e-5) and not m.query(x).requires_grad
    assert not torch.allclose(m.query(x), m.frozen_cls(x), atol=1e-2)
    assert m.precompute(images) == {}
    done = run(images, 2, m)
    assert sum(done.records[-1].log["usage"]) == 96


class Pooled(nn.Module):
    """A selector's network: seven features of an image."""

    num_features = 7

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 7, 3), nn.BatchNorm2d(7)

    def forward(self, x):
        return self.norm(self.conv(x)).mean((2, 3))


def test_a_selector_replaces_the_encoder_in_the_query_only(images):
    torch.manual_seed(0)
    net = Pooled()
    m = build(images, selector=Selector(net, Prepare(16)))
    assert m.keys.shape == (6, 7) and m.train() and not net.norm.training
    x = images.inputs(torch.arange(5))
    larger = nn.functional.interpolate(x, size=(16, 16), mode="bicubic", antialias=True)
    assert torch.allclose(m.query(x), net(larger)) and torch.allclose(
        m.precompute(images)["cls"][:5], net(larger)
    )
    train = torch.cat([c.train for c in images.clients])
    assert torch.allclose(m.centre, m.precompute(images)["cls"][train].mean(0), atol=1e-5)
    before = copy.deepcopy(net.state_dict())
    done = run(images, 1, m)
    assert set(done.params) == {
        "prompts.1",
        "head.weight",
        "head.bias",
        *(f"groups.{g}" for g in range(6)),
    }
    assert same(dict(net.state_dict()), dict(before))
    assert (
        done.records[0].log["usage"] == sum(counted(m, images, c) for c in images.clients).tolist()
    )
    with pytest.raises(FedbookError, match="choose one"):
        build(images, selector=Selector(net), prompted_query=True)


def test_an_oracles_keys_are_mean_queries(images):
    """By hand: unit queries of the training images, averaged by type; as many groups as classes
    leave every class its own mean.
    """
    plain = build(images, centre=False)
    query = nn.functional.normalize(plain.precompute(images)["cls"], dim=1)
    kinds = sorted({c.type for c in images.clients})
    told = build(images, keys="types", groups=len(kinds), centre=False)
    for key, kind in zip(told.keys, kinds):
        own = torch.cat([c.train for c in images.clients if c.type == kind])
        assert torch.allclose(key, query[own].mean(0), atol=1e-6)
    train = torch.cat([c.train for c in images.clients])
    present = images.y[train].unique()
    told = build(images, keys="classes", groups=len(present), centre=False)
    for key, y in zip(told.keys, present):
        assert torch.allclose(key, query[train[images.y[train] == y]].mean(0), atol=1e-6)
    fewer = build(images, keys="classes", groups=2, centre=False)
    shares = [(told.keys[:, None] - fewer.keys).norm(dim=2).argmin(1) == g for g in (0, 1)]
    assert all(
        torch.allclose(k, told.keys[s].mean(0), atol=1e-6) for k, s in zip(fewer.keys, shares)
    )
    with pytest.raises(FedbookError, match=f"keys must be 9 x .*, got .{len(kinds)}"):
        build(images, keys="types", groups=9)
    with pytest.raises(FedbookError, match="an oracle's keys need the clients' images"):
        models.build("fgpt", 10, backbone=vit(), keys="types")


def test_the_light_selector_is_efficientnet_lite0(images):
    m = build(images, selector="light", centre=False).train()
    assert (
        m.keys.shape == (6, 1280)
        and m.selector.prepare.size == 128
        and not m.selector.network.training
    )
    q = m.query(images.inputs(torch.arange(3)))
    assert q.shape == (3, 1280) and float(q.std(0).mean()) > 0.01
    with pytest.raises(FedbookError, match="unknown selector 'heavy'"):
        build(images, selector="heavy", centre=False)


def test_fedmix_inside_fgpt(images, monkeypatch):
    method = methods.get("fgpt", base="fedmix", lam=0.1, **LOCAL)
    assert (
        method.name == "fgpt"
        and method.objective == (MeanMixup(0.1),)
        and method.weigh == (GroupCounts(),)
    )
    a, b = run(images, 2), run(images, 2, base="fedmix", lam=0.0)
    assert all(torch.allclose(a.params[n], b.params[n], atol=1e-5) for n in a.params)

    asked = []
    plain = FGPT.query
    monkeypatch.setattr(
        FGPT,
        "query",
        lambda self, x, cls=None, tokens=None: asked.append(cls) or plain(self, x, cls),
    )
    mixed = run(images, 1, base="fedmix", lam=0.3)
    assert asked and all(
        cls is not None for cls in asked
    )  # groups are chosen by the images, not by (1 - lam) x
    assert any(not torch.allclose(a.params[n], mixed.params[n], atol=1e-4) for n in a.params)


def test_learned_keys_move_half_way_to_their_own_mean():
    old = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    sent = [torch.tensor([[0.0, 2.0], [9.0, 9.0]]), torch.tensor([[4.0, 6.0], [9.0, 9.0]])]
    reports = [
        report(i, 5, c, upload={"keys": k}) for i, (c, k) in enumerate(zip(([3, 0], [1, 0]), sent))
    ]
    updated, _ = AveragedKeys(0.5)({}, {"keys": old}, {"keys": old * 7}, reports)
    assert torch.allclose(
        updated["keys"], torch.tensor([[1.0, 1.5], [0.0, 1.0]])
    )  # mean (1, 3), then half way


def test_the_successors_threshold_holds_for_its_keys_too():
    """xcheck B2: group 0 was selected 4 times, not more than the threshold, so both clients' keys
    count alike: (2, 4), half way from (1, 0). Group 1, selected 10 times, goes by counts 9 : 1.
    """
    old = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    sent = [torch.tensor([[0.0, 2.0], [1.0, 0.0]]), torch.tensor([[4.0, 6.0], [0.0, 1.0]])]
    reports = []
    for i, (counts, keys) in enumerate(zip(([3, 9], [1, 1]), sent)):
        reports.append(report(i, 5, counts, upload={"keys": keys}))
    updated, _ = AveragedKeys(0.5, threshold=4)({}, {"keys": old}, {"keys": old}, reports)
    assert torch.allclose(updated["keys"], torch.tensor([[1.5, 2.0], [0.45, 0.55]]))
    method = methods.get("fgpt", pull=1.0, threshold=50, key_ema=0.3)
    assert method.update.threshold == method.weigh[0].threshold == 50
    assert method.update.ema == 0.3


def test_the_successors_keys_are_learned_where_they_are_used(images):
    model, alone = build(images, learn_keys=True), only(images, 1, 5)
    start, used = state(model)["keys"], counted(model, images, alone.clients[0]) > 0
    done = run(alone, 1, model, pull=1.0)
    assert ((done.params["keys"] != start).any(1) == used).all() and 0 < used.sum() < 6
    with pytest.raises(FedbookError, match="learn_keys=True"):
        run(images, pull=1.0)


def test_mistakes_are_named(images):
    with pytest.raises(FedbookError, match="group prompts was expected, got PromptedViT"):
        run(images, model=build(images, "vpt"))
    with pytest.raises(FedbookError, match="q_ffl weighs them too"):
        methods.get("fgpt", base="q_ffl")
    with pytest.raises(FedbookError, match="the model's"):
        methods.get("fgpt", groups=20)


# -- clients never seen ----------------------------------------------------------------------------
def test_clients_never_drawn_are_served_without_fine_tuning(images):
    seen, unseen = images.split_clients(2, seed=0)
    done = run(seen, 2)
    held = {c.id for c in unseen.clients}
    assert len(held) == 2 and not any(held & set(r.participants) for r in done.records)
    before = state(done.model)
    scores = evaluate(done.model, unseen, device="cpu")
    assert all(torch.equal(p, before[n]) for n, p in state(done.model).items())
    for c, acc in zip(unseen.clients, scores.acc):
        with torch.no_grad():
            guess = done.model.eval()(images.inputs(c.test)).argmax(1)
        assert acc == pytest.approx(float((guess == images.y[c.test]).double().mean()))


# -- the tables ------------------------------------------------------------------------------------
TABLES = [f"fgpt/table{n}" for n in (1, 3, 4, 6, 7, 8, 9, 11)]


@pytest.mark.parametrize("id", TABLES)
def test_every_row_is_a_run(id):
    spec = papers.get(id)
    assert spec.built == "yes"
    for row in spec.rows:
        e = spec.experiment(row, "paper", 0)
        assert e is not None, row
        e.build_method()
        assert e.method["epochs"] == (row["local_epochs"] or 5)


def test_rows_of_several_tables_share_their_runs():
    def keys(id, scale="laptop", **settings):
        spec = papers.get(id)
        rows = [
            r
            for r in spec.rows
            if r.metric == "accuracy" and all(r[k] == v for k, v in settings.items())
        ]
        return {r.method: e.key for r in rows if (e := spec.experiment(r, scale, 0)) is not None}

    for scale in ("laptop", "paper"):
        main = keys("fgpt/table1", scale, dataset="cifar100", s=10)
        assert main["fgpt"] == keys("fgpt/table6", scale, dataset="cifar100", top_k=1)["fgpt"]
        assert main["fgpt_u"] == keys("fgpt/table6", scale, dataset="cifar100", top_k=5)["fgpt_u"]
        assert main["fgpt"] == keys("fgpt/table3", scale, s=10, num_groups=20)["fgpt"]
        assert main == keys("fgpt/table8", scale, s=10, local_epochs=5)
        two = keys("fgpt/table8", scale, s=10, local_epochs=2)
        similar = keys("fgpt/table11", scale)
        assert not set(two.values()) & set(main.values())
        assert all(similar[m] == two[m] for m in ("fgpt", "pt_fedavg", "fed_dualprompt"))
        assert similar["pt_fedavg_share"] not in two.values()
        few = keys("fgpt/table1", scale, dataset="cifar100", s=5)
        assert few["fgpt"] == keys("fgpt/table3", scale, s=5, num_groups=25)["fgpt"]


def test_one_training_serves_every_number_of_groups_asked_when_tested():
    """Table 6's rows with U = 1, 2, 5 differ only when tested, so they are trained once."""
    runs = [r.experiment for r in papers.get("fgpt/table6").runs("smoke")]
    few = runs[0].partition | {"clients": 6, "limit": [20, 20]}
    asked = [dataclasses.replace(e, partition=few, rounds=3, evaluate_every=2) for e in runs]
    assert len({alike(e) for e in asked}) == 1 and len(asked) == 3
    alone = [e.run() for e in asked]
    assert len({str(r["metrics"]["curves"]["avg_client"]) for r in alone}) == 3
    for one, line in zip(alone, run_together(asked)):
        assert _outcome(one["metrics"]) == _outcome(line["metrics"])
        assert one["config"] == line["config"] and one["data"] == line["data"]
    other = dataclasses.replace(asked[0], model=asked[0].model | {"groups": 7})
    assert alike(other) != alike(asked[0])
