"""pFedHN: a network on the server makes every client's parameters from a vector that stands for the
client.

Shamsian, Navon, Fetaya and Chechik, "Personalized Federated Learning using Hypernetworks", ICML
2021; for prompts as in FedTP (Li et al. 2022), the baseline of FGPT (arXiv:2310.18285v1, section
4.2).

    theta_i = H(v_i; phi),     D_i = theta_i - theta_i'  after local training from theta_i       (a)
    phi <- phi - lr (1/|S_t|) sum_{i in S_t} (d theta_i / d phi)^T D_i                           (b)
    v_i <- v_i - lr (d theta_i / d v_i)^T D_i                                                    (c)
    [W_C] <- sum_{i in S_t} alpha_i [W_C]_i,   alpha_i = N_i / sum_{j in S_t} N_j

| symbol | here | default | where |
|---|---|---|---|
| theta | `generate`, patterns of parameter names | the prompts | FedTP; FGPT does not say |
| H | `width`, `depth` | 100, 3 | the authors' code: linear, 3 times (ReLU, linear), linear output |
| dimension of v | `embedding` | 1 + M / 4 | the authors' code |
| optimiser of phi and v | `server_lr`, `server_momentum`, ... | 0.01, 0.9, 1e-3, 50 | the same |

phi, the v_i and their momenta stay on the server; theta_i goes down, theta_i' comes up. Clients are
tested with their own theta_i and the shared head, so records have `personal_*` scores only. A
client that was never drawn has the v_i it began with. The global model holds H(mean of v), for
clients of another federation.

Differs from the paper: it takes one client per step and trains on 50 batches. Here all participants
of a round enter one step, by the mean of their gradients (b), each v_i by its own (c), and local
training is FGPT's. Everything not generated is averaged (the paper generates all:
`generate=("*",)`). H's last bias begins at the model's own prompts, so that all clients start near
where VPT does. v_i, momentum and decay of clients not drawn do not move; in the authors' code they
do. H begins the same in every run (`seed`).
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.methods.pt_fedavg import pt_fedavg
from fedbook.rounds import Method, Personal, Report, Update
from fedbook.rounds.params import Params
from fedbook.rounds.stages import State


@dataclass(frozen=True, kw_only=True)
class HyperNetwork(Update):
    """H(v; phi): the server generates each client's parameters."""

    uploads: bool = True
    generate: tuple[str, ...] = ("prompts.*",)
    embedding: int | None = None
    width: int = 100
    depth: int = 3
    lr: float = 0.01
    embedding_lr: float | None = None
    momentum: float = 0.9
    weight_decay: float = 1e-3
    clip: float = 50.0
    seed: int = 0

    def init(self, federation: Federation, model: nn.Module) -> State:
        made = {
            n: p.detach()
            for n, p in model.named_parameters()
            if p.requires_grad and any(fnmatch.fnmatch(n, pattern) for pattern in self.generate)
        }
        if not made:
            raise FedbookError(
                f"no trained parameter of {type(model).__name__} matches {self.generate}",
                'use a model with prompts, or generate=("*",)',
            )
        start = flatten(made, list(made))
        v = self.embedding or 1 + len(federation) // 4
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            sizes = [
                (v, self.width),
                *[(self.width, self.width)] * self.depth,
                (self.width, len(start)),
            ]
            layers = [nn.Linear(*size) for size in sizes]
            clients = torch.randn(len(federation), v)
        phi = {
            f"{i}.{n}": p.detach().to(start.device)
            for i, m in enumerate(layers)
            for n, p in m.named_parameters()
        }
        phi[f"{self.depth + 1}.bias"] = start
        return {
            "ids": [c.id for c in federation.clients],
            "shapes": {n: list(p.shape) for n, p in made.items()},
            "phi": phi,
            "v": clients.to(start.device),
            "moments": {n: torch.zeros_like(p) for n, p in phi.items()},
            "v_moments": torch.zeros_like(clients, device=start.device),
        }

    def theta(self, phi: Params, v: Tensor) -> Tensor:
        """H(v; phi) [k, size] for k clients."""
        for i in range(self.depth + 2):
            v = F.linear(
                F.relu(v) if 1 <= i <= self.depth else v, phi[f"{i}.weight"], phi[f"{i}.bias"]
            )
        return v

    def download(self, state: State, params: Params, id: int) -> Params:
        v = state["v"][state["ids"].index(id)]
        return params | shape(self.theta(state["phi"], v), state["shapes"])

    def __call__(
        self, state: State, server: Params, mean: Params, reports: list[Report]
    ) -> tuple[Params, State]:
        rows = [state["ids"].index(r.id) for r in reports]
        phi = {n: p.clone().requires_grad_() for n, p in state["phi"].items()}
        v = state["v"][rows].requires_grad_()
        with torch.enable_grad():
            theta = self.theta(phi, v)
        after = torch.stack([flatten(r["upload"], list(state["shapes"])) for r in reports])
        D = theta.detach() - after  # (a)
        *of_phi, of_v = torch.autograd.grad(theta, [*phi.values(), v], D)
        gradients = [g / len(reports) for g in of_phi] + [of_v]
        norm = torch.stack([g.norm() for g in gradients]).norm()
        factor = (self.clip / (norm + 1e-6)).clamp(max=1.0)
        new: dict[str, Params] = {"phi": {}, "moments": {}}
        for (n, p), g in zip(state["phi"].items(), gradients):
            new["phi"][n], new["moments"][n] = self.step(
                p, g * factor, state["moments"][n], self.lr
            )  # (b)
        vectors = state["v"].clone()
        moments = state["v_moments"].clone()
        rate = self.lr if self.embedding_lr is None else self.embedding_lr
        vectors[rows], moments[rows] = self.step(
            vectors[rows], of_v * factor, moments[rows], rate
        )  # (c)
        state = {**state, **new, "v": vectors, "v_moments": moments}
        return mean | shape(self.theta(state["phi"], vectors.mean(0)), state["shapes"]), state

    def step(self, w: Tensor, gradient: Tensor, moment: Tensor, lr: float) -> tuple[Tensor, Tensor]:
        """SGD with momentum and weight decay."""
        moment = self.momentum * moment + gradient + self.weight_decay * w
        return w - lr * moment, moment


def flatten(params: Params, names: list[str]) -> Tensor:
    return torch.cat([params[n].flatten() for n in names])


def shape(flat: Tensor, shapes: dict[str, list[int]]) -> Params:
    """The parameters of which `flat` is made."""
    parts = flat.split([torch.Size(s).numel() for s in shapes.values()])
    return {n: part.view(s) for (n, s), part in zip(shapes.items(), parts)}


@dataclass(frozen=True)
class Generated(Personal):
    """A client's model is what it would receive."""

    alone: bool = field(default=True, kw_only=True)


def pfedhn(
    generate: tuple[str, ...] = ("prompts.*",),
    embedding: int | None = None,
    width: int = 100,
    depth: int = 3,
    server_lr: float = 0.01,
    embedding_lr: float | None = None,
    server_momentum: float = 0.9,
    server_decay: float = 1e-3,
    clip: float = 50.0,
    seed: int = 0,
    **options: Any,
) -> Method:
    """pFedHN for the parameters that match `generate`; `options` are PT-FedAvg's."""
    update = HyperNetwork(
        generate=tuple(generate),
        embedding=embedding,
        width=width,
        depth=depth,
        lr=server_lr,
        embedding_lr=embedding_lr,
        momentum=server_momentum,
        weight_decay=server_decay,
        clip=clip,
        seed=seed,
    )
    return pt_fedavg(**options).replace(name="pfedhn", update=update, personal=Generated())
