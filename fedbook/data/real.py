"""Real datasets: read from packs or folders in the data folder, put together, and fetched from
where they are published.
"""

from __future__ import annotations

import io
import shutil
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbook.data import store
from fedbook.data.corruptions import NAMES as CORRUPTIONS
from fedbook.data.corruptions import corrupt
from fedbook.data.dataset import Columns, to_images
from fedbook.data.pinned import SHA256
from fedbook.errors import FedbookError
from fedbook.files import UNREADABLE

Read = tuple[Columns, dict[str, Any]]

DIGITS = [str(i) for i in range(10)]
CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck".split()
FASHION = [
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
]
PACS = ("photo", "art_painting", "cartoon", "sketch")
PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
DOMAINNET = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
FEDBN10 = "bird feather headphones ice_cream teapot tiger whale windmill wine_glass zebra".split()
SUPERCLASSES = {
    "aquatic_mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food_containers": "bottle bowl can cup plate",
    "fruit_and_vegetables": "apple mushroom orange pear sweet_pepper",
    "household_electrical_devices": "clock keyboard lamp telephone television",
    "household_furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large_carnivores": "bear leopard lion tiger wolf",
    "large_man-made_outdoor_things": "bridge castle house road skyscraper",
    "large_natural_outdoor_scenes": "cloud forest mountain plain sea",
    "large_omnivores_and_herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium_mammals": "fox porcupine possum raccoon skunk",
    "non-insect_invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small_mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles_1": "bicycle bus motorcycle pickup_truck train",
    "vehicles_2": "lawn_mower rocket streetcar tank tractor",
}
CIFAR100 = sorted(" ".join(SUPERCLASSES.values()).split())
COARSE = np.array(
    [next(i for i, m in enumerate(SUPERCLASSES.values()) if c in m.split()) for c in CIFAR100]
)

# Published numbers of training and test images.
EXPECTED = {
    "mnist": (60000, 10000),
    "usps": (7291, 2007),
    "mnist_m": (60000, 10000),
    "svhn": (73257, 26032),
    "synth_digits": (479400, 9553),
    "fashion_mnist": (60000, 10000),
    "cifar10": (50000, 10000),
    "cifar100": (50000, 10000),
    "tiny_imagenet": (100000, 10000),
}
CLASS_NAMES: dict[str, Sequence[str]] = {
    **dict.fromkeys(
        ("mnist", "usps", "mnist_m", "svhn", "synth_digits", "font_digits", "scene_digits"), DIGITS
    ),
    "cifar10": CIFAR10,
    "cifar100": CIFAR100,
    "fashion_mnist": FASHION,
    "notmnist": list("ABCDEFGHIJ"),
    "pacs": PACS_CLASSES,
}


# --------------------------------------------------------------------------------------------------
# reading


def pack(name: str) -> Read:
    """A single dataset from its pack, checked against the published counts (a subset is accepted,
    and said to be one).
    """
    path = store.root() / f"{name}.npz"
    columns, entry = store.load_recorded(path)
    names = CLASS_NAMES.get(name)
    if names is not None:
        if int(columns.y.max()) >= len(names):
            raise FedbookError(
                f"{path} has label {int(columns.y.max())}, {name} has {len(names)} classes",
                "fetch it again",
            )
        columns.class_names = list(names)
    if (columns.split == 0).sum() == 0 or (columns.split == 1).sum() == 0:
        raise FedbookError(
            f"{path} has no {'test' if (columns.split == 0).any() else 'training'} images",
            "fetch it again",
        )
    provenance = {"file": path.name, "sha256": entry["sha256"]}
    expected = EXPECTED.get(name)
    counts = columns.counts()
    if expected and (counts["train"], counts["test"]) != expected:
        published = f"{expected[0]} + {expected[1]}"
        if counts["train"] + counts["test"] > sum(expected):
            raise FedbookError(
                f"{path} has {counts['train']} + {counts['test']} images, published are "
                f"{published}",
                "fetch it",
            )
        provenance["subset_of"] = published
        warnings.warn(
            f"{name}: {counts['train']} + {counts['test']} images, a subset of the published "
            f"{published}",
            stacklevel=4,
        )
    return columns, provenance


def single(name: str) -> Callable[..., Read]:
    def read(size: int) -> Read:
        return pack(name)

    return read


def cifar100(size: int, classes: Sequence[int] | None = None) -> Read:
    """CIFAR-100 with the column ``coarse``; ``classes`` keeps some of the hundred and numbers them
    anew.
    """
    columns, provenance = pack("cifar100")
    columns.extra["coarse"] = COARSE[columns.y]
    if classes is not None:
        keep = sorted({int(c) for c in classes})
        if not keep or keep[0] < 0 or keep[-1] > 99:
            raise FedbookError(
                f"classes must lie in 0..99, got {keep[:3]}...",
                "for example classes=range(50, 100)",
            )
        columns = columns.take(np.flatnonzero(np.isin(columns.y, keep)))
        columns.y = np.searchsorted(keep, columns.y).astype(np.int16)
        columns.class_names = [CIFAR100[c] for c in keep]
        provenance["classes"] = keep
    return columns, provenance


def cifar100_c(
    size: int,
    severity: int = 3,
    per_domain: int = 1000,
    test: float = 0.2,
    classes: Sequence[int] | None = None,
    corruptions: Sequence[str] = CORRUPTIONS,
    seed: int = 0,
) -> Read:
    """CIFAR-100's test images under ten corruptions, recomputed: domains are the corruptions.

    The same ``per_domain`` images (the same number of each class, as nearly as possible) appear in
    every domain; which of them are for testing is decided per image, so no test image is trained on
    in another domain. Column ``identity``.
    """
    columns, provenance = cifar100(size, classes)
    rng = np.random.default_rng(seed)
    rows = rng.permutation(np.flatnonzero(columns.split == 1))
    if not 0 < test < 1:
        raise FedbookError(f"test must lie between 0 and 1, got {test!r}", "for example test=0.2")
    if not 2 <= per_domain <= len(rows):
        raise FedbookError(
            f"per_domain must lie between 2 and {len(rows)}, got {per_domain!r}", "for example 1000"
        )
    turn = np.zeros(len(rows), np.int64)
    for c in np.unique(columns.y[rows]):
        turn[columns.y[rows] == c] = np.arange((columns.y[rows] == c).sum())
    chosen = rows[np.lexsort((rng.random(len(rows)), turn))][:per_domain]
    clean = columns.take(chosen)
    clean.split = np.zeros(per_domain, np.uint8)
    clean.split[rng.permutation(per_domain)[: max(1, round(test * per_domain))]] = 1
    clean.extra["identity"] = chosen.astype(np.int32)
    parts = []
    for name in corruptions:
        part = clean.take(np.arange(per_domain))
        part.x = corrupt(clean.x, name, severity, seed)
        parts.append(part)
    provenance |= {
        "severity": severity,
        "seed": seed,
        "note": "corruptions recomputed, not the published file",
    }
    return stack(parts, list(corruptions), rng), provenance


def together(
    members: Sequence[str],
    limit: tuple[int, int] | None,
    labels: str = "shared",
) -> Callable[..., Read]:
    """Several packs as the domains of one dataset, each cut to ``limit`` (train, test) images drawn
    at random.
    """
    default_limit = limit
    default_labels = labels

    def read(
        size: int,
        limit: tuple[int, int] | None = default_limit,
        labels: str = default_labels,
        seed: int = 0,
    ) -> Read:
        if labels not in ("shared", "separate"):
            raise FedbookError(
                f'labels must be "shared" or "separate", got {labels!r}',
                "see help(fedbook.data.load)",
            )
        rng = np.random.default_rng(seed)
        parts = []
        sources = {}
        for d, name in enumerate(members):
            columns, sources[name] = pack(name)
            rows = [
                rng.permutation(np.flatnonzero(columns.split == s))[: limit[s] if limit else None]
                for s in (0, 1)
            ]
            columns = columns.take(np.concatenate(rows))
            columns.x = to_images(columns.x, size, 3).permute(0, 2, 3, 1).numpy()
            columns.extra = {}
            if labels == "separate":
                columns.y = columns.y.astype(np.int16) + 10 * d
            parts.append(columns)
        names = parts[0].class_names
        if labels == "separate":
            names = [f"{m} {c}" for m, p in zip(members, parts) for c in p.class_names]
        elif any(list(p.class_names) != list(names) for p in parts):
            names = [str(c) for c in range(10)]
        combined = stack(parts, list(members), rng)
        combined.class_names = names
        return combined, {"members": sources, "seed": seed, "limit": limit}

    return read


def stack(parts: list[Columns], domain_names: Sequence[str], rng: np.random.Generator) -> Columns:
    """Datasets of one shape as the domains of one, in a random (seeded) order: slices in stored
    order are fair samples.
    """
    keys = set.intersection(*(set(p.extra) for p in parts))
    columns = Columns(
        x=np.concatenate([p.x for p in parts]),
        y=np.concatenate([p.y for p in parts]),
        split=np.concatenate([p.split for p in parts]),
        class_names=parts[0].class_names,
        domain=np.repeat(np.arange(len(parts), dtype=np.int16), [len(p.y) for p in parts]),
        domain_names=domain_names,
        extra={k: np.concatenate([p.extra[k] for p in parts]) for k in sorted(keys)},
    )
    return columns.take(rng.permutation(len(columns.y)))


def pacs(size: int, seed: int = 0) -> Read:
    """PACS from its pack, or from the original folders ``pacs/{domain}/{class}/*.jpg`` (then 80/20
    per class and domain).
    """
    folder = store.root() / "pacs"
    if (store.root() / "pacs.npz").exists():
        columns, provenance = pack("pacs")
    else:
        columns = store.derived(
            f"pacs-{size}-seed{seed}", lambda: folders(folder, size, domains=PACS, seed=seed)
        )
        provenance = {"file": "pacs/", "note": "split is ours: 80/20 per class and domain"}
    missing = [d for d in PACS if d not in columns.domain_names]
    if missing or len(columns.class_names) != 7:
        raise FedbookError(
            f"PACS has 4 domains and 7 classes; missing {missing or 'classes'}", "place it again"
        )
    order = np.random.default_rng(seed).permutation(len(columns.y))
    return columns.take(order), {**provenance, "seed": seed}


def domainnet(size: int, variant: str = "fedbn10", seed: int = 0) -> Read:
    """DomainNet's ten FedBN classes, or fifty of its 345 drawn by ``seed``; official train/test
    lists.
    """
    if variant not in ("fedbn10", "random50"):
        raise FedbookError(
            f'variant must be "fedbn10" or "random50", got {variant!r}', "fedbn10 is FedGCR's"
        )
    if variant == "fedbn10" and (store.root() / "domainnet.npz").exists():
        columns, provenance = pack("domainnet")
    else:
        lists = _domainnet_lists()
        every = sorted({path.split("/")[1] for rows in lists.values() for path, _ in rows})
        chosen = (
            FEDBN10
            if variant == "fedbn10"
            else sorted(np.random.default_rng(seed).choice(every, 50, replace=False))
        )
        key = f"domainnet-{variant}-{size}" + (f"-seed{seed}" if variant == "random50" else "")
        columns = store.derived(
            key, lambda: _domainnet_images(lists, [str(c) for c in chosen], size)
        )
        provenance = {"file": "domainnet/*.zip", "classes": [str(c) for c in chosen]}
    order = np.random.default_rng(seed).permutation(len(columns.y))
    return columns.take(order), {**provenance, "variant": variant, "seed": seed}


def _domainnet_lists() -> dict[str, list[tuple[str, int]]]:
    """Per domain the (path, split) of every image, from the official text files."""
    folder = store.root() / "domainnet"
    lists: dict[str, list[tuple[str, int]]] = {}
    for domain in DOMAINNET:
        lists[domain] = []
        for s, side in enumerate(("train", "test")):
            path = folder / f"{domain}_{side}.txt"
            if not path.is_file():
                raise FedbookError(f"DomainNet needs {path}", "fedbook data fetch domainnet")
            lists[domain] += [
                (line.rsplit(" ", 1)[0], s)
                for line in path.read_text().splitlines()
                if line.strip()
            ]
    return lists


Taken = tuple[np.ndarray, int, int, int]  # a picture, its class, 1 for testing, its domain


def _columns(rows: Sequence[Taken], classes: Sequence[str], domains: Sequence[str]) -> Columns:
    x, y, split, domain = zip(*rows)
    return Columns(
        x=np.stack(x),
        y=np.array(y, np.int16),
        split=np.array(split, np.uint8),
        class_names=classes,
        domain=np.array(domain, np.int16),
        domain_names=domains,
    )


def _domainnet_images(
    lists: dict[str, list[tuple[str, int]]], classes: list[str], size: int
) -> Columns:
    """The images of some classes, read straight out of the zip files (or folders unpacked from
    them).
    """
    folder = store.root() / "domainnet"
    rows: list[Taken] = []
    for d, name in enumerate(DOMAINNET):
        archive = (
            zipfile.ZipFile(folder / f"{name}.zip") if (folder / f"{name}.zip").is_file() else None
        )
        if archive is None and not (folder / name).is_dir():
            raise FedbookError(
                f"DomainNet needs {folder / name}.zip", "fedbook data fetch domainnet"
            )
        for path, s in lists[name]:
            if path.split("/")[1] in classes:
                data = _member(archive, path) if archive else (folder / path).read_bytes()
                picture = _picture(io.BytesIO(data), size, path)
                rows.append((picture, classes.index(path.split("/")[1]), s, d))
    return _columns(rows, classes, DOMAINNET)


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    """A picture inside a zip file, read without unpacking anything to the disk."""
    try:
        if archive.getinfo(name).file_size > PICTURE_BYTES:
            raise ValueError(f"it unpacks to {archive.getinfo(name).file_size:,} bytes")
        return archive.read(name)
    except UNREADABLE + (zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise FedbookError(
            f"{archive.filename}: cannot read {name}: {error}", "fetch the archive again"
        ) from error


def folders(
    root: Path, size: int, domains: Sequence[str] | None = None, test: float = 0.2, seed: int = 0
) -> Columns:
    """Images lying in ``root/domain/class/*.png`` (or .jpg, .bmp), the share ``test`` of each class
    and domain for testing.
    """
    if not root.is_dir():
        raise FedbookError(f"there is no folder {root}", "it should hold domain/class/*.png")
    found = list(
        domains
        or sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    )
    classes = sorted(
        {c.name for d in found if (root / d).is_dir() for c in (root / d).iterdir() if c.is_dir()}
    )
    rng = np.random.default_rng(seed)
    rows: list[Taken] = []
    for d, name in enumerate(found):
        for c, label in enumerate(classes):
            place = root / name / label
            files = (
                sorted(f for f in place.iterdir() if f.suffix.lower() in _SUFFIXES)
                if place.is_dir()
                else []
            )
            held_out = set(rng.permutation(len(files))[: round(test * len(files))].tolist())
            for i, file in enumerate(files):
                rows.append((_picture(file, size, str(file)), c, int(i in held_out), d))
    if not rows:
        raise FedbookError(
            f"no picture found in {root}", "it should hold domain/class/*.png (or .jpg)"
        )
    return _columns(rows, classes, found)


PICTURE_BYTES = 1 << 26  # no picture in an archive is larger
_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"}


def _picture(source: Any, size: int, name: str) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(source) as image:
            return np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR))
    except UNREADABLE + (SyntaxError, Image.DecompressionBombError) as error:
        raise FedbookError(
            f"{name} is no readable picture: {error}", "delete it or fetch it again"
        ) from error


# --------------------------------------------------------------------------------------------------
# fetching


def fetch_torchvision(name: str, folder: Path, quiet: bool) -> Columns:
    """Files and checksums are torchvision's; the download is ours, so that it shows progress and
    can be continued.
    """
    from torchvision import datasets

    if name in ("mnist", "fashion_mnist"):
        kind = datasets.MNIST if name == "mnist" else datasets.FashionMNIST
        mirrors = list(kind.mirrors)
        for file, md5 in kind.resources:
            _first(mirrors, file, folder / kind.__name__ / "raw" / file, md5, name, quiet)
        pairs = [
            (d.data.numpy(), d.targets.numpy())
            for d in (kind(folder, train=t, download=True) for t in (True, False))
        ]
    elif name == "usps":
        for url, file, md5 in datasets.USPS.split_list.values():
            store.download(url, folder / file, md5=md5, sha256=_pinned(name, file), quiet=quiet)
        pairs = [
            (d.data, np.array(d.targets))
            for d in (datasets.USPS(folder, train=t) for t in (True, False))
        ]
    elif name == "svhn":
        for side in ("train", "test"):
            url, file, md5 = datasets.SVHN.split_list[side]
            store.download(url, folder / file, md5=md5, sha256=_pinned(name, file), quiet=quiet)
        sets = [datasets.SVHN(folder, split=s) for s in ("train", "test")]
        pairs = [(d.data.transpose(0, 2, 3, 1), d.labels) for d in sets]
    else:
        maker = datasets.CIFAR10 if name == "cifar10" else datasets.CIFAR100
        sums = {"md5": maker.tgz_md5, "sha256": _pinned(name, maker.filename)}
        store.download(maker.url, folder / maker.filename, **sums, quiet=quiet)
        pairs = [
            (d.data, np.array(d.targets))
            for d in (maker(folder, train=t, download=True) for t in (True, False))
        ]
    return _pairs(pairs, name)


def _pinned(name: str, file: str) -> str | None:
    return SHA256.get(f"{name}/{file}")


def _first(mirrors: list[str], file: str, target: Path, md5: str, name: str, quiet: bool) -> None:
    for i, mirror in enumerate(mirrors):
        try:
            sha256 = _pinned(name, file)
            store.download(mirror + file, target, md5=md5, sha256=sha256, quiet=quiet)
            return
        except FedbookError:
            if i == len(mirrors) - 1:
                raise


def fetch_mnist_m(name: str, folder: Path, quiet: bool) -> Columns:
    base = "https://github.com/liyxi/mnist-m/releases/download/data/"
    sums = {"train": "191ed53db9933bd85cc9700558847391", "test": "e11cb4d7fff76d7ec588b1134907db59"}
    pairs = []
    for side, md5 in sums.items():
        target = folder / f"mnist_m_{side}.pt.tar.gz"
        store.download(base + target.name, target, md5=md5, quiet=quiet)
        with tarfile.open(target) as archive:
            inside = archive.extractfile(f"mnist_m_{side}.pt")
            if inside is None:
                raise FedbookError(f"{target} holds no mnist_m_{side}.pt", "fetch it again")
            x, y = torch.load(io.BytesIO(inside.read()), weights_only=True)
        pairs.append((np.asarray(x), np.asarray(y)))
    return _pairs(pairs, name)


def fetch_notmnist(name: str, folder: Path, quiet: bool) -> Columns:
    """notMNIST_small; no official split exists, ours is 80/20 per letter. A handful of its files
    are known to be broken.
    """
    target = folder / "notMNIST_small.tar.gz"
    urls = [
        "https://commondatastorage.googleapis.com/books1000/",
        "http://yaroslavvb.com/upload/notMNIST/",
    ]
    for i, url in enumerate(urls):
        try:
            store.download(url + target.name, target, size=8458043, quiet=quiet)
            break
        except FedbookError:
            if i == len(urls) - 1:
                raise
    letters = {c: i for i, c in enumerate("ABCDEFGHIJ")}
    return _archive(target, lambda p: letters.get(p.parent.name), 28, grey=True, name=name)


def fetch_chars74k(name: str, folder: Path, quiet: bool) -> Columns:
    """Digits of Chars74K: 1,016 computer fonts (split by font), or those cut from street
    photographs.
    """
    base = "http://www.ee.surrey.ac.uk/CVSSP/demos/chars74k/"
    archive = "EnglishFnt.tgz" if name == "font_digits" else "EnglishImg.tgz"
    store.download(base + archive, folder / archive, quiet=quiet)

    def label(path: Path) -> int | None:
        sample = path.parent.name.removeprefix("Sample")
        right = "Msk" not in path.parts and path.suffix == ".png"
        return int(sample) - 1 if right and sample.isdigit() and int(sample) <= 10 else None

    if name == "scene_digits":
        return _archive(folder / archive, label, 32, grey=False, name=name)
    return _archive(
        folder / archive, label, 28, grey=True, name=name, group=lambda p: int(p.stem.split("-")[1])
    )


def fetch_synth_digits(name: str, folder: Path, quiet: bool) -> Columns:
    from scipy.io import loadmat

    pairs = []
    for side in ("train", "test"):
        path = store.root() / "synth_digits" / f"synth_{side}_32x32.mat"
        if not path.is_file():
            raise FedbookError(
                f"SynthDigits has no address we can download from; looked for {path}",
                "get SynthDigits.zip from http://yaroslav.ganin.net, unpack it there, and run "
                "this again",
            )
        mat = loadmat(path)
        pairs.append((mat["X"].transpose(3, 0, 1, 2), mat["y"].ravel() % 10))
    return _pairs(pairs, name)


def fetch_tiny_imagenet(name: str, folder: Path, quiet: bool) -> Columns:
    """200 classes of ImageNet at 64 px: 500 training images of each, and the validation images for
    testing. A class is called by the first of its WordNet synonyms.
    """
    target = folder / "tiny-imagenet-200.zip"
    sha256 = _pinned(name, target.name)
    store.download("http://cs231n.stanford.edu/" + target.name, target, sha256=sha256, quiet=quiet)
    x = []
    y = []
    split = []
    with zipfile.ZipFile(target) as archive:
        home = "tiny-imagenet-200/"
        synsets = archive.read(home + "wnids.txt").decode().split()
        words = dict(
            line.split("\t") for line in archive.read(home + "words.txt").decode().splitlines()
        )
        notes = archive.read(home + "val/val_annotations.txt").decode().splitlines()
        where = {line.split("\t")[0]: line.split("\t")[1] for line in notes}
        for path in sorted(n for n in archive.namelist() if n.endswith(".JPEG")):
            side, *_, file = path.removeprefix(home).split("/")
            if side not in ("train", "val"):
                continue
            x.append(_picture(io.BytesIO(_member(archive, path)), 64, path))
            y.append(synsets.index(file.split("_")[0] if side == "train" else where[file]))
            split.append(int(side == "val"))
    names = [words[s].split(",")[0] for s in synsets]
    return Columns(np.stack(x), np.array(y, np.int16), np.array(split, np.uint8), names)


def fetch_domainnet(name: str, folder: Path, quiet: bool) -> None:
    """The cleaned version: six zip files and the official lists, kept as they are (pictures are
    read out of the zips).
    """
    base = "http://csr.bu.edu/ftp/visda/2019/multi-source/"
    place = store.root() / "domainnet"
    for domain in DOMAINNET:
        for side in ("train", "test"):
            store.download(
                f"{base}domainnet/txt/{domain}_{side}.txt",
                place / f"{domain}_{side}.txt",
                quiet=True,
            )
        under = "groundtruth/" if domain in ("clipart", "painting") else ""
        store.download(f"{base}{under}{domain}.zip", place / f"{domain}.zip", quiet=quiet)


def _pairs(pairs: list[tuple[np.ndarray, np.ndarray]], name: str) -> Columns:
    x, y = (np.concatenate([p[i] for p in pairs]) for i in (0, 1))
    split = np.repeat([0, 1], [len(p[1]) for p in pairs]).astype(np.uint8)
    return Columns(
        np.ascontiguousarray(x, dtype=np.uint8), y.astype(np.int16), split, CLASS_NAMES[name]
    )


def _archive(
    path: Path,
    label: Callable[[Path], int | None],
    size: int,
    grey: bool,
    name: str,
    group: Callable[[Path], int] | None = None,
    test: float = 0.2,
) -> Columns:
    """Pictures inside a tar file; the share ``test`` of every class (or of the groups) is for
    testing, seeded.
    """
    from PIL import Image

    x: list[np.ndarray] = []
    y: list[int] = []
    groups: list[int] = []
    with tarfile.open(path) as archive:
        for member in sorted((m for m in archive if m.isfile()), key=lambda m: m.name):
            inside = archive.extractfile(member)
            c = label(Path(member.name))
            if c is None or inside is None:
                continue
            if member.size > PICTURE_BYTES:
                raise FedbookError(
                    f"{path}: {member.name} unpacks to {member.size:,} bytes, no picture does",
                    "do not use this archive",
                )
            try:
                picture = Image.open(io.BytesIO(inside.read())).convert("L" if grey else "RGB")
            except UNREADABLE + (SyntaxError, Image.DecompressionBombError):
                continue
            x.append(np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR)))
            y.append(c)
            groups.append(group(Path(member.name)) if group else len(groups))
    if not x:
        raise FedbookError(
            f"{path} holds none of the expected pictures",
            "its layout may have changed; place a pack by hand",
        )
    labels = np.array(y, np.int16)
    who = np.array(groups)
    rng = np.random.default_rng(0)
    pools = [np.unique(who)] if group else [who[labels == c] for c in np.unique(labels)]
    held_out = np.concatenate([rng.permutation(p)[: round(test * len(p))] for p in pools])
    return Columns(np.stack(x), labels, np.isin(who, held_out).astype(np.uint8), CLASS_NAMES[name])


def clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
