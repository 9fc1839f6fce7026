"""The prompted ViT: what must hold exactly, whatever the weights are."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from helpers import run, traffic
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.models.vision_transformer import VisionTransformer

from fedbook import methods, simulate
from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.models import build
from fedbook.models.backbones import in_bfloat16
from fedbook.models.prompts import (
    BUILDERS,
    FGPT,
    FedGC,
    PromptedViT,
    fgpt,
    linear_probe,
    make_keys,
    middle,
    vpt,
)

CLASSES = 3
TINY = dict(img_size=16, patch_size=8, embed_dim=24, depth=4, num_heads=3, num_classes=0)


def vit(**changes) -> VisionTransformer:
    torch.manual_seed(0)
    network = VisionTransformer(**{**TINY, **changes})
    for p in (
        network.parameters()
    ):  # away from timm's near-identity start, so that every part of the network matters
        torch.nn.init.normal_(p, std=0.3)
    return network.double()


@pytest.fixture
def net() -> VisionTransformer:
    return vit()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(
        6, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )


def model(kind, net, *args, **options):
    torch.manual_seed(2)
    return kind(net, CLASSES, *args, **options).double()


def grouped(net, x, *args, **options):
    """FGPT whose queries are centred, so that the samples of x spread over several groups."""
    m = model(FGPT, net, *args, centre=net(x).mean(0), **options)
    assert len(m.select(net(x)).unique()) > 1
    return m


def same(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-10) -> bool:
    return a.shape == b.shape and float((a - b).detach().abs().max()) < tolerance


def trainable(m: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {n: p for n, p in m.named_parameters() if p.requires_grad}


def by_hand(net, x, inserts, replace=False):
    """The definition, one timm block after the other, prompts between CLS and patches."""
    t = net._pos_embed(net.patch_embed(x))
    inside = 0
    for layer, block in enumerate(net.blocks, 1):
        if layer in inserts:
            p = inserts[layer].expand(len(x), -1, -1)
            t = torch.cat([t[:, :1], p, t[:, 1 + inside :] if replace else t[:, 1:]], 1)
            inside = p.shape[1] if replace else inside + p.shape[1]
        t = block(t)
    return net.norm(t)[:, 0]


# -- the encoder -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pre_norm": True},
        {"init_values": 0.1},
        {"reg_tokens": 2, "no_embed_class": True},
        {"fc_norm": True},
        {"global_pool": "avg"},
        {"class_token": False, "global_pool": "avg"},
        {"global_pool": "map"},
        {"qk_norm": True},
        {"block_fn": "parallel"},
    ],
    ids=str,
)
def test_without_prompts_it_is_timms_own_forward(changes, x):
    if "block_fn" in changes:
        from timm.models.vision_transformer import ParallelThingsBlock

        changes = {"block_fn": ParallelThingsBlock}
    net = vit(**changes)
    m = model(PromptedViT, net)
    expected = net(x)
    assert same(m.embed(x), expected)
    assert same(m.frozen_cls(x), expected)
    assert set(trainable(m)) == {"head.weight", "head.bias"}


def test_prompts_enter_where_they_should(net, x):
    for inserts in ({1: 5}, {3: 2}, {1: 5, 2: 1}, {1: 1, 4: 3}):
        m = model(PromptedViT, net, inserts)
        assert same(m.embed(x), by_hand(net, x, {k: m.prompts[str(k)] for k in inserts}))


def test_deep_prompts_replace_those_of_the_layer_before(net, x):
    m = vpt(CLASSES, net, prompts=2, deep=True).double()
    assert sorted(m.prompts) == ["1", "2", "3", "4"]
    assert same(
        m.embed(x), by_hand(net, x, {int(k): p for k, p in m.prompts.items()}, replace=True)
    )


def test_deep_prompts_of_eleven_layers_come_in_order(x):
    net = vit(depth=11)
    m = vpt(CLASSES, net, prompts=1, deep=True).double()
    assert same(
        m.embed(x), by_hand(net, x, {k: m.prompts[str(k)] for k in range(1, 12)}, replace=True)
    )


def test_average_pooling_leaves_prompts_out(x):
    net = vit(global_pool="avg")
    m = model(PromptedViT, net, {1: 3})
    t = torch.cat([net._pos_embed(net.patch_embed(x)), m.prompts["1"].expand(6, -1, -1)], 1)
    assert same(m.embed(x), net.fc_norm(net.blocks(t)[:, 1:5].mean(1)))


@given(st.permutations(range(5)))
@settings(max_examples=10, deadline=None)
def test_order_of_prompts_does_not_matter(order):
    m, x = model(FedGC, vit(), 5), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    z = m.embed(x)
    m.prompts["1"].data = m.prompts["1"].data[list(order)]
    assert same(m.embed(x), z)


@pytest.mark.parametrize("kind", ["vpt", "vpt_deep", "fedgc", "fgpt"])
def test_a_sample_is_the_same_alone_and_in_a_batch(kind, net, x):
    torch.manual_seed(0)
    m = BUILDERS[kind](CLASSES, net).double().eval()
    z = m.embed(x)
    assert all(same(m.embed(x[i : i + 1]), z[i : i + 1]) for i in range(len(x)))
    other = x.clone()
    other[1:] = other[1:].flip(0) * 3
    assert torch.equal(m.embed(other)[0], z[0])  # bit for bit, whoever else is in the batch


@pytest.mark.parametrize("kind", list(BUILDERS))
def test_gradients_reach_only_prompts_gc_net_and_head(kind, net, x):
    m = BUILDERS[kind](CLASSES, net).double().train()
    F.cross_entropy(m(x), torch.tensor([0, 1, 2, 0, 1, 2])).backward()
    reached = {n for n, p in m.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert not any(n.startswith("backbone") for n in reached)
    assert {n.split(".")[0] for n in reached} == {
        "linear_probe": {"head"},
        "vpt": {"prompts", "head"},
        "vpt_deep": {"prompts", "head"},
        "fedgc": {"prompts", "gc_net", "head"},
        "fgpt": {"prompts", "groups", "head"},
    }[kind]
    if kind != "fgpt":
        assert reached == set(trainable(m))


def test_gradient_matches_finite_differences(net, x):
    m = model(FedGC, net, 2, width=5)
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    F.cross_entropy(m(x), y).backward()
    for p in trainable(m).values():
        step = torch.zeros_like(p)
        step.flatten()[0] = 1e-6
        with torch.no_grad():
            p += step
            up = F.cross_entropy(m(x), y)
            p -= 2 * step
            down = F.cross_entropy(m(x), y)
            p += step
        assert float((up - down) / 2e-6) == pytest.approx(float(p.grad.flatten()[0]), abs=1e-7)


def test_backbone_never_trains(net):
    net = vit(drop_path_rate=0.5, proj_drop_rate=0.5)
    m = model(PromptedViT, net, {1: 2}).train()
    assert m.training and m.head.training and not any(b.training for b in m.backbone.modules())
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    assert torch.equal(m.embed(x), m.embed(x))


def test_dropout_acts_on_the_feature_in_training_only(net, x):
    """z itself is dropped, so that every term of the objective feels it (xcheck A4; it used to be
    the head's own input, which l_RA never saw).
    """
    m = model(PromptedViT, net, {1: 2}, dropout=0.5)
    z = m.eval().embed(x)
    dropped = m.train().embed(x)
    assert all(
        v == 0 or math.isclose(v, 2 * w, rel_tol=1e-9)
        for v, w in zip(dropped.flatten().tolist(), z.flatten().tolist())
    )
    assert (dropped == 0).any() and (dropped != 0).any()
    assert same(m.head(z), F.linear(z, m.head.weight, m.head.bias))


def test_initialisation(net):
    v = math.sqrt(6 / (3 * 8**2 + 24))
    p = model(PromptedViT, net, {1: 2000}).prompts["1"].detach()
    assert float(p.abs().max()) <= v and float(p.std()) == pytest.approx(v / math.sqrt(3), rel=0.02)
    p = model(FedGC, net, 2000).prompts["1"].detach()
    assert float(p.std()) == pytest.approx(0.02, rel=0.02) and abs(float(p.mean())) < 1e-3


# -- FedGC -----------------------------------------------------------------------------------------
def test_gc_net_of_zero_is_vpt_with_the_same_prompts(net, x):
    gc, plain = model(FedGC, net, 4), model(PromptedViT, net, {1: 4})
    plain.load_state_dict({k: v for k, v in gc.state_dict().items() if not k.startswith("gc_net")})
    assert not same(gc(x), plain(x))
    for p in gc.gc_net[2].parameters():
        p.data.zero_()
    assert torch.equal(gc(x), plain(x))


def test_every_prompt_is_shifted_by_the_images_own_h(net, x):
    m = model(FedGC, net, 3)
    h = m.gc_net(net(x))
    assert same(m.h(x), h)
    for i in range(len(x)):
        assert same(m.embed(x)[i : i + 1], by_hand(net, x[i : i + 1], {1: m.prompts["1"] + h[i]}))
    assert same(m.embed(x, h=h), m.embed(x)) and same(m.embed(x, cls=net(x)), m.embed(x))


def test_stage_one_has_no_gradient(net, x):
    m = model(FedGC, net, 3)
    x.requires_grad_()
    assert not m.frozen_cls(x).requires_grad
    assert (
        m.embed(x).sum().backward() is None and x.grad is not None
    )  # stage 2 still has one, with respect to the image


# -- FGPT ------------------------------------------------------------------------------------------
def test_keys_are_orthonormal_and_seeded():
    b = make_keys(20, 768, seed=3)
    assert float((b @ b.T - torch.eye(20)).abs().max()) < 1e-6
    assert torch.equal(b, make_keys(20, 768, seed=3)) and not torch.equal(
        b, make_keys(20, 768, seed=4)
    )
    r = make_keys(20, 768, "random", seed=3)
    assert float((r @ r.T / 768 - torch.eye(20)).abs().max()) > 1e-3
    assert (
        int((F.normalize(r) @ b.T).argmax(1).ne(torch.arange(20)).sum()) == 0
    )  # they point the same way


def test_more_groups_than_dimensions_is_an_error(net):
    with pytest.raises(
        FedbookError, match="25 orthogonal keys do not fit in 24 dimensions.*at most 24"
    ):
        FGPT(net, CLASSES, groups=25)
    assert len(FGPT(net, CLASSES, groups=24).groups) == 24


def test_selection_is_by_cosine(net):
    keys = torch.eye(24, dtype=torch.float64)[:3]
    m = model(FGPT, net, groups=3, keys=keys)
    q = torch.tensor([[1.0, 2.0, 0.5], [3.0, -1.0, 2.9], [-1.0, -3.0, -2.0]], dtype=torch.float64)
    q = F.pad(q, (0, 21))
    assert m.select(q, 3).tolist() == [[1, 0, 2], [0, 2, 1], [0, 2, 1]]
    assert same(
        m.similarity(q)[0], torch.tensor([1, 2, 0.5], dtype=torch.float64) / math.sqrt(5.25)
    )
    m.relu = True
    assert m.select(q)[:, 0].tolist() == [
        1,
        0,
        0,
    ]  # the third query is clipped to nothing: a tie, the lowest number
    m.relu, m.centre.data = False, q[0]
    assert m.select(q)[:, 0].tolist() == [0, 2, 0]  # of (0, 0, 0), (2, -3, 2.4) and (-2, -5, -2.5)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
@settings(max_examples=10, deadline=None)
def test_scaling_a_key_or_a_query_leaves_the_group(a, b):
    m = model(FGPT, vit(), groups=5)
    q = torch.randn(50, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    g = m.select(q)
    m.keys.data[2] *= a
    assert torch.equal(m.select(q * b), g)


def test_the_group_prompt_enters_at_layer_u(net, x):
    for u in (1, 2, 4):
        m = grouped(net, x, 3, groups=4, layer=u)
        g = m.select(net(x))[:, 0]
        for i in range(len(x)):
            p = m.groups[g[i]][None]
            inserts = {1: m.prompts["1"], u: p} if u > 1 else {1: torch.cat([m.prompts["1"], p])}
            assert same(m.embed(x)[i : i + 1], by_hand(net, x[i : i + 1], inserts))
    assert [middle(d) for d in (1, 4, 6, 12)] == [1, 2, 3, 6] and model(FGPT, net).layer == 2


def test_one_group_is_vpt_plus_a_prompt_at_layer_u(net, x):
    for u in (1, 2):
        m = model(FGPT, net, 5, groups=1, layer=u)
        plain = vpt(CLASSES, net, prompts=5, extra=1, layer=u).double()
        plain.head.load_state_dict(m.head.state_dict())
        if u == 1:
            plain.prompts["1"].data = torch.cat([m.prompts["1"], m.groups[0][None]]).data
        else:
            plain.prompts["1"].data, plain.prompts["2"].data = (
                m.prompts["1"].data,
                m.groups[0].data[None],
            )
        assert same(m(x), plain(x))


def test_ensemble_of_one_is_fgpt_and_training_never_ensembles(net, x):
    one, many = grouped(net, x, groups=4).eval(), grouped(net, x, groups=4, top_k=3).eval()
    assert not same(many(x), one(x))
    assert torch.equal(many.train()(x), one(x))
    many.top_k = 1
    assert torch.equal(many.eval()(x), one(x))


def test_ensemble_averages_logits_and_shares_the_prefix(net, x):
    m = grouped(net, x, 3, groups=4, top_k=3).eval()
    g = m.select(net(x), 3)
    logits = []
    for k in range(3):  # every group on its own, from the first layer on
        each = [
            by_hand(net, x[i : i + 1], {1: m.prompts["1"], 2: m.groups[g[i, k]][None]})
            for i in range(len(x))
        ]
        logits.append(m.head(torch.cat(each)))
    assert same(m(x), torch.stack(logits).mean(0))
    seen = []
    for i, block in enumerate(m.backbone.blocks[:3]):
        block.register_forward_hook(lambda _, inputs, __, i=i: seen.append((i, len(inputs[0]))))
    m(x, cls=net(x))
    assert seen[-3:] == [(0, 6), (1, 18), (2, 18)]


def test_ensemble_of_all_groups_does_not_depend_on_keys(net, x):
    m = grouped(net, x, groups=4, top_k=4).eval()
    before = m(x)
    m.keys.data = make_keys(4, 24, seed=99).double()
    assert same(m(x), before)


def test_relabelling_keys_with_prompts_changes_nothing(net, x):
    m = grouped(net, x, groups=4, top_k=2).eval()
    before, order = m(x), [2, 0, 3, 1]
    m.keys.data = m.keys.data[order]
    m.groups = torch.nn.ParameterList([m.groups[i] for i in order])
    assert same(m(x), before)


def test_unused_group_prompts_stay_where_they_are(net, x):
    m = grouped(net, x, groups=8).train()
    used = set(m.select(net(x))[:, 0].tolist())
    assert 0 < len(used) < 8
    before = copy.deepcopy(m.state_dict())
    optimizer = torch.optim.SGD(trainable(m).values(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(m(x), torch.tensor([0, 1, 2, 0, 1, 2])).backward()
        optimizer.step()
    for g, p in enumerate(m.groups):
        assert (p.grad is not None) == (g in used)
        assert torch.equal(p, before[f"groups.{g}"]) == (g not in used)


def test_keys_are_fixed_unless_learned(net, x):
    assert not model(FGPT, net).keys.requires_grad
    m = grouped(net, x, groups=4, learn_keys=True)
    q = net(x)
    (-m.similarity(q).amax(1).mean()).backward()  # the pull of DualPrompt
    pulled = m.keys.grad.abs().sum(1) > 0
    assert set(pulled.nonzero().flatten().tolist()) == set(m.select(q)[:, 0].tolist())


# -- sizes and names -------------------------------------------------------------------------------
def test_parameter_counts_at_vit_b_16_with_100_classes():
    with torch.device("meta"):
        base = VisionTransformer(
            img_size=224, patch_size=16, embed_dim=768, depth=12, num_heads=12, num_classes=0
        )

    def count(m, prefix=""):
        return sum(p.numel() for n, p in trainable(m).items() if n.startswith(prefix))

    assert count(linear_probe(100, base)) == 76_900
    assert count(vpt(100, base), "prompts") == 3_840 and count(vpt(100, base)) == 3_840 + 76_900
    assert count(fgpt(100, base)) == 3_840 + 15_360 + 76_900 == 96_100
    assert fgpt(100, base).layer == 6
    gc = BUILDERS["fedgc"](100, base)
    assert (count(gc, "gc_net"), count(gc, "prompts")) == (4_722_432, 3_072)
    assert count(gc) == 4_722_432 + 3_072 + 76_900


def images(shape=(3, 16, 16), n=12) -> Federation:
    x = torch.randint(
        0, 256, (n, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    y = torch.arange(n) % CLASSES
    return Federation.from_arrays([{"train": (x[:8], y[:8]), "test": (x[8:], y[8:])}])


def test_built_by_name(net):
    f, net = images(), net.float()
    for name in BUILDERS:
        a, b, c = (build(name, f, seed=s, backbone=net).state_dict() for s in (0, 0, 1))
        assert all(torch.equal(a[k], b[k]) for k in a)
        assert any(not torch.equal(a[k], c[k]) for k in a)


# -- PT-FedAvg -------------------------------------------------------------------------------------
def two_clients() -> Federation:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(20, 3, 16, 16, generator=g), torch.arange(20) % CLASSES
    halves = [
        {"train": (x[a : a + n], y[a : a + n]), "test": (x[:4], y[:4])}
        for a, n in ((0, 12), (12, 8))
    ]
    return Federation.from_arrays(halves)


def test_pt_fedavg_averages_prompts_and_head_and_nothing_else(net):
    f, net = two_clients(), net.float()
    method = methods.get("pt_fedavg", epochs=1, batch_size=50)
    assert (
        method.describe()["solve"] | {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5}
        == method.describe()["solve"]
    )
    m = build("vpt", f, backbone=net)
    start = copy.deepcopy(m)
    done = run(method, f, 1, m)
    sent = 4 * (5 * 24 + 24 * CLASSES + CLASSES)
    assert traffic(done) == [(2 * (sent + 8), 2 * sent)]
    mean: dict[str, torch.Tensor] = {}
    for c in f.clients:  # one full batch each: a single SGD step, by hand
        local = copy.deepcopy(start).train()
        optimizer = torch.optim.SGD(
            trainable(local).values(), lr=0.01, momentum=0.9, weight_decay=1e-5
        )
        F.cross_entropy(local(f.inputs(c.train)), f.y[c.train]).backward()
        optimizer.step()
        for n, p in trainable(local).items():
            mean[n] = mean.get(n, 0) + p.detach() * len(c.train) / 20
    for n, p in done.model.state_dict().items():
        expected = mean.get(n, start.state_dict()[n])
        assert same(p, expected, 1e-6) if n in mean else torch.equal(p, expected)
        assert (n in mean) == (not torch.equal(p, start.state_dict()[n]))


def test_pt_fedavg_with_a_prompt_at_layer_u_is_fgpt_with_one_group(net):
    f, net = two_clients(), net.float()
    a = build("vpt", f, backbone=net, extra=1)
    b = build("fgpt", f, backbone=net, groups=1)
    b.load_state_dict(
        {"groups.0": a.prompts["2"][0], "prompts.1": a.prompts["1"]}
        | a.head.state_dict(prefix="head."),
        strict=False,
    )
    method = methods.get("pt_fedavg", epochs=2, batch_size=5)
    a, b = (run(method, f, 2, m).model for m in (a, b))
    assert same(a.prompts["1"], b.prompts["1"], 1e-5) and same(a.prompts["2"][0], b.groups[0], 1e-5)
    assert same(a.head.weight, b.head.weight, 1e-5)


def test_no_prompts_is_linear_probing(net):
    f, net = two_clients(), net.float()
    a, b = build("vpt", f, backbone=net, prompts=0), build("linear_probe", f, backbone=net)
    b.load_state_dict(a.state_dict())
    a, b = (run(methods.get("pt_fedavg", epochs=1), f, 2, m).model for m in (a, b))
    assert torch.equal(a.head.weight, b.head.weight) and not a.prompts
    x = f.inputs(torch.arange(4))
    assert same(a(x), a.head(net(x)), 1e-5)


@pytest.mark.parametrize("name", list(BUILDERS))
def test_federated_training_with_the_cache_is_training_without(name, net, monkeypatch):
    f, net = two_clients(), net.float()
    results = []
    for cached in (True, False):
        m = build(name, f, backbone=net)
        if not cached:
            monkeypatch.setattr(type(m), "precompute", lambda self, federation: {})
        method = methods.get("pt_fedavg", epochs=1, batch_size=8)
        results.append(run(method, f, 2, m).model.state_dict())
    assert all(same(results[0][n], results[1][n], 1e-5) for n in results[0])


@pytest.mark.parametrize("size", [28, 64])
def test_the_default_backbone_reads_images_of_any_size(size):
    f = images((3, size, size))
    m = build("fedgc", f)
    assert m(f.inputs(torch.arange(4))).shape == (4, CLASSES)
    assert not any(p.requires_grad for p in m.backbone.parameters())


# -- frozen blocks in bfloat16 ---------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["vpt", "fedgc", "fgpt"])
def test_blocks_in_bfloat16_give_nearly_the_same_gradients_in_full_precision(kind):
    f = images((3, 32, 32))
    x, y = f.inputs(torch.arange(8)), f.y[:8]
    gradients = []
    for name in ("hybrid", "hybrid+bf16"):
        m = build(kind, f, backbone=name)
        F.cross_entropy(m(x), y).backward()
        found = {n: p.grad for n, p in trainable(m).items() if p.grad is not None}
        assert all(g.dtype == torch.float32 for g in found.values())
        gradients.append(found)
    assert {p.dtype for p in m.backbone.blocks.parameters()} == {torch.bfloat16}
    exact, rounded = gradients
    assert set(exact) == set(rounded)
    for n, g in exact.items():
        alike = F.cosine_similarity(g.double().flatten(), rounded[n].double().flatten(), 0)
        assert 0.98 < float(alike) < 1, n


def test_bfloat16_is_the_same_with_kept_tokens_and_in_timms_own_forward():
    f = images((3, 32, 32))
    m = build("fedgc", f, backbone="hybrid+bf16")
    kept = {k: v[:8] for k, v in m.precompute(f).items()}
    x = f.inputs(torch.arange(8))
    assert same(m(x, **kept), m(x), 1e-2) and m(x).dtype == torch.float32
    assert same(m.backbone(m.prepare(x)).float(), m.frozen_cls(x), 1e-1)


@pytest.mark.parametrize("changes", [{"global_pool": "map"}, {"fc_norm": True}, {"qk_norm": True}])
def test_every_kind_of_vit_can_have_bfloat16_blocks(changes, x):
    net = vit(**changes).float()
    exact = model(PromptedViT, net, {1: 2}).float()
    rounded = copy.deepcopy(exact)
    in_bfloat16(rounded.backbone)
    assert same(exact(x.float()), rounded(x.float()), 0.3)
    assert rounded(x.float()).dtype == torch.float32


@pytest.mark.parametrize("name", ["afl", "q_ffl", "term", "harmofl", "fedsam", "fedmix"])
def test_every_method_trains_through_bfloat16_blocks(name):
    f = images((3, 32, 32))
    m = build("vpt", f, backbone="hybrid+bf16")
    method = methods.get(name, epochs=1, batch_size=8)
    sim = simulate(method, f, m, rounds=1, quiet=True).run()
    assert not same(sim.model.head.weight, m.head.weight)


def test_both_engines_train_through_bfloat16_blocks():
    f = two_clients()
    found = {}
    for engine in ("loop", "lockstep"):
        m = build("fedgc", f, backbone="hybrid+bf16")
        method = methods.get("fedgcr", epochs=1, batch_size=8, clusters=2)
        sim = simulate(method, f, m, rounds=2, engine=engine, quiet=True)
        list(sim)
        found[engine] = trainable(sim.model)
    for n, p in found["loop"].items():
        assert same(p, found["lockstep"][n], 2e-2), n


# -- errors, other devices, paper scale ------------------------------------------------------------
def test_mistakes_are_named(net):
    with pytest.raises(
        FedbookError,
        match=r"images of 3 channels, the federation holds \(1, 28, 28\).*channels=3",
    ):
        vpt(images((1, 28, 28)), net)
    with pytest.raises(FedbookError, match="no layer 5 in a ViT of 4"):
        vpt(CLASSES, net, extra=1, layer=5)
    with pytest.raises(FedbookError, match="0 or more prompts"):
        vpt(CLASSES, net, prompts=-1)
    with pytest.raises(FedbookError, match="at least one"):
        FedGC(net, CLASSES, 0)
    with pytest.raises(FedbookError, match="1..4 groups, got 5"):
        FGPT(net, CLASSES, groups=4, top_k=5)
    with pytest.raises(FedbookError, match="keys must be 4 x 24"):
        FGPT(net, CLASSES, groups=4, keys=torch.zeros(3, 24))
    with pytest.raises(FedbookError, match="'orthogonal', 'random'"):
        FGPT(net, CLASSES, keys="diagonal")
    with pytest.raises(FedbookError, match="plain timm VisionTransformer, got Linear"):
        PromptedViT(torch.nn.Linear(1, 1), CLASSES)
    with pytest.raises(FedbookError, match="pass a federation"):
        fgpt(CLASSES, net, centre=True)


def test_runs_on_the_meta_device():
    with torch.device("meta"):
        net = VisionTransformer(**TINY)
    x = torch.empty(2, 3, 16, 16, device="meta")
    for kind in BUILDERS.values():
        assert kind(CLASSES, net).to("meta")(x).shape == (2, CLASSES)


def test_paper_scale_steps_run():
    """ViT-B/16 at 224 px with random weights: one training step of FedGC and of FGPT."""
    torch.manual_seed(0)
    base = VisionTransformer(
        img_size=224, patch_size=16, embed_dim=768, depth=12, num_heads=12, num_classes=0
    )
    x, y = torch.randn(1, 3, 224, 224), torch.tensor([1])
    for kind in ("fedgc", "fgpt"):
        m = BUILDERS[kind](100, base).train()
        before = copy.deepcopy({n: p.detach() for n, p in trainable(m).items()})
        F.cross_entropy(m(x), y).backward()
        torch.optim.SGD(trainable(m).values(), lr=0.1).step()
        moved = {n.split(".")[0] for n, p in trainable(m).items() if not torch.equal(p, before[n])}
        assert moved == {"prompts", "head", "gc_net" if kind == "fedgc" else "groups"}


def test_timm_is_imported_only_when_used():
    import subprocess
    import sys

    code = (
        "import sys, fedbook.models.prompts; assert 'timm' not in sys.modules and "
        "'torchvision' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
