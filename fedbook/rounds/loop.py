"""The reference loop: one resident model, data on the device, sums taken as clients arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fedbook.errors import FedbookError, whole
from fedbook.federation import Client, Federation
from fedbook.rounds.checkpoint import Checkpoint
from fedbook.rounds.device import Device
from fedbook.rounds.evaluation import Scores
from fedbook.rounds.halves import SCORES, Clients, Server, announce, tell
from fedbook.rounds.lockstep import Lockstep, choose
from fedbook.rounds.params import copy_into, count_bytes
from fedbook.rounds.record import Record, Traffic
from fedbook.rounds.stages import Method, Report

if TYPE_CHECKING:
    import pandas as pd

Watcher = Callable[..., Any]  # of the run and a record; True stops the run


class Simulation(Server, Clients):
    """A federated run: iterate over it for one `Record` per round. Made by `simulate`."""

    def __init__(
        self,
        method: Method,
        federation: Federation,
        model: nn.Module,
        *,
        rounds: int,
        seed: int,
        device: Device,
        checkpoint: str | Path | None,
        checkpoint_every: int,
        evaluate_every: int,
        quiet: bool,
        engine: str,
        callbacks: Sequence[Watcher] = (),
    ) -> None:
        for what, kind in ((method, Method), (federation, Federation), (model, nn.Module)):
            if not isinstance(what, kind):
                raise FedbookError(
                    f"simulate takes a method, a federation and a model, got {what!r}",
                    'simulate(methods.get("fedavg"), federation, models.build("cnn", federation))',
                )
        whole("rounds", rounds)
        whole("evaluate_every", evaluate_every)
        whole("checkpoint_every", checkpoint_every)
        whole("seed", seed, 0)
        federation = federation.to(device.torch)
        told = [tell(method, federation, c) for c in federation.clients]
        known = announce(method, federation, told)
        settings: dict[str, Any] = {"rounds": rounds, "seed": seed, "device": device}
        super().__init__(method, federation, model, **settings, known=known)
        self._before = count_bytes(told), count_bytes(known) * len(federation)
        self.quiet = quiet
        self.callbacks = tuple(callbacks)
        self._every = evaluate_every
        self._checkpoint_every = checkpoint_every
        self.engine, self._engine = choose(self, engine)
        self.together = self.engine == "lockstep"
        self.records: list[Record] = []
        self._saved = 0
        self._checkpoint: Checkpoint | None = None
        if checkpoint is not None:
            self._checkpoint = Checkpoint(checkpoint, self._identity())
            self._resume()

    # -- iterating ---------------------------------------------------------------------------------
    def __iter__(self) -> Iterator[Record]:
        for watcher in self.callbacks:
            getattr(watcher, "begin", _nothing)(self)
        try:
            for record in self._rounds():
                told = [watcher(self, record) for watcher in self.callbacks]
                yield record
                if any(answer is True for answer in told):
                    break
        finally:
            for watcher in self.callbacks:
                getattr(watcher, "end", _nothing)(self)
        self.load(self.params)

    def _rounds(self) -> Iterator[Record]:
        """The rounds that were resumed, then those to come."""
        from tqdm.auto import tqdm

        yield from list(self.records)
        start = self.records[-1].round if self.records else 0
        bar = tqdm(
            range(start + 1, self.rounds + 1),
            desc=self.method.name,
            disable=self.quiet,
            initial=start,
            total=self.rounds,
        )
        for t in bar:
            record = self.step(t)
            self.records.append(record)
            if self._checkpoint and (t % self._checkpoint_every == 0 or t == self.rounds):
                new = [r.to_json() for r in self.records[self._saved :]]
                self._checkpoint.save(t, self._state(), new)
                self._saved = len(self.records)
            if record.accuracy is not None:
                bar.set_postfix(accuracy=f"{record.accuracy:.3f}")
            yield record

    def run(self) -> Simulation:
        """All rounds, to the end."""
        for _ in self:
            pass
        return self

    def frame(self) -> pd.DataFrame:
        """One row per round and client: scores, and who took part with which weight."""
        import pandas as pd

        rows = []
        for r in self.records:
            weight = dict(zip(r.participants, r.weights))
            for i, c in enumerate(self.federation.clients):
                row: dict[str, Any] = {
                    "round": r.round,
                    "client": c.id,
                    "type": self.federation.type_names[c.type],
                    "weight": weight.get(c.id, 0.0),
                    "train_loss": r.train_loss.get(c.id),
                    "train_acc": r.train_acc.get(c.id),
                }
                for kind in ("test", "personal"):
                    for score in SCORES:
                        values = getattr(r, f"{kind}_{score}")
                        row[f"{kind}_{score}"] = None if values is None else values[i]
                rows.append(row)
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        done = f"{len(self.records)} of {self.rounds} rounds"
        last = f", {self.records[-1]!r}" if self.records else ""
        return f"Simulation({self.method.name} on {len(self.federation)} clients, {done}{last})"

    def _repr_html_(self) -> str:
        from fedbook.html import table

        rows = []
        for r in self.records[-10:]:
            accuracy = "" if r.accuracy is None else f"{r.accuracy:.3f}"
            rows.append([r.round, len(r.participants), accuracy, f"{r.bytes_up:,}"])
        return table(repr(self), ["round", "clients", "accuracy", "bytes up"], rows)

    # -- one round ---------------------------------------------------------------------------------
    def step(self, t: int) -> Record:
        """Round t, with random numbers of its own."""
        began = time.perf_counter()
        cuda = [self.device.torch] if self.device.torch.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices=cuda):
                record = self._round(t)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise FedbookError(
                "a batch of one sample came to a BatchNorm, which cannot train on it",
                f"choose another batch_size (now {self.method.solve.batch_size}), give every "
                "client two samples, or use GroupNorm",
            ) from error
        record.seconds = time.perf_counter() - began
        return record

    def _round(self, t: int) -> Record:
        """Sample, measure, train, aggregate, update, record."""
        traffic = self._once() if t == 1 else Traffic()
        reports = self._sample(t)

        self._measure(reports, t, traffic)
        self._prepare(reports)
        uploads = self._engine(reports, t, traffic)

        mean, weights = self._aggregate(reports, uploads)
        self._update(mean, reports)
        record = self._record(t, reports, weights, traffic)
        return self._score(record)

    def _once(self) -> Traffic:
        """What is exchanged before the first round."""
        traffic = Traffic(*self._before)
        for stage in self.method.stages().values():
            up, down = stage.once(self.federation)
            traffic.up += up
            traffic.down += down
        return traffic

    def _score(self, record: Record) -> Record:
        """The record with the scores of its round, if it is time to test."""
        if self.due(record.round):
            self.score(record)
        return record

    def due(self, t: int) -> bool:
        """Whether models are tested after round t."""
        return t % self._every == 0 or t == self.rounds

    def score(self, record: Record) -> None:
        """Test the models as they are now, and keep that in the record."""
        for kind, scores in self._scores(record.round).items():
            for name in SCORES:
                setattr(record, f"{kind}_{name}", getattr(scores, name))

    def _losses(self, reports: list[Report], t: int) -> list[float]:
        if isinstance(self._engine, Lockstep) and self._engine.keeps_received:
            return self._engine.losses(reports, t)
        return super()._losses(reports, t)

    def _personal(self, t: int) -> Scores:
        if isinstance(self._engine, Lockstep) and self._engine.whole:
            return self._engine.personal(t)
        return super()._personal(t)

    def personal_model(self, client: Client, t: int | None = None) -> nn.Module:
        """The resident model with the weights this client is tested with (until the next call)."""
        return self._own_model(client, len(self.records) if t is None else t)

    # -- resuming ----------------------------------------------------------------------------------
    def _identity(self) -> dict[str, Any]:
        return super()._identity() | {"evaluate_every": self._every}

    def _state(self) -> dict[str, Any]:
        return {
            "params": self.params,
            "initial": self._initial,
            "state": self.state,
            "memory": {str(id): m for id, m in self.memory.items()},
        }

    def _resume(self) -> None:
        assert self._checkpoint is not None
        found = self._checkpoint.restore(self.device.torch)
        if found is None:
            return
        state, records = found
        try:
            copy_into(self.params, state["params"])
            self._initial = state["initial"]
            self.state = state["state"]
            self.memory = {int(id): m for id, m in state["memory"].items()}
            self.records = [Record.from_json(r) for r in records]
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise FedbookError(
                f"the checkpoint in {self._checkpoint.folder} has another shape: {error!r}",
                "go on with the fedbook that wrote it, or delete the folder",
            ) from None
        self._saved = len(self.records)
        if self.records and self.records[-1].round > self.rounds:
            raise FedbookError(
                f"the checkpoint has {self.records[-1].round} rounds, {self.rounds} were asked for",
                "ask for at least as many, or use another folder",
            )
        self.load(self.params)


def _nothing(run: Simulation) -> None:
    """For callbacks that do not ask to be told of the beginning or the end."""


def simulate(
    method: Method,
    federation: Federation,
    model: nn.Module,
    rounds: int = 10,
    seed: int = 0,
    device: str | torch.device | Device = "auto",
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 1,
    evaluate_every: int = 1,
    quiet: bool = False,
    engine: str = "auto",
    callbacks: Sequence[Watcher] = (),
) -> Simulation:
    """Run a method on a federation.

        for record in simulate(methods.get("fedavg", lr=0.05), federation, model, rounds=20):
            print(record.round, record.test_acc)

    The same seed on the same machine gives the same result bit for bit. With `checkpoint=FOLDER` a
    run that was stopped at any instant goes on where it was and ends as if it had not been.
    Afterwards `run.model` holds the final global weights and `run.frame()` every client's scores.
    The model passed in stays as it is. `engine="loop"` trains the participants one after another,
    "lockstep" all together where the method and the model allow it; "auto" takes the faster.
    `callbacks` are functions of the run and each record, or loggers of `fedbook.callbacks`.
    """
    return Simulation(
        method,
        federation,
        model,
        rounds=rounds,
        seed=seed,
        device=Device.of(device),
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        evaluate_every=evaluate_every,
        quiet=quiet,
        engine=engine,
        callbacks=callbacks,
    )
