"""Small networks trained from scratch. Every one offers `embed(x) -> z` and `head(z) -> logits`."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedbook.federation import Federation


class Classifier(nn.Module):
    """A feature extractor and a linear head: `forward(x) = head(embed(x))`."""

    def __init__(self, features: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.features = features
        self.head = nn.Linear(width, classes)

    def embed(self, x: Tensor, **extra: Tensor) -> Tensor:
        return self.features(x)

    def forward(self, x: Tensor, **extra: Tensor) -> Tensor:
        return self.head(self.embed(x, **extra))


def linear(federation: Federation) -> Classifier:
    """Multinomial logistic regression on the raw input."""
    return Classifier(nn.Flatten(), math.prod(federation.input_shape), federation.num_classes)


def mlp(federation: Federation, width: int = 128) -> Classifier:
    """One hidden layer."""
    layers = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(federation.input_shape), width), nn.ReLU())
    return Classifier(layers, width, federation.num_classes)


def cnn(federation: Federation, width: int = 32, hidden: int = 128) -> Classifier:
    """Two 5x5 convolutions with pooling and one hidden layer: about 580,000 parameters at 32x32x3."""
    channels, height, wide = federation.input_shape
    layers = nn.Sequential(
        nn.Conv2d(channels, width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * width * (height // 4) * (wide // 4), hidden), nn.ReLU(),
    )  # fmt: skip
    return Classifier(layers, hidden, federation.num_classes)


class _Block(nn.Module):
    """Two 3x3 convolutions with GroupNorm and a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int, groups: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.GroupNorm(groups, outside), nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.GroupNorm(groups, outside),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.GroupNorm(groups, outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet_gn(federation: Federation, width: int = 16, blocks: int = 1, groups: int = 4) -> Classifier:
    """A CIFAR ResNet of depth 6 * blocks + 2 with GroupNorm: no running statistics to average between clients."""
    stem = [nn.Conv2d(federation.input_shape[0], width, 3, 1, 1, bias=False), nn.GroupNorm(groups, width), nn.ReLU()]
    layers: list[nn.Module] = list(stem)
    inside = width
    for stage in range(3):
        for block in range(blocks):
            outside = width * 2**stage
            layers.append(_Block(inside, outside, 2 if stage and not block else 1, groups))
            inside = outside
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return Classifier(nn.Sequential(*layers), inside, federation.num_classes)


BUILDERS = {"linear": linear, "mlp": mlp, "cnn": cnn, "resnet_gn": resnet_gn}
