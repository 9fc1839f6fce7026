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
from fedbook.federation import Federation
from fedbook.methods.fedavg import fedavg
from fedbook.rounds import Batch, Local, Method, Objective
from fedbook.rounds.stages import State


class Means(nn.Module):
    """X_g and Y_g, what everybody holds of everybody's data: buffers of the model that are neither
    trained nor sent.
    """

    x: Tensor
    y: Tensor

    def __init__(self, federation: Federation, mean_of: int, model: Any = None) -> None:
        super().__init__()
        label = torch.eye(federation.num_classes, device=federation.device)
        x, y = [], []
        for c in federation.clients:
            order = torch.randperm(len(c.train), generator=torch.Generator().manual_seed(c.id)).to(
                c.train.device
            )
            for part in c.train[order].tensor_split(count(len(c.train), mean_of)):
                x.append(federation.inputs(part).mean(0))
                y.append(label[federation.y[part]].mean(0))
        means = torch.stack(x)
        if getattr(model, "stem", False):  # mixed where training begins: behind the frozen stem
            with torch.no_grad():
                means = torch.cat([model.tokens(part) for part in means.split(16)])
        self.register_buffer("x", means, persistent=False)
        self.register_buffer("y", torch.stack(y), persistent=False)


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

    def adapt(self, model: nn.Module, federation: Federation) -> nn.Module:
        if not federation.x.is_floating_point() and federation.x.dtype != torch.uint8:
            raise FedbookError(
                f"FedMix averages samples, {federation.x.dtype} cannot be averaged", "use images"
            )
        model.fedmix = Means(federation, self.mean_of, model)
        return model

    def once(self, federation: Federation) -> tuple[int, int]:
        means = sum(count(len(c.train), self.mean_of) for c in federation.clients)
        up = 4 * means * (federation.x[0].numel() + federation.num_classes)
        return up, up * len(federation)

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
