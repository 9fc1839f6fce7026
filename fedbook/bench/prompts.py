"""What a prompted training step costs: with what is kept per image, without it, against bare timm,
and against a plain ViT on patches of about the same cost."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fedbook.clock import interleave, use_threads
from fedbook.models.backbones import in_bfloat16
from fedbook.models.prompts import PromptedViT, fedgc

LABELS = {
    "kept": "tokens and stage 1 kept",
    "tokens": "tokens kept, stage 1 anew",
    "nothing": "from images, nothing kept",
    "bfloat16": "kept, and blocks in bfloat16",
    "bare": "bare timm blocks, same tokens",
    "plain": "plain ViT, 32 px, patch 8, 128 x 6",
}


def bench_prompts(
    batch: int = 32,
    repeats: int = 30,
    threads: int = 1,
    prompts: int = 4,
    backbone: str | nn.Module = "hybrid",
) -> dict[str, Any]:
    """Images per second of one FedGC step (forward, backward, SGD), by the median of interleaved
    repeats.

    Bare timm: forward and backward through the blocks, from ready-made random tokens as many as
    ours, to the CLS token and a linear head, without GC-Net or optimiser. The plain ViT has as many
    tokens as the hybrid and 1.0 million parameters; its stage 1 is kept too.
    """
    with use_threads(threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        spent = interleave(_steps(batch, prompts, backbone), repeats, warm_up=5)
    name = backbone if isinstance(backbone, str) else type(backbone).__name__
    return {
        "images_per_second": {k: batch / times.median() for k, times in spent.items()},
        "kept_is_faster_than": {k: times.over(spent["kept"]) for k, times in spent.items()},
        "settings": {
            "batch": batch,
            "repeats": repeats,
            "threads": threads,
            "prompts": prompts,
            "backbone": name,
        },
    }


def text(out: dict[str, Any]) -> str:
    """The numbers as a table for a terminal."""
    lines = [f"{'FedGC step':38}{'ms/image':>10}{'images/s':>10}  the first is ... times as fast"]
    for name, speed in out["images_per_second"].items():
        ratio = out["kept_is_faster_than"][name]
        lines.append(f"{LABELS[name]:38}{1e3 / speed:10.2f}{speed:10.0f}  {ratio:.2f}")
    cost = 1 / out["kept_is_faster_than"]["plain"]
    lines.append(f"so a step costs {cost:.2f} times as much as on the plain ViT")
    return "\n".join(lines)


def _steps(batch: int, prompts: int, backbone: str | nn.Module) -> dict[str, Callable[[], None]]:
    from timm.models.vision_transformer import VisionTransformer

    model = fedgc(10, backbone, prompts).train()
    half = copy.deepcopy(model)
    in_bfloat16(half.backbone)
    x = torch.randn(batch, 3, *model.backbone.patch_embed.img_size)
    tokens = model.tokens(x)
    kept = {"tokens": tokens.half()} if model.stem else {}
    cls = model.frozen_cls(x, tokens)
    small: dict[str, Any] = {"embed_dim": 128, "depth": 6, "num_heads": 4, "mlp_ratio": 3}
    plain = VisionTransformer(img_size=32, patch_size=8, num_classes=0, **small)
    other = fedgc(10, plain, prompts).train()
    seen = torch.randn(batch, 3, 32, 32)
    return {
        "kept": _step(model, x, {**kept, "cls": cls}),
        "tokens": _step(model, x, kept),
        "nothing": _step(model, x, {}),
        "bfloat16": _step(half, x, {**kept, "cls": cls}),
        "bare": _bare(model, batch, prompts),
        "plain": _step(other, seen, {"cls": other.frozen_cls(seen)}),
    }


def _step(
    model: PromptedViT, x: torch.Tensor, extra: dict[str, torch.Tensor]
) -> Callable[[], None]:
    y = torch.randint(10, (len(x),))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x, **extra), y).backward()
        optimizer.step()

    return step


def _bare(model: PromptedViT, batch: int, prompts: int) -> Callable[[], None]:
    vit = model.backbone
    y = torch.randint(10, (batch,))
    count = vit.patch_embed.num_patches + vit.num_prefix_tokens + prompts
    tokens = torch.randn(batch, count, model.width, requires_grad=True)
    head = nn.Linear(model.width, 10)

    def step() -> None:
        tokens.grad = None
        F.cross_entropy(head(vit.norm(vit.blocks(tokens))[:, 0]), y).backward()

    return step
