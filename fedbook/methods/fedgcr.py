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

    fedgr  = fedavg.replace(weigh=GroupReweighting(clusters=5))
    fedgc  = fedavg.replace(objective=(CrossEntropy(), GroupCustomization(), ModelContrast()))
    fedgcr = fedgc.replace(weigh=GroupReweighting(clusters=5))

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
- The weights are normalised. Algorithm 1 line 9 as printed multiplies the model by their sum.
- z_prev is z of the current batch under the client's previous local parameters (section 3.3;
  Algorithm 1 line 15 would keep z of another batch), without gradient, in eval mode. z_0 likewise
  under the received ones.
- The exponent q + 1 belongs to the objective (3); used on weights it means q = 0, beta = 0 is not
  FedAvg but omega_k L_k. FedAvg is q = -1. `exponent="q"` is the weight the objective's gradient
  has, FedAvg at q = 0.

`cluster_on="frozen"` is ours: the server groups clients by the frozen feature GC-Net reads, which
training cannot change, and only the centres are those of h.

`preset="as_published"` switches on what the authors' public code does otherwise, all of `QUIRKS`;
single ones by `quirks=("older_z0", ...)`. Two more are options of the model, see `PUBLISHED_MODEL`.
In their runs FedAvg and q-FFL had 6 prompts (`prompts=6`), all others 4, and Harmo-FL and FedSAM
ten times the learning rate of the other baselines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.methods.clustering import Grouping
from fedbook.methods.fedavg import fedavg
from fedbook.rounds import Batch, CrossEntropy, Local, LocalSolver, Method, Objective, Report, Weigh
from fedbook.rounds.stages import Params, State

QUIRKS = {
    "late_beta": (
        "gamma = 0.9 and exponent r instead of r - 1: beta starts at 0.05 and rises slowly"
    ),
    "lambda_schedule": (
        "lambda_1 = 0.1 (0.5 + 0.5 r/R), at most 0.1 instead of 0.5; lambda_2 = 0.05"
    ),
    "no_temperature": "l_RA without temperature (tau = 1)",
    "quantised_loss": "L_k rounded to 100 / int(100 / L_k)",
    "first_loss": "L_k = 1 in round 1, so its weights are omega_k",
    "three_batches": "h_k measured on three mini-batches instead of all samples",
    "weighted_cluster_loss": "the cluster's loss is weighted by data size",
    "full_covariance": (
        "GMM with full covariance, one start, on vectors as they come, absolute variance floor"
    ),
    "older_z0": "z_0 from the global model one round older than the received one",
    "noisy_references": "z_0 and z_prev in train mode (dropout, tiled prompts)",
    "prompts_alone": "round 1 adds the cross-entropy of the global prompts without h",
    "kept_moments": "each client keeps Adam's moments from round to round",
    "parameter_groups": (
        "prompts at ten times lr, weight decay 1e-5 / lr / 1e-2 for prompts / GC-Net / head"
    ),
}
PUBLISHED_MODEL = {"tiled": True, "dropout": 0.1}


# -- FedGC's losses --------------------------------------------------------------------------------
def contrast(
    x: Tensor, candidates: Tensor, target: int, tau: float, similarity: str = "cosine"
) -> Tensor:
    """-log softmax(x.candidates / tau)[target], mean over the batch; candidates [M, d], or [B, M,
    d] for each x.
    """
    candidates = candidates.expand(len(x), -1, -1)
    if similarity == "cosine":
        s = F.cosine_similarity(x[:, None], candidates, dim=2)
    else:
        s = (x[:, None] * candidates).sum(2)
    return F.cross_entropy(s / tau, torch.full((len(x),), target, device=x.device))


def _positive(stage: Any) -> None:
    if not stage.tau > 0:
        raise FedbookError(f"tau must be positive, got {stage.tau}", "try tau=0.5")
    if stage.similarity not in ("cosine", "dot"):
        raise FedbookError(f"unknown similarity {stage.similarity!r}", "use 'cosine' or 'dot'")


def _nothing(batch: Batch) -> Tensor:
    return torch.zeros((), device=batch.y.device)


@dataclass(frozen=True)
class GroupCustomization(Grouping, Objective):
    """lambda_1 l_GC: h towards the centre of the client's group, away from the others and from its
    own last mean.
    """

    weight: float = 0.5
    tau: float = 0.5
    similarity: str = "cosine"
    fresh: bool = False
    ramp: int | None = None  # R: lambda_1 rises from half its value to all of it in R rounds

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self)

    def init(self, federation: Federation, model: nn.Module) -> State:
        if not hasattr(model, "h"):
            raise FedbookError(
                f"l_GC needs a model with a GC-Net, got {type(model).__name__}",
                'use models.build("fedgc", federation)',
            )
        return {**super().init(federation, model), "used": {}, "found": {}}

    def measure(self, local: Local, memory: State) -> State:
        if "h" in memory:
            memory["h_prev"] = memory["h"]
        sent = self.describe_client(local)
        memory["h"] = sent["h"]
        return sent

    def prepare(self, state: State, reports: list[Report]) -> State:
        labels, centres, log = self.group(state, reports)
        found = {"H": centres, "cluster": {r.id: g for r, g in zip(reports, labels)}}
        return {
            **state,
            "used": found if self.fresh else state["found"],
            "found": found,
            "log": log,
        }

    def send(self, state: State, id: int) -> State:
        used = state["used"]
        return (
            {"H": used["H"], "cluster": used["cluster"][id]}
            if used and id in used["cluster"]
            else {}
        )

    def __call__(self, local: Local, batch: Batch, sent: State, memory: State) -> Tensor:
        if not sent or "h_prev" not in memory:
            return _nothing(batch)
        h = batch.model.h(batch.x, **batch.extra)
        candidates = torch.cat([sent["H"], memory["h_prev"][None]])
        weight = (
            self.weight * (0.5 + 0.5 * min(local.round / self.ramp, 1))
            if self.ramp
            else self.weight
        )
        return weight * contrast(h, candidates, sent["cluster"], self.tau, self.similarity)  # (7)


class _Features(nn.Module):
    """`embed` as a forward, so that `functional_call` can run it with other parameters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model

    def forward(self, x: Tensor, **extra: Tensor) -> Tensor:
        return self.model.embed(x, **extra)


def _features(params: Params) -> Params:
    """What z depends on: everything but the head."""
    return {n: t for n, t in params.items() if not n.startswith("head.")}


@dataclass(frozen=True)
class RepresentationAlignment(Objective):
    """lambda_2 l_RA: z towards what the received model makes of the image, away from the client's
    last local model.
    """

    weight: float = 0.1
    tau: float = 0.5
    similarity: str = "cosine"
    older: bool = False
    noisy: bool = False

    def __post_init__(self) -> None:
        _positive(self)

    @torch.no_grad()
    def reference(self, params: Params, batch: Batch) -> Tensor:
        """z of the batch under other parameters than the model's own."""
        model, training = batch.model, batch.model.training
        model.train(self.noisy and training)
        named = {f"model.{n}": t for n, t in _features(params).items()}
        z = functional_call(_Features(model), named, (batch.x,), batch.extra)
        model.train(training)
        return z

    def begin(self, local: Local, sent: State, memory: State) -> None:
        """Neither reference changes while the client trains: z_0 and z_prev once per image and
        round.
        """
        if "previous" not in memory:
            return
        local.model.train()
        index, z = local.client.train.sort().values, []
        for part in index.split(256):
            batch = Batch(local, part)
            with local.device.autocast():
                z_0 = self.reference(memory["received"] if self.older else local.received, batch)
                z.append(torch.stack([z_0, self.reference(memory["previous"], batch)], 1))
        memory |= {"index": index, "z": torch.cat(z)}

    def __call__(self, local: Local, batch: Batch, sent: State, memory: State) -> Tensor:
        if "z" not in memory:
            return _nothing(batch)
        z = memory["z"][torch.searchsorted(memory["index"], batch.index)]
        return self.weight * contrast(batch.z, z, 0, self.tau, self.similarity)  # (8)

    def end(self, local: Local, sent: State, memory: State) -> State:
        own = {n: p.detach().clone() for n, p in local.model.named_parameters() if p.requires_grad}
        memory["previous"] = _features(own)
        for name in ("z", "index"):
            memory.pop(name, None)
        if self.older:
            memory["received"] = {n: t.clone() for n, t in _features(local.received).items()}
        return {}


@dataclass(frozen=True)
class PromptsAlone(Objective):
    """The cross-entropy of the global prompts without h, in round 1 only."""

    def __call__(self, local: Local, batch: Batch, sent: State, memory: State) -> Tensor:
        if local.round > 1:
            return _nothing(batch)
        z = batch.model.embed(batch.x, **batch.extra, h=torch.zeros_like(batch.z))
        return F.cross_entropy(batch.model.head(z), batch.y)


# -- FedGR -----------------------------------------------------------------------------------------
def group_scores(
    loss: Tensor, size: Tensor, group: Tensor, beta: float, power: float, weighted: bool = False
) -> Tensor:
    """log omega_k + power ((1 - beta) log L_k + beta log Ltil_g(k)), up to a constant (3)."""
    loss = loss.double().clamp(min=1e-10)
    same = (group[:, None] == group[None]) * (size.double() if weighted else torch.ones_like(loss))
    shared = same @ loss / same.sum(1)  # Ltil
    return size.double().log() + power * ((1 - beta) * loss.log() + beta * shared.log())


@dataclass(frozen=True)
class GroupReweighting(Grouping, Weigh):
    """More weight for clients and for clusters of clients with a high loss at the received model.

    Beside `GroupCustomization` the clients send one h_k, measured as that term says, and both
    stages read it.
    """

    needs_loss: ClassVar[bool] = True

    q: float = 1.0
    delta: float = 0.5
    gamma: float = 0.5
    exponent: str = "q+1"
    late_beta: bool = False
    quantised: bool = False
    weighted: bool = False
    first_loss: float | None = None

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
        return {**super().init(federation, model), "round": 0}

    def measure(self, local: Local, memory: State) -> State:
        sent_already = any(isinstance(term, Grouping) for term in local.terms)
        return {} if sent_already else self.describe_client(local)

    def beta(self, round: int) -> float:
        return self.delta * (1 - self.gamma ** (round if self.late_beta else round - 1))  # (5)

    def losses(self, reports: list[Report], round: int) -> Tensor:
        found = torch.tensor([r.loss for r in reports], dtype=torch.float64)
        if self.first_loss is not None and round == 1:
            found = torch.full_like(found, self.first_loss)
        return 100 / (100 / found).floor().clamp(min=1) if self.quantised else found

    def __call__(self, state: State, reports: list[Report]) -> tuple[Tensor, State]:
        r = state["round"] + 1
        labels, _, log = self.group(state, reports)
        loss, size = self.losses(reports, r), torch.tensor([float(x.size) for x in reports])
        power = self.q + 1 if self.exponent == "q+1" else self.q
        scores = group_scores(loss, size, torch.tensor(labels), self.beta(r), power, self.weighted)
        log |= {"beta": self.beta(r), "loss": loss.tolist()}
        return scores, {**state, "round": r, "log": log}


# -- both ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class KeptMoments(LocalSolver):
    """A solver whose optimiser goes on with the client's moments of the round before."""

    def step(self, local: Local, optimizer: torch.optim.Optimizer, batch: Batch) -> Tensor:
        memory = local.memory["solve"]
        if "moments" in memory and not optimizer.state:
            optimizer.load_state_dict({**optimizer.state_dict(), "state": memory["moments"]})
        loss = super().step(local, optimizer, batch)
        memory["moments"] = optimizer.state_dict()["state"]
        return loss


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
    preset: str = "paper",
    quirks: tuple[str, ...] = (),
    rounds: int = 50,
    participation: float | int = 1.0,
    lr: float = 1e-3,
    batch_size: int = 64,
    optimizer: str = "adamw",
    **local: Any,
) -> Method:
    """FedGC and FedGR, or one of them: `customization=False` leaves FedGR (any model),
    `reweighting=False` FedGC.

    `rounds` (R) is only used by the quirk "lambda_schedule"; `local` are the options of
    `LocalSolver`.
    """
    if preset not in ("paper", "as_published"):
        raise FedbookError(f"unknown preset {preset!r}", "use 'paper' or 'as_published'")
    on = set(QUIRKS if preset == "as_published" else quirks)
    if unknown := on - set(QUIRKS):
        raise FedbookError(f"unknown quirks {sorted(unknown)}", f"known: {', '.join(QUIRKS)}")

    grouping: dict[str, Any] = {"clusters": clusters, "cluster": cluster, "normalise": normalise}
    grouping["cluster_on"] = cluster_on
    if "three_batches" in on:
        grouping["max_samples"] = 3 * batch_size
    if "full_covariance" in on:
        grouping |= {"covariance": "full", "starts": 1, "floor": None, "normalise": False}
    if "lambda_schedule" in on:
        lam1, lam2 = 0.1, 0.05
    if "parameter_groups" in on:
        decay = {"prompts.*": (10 * lr, 1e-5), "gc_net.*": (lr, lr), "head.*": (lr, 1e-2)}
        local["groups"] = tuple(
            (n, {"lr": rate, "weight_decay": wd}) for n, (rate, wd) in decay.items()
        )
    solver = KeptMoments if "kept_moments" in on else LocalSolver
    method = fedavg(participation).replace(
        name="fedgcr", solve=solver(lr=lr, batch_size=batch_size, optimizer=optimizer, **local)
    )

    if customization:
        ramp = rounds if "lambda_schedule" in on else None
        terms: tuple[Objective, ...] = (
            CrossEntropy(),
            GroupCustomization(lam1, tau, similarity, fresh, ramp, **grouping),
            RepresentationAlignment(
                lam2,
                1.0 if "no_temperature" in on else tau,
                similarity,
                "older_z0" in on,
                "noisy_references" in on,
            ),
        )
        method = method.replace(
            objective=(*terms, PromptsAlone()) if "prompts_alone" in on else terms
        )
    if reweighting:
        late = "late_beta" in on
        method = method.replace(
            weigh=GroupReweighting(
                q,
                delta,
                0.9 if late else gamma,
                exponent,
                late,
                "quantised_loss" in on,
                "weighted_cluster_loss" in on,
                1.0 if "first_loss" in on else None,
                **grouping,
            )
        )
    return method
