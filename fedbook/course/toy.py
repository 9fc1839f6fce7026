"""A round on made-up clients: numbers small enough to check by hand, and one's own for every
student.

Client k of the toy has n_k samples and the loss F_k(w) = h_k (w - best_k)^2 / 2 of one number w.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.rounds import Batch, Local, Method, Objective, Report, simulate
from fedbook.rounds.stages import State
from fedbook.rounds.weights import normalise

Numbers = Sequence[float] | np.ndarray


def numbers(student: str, assignment: str) -> np.random.Generator:
    """The student's own source of numbers: the same name and assignment give the same numbers."""
    name = " ".join(str(student or "").lower().split())
    if not name:
        raise FedbookError("write your name first", 'STUDENT = "ada" in the first cell of code')
    digest = hashlib.sha256(f"{assignment}/{name}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


# -- what each client counts -----------------------------------------------------------------------
def weigh(
    method: Method,
    sizes: Numbers,
    losses: Numbers,
    groups: Sequence[int] | np.ndarray | None = None,
    *,
    rounds: int = 1,
) -> np.ndarray:
    """What the library's method lets each client count in the last of `rounds` equal rounds, for
    clients with these numbers of samples, losses at the received model, and groups.
    """
    reports = _reports(sizes, losses, groups)
    states = _begin(method, sizes)
    for _ in range(rounds):
        weights, states = _weights(method, states, reports)
    return weights


def _reports(sizes: Numbers, losses: Numbers, groups: Any = None) -> list[Report]:
    members = [None] * len(sizes) if groups is None else [int(g) for g in groups]
    rows = enumerate(zip(sizes, losses, members))
    return [Report(id=k, size=int(n), loss=float(F), group=g) for k, (n, F, g) in rows]


def _begin(method: Method, sizes: Numbers) -> list[State]:
    return [stage.init(_federation(sizes), One()) for stage in method.weigh]


def _weights(
    method: Method, states: list[State], reports: list[Report]
) -> tuple[np.ndarray, list[State]]:
    scores, after = zip(*(stage(s, reports) for stage, s in zip(method.weigh, states)))
    return np.array(normalise(sum(scores), [r.id for r in reports])), list(after)


# -- one number, many parabolas --------------------------------------------------------------------
class One(nn.Module):
    """A model of a single number w."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self.head = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.head.weight, start)

    def embed(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x))


@dataclass(frozen=True)
class Parabola(Objective):
    """F_k(w) = h_k (w - best_k)^2 / 2."""

    curvature: tuple[float, ...] = ()
    best: tuple[float, ...] = ()

    def __call__(self, local: Local, batch: Batch, sent: State, memory: State) -> Tensor:
        k = local.client.id
        w = batch.logits.mean()  # all samples are 1, so that the output is w
        return 0.5 * self.curvature[k] * (w - self.best[k]) ** 2


def _federation(sizes: Numbers) -> Federation:
    return Federation.from_arrays(
        [{"train": (np.ones((int(n), 1), "float32"), np.zeros(int(n), int))} for n in sizes]
    )


def train(
    method: Method, sizes: Numbers, curvature: Numbers, best: Numbers, *, rounds: int
) -> float:
    """w after the library's rounds from w = 0; one local epoch is one step on all samples."""
    parabola = Parabola(tuple(map(float, curvature)), tuple(map(float, best)))
    method = method.replace(objective=(parabola,))
    if method.solve.batch_size < max(sizes):
        raise FedbookError("an epoch of the toy is one step", "give the method batch_size=1000")
    run = simulate(
        method, _federation(sizes), One(), rounds, evaluate_every=rounds, quiet=True, engine="loop"
    ).run()
    return float(run.model.head.weight.detach())  # type: ignore[union-attr, operator]


def play(
    method: Method, sizes: Numbers, curvature: Numbers, best: Numbers, *, rounds: int
) -> tuple[list[float], np.ndarray, list[State]]:
    """(w after every round, last weights, last states) of rounds with one gradient step per client
    and the library's weigh and update stages: for methods that look at the losses, which here are
    the parabolas.
    """
    h = np.asarray(curvature, float)
    target = np.asarray(best, float)
    eta = method.solve.lr
    w = 0.0
    path = []
    states = _begin(method, sizes)
    moved = method.update.init(_federation(sizes), One())
    for _ in range(rounds):
        reports = _reports(sizes, h * (w - target) ** 2 / 2)
        local = w - eta * h * (w - target)
        for r, there in zip(reports, local):
            r.values["move"] = (w - there) ** 2 / eta
        weights, states = _weights(method, states, reports)
        name = "head.weight"
        server = {name: torch.tensor([[w]], dtype=torch.float64)}
        mean = {name: torch.tensor([[weights @ local]], dtype=torch.float64)}
        after, moved = method.update(moved, server, mean, reports)
        w = float(after[name])
        path.append(w)
    return path, weights, states
