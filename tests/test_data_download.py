"""The downloader against a server on this machine that breaks off, ignores ranges or sends the
wrong file."""

import bz2
import gzip
import hashlib
import pickle
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from test_data import message, png, root, tar_of  # noqa: F401

from fedbook import data
from fedbook.data import store
from fedbook.errors import FedbookError

CONTENT = np.random.default_rng(0).bytes(3_000_000)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.asked.append(self.headers.get("Range"))
        body = server.files.get(self.path.rsplit("/", 1)[1])
        if body is None:
            return self.send_error(404)
        start = 0
        if self.headers.get("Range") and server.ranges:
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                return self.send_error(416)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        if stall := getattr(server, "stall", 0):  # once: some bytes, then silence
            server.stall = 0
            self.wfile.write(body[:stall])
            server.silence.wait(60)
            return
        stop = server.breaks.pop(0) if server.breaks else len(body)
        self.wfile.write(body[start : max(start, stop)])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files, server.ranges, server.breaks, server.asked = {"f.bin": CONTENT}, True, [], []
        server.silence = threading.Event()
        server.url = f"http://127.0.0.1:{server.server_port}/"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.silence.set()
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def own_folder(root, monkeypatch):  # noqa: F811
    """Nothing is written to the user's data folder; the stand-in files have sums of their own."""
    monkeypatch.setattr("fedbook.data.real.SHA256", {})


def names(folder):
    return sorted(p.name for p in folder.iterdir() if p.is_file())


def test_download_and_check(server, tmp_path):
    target = tmp_path / "f.bin"
    md5, sha = hashlib.md5(CONTENT).hexdigest(), hashlib.sha256(CONTENT).hexdigest()
    assert (
        store.download(
            server.url + "f.bin", target, md5=md5, sha256=sha, size=len(CONTENT), quiet=True
        )
        == sha
    )
    assert target.read_bytes() == CONTENT and names(tmp_path) == ["f.bin"]
    store.download(server.url + "f.bin", target, md5=md5, quiet=True)
    assert len(server.asked) == 1, "a file that is there is not asked for again"


def test_it_continues_where_it_broke_off(server, tmp_path):
    server.breaks = [1_000_000, 2_500_000]
    for arrived in (1_000_000, 2_500_000):
        found = message(
            lambda: store.download(server.url + "f.bin", tmp_path / "f.bin", quiet=True)
        )
        assert f"broke off after {arrived} of 3000000" in found and names(tmp_path) == [
            "f.bin.part"
        ]
    store.download(
        server.url + "f.bin",
        tmp_path / "f.bin",
        quiet=True,
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )
    assert server.asked == [None, "bytes=1000000-", "bytes=2500000-"] and names(tmp_path) == [
        "f.bin"
    ]


def test_a_server_without_ranges_starts_again(server, tmp_path):
    server.ranges, server.breaks = False, [1_000_000]
    message(lambda: store.download(server.url + "f.bin", tmp_path / "f.bin", quiet=True))
    store.download(server.url + "f.bin", tmp_path / "f.bin", quiet=True)
    assert (tmp_path / "f.bin").read_bytes() == CONTENT


def test_a_part_longer_than_the_file_is_dropped(server, tmp_path):
    (tmp_path / "f.bin.part").write_bytes(CONTENT + b"too much")
    store.download(server.url + "f.bin", tmp_path / "f.bin", quiet=True)
    assert (tmp_path / "f.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("wrong", [{"md5": "0" * 32}, {"sha256": "0" * 64}, {"size": 7}])
def test_the_wrong_file_is_refused_and_deleted(server, tmp_path, wrong):
    assert "not the published file" in message(
        lambda: store.download(server.url + "f.bin", tmp_path / "f.bin", quiet=True, **wrong)
    )
    assert names(tmp_path) == []


def test_without_a_published_checksum_the_first_download_is_trusted(server, tmp_path, root):  # noqa: F811
    url, target = server.url + "f.bin", tmp_path / "f.bin"
    first = store.download(url, target, quiet=True)
    assert store.manifest(root)[url] == {"bytes": len(CONTENT), "sha256": first}
    target.unlink()
    assert store.download(url, target, quiet=True) == first
    target.unlink()
    server.files["f.bin"] = CONTENT[::-1]
    assert "not the file it was" in message(lambda: store.download(url, target, quiet=True))
    assert names(tmp_path) == []


def test_interrupted_by_the_user(server, tmp_path, monkeypatch):
    from tqdm.auto import tqdm

    def interrupt(self, n=1):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tqdm, "update", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.download(server.url + "f.bin", tmp_path / "f.bin", quiet=True)
    assert names(tmp_path) == ["f.bin.part"]
    store.download(server.url + "f.bin", tmp_path / "f.bin", quiet=True)
    assert (tmp_path / "f.bin").read_bytes() == CONTENT and server.asked[1].startswith("bytes=")


def test_missing_file_and_no_server(server, tmp_path):
    assert "404" in message(
        lambda: store.download(server.url + "g.bin", tmp_path / "g.bin", quiet=True)
    )
    closed = "http://127.0.0.1:9/f.bin"
    assert "cannot reach" in message(
        lambda: store.download(closed, tmp_path / "f.bin", quiet=True, timeout=2)
    )
    assert names(tmp_path) == []


def test_no_room_on_the_disk(server, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "replace", full)
    assert "no space left" in message(
        lambda: store.download(server.url + "f.bin", tmp_path / "f.bin", quiet=True)
    )


# ------------------------------------------------------------------------ torchvision's datasets,
# with files of our own


def md5(content):
    return hashlib.md5(content).hexdigest()


def fetch_and_load(name):
    data.fetch(name, quiet=True)
    with pytest.warns(UserWarning, match="subset of the published"):
        return data.load(name)


def test_fetch_mnist(root, server, monkeypatch):  # noqa: F811
    from torchvision import datasets

    resources = []
    for side, n in (("train", 12), ("t10k", 4)):
        images = struct.pack(">IIII", 2051, n, 28, 28) + bytes(range(28)) * 28 * n
        labels = struct.pack(">II", 2049, n) + bytes(i % 10 for i in range(n))
        for kind, raw in (("images-idx3", images), ("labels-idx1", labels)):
            file = f"{side}-{kind}-ubyte.gz"
            server.files[file] = gzip.compress(raw)
            resources.append((file, md5(server.files[file])))
    monkeypatch.setattr(datasets.MNIST, "resources", resources)
    monkeypatch.setattr(datasets.MNIST, "mirrors", ["http://127.0.0.1:9/", server.url])
    d = fetch_and_load("mnist")
    assert (len(d.train), len(d.test)) == (12, 4) and d.y.tolist() == [
        i % 10 for i in range(12)
    ] + [0, 1, 2, 3]
    assert not (root / "raw" / "mnist").exists() and data.info("mnist")["status"] == "cached"


def test_fetch_usps(root, server, monkeypatch):  # noqa: F811
    from torchvision import datasets

    split_list = {}
    for side, n in (("train", 10), ("test", 5)):
        line = " ".join(f"{i + 1}:0.5" for i in range(256))
        server.files[f"{side}.bz2"] = bz2.compress(
            "".join(f"{i % 10 + 1} {line}\n" for i in range(n)).encode()
        )
        split_list[side] = [
            server.url + f"{side}.bz2",
            f"usps_{side}.bz2",
            md5(server.files[f"{side}.bz2"]),
        ]
    monkeypatch.setattr(datasets.USPS, "split_list", split_list)
    d = fetch_and_load("usps")
    assert (len(d.train), len(d.test)) == (10, 5) and d.y.tolist()[:3] == [0, 1, 2]
    assert data.from_npz(root / "usps.npz").x.shape[1:] == (1, 16, 16)


def test_fetch_svhn(root, server, monkeypatch, tmp_path):  # noqa: F811
    from scipy.io import savemat
    from torchvision import datasets

    split_list = {}
    for side, n in (("train", 10), ("test", 5)):
        x = np.zeros((32, 32, 3, n), np.uint8)
        x[:, 5, 1] = 200
        savemat(tmp_path / f"{side}.mat", {"X": x, "y": np.arange(1, n + 1)[:, None]})
        server.files[f"{side}.mat"] = (tmp_path / f"{side}.mat").read_bytes()
        split_list[side] = [
            server.url + f"{side}.mat",
            f"{side}.mat",
            md5(server.files[f"{side}.mat"]),
        ]
    monkeypatch.setattr(datasets.SVHN, "split_list", split_list)
    d = fetch_and_load("svhn")
    assert d.y.tolist()[:10] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0], "label 10 means the digit 0"
    assert (d.x[0, 1, :, 5] == 200).all() and (d.x[0, 0] == 0).all()


@pytest.mark.parametrize(("name", "key"), [("cifar10", "labels"), ("cifar100", "fine_labels")])
def test_fetch_cifar(root, server, monkeypatch, name, key):  # noqa: F811
    from torchvision import datasets

    maker = datasets.CIFAR10 if name == "cifar10" else datasets.CIFAR100
    batches, files = {"one": 8, "two": 4}, {}
    for batch, n in batches.items():
        rows = np.full((n, 3072), 9, np.uint8)
        rows[:, :1024] = 90
        files[batch] = pickle.dumps({"data": rows, key: list(range(n))})
    files["meta"] = pickle.dumps({maker.meta["key"]: ["x"] * 10})
    server.files["c.tar.gz"] = tar_of({f"{maker.base_folder}/{k}": v for k, v in files.items()})
    monkeypatch.setattr(maker, "url", server.url + "c.tar.gz")
    monkeypatch.setattr(maker, "tgz_md5", md5(server.files["c.tar.gz"]))
    monkeypatch.setattr(maker, "train_list", [["one", md5(files["one"])]])
    monkeypatch.setattr(maker, "test_list", [["two", md5(files["two"])]])
    monkeypatch.setattr(
        maker, "meta", {**maker.meta, "filename": "meta", "md5": md5(files["meta"])}
    )
    d = fetch_and_load(name)
    assert (
        (len(d.train), len(d.test)) == (8, 4)
        and (d.x[:, 0] == 90).all()
        and (d.x[:, 1:] == 9).all()
    )


def test_fetch_mnist_m(root, server, monkeypatch):  # noqa: F811
    import io

    import torch

    from fedbook.data import real

    for side, n in (("train", 10), ("test", 5)):
        stream = io.BytesIO()
        torch.save((torch.zeros(n, 28, 28, 3, dtype=torch.uint8), torch.arange(n)), stream)
        server.files[f"mnist_m_{side}.pt.tar.gz"] = tar_of(
            {f"mnist_m_{side}.pt": stream.getvalue()}
        )
    honest = store.download
    monkeypatch.setattr(
        real.store,
        "download",
        lambda url, target, md5=None, quiet=False: honest(
            server.url + target.name, target, quiet=quiet
        ),
    )
    d = fetch_and_load("mnist_m")
    assert (len(d.train), len(d.test)) == (10, 5)


def test_fetch_domainnet(root, server, monkeypatch):  # noqa: F811
    import zipfile
    from io import BytesIO

    from fedbook.data import real

    for domain in real.DOMAINNET:
        stream = BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr(f"{domain}/bird/a.png", png(1))
            archive.writestr(f"{domain}/bird/b.png", png(2))
        server.files[f"{domain}.zip"] = stream.getvalue()
        server.files[f"{domain}_train.txt"] = f"{domain}/bird/a.png 0\n".encode()
        server.files[f"{domain}_test.txt"] = f"{domain}/bird/b.png 0\n".encode()
    honest = store.download
    monkeypatch.setattr(
        real.store,
        "download",
        lambda url, target, quiet=False: honest(
            server.url + url.rsplit("/", 1)[1], target, quiet=True
        ),
    )
    server.breaks = [0, 60, 60, 60]
    for _ in range(2):
        with pytest.raises(FedbookError, match="broke off"):
            data.fetch("domainnet", quiet=True)
    data.fetch("domainnet", quiet=True)
    assert len(data.load("domainnet", size=8)) == 12


def test_fetch_to_another_folder(server, tmp_path, monkeypatch, root):  # noqa: F811
    from fedbook.data import real

    files = {f"n/{c}/{i}.png": png(3) for c in "ABCDEFGHIJ" for i in range(5)}
    server.files["notMNIST_small.tar.gz"] = tar_of(files)
    honest = store.download
    monkeypatch.setattr(
        real.store,
        "download",
        lambda url, target, size=None, quiet=False: honest(
            server.url + target.name, target, quiet=True
        ),
    )
    made = data.fetch("notmnist", root=tmp_path / "elsewhere", quiet=True)
    assert (
        made == [tmp_path / "elsewhere" / "notmnist.npz"] and not (root / "notmnist.npz").exists()
    )
    assert (tmp_path / "elsewhere" / "manifest.json").exists()
