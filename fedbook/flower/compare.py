"""One method, five engines: how far apart they end, what travels, and what each costs.

    fedbook flower compare                     # loop, lock-step, Flower in one process: all methods
    fedbook flower compare simulation          # Flower's simulation (Ray): all methods, one start
    fedbook flower compare deployment          # SuperLink and four SuperNodes: FedGCR and FGPT

Each writes its lines of results/flower.csv; results/flower.md is made of all of them.
"""

from __future__ import annotations

import csv
import json
import math
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedbook import methods, models
from fedbook.errors import unknown
from fedbook.experiment import PROMPTED, Experiment
from fedbook.federation import Federation
from fedbook.files import write_atomically
from fedbook.flower.app import new
from fedbook.flower.client import Work
from fedbook.flower.deal import deal
from fedbook.flower.local import log_level, run_local
from fedbook.flower.loopback import Loopback
from fedbook.flower.records import weight
from fedbook.flower.server import FedbookStrategy, run_key
from fedbook.methods.client_index import client_index
from fedbook.results import default_folder
from fedbook.rounds import Method, Record, simulate
from fedbook.rounds.checkpoint import Checkpoint
from fedbook.rounds.device import Device
from fedbook.rounds.params import Params

ROUNDS = 3
CLIENTS = 4
ENGINES = {
    "loop": "loop",
    "lockstep": "lock-step",
    "local": "Flower, one process",
    "simulation": "Flower, simulation",
    "deployment": "Flower, deployment",
}
DEPLOYED = ("fedgcr", "fgpt")
MODELS = PROMPTED | {"fedbn": {"name": "resnet32", "width": 4, "norm": "batch"}}
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
    records_up: int | None = None  # the same round, as Flower's records hold it
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


def model_of(name: str) -> torch.nn.Module:
    options = dict(experiment(name).model)
    return models.build(options.pop("name"), federation(), **options)


# -- the engines -----------------------------------------------------------------------------------
def by_simulate(name: str, engine: str) -> Outcome:
    began = time.perf_counter()
    settings: dict[str, Any] = {"device": "cpu", "quiet": True, "engine": engine}
    run = simulate(method_of(name), federation(), model_of(name), ROUNDS, **settings)
    start = time.perf_counter() - began
    run.run()
    note = "" if run.engine == engine else "trains client by client"
    return Outcome(run.params, run.records, start, note)


def by_messages(name: str) -> tuple[Outcome, int, int]:
    """In one process, with the weight of the messages of round 2."""
    began = time.perf_counter()
    run = run_local(method_of(name), federation(), model_of(name), ROUNDS)
    start = time.perf_counter() - began - sum(r.seconds for r in run.records)
    up = down = 0
    for message, answer in run.grid.exchanged:
        kind = message.metadata.message_type
        if message.metadata.group_id == "2" and kind != "evaluate":
            down += weight(message.content)
            up += weight(answer.content)
    return Outcome(run.params, run.records, start), up, down


def by_ray(names: list[str], folder: Path) -> dict[str, Outcome]:
    """Flower's simulation, started once: the server runs one method after another."""
    from flwr.simulation import run_simulation

    deal(federation(), folder)
    roster = federation().roster()
    chosen = {name: method_of(name) for name in names}
    keys = {run_key(method, roster, 0): name for name, method in chosen.items()}
    built = {name: model_of(name) for name in names}
    work: dict[str, Work] = {}

    def own(context: Context) -> Federation:
        return Federation.load(folder / f"client-{context.node_config['partition-id']}.safetensors")

    def dispatch(kind: str) -> Any:
        def answer(message: Message, context: Context) -> Message:
            torch.set_num_threads(1)
            name = keys[str(message.content.config_records["run"]["run"])]
            if name not in work:
                work[name] = Work(chosen[name], built[name], own, Device("cpu"))
            return getattr(work[name], kind)(message, context)

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
            run = FedbookStrategy(chosen[name], roster, built[name], rounds=ROUNDS, timeout=600)
            run.run(grid)
            rounds = sum(r.seconds for r in run.records)
            found[name] = Outcome(run.params, run.records, time.perf_counter() - began - rounds)

    began = time.perf_counter()
    run_simulation(server, client, CLIENTS)
    for outcome in found.values():  # everybody waits for Ray to start
        outcome.start += first[0] - began
    return found


def by_processes(name: str, link: Loopback, folder: Path) -> Outcome:
    """One run of a deployment that is up."""
    app = new(folder / name, experiment(name))
    began = time.perf_counter()
    link.run(app, LIMIT, evaluate_every=ROUNDS)
    seconds = time.perf_counter() - began
    params, records = result(app / "run")
    return Outcome(params, records, seconds - sum(r.seconds for r in records))


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


def compare(engines: Iterable[str], folder: Path | None = None) -> int:
    """Run the engines asked for (the three of one process unless told) and write the table."""
    asked = list(engines) or ["loop", "lockstep", "local"]
    for engine in asked:
        if engine not in ENGINES:
            raise unknown("engine", engine, ENGINES)
    folder = default_folder("results") if folder is None else folder
    torch.set_num_threads(1)
    names = list(DEPLOYED) if asked == ["deployment"] else methods.names()
    by_simulate("fedavg", "loop")  # the first run of a process pays for imports and kernels
    loop = {name: by_simulate(name, "loop") for name in names}
    lines = []
    if "loop" in asked:
        lines += [line(name, "loop", found, found) for name, found in loop.items()]
    if "lockstep" in asked:
        for name in names:
            lines.append(line(name, "lockstep", by_simulate(name, "lockstep"), loop[name]))
    if "local" in asked:
        for name in names:
            found, up, down = by_messages(name)
            more = {"records_up": up, "records_down": down}
            lines.append(line(name, "local", found, loop[name], **more))
    with tempfile.TemporaryDirectory() as scratch:
        if "simulation" in asked:
            with log_level(30):
                ray = by_ray(names, Path(scratch) / "data")
            lines += [line(name, "simulation", found, loop[name]) for name, found in ray.items()]
        if "deployment" in asked:
            began = time.perf_counter()
            with Loopback(Path(scratch) / "link", CLIENTS) as link:
                started = time.perf_counter() - began
                for name in DEPLOYED:
                    found = by_processes(name, link, Path(scratch))
                    found.start += started
                    lines.append(line(name, "deployment", found, loop[name]))
    store(lines, folder)
    print((folder / "flower.md").read_text())
    return 0


def store(lines: list[Line], folder: Path) -> None:
    """Replace the lines of these engines in flower.csv, and write flower.md of all."""
    path = folder / "flower.csv"
    rows = [{k: v for k, v in asdict(x).items()} for x in lines]
    new = {row["engine"] for row in rows}
    if path.is_file():
        with path.open(newline="") as f:
            rows += [row for row in csv.DictReader(f) if row["engine"] not in new]
    order = list(ENGINES)
    known = methods.names()
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
    engines = [e for e in ENGINES if e != "loop" and any(r["engine"] == e for r in rows)]
    head = ["method", *(ENGINES[e] for e in engines), "bytes up", "bytes down"]
    head += ["in records up", "in records down"]
    out = [
        "# One method, five engines",
        "",
        f"Largest difference of any parameter to the loop after {ROUNDS} rounds, {CLIENTS} clients "
        "with a few digits each. Bytes are those of round 2, counted by fedbook's rule, the same "
        "for all engines; then as Flower's records hold them. `fedbook flower compare` makes this.",
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
    ]
    for name in dict.fromkeys(r["method"] for r in rows):
        cells = [name]
        for e in engines:
            row = by.get((name, e))
            cells.append("" if row is None else difference(row))
        local = by.get((name, "local"), {})
        for key in ("bytes_up", "bytes_down", "records_up", "records_down"):
            value = local.get(key)
            cells.append(f"{int(value):,}" if value not in (None, "") else "")
        out.append(f"| {' | '.join(cells)} |")
    out += ["", "| engine | start, s | a round, s | methods |", "|---|---|---|---|"]
    for e in ENGINES:
        own = [r for r in rows if r["engine"] == e]
        if own:
            start = sorted(float(r["start_seconds"]) for r in own)[len(own) // 2]
            spent = sorted(float(r["round_seconds"]) for r in own)[len(own) // 2]
            out.append(f"| {ENGINES[e]} | {start:.3g} | {spent:.3g} | {len(own)} |")
    out += ["", "Seconds are medians over the methods, on the machine and at the load of the day."]
    return "\n".join(out) + "\n"


def difference(row: dict[str, Any]) -> str:
    """0 where not a bit differs."""
    value = max(float(row["parameters"]), float(row["weights"]))
    said = "0" if value == 0 else f"{value:.0e}"
    return f"{said} (by the loop)" if row["note"] else said
