"""The reference loop: one resident model, data on the device, sums taken as clients arrive."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Client, Federation
from fedbook.rounds.checkpoint import Checkpoint
from fedbook.rounds.device import Device
from fedbook.rounds.evaluation import Scores, evaluate, precomputed
from fedbook.rounds.stages import Local, Method, Params, Report, State, Update
from fedbook.rounds.weights import WeightedSum, Weights

if TYPE_CHECKING:
    import pandas as pd

SCORES = ("loss", "acc", "f1")
EXPLODED = 1e6  # a mean training loss beyond this is reported as divergence


@dataclass
class Record:
    """What happened in one round. `test_*` are the global model's scores, `personal_*` the clients'
    own models'.
    """

    round: int
    participants: list[int]
    weights: list[float]
    train_loss: dict[int, float]
    train_acc: dict[int, float]
    bytes_up: int
    bytes_down: int
    seconds: float
    test_loss: list[float] | None = None
    test_acc: list[float] | None = None
    test_f1: list[float] | None = None
    personal_loss: list[float] | None = None
    personal_acc: list[float] | None = None
    personal_f1: list[float] | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Record:
        for name in ("train_loss", "train_acc"):
            data[name] = {int(k): v for k, v in data[name].items()}
        return cls(**data)


def stream(*key: int | str) -> int:
    """A seed of its own for every (run, purpose, round, client): no draw depends on who was drawn
    before.
    """
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:7], "big")


def generator(*key: int | str) -> torch.Generator:
    return torch.Generator().manual_seed(stream(*key))


def shared_state(model: nn.Module) -> Params:
    """What a model can share, by name: trainable parameters, and buffers unless they sit beside
    frozen parameters.
    """
    frozen = set()
    for prefix, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        if any(not p.requires_grad for p in own):
            frozen |= {
                f"{prefix}.{n}" if prefix else n for n, _ in module.named_buffers(recurse=False)
            }
    return {
        name: t.detach()
        for name, t in model.state_dict(keep_vars=True).items()
        if (t.requires_grad if isinstance(t, nn.Parameter) else name not in frozen)
    }


def count_bytes(value: Any) -> int:
    """Bytes of everything in a nest of tensors and numbers (4 per float, 8 per int)."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(map(count_bytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(count_bytes, value))
    return 4 if isinstance(value, float) else 8 if isinstance(value, int) else 0


@torch.no_grad()
def copy_into(target: Params, source: Params) -> None:
    if names := list(source):
        torch._foreach_copy_([target[n] for n in names], [source[n] for n in names])


class Simulation:
    """A federated run: iterate over it for one `Record` per round. Made by `simulate`."""

    def __init__(
        self,
        method: Method,
        federation: Federation,
        model: nn.Module,
        rounds: int,
        seed: int,
        device: Device,
        checkpoint: str | Path | None,
        checkpoint_every: int,
        evaluate_every: int,
        quiet: bool,
    ) -> None:
        for name, value in (
            ("rounds", rounds),
            ("evaluate_every", evaluate_every),
            ("checkpoint_every", checkpoint_every),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise FedbookError(
                    f"{name} must be a whole number of at least 1, got {value!r}", f"try {name}=10"
                )
        self.method, self.rounds, self.seed, self.device = method, rounds, seed, device
        self.every, self.checkpoint_every, self.quiet = evaluate_every, checkpoint_every, quiet
        self.federation = federation.to(device.torch)
        for stage in method.stages().values():
            model = stage.adapt(model, self.federation)
        for name in ("embed", "head"):
            if not callable(getattr(model, name, None)):
                raise FedbookError(
                    f"the model has no {name}",
                    "offer embed(x) -> z and head(z) -> logits, or use Classifier",
                )
        if type(model).forward is nn.Module.forward:
            raise FedbookError(
                "the model has no forward", "add forward(x, **extra) = head(embed(x, **extra))"
            )
        self.model = device.place(model)
        self.live = shared_state(self.model)  # views of the resident model, written in place
        if not any(isinstance(p, nn.Parameter) for p in self.model.parameters() if p.requires_grad):
            raise FedbookError(
                "the model has no trainable parameter", "unfreeze its head or add prompts"
            )
        keeps = method.personal.keeps if method.personal else lambda name: False
        self.kept = [n for n in self.live if keeps(n)]
        self.params: Params = {n: t.clone() for n, t in self.live.items() if n not in self.kept}
        self.initial: Params = {n: self.live[n].clone() for n in self.kept}
        self.extra = precomputed(self.model, self.federation)
        self.state: dict[str, State] = {
            s: stage.init(self.federation, self.model) for s, stage in method.stages().items()
        }
        self.memory: dict[int, dict[str, State]] = {}
        self.records: list[Record] = []
        self.saved = 0
        self.checkpoint: Checkpoint | None = None
        if checkpoint is not None:
            self.checkpoint = Checkpoint(checkpoint, self._identity())
            self._resume()

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
            if self.checkpoint and (t % self.checkpoint_every == 0 or t == self.rounds):
                self.checkpoint.save(
                    t, self._state(), [r.to_json() for r in self.records[self.saved :]]
                )
                self.saved = len(self.records)
            scores = record.personal_acc if record.test_acc is None else record.test_acc
            if scores is not None:
                bar.set_postfix(accuracy=f"{sum(scores) / len(scores):.3f}")
            yield record
        self.load(self.params)

    def run(self) -> Simulation:
        """All rounds, to the end."""
        for _ in self:
            pass
        return self

    def frame(self) -> pd.DataFrame:
        """One row per round and client: global and personal scores, and who took part with which
        weight.
        """
        import pandas as pd

        rows = []
        for r in self.records:
            weight = dict(zip(r.participants, r.weights))
            for i, c in enumerate(self.federation.clients):
                row: dict[str, Any] = {
                    "round": r.round,
                    "client": c.id,
                    "type": self.federation.type_names[c.type],
                }
                row |= {
                    "weight": weight.get(c.id, 0.0),
                    "train_loss": r.train_loss.get(c.id),
                    "train_acc": r.train_acc.get(c.id),
                }
                for name in (
                    "test_loss",
                    "test_acc",
                    "test_f1",
                    "personal_loss",
                    "personal_acc",
                    "personal_f1",
                ):
                    scores = getattr(r, name)
                    row[name] = None if scores is None else scores[i]
                rows.append(row)
        return pd.DataFrame(rows)

    # -- one round ---------------------------------------------------------------------------------
    def step(self, t: int) -> Record:
        """Sample, measure, train, weigh, update, evaluate."""
        began = time.perf_counter()
        cuda = [self.device.torch] if self.device.torch.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda):
            record = self._round(t)
        record.seconds = time.perf_counter() - began
        return record

    def _round(self, t: int) -> Record:
        method, stages, up, down = self.method, self.method.stages(), 0, 0
        if t == 1:
            for stage in stages.values():
                once_up, once_down = stage.once(self.federation)
                up, down = up + once_up, down + once_down

        chosen, self.state["sample"] = method.sample(  # 1. who takes part
            self.state["sample"], self.federation, t, generator(self.seed, "sample", t)
        )
        participants = sorted(
            chosen
        )  # everything below happens in id order, whatever order they were drawn in
        reports = [Report(id, len(self.federation.client(id).train)) for id in participants]

        measuring = [s for s in stages if stages[s].overrides("measure")]
        if measuring or any(
            stage.needs_loss for stage in stages.values()
        ):  # 2. what they measure at the received model
            if any(stage.needs_loss for stage in stages.values()):
                for report, loss in zip(reports, self._losses(participants, t)):
                    report.loss = loss
                    up += 4
            for report in reports if measuring else []:
                local = self._turn(report.id, t, "measure")
                self.model.eval()
                for s in measuring:
                    self._receive(report, stages[s].measure(local, local.memory.setdefault(s, {})))
            up += sum(count_bytes(r.values) for r in reports)
            for s, stage in stages.items():
                self.state[s] = stage.prepare(self.state[s], reports)
        measured = sum(count_bytes(r.values) for r in reports)

        late = method.weigh.late or method.update.wants_uploads
        if not method.weigh.late:
            weights, total = self._weigh(reports)
        uploads: list[Params] = []
        train_loss: dict[int, float] = {}
        train_acc: dict[int, float] = {}
        for report in reports:  # 3. local training: objective and solver
            local = self._turn(report.id, t, "train")
            down += count_bytes(local.received)
            for s, stage in stages.items():
                local.sent[s] = stage.send(self.state[s], report.id)
                stage.begin(local, local.sent[s], local.memory.setdefault(s, {}))
            down += count_bytes(local.sent)
            torch.manual_seed(stream(self.seed, "dropout", t, report.id))
            outcome = method.solve(local, local.sent["solve"], local.memory["solve"])
            report.train_loss, train_acc[report.id] = self._check(outcome, report.id, t)
            train_loss[report.id] = report.train_loss
            for s, stage in stages.items():
                self._receive(report, stage.end(local, local.sent[s], local.memory[s]))
            self._remember(local)
            upload = {n: self.live[n] for n in self.params}
            up += count_bytes(upload) + (8 if upload else 0)  # and n_k, unless nothing is shared
            if late:
                uploads.append({n: v.clone() for n, v in upload.items()})
            else:
                total.add(upload)
        up += sum(count_bytes(r.values) for r in reports) - measured

        if method.weigh.late:
            weights, total = self._weigh(reports)  # 4. what each counts
        for report, upload in zip(reports, uploads):
            total.add(upload)
            if method.update.wants_uploads:
                report.values["upload"] = upload
        mean = total.result()
        self.params, self.state["update"] = method.update(
            self.state["update"], self.params, mean, reports
        )  # 5.
        extra = {
            f"{s}.{k}": v for s, st in self.state.items() for k, v in st.get("log", {}).items()
        }

        scores = personal = None
        if t % self.every == 0 or t == self.rounds:
            if not self.kept and not (method.personal and method.personal.alone):
                self.load(self.params)
                scores = evaluate(
                    self.model, self.federation, None, "test", self.device, self.extra
                )
            personal = self._personal(t) if method.personal else None
        found = {
            f"{kind}_{n}": getattr(of, n, None)
            for kind, of in (("test", scores), ("personal", personal))
            for n in SCORES
        }
        return Record(
            t,
            participants,
            weights.default,
            train_loss,
            train_acc,
            up,
            down,
            0.0,
            **found,
            extra=extra,
        )

    # -- its parts ---------------------------------------------------------------------------------
    def load(self, params: Params) -> None:
        """Write parameters into the resident model, in place."""
        copy_into(self.live, params)

    def _turn(self, id: int, t: int, purpose: str) -> Local:
        """Give the resident model to a client: the parameters it receives, and its own layers."""
        memory = self.memory.setdefault(id, {})
        received = self.method.update.download(self.state["update"], self.params, id)
        self.load(received)
        if self.kept:
            self.load(memory.get("kept", self.initial))
        rng = generator(self.seed, purpose, t, id)
        client = self.federation.client(id)
        terms = self.method.objective
        return Local(
            client,
            self.federation,
            self.model,
            received,
            t,
            rng,
            self.device,
            terms,
            {},
            memory,
            self.extra,
        )

    def _losses(self, ids: list[int], t: int) -> list[float]:
        """Each client's mean loss at the model it receives, in one pass where all receive the
        same.
        """
        clients = [self.federation.client(id) for id in ids]
        same = not self.kept and type(self.method.update).download is Update.download
        found: list[float] = []
        for group in [clients] if same else [[c] for c in clients]:
            self._turn(group[0].id, t, "measure")
            found += evaluate(
                self.model, self.federation, group, "train", self.device, self.extra
            ).loss
        return found

    def _remember(self, local: Local) -> None:
        if self.kept:
            local.memory["kept"] = {n: self.live[n].clone() for n in self.kept}

    def _receive(self, report: Report, values: State) -> None:
        if clash := report.values.keys() & values.keys():
            raise FedbookError(
                f"two stages of {self.method.name} report {sorted(clash)}", "give one another name"
            )
        report.values |= values

    def _weigh(self, reports: list[Report]) -> tuple[Weights, WeightedSum]:
        scores, self.state["weigh"] = self.method.weigh(self.state["weigh"], reports)
        weights = Weights(scores, [r.id for r in reports])
        return weights, WeightedSum(self.params, weights)

    def _check(self, outcome: tuple[Tensor, Tensor], id: int, t: int) -> tuple[float, float]:
        """The client's loss and accuracy as numbers; divergence stops the run and leaves the last
        good checkpoint.
        """
        norms = torch._foreach_norm([p for p in self.model.parameters() if p.requires_grad])
        loss, acc, norm = torch.stack([outcome[0], outcome[1], torch.stack(norms).sum()]).tolist()
        if not (math.isfinite(norm) and abs(loss) < EXPLODED):
            raise FedbookError(
                f"training diverged: client {id}, round {t}, loss {loss:.3g}, parameter norm "
                f"{norm:.3g}",
                f"lower lr (now {self.method.solve.lr}) or set clip; the last good checkpoint is "
                "untouched",
            )
        return loss, acc

    def _personal(self, t: int) -> Scores:
        """Every client's own model on its own test samples."""
        assert self.method.personal is not None
        found = []
        for c in self.federation.clients:
            found.append(
                evaluate(
                    self.personal_model(c, t), self.federation, [c], "test", self.device, self.extra
                )
            )
        return Scores(*([x for s in found for x in getattr(s, name)] for name in SCORES))

    def personal_model(self, client: Client, t: int | None = None) -> nn.Module:
        """The resident model, holding the weights this client is tested with (until the next
        call).
        """
        if self.method.personal is None:
            raise FedbookError(
                f"{self.method.name} has no personal models", "use run.model, the global one"
            )
        known = client.id in self.memory
        local = self._turn(client.id, len(self.records) if t is None else t, "personal")
        sent = self.method.personal.send(self.state["personal"], client.id)
        torch.manual_seed(stream(self.seed, "personal", local.round, client.id))
        self.method.personal.load(local, sent, local.memory.get("personal", {}))
        if not known:
            del self.memory[client.id]
        return self.model

    # -- resuming ----------------------------------------------------------------------------------
    def _identity(self) -> dict[str, Any]:
        """What must be the same when a run goes on; of the trained weights only the shapes, their
        values are state.
        """
        model = hashlib.sha256(repr([(n, tuple(t.shape)) for n, t in self.live.items()]).encode())
        for name, t in self.model.state_dict().items():
            if name not in self.live:
                model.update(
                    name.encode()
                    + t.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().tobytes()
                )
        return {
            "method": self.method.describe(),
            "federation": self.federation.fingerprint,
            "model": model.hexdigest()[:16],
            "seed": self.seed,
            "evaluate_every": self.every,
        }

    def _state(self) -> dict[str, Any]:
        memory = {str(id): m for id, m in self.memory.items()}
        return {
            "params": self.params,
            "initial": self.initial,
            "state": self.state,
            "memory": memory,
        }

    def _resume(self) -> None:
        assert self.checkpoint is not None
        found = self.checkpoint.restore(self.device.torch)
        if found is None:
            return
        state, records = found
        self.params, self.initial, self.state = state["params"], state["initial"], state["state"]
        self.memory = {int(id): m for id, m in state["memory"].items()}
        self.records = [Record.from_json(r) for r in records]
        self.saved = len(self.records)
        if self.records and self.records[-1].round > self.rounds:
            raise FedbookError(
                f"the checkpoint has {self.records[-1].round} rounds, {self.rounds} were asked for",
                "ask for at least as many, or use another folder",
            )
        self.load(self.params)


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
) -> Simulation:
    """Run a method on a federation.

        for record in simulate(methods.get("fedavg", lr=0.05), federation, model, rounds=20):
            print(record.round, record.test_acc)

    The same seed on the same machine gives the same result bit for bit. With `checkpoint=FOLDER` a
    run that was stopped at any instant goes on where it was and ends as if it had not been.
    Afterwards `run.model` holds the final global weights and `run.frame()` every client's scores.
    The model passed in is used, not copied.
    """
    return Simulation(
        method,
        federation,
        model,
        rounds,
        seed,
        Device.of(device),
        checkpoint,
        checkpoint_every,
        evaluate_every,
        quiet,
    )
