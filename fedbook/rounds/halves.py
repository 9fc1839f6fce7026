"""The two halves of a round: what the server does, and what clients do.

A `Simulation` (`loop.py`) is both, in one process. `fedbook.flower` puts messages between them.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fedbook.errors import Diverged, FedbookError
from fedbook.federation import Client, Federation
from fedbook.rounds.device import Device
from fedbook.rounds.evaluation import Scores, evaluate, precompute
from fedbook.rounds.params import Params, clone, copy_into, shared_state
from fedbook.rounds.record import Record, Traffic
from fedbook.rounds.seeds import generator, stream
from fedbook.rounds.stages import CrossEntropy, Local, Method, Report, State, numbered
from fedbook.rounds.weights import LogWeights, WeightedSum, Weights, add

SCORES = ("loss", "acc", "f1")
EXPLODED = 1e6  # a mean training loss beyond this is reported as divergence


# -- before the first round ------------------------------------------------------------------------
def tell(method: Method, federation: Federation, client: Client) -> dict[str, State]:
    """What a client tells the server once, by slot."""
    return {slot: stage.tell(federation, client) for slot, stage in method.stages().items()}


def announce(
    method: Method, federation: Federation, told: list[dict[str, State]]
) -> dict[str, State]:
    """What the server then sends to everybody once, by slot."""
    known = {}
    for slot, stage in method.stages().items():
        known[slot] = stage.announce(federation, [t.get(slot, {}) for t in told])
    return known


def own_copy(model: nn.Module, device: torch.device) -> nn.Module:
    """A model that may be trained while the caller's stays as it is.

    Frozen parameters that are on the device already are shared, not copied.
    """
    memo = {}
    for p in model.parameters():
        if not p.requires_grad and p.device == device:
            memo[id(p)] = p
    return copy.deepcopy(model, memo)


class Half:
    """What both halves have: the method, the clients, and the model as the stages want it.

    `known` is what the server announced before round 1, by slot.
    """

    def __init__(
        self,
        method: Method,
        federation: Federation,
        model: nn.Module,
        *,
        rounds: int,
        seed: int,
        device: Device,
        known: dict[str, State],
    ) -> None:
        self.method = method
        self.rounds = rounds
        self.seed = seed
        self.device = device
        here = federation.device == device.torch
        self.federation = federation if here else federation.to(device.torch)
        self.model = self._adapt(own_copy(model, device.torch), known)
        self._live = shared_state(self.model)  # views of the resident model, written in place
        self._trained = [p for p in self.model.parameters() if p.requires_grad]
        self._kept: list[str] = []
        if method.personal is not None:
            keeps = method.personal.keeps
            self._kept = [name for name in self._live if keeps(name, self.model)]
        start = clone(self._live)
        self._initial: Params = {name: start.pop(name) for name in self._kept}
        self.params: Params = start

    def _adapt(self, model: nn.Module, known: dict[str, State]) -> nn.Module:
        """The model as the stages want it, on the device; refuse one that cannot be trained."""
        for slot, stage in self.method.stages().items():
            model = stage.adapt(model, self.federation, known.get(slot, {}))
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

    @property
    def has_global(self) -> bool:
        """Whether there is one model for everybody."""
        alone = self.method.personal is not None and self.method.personal.alone
        return not (self._kept or alone)

    @property
    def same(self) -> bool:
        """Whether all clients receive the same model."""
        return not self._kept and not self.method.update.overrides_download()

    def load(self, params: Params) -> None:
        """Write parameters into the resident model, in place."""
        copy_into(self._live, params)

    @property
    def measuring(self) -> list[str]:
        """The slots whose stages measure something before training."""
        return [s for s, stage in self.method.stages().items() if stage.overrides("measure")]

    def _receive(self, report: Report, values: State, traffic: Traffic) -> None:
        self._unique("report", report.values, values)
        report.values |= values
        traffic.receive(values)

    def _unique(self, what: str, known: State, new: State) -> None:
        if clash := known.keys() & new.keys():
            raise FedbookError(
                f"two stages of {self.method.name} {what} {sorted(clash)}", "give one another name"
            )


class Server(Half):
    """The server's half: who takes part, what each is sent and counts, how the model moves."""

    def __init__(
        self, method: Method, federation: Federation, model: nn.Module, **settings: Any
    ) -> None:
        super().__init__(method, federation, model, **settings)
        self.state: dict[str, State] = {}
        for slot, stage in method.stages().items():
            self.state[slot] = stage.init(self.federation, self.model)

    def _sample(self, t: int) -> list[Report]:
        """Who takes part in round t, in the order of their ids, as everything from here on."""
        rng = generator(self.seed, "sample", t)
        state = self.state["sample"]
        chosen, self.state["sample"] = self.method.sample(state, self.federation, t, rng)
        reports = []
        for id in sorted(chosen):
            reports.append(Report(id=id, size=len(self.federation.client(id).train)))
        return reports

    def _prepare(self, reports: list[Report]) -> None:
        """When all participants have measured: group them, and get ready what they are sent."""
        if self.method.grouping is not None:
            groups, self.state["grouping"] = self.method.grouping(self.state["grouping"], reports)
            for report, group in zip(reports, groups):
                report.group = group
        for slot, stage in self.method.stages().items():
            self.state[slot] = stage.prepare(self.state[slot], reports)

    def _download(self, id: int) -> Params:
        """The parameters a client receives."""
        return self.method.update.download(self.state["update"], self.params, id)

    def _send(self, slot: str, id: int) -> State:
        """What a stage sends a client besides."""
        return self.method.stages()[slot].send(self.state[slot], id)

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

    def _update(self, mean: Params, reports: list[Report]) -> None:
        """The server moves."""
        state = self.state["update"]
        self.params, self.state["update"] = self.method.update(state, self.params, mean, reports)

    def _record(self, t: int, reports: list[Report], weights: Weights, traffic: Traffic) -> Record:
        """What is kept of the round, as yet without scores."""
        return Record(
            round=t,
            participants=[r.id for r in reports],
            weights=weights.default,
            train_loss={r.id: r.train_loss for r in reports if r.train_loss is not None},
            train_acc={r.id: r.train_acc for r in reports if r.train_acc is not None},
            bytes_up=traffic.up,
            bytes_down=traffic.down,
            log=self._log(),
        )

    def _log(self) -> dict[str, Any]:
        """What the stages left in their states to be recorded."""
        log: dict[str, Any] = {}
        for state in self.state.values():
            new = state.get("log", {})
            self._unique("log", log, new)
            log |= new
        return log

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
        }


class Clients(Half):
    """The clients' half: one resident model, given to one client after another.

    `memory` holds what the stages remember of each client. Where parameters and messages come from
    is up to the two methods below.
    """

    memory: dict[int, dict[str, State]]
    together = False  # whether clients that receive the same may be measured in one pass

    def __init__(
        self, method: Method, federation: Federation, model: nn.Module, **settings: Any
    ) -> None:
        super().__init__(method, federation, model, **settings)
        self.precomputed = self._precompute()
        self._try()
        self.memory = {}

    def _precompute(self) -> dict[str, Tensor]:
        """One row per sample of what no training changes."""
        return precompute(self.model, self.federation)

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
        labels = any(isinstance(term, CrossEntropy) for term in self.method.objective)
        if labels and not fits:
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

    def _download(self, id: int) -> Params:
        """The parameters a client receives."""
        raise NotImplementedError

    def _send(self, slot: str, id: int) -> State:
        """What a stage sends a client besides."""
        raise NotImplementedError

    def _measure(self, reports: list[Report], t: int, traffic: Traffic) -> None:
        """What the participants tell of the model they receive, before anyone trains."""
        stages = self.method.stages()
        measuring = self.measuring
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

    def _train(self, reports: list[Report], t: int, traffic: Traffic) -> Iterator[Params]:
        """Each participant's parameters after training; they are gone when the next one trains."""
        for report in reports:
            local = self._begin(report, t, traffic)
            outcome = self.method.solve(local, local.sent["solve"], local.memory["solve"])
            yield self._end(local, report, outcome, traffic)

    def _begin(self, report: Report, t: int, traffic: Traffic, later: Any = ()) -> Local:
        """A client receives the model and what the stages send with it.

        Stages of the kinds `later` begin another time.
        """
        local = self._turn(report, t, "train")
        traffic.send(local.received)
        for slot, stage in self.method.stages().items():
            local.sent[slot] = self._send(slot, report.id)
            memory = local.memory.setdefault(slot, {})
            if not isinstance(stage, later):
                stage.begin(local, local.sent[slot], memory)
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

    def evaluate(
        self,
        model: nn.Module,
        clients: list[Client] | None = None,
        part: str = "test",
        z: list[Tensor] | None = None,
    ) -> Scores:
        """A model on the clients' test (or train) samples."""
        return evaluate(
            model,
            self.federation,
            clients,
            part=part,
            device=self.device,
            precomputed=self.precomputed,
            z=z,
        )

    def _turn(self, report: Report, t: int, purpose: str) -> Local:
        """Give the resident model to a client: the parameters it receives, and its own layers."""
        id = report.id
        memory = self.memory.setdefault(id, {})
        received = self._download(id)
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
        """Each client's mean loss at the model it receives."""
        found: list[float] = []
        for group in [reports] if self.same and self.together else [[r] for r in reports]:
            self._turn(group[0], t, "measure")
            clients = [self.federation.client(r.id) for r in group]
            found += self.evaluate(self.model, clients, "train").loss
        return found

    def _check(self, outcome: tuple[Tensor, Tensor], id: int, t: int) -> tuple[float, float]:
        """The client's loss and accuracy as numbers; divergence stops the run and leaves the last
        good checkpoint.
        """
        norms = torch._foreach_norm(list(self._trained))
        loss, acc, norm = torch.stack([*outcome, torch.stack(norms).sum()]).tolist()
        if not (math.isfinite(norm) and abs(loss) < EXPLODED):
            raise Diverged(
                f"training diverged: client {id}, round {t}, loss {loss:.3g}, parameter norm "
                f"{norm:.3g}",
                f"lower lr (now {self.method.solve.lr}), set clip, or look for NaN in its samples; "
                "the last good checkpoint is untouched",
            )
        return loss, acc

    def _scores(self, t: int) -> dict[str, Scores]:
        """ "test": the global model on every client, "personal": their own models on themselves."""
        found = {}
        if self.has_global:
            self.load(self.params)
            found["test"] = self.evaluate(self.model)
        if self.method.personal is not None:
            found["personal"] = self._personal(t)
        return found

    def _personal(self, t: int) -> Scores:
        """Every client's own model on its own test samples."""
        found: dict[str, list[float]] = {name: [] for name in SCORES}
        for c in self.federation.clients:
            scores = self.evaluate(self._own_model(c, t), [c])
            for name in SCORES:
                found[name] += getattr(scores, name)
        return Scores(**found)

    def _own_model(self, client: Client, t: int) -> nn.Module:
        """The resident model with the weights this client is tested with after round t."""
        if self.method.personal is None:
            raise FedbookError(
                f"{self.method.name} has no personal models", "use run.model, the global one"
            )
        known = client.id in self.memory
        local = self._turn(Report(id=client.id, size=len(client.train)), t, "personal")
        sent = self._send("personal", client.id)
        torch.manual_seed(stream(self.seed, "personal", t, client.id))
        self.method.personal.load(local, sent, local.memory.get("personal", {}))
        if not known:
            del self.memory[client.id]
        return self.model
