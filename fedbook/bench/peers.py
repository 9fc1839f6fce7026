"""The same FedAvg job in fedbook and in other libraries, each in a process of its own.

100 clients of 128 digits, 10 of them a round, one epoch of SGD in batches of 32, a CNN of about
580,000 parameters, 20 rounds, no evaluation in between. Everybody gets the samples as ready-made
float tensors and does its rounds as its own documentation shows. After each round the wall clock
and the processor time of the process with all its children are noted. Given are the medians from
the third round on; what remains of the whole beyond 20 such rounds is start-up. All must end with
the same accuracy up to the choice of clients and batches.

*By hand* is the same without any library: the least that training client by client can cost. Flower
also says what its clients' epochs took, apart from its messages.

`pip install 'fedbook[bench]'` brings the others; those that are missing are skipped.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from fedbook.clock import processor_seconds

CLIENTS = 100
PARTICIPANTS = 10
EACH = 128
ROUNDS = 20
BATCH = 32
LR = 0.05
TOLERANCE = 0.05  # by which accuracies may differ
NEEDS = {
    "fedbook": "",
    "fedbook loop": "",
    "by hand": "",
    "pfl": "pfl",
    "flower": "flwr",
    "fedlab": "fedlab",
}
Mark = Callable[[], None]


def job() -> tuple[Any, Any]:
    """The federation and the model everybody trains."""
    from fedbook import data, federate, models

    digits = data.load("digits5_offline")
    fed = federate(digits, "iid", clients=CLIENTS, test="domain", limit=(1280, 200))
    return fed, models.build("cnn", fed, seed=0)


def tensors(fed: Any) -> list[tuple[Any, Any]]:
    """Each client's samples as floats, and their labels."""
    return [(fed.inputs(c.train), fed.y[c.train]) for c in fed.clients]


def accuracy(model: Any, fed: Any) -> float:
    import torch

    rows = torch.unique(torch.cat([c.test for c in fed.clients]))
    model.eval()
    with torch.no_grad():
        guesses = [model(fed.inputs(part)).argmax(1) for part in rows.split(512)]
    return float((torch.cat(guesses) == fed.y[rows]).float().mean())


def run_fedbook(fed: Any, model: Any, mark: Mark, engine: str = "lockstep") -> Any:
    from fedbook import methods, simulate

    method = methods.get("fedavg", participation=PARTICIPANTS, lr=LR, batch_size=BATCH)
    settings: dict[str, Any] = {"quiet": True, "engine": engine, "evaluate_every": 10**6}
    run = simulate(method, fed, model, 10**6, device="cpu", **settings)
    for t in range(1, ROUNDS + 1):
        run.step(t)
        mark()
    run.load(run.params)
    return run.model


def run_by_hand(fed: Any, model: Any, mark: Mark) -> Any:
    """One net, everybody's epoch after another, and their mean."""
    import torch

    users = tensors(fed)
    draw = torch.Generator().manual_seed(0)
    current = {k: v.clone() for k, v in model.state_dict().items()}
    for _ in range(ROUNDS):
        total = {k: torch.zeros_like(v) for k, v in current.items()}
        for id in torch.randperm(CLIENTS, generator=draw)[:PARTICIPANTS].tolist():
            model.load_state_dict(current)
            epoch(model, *users[id])
            for k, v in model.state_dict().items():
                total[k] += v / PARTICIPANTS
        current = total
        mark()
    model.load_state_dict(current)
    return model


def epoch(model: Any, x: Any, y: Any) -> None:
    """One epoch of SGD as torch's tutorials write it."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    model.train()
    for part in torch.randperm(len(y)).split(BATCH):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[part]), y[part]).backward()
        optimizer.step()


def run_pfl(fed: Any, model: Any, mark: Mark) -> Any:
    import numpy as np
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    class Marks(TrainingProcessCallback):
        def after_central_iteration(self, *args: Any, **kwargs: Any) -> tuple[bool, Metrics]:
            mark()
            return False, Metrics()

    def loss(x: Any, y: Any, **_: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(x), y)

    model.loss = loss
    model.metrics = lambda *args, **kwargs: {}
    users = dict(enumerate(tensors(fed)))
    np.random.seed(0)  # noqa: NPY002
    sampler = get_user_sampler("minimize_reuse", list(users))
    data = FederatedDataset(lambda id: Dataset(users[id], user_id=str(id)), sampler)
    central = torch.optim.SGD(model.parameters(), lr=1.0)
    params = NNAlgorithmParams(
        central_num_iterations=ROUNDS,
        evaluation_frequency=10**6,
        train_cohort_size=PARTICIPANTS,
        val_cohort_size=None,
    )
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH)
    FederatedAveraging().run(
        algorithm_params=params,
        backend=SimulatedBackend(data, data, [WeightByDatapoints()]),
        model=PyTorchModel(model, torch.optim.SGD, central),
        model_train_params=local,
        callbacks=[Marks()],
    )
    return model


def run_fedlab(fed: Any, model: Any, mark: Mark) -> Any:
    import logging

    import torch
    from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
    from fedlab.core.standalone import StandalonePipeline

    logging.disable(logging.INFO)
    parts = [torch.utils.data.TensorDataset(x, y) for x, y in tensors(fed)]

    class Parts:
        def get_dataloader(self, id: int, batch_size: int) -> Any:
            return torch.utils.data.DataLoader(parts[id], batch_size, shuffle=True)

    class Pipeline(StandalonePipeline):
        def evaluate(self) -> None:
            mark()

    handler = FedAvgServerHandler(model, ROUNDS, PARTICIPANTS / CLIENTS)
    trainer = FedAvgSerialClientTrainer(model, CLIENTS)
    trainer.setup_dataset(Parts())
    trainer.setup_optim(1, BATCH, LR)
    Pipeline(handler, trainer).main()
    return handler.model


def run_flower(fed: Any, model: Any, mark: Mark) -> Any:
    """Flower's simulation: Ray, one actor per core, each with one thread."""
    import logging

    import torch
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.WARNING)
    client = ClientApp()
    server = ServerApp()
    kept: dict[str, Any] = {}
    epochs: list[float] = []

    @client.train()
    def train(message: Message, context: Context) -> Message:
        from fedbook.bench import peers

        torch.set_num_threads(1)
        net, data = peers._resident()
        net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        x, y = data[int(context.node_config["partition-id"])]
        began = time.process_time()
        peers.epoch(net, x, y)
        spent = time.process_time() - began
        content = RecordDict()
        content["arrays"] = ArrayRecord(net.state_dict())
        content["metrics"] = MetricRecord({"num-examples": len(y), "epoch-seconds": spent})
        return Message(content=content, reply_to=message)

    class Marked(FedAvg):
        def aggregate_train(self, *args: Any, **kwargs: Any) -> Any:
            metrics: Any
            arrays, metrics = super().aggregate_train(*args, **kwargs)
            epochs.append(PARTICIPANTS * metrics["epoch-seconds"])  # the mean of equal clients
            mark()
            return arrays, metrics

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        share = PARTICIPANTS / CLIENTS
        strategy = Marked(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        start = ArrayRecord(model.state_dict())
        result = strategy.start(grid=grid, initial_arrays=start, num_rounds=ROUNDS)
        kept["state"] = result.arrays.to_torch_state_dict()

    backend = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"include_dashboard": False},
    }
    run_simulation(server, client, CLIENTS, backend_config=backend)  # type: ignore[arg-type]
    model.load_state_dict(kept["state"])
    model.epochs = statistics.median(epochs[2:])
    return model


_KEPT: list[Any] = []


def _resident() -> tuple[Any, list[tuple[Any, Any]]]:
    """Model and data of a Flower actor, made once."""
    if not _KEPT:
        fed, model = job()
        _KEPT.append((model, tensors(fed)))
    return _KEPT[0]


RUNNERS = {
    "by hand": run_by_hand,
    "pfl": run_pfl,
    "flower": run_flower,
    "fedlab": run_fedlab,
}


def alone(name: str, began: float) -> dict[str, Any]:
    """The job with one library, in this process, which began at that time."""
    marks: list[tuple[float, float]] = []

    def mark() -> None:
        marks.append((time.perf_counter() - began, processor_seconds()))

    fed, model = job()
    if name.startswith("fedbook"):
        model = run_fedbook(fed, model, mark, "loop" if "loop" in name else "lockstep")
    else:
        model = RUNNERS[name](fed, model, mark)
    assert len(marks) == ROUNDS, f"{name} did {len(marks)} rounds"
    steps = [[b[i] - a[i] for a, b in zip(marks[1:], marks[2:])] for i in (0, 1)]
    wall, cpu = map(statistics.median, steps)
    whole = marks[-1][0]
    return {
        "name": name,
        "wall": wall,
        "cpu": cpu,
        "whole": whole,
        "start": whole - ROUNDS * wall,
        "accuracy": accuracy(model, fed),
        "epochs": getattr(model, "epochs", None),
    }


def bench_peers(names: tuple[str, ...] = tuple(NEEDS)) -> dict[str, Any]:
    """Every library that is installed, one after another."""
    from tqdm.auto import tqdm

    found = []
    missing = []
    for name in tqdm(names, desc="peers"):
        if NEEDS[name] and importlib.util.find_spec(NEEDS[name]) is None:
            missing.append(name)
            continue
        code = [sys.executable, "-m", "fedbook.bench.peers", name, str(time.perf_counter())]
        quiet = {"RAY_DEDUP_LOGS": "0", "FLWR_TELEMETRY_ENABLED": "0", "RAY_DISABLE_DOCKER": "1"}
        done = subprocess.run(
            code, capture_output=True, text=True, env={**os.environ, **quiet}, check=False
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith('{"name"')]
        if done.returncode or not lines:
            said = (done.stderr.strip().splitlines() or ["no output"])[-1]
            found.append({"name": name, "failed": said})
        else:
            found.append(json.loads(lines[-1]))
    good = [f["accuracy"] for f in found if "accuracy" in f]
    same = max(good) - min(good) <= TOLERANCE
    return {"runs": found, "missing": missing, "rounds": ROUNDS, "same_accuracy": same}


def text(out: dict[str, Any]) -> str:
    """Fedbook's lock-step is the measure: the others' seconds divided by its."""
    runs = [r for r in out["runs"] if "wall" in r]
    ours = runs[0]
    head = f"{'':14}{'wall s/round':>14}{'CPU s/round':>13}{'start-up s':>12}"
    head += f"{'accuracy':>10}{'wall x':>9}{'CPU x':>8}{'all ' + str(out['rounds']) + ' x':>9}"
    lines = [head]
    for r in runs:
        line = f"{r['name']:14}{r['wall']:14.3f}{r['cpu']:13.3f}{r['start']:12.1f}"
        line += f"{r['accuracy']:10.3f}{r['wall'] / ours['wall']:9.2f}"
        lines.append(line + f"{r['cpu'] / ours['cpu']:8.2f}{r['whole'] / ours['whole']:9.2f}")
    for r in runs:
        if r.get("epochs"):
            lines.append(f"{r['name']}: {r['epochs']:.3f} of its CPU s/round are clients' epochs")
    lines += [f"{r['name']}: failed, {r['failed']}" for r in out["runs"] if "failed" in r]
    for name in out["missing"]:
        lines.append(f"{name}: skipped, not installed (pip install 'fedbook[bench]')")
    if not out["same_accuracy"]:
        lines.append(f"accuracies differ by more than {TOLERANCE}: not the same job")
    return "\n".join(lines)


def markdown(out: dict[str, Any]) -> str:
    runs = [r for r in out["runs"] if "wall" in r]
    ours = runs[0]
    lines = ["| | CPU s per round | times ours | wall, times ours | start-up s | accuracy |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for r in runs:
        cells = [r["name"], f"{r['cpu']:.2f}", f"{r['cpu'] / ours['cpu']:.2f}"]
        cells += [f"{r['wall'] / ours['wall']:.2f}", f"{r['start']:.0f}", f"{r['accuracy']:.3f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        found = alone(sys.argv[1], float(sys.argv[2]))
    print(json.dumps(found), flush=True)
