"""Per-FedAvg: a global model from which one gradient step on a client's own data leads to a good
personal one.

Fallah, Mokhtari and Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach", NeurIPS 2020.

    min_w (1/n) sum_i f_i(w - alpha grad f_i(w))
    w~ = w - alpha grad f_i(w; D)                                                                (a)
    w <- w - beta (I - alpha hess f_i(w; D'')) grad f_i(w~; D')           exact                  (b)
    w <- w - beta grad f_i(w~; D')                                 first order                   (c)
    personal model: one step of size alpha from w, on the client's training data                 (d)

| symbol | here | default | where |
|---|---|---|---|
| alpha | `alpha` | 0.01 | our choice; GRP-FED prints none, 0.005 in the code of pFedMe's authors |
| beta | `lr` | FedAvg's | Algorithm 1 |
| (b) or (c) | `exact` | False | section 4, the two variants; GRP-FED does not say which |
| steps of (d) | `adapt_steps` | 1 | section 2 |

alpha = 0 is FedAvg with step beta, bit for bit: D' runs through the client's data as FedAvg's
batches do, while D and D'' are drawn anew for each step, at random from all of it.

Differs from the paper: the outer step goes through the chosen optimiser, whose momentum never
touches (a). The server weighs by n_k. Running statistics (BatchNorm) come from the pass over D'
alone. Differs from public code: one adapts on batches of the *test* set; here (d) never sees a test
sample. Another halves a double batch into D and D', so that half of the data serves only (a).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any

import torch
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.methods.fedavg import fedavg
from fedbook.rounds import Batch, Local, LocalSolver, Method, Personal
from fedbook.rounds.stages import State


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def gradient(loss: Tensor, params: list[nn.Parameter], **options: Any) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, params, allow_unused=True, materialize_grads=True, **options)


@torch.no_grad()
def move(params: list[nn.Parameter], directions: tuple[Tensor, ...], step: float) -> None:
    for p, d in zip(params, directions):
        p.add_(d, alpha=-step)


@contextmanager
def statistics_kept(model: nn.Module) -> Iterator[None]:
    """Passes inside leave the buffers as they were."""
    before = [(b, b.clone()) for b in model.buffers()]
    yield
    with torch.no_grad():
        for buffer, value in before:
            buffer.copy_(value)


@dataclass(frozen=True, kw_only=True)
class MetaSolver(LocalSolver):
    alpha: float = 0.01
    exact: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.alpha >= 0:
            raise FedbookError(
                f"alpha must be at least 0, got {self.alpha}", "0 is FedAvg; try 0.01"
            )

    def draw(self, local: Local) -> Batch:
        """A batch at random; not from the stream that shuffles D'."""
        index = local.client.train
        return Batch(local, index[torch.randperm(len(index))[: self.batch_size].to(index.device)])

    def step(self, local: Local, optimizer: torch.optim.Optimizer, batch: Batch) -> Tensor:
        params = trained(local.model)
        w = [p.detach().clone() for p in params]
        with statistics_kept(local.model):
            move(params, gradient(local.loss(self.draw(local)), params), self.alpha)  # (a)
        loss = local.loss(batch)
        g = gradient(loss, params)  # (c)
        with torch.no_grad():
            for p, value in zip(params, w):
                p.copy_(value)
        if self.exact:
            with statistics_kept(local.model):
                slope = gradient(local.loss(self.draw(local)), params, create_graph=True)
                bent = torch.autograd.grad(
                    slope, params, g, allow_unused=True, materialize_grads=True
                )
            g = tuple(a - self.alpha * b for a, b in zip(g, bent))  # (b)
        for p, value in zip(params, g):
            p.grad = value
        self.clip_gradient(local.model)
        optimizer.step()
        return loss.detach()


@dataclass(frozen=True, kw_only=True)
class Adapted(Personal):
    alpha: float = 0.01
    adapt_steps: int = 1
    batch_size: int = 32

    def load(self, local: Local, sent: State, memory: State) -> None:
        """(d), on batches of the client's training samples."""
        params = trained(local.model)
        local.model.train()
        epochs = chain.from_iterable(local.batches(self.batch_size) for _ in repeat(None))
        for batch in islice(epochs, self.adapt_steps):
            move(params, gradient(local.loss(batch), params), self.alpha)


def per_fedavg(
    alpha: float = 0.01, exact: bool = False, adapt_steps: int = 1, **options: Any
) -> Method:
    """Per-FedAvg with inner step `alpha`, (b) if `exact` else (c), `adapt_steps` of (d); `options`
    are FedAvg's.
    """
    base = fedavg(**options)
    solve = MetaSolver(**vars(base.solve), alpha=alpha, exact=exact)
    return base.replace(
        name="per_fedavg",
        solve=solve,
        personal=Adapted(alpha=alpha, adapt_steps=adapt_steps, batch_size=base.solve.batch_size),
    )
