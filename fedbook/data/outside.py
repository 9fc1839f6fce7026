"""Datasets of other libraries by name: `torchvision:FashionMNIST`, `hf:ylecun/mnist`. Images with
one label each; everything is read into memory once."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fedbook.data import store
from fedbook.data.dataset import Columns, Dataset, check_geometry, finish
from fedbook.errors import FedbookError, unknown

PREFIXES = ("torchvision:", "hf:")


def from_outside(name: str, size: int = 32, channels: int = 3) -> Dataset:
    """A dataset of torchvision or of the Hugging Face hub, resized."""
    check_geometry(size, channels)
    library, _, which = name.partition(":")
    read = {"torchvision": _torchvision, "hf": _hub}[library]
    parts, names = read(which)
    xs: list[np.ndarray] = []
    ys: list[int] = []
    split: list[int] = []
    for s, pairs in enumerate(parts):
        for image, label in pairs:
            xs.append(_pixels(image, size))
            ys.append(int(label))
            split.append(s)
    if not xs or not 0 < sum(split) < len(split):
        raise FedbookError(f"{name} lacks a training or a test half", "make an .npz pack instead")
    labels = np.array(ys)
    known = names or [str(i) for i in range(int(labels.max()) + 1)]
    columns = Columns(np.stack(xs), labels, np.array(split), known)
    return finish(columns, which.split("/")[-1], size, channels, {"source": name})


def _pixels(image: Any, size: int) -> np.ndarray:
    """An image of any mode as uint8 [size, size, 3]."""
    from PIL import Image

    if not isinstance(image, Image.Image):
        said = "images as PIL pictures with one label each are expected"
        raise FedbookError(f"a sample is a {type(image).__name__}", said)
    return np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR))


def _torchvision(which: str) -> tuple[list[Iterable[Any]], list[str]]:
    """Training and test half of a class of `torchvision.datasets`, downloaded to the data folder if
    need be.
    """
    from torchvision import datasets

    known = [n for n in datasets.__all__ if inspect.isclass(getattr(datasets, n))]
    if which not in known:
        raise unknown("torchvision dataset", which, known)
    kind = getattr(datasets, which)
    takes = inspect.signature(kind).parameters
    if "train" in takes:
        halves: list[dict[str, Any]] = [{"train": True}, {"train": False}]
    elif "split" in takes:
        halves = [{"split": "train"}, {"split": "test"}]
    else:
        hint = "take one with train= or split=, or make an .npz pack"
        raise FedbookError(f"torchvision's {which} has no test half", hint)
    where = {"root": str(store.root() / "torchvision")}
    if "download" in takes:
        where["download"] = True  # type: ignore[assignment]
    try:
        found = [kind(**where, **half) for half in halves]
    except (TypeError, RuntimeError, OSError, ValueError) as error:
        said = f"torchvision's {which} cannot be read: {error}"
        raise FedbookError(said, "try again later, or fetch it by hand") from error
    return list(found), [str(c) for c in getattr(found[0], "classes", [])]


def _hub(which: str) -> tuple[list[Iterable[Any]], list[str]]:
    """Training and test split of a dataset of the hub, or of a folder it could be uploaded from."""
    try:
        import datasets
    except ImportError as error:
        hint = "pip install datasets"
        raise FedbookError("the library `datasets` is not installed", hint) from error
    try:
        found = datasets.load_dataset(which)
    except Exception as error:
        said = f"the hub's {which} cannot be read: {error}"
        raise FedbookError(said, "check the name and the connection") from error
    test = next((s for s in ("test", "validation", "valid") if s in found), None)
    if "train" not in found or test is None:
        raise FedbookError(f"{which} has the splits {list(found)}", "train and test are needed")
    features = found["train"].features
    image = next((k for k, f in features.items() if isinstance(f, datasets.Image)), None)
    label = next((k for k, f in features.items() if isinstance(f, datasets.ClassLabel)), None)
    if image is None or label is None:
        hint = "a column of images and one of class labels are needed"
        raise FedbookError(f"{which} has the columns {list(features)}", hint)

    def pairs(part: Any) -> Iterator[tuple[Any, int]]:
        for row in part:
            yield row[image], row[label]

    return [pairs(found["train"]), pairs(found[test])], list(features[label].names)
