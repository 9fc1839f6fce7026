"""How fast a prompted training step is: against itself without the cache, and against timm's bare
blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fedbook.bench.clock import interleave, use_threads
from fedbook.models.prompts import fedgc


def bench_prompts(
    batch: int = 32,
    repeats: int = 60,
    threads: int = 1,
    prompts: int = 4,
    backbone: str | nn.Module = "bundled",
) -> dict[str, Any]:
    """Images per second of one FedGC step (forward, backward, SGD), by the median of interleaved
    repeats.

    (a) the same step computing stage 1 itself; (b) bare timm: forward and backward through the
    blocks, from ready-made random tokens as many as ours, to the CLS token and a linear head,
    without patch embedding, GC-Net or optimiser.
    """
    with use_threads(threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        spent = interleave(_steps(batch, prompts, backbone), repeats, warm_up=5)
    speed = {name: batch / times.median() for name, times in spent.items()}
    ratio = {name: spent[name].over(spent["cached"]) for name in ("uncached", "bare")}
    name = backbone if isinstance(backbone, str) else type(backbone).__name__
    return {
        "images_per_second": speed,
        "cached_vs_uncached": ratio["uncached"],
        "cached_vs_bare_timm": ratio["bare"],
        "settings": {
            "batch": batch,
            "repeats": repeats,
            "threads": threads,
            "prompts": prompts,
            "backbone": name,
        },
    }


def text(out: dict[str, Any]) -> str:
    ratios = {
        "cached": 1.0,
        "uncached": out["cached_vs_uncached"],
        "bare": out["cached_vs_bare_timm"],
    }
    labels = {
        "cached": "FedGC step, stage 1 kept",
        "uncached": "the same without",
        "bare": "bare timm, same tokens",
    }
    lines = [f"{'':26}{'images/s':>10}  kept is ... times as fast"]
    for name, speed in out["images_per_second"].items():
        lines.append(f"{labels[name]:26}{speed:10.0f}  {ratios[name]:.2f}")
    return "\n".join(lines)


def _steps(batch: int, prompts: int, backbone: str | nn.Module) -> dict[str, Callable[[], None]]:
    model = fedgc(10, backbone, prompts).train()
    vit = model.backbone
    x = torch.randn(batch, vit.patch_embed.proj.in_channels, *vit.patch_embed.img_size)
    y = torch.randint(10, (batch,))
    cls = model.frozen_cls(x)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    tokens = torch.randn(batch, model.tokens(x).shape[1] + prompts, model.width, requires_grad=True)
    head = nn.Linear(model.width, 10)

    def step(**extra: torch.Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x, **extra), y).backward()
        optimizer.step()

    def bare() -> None:
        tokens.grad = None
        F.cross_entropy(head(vit.norm(vit.blocks(tokens))[:, 0]), y).backward()

    return {"cached": lambda: step(cls=cls), "uncached": step, "bare": bare}
