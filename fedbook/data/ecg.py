"""Heartbeats, one domain per patient: MIT-BIH from its WFDB records, and ecg_offline, which is
drawn, not recorded.

mitbih. Of the 48 half-hour records 46 have the lead MLII (all but 102 and 104), the 46 patients of
GRP-FED. Its 12 classes are not named; here they are the twelve beat symbols most frequent in those
records. A sample is one second of MLII around an annotated R peak (360 values), z-scored by itself;
a window that reaches over the end of the record repeats the last value. The last fifth of a
patient's beats is for testing, or a random fifth with split="random": neighbouring windows overlap,
so a random split tests on signal that was partly trained on. Records 201 and 202 are of one person
and stay two clients.

ecg_offline. A beat is a sum of Gaussian bumps (P, Q, R, S, T) whose places, heights and widths
depend on the class; patients bend all of them in their own way and differ in class mix, number of
beats, noise and wandering baseline. It is synthetic: no number measured on it says anything about
hearts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedbook.data import store
from fedbook.data.dataset import Columns
from fedbook.errors import FedbookError

VERSION = 1  # of the generator
RATE = 360  # samples per second, and per window
LEAD = "MLII"
PICTURE = Path(__file__).parent / "mitbih_beats.png"  # beats of three records, drawn once
FILES = ("hea", "dat", "atr")
ADDRESS = "https://physionet.org/files/mitdb/1.0.0/"
CLASSES = {
    "N": "normal",
    "L": "left bundle branch block",
    "R": "right bundle branch block",
    "V": "premature ventricular",
    "/": "paced",
    "A": "atrial premature",
    "F": "fusion of ventricular and normal",
    "f": "fusion of paced and normal",
    "j": "nodal escape",
    "a": "aberrated atrial premature",
    "E": "ventricular escape",
    "J": "nodal premature",
}  # the twelve most frequent in the 46 records, most frequent first
AAMI = (
    "NLRej",
    "AaJS",
    "VE",
    "F",
    "/fQ",
)  # the beat symbols, in the five groups they are counted by below
# Beats of each record in those five groups.
BEATS = {
    record: tuple(map(int, counts))
    for record, *counts in (
        line.split()
        for line in """100 2239 33 1 0 0
        101 1860 3 0 0 2
        103 2082 2 0 0 0
        105 2526 0 41 0 5
        106 1507 0 520 0 0
        107 0 0 59 0 2078
        108 1740 4 17 2 0
        109 2492 0 38 2 0
        111 2123 0 1 0 0
        112 2537 2 0 0 0
        113 1789 6 0 0 0
        114 1820 12 43 4 0
        115 1953 0 0 0 0
        116 2302 1 109 0 0
        117 1534 1 0 0 0
        118 2166 96 16 0 0
        119 1543 0 444 0 0
        121 1861 1 1 0 0
        122 2476 0 0 0 0
        123 1515 0 3 0 0
        124 1536 31 47 5 0
        200 1743 30 826 2 0
        201 1635 128 198 2 0
        202 2061 55 19 1 0
        203 2529 2 444 1 4
        205 2571 3 71 11 0
        207 1543 107 210 0 0
        208 1586 2 992 373 2
        209 2621 383 1 0 0
        210 2423 22 195 10 0
        212 2748 0 0 0 0
        213 2641 28 220 362 0
        214 2003 0 256 1 2
        215 3195 3 164 1 0
        217 244 0 162 0 1802
        219 2082 7 64 1 0
        220 1954 94 0 0 0
        221 2031 0 396 0 0
        222 2274 209 0 0 0
        223 2045 73 473 14 0
        228 1688 3 362 0 0
        230 2255 0 1 0 0
        231 1568 1 2 0 0
        232 398 1382 0 0 0
        233 2230 7 831 11 0
        234 2700 50 3 0 0""".splitlines()
    )
}


# --------------------------------------------------------------------------------------------------
# MIT-BIH


def place() -> Path | None:
    """The folder that holds all records: mitbih/ of the data folder, or mitbih/raw/."""
    for folder in (store.root() / "mitbih", store.root() / "mitbih" / "raw"):
        if all((folder / f"{r}.{kind}").is_file() for r in BEATS for kind in FILES):
            return folder
    return None


def fetch(name: str, folder: Path, quiet: bool) -> None:
    """The records from PhysioNet, each compared with the published SHA-256, kept as they are in
    mitbih/.
    """
    target = store.root() / "mitbih"
    store.download(ADDRESS + "SHA256SUMS.txt", target / "SHA256SUMS.txt", quiet=True)
    sums = published_sums(target)
    for record in BEATS:
        for file in (f"{record}.{kind}" for kind in FILES):
            if file not in sums:
                raise FedbookError(
                    f"{ADDRESS}SHA256SUMS.txt does not list {file}", "place the records by hand"
                )
            store.download(ADDRESS + file, target / file, sha256=sums[file], quiet=quiet)


def published_sums(folder: Path) -> dict[str, str]:
    """PhysioNet's SHA-256 of every file, where its list lies beside the records."""
    path = folder / "SHA256SUMS.txt"
    lines = path.read_text().splitlines() if path.is_file() else []
    return {
        file: digest for digest, file in (line.split() for line in lines if len(line.split()) == 2)
    }


def mitbih(
    size: int,
    length: int = RATE,
    limit: int | None = None,
    split: str = "time",
    test: float = 0.2,
    seed: int = 0,
) -> tuple[Columns, dict[str, Any]]:
    """All beats of the twelve classes with the column ``sample`` (where the R peak is), patient by
    patient in time.

    ``length`` values per beat, each the mean of 360 / length neighbours. ``limit`` keeps at most
    that many training beats of a class and patient, evenly spaced in time, and test beats in
    proportion; it flattens the class mix.
    """
    if split not in ("time", "random"):
        raise FedbookError(
            f'split must be "time" or "random", got {split!r}', '"time" tests on the last beats'
        )
    if not 0 < test < 1:
        raise FedbookError(f"test must lie between 0 and 1, got {test!r}", "for example test=0.2")
    if not isinstance(length, int) or length < 4 or RATE % length:
        raise FedbookError(
            f"length must divide {RATE} and be at least 4, got {length!r}", "for example length=120"
        )
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise FedbookError(
            f"limit must be None or a whole number of at least 1, got {limit!r}", "for example 150"
        )
    folder = place()
    if folder is None:
        raise FedbookError(
            f"the records of mitbih are not in {store.root() / 'mitbih'}",
            "fedbook data fetch mitbih",
        )
    sums = published_sums(folder)
    parts: list[tuple[np.ndarray, ...]] = []
    for d, record in enumerate(BEATS):
        signal, peaks, symbols = read_record(folder / record, sums)
        found = tuple(sum(s in group for s in symbols) for group in AAMI)
        if found != BEATS[record]:
            raise FedbookError(
                f"record {record} has {found} beats of the groups {' '.join(AAMI)}, published "
                f"are {BEATS[record]}",
                "fetch it again",
            )
        known = [i for i, s in enumerate(symbols) if s in CLASSES]
        peaks = peaks[known]
        y = np.array([list(CLASSES).index(symbols[i]) for i in known], np.int16)
        order = (
            np.random.default_rng([seed, d]).permutation(len(y))
            if split == "random"
            else np.arange(len(y))
        )
        side = np.zeros(len(y), np.uint8)
        side[order[len(y) - max(1, round(test * len(y))) :]] = 1
        if limit is not None:
            caps = limit, max(1, round(limit * test / (1 - test)))
            rows = np.sort(np.concatenate([spaced(y, side == s, caps[s]) for s in (0, 1)]))
            peaks = peaks[rows]
            y = y[rows]
            side = side[rows]
        parts.append(
            (
                windows(signal, peaks, length),
                y,
                side,
                np.full(len(y), d, np.int16),
                peaks.astype(np.int32),
            )
        )
    x, labels, split_of, domain, places = (np.concatenate(column) for column in zip(*parts))
    columns = Columns(
        x=x,
        y=labels,
        split=split_of,
        class_names=list(CLASSES),
        domain=domain,
        domain_names=list(BEATS),
        extra={"sample": places},
    )
    note = {
        "file": "mitbih/",
        "checked": "SHA-256 and counts" if sums else "counts",
        "split": split,
        "limit": limit,
    }
    return columns, note | ({"seed": seed} if split == "random" else {})


def read_record(
    path: Path, sums: dict[str, str] | None = None
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The MLII signal in mV, and sample number and symbol of every annotation."""
    try:
        import wfdb
    except ImportError:
        raise FedbookError(
            "reading WFDB records needs the package wfdb", "pip install 'fedbook[data]'"
        ) from None
    for kind in FILES:
        file = path.with_name(f"{path.name}.{kind}")
        expected = (sums or {}).get(file.name)
        if expected and store.sha256(file) != expected:
            raise FedbookError(
                f"{file} is not the published file (SHA-256 differs)",
                "delete it and fetch it again",
            )
    try:
        record = wfdb.rdrecord(str(path), channel_names=[LEAD])
        marks = wfdb.rdann(str(path), "atr")
    except Exception as error:  # whatever a broken file makes the reader raise
        raise FedbookError(
            f"{path} is no readable WFDB record: {error}", "delete it and fetch it again"
        ) from error
    if record.p_signal is None or record.p_signal.shape[1] != 1 or record.fs != RATE:
        raise FedbookError(
            f"{path} should have one lead {LEAD} at {RATE} Hz, it has {record.sig_name}", "fetch it"
        )
    return record.p_signal[:, 0], np.asarray(marks.sample), list(marks.symbol)


def windows(signal: np.ndarray, peaks: np.ndarray, length: int = RATE) -> np.ndarray:
    """float32 [beats, 1, length]: one second with the peak in the middle, averaged down, each with
    mean 0 and std 1.
    """
    around = np.pad(signal, RATE // 2, mode="edge")[peaks[:, None] + np.arange(RATE)]
    return z_score(around.reshape(len(peaks), length, -1).mean(2))


def z_score(x: np.ndarray) -> np.ndarray:
    """Rows with mean 0 and standard deviation 1 (a flat row becomes zeros), as float32 [rows, 1,
    values].
    """
    centred = x - x.mean(1, keepdims=True)
    return (centred / np.maximum(centred.std(1, keepdims=True), 1e-8)).astype(np.float32)[:, None]


def spaced(y: np.ndarray, chosen: np.ndarray, most: int) -> np.ndarray:
    """Row numbers of at most ``most`` of the chosen samples of each class, evenly spaced."""
    kept = []
    for c in np.unique(y[chosen]):
        rows = np.flatnonzero(chosen & (y == c))
        kept.append(rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(int)])
    return np.concatenate(kept)


# --------------------------------------------------------------------------------------------------
# synthetic

# (seconds from the R peak, height, width in seconds) of the bumps P, Q, R, S, T
SHAPES = {
    "N": (
        (-0.17, 0.15, 0.025),
        (-0.035, -0.15, 0.01),
        (0.0, 1.0, 0.014),
        (0.035, -0.25, 0.012),
        (0.25, 0.3, 0.05),
    ),
    "L": (
        (-0.18, 0.12, 0.025),
        (-0.05, 0.1, 0.02),
        (-0.015, 0.75, 0.03),
        (0.045, 0.8, 0.03),
        (0.29, -0.35, 0.06),
    ),
    "R": (
        (-0.17, 0.14, 0.025),
        (-0.03, 0.6, 0.011),
        (0.0, -0.3, 0.014),
        (0.05, 0.9, 0.025),
        (0.26, -0.12, 0.05),
    ),
    "V": (
        (-0.2, 0.0, 0.025),
        (-0.07, -0.2, 0.03),
        (0.0, 1.2, 0.05),
        (0.1, -0.5, 0.045),
        (0.31, -0.5, 0.07),
    ),
    "A": (
        (-0.12, -0.1, 0.018),
        (-0.035, -0.15, 0.01),
        (0.0, 0.9, 0.014),
        (0.035, -0.3, 0.012),
        (0.22, 0.2, 0.045),
    ),
    "/": (
        (-0.1, 1.0, 0.005),
        (-0.05, -0.2, 0.02),
        (0.0, -0.8, 0.045),
        (0.09, 0.2, 0.04),
        (0.28, 0.5, 0.07),
    ),
}
USUAL = (
    "N",
    "N",
    "N",
    "L",
    "N",
    "R",
    "N",
    "/",
)  # the class most beats of a patient belong to, patient by patient


def ecg_offline(
    size: int,
    patients: int = 12,
    beats: int = 100,
    length: int = 120,
    test: float = 0.2,
    seed: int = 0,
) -> tuple[Columns, dict[str, Any]]:
    """Synthetic beats of ``patients`` who have about ``beats`` each (between half and three halves
    of it).
    """
    if not (isinstance(patients, int) and patients >= 1 and isinstance(beats, int) and beats >= 10):
        raise FedbookError(
            f"expected patients >= 1 and beats >= 10, got {patients!r} and {beats!r}",
            "try 12 and 100",
        )
    if not (isinstance(length, int) and length >= 30 and 0 < test < 1):
        raise FedbookError(
            f"expected length >= 30 and 0 < test < 1, got {length!r} and {test!r}",
            "try 120 and 0.2",
        )
    labels = list(SHAPES)
    time = np.linspace(-0.5, 0.5, length, endpoint=False)
    parts = []
    for p in range(patients):
        rng = np.random.default_rng([seed, p])
        n = int(beats * rng.uniform(0.5, 1.5))
        others = rng.permutation([c for c in ("V", "A", *USUAL) if c != USUAL[p % len(USUAL)]])
        mix = [USUAL[p % len(USUAL)], *dict.fromkeys(others)][: rng.integers(2, 5)]
        share = 0.3 ** np.arange(len(mix))
        y = np.array([labels.index(c) for c in rng.choice(mix, n, p=share / share.sum())], np.int16)
        bend = rng.normal(
            0, (0.015, 0.3, 0.25), (5, 3)
        )  # this patient's shift, log-height and log-width of each bump
        shape = np.array(list(SHAPES.values()))
        at = shape[..., 0] + bend[:, 0]
        high = shape[..., 1] * np.exp(bend[:, 1])
        wide = shape[..., 2] * np.exp(bend[:, 2])
        jitter = rng.normal(0, 0.008, (n, 1, 1))  # how well the R peak was found
        bumps = high[y][..., None] * np.exp(
            -((time - at[y][..., None] - jitter) ** 2) / (2 * wide[y][..., None] ** 2)
        )
        wander = rng.uniform(0, 0.15) * np.sin(np.pi * time + rng.uniform(0, 2 * np.pi, (n, 1)))
        noise = rng.uniform(0.02, 0.15) * rng.normal(size=(n, length))
        side = (np.arange(n) >= n - max(1, round(test * n))).astype(np.uint8)
        parts.append((z_score(bumps.sum(1) + wander + noise), y, side, np.full(n, p, np.int16)))
    x, y, side, domain = (np.concatenate(column) for column in zip(*parts))
    note = (
        "synthetic: sums of Gaussian bumps drawn by our generator, no recorded heartbeat; not "
        "MIT-BIH"
    )
    names = [f"patient {p}" for p in range(patients)]
    columns = Columns(x=x, y=y, split=side, class_names=labels, domain=domain, domain_names=names)
    return columns, {"generator": f"fedbook.data.ecg v{VERSION}", "seed": seed, "note": note}
