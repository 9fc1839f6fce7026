"""Where and how tensors are computed: device, bf16, memory format and compilation in one place."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedbook.errors import FedbookError

# On a CPU every batch size of every convolution is a kernel of its own, made when first met.
# Clients differ in size: the usual 1024 are soon exceeded, and a small network then spends most of
# its time making them again.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")


@dataclass(frozen=True)
class Device:
    """`Device("auto")` takes the GPU if there is one. The other fields trade exactness for speed;
    off by default.
    """

    name: str = "auto"
    bf16: bool = False
    channels_last: bool = False
    compile: bool = False
    together: int | None = None  # clients of a chunk in lock-step; None: as suits the device

    @staticmethod
    def of(device: str | torch.device | Device) -> Device:
        return device if isinstance(device, Device) else Device(str(device))

    @property
    def torch(self) -> torch.device:
        if self.name == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.name)
        except RuntimeError:
            raise FedbookError(
                f"unknown device {self.name!r}", "use 'auto', 'cpu', 'cuda' or 'cuda:1'"
            ) from None
        if device.type == "cuda" and not torch.cuda.is_available():
            raise FedbookError(
                "device 'cuda' was asked for, but torch sees no GPU", "use device='auto' or 'cpu'"
            )
        return device

    def place(self, model: nn.Module) -> nn.Module:
        """Move the model here, in the chosen memory format; compilation keeps the parameters'
        names.
        """
        model = model.to(self.torch)
        if self.channels_last:
            model = model.to(memory_format=torch.channels_last)
        if self.compile:
            model.embed = torch.compile(model.embed)  # type: ignore[arg-type,assignment]
        return model

    def images(self, x: Tensor) -> Tensor:
        """A batch in the chosen memory format."""
        return (
            x.contiguous(memory_format=torch.channels_last)
            if self.channels_last and x.ndim == 4
            else x
        )

    def autocast(self) -> contextlib.AbstractContextManager:
        """bf16 arithmetic inside the block, if asked for; parameters and sums stay float32."""
        return (
            torch.autocast(self.torch.type, torch.bfloat16)
            if self.bf16
            else contextlib.nullcontext()
        )
