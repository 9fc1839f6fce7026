"""pFedMe: each client's personal model stays near a local copy of the global one, which follows it
at a distance.

Dinh, Tran and Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020.

    min_w (1/N) sum_i F_i(w),    F_i(w) = min_theta f_i(theta) + (lambda/2) ||theta - w||^2
    theta_i ~ argmin f_i(theta; batch) + (lambda/2) ||theta - w_i||^2,  by K gradient steps      (a)
    w_i <- w_i - eta lambda (w_i - theta_i),  for every batch                                    (b)
    w   <- (1 - beta) w + beta sum_{i in S_t} p_i w_i                                            (c)
    personal model: theta_i                                                                      (d)

| symbol | here | default | where |
|---|---|---|---|
| lambda | `lam` | 15 | the authors' code; GRP-FED prints none of these |
| K | `steps` | 5 | the authors' code |
| step of (a) | `personal_lr` | 0.09 | the authors' code |
| eta | `lr` | 0.005 | the authors' code; eta lambda must not exceed 1 |
| beta | `beta` | 1.0 | the authors' code |
| R | `epochs` | FedAvg's | local rounds; one batch each in the authors' code |

(a) starts from theta_i of the batch before (from w_i at the beginning of a round) and goes through
the chosen optimiser with step `personal_lr`; with plain SGD it is exactly the gradient step.

Differs from the authors' code: all its clients train in every round and only the sampled ones are
averaged; here only the sampled train, and one that never was is tested with w. Its inner optimiser
adds an L2 term of 0.001; here `weight_decay` does, 0 by default. p_i = n_i / sum n as there; the
paper has 1 / |S_t|. Its personal test runs w_i; here, as the paper says, theta_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.methods.fedavg import fedavg
from fedbook.rounds import Batch, Local, LocalSolver, Method, Personal, Report, Update
from fedbook.rounds.params import Params, clone, copy_into
from fedbook.rounds.stages import State


@dataclass(frozen=True, kw_only=True)
class MoreauEnvelope(LocalSolver):
    """Trains theta in the resident model, w beside it; at the end w is what travels and theta what
    stays.
    """

    lam: float = 15.0
    steps: int = 5
    personal_lr: float = 0.09

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (
            self.lam > 0
            and self.personal_lr > 0
            and isinstance(self.steps, int)
            and self.steps >= 1
        ):
            raise FedbookError(
                f"pFedMe needs lam > 0, personal_lr > 0, steps >= 1; got {self.lam}, "
                f"{self.personal_lr}, {self.steps}",
                "try 15, 0.09, 5",
            )
        if self.lr * self.lam > 1:
            raise FedbookError(
                f"lr * lam = {self.lr * self.lam:g} lets w jump past theta",
                f"use lr of at most {1 / self.lam:g}",
            )

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer = super().build(model)
        for group in optimizer.param_groups:
            group["lr"] = self.personal_lr
        return optimizer

    def begin(self, local: Local, sent: State, memory: State) -> None:
        memory["w"] = clone(local.trained())  # type: ignore[arg-type]

    def step(self, local: Local, optimizer: torch.optim.Optimizer, batch: Batch) -> Tensor:
        w = local.memory["solve"]["w"]
        theta = {n: p for n, p in local.model.named_parameters() if n in w}
        first: Tensor | None = None
        for _ in range(self.steps):  # (a)
            loss = local.loss(batch if first is None else Batch(local, batch.index))
            first = loss.detach() if first is None else first
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            for n, p in theta.items():
                pull = self.lam * (p.detach() - w[n])
                p.grad = pull if p.grad is None else p.grad + pull
            self.clip_gradient(local.model)
            optimizer.step()
        for n, p in theta.items():
            w[n] -= self.lr * self.lam * (w[n] - p.detach())  # (b)
        assert first is not None
        return first

    def end(self, local: Local, sent: State, memory: State) -> State:
        here = local.model.state_dict()
        memory["theta"] = clone({n: here[n] for n in local.received})
        copy_into(here, memory.pop("w"))
        return {}


@dataclass(frozen=True)
class Envelope(Personal):
    def load(self, local: Local, sent: State, memory: State) -> None:
        copy_into(local.model.state_dict(), local.memory.get("solve", {}).get("theta", {}))  # (d)


@dataclass(frozen=True)
class Mix(Update):
    beta: float = 1.0

    def __call__(
        self, state: State, server: Params, mean: Params, reports: list[Report]
    ) -> tuple[Params, State]:
        if self.beta == 1:
            return mean, state
        mixed = {
            n: torch.lerp(w, mean[n], self.beta) if w.is_floating_point() else mean[n]
            for n, w in server.items()
        }
        return mixed, state  # (c)


def pfedme(
    lam: float = 15.0,
    steps: int = 5,
    personal_lr: float = 0.09,
    beta: float = 1.0,
    lr: float = 0.005,
    **options: Any,
) -> Method:
    """pFedMe with `lam`, K = `steps` of size `personal_lr`, and `beta` at the server; `options` are
    FedAvg's.
    """
    base = fedavg(lr=lr, **options)
    solve = MoreauEnvelope(**vars(base.solve), lam=lam, steps=steps, personal_lr=personal_lr)
    return base.replace(name="pfedme", solve=solve, update=Mix(beta), personal=Envelope())
