"""FedMix: Mixup with other clients' data, of which only means of a few samples ever leave their
owner.

Yoon, Shin, Hwang and Yang, "FedMix: Approximation of Mixup under Mean Augmented Federated
Learning", ICLR 2021.

    once: client k sends means (xbar, ybar) of M_k samples and one-hot labels; all get all of them
    each batch draws one (xbar, ybar) and minimises, to first order in lambda what Mixup would,

    l = (1 - lam) CE(f((1 - lam) x), y) + lam CE(f((1 - lam) x), ybar)                           (a)
        + lam < d/dx [(1 - lam) CE(f((1 - lam) x), y)], xbar >                                   (b)

| symbol | here | default | where |
|---|---|---|---|
| lambda | `lam` | 0.05 | FedGCR's code and the public re-implementation |
| M_k | `mean_of` | 5 | the public re-implementation |

Differs from the paper: a client's samples are cut at random into means of M_k or slightly more,
never fewer unless it has fewer (a mean of one would be the sample itself). They are the same in
every run. (b) is the mean over the batch of each sample's own derivative. Differs from the public
re-implementation (not the authors'): it takes (b) from the mean loss of the batch and averages over
the batch again, which makes the term B times too small. The derivative with respect to the image
needs a model that looks at the image, so cached features are not used, and attention that can be
differentiated twice. Only what a model names in `only_choose` is handed over: FGPT chooses the
group of an image by the image itself, not by its scaled copy. On a backbone whose patches are seen
by a frozen convolutional stem, x and xbar are the tokens behind it: the means that travel are still
of images.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedbook.errors import FedbookError
from fedbook.federation import Client, Federation
from fedbook.methods.fedavg import fedavg
from fedbook.rounds import Batch, Local, Method, Objective
from fedbook.rounds.stages import State


class Means(nn.Module):
    """X_g and Y_g, what everybody holds of everybody's data: buffers of the model that are neither
    trained nor sent.
    """

    x: Tensor
    y: Tensor

    def __init__(self, x: Tensor, y: Tensor) -> None:
        super().__init__()
        self.register_buffer("x", x, persistent=False)
        self.register_buffer("y", y, persistent=False)


def means_of(federation: Federation, client: Client, mean_of: int) -> State:
    """The means of samples and labels that a client shares."""
    label = torch.eye(federation.num_classes, device=federation.device)
    rng = torch.Generator().manual_seed(client.id)
    order = torch.randperm(len(client.train), generator=rng).to(client.train.device)
    x = []
    y = []
    for part in client.train[order].tensor_split(count(len(client.train), mean_of)):
        x.append(federation.inputs(part).mean(0))
        y.append(label[federation.y[part]].mean(0))
    return {"x": torch.stack(x), "y": torch.stack(y)}


def count(samples: int, mean_of: int) -> int:
    """How many means a client shares."""
    return max(1, samples // mean_of)


@dataclass(frozen=True)
class MeanMixup(Objective):
    lam: float = 0.05
    mean_of: int = 5
    lockstep: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.lam < 1 and self.mean_of >= 1):
            raise FedbookError(
                f"FedMix needs lam in [0, 1) and mean_of of at least 1, got {self.lam} and "
                f"{self.mean_of}",
                "try lam=0.05, mean_of=5",
            )

    def tell(self, federation: Federation, client: Client) -> State:
        if not federation.x.is_floating_point() and federation.x.dtype != torch.uint8:
            raise FedbookError(
                f"FedMix averages samples, {federation.x.dtype} cannot be averaged", "use images"
            )
        return means_of(federation, client, self.mean_of)

    def announce(self, federation: Federation, told: list[State]) -> State:
        return {name: torch.cat([t[name] for t in told]) for name in ("x", "y")}

    def adapt(self, model: Any, federation: Federation, known: State) -> nn.Module:
        x = known["x"]
        if getattr(model, "stem", False):  # mixed where training begins: behind the frozen stem
            with torch.no_grad():
                x = torch.cat([model.tokens(part).to(x.dtype) for part in x.split(16)])
        model.fedmix = Means(x, known["y"])
        return model

    def __call__(self, local: Local, batch: Batch, sent: State, memory: State) -> Tensor:
        means = next(m for m in local.model.modules() if isinstance(m, Means))
        g = int(torch.randint(len(means.x), ()))
        tokens = batch.precomputed.get("tokens")
        x = (1 - self.lam) * (batch.x if tokens is None else tokens.float())
        x.requires_grad_()
        only_choose = getattr(local.model, "only_choose", ())
        chosen = {k: v for k, v in batch.precomputed.items() if k in only_choose}
        with sdpa_kernel(SDPBackend.MATH):
            if tokens is None:
                logits = local.model(x, **chosen)
            else:
                logits = local.model(batch.x, tokens=x, **chosen)
        batch.scored = logits
        own = (1 - self.lam) * F.cross_entropy(logits, batch.y)
        label = self.label(batch.y, means.y[g].expand_as(logits))
        other = self.lam * F.cross_entropy(logits, label)  # (a)
        (slope,) = torch.autograd.grad(own, x, create_graph=True)
        slope = self.each(slope)
        return own + other + self.lam * (slope.flatten(1) @ means.x[g].flatten()).mean()  # (b)

    def label(self, y: Tensor, mean: Tensor) -> Tensor:
        """The label of the second cross-entropy."""
        return mean

    def each(self, slope: Tensor) -> Tensor:
        """Each sample's own derivative from that of the batch's mean, which is 1 / B of it."""
        return slope * len(slope)


def fedmix(lam: float = 0.05, mean_of: int = 5, **options: Any) -> Method:
    """FedMix with weight `lam` and means of `mean_of` samples; `options` are FedAvg's."""
    return fedavg(**options).replace(name="fedmix", objective=(MeanMixup(lam, mean_of),))
