"""Heartbeats: WFDB records written here and read back, the published counts, the generator, and the
networks."""

import hashlib
import sys

import numpy as np
import pytest
import torch
from test_data import message, root  # noqa: F401
from test_data_download import server  # noqa: F401
from torch import nn

from fedbook import FedbookError, data, models
from fedbook.data import ecg
from fedbook.federation import Federation, federate

RATE = ecg.RATE
MARKS = {
    "100": "NNNNNVNNNN+VNNNQ",
    "101": "LLALLLLL",
}  # "+" is no beat, "Q" a beat of none of the twelve classes
COUNTS = {"100": (12, 0, 2, 0, 1), "101": (7, 1, 0, 0, 0)}


def write_records(folder):
    """Two tiny records: one beat per second; MLII is the first lead of one and the second lead of
    the other.
    """
    wfdb = pytest.importorskip("wfdb")
    folder.mkdir(parents=True, exist_ok=True)
    for record, marks in MARKS.items():
        rng = np.random.default_rng(int(record))
        signal = np.cumsum(rng.normal(size=(RATE * len(marks), 2)), axis=0) / 50
        leads = ["MLII", "V5"] if record == "100" else ["V5", "MLII"]
        options = {
            "units": ["mV"] * 2,
            "sig_name": leads,
            "fmt": ["16"] * 2,
            "write_dir": str(folder),
        }
        wfdb.wrsamp(record, fs=RATE, p_signal=signal, **options)
        peaks = RATE * np.arange(len(marks)) + 100  # the first window begins before the record does
        wfdb.wrann(record, "atr", peaks, symbol=list(marks), write_dir=str(folder))


@pytest.fixture
def records(root, monkeypatch):  # noqa: F811
    monkeypatch.setattr(ecg, "BEATS", COUNTS)
    write_records(root / "mitbih")
    return root / "mitbih"


# --------------------------------------------------------------------------------------------------
# reading


def test_published_counts():
    """46 records; by hand from the totals per symbol: N L R e j, A a J S, V E, F, / f Q."""
    assert len(ecg.BEATS) == 46 and not {"102", "104"} & set(ecg.BEATS)
    totals = [sum(b[i] for b in ecg.BEATS.values()) for i in range(5)]
    assert totals == [
        74790 + 8075 + 7259 + 16 + 229,
        2546 + 150 + 83 + 2,
        7124 + 106,
        803,
        3620 + 260 + 15,
    ]
    assert len(ecg.CLASSES) == 12 and set("eSQ") & set(ecg.CLASSES) == set()


def test_a_window_is_one_second_with_the_peak_in_the_middle():
    signal = np.arange(1000.0) ** 1.3
    (window,) = ecg.windows(signal, np.array([400]))[:, 0]
    part = signal[220:580]
    assert window == pytest.approx((part - part.mean()) / part.std(), abs=1e-5)
    assert window.mean() == pytest.approx(0, abs=1e-6) and window.std() == pytest.approx(
        1, abs=1e-5
    )


def test_a_window_beyond_the_end_repeats_the_last_value():
    first, last = ecg.windows(np.linspace(3.0, 5.0, 500), np.array([100, 450]))[:, 0]
    assert np.ptp(first[:81]) == 0 and first[81] > first[80], "80 values are missing in front"
    assert np.ptp(last[229:]) == 0 and last[229] > last[228], "130 behind"


def test_shorter_windows_are_means_of_neighbours():
    signal = np.random.default_rng(0).normal(size=720)
    short = ecg.windows(signal, np.array([300]), 120)[0, 0]
    means = signal[120:480].reshape(120, 3).mean(1)
    assert short == pytest.approx((means - means.mean()) / means.std(), abs=1e-5)
    assert (ecg.z_score(np.full((1, 5), 7.0)) == 0).all(), "a flat beat"


def test_spaced():
    y = np.array([0, 0, 0, 0, 0, 1, 1, 0])
    assert ecg.spaced(y, np.arange(8) < 7, 3).tolist() == [0, 2, 4, 5, 6]


def test_mitbih_from_records(records):
    d = data.load("mitbih")
    assert d.x.shape == (22, 1, 360) and d.x.dtype == torch.float32 and d.mean is None
    assert "".join(d.class_names[c] for c in d.y.tolist()) == "NNNNNVNNNNVNNN" + MARKS["101"]
    assert d.domain_names == ("100", "101") and torch.bincount(d.domain).tolist() == [14, 8]
    assert d.extra["sample"][:3].tolist() == [100, 460, 820]
    assert d.split.tolist() == [0] * 11 + [1] * 3 + [0] * 6 + [1] * 2, (
        "the last fifth of each patient"
    )
    assert d.provenance["checked"] == "counts" and d.provenance["counts"] == {
        "train": 17,
        "test": 5,
    }
    assert (
        data.info("mitbih")["status"] == "cached"
        and data.info("mitbih")["nearest"] == "ecg_offline"
    )


def test_the_lead_is_found_by_name_and_the_signal_read_exactly(records):
    import wfdb

    for record, column in (("100", 0), ("101", 1)):
        signal, peaks, symbols = ecg.read_record(records / record)
        both = wfdb.rdrecord(str(records / record)).p_signal
        assert np.array_equal(signal, both[:, column]) and not np.array_equal(
            signal, both[:, 1 - column]
        )
        assert "".join(symbols) == MARKS[record] and peaks[1] == 460


def test_records_may_lie_in_raw(records):
    before = data.load("mitbih").x
    (records / "raw").mkdir()
    for file in list(records.glob("*.*")):
        file.rename(records / "raw" / file.name)
    assert torch.equal(data.load("mitbih").x, before)


def test_mitbih_options(records):
    some = data.load("mitbih", split="random", seed=1)
    assert (
        torch.bincount(some.split[:14]).tolist() == [11, 3]
        and some.split.tolist() != data.load("mitbih").split
    )
    assert torch.equal(some.split, data.load("mitbih", split="random", seed=1).split)
    few = data.load("mitbih", limit=4, length=90)
    train = few.split == 0
    assert (
        few.x.shape[2] == 90 and max(torch.bincount(few.y[train & (few.domain == 0)]).tolist()) == 4
    )
    assert torch.bincount(few.y[~train & (few.domain == 0)]).max() == 1
    for wrong in ({"split": "both"}, {"test": 1.0}, {"length": 100}, {"limit": 0}):
        assert next(iter(wrong)) in message(lambda w=wrong: data.load("mitbih", **w))


def test_one_client_per_patient(records):
    federation = federate(data.load("mitbih"), "by_group", test="domain")
    assert [len(c.train) for c in federation.clients] == [11, 6]
    assert [federation.type_names[c.type] for c in federation.clients] == ["100", "101"]
    for c in federation.clients:
        assert set(c.test.tolist()) == set(range(11, 14) if c.id == 0 else range(20, 22))
    assert federation.inputs(torch.tensor([0])).std(correction=0).item() == pytest.approx(
        1, abs=1e-5
    )


def test_other_counts_and_broken_records_are_refused(records, monkeypatch):
    monkeypatch.setattr(ecg, "BEATS", {**COUNTS, "101": (8, 1, 0, 0, 0)})
    assert "published are (8, 1, 0, 0, 0)" in message(lambda: data.load("mitbih"))
    monkeypatch.setattr(ecg, "BEATS", COUNTS)
    whole = (records / "101.hea").read_bytes()
    (records / "101.hea").write_bytes(b"nonsense")
    assert "no readable WFDB record" in message(lambda: data.load("mitbih"))
    (records / "101.hea").write_bytes(whole.replace(b"MLII", b"V1"))
    assert "one lead MLII" in message(lambda: data.load("mitbih"))
    (records / "101.hea").unlink()
    found = message(lambda: data.load("mitbih"))
    assert "fedbook data fetch mitbih" in found and "ecg_offline" in found
    assert data.info("mitbih")["status"] == "needs download"


def test_published_sums_are_compared(records):
    sums = {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in records.iterdir()}
    (records / "SHA256SUMS.txt").write_text("".join(f"{v} {k}\n" for k, v in sums.items()))
    assert data.load("mitbih").provenance["checked"] == "SHA-256 and counts"
    (records / "SHA256SUMS.txt").write_text(f"{'0' * 64} 101.dat\n")
    assert "101.dat is not the published file" in message(lambda: data.load("mitbih"))


def test_without_wfdb(records, monkeypatch):
    monkeypatch.setitem(sys.modules, "wfdb", None)
    assert "fedbook[data]" in message(lambda: data.load("mitbih"))


def test_fetch(root, server, monkeypatch, tmp_path):  # noqa: F811
    monkeypatch.setattr(ecg, "BEATS", COUNTS)
    monkeypatch.setattr(ecg, "ADDRESS", server.url)
    write_records(tmp_path / "there")
    server.files |= {f.name: f.read_bytes() for f in (tmp_path / "there").iterdir()}
    sums = "".join(f"{hashlib.sha256(b).hexdigest()} {name}\n" for name, b in server.files.items())
    server.files["SHA256SUMS.txt"] = sums.encode()
    server.files["101.dat"] += b"\0"
    assert "not the published file" in message(lambda: data.fetch("mitbih", quiet=True))
    server.files["101.dat"] = server.files["101.dat"][:-1]
    asked = len(server.asked)
    assert data.fetch("mitbih", quiet=True) == [] and len(server.asked) == asked + 2, (
        "what is here is not asked again"
    )
    assert len(data.load("mitbih")) == 22 and data.fetch("mitbih", quiet=True) == []
    for file in ("mitbih/SHA256SUMS.txt", "mitbih/100.dat", "manifest.json"):
        (root / file).unlink()
    server.files["SHA256SUMS.txt"] = b"\n"
    assert "does not list 100.hea" in message(lambda: data.fetch("mitbih", quiet=True))


def test_the_real_records():
    """Where they are: 105,045 beats of the twelve classes, as many of each as counted, checked
    against the sums.
    """
    pytest.importorskip("wfdb")
    if ecg.place() is None:
        pytest.skip("mitbih is not in the data folder")
    d = data.load("mitbih", length=30)
    assert torch.bincount(d.y).tolist() == [
        74790,
        8075,
        7259,
        7124,
        3620,
        2546,
        803,
        260,
        229,
        150,
        106,
        83,
    ]
    assert d.class_names == tuple("NLRV/AFfjaEJ") and len(torch.unique(d.domain)) == 46
    sizes = torch.bincount(d.domain)
    assert (int(sizes.min()), int(sizes.max())) == (1518, 3363)
    classes = [len(torch.unique(d.y[d.domain == k])) for k in range(46)]
    assert (min(classes), max(classes)) == (1, 7)


# --------------------------------------------------------------------------------------------------
# generator


@pytest.fixture(scope="module")
def beats():
    return data.load("ecg_offline", beats=200)


def test_ecg_offline(beats):
    assert beats.x.shape[1:] == (1, 120) and len(beats.domain_names) == 12
    assert (
        set(beats.y[beats.split == 0].tolist())
        == set(beats.y[beats.split == 1].tolist())
        == set(range(6))
    )
    assert (
        beats.x.mean(2).abs().max() < 1e-5 and (beats.x.std(2, correction=0) - 1).abs().max() < 1e-4
    )
    counts = [torch.bincount(beats.y[beats.domain == p], minlength=6) for p in range(12)]
    assert all(2 <= int((c > 0).sum()) <= 4 and c.max() > 0.5 * c.sum() for c in counts), (
        "long tails of their own"
    )
    assert len({int(c.argmax()) for c in counts}) == 4 and len({int(c.sum()) for c in counts}) > 6
    assert (
        "synthetic" in beats.provenance["note"] and data.info("ecg_offline")["status"] == "offline"
    )
    for p in range(12):
        assert (beats.split[beats.domain == p].int().diff() >= 0).all(), (
            "the last beats are for testing"
        )


def test_ecg_offline_is_seeded():
    a, b, c = (data.load("ecg_offline", seed=s, beats=20) for s in (0, 0, 1))
    assert torch.equal(a.x, b.x) and torch.equal(a.y, b.y) and len(a) != len(c)
    more = data.load("ecg_offline", beats=20, patients=13)
    assert torch.equal(more.x[: len(a)], a.x), "a further patient changes no other"
    for wrong in ({"patients": 0}, {"beats": 3}, {"length": 5}, {"test": 0.0}):
        assert "expected" in message(lambda w=wrong: data.load("ecg_offline", **w))


def test_patients_differ_in_morphology(beats):
    """Nearest class mean: a patient's normal and ectopic beats are told apart better by its own
    means than others'.
    """

    def accuracy(own):
        right = total = 0
        for p in range(12):
            here, test = beats.domain == p, beats.split == 1
            classes = torch.unique(beats.y[here & ~test])
            pool = here & ~test if own else ~here
            means = torch.stack([beats.x[pool & (beats.y == c)].mean(0).flatten() for c in classes])
            rows = here & test & torch.isin(beats.y, classes)
            found = classes[torch.cdist(beats.x[rows].flatten(1), means).argmin(1)]
            right, total = right + int((found == beats.y[rows]).sum()), total + int(rows.sum())
        return right / total

    assert accuracy(own=True) > 0.9 > accuracy(own=False) + 0.05


# --------------------------------------------------------------------------------------------------
# networks


@pytest.fixture
def signals():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 1, 120, generator=g), torch.arange(12) % 6
    return Federation.from_arrays([{"train": (x, y)}])


def convolutions(model):
    return [
        m for m in model.modules() if isinstance(m, (nn.Conv1d, nn.Conv2d)) and m.kernel_size[0] > 1
    ]


def test_ecg_resnet_has_five_layers(signals):
    model = models.build("ecg_resnet", signals)
    assert len(convolutions(model)) == 5
    assert [type(m).__name__ for m in model.head] == ["Linear", "ReLU", "Linear"]
    z = model.embed(signals.x)
    assert z.shape == (12, 64) and torch.equal(model(signals.x), model.head(model.embed(signals.x)))
    assert isinstance(models.build("ecg_resnet", signals, hidden=None).head, nn.Linear)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_norms(signals, norm):
    model = models.build("ecg_resnet", signals, norm=norm)
    kinds = {type(m) for m in model.modules() if isinstance(m, (nn.BatchNorm1d, nn.GroupNorm))}
    assert kinds == ({nn.BatchNorm1d} if norm == "batch" else {nn.GroupNorm})
    assert bool(list(model.buffers())) == (norm == "batch")
    with pytest.raises(FedbookError, match="norm must be"):
        models.build("ecg_resnet", signals, norm="layer")


def test_resnet32_has_its_known_size(images):
    """Stem 432, stages 23,040 + 87,552 + 350,208, shortcuts 512 + 2,048, norms 2,464: with ten
    classes 466,906.
    """
    ten = Federation.from_arrays([{"train": (torch.zeros(10, 3, 8, 8), torch.arange(10))}])
    model = models.build("resnet32", ten, hidden=None)
    assert sum(p.numel() for p in model.parameters()) == 466_906
    assert len(convolutions(model)) == 31 and len(list(models.build("resnet32", ten).head)) == 3
    group = models.build("resnet32", ten, norm="group", hidden=None)
    assert sum(p.numel() for p in group.parameters()) == 466_906
    deep = models.build("resnet_gn", ten, blocks=5)
    assert {n: p.shape for n, p in deep.named_parameters()} == {
        n: p.shape for n, p in group.named_parameters()
    }
    assert group(torch.zeros(2, 3, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize("name", ["cnn", "resnet_gn", "resnet32"])
def test_an_image_network_refuses_signals(name, signals, images):
    with pytest.raises(FedbookError, match="for images"):
        models.build(name, signals)
    with pytest.raises(FedbookError, match="for signals"):
        models.build("ecg_resnet", images)
