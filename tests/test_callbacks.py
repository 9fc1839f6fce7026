"""Callbacks see every round, may stop a run, and what loggers write can be read back."""

import ast
import csv
import inspect
import math
import time
from pathlib import Path

import pytest

from fedbook import FedbookError, callbacks, methods, models, simulate

ROUNDS = 4


def start(toy, watchers, **options):
    model = models.build("linear", toy)
    method = methods.get("fedavg", lr=0.1)
    chosen = {"rounds": ROUNDS, "quiet": True} | options
    return simulate(method, toy, model, callbacks=watchers, **chosen)


def test_a_function_of_ones_own_sees_every_round(toy):
    seen = []
    start(toy, [lambda run, record: seen.append((run, record.round))]).run()
    assert [r for _, r in seen] == [1, 2, 3, 4]


def test_watching_changes_nothing(toy, tmp_path):
    plain = start(toy, []).run()
    watched = start(toy, [callbacks.CSV(tmp_path / "a.csv"), callbacks.EarlyStopping(99)]).run()
    assert [r.test_acc for r in plain.records] == [r.test_acc for r in watched.records]
    for name, value in plain.params.items():
        assert (value == watched.params[name]).all()


def test_true_stops_after_that_round(toy):
    run = start(toy, [lambda run, record: record.round == 2]).run()
    assert len(run.records) == 2
    live = run.model.state_dict()
    assert all((live[name] == value).all() for name, value in run.params.items())
    only_true = start(toy, [lambda run, record: "yes"]).run()
    assert len(only_true.records) == ROUNDS


def test_begin_and_end_are_told_even_when_something_breaks(toy):
    told = []

    class Tell(callbacks.Callback):
        def begin(self, run):
            told.append("begin")

        def __call__(self, run, record):
            raise ValueError("mine")

        def end(self, run):
            told.append("end")

    with pytest.raises(ValueError, match="mine"):
        start(toy, [Tell()]).run()
    assert told == ["begin", "end"]


def test_resumed_rounds_are_shown_again(toy, tmp_path):
    start(toy, [], rounds=2, checkpoint=tmp_path / "state").run()
    log = callbacks.CSV(tmp_path / "rounds.csv")
    start(toy, [log], checkpoint=tmp_path / "state").run()
    rows = list(csv.DictReader((tmp_path / "rounds.csv").open()))
    assert [int(r["round"]) for r in rows] == [1, 2, 3, 4]


def test_csv_holds_the_records(toy, tmp_path):
    run = start(toy, [callbacks.CSV(tmp_path / "deep" / "rounds.csv")]).run()
    rows = list(csv.DictReader((tmp_path / "deep" / "rounds.csv").open()))
    for row, record in zip(rows, run.records, strict=True):
        assert float(row["test/avg_client"]) == pytest.approx(record.accuracy)
        assert float(row["round/bytes_up"]) == record.bytes_up
        mean = sum(record.train_loss.values()) / len(record.train_loss)
        assert float(row["train/loss"]) == pytest.approx(mean)


def test_rounds_without_a_test_leave_cells_empty(toy, tmp_path):
    start(toy, [callbacks.CSV(tmp_path / "r.csv")], evaluate_every=2).run()
    rows = list(csv.DictReader((tmp_path / "r.csv").open()))
    assert [bool(r["test/avg_client"]) for r in rows] == [False, True, False, True]


class Fixed:
    """A record with a given accuracy."""

    def __init__(self, accuracy):
        self.accuracy = accuracy


def stops_after(scores, monkeypatch, **options):
    """The number of rounds until early stopping speaks, None if it never does."""
    watcher = callbacks.EarlyStopping(2, "score", **options)
    monkeypatch.setattr(
        callbacks, "numbers", lambda run, r: {} if r.accuracy is None else {"score": r.accuracy}
    )
    watcher.begin(None)
    for t, score in enumerate(scores, 1):
        if watcher(None, Fixed(score)):
            return t
    return None


def test_early_stopping(monkeypatch):
    assert stops_after([0.1, 0.2, 0.3, 0.4], monkeypatch) is None
    assert stops_after([0.5, 0.4, 0.5], monkeypatch) == 3
    assert stops_after([0.5, 0.4, 0.6, 0.5, 0.5], monkeypatch) == 5
    assert stops_after([0.5, None, None, 0.4, None, 0.4], monkeypatch) == 6
    assert stops_after([3.0, 2.0, 1.0, 2.0, 2.0], monkeypatch, sign=-1) == 5
    assert stops_after([0.10, 0.11, 0.12, 0.13], monkeypatch, least=0.05) == 3


def test_early_stopping_names_its_score(toy):
    with pytest.raises(FedbookError, match="did you mean test/avg_client"):
        start(toy, [callbacks.EarlyStopping(1, "test/avg_clients")]).run()


def test_numbers_are_finite_floats(toy):
    found = []
    start(toy, [lambda run, record: found.append(callbacks.numbers(run, record))]).run()
    assert all(math.isfinite(v) for n in found for v in n.values())
    assert {"test/worst_client", "train/loss", "round/seconds"} <= set(found[0])


def test_tensorboard_can_be_read_back(toy, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = start(toy, [callbacks.TensorBoard(tmp_path / "tb")]).run()
    events = EventAccumulator(str(tmp_path / "tb")).Reload().Scalars("test/avg_client")
    assert [e.step for e in events] == [1, 2, 3, 4]
    assert [e.value for e in events] == pytest.approx([r.accuracy for r in run.records], abs=1e-6)


def test_wandb_offline_can_be_read_back(toy, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = start(toy, [callbacks.WandB("mine", folder=tmp_path, mode="offline")]).run()
    [file] = tmp_path.rglob("*.wandb")
    for _ in range(120):  # a process of its own writes the file, and may lag behind
        history = wandb_history(file)
        if len(history) == len(run.records):
            break
        time.sleep(0.5)
    assert [h["_step"] for h in history] == [1, 2, 3, 4]
    found = [h["test/avg_client"] for h in history]
    assert found == pytest.approx([r.accuracy for r in run.records])


def wandb_history(file: Path):
    """The rows of an offline file of Weights & Biases: a LevelDB log of protocol buffers."""
    import json

    from wandb.proto import wandb_internal_pb2

    data = file.read_bytes()
    assert data[:4] == b":W&B"
    rows, at, whole = [], 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # no header fits into the rest of a block
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a full record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                names = ["/".join(i.nested_key) or i.key for i in items]
                rows.append({n: json.loads(i.value_json) for n, i in zip(names, items)})
    return rows


def test_mlflow_can_be_read_back(toy, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = f"file:{tmp_path}/runs"
    run = start(toy, [callbacks.MLflow(uri)]).run()
    client = mlflow.MlflowClient(tracking_uri=uri)
    where = client.get_experiment_by_name("fedbook").experiment_id
    [found] = client.search_runs([where])
    assert found.info.status == "FINISHED" and found.data.params["method"] == "fedavg"
    history = client.get_metric_history(found.info.run_id, "test/avg_client")
    assert [m.step for m in history] == [1, 2, 3, 4]
    assert [m.value for m in history] == pytest.approx([r.accuracy for r in run.records])


def test_a_missing_library_is_said(toy, monkeypatch):
    import sys

    for name, watcher in (("wandb", callbacks.WandB()), ("mlflow", callbacks.MLflow())):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(FedbookError, match=f"{name}.* is not installed.*pip install"):
            start(toy, [watcher]).run()


def test_loggers_by_name(tmp_path):
    assert isinstance(callbacks.build("wandb-offline", "x"), callbacks.WandB)
    assert callbacks.build("csv=logs", "x").path == Path("logs/x.csv")
    with pytest.raises(FedbookError, match="did you mean tensorboard"):
        callbacks.build("tensorbord", "x")


def test_each_callback_is_short():
    tree = ast.parse(inspect.getsource(callbacks))
    sizes = {n.name: n.end_lineno - n.lineno + 1 for n in tree.body if isinstance(n, ast.ClassDef)}
    assert len(sizes) == 6 and max(sizes.values()) < 40
