"""Frozen backbones: what comes back, where weights come from, what happens offline, and that
pretraining resumes."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from fedbook.errors import FedbookError
from fedbook.models import hybrid, pretrain, probe
from fedbook.models.backbones import backbone, weights_fingerprint

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


def test_the_default_is_a_frozen_timm_vit_on_a_stem(images):
    from timm.models.vision_transformer import VisionTransformer

    model = backbone()
    assert type(model) is VisionTransformer
    assert not model.training and not any(p.requires_grad for p in model.parameters())
    assert model.input_size == (3, 128, 128)
    assert model.norm_mean == model.norm_std == (0.5, 0.5, 0.5)
    z = probe.features(model, images)
    assert z.shape == (8, model.embed_dim) and torch.isfinite(z).all()
    assert torch.equal(z, probe.features(backbone(), images))
    assert torch.allclose(z, probe.features(model, images, batch_size=3), atol=1e-4)


def test_the_stem_is_lite0():
    """Folded batch norms and cut-out maps change nothing: lite0's own head still gives its
    logits.
    """
    import timm

    plain = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    weights = torch.load(hybrid._lite0_file(), weights_only=True)
    plain.load_state_dict(dict(zip(plain.state_dict(), weights.values(), strict=True)))
    plain.eval()
    x = torch.randn(2, 3, 128, 128, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = plain(x)
        assert torch.allclose(hybrid.lite0()(x), expected, atol=1e-3)
        last = hybrid.Stem()(x)[:, :320]
        logits = plain.forward_head(plain.bn2(plain.conv_head(last)))
        assert torch.allclose(logits, expected, atol=1e-3)


def test_the_weights_are_small_and_say_where_they_come_from():
    from safetensors import safe_open

    assert sum(f.stat().st_size for f in hybrid.WEIGHTS.parent.iterdir()) <= 8_000_000
    with safe_open(hybrid.WEIGHTS, "pt") as file:
        recipe = json.loads(file.metadata()["recipe"])
        assert not any(key.startswith(hybrid.STEM) for key in file.keys())
    assert pretrain.Recipe(**recipe).arch == json.loads(
        safe_open(hybrid.WEIGHTS, "pt").metadata()["arch"]
    )
    assert hybrid.WEIGHTS.with_suffix(".md").read_text().startswith("#")


def test_the_hybrid_takes_no_other_size():
    with pytest.raises(FedbookError, match="128 px"):
        backbone(size=224)


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


SMALL = dict(embed_dim=24, depth=1, views=2, epochs=2, batch_size=16)


@pytest.fixture(scope="module")
def pictures() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """160 training and 16 test images of four classes."""
    rng = torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (176, 3, 16, 16), dtype=torch.uint8, generator=rng)
    return x, torch.arange(176) % 4, (torch.arange(176) >= 160).long()


@pytest.fixture(scope="module")
def whole(pictures, tmp_path_factory):
    """A short pretraining that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    pretrain.pretrain_hybrid(folder, pretrain.Recipe(**SMALL), pictures, quiet=True)
    return folder


def test_pretraining_killed_and_resumed_gives_identical_weights(
    whole, pictures, tmp_path, monkeypatch
):
    from safetensors.torch import load_file

    recipe, real, calls = pretrain.Recipe(**SMALL), pretrain.losses, []

    def dies(*args):
        calls.append(1)
        if len(calls) == 14:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(pretrain, "losses", dies)
    with pytest.raises(KeyboardInterrupt):
        pretrain.pretrain_hybrid(tmp_path, recipe, pictures, quiet=True)
    monkeypatch.setattr(pretrain, "losses", real)
    assert not (tmp_path / "hybrid.safetensors").exists()
    stamps = [f.stat().st_mtime_ns for f in sorted(tmp_path.glob("*.npy"))]
    parts = pretrain.pretrain_hybrid(tmp_path, recipe, pictures, quiet=True)
    assert stamps == [f.stat().st_mtime_ns for f in sorted(tmp_path.glob("*.npy"))]
    a, b = load_file(whole / "hybrid.safetensors"), load_file(parts)
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]
    other = pretrain.Recipe(**{**SMALL, "lr": 1.0})
    with pytest.raises(FedbookError, match="another run"):
        pretrain.pretrain_hybrid(tmp_path, other, pictures, quiet=True)
    few = tuple(part[10:] for part in pictures)
    with pytest.raises(FedbookError, match="other images"):
        pretrain.pretrain_hybrid(tmp_path, recipe, few, quiet=True)


def test_the_saved_trunk_on_the_stem_is_the_student_on_tokens(whole, pictures):
    """Standardising became part of the first matrix; only half precision is lost."""
    x, _, split = pictures
    model = backbone(str(whole / "hybrid.safetensors"))
    saved = torch.load(whole / "checkpoint.pt", weights_only=True)
    student = pretrain.Student(pretrain.Recipe(**SMALL), 4)
    student.load_state_dict(saved["student"])
    tokens = torch.from_numpy(np.load(whole / "view0.npy")[:8]).float()
    torch.manual_seed(0)
    few = torch.randperm(160)[:6000].sort().values.numpy()
    views = [np.load(whole / f"view{v}.npy") for v in (0, 1)]
    sample = torch.cat([torch.from_numpy(views[i][few[i::2]]) for i in (0, 1)]).float()
    mean, std = sample.mean((0, 1)), sample.std((0, 1)).clamp(min=1e-3)
    with torch.inference_mode():
        expected = student.eval()((tokens - mean) / std)
    z = probe.features(model, x[split == 0][:8])
    assert float((z - expected).abs().max()) < 0.05 * float(expected.abs().max())


def test_views_keep_the_picture_and_the_seed_decides(images):
    first, again, other = (
        pretrain.augment(images, torch.Generator().manual_seed(s)) for s in (0, 0, 1)
    )
    assert torch.equal(first, again) and first.min() >= 0 and first.max() <= 1
    assert first.shape != other.shape or not torch.equal(first, other)


def test_principal_components_by_hand():
    """Two independent directions of deviation 4 and 1: divided by the roots 2 and 1, both scaled by
    one number.
    """
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(4000, 2, generator=rng) * torch.tensor([4.0, 1.0]) + 3
    mean, basis = pretrain.principal(torch.cat([x, torch.zeros(4000, 40)], 1), 2)
    z = (torch.cat([x, torch.zeros(4000, 40)], 1) - mean) @ basis
    assert z.mean(0).abs().max() < 1e-3
    deviation = z.std(0)
    assert float(deviation[0] / deviation[1]) == pytest.approx(2, rel=0.05)
    assert float((deviation**2).mean()) == pytest.approx(1, rel=1e-3)


def test_any_vit_at_any_size_from_the_weights_folder(tiny, tmp_path, monkeypatch, offline):
    """At its own size the same network; at another one the positions are resampled."""
    from safetensors.torch import save_file
    from timm.layers import resample_abs_pos_embed

    name = f"{TINY}.augreg_in21k_ft_in1k"
    halves = {k: v.half() for k, v in tiny.state_dict().items()}
    save_file(halves, tmp_path / f"{name}.safetensors")
    monkeypatch.setenv("FEDBOOK_WEIGHTS", str(tmp_path))
    small = backbone(name, size=64, depth=1)
    assert small.input_size == (3, 64, 64) and small.patch_embed.num_patches == 16
    expected = resample_abs_pos_embed(halves["pos_embed"].float(), [4, 4])
    assert torch.allclose(small.pos_embed, expected, atol=1e-5)
    assert torch.equal(small.blocks[0].attn.qkv.weight, halves["blocks.0.attn.qkv.weight"].float())
    assert probe.features(small, torch.zeros(2, 3, 20, 20, dtype=torch.uint8)).shape == (2, 192)


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
    assert scores[0] > scores[1] + 0.1


def test_only_bf16_is_cut_off_a_name(tmp_path):
    with pytest.raises(FedbookError, match=r"unknown backbone 'hybrid\+fp8'"):
        backbone("hybrid+fp8")
    with pytest.raises(FedbookError, match=r"a\+b.safetensors"):
        backbone(str(tmp_path / "a+b.safetensors"))
