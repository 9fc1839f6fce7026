"""Harmo-FL: images of all clients get the same spectrum of amplitudes, and local steps seek flat
places.

Jiang, Wang and Dou, "HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on
Heterogeneous Medical Images", AAAI 2022.

    A_k = mean over client k's images of |FFT(x)|,    A = (1/K) sum_k A_k                        (a)
    x'  = FFT^{-1}(A, phase of FFT(x))                                                           (b)
    delta = alpha g / ||g||,  w <- w - eta grad F_k(w + delta),    on x'  (c), the step of `fedsam`

| symbol | here | default | where |
|---|---|---|---|
| alpha | `alpha` | 0.05 | the authors' code, FedGCR's code |
| L, frequencies replaced | `window` | None: all, as (b) says | 0.0 in both authors' code |

`window` L replaces the frequencies up to floor(L min(H, W)) in both directions; L = 0 is the zero
frequency alone, so that only each channel's mean changes. `amplitude=False` leaves images as they
are (FedSAM).

Differs from the paper: A_k is the exact mean over a client's training images, and A is exchanged
once before round 1; the paper keeps a decaying mean over the batches of round 1, which each client
trains with its own, and exchanges it after that round. From then on A is frozen in both, and used
at test time. (a) and (b) act on pixels before normalisation, in [0, 1]: of a normalised image the
zero frequency may be negative, and its sign would be kept. The server weighs by n_k (the paper has
equal clients); `get("harmofl").replace(weigh=Equal())` is 1 / K. Differs from the authors' code:
its momentum is declared an integer, so that A_k stays that of the first batch. Features a model
could precompute are those of other images, so the wrapped model offers none. Its parameters' names
begin with "model.".
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Client, Federation
from fedbook.methods.fedavg import fedavg
from fedbook.methods.fedsam import SharpnessAware
from fedbook.rounds import Method
from fedbook.rounds.stages import State


class AmplitudeNorm(nn.Module):
    """Images with their own phases and the amplitudes `A` [C, H, W // 2 + 1] (real images: half a
    spectrum is all), by default the mean of the federation's clients.
    """

    A: Tensor
    replaced: Tensor

    def __init__(
        self, federation: Federation, window: float | None = None, A: Tensor | None = None
    ) -> None:
        super().__init__()
        _, height, width = federation.input_shape
        reach = max(height, width) if window is None else int(window * min(height, width))
        rows = torch.fft.fftfreq(height, 1 / height)
        columns = torch.fft.rfftfreq(width, 1 / width)
        replaced = (rows.abs()[:, None] <= reach) & (columns <= reach)
        self.register_buffer("replaced", replaced.to(federation.device), persistent=False)
        if A is None:
            found = [self.client_amplitude(federation, c.train) for c in federation.clients]
            A = torch.stack(found).mean(0)  # (a)
        self.register_buffer("A", A, persistent=False)

    def spectrum(self, x: Tensor) -> Tensor:
        return torch.fft.rfft2(x.float())

    def client_amplitude(self, federation: Federation, index: Tensor) -> Tensor:
        parts = [self.spectrum(federation.inputs(i)).abs().sum(0) for i in index.split(256)]
        return torch.stack(parts).sum(0) / len(index)

    def forward(self, x: Tensor) -> Tensor:
        f = self.spectrum(x)
        f = torch.where(self.replaced, torch.polar(self.A.expand_as(f), f.angle()), f)
        return torch.fft.irfft2(f, s=x.shape[-2:])  # (b)


class Normalised(nn.Module):
    """A model that sees amplitude-normalised images."""

    def __init__(self, model: nn.Module, norm: AmplitudeNorm) -> None:
        super().__init__()
        self.model: Any = model
        self.norm = norm

    @property
    def head(self) -> nn.Module:
        return self.model.head

    def precompute(self, federation: Federation) -> dict[str, Tensor]:
        """What the model keeps of the images it sees, which never change either."""
        offer = getattr(self.model, "precompute", None)
        if offer is None:
            return {}
        rows = torch.arange(len(federation.x), device=federation.device)
        seen = torch.cat([self.norm(federation.inputs(part)) for part in rows.split(256)])
        return offer(dataclasses.replace(federation, x=seen))

    def embed(self, x: Tensor, **extra: Tensor) -> Tensor:
        return self.model.embed(self.norm(x), **extra)

    def forward(self, x: Tensor, **extra: Tensor) -> Tensor:
        return self.head(self.embed(x, **extra))


@dataclass(frozen=True, kw_only=True)
class Harmonised(SharpnessAware):
    amplitude: bool = True
    window: float | None = None

    def tell(self, federation: Federation, client: Client) -> State:
        if not self.amplitude:
            return {}
        if len(federation.input_shape) != 3:
            raise FedbookError(
                "Harmo-FL normalises images of shape C x H x W, got samples of shape "
                f"{federation.input_shape}",
                "use amplitude=False",
            )
        alone = dataclasses.replace(federation, clients=(client,))
        return {"amplitude": AmplitudeNorm(alone, self.window).A}

    def announce(self, federation: Federation, told: list[State]) -> State:
        if not self.amplitude:
            return {}
        return {"amplitude": torch.stack([t["amplitude"] for t in told]).mean(0)}  # (a)

    def adapt(self, model: nn.Module, federation: Federation, known: State) -> nn.Module:
        if not self.amplitude:
            return model
        return Normalised(model, AmplitudeNorm(federation, self.window, known["amplitude"]))


def harmofl(
    alpha: float = 0.05, amplitude: bool = True, window: float | None = None, **options: Any
) -> Method:
    """Harmo-FL with radius `alpha`; `window=0.0` as the authors ran it; `options` are FedAvg's."""
    base = fedavg(**options)
    solve = Harmonised(**vars(base.solve), rho=alpha, amplitude=amplitude, window=window)
    return base.replace(name="harmofl", solve=solve)
