"""One shape for every dataset: images as uint8, labels, split and domain in parallel, and where all
of it came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbook.errors import FedbookError


@dataclass(frozen=True)
class Dataset:
    """Samples in rows: ``x`` (uint8 [N, C, H, W] for images), ``y``, ``split`` (0 train, 1 test),
    ``domain``.
    """

    x: Tensor
    y: Tensor
    split: Tensor
    domain: Tensor
    class_names: tuple[str, ...]
    domain_names: tuple[str, ...]
    name: str
    provenance: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Tensor] = field(default_factory=dict)
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @property
    def train(self) -> np.ndarray:
        """Row numbers of the training samples."""
        return np.flatnonzero(self.split.numpy() == 0)

    @property
    def test(self) -> np.ndarray:
        """Row numbers of the test samples."""
        return np.flatnonzero(self.split.numpy() == 1)

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name}: {len(self.train):,} train + {len(self.test):,} test of "
            f"{tuple(self.x.shape[1:])}, "
            f"{len(self.class_names)} classes, {len(self.domain_names)} domains)"
        )


@dataclass
class Columns:
    """A dataset before it is resized: numpy columns as they lie in a pack. ``x`` is uint8 [N, H, W]
    or [N, H, W, 3]; anything but uint8 (signals, text) is no image and stays as it is.
    """

    x: np.ndarray
    y: np.ndarray
    split: np.ndarray
    class_names: Sequence[str]
    domain: np.ndarray | None = None
    domain_names: Sequence[str] = ()
    extra: dict[str, np.ndarray] = field(default_factory=dict)

    def take(self, rows: np.ndarray) -> Columns:
        return Columns(
            x=self.x[rows],
            y=self.y[rows],
            split=self.split[rows],
            class_names=self.class_names,
            domain=None if self.domain is None else self.domain[rows],
            domain_names=self.domain_names,
            extra={k: v[rows] for k, v in self.extra.items()},
        )

    def counts(self) -> dict[str, int]:
        return {"train": int((self.split == 0).sum()), "test": int((self.split == 1).sum())}


def finish(
    columns: Columns, name: str, size: int | None, channels: int, provenance: dict[str, Any]
) -> Dataset:
    """Columns to tensors: resized, in the wanted number of channels, with the training images' mean
    and deviation.
    """
    images = columns.x.dtype == np.uint8
    x = to_images(columns.x, size, channels) if images else torch.as_tensor(columns.x)
    y = torch.as_tensor(columns.y.astype(np.int64))
    split = torch.as_tensor(columns.split.astype(np.uint8))
    domain = (
        np.zeros(len(y), np.int64) if columns.domain is None else columns.domain.astype(np.int64)
    )
    mean, std = moments(x[split == 0]) if images else (None, None)
    return Dataset(
        x=x,
        y=y,
        split=split,
        domain=torch.as_tensor(domain),
        class_names=tuple(str(c) for c in columns.class_names),
        domain_names=tuple(str(d) for d in columns.domain_names) or (name,),
        name=name,
        provenance={"dataset": name, "counts": columns.counts(), "size": x.shape[-1], **provenance},
        extra={k: torch.as_tensor(v) for k, v in columns.extra.items()},
        mean=mean,
        std=std,
    )


def check_geometry(size: int | None, channels: int) -> None:
    if size is not None and not (isinstance(size, int) and 4 <= size <= 1024):
        raise FedbookError(
            f"size must be a whole number of pixels from 4 to 1024, got {size!r}",
            "for example size=32",
        )
    if channels not in (1, 3):
        raise FedbookError(f"channels must be 1 or 3, got {channels!r}", "1 for grey, 3 for colour")


def to_images(x: np.ndarray, size: int | None, channels: int, batch: int = 2048) -> Tensor:
    """uint8 [N, H, W(, 3)] to uint8 [N, C, size, size]: bilinear with antialiasing, grey by the
    usual luma weights.
    """
    check_geometry(size, channels)
    source = torch.from_numpy(np.ascontiguousarray(x))
    source = source[:, None] if source.ndim == 3 else source.permute(0, 3, 1, 2)
    height = size or source.shape[2]
    width = size or source.shape[3]
    out = torch.empty((len(source), channels, height, width), dtype=torch.uint8)
    luma = torch.tensor([0.299, 0.587, 0.114]).reshape(1, 3, 1, 1)
    for at in range(0, len(source), batch):
        part = source[at : at + batch]
        if channels == 1 and part.shape[1] == 3:
            part = (part.float() * luma).sum(1, keepdim=True).round().to(torch.uint8)
        if part.shape[2:] != (height, width):
            part = resize(part, height, width)
        out[at : at + batch] = part
    return out


def resize(x: Tensor, height: int, width: int) -> Tensor:
    """uint8 [N, C, H, W] to another size, bilinear and antialiased."""
    small = torch.nn.functional.interpolate(
        x.float(), size=(height, width), mode="bilinear", antialias=True, align_corners=False
    )
    return small.round_().clamp_(0, 255).to(torch.uint8)


def moments(x: Tensor, batch: int = 4096) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Per channel mean and standard deviation of uint8 images scaled to [0, 1]."""
    if len(x) == 0:
        return (0.5,) * x.shape[1], (0.5,) * x.shape[1]
    total = torch.zeros(x.shape[1], dtype=torch.float64)
    square = torch.zeros(x.shape[1], dtype=torch.float64)
    for part in x.split(batch):
        flat = part.permute(1, 0, 2, 3).reshape(x.shape[1], -1).to(torch.int32)
        total += flat.sum(1)
        square += (flat * flat).sum(1)
    n = x.numel() / x.shape[1]
    mean = total / n / 255
    std = (square / n / 255**2 - mean**2).clamp(min=1e-12).sqrt()
    return tuple(round(float(m), 6) for m in mean), tuple(round(float(s), 6) for s in std)
