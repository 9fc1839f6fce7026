"""Per-image caches: the same numbers as without, computed once, within a budget, never for other
images or weights."""

import dataclasses

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from fedbook.errors import FedbookError
from fedbook.federation import Client, Federation
from fedbook.models import cache as caching
from fedbook.models.cache import Cache, per_image
from fedbook.models.prompts import BUILDERS, fgpt, linear_probe, vpt

N = 12


def vit(seed: int = 0) -> VisionTransformer:
    torch.manual_seed(seed)
    return VisionTransformer(
        img_size=16, patch_size=8, embed_dim=24, depth=3, num_heads=3, num_classes=0
    )


@pytest.fixture
def federation() -> Federation:
    x = torch.randint(
        0, 256, (N, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    clients = (
        Client(0, 0, torch.tensor([0, 1, 2]), torch.tensor([3])),
        Client(1, 0, torch.tensor([5, 6]), torch.tensor([7, 3])),
    )  # samples 4 and 8..11 belong to nobody
    return Federation(
        x, torch.arange(N) % 3, clients, ("a", "b", "c"), ("t",), (0.4, 0.5, 0.6), (0.2, 0.2, 0.3)
    )


@pytest.fixture(autouse=True)
def cache(monkeypatch) -> Cache:
    fresh = Cache()
    monkeypatch.setattr(caching, "CACHE", fresh)
    return fresh


class Counted:
    """A function of images that remembers how many it was asked for."""

    def __init__(self) -> None:
        self.images = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.images += len(x)
        return x.flatten(1)[:, :2]


@pytest.mark.parametrize("name", list(BUILDERS))
@pytest.mark.parametrize("keep_tokens", [False, True])
def test_cached_equals_uncached(name, keep_tokens, federation):
    options = {} if name == "linear_probe" else {"keep_tokens": keep_tokens}
    m = BUILDERS[name](federation, vit(), **options)
    kept = m.precompute(federation)
    assert set(kept) == ({"cls"} if name in ("linear_probe", "fedgc", "fgpt") else set()) | (
        {"tokens"} if options.get("keep_tokens") else set()
    )
    for training in (False, True):
        m.train(training)
        for c in federation.clients:
            x = federation.inputs(c.train)
            plain, quick = m(x), m(x, **{k: v[c.train] for k, v in kept.items()})
            assert float((plain - quick).detach().abs().max()) < 1e-5


def test_only_asked_rows_are_computed_and_only_once(federation):
    net, counted = vit(), Counted()
    rows = per_image("k", federation, net, counted)
    assert counted.images == 7 and rows.shape == (N, 2)
    assert rows[:, 0].isnan().nonzero().flatten().tolist() == [4, 8, 9, 10, 11]
    torch.testing.assert_close(rows[[5]], federation.inputs(torch.tensor([5])).flatten(1)[:, :2])
    per_image("k", federation, net, counted)
    assert counted.images == 7
    more = dataclasses.replace(
        federation, clients=(Client(0, 0, torch.tensor([3, 4]), torch.tensor([8])),)
    )
    filled = per_image("k", more, net, counted)
    assert counted.images == 9 and filled[:, 0].isnan().sum() == 3
    assert (
        rows[:, 0].isnan().sum() == 5
    )  # what was handed out before has not changed under its owner
    per_image("other", federation, net, counted)
    assert counted.images == 16


def test_other_images_or_weights_are_another_entry(federation):
    net, counted = vit(), Counted()
    first = per_image("k", federation, net, counted)
    federation.x[0, 0, 0, 0] ^= 1  # in place, behind the federation's back
    changed = per_image("k", federation, net, counted)
    assert counted.images == 14 and first[0, 0] != changed[0, 0]
    with torch.no_grad():
        net.blocks[0].attn.qkv.bias[0] += 1e-3
    per_image("k", federation, net, counted)
    assert counted.images == 21
    per_image("k", dataclasses.replace(federation, mean=(0.5, 0.5, 0.5)), net, counted)
    assert counted.images == 28


def test_models_follow_changed_weights(federation):
    net = vit()
    m = linear_probe(federation, net)
    before = m.precompute(federation)["cls"]
    with torch.no_grad():
        net.patch_embed.proj.weight *= 1.5
    after = m.precompute(federation)["cls"]
    c = federation.clients[0].train
    assert float((before - after)[c].abs().max()) > 1e-3
    assert float((m.frozen_cls(federation.inputs(c)) - after[c]).abs().max()) < 1e-5


def test_memory_budget_drops_the_least_recently_used(federation):
    net, counted = vit(), Counted()
    size = N * 2 * 4
    cache = Cache(memory=2 * size)
    for kind in "abac":  # c pushes out b
        per_image(kind, federation, net, counted, cache)
    assert [k[0] for k in cache._entries] == ["a", "c"] and counted.images == 3 * 7
    tiny = Cache(memory=size - 1)
    assert per_image("a", federation, net, counted, tiny).shape == (N, 2) and not tiny._entries


def test_tokens_are_not_kept_beyond_the_budget(federation, cache):
    m = vpt(federation, vit(), keep_tokens=True)
    assert set(m.precompute(federation)) == {"tokens"}
    cache.memory = N * 5 * 24 * 4 - 1
    assert m.precompute(federation) == {}


def test_disk_outlives_the_process_and_stays_within_budget(federation, tmp_path):
    net, counted = vit(), Counted()
    first = per_image("a", federation, net, counted, Cache(directory=tmp_path))
    again = per_image("a", federation, net, counted, Cache(directory=tmp_path))
    assert counted.images == 7
    torch.testing.assert_close(first, again, rtol=0, atol=0, equal_nan=True)
    (file,) = tmp_path.iterdir()
    cache = Cache(directory=tmp_path, disk=2 * file.stat().st_size)
    for kind in "bc":
        per_image(kind, federation, net, counted, cache)
    assert sorted(f.name[0] for f in tmp_path.iterdir()) == ["b", "c"]
    per_image("d", federation, net, counted, Cache(directory=tmp_path, disk=10))
    assert sorted(f.name[0] for f in tmp_path.iterdir()) == ["b", "c"]


def test_a_damaged_file_is_computed_anew(federation, tmp_path):
    net, counted = vit(), Counted()
    first = per_image("a", federation, net, counted, Cache(directory=tmp_path))
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:40])
    again = per_image("a", federation, net, counted, Cache(directory=tmp_path))
    assert counted.images == 14
    torch.testing.assert_close(first, again, equal_nan=True)
    per_image("a", federation, net, counted, Cache(directory=tmp_path))
    assert counted.images == 14


def test_a_failed_write_leaves_nothing_behind(federation, tmp_path, monkeypatch):
    import safetensors.torch

    def fail(tensors, path):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(safetensors.torch, "save_file", fail)
    with pytest.raises(FedbookError, match="disk full.*FEDBOOK_CACHE"):
        per_image("a", federation, vit(), Counted(), Cache(directory=tmp_path))
    assert not list(tmp_path.iterdir())


def test_settings_come_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDBOOK_CACHE", str(tmp_path))
    monkeypatch.setenv("FEDBOOK_CACHE_MEMORY_MB", "3")
    c = Cache.from_environment()
    assert (c.directory, c.memory, c.disk) == (tmp_path, 3 * 2**20, 2048 * 2**20)
    monkeypatch.delenv("FEDBOOK_CACHE")
    assert Cache.from_environment().directory is None


def test_images_are_brought_to_the_backbones_normalisation(federation):
    net = vit()
    net.norm_mean, net.norm_std = (0.5, 0.5, 0.5), (0.25, 0.5, 0.5)
    here = linear_probe(federation, net)
    native = dataclasses.replace(federation, mean=net.norm_mean, std=net.norm_std)
    index = federation.clients[0].train
    expected = net(native.inputs(index))
    assert float((here.embed(federation.inputs(index)) - expected).abs().max()) < 1e-5
    assert float((here.precompute(federation)["cls"][index] - expected).abs().max()) < 1e-5
    assert not any(p.requires_grad for p in here.rescale.parameters())
    plain = dataclasses.replace(federation, mean=None, std=None)
    assert (
        float((linear_probe(plain, net).embed(plain.inputs(index)) - expected).abs().max()) < 1e-5
    )


def test_centring_uses_the_clients_training_images(federation):
    net = vit()
    m = fgpt(federation, net, centre=True, groups=4)
    e = net(federation.inputs(torch.tensor([0, 1, 2, 5, 6])))
    assert float((m.centre - e.mean(0)).abs().max()) < 1e-6
    assert not m.centre.requires_grad
