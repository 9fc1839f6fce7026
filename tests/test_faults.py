"""What goes wrong around a run, really done: killed writers, two processes at once, full and
read-only disks, clocks, interrupts, workers that die. Nothing is lost, nothing is silently wrong.

The first line of every test's docstring is a row of HARDENING.md.
"""

import dataclasses
import hashlib
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import same
from test_cli import RUN, call, packs, tiny_table  # noqa: F401
from test_data import root  # noqa: F401
from test_data_download import CONTENT, server  # noqa: F401
from test_results import line

from fedbook import FedbookError, Federation, data, methods, models, simulate
from fedbook.data import store as packing
from fedbook.data.dataset import Columns
from fedbook.files import locked, write_atomically
from fedbook.models.cache import Cache
from fedbook.results import Store

FORK = multiprocessing.get_context("fork")


def start(job, *args):
    process = FORK.Process(target=job, args=args, daemon=True)
    process.start()
    return process


def finish(*processes, within=60):
    for process in processes:
        process.join(within)
        assert process.exitcode is not None, "a process hangs"
    return [process.exitcode for process in processes]


def until(condition, within=30):
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.002)


def files(folder):
    """What lies in a folder, but for empty lock files."""
    kept = (p for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock")
    return {str(p.relative_to(folder)): p.read_bytes() for p in kept}


# -- results ---------------------------------------------------------------------------------------
def append_many(folder, first, count):
    for i in range(count):
        Store(folder).append(line(first + i, text="x" * 500), "shared")


def test_two_processes_write_500_results(tmp_path):
    """Two processes write 500 results to one file at once | all 500 are there, whole"""
    writers = [start(append_many, tmp_path, 1000 * k, 250) for k in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a reader never meets half a line
        while any(w.is_alive() for w in writers):
            Store(tmp_path).load()
    assert finish(*writers) == [0, 0]
    seeds = sorted(r["seed"] for r in Store(tmp_path).load())
    assert seeds == [*range(250), *range(1000, 1250)]


def hold(path, ready):
    with locked(path):
        ready.set()
        time.sleep(600)


def test_a_lock_dies_with_its_process(tmp_path):
    """A process is killed (-9) while it holds the lock of a results file | the next one writes"""
    ready = FORK.Event()
    holder = start(hold, tmp_path / "shared.jsonl", ready)
    ready.wait(30)
    writer = start(append_many, tmp_path, 0, 1)
    writer.join(0.3)
    assert writer.is_alive(), "it waits"
    os.kill(holder.pid, signal.SIGKILL)
    assert finish(writer, holder) == [0, -signal.SIGKILL]
    assert [r["seed"] for r in Store(tmp_path).load()] == [0]


def test_a_lock_is_of_the_file_that_has_the_name(tmp_path):
    """A locked file is replaced while another process waits for it | the new file is locked"""
    path = tmp_path / "f"
    got = FORK.Event()

    def waiter():
        with locked(path):
            got.set()
            time.sleep(600)

    with locked(path):
        process = start(waiter)
        time.sleep(0.2)
        os.replace(path, tmp_path / "done")
    assert got.wait(30)
    third = start(lambda: locked(path).__enter__())
    third.join(0.3)
    assert third.is_alive()
    process.kill(), third.kill()
    finish(process, third)


# -- checkpoints -----------------------------------------------------------------------------------
def federation(seed=0):
    g = torch.Generator().manual_seed(seed)
    x, y = torch.randn(6, 30, 5, generator=g), torch.randint(0, 3, (6, 30), generator=g)
    clients = [{"train": (x[k, :20], y[k, :20]), "test": (x[k, 20:], y[k, 20:])} for k in range(6)]
    return Federation.from_arrays(clients)


def run(folder, rounds=6):
    own = federation()
    method, model = methods.get("fedavgm", lr=0.05), models.build("linear", own)
    return simulate(method, own, model, rounds, checkpoint=folder, quiet=True).run()


def attempt(folder, rounds, gate, said):
    """Both processes find the same state before either goes on."""
    own = federation()
    method, model = methods.get("fedavgm", lr=0.05), models.build("linear", own)
    simulation = simulate(method, own, model, rounds, checkpoint=folder, quiet=True)
    gate.wait(30)
    try:
        simulation.run()
        said.put("finished")
    except FedbookError as error:
        said.put(str(error))


def test_two_processes_on_one_checkpoint(tmp_path):
    """Two processes go on with one checkpoint | one finishes, the other stops with a hint"""
    run(tmp_path / "one", 2)
    gate, said = FORK.Barrier(2), FORK.Queue()
    both = [start(attempt, tmp_path / "one", 8, gate, said) for _ in range(2)]
    told = sorted(said.get(timeout=60) for _ in both)
    assert finish(*both) == [0, 0]
    assert "another process goes on with the checkpoint" in told[0] and told[1] == "finished"
    straight = run(tmp_path / "other", 8)
    assert same(run(tmp_path / "one", 8), straight)


# -- the feature cache -----------------------------------------------------------------------------
def entry(folder, rows, wait=0.0, ready=None):
    """Row i of entry k is (i, 2 i)."""

    def compute(index):
        if ready is not None:
            ready.set()
        time.sleep(wait)
        return torch.stack([index, 2 * index], 1).float()

    return Cache(directory=folder).rows("k", 64, torch.arange(*rows), compute)


def test_two_processes_fill_one_cache_entry(tmp_path):
    """Two processes fill different rows of one cache entry at once | both rows are kept"""
    both = [start(entry, tmp_path, rows, 0.1) for rows in ((0, 40), (20, 64))]
    assert finish(*both) == [0, 0]

    def never(index):
        raise AssertionError("a row was lost")

    kept = Cache(directory=tmp_path).rows("k", 64, torch.arange(64), never)
    assert torch.equal(kept[:, 1], 2.0 * torch.arange(64))


def test_a_process_killed_while_it_fills_the_cache(tmp_path):
    """A process is killed (-9) while it fills a cache entry | the one that waits fills it"""
    ready = FORK.Event()
    first = start(entry, tmp_path, (0, 64), 600, ready)
    ready.wait(30)
    second = start(entry, tmp_path, (0, 64))
    second.join(0.2)
    assert second.is_alive(), "it waits"
    first.kill()
    assert finish(first, second) == [-signal.SIGKILL, 0]
    assert "k.safetensors" in files(tmp_path)


@pytest.mark.parametrize("where", [-1, 40, 3])
def test_a_corrupted_cache_entry(tmp_path, where):
    """One bit of a cache entry flips (in its numbers, its header, its length) | computed anew"""
    whole = entry(tmp_path, (0, 64))
    path = tmp_path / "k.safetensors"
    blob = bytearray(path.read_bytes())
    blob[where] ^= 1
    path.write_bytes(blob)
    assert torch.equal(entry(tmp_path, (0, 64)), whole)


def test_what_a_killed_process_left_is_removed(tmp_path):
    """A killed process left half a cache entry | removed a day later"""
    half = tmp_path / ".k.123-4.part.safetensors"
    half.write_bytes(b"half")
    entry(tmp_path, (0, 8))
    assert half.exists(), "its process may still be writing"
    os.utime(half, (0, 0))
    entry(tmp_path, (0, 16))
    assert not half.exists()


# -- disks -----------------------------------------------------------------------------------------
def write_pack(folder):
    n = 400
    x = np.random.default_rng(0).integers(0, 255, (n, 16, 16)).astype(np.uint8)
    columns = Columns(x, np.arange(n) % 4, (np.arange(n) % 5 == 0).astype(np.uint8), list("abcd"))
    packing.write_pack(folder / "p.npz", columns)


def write_figure(folder):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    from fedbook import plots

    figure = Figure()
    figure.subplots().imshow(np.random.default_rng(0).random((200, 200)))
    plots.save(figure, "f", "noise", folder)


def write_federation(folder):
    own = federation()
    large = dataclasses.replace(own, x=torch.randn(len(own.x), 500))
    large.save(folder / "f.safetensors")


def write_result(folder):
    Store(folder).append(line(0, text="x" * 200_000), "a")


WRITERS = {
    "a result": write_result,
    "a checkpoint": lambda folder: wide_run(folder / "run"),
    "a federation": write_federation,
    "a pack": write_pack,
    "a figure": write_figure,
}


def wide_run(folder):
    own = federation()
    model = models.build("mlp", own, width=4000)
    simulate(methods.get("fedavg"), own, model, 2, checkpoint=folder, quiet=True).run()


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 64 kB of its own; without the right to mount one there is none."""
    place = tmp_path / "disk"
    place.mkdir()
    made = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(made, capture_output=True).returncode:
        pytest.skip("needs the right to mount a disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("what", WRITERS)
def test_full_disk(small_disk, what):
    """The disk is full while {what} is written | one line; nothing half-written is left"""
    before = files(small_disk)
    with pytest.raises(FedbookError, match="cannot write .*no space left.*half-written|whole"):
        WRITERS[what](small_disk)
    assert {p for p, text in files(small_disk).items() if text} == set(before)


@pytest.mark.parametrize("what", WRITERS)
def test_limit_of_a_files_size(tmp_path, what):
    """A file would exceed the system's limit while {what} is written | the same"""

    def job():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            WRITERS[what](tmp_path)
        except FedbookError as error:
            os._exit(7 if "no space left" in str(error) else 8)
        os._exit(0)

    assert finish(start(job)) == [7]
    assert not any(files(tmp_path).values())


@pytest.fixture
def read_only(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid():
        place.chmod(0o555)
        yield place
        place.chmod(0o755)
        return
    made = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(place)]
    if subprocess.run(made, capture_output=True).returncode:
        pytest.skip("needs the right to mount a disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("what", WRITERS)
def test_read_only_folder(read_only, what):
    """The folder is read-only while {what} is written | one line with a hint"""
    with pytest.raises(FedbookError, match="no permission|Read-only file system"):
        WRITERS[what](read_only)
    assert files(read_only) == {}


def test_cache_without_room(small_disk):
    """The disk is full, or read-only, for the cache | a warning; the run goes on without it"""
    with pytest.warns(UserWarning, match="nothing is kept on disk.*no space left"):
        rows = Cache(directory=small_disk).rows(
            "k", 64, torch.arange(64), lambda i: torch.ones(len(i), 2000)
        )
    assert rows.shape == (64, 2000) and files(small_disk) == {}


def test_reading_from_a_read_only_folder(read_only, tmp_path):
    """Results are read from a read-only folder | read"""
    assert Store(read_only).load() == []
    with pytest.warns(UserWarning, match="nothing is kept on disk"):
        assert entry(read_only, (0, 4)).shape == (64, 2)


def test_two_threads_write_one_file(tmp_path):
    """Two threads write one file at once | one of the two, whole"""
    import threading

    def write(letter):
        for _ in range(50):
            with write_atomically(tmp_path / "f") as part:
                part.write_text(letter * 10_000)

    threads = [threading.Thread(target=write, args=(c,)) for c in "ab"]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert set((tmp_path / "f").read_text()) in ({"a"}, {"b"}) and len(files(tmp_path)) == 1


# -- the clock -------------------------------------------------------------------------------------
def test_the_clock_goes_backwards(tmp_path, monkeypatch):
    """The clock goes back an hour at every look | same results, no negative times, cache kept"""
    straight = run(tmp_path / "straight")
    now = iter(range(4_000_000_000, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(now)))
    backwards = run(tmp_path / "backwards")
    assert same(straight, backwards) and all(r.seconds >= 0 for r in backwards.records)
    entry(tmp_path / "cache", (0, 64))
    os.utime(tmp_path / "cache" / "k.safetensors", (4e9, 4e9))
    cache = Cache(directory=tmp_path / "cache", disk=700)
    cache.rows("new", 64, torch.arange(64), lambda i: torch.ones(len(i), 2))
    assert "new.safetensors" in files(tmp_path / "cache"), "the newest is never what goes"
    Store(tmp_path).append(line(0, 1.0), "a")
    os.utime(tmp_path / "a.jsonl", (4e9, 4e9))
    assert Store(tmp_path).load()[0]["metrics"]["avg"] == 1.0
    Store(tmp_path).append(line(0, 2.0), "a")
    assert Store(tmp_path).load()[0]["metrics"]["avg"] == 2.0, "the order of lines decides"


# -- interrupts ------------------------------------------------------------------------------------
@pytest.fixture
def interruptible():
    """As in a terminal; in the background a shell lets its commands ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt(*_args, **_options):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)  # the signal arrives before this ends


PHASES = {
    "planning": "fedbook.papers.planned",
    "loading data": "fedbook.experiment.load_dataset",
    "dealing data out": "fedbook.data.partition.split",
    "building the model": "fedbook.models.build",
    "training": "torch.Tensor.backward",
    "evaluating": "fedbook.rounds.evaluation.predict",
    "saving a checkpoint": "fedbook.rounds.checkpoint.Checkpoint._save",
    "measuring": "fedbook.measures.usual",
    "locking the results": "fedbook.results.locked",
    "storing": "fedbook.results._whole_length",
}


@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c(call, interruptible, tmp_path, monkeypatch, phase):  # noqa: F811
    """Ctrl-C while {what} | one line, code 130; the same command goes on and ends the same"""
    command = RUN + f" --checkpoint {tmp_path}/state"
    with monkeypatch.context() as patch:
        patch.setattr(PHASES[phase], interrupt)
        code, _, err = call(command)
    assert code == 130 and len(err.strip().splitlines()) == 1 and "Traceback" not in err
    assert Store(tmp_path / "results").load() == []
    assert not [name for name in files(tmp_path) if ".part" in name]
    assert call(command)[0] == 0
    [stored] = Store(tmp_path / "results").load()
    assert call(command.replace("/state", "/fresh"))[0] == 0
    [straight] = Store(tmp_path / "results").load()
    assert straight["metrics"]["clients"] == stored["metrics"]["clients"]


def workers_are_gone(seconds=20):
    end = time.monotonic() + seconds
    while multiprocessing.active_children() and time.monotonic() < end:
        time.sleep(0.1)
    return not multiprocessing.active_children()


def test_ctrl_c_with_two_workers(call, interruptible, tiny_table, tmp_path):  # noqa: F811
    """A worker of --jobs 2 is killed (-9), then Ctrl-C | finished runs are kept, none repeated"""
    from fedbook import papers
    from fedbook.papers.reproduce import compute, missing

    specs, store = [papers.get("client2vec/table9")], Store(tmp_path / "results")

    def todo():
        return missing(specs, "smoke", None, store.keys())

    def kill_a_worker(_line):
        multiprocessing.active_children()[0].kill()

    every = len(todo())
    with pytest.raises(FedbookError, match="a worker process died.*finished runs are kept"):
        compute(todo(), store, 2, kill_a_worker)
    kept = len(store.load())
    assert 1 <= kept < every and len(todo()) == every - kept
    assert workers_are_gone()
    with pytest.raises(KeyboardInterrupt):
        compute(todo(), store, 2, interrupt)
    assert kept < len(store.load()) and workers_are_gone()
    compute(todo(), store, 1)
    assert not todo() and len(store.load()) == every


KILLED = """
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from fedbook.papers.reproduce import _one_thread

if __name__ == "__main__":
    with ProcessPoolExecutor(2, get_context("spawn"), initializer=_one_thread) as pool:
        at_work = [pool.submit(time.sleep, 100) for _ in range(2)]
        while not all(future.running() for future in at_work):
            time.sleep(0.1)
        print(*pool._processes, flush=True)
        time.sleep(100)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_workers_go_with_the_process_that_began_them(tmp_path, how):
    """`fedbook reproduce --jobs 2` itself is killed (-9, or TERM) | its workers end with it"""
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "killed.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as begun:
        workers = [int(pid) for pid in begun.stdout.readline().split()]
        os.kill(begun.pid, how)
        assert begun.wait(20) == -how and len(workers) == 2
    end = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < end:
        time.sleep(0.2)
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


# -- downloads -------------------------------------------------------------------------------------
def fetch(url, target):
    packing.download(url, target, sha256=hashlib.sha256(CONTENT).hexdigest(), quiet=True)


def test_two_processes_download_one_file(server, root, tmp_path):  # noqa: F811
    """Two processes download one file at once | it arrives once, whole"""
    both = [start(fetch, server.url + "f.bin", tmp_path / "f.bin") for _ in range(2)]
    assert finish(*both) == [0, 0]
    assert (tmp_path / "f.bin").read_bytes() == CONTENT and len(server.asked) == 1
    assert list(files(tmp_path)) == ["f.bin"]


def test_a_download_is_killed_and_goes_on(server, root, tmp_path):  # noqa: F811
    """A download is killed (-9) in the middle | the next one asks for the rest only"""
    server.stall = 1_500_000  # what is read at once is a megabyte
    process = start(fetch, server.url + "f.bin", tmp_path / "f.bin")
    part = tmp_path / "f.bin.part"
    until(lambda: part.exists() and part.stat().st_size > 0)
    process.kill()
    finish(process)
    arrived = part.stat().st_size
    fetch(server.url + "f.bin", tmp_path / "f.bin")
    assert server.asked[-1] == f"bytes={arrived}-"
    assert (tmp_path / "f.bin").read_bytes() == CONTENT and list(files(tmp_path)) == ["f.bin"]


def test_two_processes_enter_packs_in_the_manifest(root):  # noqa: F811
    """Two processes enter packs in one manifest at once | every entry is there"""

    def enter(first):
        for i in range(first, first + 20):
            packing._remember(root, f"{i}.npz", {"bytes": i})

    assert finish(*[start(enter, 100 * k) for k in range(2)]) == [0, 0]
    expected = {f"{i}.npz" for i in (*range(20), *range(100, 120))}
    assert set(packing.manifest(root)) == expected


def test_a_broken_manifest(root):  # noqa: F811
    """The manifest of packs is broken | packs are read and entered anew"""
    (root / "manifest.json").write_text("{half")
    write_pack(root)
    columns, recorded = packing.load_recorded(root / "p.npz")
    assert len(columns.x) == 400 and packing.manifest(root)["p.npz"] == recorded
    assert json.loads((root / "manifest.json").read_text())
    assert data.from_npz(root / "p.npz").name == "p"
