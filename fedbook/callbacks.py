"""What may watch a run: `simulate(..., callbacks=[CSV("rounds.csv"), EarlyStopping(5), mine])`.

A callback is any function of the run and the record of a round; one that returns True stops the run
after that round. A callback with `begin(run)` and `end(run)` is told of both. Rounds that were
resumed from a checkpoint are shown again, so that what is written is whole. Each logger needs its
own package, imported when it begins.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbook import metrics
from fedbook.errors import FedbookError, unknown
from fedbook.files import write_atomically

if TYPE_CHECKING:
    from fedbook.rounds import Record, Simulation


class Callback:
    """Something that watches a run. Every method may be left out."""

    def begin(self, run: Simulation) -> None:
        """Before the first round."""

    def __call__(self, run: Simulation, record: Record) -> bool | None:
        """After a round; True stops the run."""

    def end(self, run: Simulation) -> None:
        """After the last round, also where something went wrong."""


def numbers(run: Simulation, record: Record) -> dict[str, float]:
    """A round in flat numbers: training loss, test scores, traffic, and what the stages logged."""
    clients = run.federation.clients
    found = metrics.summarise(record, [c.type for c in clients], [len(c.test) for c in clients])
    out = {f"personal/{k}": v for k, v in found.pop("personal", {}).items()}
    out |= {f"test/{k}": v for k, v in found.items()}
    if record.train_loss:
        out["train/loss"] = sum(record.train_loss.values()) / len(record.train_loss)
    for name in ("bytes_up", "bytes_down", "seconds"):
        out[f"round/{name}"] = float(getattr(record, name))
    for name, value in record.log.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            out[f"log/{name}"] = float(value)
    return {name: float(v) for name, v in out.items() if math.isfinite(v)}


def settings(run: Simulation) -> dict[str, Any]:
    """What a logger notes about a run before it begins."""
    about = {"method": run.method.name, "rounds": run.rounds, "seed": run.seed}
    return about | {"clients": len(run.federation), "stages": run.method.describe()}


def needed(module: str, package: str) -> Any:
    """An optional library, or what to install."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise FedbookError(f"{package} is not installed", f"pip install {package}") from error


class CSV(Callback):
    """One line per round in a file, whole after every round."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.rows: list[dict[str, float]] = []

    def begin(self, run: Simulation) -> None:
        self.rows = []

    def __call__(self, run: Simulation, record: Record) -> None:
        self.rows.append({"round": record.round, **numbers(run, record)})
        out = io.StringIO()
        writer = csv.DictWriter(out, dict.fromkeys(k for row in self.rows for k in row))
        writer.writeheader()
        writer.writerows(self.rows)
        with write_atomically(self.path) as part:
            part.write_text(out.getvalue(), encoding="utf-8")


class TensorBoard(Callback):
    """Scalars for TensorBoard: `tensorboard --logdir FOLDER`."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = str(folder)

    def begin(self, run: Simulation) -> None:
        needed("tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(self.folder)
        self.writer.add_text("settings", str(settings(run)))

    def __call__(self, run: Simulation, record: Record) -> None:
        for name, value in numbers(run, record).items():
            self.writer.add_scalar(name, value, record.round)

    def end(self, run: Simulation) -> None:
        self.writer.close()


class WandB(Callback):
    """A run of Weights & Biases; `mode="offline"` writes to `folder` and needs no account."""

    def __init__(self, project: str = "fedbook", folder: str = ".", mode: str = "online") -> None:
        self.options: dict[str, Any] = {"project": project, "dir": str(folder), "mode": mode}

    def begin(self, run: Simulation) -> None:
        library = needed("wandb", "wandb")
        name = f"{run.method.name}-{run.seed}"
        self.run = library.init(name=name, config=settings(run), **self.options)

    def __call__(self, run: Simulation, record: Record) -> None:
        self.run.log(numbers(run, record), step=record.round)

    def end(self, run: Simulation) -> None:
        self.run.finish()


class MLflow(Callback):
    """A run of MLflow at a tracking server or in a local folder or database, as `uri` says."""

    def __init__(self, uri: str = "mlruns", experiment: str = "fedbook") -> None:
        self.uri = str(uri)
        self.experiment = experiment

    def begin(self, run: Simulation) -> None:
        self.client = needed("mlflow", "mlflow-skinny").MlflowClient(tracking_uri=self.uri)
        known = self.client.get_experiment_by_name(self.experiment)
        where = known.experiment_id if known else self.client.create_experiment(self.experiment)
        self.id = self.client.create_run(where, run_name=run.method.name).info.run_id
        for name, value in settings(run).items():
            self.client.log_param(self.id, name, str(value)[:6000])

    def __call__(self, run: Simulation, record: Record) -> None:
        for name, value in numbers(run, record).items():
            self.client.log_metric(self.id, name, value, step=record.round)

    def end(self, run: Simulation) -> None:
        whole = bool(run.records) and run.records[-1].round == run.rounds
        self.client.set_terminated(self.id, "FINISHED" if whole else "KILLED")


class EarlyStopping(Callback):
    """Stop when a score has not risen by more than `least` for `patience` tested rounds.

    `score` is a name of `numbers`; a loss falls, so give `sign=-1` with it.
    """

    def __init__(
        self, patience: int, score: str = "test/avg_client", *, least: float = 0.0, sign: int = 1
    ) -> None:
        self.patience = patience
        self.score = score
        self.least = least
        self.sign = sign

    def begin(self, run: Simulation) -> None:
        self.best = -math.inf
        self.waited = 0

    def __call__(self, run: Simulation, record: Record) -> bool:
        found = numbers(run, record)
        if self.score not in found:
            if record.accuracy is None:  # not tested in this round
                return False
            raise unknown("score", self.score, found)
        value = self.sign * found[self.score]
        better = value > self.best + self.least
        self.waited = 0 if better else self.waited + 1
        self.best = max(self.best, value)
        return self.waited >= self.patience


def build(told: str, name: str) -> Callback:
    """The logger that the shell asks for, KIND or KIND=WHERE; `name` tells runs apart."""
    kind, _, where = told.partition("=")
    makers: dict[str, Callable[[], Callback]] = {
        "csv": lambda: CSV(Path(where or "rounds") / f"{name}.csv"),
        "tensorboard": lambda: TensorBoard(Path(where or "tensorboard") / name),
        "wandb": lambda: WandB(where or "fedbook"),
        "wandb-offline": lambda: WandB(folder=where or ".", mode="offline"),
        "mlflow": lambda: MLflow(where or "mlruns"),
    }
    if kind not in makers:
        raise unknown("logger", kind, makers)
    return makers[kind]()
