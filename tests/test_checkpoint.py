"""A run killed at any instant goes on and ends bit for bit as if it had not been."""

import json
import multiprocessing
import os
import random
import signal
import time

import pytest
import torch

from fedbook import FedbookError, Federation, methods, models, simulate
from fedbook.rounds import Personal
from fedbook.rounds import checkpoint as ck

ROUNDS = 30


def job(federation_file, folder, method="fedavgm", kill_at=None, rounds=ROUNDS):
    """A run with server state (momentum) and client state (personal heads), in a process of its
    own.
    """
    torch.set_num_threads(1)
    if kill_at is not None:
        real, calls = os.replace, iter(range(10**6))

        def replace(a, b):
            n = next(calls)
            if n == kill_at:
                os.kill(
                    os.getpid(), signal.SIGKILL
                )  # the new file is written, but not yet in place
            real(a, b)
            if n == kill_at - 0.5:
                os.kill(os.getpid(), signal.SIGKILL)  # in place, nothing after it happened

        os.replace = replace
    federation = Federation.load(federation_file)
    recipe = methods.get(method, participation=0.5, lr=0.05, batch_size=4).replace(
        personal=Personal(("head.*",))
    )
    simulate(
        recipe,
        federation,
        models.build("mlp", federation, width=64),
        rounds,
        checkpoint=folder,
        quiet=True,
    ).run()


def outcome(folder):
    latest = json.loads((folder / "latest.json").read_text())
    records = [
        json.loads(line) | {"seconds": 0}
        for line in (folder / "records.jsonl").read_text().splitlines()
    ]
    return latest["sha256"], latest["round"], records


@pytest.fixture(scope="module")
def context():
    spawn = multiprocessing.get_context("forkserver")
    spawn.set_forkserver_preload(["fedbook", "fedbook.models.convnets", "safetensors.torch"])
    return spawn


@pytest.fixture(scope="module")
def reference(tmp_path_factory, context):
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(10, 40, 6, generator=g), torch.randint(0, 3, (10, 40), generator=g)
    clients = [{"train": (x[k, :30], y[k, :30]), "test": (x[k, 30:], y[k, 30:])} for k in range(10)]
    root = tmp_path_factory.mktemp("reference")
    file = Federation.from_arrays(clients).save(root / "federation")
    assert finish(context, file, root / "run") == 0
    return file, outcome(root / "run")


def finish(context, file, folder, **options):
    process = context.Process(target=job, args=(file, folder), kwargs=options)
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.parametrize("instant", range(5))
def test_sigkill_at_a_random_instant(context, reference, tmp_path, instant):
    file, expected = reference
    rng, log = random.Random(instant), tmp_path / "records.jsonl"
    process = context.Process(target=job, args=(file, tmp_path))
    process.start()
    wanted = rng.randint(1, ROUNDS // 2)
    while not log.exists() or log.read_bytes().count(b"\n") < wanted:
        time.sleep(0.002)
    time.sleep(rng.uniform(0, 0.05))
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert finish(context, file, tmp_path) == 0
    assert outcome(tmp_path) == expected


@pytest.mark.parametrize("kill_at", [0, 0.5, 1, 4, 4.5, 5])
def test_sigkill_between_the_steps_of_a_save(context, reference, tmp_path, kill_at):
    """Even numbers: the tensors' file; odd ones: latest.json; a half: just after that file came
    into place.
    """
    file, expected = reference
    assert finish(context, file, tmp_path, kill_at=kill_at) == -signal.SIGKILL
    assert finish(context, file, tmp_path) == 0
    assert outcome(tmp_path) == expected


def run(toy, folder, rounds=3, **options):
    return simulate(
        methods.get("fedavg", **options),
        toy,
        models.build("linear", toy),
        rounds,
        checkpoint=folder,
        quiet=True,
    ).run()


def test_a_finished_run_is_replayed_not_repeated(toy, tmp_path):
    first, again = run(toy, tmp_path), run(toy, tmp_path)
    assert [r.to_json() for r in first.records] == [r.to_json() for r in again.records]
    assert all(torch.equal(first.params[n], again.params[n]) for n in first.params)
    longer = run(toy, tmp_path, rounds=5)
    assert len(longer.records) == 5 and longer.records[:3] == first.records
    straight = run(toy, tmp_path / "other", rounds=5)
    assert all(torch.equal(longer.params[n], straight.params[n]) for n in straight.params)


def test_a_checkpoint_of_another_run_is_refused(toy, tmp_path):
    run(toy, tmp_path, lr=0.1)
    with pytest.raises(FedbookError, match="another run: its method differs"):
        run(toy, tmp_path, lr=0.2)
    with pytest.raises(FedbookError, match="3 rounds, 2 were asked for"):
        run(toy, tmp_path, rounds=2, lr=0.1)


def test_a_changed_frozen_backbone_is_another_run(toy, tmp_path):
    def start(value):
        model = models.build("mlp", toy, width=4)
        model.features.requires_grad_(False)
        model.features[1].weight.data.fill_(value)
        return simulate(methods.get("fedavg"), toy, model, 1, checkpoint=tmp_path, quiet=True)

    start(0.1).run()
    start(0.1)
    with pytest.raises(FedbookError, match="its model differs"):
        start(0.2)


def test_saving_every_few_rounds_keeps_every_record(toy, tmp_path):
    method, model = methods.get("fedavg"), models.build("linear", toy)
    simulate(method, toy, model, 5, checkpoint=tmp_path, checkpoint_every=2, quiet=True).run()
    assert [
        json.loads(x)["round"] for x in (tmp_path / "records.jsonl").read_text().splitlines()
    ] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("harm", ["truncate", "flip", "garbage", "missing"])
def test_a_broken_checkpoint_is_noticed(toy, tmp_path, harm):
    run(toy, tmp_path)
    tensors = next(tmp_path.glob("state-*"))
    blob = tensors.read_bytes()
    if harm == "truncate":
        tensors.write_bytes(blob[:-4])
    elif harm == "flip":
        tensors.write_bytes(blob[:-1] + bytes([blob[-1] ^ 1]))
    elif harm == "garbage":
        (tmp_path / "latest.json").write_text("{")
    else:
        tensors.unlink()
    with pytest.raises(FedbookError, match="cannot be read.*delete the folder"):
        run(toy, tmp_path)


def edit(folder, **changes):
    head = folder / "latest.json"
    head.write_text(json.dumps(json.loads(head.read_text()) | changes))


def test_a_checkpoint_carries_its_format(toy, tmp_path):
    run(toy, tmp_path)
    latest = json.loads((tmp_path / "latest.json").read_text())
    assert latest.pop("format") == ck.FORMAT == 1
    (tmp_path / "latest.json").write_text(json.dumps(latest))
    assert len(run(toy, tmp_path, rounds=4).records) == 4  # one without a number is of the first
    edit(tmp_path, format=2)
    with pytest.raises(FedbookError, match="format 2, this fedbook reads 1"):
        run(toy, tmp_path, rounds=5)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ({"tensors": "../elsewhere"}, "lies elsewhere"),
        ({"state": {"__dict__": 3}}, "not iterable"),
        ({"state": {}}, "__dict__"),
        ({"records_bytes": 7}, "cannot be read"),
        ({"round": 9}, "3 records of 9 rounds"),
        ({"identity": 5}, "cannot be read"),
        ({"state": {"__dict__": [["params", 3]]}}, "another shape"),
    ],
)
def test_a_checkpoint_that_was_edited_is_refused(toy, tmp_path, harm, said):
    run(toy, tmp_path)
    edit(tmp_path, **harm)
    with pytest.raises(FedbookError, match=said):
        run(toy, tmp_path)


def test_what_a_killed_process_left_goes_with_the_next_save(toy, tmp_path):
    run(toy, tmp_path, rounds=1)
    (tmp_path / ".state-000002.1-2.part.safetensors").write_bytes(b"half")
    run(toy, tmp_path, rounds=2)
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {"latest.json", "records.jsonl", "state-000002.safetensors"}


def test_keys_with_slashes_do_not_meet():
    tensors = {}
    nest = ck.flatten({"a": {"b": torch.zeros(1)}, "a/b": torch.ones(1)}, tensors)
    back = ck.unflatten(nest, tensors, torch.device("cpu"))
    assert float(back["a"]["b"]) == 0 and float(back["a/b"]) == 1
    with pytest.raises(FedbookError, match="holds a dict"):
        ck.flatten({(1, 2): 0}, {})


def test_divergence_keeps_the_last_good_checkpoint(toy, tmp_path):
    run(toy, tmp_path, rounds=2)
    before = (tmp_path / "latest.json").read_bytes()
    simulation = simulate(
        methods.get("fedavg"), toy, models.build("linear", toy), 4, checkpoint=tmp_path, quiet=True
    )
    simulation.params["head.weight"].fill_(float("nan"))
    with pytest.raises(FedbookError, match="diverged"):
        simulation.run()
    assert (tmp_path / "latest.json").read_bytes() == before


def test_a_full_disk_leaves_the_old_checkpoint(toy, tmp_path, monkeypatch):
    run(toy, tmp_path, rounds=2)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ck.os, "fsync", full)
    with pytest.raises(FedbookError, match="no space left"):
        run(toy, tmp_path, rounds=3)
    monkeypatch.undo()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert len(run(toy, tmp_path, rounds=3).records) == 3


def test_a_place_that_is_no_folder(toy, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FedbookError, match="is a file"):
        run(toy, tmp_path / "file")
    with pytest.raises(FedbookError, match="cannot make the checkpoint folder"):
        run(toy, "/proc/nowhere/run")


def test_states_of_any_nesting_survive():
    state = {
        "a": [1, 2.5, None, {"b": torch.arange(3)}],
        3: "x",
        "t": torch.eye(2),
        "empty": {},
        "flag": True,
    }
    tensors = {}
    nest = json.loads(json.dumps(ck.flatten(state, tensors)))
    back = ck.unflatten(nest, tensors, torch.device("cpu"))
    assert list(back) == ["a", 3, "t", "empty", "flag"] and torch.equal(back["t"], torch.eye(2))
    assert back["a"][:3] == [1, 2.5, None] and torch.equal(back["a"][3]["b"], torch.arange(3))
    with pytest.raises(FedbookError, match="holds a set"):
        ck.flatten({"x": {1}}, {})
