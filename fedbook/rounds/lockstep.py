"""The second engine: the participants of a round advance together, one mini-batch each per step.

Their parameters are stacked, one pass computes the features and logits of all their batches, every
term of the objective sees its own client's batch, and one optimizer moves them all. Clients keep
their own batches and settings, so the results are those of the loop up to rounding. Those with
fewer batches leave when they are done.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedbook.errors import FedbookError
from fedbook.rounds.params import Params, clone
from fedbook.rounds.record import Traffic
from fedbook.rounds.seeds import stream
from fedbook.rounds.stages import Batch, Local, LocalSolver, Objective, Report, numbered

if TYPE_CHECKING:
    from fedbook.models.stacked import Stack
    from fedbook.rounds.loop import Simulation

ENGINES = ("loop", "lockstep", "auto")
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
    if engine == "auto" and how == "vmap" and run.device.torch.type == "cpu":
        return "loop", run._train  # on a CPU vmap costs more than it saves
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


def _definer(stage: LocalSolver, name: str) -> type:
    return next(c for c in type(stage).__mro__ if name in vars(c))


class Lockstep:
    """Trains the participants of a round, `device.together` at a time."""

    def __init__(self, run: Simulation, how: str) -> None:
        self.run = run
        self.how = how

    def __call__(self, reports: list[Report], t: int, traffic: Traffic) -> Iterator[Params]:
        """Each participant's parameters after training, in the order of the reports."""
        run = self.run
        size = run.method.solve.batch_size
        order = sorted(reports, key=lambda r: (-r.size) // size)  # most batches first
        chunk = run.device.together
        found: dict[int, tuple[Local, Outcome]] = {}
        for i in range(0, len(order), chunk):
            found |= self._chunk(order[i : i + chunk], t, traffic)
        for report in reports:
            local, outcome = found.pop(report.id)
            if len(outcome.params) < len(run._live):  # buffers
                run._turn(report, t, "train")
            run.load(outcome.params)
            run.model.train()
            torch.manual_seed(stream(run.seed, "dropout", t, report.id))  # as the loop leaves it
            yield run._end(local, report, (outcome.loss, outcome.acc), traffic)

    def _chunk(
        self, reports: list[Report], t: int, traffic: Traffic
    ) -> dict[int, tuple[Local, Outcome]]:
        run = self.run
        same = not run._kept and not run.method.update.overrides_download()
        trained = [name for name, p in run.model.named_parameters() if p.requires_grad]
        turns: list[Local] = []
        starts: list[Params] = []
        for report in reports:
            turns.append(run._begin(report, t, traffic))
            if not same:
                starts.append(clone({name: run._live[name] for name in trained}))
        if same:
            starts = [{name: turns[0].received[name] for name in trained}] * len(turns)
        run.model.train()
        outcomes = advance(run, self.how, turns, starts)
        return {r.id: pair for r, pair in zip(reports, zip(turns, outcomes))}


@dataclass
class Outcome:
    """What training made of one client: its parameters, and its last epoch's loss and accuracy."""

    params: Params
    loss: Tensor
    acc: Tensor


def schedule(local: Local, solver: LocalSolver) -> Iterator[tuple[Tensor, bool]]:
    """The client's mini-batches of all epochs, and whether one is of the last."""
    for epoch in range(solver.epochs):
        for part in local.parts(solver.batch_size):
            yield part, epoch == solver.epochs - 1


def advance(run: Simulation, how: str, turns: list[Local], starts: list[Params]) -> list[Outcome]:
    """Train clients together, those with the most batches first in the list."""
    from fedbook.models.stacked import Stack

    solver = run.method.solve
    stack = Stack(run.model, starts, how)
    optimizer = solver.build(stack)  # type: ignore[arg-type]
    plans = [schedule(local, solver) for local in turns]
    tally = Tally()
    done: list[Params] = []
    while True:
        parts, last = [], []
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
    means = tally.means([len(local.client.train) for local in turns])
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
        self.model = ClientModel(step.run.model, step.stack.of(k), asides)
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
