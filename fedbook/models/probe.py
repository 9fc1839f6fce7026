"""What a frozen network knows: of classes, by linear probes; of domains, by neighbours and
clusters.

`fedbook pretrain probe` and `fedbook pretrain domains` print the tables. Choices between networks
use `on="validation"`, which never sees test images.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbook.errors import FedbookError

if TYPE_CHECKING:
    import pandas as pd

    from fedbook.data import Dataset

PACS = tuple(f"pacs/{d}" for d in ("photo", "art_painting", "cartoon", "sketch"))
DIGITS = ("mnist", "usps", "mnist_m", "font_digits", "scene_digits")
PHOTOS = ("cifar10", "cifar100", "pacs", *PACS)
PROBES = (*PHOTOS, "emoji7", *DIGITS, "fashion_mnist", "notmnist", "digits5_offline")
DOMAINS = ("pacs", "digits5_chars74k", "emoji7", "digits5_offline")
NETWORKS = ("pixels", "lite0", "hybrid")
PX = {"pacs": 64, "emoji7": 64}  # the others are 32 px or smaller


def load(name: str) -> Dataset:
    from fedbook import data

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a subset of a published dataset is fine here
        return data.load(name, size=PX.get(name, 32))


def here(sets: Sequence[str]) -> list[str]:
    """Those of the sets that need no download."""
    from fedbook import data

    status = {name: data.info(name.partition("/")[0])["status"] for name in sets}
    return [name for name in sets if status[name] in ("offline", "cached")]


def network(name: str | nn.Module) -> Any:
    """ "pixels" (None), "lite0" (its pooled feature), a backbone's name, or name@pixels."""
    if not isinstance(name, str):
        return name
    if name == "pixels":
        return None
    if name == "lite0":
        from fedbook.models.hybrid import PX as px
        from fedbook.models.hybrid import lite0

        pooled = lite0()
        pooled.reset_classifier(0)
        pooled.norm_mean = pooled.norm_std = (0.5, 0.5, 0.5)
        pooled.input_size = (3, px, px)
        return pooled
    from fedbook.models.backbones import backbone

    plain, _, size = name.partition("@")
    return backbone(plain, size=int(size) if size else None)


@torch.inference_mode()
def features(model: Any, x: Tensor, batch_size: int = 16) -> Tensor:
    """What a network says of uint8 images of any size; None says the pixels themselves."""
    from fedbook.models.backbones import Prepare

    if model is None:
        return torch.cat([_shrunk(part) for part in x.split(500)])
    prepare = Prepare.of(model)
    return torch.cat([model(prepare(part.float() / 255)) for part in x.split(batch_size)])


def _shrunk(x: Tensor, size: int = 32) -> Tensor:
    x = x.float()
    if x.shape[-1] != size:
        x = nn.functional.interpolate(x, size=(size, size), mode="bilinear", antialias=True)
    return x.flatten(1)


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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make_pipeline(StandardScaler(), regression).fit(
                train[rows].numpy(), y[rows].numpy()
            )

    cut = len(train) * 3 // 4
    inner = {
        c: fit(c, slice(cut)).score(train[cut:].numpy(), y[cut:].numpy())
        for c in (1e-3, 1e-2, 1e-1)
    }
    best = max(inner, key=lambda c: inner[c])
    if test is None or y_test is None:
        return float(inner[best])
    return float(fit(best, slice(None)).score(test.numpy(), y_test.numpy()))


def _rows(dataset: Dataset, domain: str, split: int, most: int, rng: torch.Generator) -> Tensor:
    wanted = dataset.split == split
    if domain:
        wanted = wanted & (dataset.domain == dataset.domain_names.index(domain))
    rows = wanted.nonzero()[:, 0]
    return rows[torch.randperm(len(rows), generator=rng)[:most]]


def probe_table(
    networks: Sequence[str | nn.Module] = NETWORKS,
    sets: Sequence[str] | None = None,
    on: str = "test",
    train: int = 2000,
    test: int = 2000,
    seed: int = 0,
) -> pd.DataFrame:
    """Linear probe accuracy: one row per set ("pacs/photo": one domain of it; unless told those of
    PROBES that are here), one column per network, the same images for all.

    `on="validation"` holds out a quarter of the training images instead of touching the test
    images.
    """
    import pandas as pd

    nets = {_name(n): network(n) for n in networks}
    rows = []
    for name in here(PROBES) if sets is None else sets:
        plain, _, domain = name.partition("/")
        dataset = load(plain)
        rng = torch.Generator().manual_seed(seed)
        fit = _rows(dataset, domain, split=0, most=train, rng=rng)
        check = _rows(dataset, domain, split=1, most=test, rng=rng) if on == "test" else fit[:0]
        row: dict[str, Any] = {"set": name, "train": len(fit), "test": len(check)}
        for key, net in nets.items():
            z = features(net, dataset.x[torch.cat([fit, check])])
            held = (z[len(fit) :], dataset.y[check]) if on == "test" else (None, None)
            row[key] = linear_probe(z[: len(fit)], dataset.y[fit], *held)
        rows.append(row)
    return pd.DataFrame(rows).set_index("set")


def _name(network: str | nn.Module) -> str:
    return network if isinstance(network, str) else getattr(network, "name", "network")


def step_table(networks: Sequence[str | nn.Module] = NETWORKS, repeats: int = 20) -> pd.Series:
    """Milliseconds per image of one prompted training step (four prompts, batch 32, one thread),
    medians of interleaved repeats; what takes no prompts is left out.
    """
    import pandas as pd
    from timm.models.vision_transformer import VisionTransformer

    from fedbook.clock import interleave, use_threads

    nets = {_name(n): network(n) for n in networks}
    vits = {k: v for k, v in nets.items() if isinstance(v, VisionTransformer)}
    steps = {k: prompted_step(v, batch=32) for k, v in vits.items()}
    with use_threads(1):
        spent = interleave(steps, repeats, warm_up=2)
    return pd.Series({k: 1e3 * times.median() / 32 for k, times in spent.items()})


def prompted_step(vit: nn.Module, batch: int, prompts: int = 4) -> Callable[[], None]:
    """A VPT step on a backbone, with the tokens kept where they would be."""
    from fedbook.models.prompts import vpt

    model = vpt(10, vit, prompts).train()
    x = torch.randn(batch, 3, *model.backbone.patch_embed.img_size)
    kept = {"tokens": model.tokens(x).half()} if model.stem else {}
    y = torch.randint(10, (batch,))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x, **kept), y).backward()
        optimizer.step()

    return step


def domain_table(
    networks: Sequence[str | nn.Module] = NETWORKS,
    sets: Sequence[str] | None = None,
    images: int = 2000,
    per_client: int = 40,
    seed: int = 0,
) -> pd.DataFrame:
    """What a frozen feature knows of domains, before any training.

    `purity`: share of an image's ten nearest training images (cosine) that are of its domain;
    `clusters`: accuracy of a diagonal Gaussian mixture in finding the domains of clients, of whom
    only the mean feature of `per_client` images of one domain is known (five clients or more each).
    """
    import pandas as pd

    from fedbook.metrics import clustering_accuracy

    nets = {_name(n): network(n) for n in networks}
    table = []
    for name in here(DOMAINS) if sets is None else sets:
        dataset = load(name)
        rng = torch.Generator().manual_seed(seed)
        rows = _rows(dataset, "", split=0, most=images, rng=rng)
        domain = dataset.domain[rows]
        share = torch.bincount(domain).float() / len(rows)
        line: dict[str, Any] = {"set": name, "chance purity": float((share**2).sum())}
        for key, net in nets.items():
            z = features(net, dataset.x[rows])
            z = nn.functional.normalize(z - z.mean(0), dim=1)
            line[f"{key} purity"] = _purity(z, domain)
            clients, types = _clients(z, domain, per_client)
            found = _mixture(clients, len(dataset.domain_names), seed)
            line[f"{key} clusters"] = clustering_accuracy(found, types)
        table.append(line)
    return pd.DataFrame(table).set_index("set")


def _purity(z: Tensor, domain: Tensor, k: int = 10) -> float:
    near = (z @ z.T).fill_diagonal_(-2).topk(k, dim=1).indices
    return float((domain[near] == domain[:, None]).float().mean())


def _clients(z: Tensor, domain: Tensor, per_client: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean features of clients that hold so many images of one domain, and that domain."""
    means = []
    types = []
    for d in domain.unique().tolist():
        parts = z[domain == d].split(per_client)
        means += [part.mean(0) for part in parts if len(part) == per_client]
        types += [d] * sum(len(part) == per_client for part in parts)
    if not means:
        raise FedbookError(f"no domain has {per_client} images", "ask for fewer per client")
    return nn.functional.normalize(torch.stack(means), dim=1).numpy(), np.array(types)


def _mixture(vectors: np.ndarray, clusters: int, seed: int) -> np.ndarray:
    from sklearn.mixture import GaussianMixture

    mixture = GaussianMixture(clusters, covariance_type="diag", n_init=10, random_state=seed)
    return mixture.fit_predict(vectors.astype(np.float64))
