"""Random options and broken files: everything either works or is a FedbookError, soon."""

import dataclasses
import io
import json
import os
import signal
import tarfile
import warnings
import zipfile
from contextlib import contextmanager

import bad_inputs
import numpy as np
import pytest
import torch
from helpers import model_for
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fedbook import FedbookError, Federation, data, federate, methods, models, simulate
from fedbook.data import partition, real, shakespeare
from fedbook.data import store as packing
from fedbook.data.dataset import Columns, Dataset
from fedbook.results import Store
from fedbook.rounds import LocalSolver
from fedbook.rounds.checkpoint import Checkpoint

CALM = settings(
    max_examples=int(os.environ.get("FEDBOOK_FUZZ", 6)),  # a few in the suite, many by hand
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
ODD = st.one_of(
    st.sampled_from(
        [None, True, False, "", "x", "sgd", (), [], {}, [1], {"a": 1}, b"x", 1j, float("nan")]
    ),
    st.sampled_from([float("inf"), -float("inf"), 1e308, -1e308, 5e-324, 0, 1, -1, 2, 0.5, 10**30]),
    st.floats(-10, 10),
    st.integers(-3, 9),
)


@contextmanager
def soon(seconds=60):
    """No hang."""

    def ring(*_):
        raise AssertionError(f"longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def works_or_says_why():
    with soon(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except FedbookError as error:
            assert "\n" not in str(error) and error.hint, str(error)


# -- factories -------------------------------------------------------------------------------------
LONG = {"epochs", "personal_steps", "index_epochs", "index_steps", "steps"}


def changed(options, pick):
    """Two options of those there are, with odd values; none that only takes long."""
    names = pick(st.lists(st.sampled_from(sorted(options)), min_size=1, max_size=2, unique=True))
    found = {name: pick(ODD) for name in names}
    return {k: v for k, v in found.items() if k not in LONG or not _large(v)}


def _large(value):
    return isinstance(value, (int, float)) and not value <= 9


QUICK = {"client2vec": {"index_samples": 4, "index_limit": 4, "index_epochs": 1}}


@pytest.mark.parametrize("name", methods.names())
def test_methods(name, images):
    model = model_for(name, images)

    @CALM
    @given(st.data())
    def check(draw):
        options = changed(methods.options(name), draw.draw)
        with works_or_says_why():
            method = methods.get(name, **({"batch_size": 8} | QUICK.get(name, {}) | options))
            simulate(method, images, model, 1, quiet=True, device="cpu").run()

    check()


@CALM
@given(st.dictionaries(st.sampled_from([f.name for f in dataclasses.fields(LocalSolver)]), ODD))
def test_local_solver(options):
    with works_or_says_why():
        LocalSolver(**options)


SMALL = ("linear", "mlp", "cnn", "lenet5", "resnet8", "lstm", "ecg_resnet")


@pytest.mark.parametrize("name", [n for n in models.names() if n in SMALL])
def test_models(name, images):
    import inspect

    known = set(inspect.signature(models.builders()[name]).parameters) - {"federation", "seed"}

    @CALM
    @given(st.data())
    def check(draw):
        options = changed(known, draw.draw) if known else {}
        options = {k: v for k, v in options.items() if not _large(v)}
        with works_or_says_why():
            model = models.build(name, images, **options)
            simulate(methods.get("fedavg"), images, model, 1, quiet=True, device="cpu")

    check()


def small_dataset():
    n = 60
    y = torch.arange(n) % 5
    return Dataset(
        x=torch.zeros(n, 1, 4, 4, dtype=torch.uint8),
        y=y,
        split=(torch.arange(n) % 4 == 0).to(torch.uint8),
        domain=torch.arange(n) // 20,
        class_names=tuple("abcde"),
        domain_names=("p", "q", "r"),
        name="small",
        extra={"coarse": y // 3},
    )


@pytest.mark.parametrize("how", partition.HOW)
def test_partitions(how):
    import inspect

    known = set(inspect.signature(partition.HOW[how]).parameters)
    known -= {"labels", "domain", "within", "names", "ids", "coarse"}
    usual = {"dirichlet": {"clients": 3, "alpha": 1.0}, "pathological": {"clients": 3, "s": 2}}
    usual |= {"pachinko": {"clients": 3}, "long_tail": {"clients": 3}, "iid": {"clients": 3}}
    dataset = small_dataset()

    @CALM
    @given(st.data())
    def check(draw):
        options = usual.get(how, {}) | changed(known | {"test", "limit"}, draw.draw)
        if _large(options.get("tries", 0)):
            options["tries"] = 5
        with works_or_says_why():
            federation = federate(dataset, how, **options)
            assert sum(len(c.train) for c in federation.clients) <= 45

    check()


# -- readers ---------------------------------------------------------------------------------------
def damaged(blob, pick):
    """A file with some bytes changed, cut off or repeated."""
    out = bytearray(blob)
    for _ in range(pick(st.integers(1, 4))):
        at = pick(st.integers(0, max(0, len(out) - 1)))
        how = pick(st.sampled_from(["flip", "cut", "insert"]))
        if how == "flip" and out:
            out[at] ^= pick(st.integers(1, 255))
        elif how == "cut":
            del out[at : at + pick(st.integers(1, 50))]
        else:
            out[at:at] = pick(st.binary(min_size=1, max_size=20))
    return bytes(out)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One small file of every kind that is read."""
    at = tmp_path_factory.mktemp("whole")
    n = 12
    y, split = np.arange(n) % 3, (np.arange(n) % 4 == 0).astype(np.uint8)
    columns = Columns(np.zeros((n, 4, 4), np.uint8), y, split, list("abc"), y % 2, ["l", "r"])
    packing.write_pack(at / "p.npz", columns)
    bad_inputs.fed().save(at / "f.safetensors")
    bad_inputs.simulate(checkpoint=at / "run")
    store = Store(at / "results")
    for seed in range(3):
        config = {"seed": seed}
        line = {"key": bad_inputs.config_key(config), "config": config, "metrics": {"log": {}}}
        store.append(line, "a")
    users = {"user_data": {"a": {"x": ["abc", "bcd"], "y": ["d", "e"]}}}
    (at / "leaf.json").write_text(json.dumps(users))
    return at


def read_checkpoint(folder):
    return Checkpoint(folder, {}).restore(torch.device("cpu"))


READERS = {
    "pack": ("p.npz", data.from_npz),
    "federation": ("f.safetensors", Federation.load),
    "LEAF": ("leaf.json", lambda path: shakespeare.read_leaf([path])),
    "results": ("results/a.jsonl", lambda path: Store(path.parent).load()),
    "checkpoint's head": ("run/latest.json", lambda path: read_checkpoint(path.parent)),
    "checkpoint's tensors": (
        "run/state-000001.safetensors",
        lambda path: read_checkpoint(path.parent),
    ),
    "checkpoint's records": ("run/records.jsonl", lambda path: read_checkpoint(path.parent)),
}


@pytest.mark.parametrize("kind", READERS)
def test_readers(kind, whole, tmp_path):
    import shutil

    name, read = READERS[kind]
    at = tmp_path / "copy"
    shutil.copytree(whole, at)
    path = at / name
    blob = path.read_bytes()

    @CALM
    @given(st.data())
    def check(draw):
        path.write_bytes(damaged(blob, draw.draw))
        with works_or_says_why():
            read(path)

    check()


@CALM
@given(st.recursive(ODD, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
@example({"user_data": {"a": {"x": [1], "y": [2]}}})
@example({"user_data": {"a": None}})
def test_leaf_of_any_json(tmp_path, value):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(value, default=str))
    with works_or_says_why():
        shakespeare.read_leaf([path])


def test_wfdb_records(tmp_path):
    wfdb = pytest.importorskip("wfdb")
    from fedbook.data import ecg

    signal_ = np.sin(np.arange(720) / 20)[:, None]
    options = {"fs": 360, "units": ["mV"], "sig_name": ["MLII"], "fmt": ["16"]}
    wfdb.wrsamp("100", p_signal=signal_, write_dir=str(tmp_path), **options)
    marks = {"sample": np.array([100, 400]), "symbol": ["N", "V"]}
    wfdb.wrann("100", "atr", **marks, write_dir=str(tmp_path))
    assert len(ecg.read_record(tmp_path / "100")[1]) == 2
    blobs = {kind: (tmp_path / f"100.{kind}").read_bytes() for kind in ecg.FILES}

    @CALM
    @given(st.data())
    def check(draw):
        for kind, blob in blobs.items():
            (tmp_path / f"100.{kind}").write_bytes(blob)
        kind = draw.draw(st.sampled_from(sorted(blobs)))
        (tmp_path / f"100.{kind}").write_bytes(damaged(blobs[kind], draw.draw))
        with works_or_says_why():
            ecg.read_record(tmp_path / "100")

    check()


# -- archives --------------------------------------------------------------------------------------
def test_archives_touch_nothing_outside(tmp_path):
    """Members are read in memory: a path that climbs out or a link is no picture, nothing is
    written."""
    from PIL import Image

    picture = io.BytesIO()
    Image.new("L", (6, 6), 9).save(picture, "PNG")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("../out.png", "/abs.png", "in.png"):
            member = tarfile.TarInfo(name)
            member.size = len(picture.getvalue())
            tar.addfile(member, io.BytesIO(picture.getvalue()))
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        tar.addfile(link)
    before = sorted(tmp_path.parent.rglob("*"))
    columns = real._archive(tmp_path / "a.tar", lambda p: 0, 8, grey=True, name="notmnist")
    assert len(columns.x) == 3 and sorted(tmp_path.parent.rglob("*")) == before


def test_a_zip_member_that_is_no_picture_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("big.png", "w") as f:
            for _ in range(65):
                f.write(bytes(1 << 20))
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        with pytest.raises(FedbookError, match="unpacks to 68,157,440 bytes"):
            real._member(archive, "big.png")
        with pytest.raises(FedbookError, match="cannot read none.png"):
            real._member(archive, "none.png")
