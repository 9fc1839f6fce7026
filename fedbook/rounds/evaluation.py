"""One pass over all test samples, then per-client loss, accuracy and macro-F1 by counting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbook.federation import Client, Federation
from fedbook.rounds.device import Device


@dataclass(frozen=True)
class Scores:
    """Per client, in the order asked for; a client without test samples scores NaN."""

    loss: list[float]
    acc: list[float]
    f1: list[float]


@torch.no_grad()
def predict(
    model: nn.Module,
    federation: Federation,
    index: Tensor,
    *,
    device: Device,
    precomputed: dict[str, Tensor],
    batch: int = 512,
    z: list[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Loss and predicted class of each sample at `index`, in eval mode; a list `z` gets their
    features.
    """
    if not len(index):
        return torch.empty(0, device=index.device), index
    was_training = model.training
    model.eval()
    any_format = getattr(model, "any_format", False)
    losses = []
    classes = []
    for part in index.split(batch):
        known = {name: t[part] for name, t in precomputed.items()}
        x = device.images(federation.inputs(part))
        if any_format and x.ndim == 4:  # convolutions on a CPU take half the time
            x = x.contiguous(memory_format=torch.channels_last)
        with device.autocast():
            if z is None:
                logits = model(x, **known)
            else:
                z.append(model.embed(x, **known))  # type: ignore[operator]
                logits = model.head(z[-1])  # type: ignore[operator]
        losses.append(F.cross_entropy(logits.float(), federation.y[part], reduction="none"))
        classes.append(logits.argmax(1))
    model.train(was_training)
    return torch.cat(losses), torch.cat(classes)


def score(
    owner: Tensor, clients: int, *, loss: Tensor, predicted: Tensor, y: Tensor, classes: int
) -> Scores:
    """Means over each owner's samples; macro-F1 over the classes that occur in its labels. An
    answer that is not a number is wrong whatever class it would be.
    """
    n = torch.bincount(owner, minlength=clients)

    def mean(values: Tensor) -> list[float]:
        return (torch.bincount(owner, values.double(), minlength=clients) / n).tolist()

    def count(label: Tensor, keep: Tensor) -> Tensor:
        flat = (owner * classes + label)[keep]
        return torch.bincount(flat, minlength=clients * classes).reshape(clients, classes)

    hit = (predicted == y) & ~loss.isnan()
    everything = torch.ones_like(hit)
    true = count(y, everything)
    f1 = 2 * count(y, hit) / (true + count(predicted, everything)).clamp(min=1)
    present = true > 0
    macro = (f1 * present).sum(1) / present.sum(1)
    return Scores(mean(loss), mean(hit), macro.tolist())


def evaluate(
    model: nn.Module,
    federation: Federation,
    clients: Sequence[Client] | None = None,
    *,
    part: str = "test",
    device: str | Device = "auto",
    precomputed: dict[str, Tensor] | None = None,
    z: list[Tensor] | None = None,
) -> Scores:
    """Score one model on every client's test (or train) samples.

    Samples that several clients share are computed once. `federation` may be another one than the
    model was trained on: that is how never-seen clients are scored. A list `z` gets the features of
    all these samples, each once, in the order of their numbers.
    """
    device = Device.of(device)
    clients = federation.clients if clients is None else clients
    rows = [getattr(c, part) for c in clients]
    index, back = torch.unique(torch.cat(rows), return_inverse=True)
    known = precompute(model, federation) if precomputed is None else precomputed
    loss, predicted = predict(model, federation, index, device=device, precomputed=known, z=z)
    owner = torch.repeat_interleave(torch.tensor([len(r) for r in rows]).to(index.device))
    return score(
        owner,
        len(clients),
        loss=loss[back],
        predicted=predicted[back],
        y=federation.y[index][back],
        classes=federation.num_classes,
    )


def precompute(model: nn.Module, federation: Federation) -> dict[str, Tensor]:
    """Per-sample tensors that depend on no trained parameter, if the model offers any."""
    offer: Callable[[Federation], dict[str, Any]] | None = getattr(model, "precompute", None)
    return offer(federation) if offer else {}
