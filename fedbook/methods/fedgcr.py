"""FedGCR: prompts customised to a client's type (FedGC), and weights that favour types served badly
(FedGR).

Cheng, Yeh, Chen, Pastor and Chen, "FedGCR: Achieving Performance and Fairness for Federated
Learning with Distinct Client Types via Group Customization and Reweighting", AAAI 2024. FedGC's
model is `models.build("fedgc", federation)`.

    l    = l_CE + lambda_1 l_GC + lambda_2 l_RA                                                  (6)
    l_GC = -log exp(h.H_i / tau) / (exp(h.h_prev / tau) + sum_t exp(h.H_t / tau))                (7)
    l_RA = -log exp(z.z_0 / tau) / (exp(z.z_0 / tau) + exp(z.z_prev / tau))                      (8)
    w_k ~ omega_k (L_k^(1-beta) Ltil_g(k)^beta)^(q+1),   Ltil_i: mean of L over cluster i   (3)
    beta = delta (1 - gamma^(r-1))                                                               (5)

    fedgr  = fedavg.replace(grouping=ClusterClients(), weigh=(BySize(), GroupReweighting()))
    fedgc  = fedavg.replace(grouping=ClusterClients(),
                            objective=(CrossEntropy(), GroupCustomization(), ModelContrast(0.1)))
    fedgcr = fedgc.replace(weigh=(BySize(), GroupReweighting()))

| symbol | here | default | where |
|---|---|---|---|
| T' | `clusters` | the number of types | Table 1, 2, 6 (others in Tables 3, 4, 8, 9) |
| Cluster | `cluster` | "gmm", or "kmeans", "finch" | section 3.2, Table 14 |
| q, delta, gamma | `q`, `delta`, `gamma` | 1, 0.5, 0.5 | section 4.1, Tables 10, 11 |
| lambda_1, lambda_2, tau | `lam1`, `lam2`, `tau` | 0.5, 0.1, 0.5 | section 4.1 |
| eta, M | `lr` of AdamW, `epochs` | 1e-3, 1 | section 4.1; batch 64: the authors' logs |

When things happen. The paper's round r: clients train with H^(r-1) and their own h_prev =
h_k^(r-1), send h_k^r, the server clusters those and weighs by the new groups. So it is here, and
round 1, without H, is l_CE alone. `fresh=True` trains with the H of the same round instead. A
client that was absent when H was made trains with what it can: l_GC needs its group, l_RA its own
previous parameters.

Differs from the paper, each for a reason:
- h.H is the cosine (as in the authors' code); raw products of several hundred numbers over tau =
  0.5 saturate the softmax. `similarity="dot"` is the printed form.
- h_k and L_k are measured at the received model, on all the client's samples: comparable across
  clients. Algorithm 1 takes both from local training, where L adds l_CE to itself.
- L_k is the mean cross-entropy alone. The paper prints the full loss, and a sum over samples.
- The weights are normalised. Algorithm 1 line 9 as printed multiplies the model by their sum.
- z_prev is z of the current batch under the client's previous local parameters (section 3.3;
  Algorithm 1 line 15 would keep z of another batch), without gradient, in eval mode. z_0 likewise
  under the received ones.
- The exponent q + 1 belongs to the objective (3); used on weights it means q = 0, beta = 0 is not
  FedAvg but omega_k L_k. FedAvg is q = -1. `exponent="q"` is the weight the objective's gradient
  has, FedAvg at q = 0.

AdamW runs with weight decay 0. The authors' baselines had torch's default, 0.01.

l_RA is MOON's model contrast, see `moon.py`. `cluster_on="frozen"` is ours: the server groups
clients by the frozen feature GC-Net reads, which training cannot change, and only the centres are
those of h.

What the authors' public code (celinezheng/fedgcr) does otherwise is in `quirks.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.methods.clustering import ByType, ClusterClients, centres, represent
from fedbook.methods.fedavg import fedavg
from fedbook.methods.moon import ModelContrast, check_contrast, contrast
from fedbook.rounds import Batch, BySize, CrossEntropy, Local, Method, Objective, Report, Weigh
from fedbook.rounds.lockstep import Step
from fedbook.rounds.stages import Grouping, State


# -- FedGC -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class GroupCustomization(Objective):
    """lambda_1 l_GC: h towards the centre of the client's group, away from the other centres and
    from the client's own last mean.
    """

    weight: float = 0.5
    tau: float = 0.5
    similarity: str = "cosine"
    fresh: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_contrast(self)

    def init(self, federation: Federation, model: nn.Module) -> State:
        if not hasattr(model, "h"):
            raise FedbookError(
                f"l_GC needs a model with a GC-Net, got {type(model).__name__}",
                'use models.build("fedgc", federation)',
            )
        return {"used": {}, "found": {}}

    def measure(self, local: Local, memory: State) -> State:
        if "h" in memory:
            memory["h_prev"] = memory["h"]
        if "h" in local.report:  # the grouping has measured it
            memory["h"] = local.report["h"]
            return {}
        memory["h"] = represent(local)
        return {"h": memory["h"]}

    def prepare(self, state: State, reports: list[Report]) -> State:
        groups = [r.group for r in reports]
        if None in groups:
            raise FedbookError(
                "l_GC needs groups, and the method has none", "add grouping=ClusterClients()"
            )
        H = centres(torch.stack([r["h"] for r in reports]), groups)  # type: ignore[arg-type]
        found = {"H": H, "group": {r.id: r.group for r in reports}}
        return {"used": found if self.fresh else state["found"], "found": found}

    def send(self, state: State, id: int) -> State:
        used = state["used"]
        if not used or id not in used["group"]:
            return {}
        return {"H": used["H"], "group": used["group"][id]}

    def strength(self, local: Local) -> float:
        """lambda_1 in this round."""
        return self.weight

    def __call__(self, local: Local, batch: Batch, sent: State, memory: State) -> Tensor:
        if not sent or "h_prev" not in memory:
            return torch.zeros((), device=batch.y.device)
        h = batch.model.h(batch.x, **batch.precomputed)
        candidates = torch.cat([sent["H"], memory["h_prev"][None]])
        l_gc = contrast(
            h, candidates, target=sent["group"], tau=self.tau, similarity=self.similarity
        )  # (7)
        return self.strength(local) * l_gc

    def together(self, step: Step, slot: str) -> Tensor:
        sent = [local.sent[slot] for local in step.clients]
        kept = [local.memory[slot] for local in step.clients]
        if not all(sent) or not all("h_prev" in memory for memory in kept):
            return step.one_by_one(self, slot)
        h_prev = torch.stack([memory["h_prev"] for memory in kept])
        H = sent[0]["H"].expand(len(sent), -1, -1)
        candidates = torch.cat([H, h_prev[:, None]], 1)[step.layout.owner]
        group = torch.tensor([s["group"] for s in sent], device=step.y.device)[step.layout.owner]
        h = step.stack.asides["h"]
        l_gc = contrast(
            h, candidates, target=group, tau=self.tau, similarity=self.similarity, reduction="none"
        )
        return self.strength(step.clients[0]) * step.layout.mean(l_gc)


# -- FedGR -----------------------------------------------------------------------------------------
def group_mean(values: Tensor, group: Tensor, weight: Tensor | None = None) -> Tensor:
    """For every client the mean of `values` over its group (Ltil)."""
    same = (group[:, None] == group[None]) * (torch.ones_like(values) if weight is None else weight)
    return same @ values / same.sum(1)


@dataclass(frozen=True)
class GroupReweighting(Weigh):
    """A factor that favours clients, and groups of clients, with a high loss."""

    q: float = 1.0
    delta: float = 0.5
    gamma: float = 0.5
    exponent: str = "q+1"
    loss: str | None = field(default="received", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.exponent not in ("q+1", "q"):
            raise FedbookError(
                f"exponent must be 'q+1' or 'q', got {self.exponent!r}", "the paper prints q+1"
            )
        for name in ("delta", "gamma"):
            if not 0 <= getattr(self, name) <= 1:
                raise FedbookError(
                    f"{name} must lie in [0, 1], got {getattr(self, name)}", "the paper uses 0.5"
                )

    def init(self, federation: Federation, model: nn.Module) -> State:
        return {"round": 0}

    def beta(self, r: int) -> float:
        return self.delta * (1 - self.gamma ** (r - 1))  # (5)

    def client_losses(self, reports: list[Report], r: int) -> Tensor:
        """L_k."""
        return self.losses(reports)

    def group_losses(self, L: Tensor, reports: list[Report]) -> Tensor:
        """Ltil of each client's group."""
        return group_mean(L, torch.tensor([r.group for r in reports]))

    def __call__(self, state: State, reports: list[Report]) -> tuple[Tensor, State]:
        r = state["round"] + 1
        beta = self.beta(r)
        power = self.q + 1 if self.exponent == "q+1" else self.q
        L = self.client_losses(reports, r)
        floored = L.clamp(min=1e-10)
        Ltil = self.group_losses(floored, reports)
        factor = power * ((1 - beta) * floored.log() + beta * Ltil.log())  # (3), without omega_k
        return factor, {"round": r, "log": {"beta": beta, "loss": L.tolist()}}


# -- both ------------------------------------------------------------------------------------------
def fedgcr(
    clusters: int | None = None,
    cluster: str = "gmm",
    normalise: bool = True,
    cluster_on: str = "h",
    q: float = 1.0,
    delta: float = 0.5,
    gamma: float = 0.5,
    lam1: float = 0.5,
    lam2: float = 0.1,
    tau: float = 0.5,
    similarity: str = "cosine",
    fresh: bool = False,
    exponent: str = "q+1",
    customization: bool = True,
    reweighting: bool = True,
    lr: float = 1e-3,
    batch_size: int = 64,
    optimizer: str = "adamw",
    **options: Any,
) -> Method:
    """FedGC and FedGR, or one of them.

    `customization=False` leaves FedGR (any model), `reweighting=False` FedGC. `cluster_on` is what
    the server groups clients by: "h", the "frozen" feature, or, as an oracle, the true "types".
    `options` are FedAvg's.
    """
    grouping: Grouping = ByType()
    if cluster_on != "types":
        grouping = ClusterClients(
            clusters=clusters, cluster=cluster, normalise=normalise, cluster_on=cluster_on
        )
    method = fedavg(lr=lr, batch_size=batch_size, optimizer=optimizer, **options).replace(
        name="fedgcr", grouping=grouping
    )
    if customization:
        l_gc = GroupCustomization(lam1, tau, similarity, fresh)
        l_ra = ModelContrast(lam2, tau, similarity=similarity)  # (8)
        method = method.replace(objective=(CrossEntropy(), l_gc, l_ra))  # (6)
    if reweighting:
        factor = GroupReweighting(q, delta, gamma, exponent)
        method = method.replace(weigh=(BySize(), factor))
    return method
