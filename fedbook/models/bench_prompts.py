"""How fast a prompted training step is: against itself without the cache, and against timm's bare
blocks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

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
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            seconds = interleave(_steps(batch, prompts, backbone), repeats)
    finally:
        torch.set_num_threads(before)
    speed = {name: batch / statistics.median(times) for name, times in seconds.items()}
    ratio = {
        name: statistics.median(b / a for a, b in zip(seconds["cached"], seconds[name]))
        for name in ("uncached", "bare")
    }
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


def main(json: bool = False) -> int:
    """`fedbook bench prompts`: the numbers as JSON or as a table."""
    from json import dumps

    result = bench_prompts()
    if json:
        print(dumps(result))
        return 0
    ratios = {
        "cached": 1.0,
        "uncached": result["cached_vs_uncached"],
        "bare": result["cached_vs_bare_timm"],
    }
    labels = {
        "cached": "FedGC step, stage 1 kept",
        "uncached": "the same without",
        "bare": "bare timm, same tokens",
    }
    print(f"{'':26}{'images/s':>10}  kept is ... times as fast")
    for name, speed in result["images_per_second"].items():
        print(f"{labels[name]:26}{speed:10.0f}  {ratios[name]:.2f}")
    return 0


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


def interleave(
    steps: dict[str, Callable[[], None]], repeats: int, warm_up: int = 5
) -> dict[str, list[float]]:
    """Seconds of each step, taken in turns so that a busy machine slows all of them alike."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(warm_up + repeats):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if i >= warm_up:
                seconds[name].append(time.perf_counter() - start)
    return seconds
