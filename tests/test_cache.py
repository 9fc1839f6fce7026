"""Per-image caches: the same numbers as without, computed once, within a budget, never for other
images or weights."""

import dataclasses
import subprocess
import sys
from functools import partial

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_hybrid import HybridEmbed
from tqdm import tqdm

from fedbook.federation import Client, Federation
from fedbook.models import cache as caching
from fedbook.models.cache import Cache, per_image
from fedbook.models.hybrid import hybrid
from fedbook.models.prompts import BUILDERS, fgpt, linear_probe

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

    def __call__(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        self.images += len(rows.unique())  # a last batch is filled up with its last image
        return x.flatten(1)[:, :2]


def with_stem() -> VisionTransformer:
    """The shape of the hybrid, at a fraction of its cost: a convolution is the stem."""
    torch.manual_seed(0)
    stem = torch.nn.Conv2d(3, 6, 4, 4)
    stem.num_features = 6
    embed = partial(HybridEmbed, backbone=stem, feature_size=4, feature_ratio=4)
    shape = dict(img_size=16, patch_size=1, embed_dim=24, depth=3, num_heads=3, num_classes=0)
    return VisionTransformer(embed_layer=embed, **shape)


@pytest.mark.parametrize("name", list(BUILDERS))
@pytest.mark.parametrize("network", [vit, with_stem])
def test_cached_equals_uncached(name, network, federation):
    m = BUILDERS[name](federation, network())
    kept = m.precompute(federation)
    tokens = {"tokens"} if network is with_stem and name != "linear_probe" else set()
    assert set(kept) == tokens | ({"cls"} if name in ("linear_probe", "fedgc", "fgpt") else set())
    assert all(kept[k].dtype == torch.float16 for k in tokens)
    for training in (False, True):
        m.train(training)
        for c in federation.clients:
            x = federation.inputs(c.train)
            plain, quick = m(x), m(x, **{k: v[c.train] for k, v in kept.items()})
            assert float((plain - quick).detach().abs().max()) < 1e-5


def test_the_stem_runs_once_for_all_models(federation):
    net = with_stem()
    seen: list[int] = []
    net.patch_embed.register_forward_hook(lambda module, x, y: seen.append(len(y)))
    for name in BUILDERS:
        BUILDERS[name](federation, net).precompute(federation)
    assert seen == [caching.BATCH]  # the clients hold seven, and one batch is filled up


def test_group_prompts_alone_need_tokens_too(federation):
    m = fgpt(federation, with_stem(), prompts=0, groups=4)
    assert set(m.precompute(federation)) == {"tokens", "cls"}


def test_a_backbone_that_is_trained_keeps_nothing(federation):
    for name in ("vpt", "linear_probe"):
        m = BUILDERS[name](federation, with_stem())
        m.backbone.requires_grad_(True)
        assert m.precompute(federation) == {}


def test_gradients_reach_the_image_without_kept_tokens(federation):
    m = BUILDERS["vpt"](federation, with_stem())
    x = federation.inputs(torch.arange(2)).requires_grad_()
    m(x).sum().backward()
    assert float(x.grad.abs().max()) > 0


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


def test_a_row_does_not_depend_on_who_else_is_asked_for():
    """Kernels round by the size of their batch, so a client alone would get other tokens."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (21, 3, 32, 32), dtype=torch.uint8, generator=generator)
    client = Client(0, 0, torch.arange(18), torch.arange(18, 21))
    whole = Federation(x, torch.arange(21) % 3, (client,), ("a", "b", "c"), ("t",))
    m = BUILDERS["vpt"](whole, hybrid())

    def compute(rows: torch.Tensor) -> torch.Tensor:
        return m.frozen_cls(whole.inputs(rows))

    every = Cache().rows("every", 21, torch.arange(21), compute)
    for own in (torch.tensor([4]), torch.tensor([20, 3, 7]), torch.arange(2, 19)):
        assert torch.equal(Cache().rows("own", 21, own, compute)[own], every[own])


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


def test_disk_outlives_the_process_and_stays_within_budget(federation, tmp_path):
    net, counted = vit(), Counted()
    first = per_image("a", federation, net, counted, Cache(directory=tmp_path))
    again = per_image("a", federation, net, counted, Cache(directory=tmp_path))
    assert counted.images == 7
    torch.testing.assert_close(first, again, rtol=0, atol=0, equal_nan=True)
    (file,) = tmp_path.glob("*.safetensors")
    cache = Cache(directory=tmp_path, disk=2 * file.stat().st_size)
    for kind in "bc":
        per_image(kind, federation, net, counted, cache)
    assert sorted(f.name[0] for f in tmp_path.glob("*.safetensors")) == ["b", "c"]
    per_image("d", federation, net, counted, Cache(directory=tmp_path, disk=10))
    assert sorted(f.name[0] for f in tmp_path.glob("*.safetensors")) == ["b", "c"]


def test_a_damaged_file_is_computed_anew(federation, tmp_path):
    net, counted = vit(), Counted()
    first = per_image("a", federation, net, counted, Cache(directory=tmp_path))
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:40])
    again = per_image("a", federation, net, counted, Cache(directory=tmp_path))
    assert counted.images == 14
    torch.testing.assert_close(first, again, equal_nan=True)
    per_image("a", federation, net, counted, Cache(directory=tmp_path))
    assert counted.images == 14


def test_a_failed_write_leaves_nothing_behind(federation, tmp_path, monkeypatch):
    import safetensors.torch

    def fail(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(safetensors.torch, "save_file", fail)
    counted, cache = Counted(), Cache(directory=tmp_path)
    with pytest.warns(UserWarning, match="disk full.*FEDBOOK_CACHE"):
        per_image("a", federation, vit(), counted, cache)
    assert not list(tmp_path.glob("*.safetensors")) and not list(tmp_path.glob("*.part"))
    per_image("a", federation, vit(), counted, cache)
    assert counted.images == 7  # still in memory


def test_a_folder_nobody_may_write_to_is_done_without(federation, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.warns(UserWarning, match="nothing is kept on disk"):
        rows = per_image("a", federation, vit(), Counted(), Cache(directory=blocked / "sub"))
    assert rows.shape == (N, 2)


def test_two_processes_make_an_entry_once(tmp_path):
    """The second waits for the first, then finds the rows on disk."""
    code = """
import sys, time, torch
from fedbook.models.cache import Cache
def compute(rows):
    print("computed", len(rows), flush=True)
    time.sleep(1)
    return torch.ones(len(rows), 2)
Cache(directory=__import__("pathlib").Path(sys.argv[1])).rows("k", 8, torch.arange(8), compute)
"""
    jobs = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    said = b"".join(job.communicate()[0] for job in jobs)
    assert said.count(b"computed") == 1


def test_many_images_show_a_bar_the_first_time(federation, monkeypatch):
    bars = []

    def shown(total, desc, disable, **pace):
        bars.append((desc, disable))
        return tqdm(total=total, disable=True)

    monkeypatch.setattr("tqdm.auto.tqdm", shown)
    monkeypatch.setattr(caching, "MANY", 7)
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    net = vit()
    for _ in range(2):
        per_image("tokens", federation, net, Counted())
    assert bars == [("tokens of 7 images, once", False)]
    monkeypatch.setattr(caching, "MANY", 8)
    per_image("other", federation, net, Counted())
    assert bars[1] == ("other of 7 images, once", True)


def test_first_use_shows_one_bar_for_the_stem_in_all_processes(federation, monkeypatch, tmp_path):
    bars, seen = [], []

    def shown(total, desc, disable, **pace):
        bars.append(desc)
        return tqdm(total=total, disable=True)

    monkeypatch.setattr("tqdm.auto.tqdm", shown)
    net = with_stem()
    net.patch_embed.register_forward_hook(lambda module, x, y: seen.append(len(y)))
    for name in BUILDERS:
        monkeypatch.setattr(caching, "CACHE", Cache(directory=tmp_path))  # as a new process has it
        BUILDERS[name](federation, net).precompute(federation)
    assert seen == [caching.BATCH]
    assert bars == ["tokens of 7 images, once", "cls of 7 images, once"]


def test_a_log_file_gets_few_lines(monkeypatch, capsys):
    monkeypatch.setattr(caching, "MANY", 1)
    monkeypatch.setattr(caching, "BATCH", 1)
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    clock = iter(range(10**6))  # a second passes at every look at the clock
    monkeypatch.setattr("tqdm.std.time", lambda: next(clock))
    Cache().rows("tokens-", 200, torch.arange(200), lambda rows: torch.ones(len(rows), 1))
    lines = capsys.readouterr().err.strip().split("\r")
    assert 2 <= len(lines) <= 10 and "200/200" in lines[-1]


def test_a_stopped_pass_goes_on_where_it_was_written(monkeypatch, tmp_path):
    monkeypatch.setattr(caching, "SAVED", 20)
    asked: list[int] = []

    def stops(rows):
        if rows[0] >= 32:
            raise KeyboardInterrupt
        asked.extend(rows.tolist())
        return rows[:, None].float()

    with pytest.raises(KeyboardInterrupt):
        Cache(directory=tmp_path).rows("k", 40, torch.arange(40), stops)
    rest: list[int] = []

    def goes_on(rows):
        rest.extend(rows.unique().tolist())
        return rows[:, None].float()

    found = Cache(directory=tmp_path).rows("k", 40, torch.arange(40), goes_on)
    assert asked == list(range(32)) and rest == list(range(32, 40))
    assert found[:, 0].tolist() == list(range(40))


def test_settings_come_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDBOOK_CACHE", str(tmp_path))
    monkeypatch.setenv("FEDBOOK_CACHE_MEMORY_MB", "3")
    c = Cache.from_environment()
    assert (c.directory, c.memory, c.disk) == (tmp_path, 3 * 2**20, 2048 * 2**20)
    monkeypatch.setenv("FEDBOOK_CACHE", "off")
    assert Cache.from_environment().directory is None
    monkeypatch.delenv("FEDBOOK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Cache.from_environment().directory == tmp_path / "fedbook" / "features"


def test_images_are_brought_to_the_backbones_size_and_normalisation(federation):
    net = vit()
    net.norm_mean, net.norm_std = (0.5, 0.5, 0.5), (0.25, 0.5, 0.5)
    here = linear_probe(federation, net)
    index = federation.clients[0].train
    by_hand = (federation.x[index].float() / 255 - 0.5) / torch.tensor([0.25, 0.5, 0.5])[
        :, None, None
    ]
    expected = net(by_hand)
    assert float((here.embed(federation.inputs(index)) - expected).abs().max()) < 1e-5
    assert float((here.precompute(federation)["cls"][index] - expected).abs().max()) < 1e-5
    assert not any(p.requires_grad for p in here.prepare.parameters())
    large = dataclasses.replace(
        federation, x=federation.x.repeat_interleave(2, 2).repeat_interleave(2, 3)
    )
    assert here.embed(large.inputs(index)).shape == expected.shape
    floats = dataclasses.replace(federation, x=torch.randn(N, 3, 16, 16), mean=None, std=None)
    given = floats.inputs(index)
    assert torch.equal(linear_probe(floats, net).prepare(given), given)  # they come as they are


def test_centring_uses_the_clients_training_images(federation):
    net = vit()
    m = fgpt(federation, net, centre=True, groups=4)
    e = net(federation.inputs(torch.tensor([0, 1, 2, 5, 6])))
    assert float((m.centre - e.mean(0)).abs().max()) < 1e-6
    assert not m.centre.requires_grad
