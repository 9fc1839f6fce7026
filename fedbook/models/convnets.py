"""Small networks trained from scratch. Every one offers `embed(x) -> z` and `head(z) -> logits`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation


class Normalise(nn.Module):
    """Images in [0, 1] to mean 0 and deviation 1 per channel, by a federation's moments."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], dimensions: int) -> None:
        super().__init__()
        shape = (-1,) + (1,) * (dimensions - 1)
        self.register_buffer("mean", torch.tensor(mean).reshape(shape), persistent=False)
        self.register_buffer("std", torch.tensor(std).reshape(shape), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


def normalise(federation: Federation) -> nn.Module:
    """What a network from scratch begins with; samples that are no images stay as they are."""
    if federation.x.dtype != torch.uint8 or federation.mean is None or federation.std is None:
        return nn.Identity()
    return Normalise(federation.mean, federation.std, len(federation.input_shape))


class Classifier(nn.Module):
    """A feature extractor and a head, linear or with one hidden layer: `forward(x) =
    head(embed(x))`.
    """

    any_format = True  # its layers take images in any memory format

    def __init__(
        self,
        features: nn.Module,
        width: int,
        classes: int,
        hidden: int | None = None,
        prepare: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.prepare = prepare or nn.Identity()
        self.features = features
        self.head = (
            nn.Linear(width, classes) if hidden is None else two_layers(width, hidden, classes)
        )

    def embed(self, x: Tensor, **extra: Tensor) -> Tensor:
        return self.features(self.prepare(x))

    def forward(self, x: Tensor, **extra: Tensor) -> Tensor:
        return self.head(self.embed(x, **extra))


def _classifier(
    federation: Federation, features: nn.Module, width: int, hidden: int | None = None
) -> Classifier:
    return Classifier(features, width, federation.num_classes, hidden, normalise(federation))


def two_layers(width: int, hidden: int, out: int) -> nn.Sequential:
    """GRP-FED's classifier (`out` classes), and its discriminator (`out` = 1, the logit of
    "global").
    """
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, out))


def linear(federation: Federation) -> Classifier:
    """Multinomial logistic regression on the raw input."""
    width = math.prod(federation.input_shape)
    return _classifier(federation, nn.Flatten(), width)


def mlp(federation: Federation, width: int = 128) -> Classifier:
    """One hidden layer."""
    layers = nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(federation.input_shape), width), nn.ReLU()
    )
    return _classifier(federation, layers, width)


def cnn(federation: Federation, width: int = 32, hidden: int = 128) -> Classifier:
    """Two 5x5 convolutions with pooling and one hidden layer: about 580,000 parameters at
    32x32x3.
    """
    channels, height, wide = _shape(federation, 3, "images")
    layers = nn.Sequential(
        nn.Conv2d(channels, width, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),  # after pooling the same to the bit, on a quarter of the numbers
        nn.Conv2d(width, 2 * width, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * (height // 4) * (wide // 4), hidden),
        nn.ReLU(),
    )
    return _classifier(federation, layers, hidden)


Norm = Callable[[int], nn.Module]


def _norm(kind: str, groups: int, batch: Norm) -> Norm:
    if kind not in ("batch", "group"):
        raise FedbookError(
            f"norm must be 'batch' or 'group', got {kind!r}", "'group' has no statistics to average"
        )
    return batch if kind == "batch" else partial(nn.GroupNorm, groups)


def _shape(federation: Federation, dimensions: int, what: str) -> tuple[int, ...]:
    shape = federation.input_shape
    if len(shape) != dimensions:
        raise FedbookError(
            f"this network is for {what}, the samples have shape {shape}", "try the model 'mlp'"
        )
    return shape


class _Block(nn.Module):
    """Two convolutions with a normalisation each, and a shortcut (a 1x1 convolution where the shape
    changes).
    """

    def __init__(
        self,
        inside: int,
        outside: int,
        stride: int,
        norm: Norm,
        conv: type[nn.Module] = nn.Conv2d,
        kernel: int = 3,
    ) -> None:
        super().__init__()
        around = kernel // 2
        self.body = nn.Sequential(
            conv(inside, outside, kernel, stride, around, bias=False),
            norm(outside),
            nn.ReLU(),
            conv(outside, outside, kernel, 1, around, bias=False),
            norm(outside),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                conv(inside, outside, 1, stride, bias=False), norm(outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def _resnet(
    federation: Federation, width: int, blocks: int, norm: Norm, hidden: int | None
) -> Classifier:
    """He et al. 2016 for 32x32 images: a 3x3 stem and three stages of `blocks` blocks, depth 6 *
    blocks + 2.
    """
    layers: list[nn.Module] = [
        nn.Conv2d(_shape(federation, 3, "images")[0], width, 3, 1, 1, bias=False)
    ]
    layers += [norm(width), nn.ReLU()]
    inside = width
    for stage in range(3):
        for block in range(blocks):
            outside = width * 2**stage
            layers.append(_Block(inside, outside, 2 if stage and not block else 1, norm))
            inside = outside
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return _classifier(federation, nn.Sequential(*layers), inside, hidden)


def resnet_gn(
    federation: Federation,
    width: int = 16,
    blocks: int = 1,
    groups: int = 4,
    hidden: int | None = None,
) -> Classifier:
    """A CIFAR ResNet of depth 6 * blocks + 2 with GroupNorm: no running statistics to average
    between clients.
    """
    return _resnet(
        federation, width, blocks=blocks, norm=_norm("group", groups, nn.BatchNorm2d), hidden=hidden
    )


def resnet32(
    federation: Federation,
    width: int = 16,
    norm: str = "batch",
    groups: int = 4,
    hidden: int | None = 64,
) -> Classifier:
    """ResNet-32 with a 2-layer classifier, for GRP-FED's "ResNet-30", a depth that CIFAR ResNets
    (6n + 2) do not have.

    Shortcuts that change shape are 1x1 convolutions; `hidden=None` is the usual linear head.
    """
    return _resnet(
        federation, width, blocks=5, norm=_norm(norm, groups, nn.BatchNorm2d), hidden=hidden
    )


def ecg_resnet(
    federation: Federation,
    width: int = 32,
    norm: str = "batch",
    groups: int = 4,
    hidden: int | None = 64,
) -> Classifier:
    """GRP-FED's 5-layer 1D ResNet: a stem and two blocks of two convolutions, each halving the
    length; 2-layer head.

    The paper prints neither widths nor kernels; here `width`, then twice that, and kernels of 7 and
    5.
    """
    channels, _ = _shape(federation, 2, "signals (channels x length)")
    make = _norm(norm, groups, nn.BatchNorm1d)
    layers = nn.Sequential(
        nn.Conv1d(channels, width, 7, 2, 3, bias=False),
        make(width),
        nn.ReLU(),
        _Block(width, width, 2, make, nn.Conv1d, 5),
        _Block(width, 2 * width, 2, make, nn.Conv1d, 5),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
    )
    return _classifier(federation, layers, 2 * width, hidden)


BUILDERS = {
    **{"linear": linear, "mlp": mlp, "cnn": cnn, "resnet_gn": resnet_gn},
    **{"resnet32": resnet32, "ecg_resnet": ecg_resnet},
}
