"""The reference loop: one resident model, data on the device, sums taken as clients arrive."""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Client, Federation
from fedbook.rounds.checkpoint import Checkpoint
from fedbook.rounds.device import Device
from fedbook.rounds.evaluation import Scores, evaluate, precompute
from fedbook.rounds.lockstep import choose
from fedbook.rounds.params import Params, clone, copy_into, shared_state
from fedbook.rounds.record import Record, Traffic
from fedbook.rounds.seeds import generator, stream
from fedbook.rounds.stages import Local, Method, Report, State, numbered
from fedbook.rounds.weights import LogWeights, WeightedSum, Weights, add

if TYPE_CHECKING:
    import pandas as pd

SCORES = ("loss", "acc", "f1")
EXPLODED = 1e6  # a mean training loss beyond this is reported as divergence


class Simulation:
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
    ) -> None:
        for what, kind in ((method, Method), (federation, Federation), (model, nn.Module)):
            if not isinstance(what, kind):
                raise FedbookError(
                    f"simulate takes a method, a federation and a model, got {what!r}",
                    'simulate(methods.get("fedavg"), federation, models.build("cnn", federation))',
                )
        numbers = {"rounds": rounds, "evaluate_every": evaluate_every}
        numbers |= {"checkpoint_every": checkpoint_every, "seed": seed}
        for name, value in numbers.items():
            least = 0 if name == "seed" else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise FedbookError(
                    f"{name} must be a whole number of at least {least}, got {value!r}",
                    f"try {name}=10",
                )
        self.method = method
        self.rounds = rounds
        self.seed = seed
        self.device = device
        self.quiet = quiet
        self._every = evaluate_every
        self._checkpoint_every = checkpoint_every
        self.federation = federation.to(device.torch)
        self.model = self._adapt(own_copy(model, device.torch))
        self._live = shared_state(self.model)  # views of the resident model, written in place
        self._kept: list[str] = []
        if method.personal is not None:
            keeps = method.personal.keeps
            self._kept = [name for name in self._live if keeps(name, self.model)]
        start = clone(self._live)
        self._initial: Params = {name: start.pop(name) for name in self._kept}
        self.params: Params = start
        self.precomputed = precompute(self.model, self.federation)
        self._try()
        self.state: dict[str, State] = {}
        for slot, stage in method.stages().items():
            self.state[slot] = stage.init(self.federation, self.model)
        self.engine, self._engine = choose(self, engine)
        self.memory: dict[int, dict[str, State]] = {}
        self.records: list[Record] = []
        self._saved = 0
        self._checkpoint: Checkpoint | None = None
        if checkpoint is not None:
            self._checkpoint = Checkpoint(checkpoint, self._identity())
            self._resume()

    def _adapt(self, model: nn.Module) -> nn.Module:
        """The model as the stages want it, on the device; refuse one that cannot be trained."""
        for stage in self.method.stages().values():
            model = stage.adapt(model, self.federation)
        for name in ("embed", "head"):
            if not callable(getattr(model, name, None)):
                raise FedbookError(
                    f"the model has no {name}",
                    "offer embed(x) -> z and head(z) -> logits, or use Classifier",
                )
        if type(model).forward is nn.Module.forward:
            raise FedbookError(
                "the model has no forward",
                "add forward(x, **precomputed) = head(embed(x, **precomputed))",
            )
        if not any(p.requires_grad for p in model.parameters()):
            raise FedbookError(
                "the model has no trainable parameter", "unfreeze its head or add prompts"
            )
        return self.device.place(model)

    @torch.no_grad()
    def _try(self) -> None:
        """Ask the model about one sample: what cannot answer is refused before anything starts."""
        if self.federation.x.is_meta or self.device.compile:
            return
        index = self.federation.clients[0].train[:1]
        known = {name: t[index] for name, t in self.precomputed.items()}
        self.model.eval()
        try:
            logits = self.model(self.device.images(self.federation.inputs(index)), **known)
            fits = logits.ndim == 2 and logits.shape[1] >= self.federation.num_classes
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
            raise FedbookError(
                f"the model cannot take samples of shape {self.federation.input_shape}: {error}",
                "build it for this federation: models.build(name, federation)",
            ) from error
        if not fits:
            raise FedbookError(
                f"the model answers with shape {tuple(logits.shape)}, there are "
                f"{self.federation.num_classes} classes",
                "it needs one logit per class and sample",
            )
        if not bool(logits.isfinite().all()):
            raise FedbookError(
                "the model's answer to the first sample is not a number, before any training",
                "look for NaN in its weights and in the data",
            )

    # -- iterating ---------------------------------------------------------------------------------
    def __iter__(self) -> Iterator[Record]:
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
        self.load(self.params)

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
        method = self.method
        traffic = self._once() if t == 1 else Traffic()

        rng = generator(self.seed, "sample", t)
        chosen, self.state["sample"] = method.sample(self.state["sample"], self.federation, t, rng)
        reports = []
        for id in sorted(chosen):  # from here on everything happens in id order
            reports.append(Report(id=id, size=len(self.federation.client(id).train)))

        self._measure(reports, t, traffic)
        uploads = self._engine(reports, t, traffic)
        mean, weights = self._aggregate(reports, uploads)

        server = self.state["update"]
        self.params, self.state["update"] = method.update(server, self.params, mean, reports)
        return self._record(t, reports, weights, traffic)

    # -- its parts ---------------------------------------------------------------------------------
    def _once(self) -> Traffic:
        """What is exchanged before the first round."""
        traffic = Traffic()
        for stage in self.method.stages().values():
            up, down = stage.once(self.federation)
            traffic.up += up
            traffic.down += down
        return traffic

    def _measure(self, reports: list[Report], t: int, traffic: Traffic) -> None:
        """What the participants tell of the model they receive, before anyone trains."""
        stages = self.method.stages()
        measuring = [slot for slot, stage in stages.items() if stage.overrides("measure")]
        if "received" in self.method.reads:
            for report, loss in zip(reports, self._losses(reports, t)):
                report.loss = loss
                traffic.receive(loss)
        for report in reports if measuring else ():
            local = self._turn(report, t, "measure")
            self.model.eval()
            for slot in measuring:
                memory = local.memory.setdefault(slot, {})
                self._receive(report, stages[slot].measure(local, memory), traffic)
        if self.method.grouping is not None:
            groups, self.state["grouping"] = self.method.grouping(self.state["grouping"], reports)
            for report, group in zip(reports, groups):
                report.group = group
        for slot, stage in stages.items():
            self.state[slot] = stage.prepare(self.state[slot], reports)

    def _train(self, reports: list[Report], t: int, traffic: Traffic) -> Iterator[Params]:
        """Each participant's parameters after training; they are gone when the next one trains."""
        for report in reports:
            local = self._begin(report, t, traffic)
            outcome = self.method.solve(local, local.sent["solve"], local.memory["solve"])
            yield self._end(local, report, outcome, traffic)

    def _begin(self, report: Report, t: int, traffic: Traffic) -> Local:
        """A client receives the model and what the stages send with it."""
        local = self._turn(report, t, "train")
        traffic.send(local.received)
        for slot, stage in self.method.stages().items():
            local.sent[slot] = stage.send(self.state[slot], report.id)
            stage.begin(local, local.sent[slot], local.memory.setdefault(slot, {}))
        traffic.send(local.sent)
        torch.manual_seed(stream(self.seed, "dropout", t, report.id))
        return local

    def _end(
        self, local: Local, report: Report, outcome: tuple[Tensor, Tensor], traffic: Traffic
    ) -> Params:
        """A client has trained: the server receives what it sends."""
        report.train_loss, report.train_acc = self._check(outcome, report.id, local.round)
        for slot, stage in self.method.stages().items():
            sent = stage.end(local, local.sent[slot], local.memory[slot])
            self._receive(report, sent, traffic)
        if self._kept:
            local.memory["kept"] = clone({name: self._live[name] for name in self._kept})
        upload = {name: self._live[name] for name in self.params}
        traffic.receive([upload, report.size] if upload else [])
        return upload

    def _aggregate(
        self, reports: list[Report], uploads: Iterator[Params]
    ) -> tuple[Params, Weights]:
        """The weighted mean of what the participants upload."""
        if "training" in self.method.reads:  # weights that are known only after training
            uploads = iter([clone(upload) for upload in uploads])
        weights = self._weigh(reports)
        total = WeightedSum(self.params, weights)
        for report, upload in zip(reports, uploads):
            total.add(upload)
            if self.method.update.uploads:
                report.values["upload"] = clone(upload)
        return total.result(), weights

    def _weigh(self, reports: list[Report]) -> Weights:
        """Normalised weights of the participants: the factors' log-weights add up."""
        total: LogWeights = torch.zeros(len(reports), dtype=torch.float64)
        for slot, factor in numbered("weigh", self.method.weigh).items():
            scores, self.state[slot] = factor(self.state[slot], reports)
            total = add(total, scores)
        return Weights(total, [r.id for r in reports])

    def _record(self, t: int, reports: list[Report], weights: Weights, traffic: Traffic) -> Record:
        """What is kept of the round, with the scores if it is time to test."""
        record = Record(
            round=t,
            participants=[r.id for r in reports],
            weights=weights.default,
            train_loss={r.id: r.train_loss for r in reports if r.train_loss is not None},
            train_acc={r.id: r.train_acc for r in reports if r.train_acc is not None},
            bytes_up=traffic.up,
            bytes_down=traffic.down,
            log=self._log(),
        )
        if t % self._every == 0 or t == self.rounds:
            found = {}
            if self.has_global:
                self.load(self.params)
                found["test"] = self.evaluate(self.model)
            if self.method.personal is not None:
                found["personal"] = self._personal(t)
            for kind, scores in found.items():
                for name in SCORES:
                    setattr(record, f"{kind}_{name}", getattr(scores, name))
        return record

    def _log(self) -> dict[str, Any]:
        """What the stages left in their states to be recorded."""
        log: dict[str, Any] = {}
        for state in self.state.values():
            new = state.get("log", {})
            self._unique("log", log, new)
            log |= new
        return log

    @property
    def has_global(self) -> bool:
        """Whether there is one model for everybody."""
        alone = self.method.personal is not None and self.method.personal.alone
        return not (self._kept or alone)

    def load(self, params: Params) -> None:
        """Write parameters into the resident model, in place."""
        copy_into(self._live, params)

    def evaluate(
        self, model: nn.Module, clients: list[Client] | None = None, part: str = "test"
    ) -> Scores:
        """A model on the clients' test (or train) samples."""
        return evaluate(
            model,
            self.federation,
            clients,
            part=part,
            device=self.device,
            precomputed=self.precomputed,
        )

    def _turn(self, report: Report, t: int, purpose: str) -> Local:
        """Give the resident model to a client: the parameters it receives, and its own layers."""
        id = report.id
        memory = self.memory.setdefault(id, {})
        received = self.method.update.download(self.state["update"], self.params, id)
        self.load(received)
        if self._kept:
            self.load(memory.get("kept", self._initial))
        return Local(
            client=self.federation.client(id),
            federation=self.federation,
            model=self.model,
            received=received,
            terms=self.method.objective,
            round=t,
            rounds=self.rounds,
            generator=generator(self.seed, purpose, t, id),
            device=self.device,
            memory=memory,
            report=report.values,
            precomputed=self.precomputed,
        )

    def _losses(self, reports: list[Report], t: int) -> list[float]:
        """Each client's mean loss at the model it receives; one pass where all get the same."""
        same = not self._kept and not self.method.update.overrides_download()
        found: list[float] = []
        for group in [reports] if same else [[r] for r in reports]:
            self._turn(group[0], t, "measure")
            clients = [self.federation.client(r.id) for r in group]
            found += self.evaluate(self.model, clients, "train").loss
        return found

    def _receive(self, report: Report, values: State, traffic: Traffic) -> None:
        self._unique("report", report.values, values)
        report.values |= values
        traffic.receive(values)

    def _unique(self, what: str, known: State, new: State) -> None:
        if clash := known.keys() & new.keys():
            raise FedbookError(
                f"two stages of {self.method.name} {what} {sorted(clash)}", "give one another name"
            )

    def _check(self, outcome: tuple[Tensor, Tensor], id: int, t: int) -> tuple[float, float]:
        """The client's loss and accuracy as numbers; divergence stops the run and leaves the last
        good checkpoint.
        """
        norms = torch._foreach_norm([p for p in self.model.parameters() if p.requires_grad])
        loss, acc, norm = torch.stack([*outcome, torch.stack(norms).sum()]).tolist()
        if not (math.isfinite(norm) and abs(loss) < EXPLODED):
            raise FedbookError(
                f"training diverged: client {id}, round {t}, loss {loss:.3g}, parameter norm "
                f"{norm:.3g}",
                f"lower lr (now {self.method.solve.lr}), set clip, or look for NaN in its samples; "
                "the last good checkpoint is untouched",
            )
        return loss, acc

    def _personal(self, t: int) -> Scores:
        """Every client's own model on its own test samples."""
        found: dict[str, list[float]] = {name: [] for name in SCORES}
        for c in self.federation.clients:
            scores = self.evaluate(self.personal_model(c, t), [c])
            for name in SCORES:
                found[name] += getattr(scores, name)
        return Scores(**found)

    def personal_model(self, client: Client, t: int | None = None) -> nn.Module:
        """The resident model with the weights this client is tested with (until the next call)."""
        if self.method.personal is None:
            raise FedbookError(
                f"{self.method.name} has no personal models", "use run.model, the global one"
            )
        known = client.id in self.memory
        t = len(self.records) if t is None else t
        local = self._turn(Report(id=client.id, size=len(client.train)), t, "personal")
        sent = self.method.personal.send(self.state["personal"], client.id)
        torch.manual_seed(stream(self.seed, "personal", t, client.id))
        self.method.personal.load(local, sent, local.memory.get("personal", {}))
        if not known:
            del self.memory[client.id]
        return self.model

    # -- resuming ----------------------------------------------------------------------------------
    def _identity(self) -> dict[str, Any]:
        """Everything that must match before a checkpoint may be resumed.

        Trained weights count by shape only.
        """
        shapes = [(name, tuple(t.shape)) for name, t in self._live.items()]
        digest = hashlib.sha256(repr(shapes).encode())
        for name, t in self.model.state_dict().items():
            if name not in self._live:
                digest.update(name.encode())
                flat = t.detach().cpu().flatten().contiguous()
                digest.update(flat.view(torch.uint8).numpy().tobytes())
        return {
            "method": self.method.describe(),
            "federation": self.federation.fingerprint,
            "model": digest.hexdigest()[:16],
            "seed": self.seed,
            "evaluate_every": self._every,
        }

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


def own_copy(model: nn.Module, device: torch.device) -> nn.Module:
    """A model that may be trained while the caller's stays as it is.

    Frozen parameters that are on the device already are shared, not copied.
    """
    memo = {}
    for p in model.parameters():
        if not p.requires_grad and p.device == device:
            memo[id(p)] = p
    return copy.deepcopy(model, memo)


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
) -> Simulation:
    """Run a method on a federation.

        for record in simulate(methods.get("fedavg", lr=0.05), federation, model, rounds=20):
            print(record.round, record.test_acc)

    The same seed on the same machine gives the same result bit for bit. With `checkpoint=FOLDER` a
    run that was stopped at any instant goes on where it was and ends as if it had not been.
    Afterwards `run.model` holds the final global weights and `run.frame()` every client's scores.
    The model passed in stays as it is. `engine="loop"` trains the participants one after another,
    "lockstep" all together where the method and the model allow it; "auto" takes the faster.
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
    )
