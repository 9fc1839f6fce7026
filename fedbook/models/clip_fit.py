"""How the offline image-text pair is made and what it is worth: `fedbook pretrain clip`.

Text is brought to the pictures by kernel ridge regression from the sentences of Tiny ImageNet's
class names to where pictures of these classes lie. A class that is a client's class, or a kind of
one, is left out: the clients' names must be new to it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedbook.models.clip import (
    IMAGE_TOWERS,
    TEXT_TOWERS,
    WEIGHTS,
    ImageTextEncoder,
    ImageTower,
    Projection,
    TextTower,
    _kernel,
    image_text_encoder,
    orthogonal,
    prompt,
)

if TYPE_CHECKING:
    import pandas as pd

GAMMAS = (1.0, 2.0, 3.0, 5.0)
RIDGES = (0.3, 1.0, 3.0)
HELD = 10  # classes left out at a time when these two are chosen

# Tiny ImageNet's classes that are, or are a kind of, a class of cifar10, cifar100, pacs or
# fashion_mnist. (emoji7's classes, such as "mammal", are kinds of nothing so narrow.)
OVERLAP = {
    "bird": "albatross, black stork, crane, goose, king penguin",
    "cat": "Egyptian cat, Persian cat, tabby",
    "dog": "Chihuahua, German shepherd, Labrador retriever, Yorkshire terrier, golden retriever, "
    "standard poodle",
    "frog": "bullfrog, tailed frog",
    "automobile": "beach wagon, convertible, go-kart, limousine, sports car",
    "truck": "moving van, police van",
    "ship": "gondola, lifeboat",
    "aquarium fish": "goldfish",
    "bear": "brown bear",
    "bee": "bee",
    "beetle": "ladybug",
    "bottle": "beer bottle, pill bottle, pop bottle, water jug",
    "bridge": "steel arch bridge, suspension bridge, viaduct",
    "bus": "school bus, trolleybus",
    "butterfly": "monarch, sulphur butterfly",
    "camel": "Arabian camel",
    "cattle": "bison, ox",
    "chair": "rocking chair",
    "chimpanzee": "chimpanzee",
    "clock": "stopwatch",
    "cockroach": "cockroach",
    "crocodile": "American alligator",
    "cup": "espresso",
    "elephant": "African elephant",
    "hamster": "guinea pig",
    "house": "barn, birdhouse, cliff dwelling, thatch",
    "keyboard": "computer keyboard",
    "lamp": "lampshade",
    "lawn mower": "lawn mower",
    "leopard": "cougar",
    "lion": "lion",
    "lobster": "American lobster, spiny lobster",
    "mountain": "alp",
    "mushroom": "mushroom",
    "oak tree": "acorn",
    "orange": "orange",
    "plate": "plate",
    "rocket": "projectile",
    "sea": "seashore",
    "snail": "sea slug, slug, snail",
    "snake": "boa constrictor",
    "spider": "black widow, tarantula",
    "sweet pepper": "bell pepper",
    "table": "desk, dining table",
    "telephone": "pay-phone",
    "tractor": "tractor",
    "train": "bullet train, freight car",
    "bag": "backpack",
    "coat": "fur coat",
    "dress": "academic gown, kimono, miniskirt",
    "pullover": "cardigan",
    "sandal": "sandal",
}


def _dual(anchors: Tensor, targets: Tensor, gamma: float, ridge: float) -> Tensor:
    """Coefficients of kernel ridge regression onto targets of length one, their mean left out."""
    targets = F.normalize(targets, dim=1)
    k = _kernel(anchors, anchors, gamma).double()
    return torch.linalg.solve(
        k + ridge * torch.eye(len(k), dtype=k.dtype), (targets - targets.mean(0)).double()
    ).float()


def leave_classes_out(
    z: Tensor, y: Tensor, sentences: Tensor, repeats: int = 3, seed: int = 0
) -> dict[tuple[float, float], float]:
    """Zero-shot accuracy among ten classes that were held out of those of `y`, for every (gamma,
    ridge).
    """
    scores: dict[tuple[float, float], list[float]] = {(g, r): [] for g in GAMMAS for r in RIDGES}
    classes = len(sentences)
    for repeat in range(repeats):
        order = torch.randperm(classes, generator=torch.Generator().manual_seed(seed + repeat))
        for held in order.split(HELD):
            kept = torch.tensor(sorted(set(range(classes)) - set(held.tolist())))
            train = torch.isin(y, kept)
            test = torch.isin(y, held)
            centred = z - z[train].mean(0)
            anchors = sentences[kept]
            targets = torch.stack([centred[y == c].mean(0) for c in kept])
            for (gamma, ridge), found in scores.items():
                text = _kernel(sentences[held], anchors, gamma) @ _dual(
                    anchors, targets, gamma, ridge
                )
                guess = (F.normalize(centred[test], dim=1) @ F.normalize(text, dim=1).T).argmax(1)
                found.append((held[guess] == y[test]).float().mean().item())
    return {key: float(np.mean(found)) for key, found in scores.items()}


def foreign(names: Sequence[str]) -> list[int]:
    """The classes that are no client's."""
    left_out = {name for kinds in OVERLAP.values() for name in kinds.split(", ")}
    return [i for i, name in enumerate(names) if name not in left_out]


@lru_cache(maxsize=1)
def _public_features(
    image: str, per_class: int, seed: int
) -> tuple[tuple[str, ...], Tensor, Tensor]:
    """Names of the classes that are no client's, and features and labels of some training images
    of each.
    """
    from fedbook import data

    tiny = data.load("tiny_imagenet", size=48)
    classes = foreign(tiny.class_names)
    rng = np.random.default_rng(seed)
    y = tiny.y.numpy()
    split = tiny.split.numpy()
    mine = [rng.permutation(np.flatnonzero((y == c) & (split == 0)))[:per_class] for c in classes]
    rows = torch.from_numpy(np.concatenate(mine))
    tower = ImageTower(image)
    features = torch.cat([tower(tiny.x[part].float() / 255) for part in rows.split(64)])
    labels = torch.arange(len(classes)).repeat_interleave(torch.tensor([len(m) for m in mine]))
    return tuple(tiny.class_names[c] for c in classes), features, labels


@torch.no_grad()
def fit_offline_projection(
    image: str = "hybrid",
    text: str = "minilm",
    folder: str | Path = WEIGHTS,
    per_class: int = 100,
    seed: int = 0,
) -> Path:
    """Learn where the text of a class lies among pictures, on Tiny ImageNet's classes that are no
    client's.

    Kernel width and ridge are chosen by leaving classes out. The result is small and shipped; this
    is how it was made.
    """
    names, features, y = _public_features(image, per_class, seed)
    tower = ImageTower(image)
    sentence = TextTower(text)
    centre = features.mean(0)
    z = (features - centre) @ orthogonal(len(centre))
    anchors = sentence([prompt(n) for n in names])
    targets = torch.stack([z[y == c].mean(0) for c in range(len(names))])
    scores = leave_classes_out(z, y, anchors, seed=seed)
    gamma, ridge = max(scores, key=lambda key: scores[key])
    header = {
        "image": tower.fingerprint,
        "text": sentence.fingerprint,
        "ridge": ridge,
        "anchors": f"{len(names)} classes of tiny_imagenet",
        "images per class": per_class,
        "seed": seed,
        "left-out accuracy (10 classes)": round(scores[gamma, ridge], 4),
    }
    projection = Projection(
        centre=centre,
        anchors=anchors,
        weights=_dual(anchors, targets, gamma, ridge),
        gamma=gamma,
        header=header,
    )
    return projection.save(Path(folder) / f"clip_{image}_{text}.safetensors")


# ---------------------------------------------------------------- what it is worth


def zero_shot_table(
    encoder: ImageTextEncoder | str = "offline",
    sets: Sequence[str] = ("cifar100", "pacs", "emoji7"),
    limit: int = 2000,
) -> pd.DataFrame:
    """Accuracy of naming test images by the nearest class sentence, per domain, against chance.

    `cos within` and `cos across` are mean cosines of pictures of a domain with each other and with
    those of other domains: style is carried where the first is larger. `1-NN`: how often a
    picture's nearest neighbour is of its domain.
    """
    import pandas as pd

    from fedbook import data

    encoder = image_text_encoder(encoder) if isinstance(encoder, str) else encoder
    table = []
    for name in sets:
        dataset = data.load(name, size=32 if name == "cifar100" else 64)
        rows = torch.nonzero(dataset.split == 1).flatten()
        rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:limit]]
        pictures = encoder.images(dataset.x[rows])
        domain = dataset.domain[rows]
        classes = dataset.class_names
        sentences = encoder.texts([prompt(c) for c in classes])
        right = (pictures @ sentences.T).argmax(1) == dataset.y[rows]
        nearest = (pictures @ pictures.T).fill_diagonal_(-2).argmax(1)
        alike = domain[nearest] == domain
        for d, domain_name in enumerate(dataset.domain_names):
            mine = pictures[domain == d]
            other = pictures[domain != d]
            n = len(mine)
            total = mine.sum(0)
            table.append(
                {
                    "dataset": name,
                    "domain": domain_name if len(dataset.domain_names) > 1 else "",
                    "images": n,
                    "accuracy": right[domain == d].float().mean().item(),
                    "chance": 1 / len(classes),
                    "cos within": float((total @ total - n) / (n * (n - 1))),
                    "cos across": float(total / n @ other.mean(0)) if len(other) else float("nan"),
                    "1-NN": alike[domain == d].float().mean().item(),
                }
            )
    return pd.DataFrame(table)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`fedbook pretrain clip`."""
    parser.add_argument(
        "--image", choices=sorted(IMAGE_TOWERS), nargs="+", default=sorted(IMAGE_TOWERS)
    )
    parser.add_argument(
        "--text", choices=sorted(TEXT_TOWERS), nargs="+", default=sorted(TEXT_TOWERS)
    )
    parser.add_argument("--folder", default=str(WEIGHTS), help="where the projections go")
    parser.add_argument("--per-class", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--table", metavar="PAIR", help="only print what a pair is worth: offline, a CLIP, a folder"
    )


def main(args: argparse.Namespace) -> None:
    if args.table:
        print(zero_shot_table(args.table).round(3).to_string(index=False))
        return
    for image in args.image:
        for text in args.text:
            path = fit_offline_projection(
                image, text, folder=args.folder, per_class=args.per_class, seed=args.seed
            )
            print(path, json.dumps(Projection.load(path).header))
