"""Networks of Client2Vec's Tables 1, 4 and 8: CCT-7/3x1 from scratch, torchvision's ResNet-18 and
MobileNetV2.

CCT: Hassani, Walton, Shah, Abuduweili, Li and Shi, "Escaping the Big Data Paradigm with Compact
Transformers", 2021. "7/3x1" is seven layers on the tokens of one 3x3 convolution; width 256, 4
heads, feed-forward 512: 3.76 M parameters for ten classes at 32x32. There is no class token: the
tokens are pooled by a learned weighting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.models.convnets import Classifier, _classifier, _norm, _shape


class CCTLayer(nn.Module):
    """x + attention(norm(x)), normalised, then + feed-forward: the order of the authors' code. With
    `depth_drop` a sample's branch is left out now and then (stochastic depth).
    """

    def __init__(self, width: int, heads: int, ffn: int, dropout: float, depth_drop: float) -> None:
        from timm.layers import DropPath

        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.branch = DropPath(depth_drop)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, ffn), nn.GELU(), nn.Linear(ffn, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            self.qkv(self.norm1(x)).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        )
        a = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0
        )
        x = self.norm2(x + self.branch(self.out(a.transpose(1, 2).reshape(batch, tokens, width))))
        return x + self.branch(self.feed(x))


class CCTFeatures(nn.Module):
    """Images to z [N, width]."""

    def __init__(
        self,
        shape: tuple[int, ...],
        layers: int,
        width: int,
        heads: int,
        ffn: int,
        dropout: float,
        depth_drop: float,
    ) -> None:
        super().__init__()
        channels, height, wide = shape
        conv = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        nn.init.kaiming_normal_(conv.weight)
        self.tokenizer = nn.Sequential(conv, nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Flatten(2))
        self.position = nn.Parameter(torch.zeros(-(-height // 2) * -(-wide // 2), width))
        nn.init.trunc_normal_(self.position, std=0.2)
        drops = torch.linspace(0, depth_drop, layers, device="cpu").tolist()
        self.layers = nn.Sequential(*(CCTLayer(width, heads, ffn, dropout, d) for d in drops))
        for m in self.layers.modules():
            if isinstance(m, nn.Linear):
                nn.init.trunc_normal_(m.weight, std=0.02)
                if m.bias is not None:
                    nn.init.zeros_(m.bias)
        self.norm = nn.LayerNorm(width)
        self.pool = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(self.layers(self.tokenizer(x).transpose(1, 2) + self.position))
        return (self.pool(tokens).softmax(1) * tokens).sum(1)


def cct(
    federation: Federation,
    layers: int = 7,
    width: int = 256,
    heads: int = 4,
    ffn: int | None = None,
    dropout: float = 0.1,
    depth_drop: float = 0.1,
) -> Classifier:
    """CCT-7/3x1; `dropout` is the attention's, `depth_drop` the last layer's rate of stochastic
    depth.
    """
    shape = _shape(federation, 3, "images")
    if width % heads:
        raise FedbookError(
            f"{heads} heads do not divide a width of {width}", "the paper has width=256, heads=4"
        )
    features = CCTFeatures(shape, layers, width, heads, ffn or 2 * width, dropout, depth_drop)
    return _classifier(federation, features, width)


# -- torchvision -----------------------------------------------------------------------------------
def _torchvision(
    name: str, federation: Federation, pretrained: bool, norm: str, groups: int
) -> tuple[Any, int]:
    """A network of torchvision without its classifier, and the width of what it gives."""
    from torchvision import models

    _shape(federation, 3, "images")
    if federation.input_shape[0] != 3:
        raise FedbookError(
            f"{name} wants three channels, the images have {federation.input_shape[0]}",
            "channels=3",
        )
    if pretrained and norm != "batch":
        raise FedbookError(
            f"the pretrained {name} has BatchNorm, norm={norm!r} was asked for", "use norm='batch'"
        )
    weights = models.get_model_weights(name).DEFAULT if pretrained else None
    try:
        net: Any = models.get_model(
            name, weights=weights, norm_layer=_norm(norm, groups, nn.BatchNorm2d)
        )
    except (OSError, RuntimeError) as error:  # no network, or a broken download
        if weights is None:
            raise
        raise FedbookError(
            f"the pretrained weights of {name} could not be had: {error}",
            f"download {weights.url} elsewhere and put it into "
            f"{torch.hub.get_dir()}/checkpoints; or pretrained=False",
        ) from None
    last = "fc" if name == "resnet18" else "classifier"
    width = 512 if name == "resnet18" else net.last_channel
    setattr(net, last, nn.Identity())
    return net, width


def resnet18(
    federation: Federation,
    pretrained: bool = False,
    norm: str = "batch",
    groups: int = 8,
    small: bool | None = None,
) -> Classifier:
    """torchvision's ResNet-18. `small` replaces the 7x7 stem and its pooling by a 3x3 convolution,
    as is usual for images below 64 pixels; unless told otherwise it does so for those, if no
    weights are loaded.
    """
    net, width = _torchvision(
        "resnet18", federation, pretrained=pretrained, norm=norm, groups=groups
    )
    if small is None:
        small = not pretrained and min(federation.input_shape[1:]) < 64
    if small:
        net.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        net.maxpool = nn.Identity()
    return _classifier(federation, net, width)


def mobilenet_v2(
    federation: Federation, pretrained: bool = False, norm: str = "batch", groups: int = 8
) -> Classifier:
    """torchvision's MobileNetV2, without the dropout before its classifier."""
    net, width = _torchvision(
        "mobilenet_v2", federation, pretrained=pretrained, norm=norm, groups=groups
    )
    return _classifier(federation, net, width)


BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "cct": cct,
    "resnet18": resnet18,
    "mobilenet_v2": mobilenet_v2,
}
