"""CCT-7/3x1 and torchvision's networks: sizes as published, and fit for rounds."""

import pytest
import torch

from fedbook import FedbookError, Federation, methods, models, simulate


def pictures(size=32, channels=3, classes=10):
    x = torch.randint(0, 256, (2 * classes, channels, size, size), dtype=torch.uint8)
    y = torch.arange(2 * classes) % classes
    return Federation.from_arrays(
        [{"train": (x, y), "test": (x[:4], y[:4])}], class_names=[str(i) for i in range(classes)]
    )


def size(model):
    return sum(p.numel() for p in model.parameters())


def test_cct_has_the_published_size():
    assert size(models.build("cct", pictures())) == 3_760_139  # 3.76 M in the paper's Table
    assert size(models.build("cct", pictures(64))) == 3_760_139 + (1024 - 256) * 256


def test_cct_pools_its_tokens_and_knows_their_places():
    federation = pictures(8)
    model = models.build("cct", federation, layers=2, width=16, heads=2).eval()
    x = federation.inputs(torch.arange(3))
    assert model.embed(x).shape == (3, 16) and model.features.position.shape == (16, 16)
    assert torch.allclose(model(x)[1:2], model(x[1:2]), atol=1e-5)
    features = model.features
    tokens = features.norm(
        features.layers(features.tokenizer(x).transpose(1, 2) + features.position)
    )
    weight = features.pool(tokens).softmax(1)
    assert torch.allclose(weight.sum(1), torch.ones(3, 1)) and torch.allclose(
        (weight * tokens).sum(1), model.embed(x)
    )
    flipped = model(x.flip(3))
    assert not torch.allclose(flipped, model(x), atol=1e-4)


def test_cct_is_random_only_in_training():
    federation = pictures(8)
    model = models.build("cct", federation, layers=2, width=16, heads=2)
    x = federation.inputs(torch.arange(6))
    assert torch.equal(model.eval()(x), model(x)) and not torch.equal(model.train()(x), model(x))
    quiet = models.build(
        "cct", federation, layers=2, width=16, heads=2, dropout=0.0, depth_drop=0.0
    ).train()
    assert torch.equal(quiet(x), quiet(x))
    layer = (
        models.build("cct", federation, layers=2, width=16, heads=2, depth_drop=0.5)
        .features.layers[1]
        .train()
    )
    kept = layer.branch(torch.ones(4000, 1, 1))
    assert set(kept.flatten().tolist()) == {0.0, 2.0} and kept.mean().item() == pytest.approx(
        1, abs=0.1
    )


@pytest.mark.parametrize(
    "name, parameters, width", [("resnet18", 11_689_512, 512), ("mobilenet_v2", 3_504_872, 1280)]
)
def test_torchvisions_networks_have_their_size(name, parameters, width):
    model = models.build(name, pictures(64, classes=10))
    assert size(model) == parameters - 1000 * (width + 1) + 10 * (width + 1)
    assert model.head.in_features == width
    small = models.build(name, pictures(32), norm="group")
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in small.modules())
    assert small.embed(pictures(32).inputs(torch.arange(2))).shape == (2, width)


def test_small_images_get_a_small_stem():
    assert models.build("resnet18", pictures(32)).features.conv1.kernel_size == (3, 3)
    assert models.build("resnet18", pictures(64)).features.conv1.kernel_size == (7, 7)
    assert models.build("resnet18", pictures(32), small=False).features.conv1.kernel_size == (7, 7)


def test_missing_weights_say_what_to_do(monkeypatch):
    def offline(*args, **kwargs):
        raise OSError("no route")

    monkeypatch.setattr("torch.hub.load_state_dict_from_url", offline)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    with pytest.raises(FedbookError, match="checkpoints"):
        models.build("mobilenet_v2", pictures(32), pretrained=True)


def test_what_does_not_fit_is_refused(toy):
    for name in ("cct", "resnet18", "mobilenet_v2"):
        with pytest.raises(FedbookError):
            models.build(name, toy)
    with pytest.raises(FedbookError, match="channels"):
        models.build("resnet18", pictures(channels=1))
    with pytest.raises(FedbookError, match="heads"):
        models.build("cct", pictures(), heads=3)
    with pytest.raises(FedbookError, match="BatchNorm"):
        models.build("resnet18", pictures(), pretrained=True, norm="group")


def test_they_train_in_rounds():
    federation = pictures(8)
    for name, options in (
        ("cct", {"layers": 1, "width": 16, "heads": 2}),
        ("mobilenet_v2", {"norm": "group"}),
    ):
        model = models.build(name, federation, **options)
        done = simulate(
            methods.get("fedavg", lr=0.01, batch_size=10),
            federation,
            model,
            1,
            device="cpu",
            quiet=True,
        )
        assert all(t.isfinite().all() for t in done.run().params.values())
