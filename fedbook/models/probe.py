"""What a frozen backbone is worth: linear probes on eight sets, against random initialisation and
raw pixels.

`fedbook pretrain probe` prints the table. Choices between networks use `on="validation"`, which
never sees test images.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    import pandas as pd

PROBES = ("cifar10", "cifar100-late", "pacs", "emoji7", "mnist", "usps", "mnist_m", "fashion_mnist")


def _probe_set(
    name: str, train: int, test: int, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from fedbook import data

    dataset = data.load(name.removesuffix("-late"), size=32)
    rng, wanted = (
        torch.Generator().manual_seed(seed),
        dataset.y >= (50 if name.endswith("-late") else 0),
    )
    parts: list[Tensor] = []
    for split, most in ((0, train), (1, test)):
        index = ((dataset.split == split) & wanted).nonzero()[:, 0]
        index = index[torch.randperm(len(index), generator=rng)[:most]]
        parts += [dataset.x[index], dataset.y[index]]
    return parts[0], parts[1], parts[2], parts[3]


@torch.inference_mode()
def features(model: Any, x: Tensor, batch_size: int = 500) -> Tensor:
    """The class token after the last norm, for uint8 images at the model's own size."""
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (model.norm_mean, model.norm_std))
    return torch.cat([model((part.float() / 255 - mean) / std) for part in x.split(batch_size)])


def linear_probe(
    train: Tensor, y: Tensor, test: Tensor | None = None, y_test: Tensor | None = None
) -> float:
    """Accuracy of a logistic regression on standardised features; C is chosen on a quarter of the
    training rows.

    Without a test set the answer is the accuracy on that quarter: this is what choices between
    networks go by.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def fit(c: float, rows: slice) -> Any:
        regression = LogisticRegression(C=c, max_iter=150, tol=1e-3)
        return make_pipeline(StandardScaler(), regression).fit(train[rows].numpy(), y[rows].numpy())

    cut = len(train) * 3 // 4
    inner = {
        c: fit(c, slice(cut)).score(train[cut:].numpy(), y[cut:].numpy())
        for c in (1e-3, 1e-2, 1e-1)
    }
    best = max(inner, key=lambda c: inner[c])
    if test is None or y_test is None:
        return float(inner[best])
    return float(fit(best, slice(None)).score(test.numpy(), y_test.numpy()))


def probe_table(
    backbone: str = "bundled",
    sets: tuple[str, ...] = PROBES,
    kinds: tuple[str, ...] = ("pixels", "random", "pretrained"),
    on: str = "test",
    train: int = 4000,
    test: int = 2000,
    seed: int = 0,
) -> pd.DataFrame:
    """Linear probe accuracy per set of raw pixels, the network at random initialisation, and the
    pretrained one.

    `on="validation"` holds out a quarter of the training images instead of touching the test
    images.
    """
    import pandas as pd

    from fedbook.models.backbones import backbone as build

    nets = {
        kind: build(backbone, pretrained=kind == "pretrained") for kind in kinds if kind != "pixels"
    }
    rows = []
    for name in sets:
        x, y, x_test, y_test = _probe_set(name, train, test, seed)
        row: dict[str, Any] = {"set": name, "train": len(x), "test": len(x_test)}
        for kind in kinds:
            z, z_test = (
                features(nets[kind], v) if kind in nets else v.flatten(1).float()
                for v in (x, x_test)
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                row[kind] = (
                    linear_probe(z, y, z_test, y_test) if on == "test" else linear_probe(z, y)
                )
        rows.append(row)
    table = pd.DataFrame(rows).set_index("set")
    if {"random", "pretrained"} <= set(kinds):
        table["gain"] = table["pretrained"] - table["random"]
    return table
