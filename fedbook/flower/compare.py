"""One method, five engines: how far apart they end, what travels, and what each costs.

    fedbook flower compare                     # loop, lock-step, Flower in one process: all methods
    fedbook flower compare simulation          # Flower's simulation (Ray): all methods, one start
    fedbook flower compare deployment          # SuperLink and four SuperNodes: FedGCR and FGPT
    fedbook flower compare simulation fedavg   # of one method (`local` is the engine)

Each writes its lines of results/flower.csv; results/flower.md is made of all of them.
"""

from __future__ import annotations

import csv
import json
import math
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedbook import methods, models
from fedbook.errors import FedbookError, unknown
from fedbook.experiment import PROMPTED, Experiment
from fedbook.federation import Federation
from fedbook.files import write_atomically
from fedbook.flower.app import new
from fedbook.flower.client import Work
from fedbook.flower.deal import deal
from fedbook.flower.local import log_level, run_local
from fedbook.flower.loopback import QUIET, Loopback
from fedbook.flower.records import tensors, unpack, weight
from fedbook.flower.server import FedbookStrategy, run_key
from fedbook.methods.client_index import client_index
from fedbook.results import default_folder
from fedbook.rounds import Method, Record, simulate
from fedbook.rounds.checkpoint import Checkpoint
from fedbook.rounds.device import Device
from fedbook.rounds.params import Params, count_bytes

ROUNDS = 3
CLIENTS = 4
ENGINES = {
    "loop": "loop",
    "lockstep": "lock-step",
    "local": "Flower, one process",
    "simulation": "Flower, simulation",
    "deployment": "Flower, deployment",
}
DEPLOYED = ["fedgcr", "fgpt"]  # unless others are asked for
PATIENTLY = {"timeout": 300}  # four nodes share a small machine
MODELS = PROMPTED | {"fedbn": {"name": "resnet32", "width": 4, "norm": "batch"}}
ONE_CORE: Any = {"client_resources": {"num_cpus": 1}}  # Flower's two would ask too much of it
LIMIT = 900.0  # seconds a deployed run may take


@dataclass(kw_only=True)
class Line:
    """One method on one engine; differences are the largest there are, to the loop."""

    method: str
    engine: str
    parameters: float
    scores: float
    weights: float
    bytes_up: int  # of round 2, as fedbook counts
    bytes_down: int
    messages_up: int | None = None  # the same, from the recorded messages alone
    messages_down: int | None = None
    records_up: int | None = None  # the same messages as Flower's records hold them
    records_down: int | None = None
    start_seconds: float
    round_seconds: float
    note: str = ""


@dataclass
class Outcome:
    params: Params
    records: list[Record]
    start: float
    note: str = ""


# -- the setting -----------------------------------------------------------------------------------
def experiment(name: str) -> Experiment:
    """The method on a few digits of four clients."""
    return Experiment(
        dataset={"name": "digits5_offline"},
        partition={"name": "dirichlet", "clients": CLIENTS, "alpha": 1.0, "limit": [8, 2]},
        model=MODELS.get(name, {"name": "cnn", "width": 8, "hidden": 32}),
        method={"name": name},
        rounds=ROUNDS,
        scale="smoke",
    )


@lru_cache(maxsize=1)
def federation() -> Federation:
    return experiment("fedavg").build_federation()


def method_of(name: str) -> Method:
    if name == "client2vec":  # its index is made before the first round
        return methods.get(name, index=client_index(federation(), epochs=2, ffn=16))
    return methods.get(name)


def model_of(name: str, own: Federation | None = None) -> torch.nn.Module:
    """The method's model; a client builds it by its own samples."""
    options = dict(experiment(name).model)
    return models.build(options.pop("name"), own or federation(), **options)


# -- the engines -----------------------------------------------------------------------------------
def by_simulate(name: str, engine: str) -> Outcome:
    began = time.perf_counter()
    settings: dict[str, Any] = {"device": "cpu", "quiet": True, "engine": engine}
    run = simulate(method_of(name), federation(), model_of(name), ROUNDS, **settings)
    start = time.perf_counter() - began
    run.run()
    note = "" if run.engine == engine else "trains client by client"
    return Outcome(run.params, run.records, start, note)


def by_messages(name: str) -> tuple[Outcome, dict[str, int]]:
    """In one process, with what the messages of round 2 hold."""
    began = time.perf_counter()
    run = run_local(method_of(name), federation(), model_of(name), ROUNDS)
    start = time.perf_counter() - began - sum(r.seconds for r in run.records)
    up, down = counted(run.grid.exchanged, 2)
    held = {"messages_up": up, "messages_down": down, "records_up": 0, "records_down": 0}
    for message, answer in run.grid.exchanged:
        kind = message.metadata.message_type
        if message.metadata.group_id == "2" and kind != "evaluate":
            held["records_down"] += weight(message.content)
            held["records_up"] += weight(answer.content)
    return Outcome(run.params, run.records, start), held


def counted(pairs: Iterable[tuple[Message, Message]], t: int) -> tuple[int, int]:
    """Bytes up and down of round t by fedbook's rule, taken from the recorded messages alone."""
    up = down = 0
    for message, answer in pairs:
        kind = message.metadata.message_type
        sent, got = message.content, answer.content
        if kind == "query.tell" and t == 1:
            up += count_bytes(unpack(got, "told"))
        if kind not in ("query.measure", "train") or message.metadata.group_id != str(t):
            continue
        if "parameters" in sent:
            down += count_bytes(tensors(sent.array_records["parameters"]))
        if "sent" in sent:
            down += count_bytes(unpack(sent, "sent"))
        if "measured" in got:
            measured = unpack(got, "measured")
            up += count_bytes(measured["loss"]) + count_bytes(measured["values"])
        if "values" in got:
            params = tensors(got.array_records["parameters"])
            up += count_bytes(unpack(got, "values")) + count_bytes(params) + 8 * bool(params)
    return up, down


@cache
def work_of(name: str, folder: Path) -> Work:
    """What a worker of Ray's does for a method: built once, since every message brings the app."""
    torch.set_num_threads(1)

    def own(context: Context) -> Federation:
        return Federation.load(folder / f"client-{context.node_config['partition-id']}.safetensors")

    return Work(methods.get(name), partial(model_of, name), own, Device("cpu"))


def by_ray(names: list[str], folder: Path) -> dict[str, Outcome]:
    """Flower's simulation, started once: the server runs one method after another."""
    os.environ.update(QUIET)  # before Ray is imported
    from flwr.simulation import run_simulation

    deal(federation(), folder)
    roster = federation().roster()
    chosen = {name: method_of(name) for name in names}
    keys = {run_key(method, roster, 0): name for name, method in chosen.items()}

    def dispatch(kind: str) -> Any:
        def answer(message: Message, context: Context) -> Message:
            name = keys[str(message.content.config_records["run"]["run"])]
            return getattr(work_of(name, folder), kind)(message, context)

        return answer

    client = ClientApp()
    for kind in ("who", "tell", "measure"):
        client.query(kind)(dispatch(kind))
    client.train()(dispatch("train"))
    client.evaluate()(dispatch("evaluate"))
    server = ServerApp()
    found: dict[str, Outcome] = {}
    first: list[float] = []

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        first.append(time.perf_counter())
        for name in names:
            began = time.perf_counter()
            model = model_of(name, roster)
            run = FedbookStrategy(chosen[name], roster, model, rounds=ROUNDS, timeout=300)
            run.run(grid)
            rounds = sum(r.seconds for r in run.records)
            found[name] = Outcome(run.params, run.records, time.perf_counter() - began - rounds)

    began = time.perf_counter()
    with ray_up():
        run_simulation(server, client, CLIENTS, backend_config=ONE_CORE)
    for outcome in found.values():  # everybody waits for Ray to start
        outcome.start += first[0] - began
    return found


@contextmanager
def ray_up() -> Iterator[None]:
    """Ray with one process for all clients, since a message is sooner done than a process is up. It
    gives itself half a minute to start, which a busy machine may miss: three attempts.
    """
    import ray

    for left in (2, 1, 0):
        try:
            ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
            break
        except Exception as error:
            ray.shutdown()
            if not left:
                raise FedbookError("Ray did not start", f"it says: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def by_processes(
    names: list[str], link: Loopback, folder: Path, seconds: float = LIMIT
) -> dict[str, Outcome]:
    """Runs of a deployment that is up, all at the same time, of at most so many seconds."""
    apps = {name: new(folder / name, experiment(name)) for name in names}
    began = time.perf_counter()
    for app in apps.values():
        link.begin(app, evaluate_every=ROUNDS, **PATIENTLY)
    found = {}
    for name, app in apps.items():
        said = link.wait(app, began + seconds - time.perf_counter())
        spent = time.perf_counter() - began
        if "Strategy execution finished" not in said:  # Flower returns 0 even then
            raise FedbookError(f"the run of {name} did not finish", said[-2000:])
        params, records = result(app / "run")
        found[name] = Outcome(params, records, spent - sum(r.seconds for r in records))
    return found


def result(folder: Path) -> tuple[Params, list[Record]]:
    """What a run left in its checkpoint."""
    identity = json.loads((folder / "latest.json").read_text())["identity"]
    found = Checkpoint(folder, identity).restore(torch.device("cpu"))
    assert found is not None
    return found[0]["params"], [Record.from_json(r) for r in found[1]]


# -- the table -------------------------------------------------------------------------------------
def apart(a: Params, b: Params) -> float:
    """The largest difference of two sets of parameters."""
    if a.keys() != b.keys():
        return math.inf
    return max([float((a[n].double() - b[n].double()).abs().max()) for n in a], default=0.0)


def numbers_apart(a: Iterable[float | None], b: Iterable[float | None]) -> float:
    pairs = [(x, y) for x, y in zip(a, b) if x is not None and y is not None]
    return max([abs(x - y) for x, y in pairs if not math.isnan(x)], default=0.0)


def line(name: str, engine: str, found: Outcome, loop: Outcome, **more: Any) -> Line:
    """A line of the table; scores are those of rounds that both engines tested."""
    scores = weights = 0.0
    for ours, theirs in zip(found.records, loop.records):
        weights = max(weights, numbers_apart(ours.weights, theirs.weights))
        for kind in ("test", "personal"):
            for score in ("loss", "acc", "f1"):
                a, b = (getattr(r, f"{kind}_{score}") or [] for r in (ours, theirs))
                scores = max(scores, numbers_apart(a, b))
    second = found.records[1]
    return Line(
        method=name,
        engine=engine,
        parameters=apart(found.params, loop.params),
        scores=scores,
        weights=weights,
        bytes_up=second.bytes_up,
        bytes_down=second.bytes_down,
        start_seconds=round(found.start, 3),
        round_seconds=round(sum(r.seconds for r in found.records) / len(found.records), 4),
        note=found.note,
        **more,
    )


def compare(asked: Iterable[str], folder: Path | None = None) -> int:
    """Run the engines and methods asked for, and write the table.

    Unless told: the three engines of one process, and all methods.
    """
    asked = list(asked)
    for one in asked:
        if one not in ENGINES and one not in methods.names():
            raise unknown("engine", one, ENGINES)
    engines = [e for e in ENGINES if e in asked] or ["loop", "lockstep", "local"]
    usual = DEPLOYED if engines == ["deployment"] else methods.names()
    names = [n for n in methods.names() if n in asked and n not in ENGINES] or usual
    folder = default_folder("results") if folder is None else folder
    torch.set_num_threads(1)
    by_simulate("fedavg", "loop")  # the first run of a process pays for imports and kernels
    loop = {name: by_simulate(name, "loop") for name in names}
    if "loop" in engines:
        store([line(name, "loop", found, found) for name, found in loop.items()], folder)
    if "lockstep" in engines:
        for name in names:
            store([line(name, "lockstep", by_simulate(name, "lockstep"), loop[name])], folder)
    if "local" in engines:
        for name in names:
            found, held = by_messages(name)
            store([line(name, "local", found, loop[name], **held)], folder)
    with tempfile.TemporaryDirectory() as scratch:
        if "simulation" in engines:
            with log_level(30):
                ray = by_ray(names, Path(scratch) / "data")
            for name, found in ray.items():
                store([line(name, "simulation", found, loop[name])], folder)
        if "deployment" in engines:
            began = time.perf_counter()
            with Loopback(Path(scratch) / "link", CLIENTS) as link:
                started = time.perf_counter() - began
                for name in names:
                    found = by_processes([name], link, Path(scratch))[name]
                    found.start += started
                    store([line(name, "deployment", found, loop[name])], folder)
    print((folder / "flower.md").read_text())
    return 0


def store(lines: list[Line], folder: Path) -> None:
    """Replace these lines in flower.csv, and write flower.md of all."""
    path = folder / "flower.csv"
    rows: list[dict[str, Any]] = [asdict(x) for x in lines]
    new = {(row["method"], row["engine"]) for row in rows}
    order = list(ENGINES)
    known = methods.names()
    if path.is_file():
        with path.open(newline="") as f:
            for row in csv.DictReader(f):
                if row["method"] in known and (row["method"], row["engine"]) not in new:
                    rows.append(row)
    rows.sort(key=lambda r: (known.index(r["method"]), order.index(r["engine"])))
    with write_atomically(path) as part, part.open("w", newline="") as f:
        writer = csv.DictWriter(f, [x.name for x in fields(Line)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    with write_atomically(folder / "flower.md") as part:
        part.write_text(page(rows))


def page(rows: list[dict[str, Any]]) -> str:
    """The table for readers."""
    by = {(r["method"], r["engine"]): r for r in rows}
    engines = [e for e in ENGINES if e != "loop"]
    out = [
        "# One method, five engines",
        "",
        f"Largest difference of any parameter or weight to the loop after {ROUNDS} rounds, "
        f"{CLIENTS} clients with a few digits each; 0: not a bit. `fedbook flower compare` makes "
        "this, `fedbook flower compare ENGINE METHOD ...` adds to it. Lock-step rounds otherwise, "
        "and AdamW divides a gradient that is all rounding by its own size: hence FedGCR's "
        "difference there (1e-9 in double precision, `tests/test_lockstep.py`). No app is written "
        "for Client2Vec, whose index is made before training (`fedbook/flower/MOVING.md`).",
        "",
        table_head("method", *(ENGINES[e] for e in engines)),
    ]
    names = list(dict.fromkeys(r["method"] for r in rows))
    for name in names:
        found = [by.get((name, e)) for e in engines]
        out.append(cells(name, *("not run" if r is None else difference(r) for r in found)))
    out += [
        "",
        "## Bytes",
        "",
        "Bytes of round 2, all clients together. *Counted* is what every engine says, by fedbook's "
        "rule: the contents alone. *In messages* is the same rule applied to the messages that "
        "Flower carried. *In records* are the same messages with the headers of arrays, names and "
        "JSON.",
        "",
        table_head(
            *("method", "up, counted", "in messages", "in records"),
            *("down, counted", "in messages", "in records", "engines that count so"),
        ),
    ]
    for name in names:
        local = by.get((name, "local"), {})
        numbers = []
        for way in ("up", "down"):
            for key in ("bytes", "messages", "records"):
                value = local.get(f"{key}_{way}")
                numbers.append(f"{int(value):,}" if value not in (None, "") else "")
        own = [r for r in rows if r["method"] == name]
        alike = [r for r in own if all(same_bytes(r, local, way) for way in ("up", "down"))]
        out.append(cells(name, *numbers, f"{len(alike)} of {len(own)}"))
    out += ["", "## Time", "", table_head("engine", "start, s", "a round, s", "methods")]
    for e in ENGINES:
        own = [r for r in rows if r["engine"] == e]
        if own:
            start = sorted(float(r["start_seconds"]) for r in own)[len(own) // 2]
            spent = sorted(float(r["round_seconds"]) for r in own)[len(own) // 2]
            out.append(cells(ENGINES[e], f"{start:.3g}", f"{spent:.3g}", str(len(own))))
    out += ["", "Seconds are medians over the methods, on the machine and at the load of the day."]
    return "\n".join(out) + "\n"


def cells(*texts: str) -> str:
    return f"| {' | '.join(texts)} |"


def table_head(*texts: str) -> str:
    return f"{cells(*texts)}\n|{'---|' * len(texts)}"


def same_bytes(row: dict[str, Any], local: dict[str, Any], way: str) -> bool:
    return int(row[f"bytes_{way}"]) == int(local.get(f"bytes_{way}", -1))


def difference(row: dict[str, Any]) -> str:
    """0 where not a bit differs."""
    value = max(float(row["parameters"]), float(row["weights"]))
    said = "0" if value == 0 else f"{value:.0e}"
    return f"{said} (by the loop)" if row["note"] else said
