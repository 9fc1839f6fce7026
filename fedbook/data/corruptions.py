"""Ten common corruptions of small pictures, for CIFAR-100-C: the first ten of Hendrycks and
Dietterich (2019), by our own code.

The published CIFAR-100-C file cannot be recomputed bit by bit (its frost photographs and random
draws are its own), so what this module makes is called a recomputation: same ten kinds, same order,
five severities, strengths chosen for 32x32 pictures. Frost, for which the original mixes in
photographs of frozen glass, is drawn here as branching fractal crystals.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedbook.errors import FedbookError

NAMES = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur"),
    *("motion_blur", "zoom_blur", "snow", "frost", "fog"),
)


def corrupt(x: np.ndarray, name: str, severity: int, seed: int = 0) -> np.ndarray:
    """uint8 [N, H, W, 3] pictures, corrupted; ``severity`` from 1 to 5."""
    if name not in NAMES:
        raise FedbookError(f"unknown corruption {name!r}", "there are: " + ", ".join(NAMES))
    if severity not in (1, 2, 3, 4, 5):
        raise FedbookError(f"severity must be 1, 2, 3, 4 or 5, got {severity!r}", "3 is the middle")
    rng = np.random.default_rng([seed, NAMES.index(name), severity])
    out = np.empty_like(x)
    for at in range(0, len(x), 1000):
        picture = torch.from_numpy(x[at : at + 1000]).permute(0, 3, 1, 2).float() / 255
        result = globals()[f"_{name}"](picture, severity - 1, rng)
        out[at : at + 1000] = (
            (result.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
        )
    return out


def _random(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.random(shape, dtype=np.float32))


def _gaussian_noise(x: Tensor, s: int, rng: np.random.Generator) -> Tensor:
    return x + (0.04, 0.06, 0.08, 0.09, 0.10)[s] * torch.from_numpy(
        rng.standard_normal(x.shape, dtype=np.float32)
    )


def _shot_noise(x: Tensor, s: int, rng: np.random.Generator) -> Tensor:
    photons = (500, 250, 100, 75, 50)[s]
    return torch.from_numpy(rng.poisson(x.numpy() * photons).astype(np.float32)) / photons


def _impulse_noise(x: Tensor, s: int, rng: np.random.Generator) -> Tensor:
    amount = (0.01, 0.02, 0.03, 0.05, 0.07)[s]
    dice = _random(rng, *x.shape)
    return torch.where(dice < amount / 2, 0.0, torch.where(dice > 1 - amount / 2, 1.0, x))


def _defocus_blur(x: Tensor, s: int, rng: np.random.Generator) -> Tensor:
    radius = (0.8, 1.1, 1.4, 1.8, 2.4)[s]
    span = torch.arange(-4, 5, dtype=torch.float32)
    distance = (span[:, None] ** 2 + span[None] ** 2).sqrt()
    return _filter(x, (radius + 0.5 - distance).clamp(0, 1))


def _glass_blur(x: Tensor, s: int, rng: np.random.Generator) -> Tensor:
    """Blur, let neighbouring pixels change places at random, blur again."""
    sigma, rounds = ((0.3, 1), (0.4, 1), (0.5, 2), (0.5, 3), (0.7, 3))[s]
    n, _, h, w = x.shape
    x = _gauss(x, sigma)
    rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    pick = torch.arange(n)[:, None, None]
    for _ in range(rounds):
        dy, dx = (torch.from_numpy(rng.integers(-1, 2, (n, h, w))) for _ in range(2))
        from_row = (rows + dy).clamp(0, h - 1)
        from_column = (columns + dx).clamp(0, w - 1)
        x = x.permute(0, 2, 3, 1)[pick, from_row, from_column].permute(0, 3, 1, 2)
    return _gauss(x, sigma)


def _motion_blur(x: Tensor, s: int, rng: np.random.Generator) -> Tensor:
    length = (3.0, 4.0, 5.0, 6.0, 7.5)[s]
    return _streak(x, rng.uniform(-np.pi / 4, np.pi / 4, len(x)), length)


def _zoom_blur(x: Tensor, s: int, rng: np.random.Generator) -> Tensor:
    zooms = np.arange(1, (1.06, 1.11, 1.16, 1.21, 1.26)[s] + 1e-9, 0.01)
    return torch.stack([_sample(x, scale=1 / float(z)) for z in zooms]).mean(0)


def _snow(x: Tensor, s: int, rng: np.random.Generator) -> Tensor:
    """Bright flakes blown in one direction over a paler picture."""
    amount, length, whiten = (
        (0.02, 2.5, 0.95),
        (0.03, 3.0, 0.9),
        (0.045, 3.5, 0.85),
        (0.06, 4.0, 0.8),
        (0.08, 4.5, 0.75),
    )[s]
    n, _, h, w = x.shape
    flakes = (_random(rng, n, 1, h, w) < amount).float() * (0.6 + 0.4 * _random(rng, n, 1, h, w))
    flakes = 1.6 * _streak(flakes, rng.uniform(np.pi / 4, 3 * np.pi / 4, n), length)
    pale = torch.maximum(x, x.mean(1, keepdim=True) * 1.5 + 0.5)
    return whiten * x + (1 - whiten) * pale + flakes


def _frost(x: Tensor, s: int, rng: np.random.Generator) -> Tensor:
    """Ice crystals: ridges of fractal noise, thickest towards the rim."""
    keep, ice = ((0.95, 0.3), (0.9, 0.4), (0.85, 0.5), (0.8, 0.6), (0.75, 0.7))[s]
    n, _, h, w = x.shape
    ridge = 1 - (2 * _fractal(n, h, w, rng, roughness=1.6) - 1).abs()
    crystal = ((ridge - 0.4) / 0.6).clamp(0, 1) ** 1.8
    axis = torch.linspace(-1, 1, h)
    rim = 0.45 + 0.55 * torch.maximum(axis.abs()[:, None], torch.linspace(-1, 1, w).abs()[None])
    tint = torch.tensor([0.85, 0.95, 1.0]).reshape(1, 3, 1, 1)
    return keep * x + ice * crystal * rim * tint


def _fog(x: Tensor, s: int, rng: np.random.Generator) -> Tensor:
    amount, roughness = ((0.4, 3.0), (0.7, 3.0), (1.0, 2.5), (1.3, 2.0), (1.6, 1.75))[s]
    n, _, h, w = x.shape
    peak = x.amax((1, 2, 3), keepdim=True)
    return (x + amount * _fractal(n, h, w=w, rng=rng, roughness=roughness)) * peak / (peak + amount)


def _filter(x: Tensor, kernel: Tensor) -> Tensor:
    kernel = (kernel / kernel.sum()).expand(x.shape[1], 1, *kernel.shape)
    edge = kernel.shape[-1] // 2
    return F.conv2d(F.pad(x, (edge,) * 4, mode="reflect"), kernel, groups=x.shape[1])


def _gauss(x: Tensor, sigma: float) -> Tensor:
    line = torch.exp(-(torch.arange(-3, 4, dtype=torch.float32) ** 2) / (2 * sigma**2))
    return _filter(x, line[:, None] * line[None])


def _sample(x: Tensor, scale: float = 1.0, shift: Tensor | None = None) -> Tensor:
    """The picture seen through a grid that is scaled about the centre and moved by ``shift`` pixels
    per sample.
    """
    n, _, h, w = x.shape
    theta = torch.zeros(n, 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = scale
    if shift is not None:
        theta[:, :, 2] = shift * 2 / torch.tensor([w, h])
    return F.grid_sample(
        x,
        F.affine_grid(theta, list(x.shape), align_corners=False),
        padding_mode="reflection",
        align_corners=False,
    )


def _streak(x: Tensor, angle: np.ndarray, length: float) -> Tensor:
    """The mean along a line of ``length`` pixels, of its own direction in every picture."""
    way = torch.as_tensor(np.stack([np.cos(angle), np.sin(angle)], 1), dtype=torch.float32)
    steps = np.arange(-length / 2, length / 2 + 1e-9, 0.5)
    return torch.stack([_sample(x, shift=way * float(t)) for t in steps]).mean(0)


def _fractal(n: int, h: int, w: int, rng: np.random.Generator, roughness: float) -> Tensor:
    """Noise summed over octaves, each ``roughness`` times weaker than the next coarser one, scaled
    to [0, 1].
    """
    total = torch.zeros(n, 1, h, w)
    weight = 1.0
    cells = 2
    while cells <= max(h, w):
        octave = F.interpolate(
            _random(rng, n, 1, cells + 1, cells + 1), (h, w), mode="bicubic", align_corners=True
        )
        total = total + weight * octave
        weight = weight / roughness
        cells = cells * 2
    low = total.amin((1, 2, 3), keepdim=True)
    high = total.amax((1, 2, 3), keepdim=True)
    return (total - low) / (high - low)
