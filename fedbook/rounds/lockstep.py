"""The second engine: the participants of a round advance together, one mini-batch each per step.

Their parameters are stacked, one pass computes the features and logits of all their batches, every
term of the objective sees its own client's batch, and one optimizer moves them all. Clients keep
their own batches and settings, so the results are those of the loop up to rounding. Those with
fewer batches leave when they are done.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.rounds.evaluation import Scores, score
from fedbook.rounds.params import Params, clone
from fedbook.rounds.record import Traffic
from fedbook.rounds.seeds import stream
from fedbook.rounds.stages import Batch, Local, LocalSolver, Objective, Report, numbered

if TYPE_CHECKING:
    from fedbook.models.stacked import Stack
    from fedbook.rounds.loop import Simulation

ENGINES = ("loop", "lockstep", "auto")
SAMPLES = 64  # of a step of one chunk on a CPU, all clients together
TOGETHER = 10  # clients of a chunk on a GPU
INPUTS = 64 * 3 * 224 * 224  # numbers a step of one chunk takes in on a GPU; more may not fit
Train = Callable[[list[Report], int, Traffic], Iterator[Params]]


def choose(run: Simulation, engine: str) -> tuple[str, Train]:
    """The engine of a run by name, and the function that trains its participants."""
    if engine not in ENGINES:
        raise FedbookError(f"unknown engine {engine!r}", f"use one of {', '.join(ENGINES)}")
    if engine == "loop":
        return "loop", run._train
    reason, how = obstacle(run)
    if reason is not None:
        if engine == "lockstep":
            warnings.warn(f"{run.method.name} trains client by client: {reason}", stacklevel=4)
        return "loop", run._train
    if engine == "auto" and run.device.torch.type == "cpu":
        recurrent = any(isinstance(m, nn.LSTM) for m in run.model.modules())
        if recurrent or how == "vmap":  # on a CPU both cost more than they save
            return "loop", run._train
    return "lockstep", Lockstep(run, how)


def obstacle(run: Simulation) -> tuple[str | None, str]:
    """Why this run cannot go in lock-step, if it cannot; and how its model would be stacked."""
    from fedbook.models import stacked

    solver = run.method.solve
    if _definer(solver, "step") is not _definer(solver, "together"):
        return f"{type(solver).__name__} has steps of its own", ""
    if type(solver).__call__ is not LocalSolver.__call__:
        return f"{type(solver).__name__} has a loop of its own", ""
    for term in run.method.objective:
        if not term.lockstep:
            return f"{type(term).__name__} needs a pass of its own", ""
    if run.device.compile:
        return "the model is compiled for one client", ""
    if reason := stacked.obstacle(run.model):
        return reason, ""
    sparse = any(isinstance(m, stacked.FGPT) for m in run.model.modules())
    if sparse and solver.optimizer != "sgd":
        return "AdamW counts the steps of each group prompt by client", ""
    index = run.federation.clients[0].train[:3].repeat(3)[:3]
    x = run.device.images(run.federation.inputs(index))
    precomputed = {name: t[index] for name, t in run.precomputed.items()}
    run.model.train()
    try:
        return None, stacked.arrangement(run.model, x, precomputed)
    except stacked.Unsupported as error:
        return str(error), ""


@runtime_checkable
class Ahead(Protocol):
    """A stage whose `begin` can be done for all clients of a lock-step at once."""

    def ahead(self, engine: Lockstep, slot: str, turns: list[Local], starts: list[Params]) -> None:
        """Instead of `begin`: the turns, and the parameters that each of them starts from."""


def _definer(stage: LocalSolver, name: str) -> type:
    return next(c for c in type(stage).__mro__ if name in vars(c))


class Lockstep:
    """Trains the participants of a round in chunks, as many chunks at once as there are threads.

    Small networks leave most of a second thread idle, so that on a CPU every thread has a chunk of
    its own and no operator is divided among threads. A chunk is only as large as caches like it.
    """

    def __init__(self, run: Simulation, how: str) -> None:
        self.run = run
        self.how = how
        self.trained = [name for name, p in run.model.named_parameters() if p.requires_grad]
        self.whole = len(self.trained) == len(run._live)  # no buffers besides
        self._idle: list[Stack] = []  # ready to be used again
        self._received: tuple[int, Tensor, Tensor] | None = None  # a round, its samples and their z

    def __call__(self, reports: list[Report], t: int, traffic: Traffic) -> Iterator[Params]:
        """Each participant's parameters after training, in the order of the reports."""
        run = self.run
        size = run.method.solve.batch_size
        order = sorted(reports, key=lambda r: (-r.size) // size)  # most batches first
        turns: list[Local] = []
        starts: list[Params] = []
        for report in order:
            turns.append(run._begin(report, t, traffic, Ahead if self.whole else ()))
            new = not run.same or not starts
            starts.append(self._resident() if new else starts[0])
        for slot, stage in run.method.stages().items() if self.whole else ():
            if isinstance(stage, Ahead):
                stage.ahead(self, slot, turns, starts)
        run.model.train()

        def train(chunk: slice) -> list[Outcome]:
            with self._stack(starts[chunk]) as stack:
                return advance(run, stack, turns[chunk])

        found: dict[int, tuple[Local, Outcome]] = {}
        chunks = self.chunks(len(order), size)
        for chunk, outcomes in zip(chunks, self._map(train, chunks)):
            for local, outcome in zip(turns[chunk], outcomes):
                found[local.client.id] = local, outcome
        for report in reports:
            local, outcome = found.pop(report.id)
            if len(outcome.params) < len(run._live):  # buffers
                run._turn(report, t, "train")
            run.load(outcome.params)
            if not run.model.training:  # a walk through all modules
                run.model.train()
            torch.manual_seed(stream(run.seed, "dropout", t, report.id))  # as the loop leaves it
            yield run._end(local, report, (outcome.loss, outcome.acc), traffic)

    @property
    def keeps_received(self) -> bool:
        """Whether a stage looks at z of the received model, which the losses' pass can leave it."""
        ahead = any(isinstance(stage, Ahead) for stage in self.run.method.stages().values())
        return ahead and self.whole and self.run.same

    def losses(self, reports: list[Report], t: int) -> list[float]:
        """Each client's mean loss at the model all of them receive; z is kept for the round."""
        run = self.run
        run._turn(reports[0], t, "measure")
        clients = [run.federation.client(r.id) for r in reports]
        z: list[Tensor] = []
        scores = run.evaluate(run.model, clients, "train", z)
        self._received = t, torch.cat([c.train for c in clients]).unique(), torch.cat(z)
        return scores.loss

    def received(self, t: int, starts: list[Params], index: list[Tensor]) -> list[Tensor]:
        """z of each client's samples at the model it receives in round t."""
        if self._received is None or self._received[0] != t:
            return [z for z, _ in self.passes(starts, index)]
        _, samples, z = self._received
        return [z[torch.searchsorted(samples, rows)] for rows in index]

    def personal(self, t: int, batch: int = 512, window: int = 64) -> Scores:
        """Every client's own model on its own test samples, several models at once."""
        run = self.run
        federation = run.federation
        clients = sorted(federation.clients, key=lambda c: -len(c.test))
        clients = [c for c in clients if len(c.test)]
        none = federation.x.new_zeros((0, federation.num_classes), dtype=torch.float32)
        logits: dict[int, Tensor] = {}
        for i in range(0, len(clients), window):
            some = clients[i : i + window]
            starts = []
            for c in some:
                run.personal_model(c, t)
                starts.append(self._resident())
            for c, (_, found) in zip(some, self.passes(starts, [c.test for c in some], batch)):
                logits[c.id] = found
        rows = [c.test for c in federation.clients]
        y = federation.y[torch.cat(rows)]
        every = torch.cat([logits.get(c.id, none) for c in federation.clients])
        return score(
            torch.repeat_interleave(torch.tensor([len(r) for r in rows]).to(y.device)),
            len(rows),
            loss=F.cross_entropy(every.float(), y, reduction="none"),
            predicted=every.argmax(1),
            y=y,
            classes=federation.num_classes,
        )

    def passes(
        self, starts: list[Params], index: list[Tensor], batch: int = 512
    ) -> list[tuple[Tensor, Tensor]]:
        """z and logits of each client's samples under parameters of its own, in eval mode."""
        order = sorted(range(len(index)), key=lambda i: -len(index[i]))

        def work(chunk: slice) -> list[tuple[Tensor, Tensor]]:
            own = order[chunk]
            with self._stack([starts[i] for i in own], training=False) as stack:
                return pass_each(self.run, stack, [index[i] for i in own], batch // len(own) + 1)

        chunks = self.chunks(len(order), self.run.method.solve.batch_size)
        found: dict[int, tuple[Tensor, Tensor]] = {}
        for chunk, made in zip(chunks, self._map(work, chunks)):
            found |= dict(zip(order[chunk], made))
        return [found[i] for i in range(len(index))]

    def _resident(self) -> Params:
        """A copy of what is trained of the resident model as it is now."""
        return clone({name: self.run._live[name] for name in self.trained})

    @contextlib.contextmanager
    def _stack(self, starts: list[Params], training: bool = True) -> Iterator[Stack]:
        from fedbook.models.stacked import Stack

        stack = self._idle.pop() if self._idle else Stack(self.run.model, self.how)
        yield stack.begin(starts, training)
        stack.end()
        self._idle.append(stack)

    def threads(self) -> int:
        """How many chunks are computed at once."""
        return torch.get_num_threads() if self.run.device.torch.type == "cpu" else 1

    def chunks(self, clients: int, batch: int) -> list[slice]:
        """Clients 0, 1, 2, ..., largest first, in chunks of about equal size and work."""
        device = self.run.device
        threads = self.threads()
        most = device.together
        if most is None:
            inputs = batch * math.prod(self.run.federation.input_shape)
            on_cpu = device.torch.type == "cpu"
            most = SAMPLES // batch if on_cpu else min(TOGETHER, INPUTS // inputs)
        waves = math.ceil(clients / (max(1, most) * threads))
        found = []
        for wave in range(waves):
            first, stop = (clients * w // waves for w in (wave, wave + 1))
            side = min(threads, stop - first)
            found += [slice(first + i, stop, side) for i in range(side)]
        return found

    def _map(self, work: Callable[[slice], Any], chunks: list[slice]) -> list[Any]:
        """`work` of every chunk, in order; one thread each where there are several."""
        threads = min(self.threads(), len(chunks))
        if threads <= 1:
            return [work(chunk) for chunk in chunks]
        before = torch.get_num_threads()
        alone = partial(torch.set_num_threads, 1)
        try:
            with ThreadPoolExecutor(threads, initializer=alone) as pool:
                return list(pool.map(work, chunks))
        finally:
            torch.set_num_threads(before)


@dataclass
class Outcome:
    """What training made of one client: its parameters, and its last epoch's loss and accuracy."""

    params: Params
    loss: Tensor
    acc: Tensor


def schedule(local: Local, solver: LocalSolver) -> Iterator[tuple[Tensor, bool]]:
    """The client's mini-batches of all epochs, and whether one is of the last."""
    for epoch in range(solver.epochs):
        for part in local.parts(solver.batch_size, most=solver.batches):
            yield part, epoch == solver.epochs - 1


@torch.no_grad()
def pass_each(
    run: Simulation, stack: Stack, index: list[Tensor], batch: int
) -> list[tuple[Tensor, Tensor]]:
    """z and logits of each client's samples; everybody has some, those with most come first."""
    from fedbook.models.stacked import Layout

    found: list[list[tuple[Tensor, Tensor]]] = [[] for _ in index]
    pieces = [rows.split(batch) for rows in index]
    for step in range(len(pieces[0])):
        parts = [own[step] for own in pieces if step < len(own)]
        sizes = [len(part) for part in parts]
        if len(parts) < stack.clients:
            stack.first(len(parts))
        rows = torch.cat(parts)
        known = {name: t[rows] for name, t in run.precomputed.items()}
        x = run.device.images(run.federation.inputs(rows))
        with run.device.autocast():
            z, logits = stack.pass_all(x, known, Layout(sizes, rows.device))
        for own, a, b in zip(found, z.split(sizes), logits.split(sizes)):
            own.append((a, b))
    return [(torch.cat([a for a, _ in own]), torch.cat([b for _, b in own])) for own in found]


def advance(run: Simulation, stack: Stack, turns: list[Local]) -> list[Outcome]:
    """Train clients together, those with the most batches first in the list."""
    solver = run.method.solve
    optimizer = solver.build(stack)  # type: ignore[arg-type]
    plans = [schedule(local, solver) for local in turns]
    tally = Tally()
    done: list[Params] = []
    while True:
        parts = []
        last = []
        for plan in plans[: stack.clients]:
            part, final = next(plan, (None, False))
            if part is not None:
                parts.append(part)
                last.append(final)
        if len(parts) < stack.clients:
            done = [*stack.each()[len(parts) :], *done]
            if not parts:
                break
            keep(len(parts), stack, optimizer)
        step = Step(run, stack, turns, parts)
        losses = solver.together(step, optimizer)
        if any(last):
            tally.add(losses, step.logits.detach().argmax(1) == step.y, step.layout.sizes, last)
    means = tally.means([solver.seen(len(local.client.train)) for local in turns])
    return [Outcome(*each) for each in zip(done, *means)]


class Tally:
    """Losses and hits of the last epoch, step by step; summed by client at the end."""

    def __init__(self) -> None:
        self.losses: list[Tensor] = []
        self.hits: list[Tensor] = []
        self.client: list[int] = []
        self.weight: list[int] = []
        self.size: list[int] = []

    def add(self, losses: Tensor, hits: Tensor, sizes: list[int], last: list[bool]) -> None:
        self.losses.append(losses)
        self.hits.append(hits)
        self.client += range(len(sizes))
        self.size += sizes
        self.weight += [n * final for n, final in zip(sizes, last)]

    def means(self, counts: list[int]) -> tuple[Tensor, Tensor]:
        """Mean loss and accuracy of each client over its `counts` samples."""
        losses = torch.cat(self.losses)
        weight = torch.tensor(self.weight).to(losses)
        client = torch.tensor(self.client, device=losses.device)
        size = torch.tensor(self.size, device=losses.device)
        n = torch.tensor(counts).to(losses)
        zero = torch.zeros_like(n)
        hits = torch.cat(self.hits) * torch.repeat_interleave(weight > 0, size)
        rows = torch.repeat_interleave(client, size)
        loss = zero.index_add(0, client, losses * weight)
        return loss / n, zero.index_add(0, rows, hits.to(n)) / n


def keep(clients: int, stack: Stack, optimizer: torch.optim.Optimizer) -> None:
    """The last clients leave: their rows go from the parameters and the optimizer's state."""
    for name, old in list(stack.params.items()):
        new = torch.nn.Parameter(old.detach()[:clients].clone())
        stack.params[name] = new
        for group in optimizer.param_groups:
            group["params"] = [new if p is old else p for p in group["params"]]
        state = optimizer.state.pop(old, {})
        for key, value in state.items():
            if isinstance(value, Tensor) and value.ndim > 0:
                state[key] = value[:clients].clone()
        if state:
            optimizer.state[new] = state


class Step:
    """One mini-batch of each client of a stack, and the pass over all of them."""

    def __init__(
        self, run: Simulation, stack: Stack, turns: list[Local], parts: list[Tensor]
    ) -> None:
        from fedbook.models.stacked import Layout

        self.run = run
        self.stack = stack
        self.turns = turns
        self.parts = parts
        self.index = torch.cat(parts)
        self.layout = Layout([len(part) for part in parts], self.index.device)
        self.y = run.federation.y[self.index]
        self.x = run.device.images(run.federation.inputs(self.index))
        self.precomputed = {name: t[self.index] for name, t in run.precomputed.items()}
        self.terms = numbered("objective", run.method.objective)
        self._pass()

    def _pass(self) -> None:
        with self.run.device.autocast():
            self.z, self.logits = self.stack.pass_all(self.x, self.precomputed, self.layout)
        self.__dict__.pop("batches", None)

    def again(self) -> Step:
        """The same batches under the parameters as they are now."""
        return Step(self.run, self.stack, self.turns, self.parts)

    @cached_property
    def batches(self) -> list[View]:
        """Each client's own batch, for terms that know nothing of the others."""
        sizes = self.layout.sizes
        asides = {n: t.split(sizes) for n, t in self.stack.asides.items() if n != "groups"}
        pieces = [t.split(sizes) for t in (self.z, self.logits, self.y)]
        views = []
        for k, (z, logits, y) in enumerate(zip(*pieces)):
            own = {name: parts[k] for name, parts in asides.items()}
            views.append(View(self, k, z=z, logits=logits, y=y, asides=own))
        return views

    @property
    def clients(self) -> list[Local]:
        """The turns of the clients that take part in this step."""
        return self.turns[: len(self.parts)]

    def losses(self) -> Tensor:
        """The objective of each client [clients]."""
        total: Any = 0.0
        with self.run.device.autocast():
            for slot, term in self.terms.items():
                if hasattr(term, "together"):
                    total = total + term.together(self, slot)
                else:
                    total = total + self.one_by_one(term, slot)
        return total

    def one_by_one(self, term: Objective, slot: str) -> Tensor:
        """A term that knows one client only, for each of them."""
        values = []
        for view in self.batches:
            sent = view.local.sent.setdefault(slot, {})
            memory = view.local.memory.setdefault(slot, {})
            values.append(term(view.local, view, sent, memory))
        return torch.stack(values)

    def clip_gradient(self, limit: float) -> None:
        """Clip every client's gradient by its own norm."""
        gradients = [p.grad for p in self.stack.params.values() if p.grad is not None]
        factor = (limit / (client_norms(gradients) + 1e-6)).clamp(max=1.0)
        for g in gradients:
            g.mul_(per_client(factor, g))

    def move(self, optimizer: torch.optim.Optimizer) -> None:
        """One step of the optimizer; clients that did not use a parameter keep it as it is."""
        kept = []
        for name, used in self.stack.touched().items():
            p = self.stack.params[name]
            state = {k: v.clone() for k, v in optimizer.state.get(p, {}).items()}
            kept.append((p, used, p.detach().clone(), state))
        optimizer.step()
        with torch.no_grad():
            for p, used, before, state in kept:
                keep = per_client(~used, p)
                p.copy_(torch.where(keep, before, p))
                for key, value in optimizer.state.get(p, {}).items():
                    if isinstance(value, Tensor) and value.ndim > 0:
                        old = state.get(key, torch.zeros_like(value))
                        value.copy_(torch.where(keep, old, value))


class View(Batch):
    """One client's batch as a part of a lock-step."""

    def __init__(
        self, step: Step, k: int, *, z: Tensor, logits: Tensor, y: Tensor, asides: Params
    ) -> None:
        from fedbook.models.stacked import ClientModel

        self._step = step
        self.index = step.parts[k]
        self.y = y
        self.__dict__ |= {"z": z, "logits": logits}
        self.model = ClientModel(step.stack.model, step.stack.of(k), asides)
        self.local = replace(step.turns[k], model=self.model)

    @cached_property
    def x(self) -> Tensor:  # type: ignore[override]
        return self._step.run.device.images(self._step.run.federation.inputs(self.index))

    @cached_property
    def precomputed(self) -> dict[str, Tensor]:  # type: ignore[override]
        return {name: t[self.index] for name, t in self._step.run.precomputed.items()}


def client_norms(tensors: list[Tensor]) -> Tensor:
    """The norm over all tensors [clients, ...] of each client."""
    return torch.stack([t.reshape(len(t), -1).norm(dim=1) for t in tensors]).norm(dim=0)


def per_client(values: Tensor, like: Tensor) -> Tensor:
    """[clients] shaped to multiply a tensor [clients, ...]."""
    return values.view(-1, *[1] * (like.ndim - 1))
