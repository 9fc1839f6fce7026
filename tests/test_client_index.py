"""Client indices: what they are the mean of, how similar clients are, and that they find a
federation's types."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbook import FedbookError, Federation
from fedbook.methods import client_index as module
from fedbook.methods.client_index import (
    ClientIndex,
    Decomposition,
    IndexSpec,
    client_index,
    to_group,
)
from fedbook.models.cache import Cache
from fedbook.models.dsa_ign import DSAIGN, sample_index

SMALL = {"ffn": 32, "epochs": 20, "batch_size": 48, "samples": 32, "lr": 2e-3}
CLIENTS, TYPES, CLASSES, EACH = 6, 3, 4, 24


@pytest.fixture(scope="module")
def world():
    """Six clients of three types; an embedding is its class vector plus its type's, and some
    noise.
    """
    g = torch.Generator().manual_seed(0)
    L = F.normalize(torch.randn(CLASSES, 512, generator=g), dim=1)
    style = F.normalize(torch.randn(TYPES, 512, generator=g), dim=1)
    clients, D = [], []
    for k in range(CLIENTS):
        y = torch.randint(0, CLASSES, (EACH + 4 * k,), generator=g)
        x = L[y] + 1.2 * style[k % TYPES] + 0.02 * torch.randn(len(y), 512, generator=g)
        D.append(F.normalize(x, dim=1))
        clients.append({"train": (torch.zeros(len(y), 2), y), "type": k % TYPES})
    federation = Federation.from_arrays(
        clients, class_names=list("abcd"), type_names=["red", "green", "blue"]
    )
    return federation, (torch.cat(D), L)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    monkeypatch.setattr(module, "_KEPT", {})


# -- what an index is ------------------------------------------------------------------------------
def test_it_is_the_mean_of_u_and_of_the_label_vectors(world, monkeypatch):
    federation, (D, L) = world
    nets = []
    monkeypatch.setattr(module, "DSAIGN", lambda *a, **k: nets.append(DSAIGN(*a, **k)) or nets[-1])
    index = client_index(federation, embeddings=(D, L), **{**SMALL, "epochs": 1})
    for i, c in enumerate(federation.clients):
        assert torch.allclose(
            index.feature[i], sample_index(nets[0], D[c.train]).mean(0), atol=1e-5
        )
        mix = federation.class_counts(c) / len(c.train)
        assert torch.allclose(index.label[i], mix @ L, atol=1e-5)
    assert index.feature.shape == index.label.shape == (CLIENTS, 512)
    assert index.sizes.tolist() == [EACH + 4 * k for k in range(CLIENTS)]


@pytest.mark.parametrize("strategy", ["global", "federated"])
def test_both_strategies_find_the_types(world, strategy):
    federation, embeddings = world
    options = {"participation": 0.5, "local_epochs": 5} if strategy == "federated" else {}
    index = client_index(
        federation, embeddings=embeddings, **{**SMALL, "strategy": strategy, **options}
    )
    found = index.quality([c.type for c in federation.clients], federation.type_names)
    assert found["nearest_domain_accuracy"] == 1
    assert found["within_similarity"] > found["across_similarity"] + 0.1
    red = found["type_similarity"]["red"]
    assert red["red"] > max(red["green"], red["blue"]) and red["green"] == pytest.approx(
        found["type_similarity"]["green"]["red"]
    )
    if strategy == "federated":
        assert (
            len(index.info["history"]) == 4
            and index.info["history"][-1]["loss"] < index.info["history"][0]["loss"]
        )


def test_the_same_seed_gives_the_same_index(world):
    federation, embeddings = world
    first, again = (
        client_index(federation, embeddings=embeddings, **{**SMALL, "epochs": 2}) for _ in range(2)
    )
    other = client_index(federation, embeddings=embeddings, **{**SMALL, "epochs": 2, "seed": 1})
    assert torch.equal(first.feature, again.feature) and repr(first) == repr(again)
    assert not torch.equal(first.feature, other.feature) and repr(first) != repr(other)
    assert torch.equal(first.label, other.label)


def test_feature_averages_and_class_prototypes_by_hand(world):
    federation, (D, L) = world
    average = client_index(federation, embeddings=(D, L), kind="feature_average")
    prototypes = client_index(federation, embeddings=(D, L), kind="class_prototypes")
    c = federation.clients[2]
    assert (
        torch.allclose(average.feature[2], D[c.train].mean(0), atol=1e-6) and average.label is None
    )
    rows = prototypes.feature[2].reshape(CLASSES, 512)
    for k in range(CLASSES):
        mine = c.train[federation.y[c.train] == k]
        assert torch.allclose(
            rows[k], D[mine].mean(0) if len(mine) else torch.zeros(512), atol=1e-6
        )
    with pytest.raises(FedbookError, match="label"):
        average.cosines("label")


def test_an_absent_class_has_a_prototype_of_zeros():
    x, y = torch.zeros(3, 2), torch.tensor([0, 0, 2])
    federation = Federation.from_arrays([{"train": (x, y)}], class_names=["a", "b", "c"])
    D = torch.eye(3, 512)
    index = client_index(federation, embeddings=(D, D), kind="class_prototypes")
    rows = index.feature[0].reshape(3, 512)
    assert (
        torch.equal(rows[0], (D[0] + D[1]) / 2) and not rows[1].any() and torch.equal(rows[2], D[2])
    )


def test_limit_and_samples_choose_which_pairs_are_used(world, monkeypatch):
    federation, (D, L) = world
    seen = []
    monkeypatch.setattr(module, "train", lambda net, D, *a: seen.append(D) or [])
    client_index(federation, embeddings=(D, L), **{**SMALL, "samples": 7})
    assert seen[0].shape == (7 * CLIENTS, 512)
    owner = torch.repeat_interleave(torch.arange(CLIENTS), 7)
    for i, c in enumerate(federation.clients):
        rows = (seen[0][owner == i][:, None] == D[c.train][None]).all(2)
        assert rows.sum().item() == 7 and rows.any(1).all()  # seven different samples, all its own
    D = D.clone()
    small, L2 = module._embedded(federation, IndexSpec(limit=5), (D, L))
    assert [len(c.train) for c in small.clients] == [5] * CLIENTS and L2 is L
    assert all(
        set(a.train.tolist()) <= set(b.train.tolist())
        for a, b in zip(small.clients, federation.clients)
    )


def test_losses_left_out_are_left_out(world, monkeypatch):
    federation, embeddings = world
    index = client_index(
        federation, embeddings=embeddings, **{**SMALL, "epochs": 1, "omit": ("div", "sim")}
    )
    assert list(index.info["history"][0]) == ["orth", "recon"]
    asked = []
    monkeypatch.setattr(
        module,
        "losses",
        lambda net, D, L, omit, orth: asked.append((omit, orth)) or {"a": D.sum() * 0},
    )
    batch, model = (
        type("B", (), {"x": torch.ones(2, 2), "y": torch.tensor([0, 1])}),
        type("M", (), {}),
    )
    model.net, model.labels = None, torch.zeros(2, 2)
    Decomposition(("recon",), "sum")(type("L", (), {"model": model}), batch, {}, {})
    assert asked == [(("recon",), "sum")]


def test_what_travels_is_counted(world):
    federation, embeddings = world
    net = sum(p.numel() for p in DSAIGN(ffn=32).parameters()) * 4
    beta = CLIENTS * 1024 * 4
    spec = {**SMALL, "epochs": 2, "samples": 10}
    index = client_index(federation, embeddings=embeddings, **spec)
    assert (
        index.info["bytes_up"] == CLIENTS * 10 * 1024 * 4 + beta
        and index.info["bytes_down"] == CLIENTS * net
    )
    index = client_index(
        federation,
        embeddings=embeddings,
        **spec,
        strategy="federated",
        local_epochs=1,
        participation=0.5,
    )
    assert index.info["bytes_down"] == 2 * 3 * net + CLIENTS * net
    assert index.info["bytes_up"] == 2 * 3 * (net + 8) + beta
    average = client_index(federation, embeddings=embeddings, kind="feature_average")
    assert (average.info["bytes_up"], average.info["bytes_down"]) == (CLIENTS * 512 * 4, 0)


# -- similarity ------------------------------------------------------------------------------------
def test_similarity_by_hand():
    """Three clients in a plane: cosines of features 1, 0, -1 to the first, of labels all 1; sizes
    1, 2, 1.
    """
    feature = torch.tensor([[1.0, 0.0], [0.0, 3.0], [-2.0, 0.0]])
    index = ClientIndex(feature, torch.ones(3, 2), [1, 2, 1], [0, 1, 2])
    assert torch.allclose(index.cosines()[0], torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64))
    assert torch.allclose(
        index.cosines("feature")[0], torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)
    )
    assert torch.allclose(index.cosines("label"), torch.ones(3, 3, dtype=torch.float64))
    S = to_group(index.cosines(), index.sizes, [1, 2])  # (2 cos(i, 1) + 1 cos(i, 2)) / 3
    assert torch.allclose(S, torch.tensor([1.0 / 3, 2.5 / 3, 2.0 / 3], dtype=torch.float64))
    assert not to_group(index.cosines(), index.sizes, []).any()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 7), st.integers(0, 10**6), st.data())
def test_similarity_keeps_its_bounds(n, seed, data):
    g = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 50, (n,), generator=g).tolist()
    index = ClientIndex(
        torch.randn(n, 5, generator=g), torch.randn(n, 5, generator=g), sizes, list(range(n))
    )
    cos = index.cosines()
    group = data.draw(st.lists(st.integers(0, n - 1), min_size=1, unique=True))
    S = to_group(cos, index.sizes, group)
    assert (S >= -1 - 1e-12).all() and (S <= 1 + 1e-12).all()
    for i in range(n):
        assert to_group(cos, index.sizes, [i])[i].item() == pytest.approx(1, abs=1e-7)
    assert torch.allclose(cos, cos.T)


def test_a_zero_index_is_similar_to_nobody():
    index = ClientIndex(torch.tensor([[0.0, 0.0], [1.0, 0.0]]), None, [1, 1], [0, 1])
    assert index.cosines()[0].tolist() == [0, 0]


def test_quality_by_hand():
    """Clients 0, 1 of one type are 60 degrees apart, client 2, alone of its type, is nearest to
    client 1.
    """
    feature = torch.tensor([[1.0, 0.0], [0.5, 0.75**0.5], [0.0, 1.0]])
    found = ClientIndex(feature, None, [1] * 3, [0, 1, 2]).quality([0, 0, 1], ["a", "b"])
    assert found["within_similarity"] == pytest.approx(0.5)
    assert found["across_similarity"] == pytest.approx(0.75**0.5 / 2)
    assert found["nearest_domain_accuracy"] == pytest.approx(
        1 / 3
    )  # clients 1 and 2 have each other
    assert found["type_similarity"]["b"]["b"] is None
    assert found["type_similarity"]["a"]["b"] == pytest.approx(0.75**0.5 / 2)


# -- keeping it ------------------------------------------------------------------------------------
def test_it_is_made_once(world, monkeypatch):
    federation, embeddings = world
    asked = []
    monkeypatch.setattr(module, "embed", lambda *a: asked.append(1) or embeddings)
    monkeypatch.setattr(module, "embedding_seconds", lambda *a: 2.0)
    spec = IndexSpec(**{**SMALL, "epochs": 1})
    first = client_index(federation, spec)
    assert first.info["seconds"] == 2.0 + first.info["training_seconds"] > 2.0
    assert client_index(federation, spec) is first and len(asked) == 1
    assert client_index(federation.to("cpu"), spec) is first
    renamed = dataclasses.replace(federation, class_names=("w", "x", "y", "z"))
    assert client_index(renamed, spec) is not first and len(asked) == 2


def test_it_is_kept_on_disk_if_asked(world, monkeypatch, tmp_path):
    federation, embeddings = world
    monkeypatch.setattr(module, "embed", lambda *a: embeddings)
    monkeypatch.setattr(module, "embedding_seconds", lambda *a: 2.0)
    monkeypatch.setattr(module, "CACHE", Cache(directory=tmp_path))
    monkeypatch.setattr(
        "fedbook.models.clip.image_text_encoder", lambda name: type("E", (), {"fingerprint": "f"})
    )
    first = client_index(federation, **{**SMALL, "epochs": 1})
    module._KEPT.clear()
    monkeypatch.setattr(module, "_make", None)
    again = client_index(federation, **{**SMALL, "epochs": 1})
    assert repr(again) == repr(first) and again.info == first.info
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:100])
    module._KEPT.clear()
    with pytest.raises(FedbookError, match="not a client index"):
        client_index(federation, **{**SMALL, "epochs": 1})


def test_wrong_specs_are_refused():
    for bad in ({"kind": "mean"}, {"strategy": "local"}, {"epochs": 0}):
        with pytest.raises(FedbookError):
            IndexSpec(**bad)
    with pytest.raises(FedbookError, match="one row per client"):
        ClientIndex(torch.ones(2, 3), None, [1, 1, 1], [0, 1, 2])


def test_images_go_through_the_offline_pair(images):
    index = client_index(images, encoder="offline/hybrid+ngram", **{**SMALL, "epochs": 1})
    assert (
        index.feature.isfinite().all() and len(index) == len(images) and index.info["seconds"] > 0
    )
