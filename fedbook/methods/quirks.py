"""What published code does otherwise than its paper, each as a function from method to method.

    get("fedgcr", quirks=("late_beta", "older_z0"))
    get("fedgcr", quirks=("as_published",))              # all of one method's
    late_beta(get("fedgcr"))                             # the same, by hand

FedGCR's are of the authors' public code (celinezheng/fedgcr), and so are those of its baselines
q-FFL, AFL, TERM and FedMix. Three more departures are settings: the options `PUBLISHED_MODEL` of
`models.build("fedgc", ...)`; 6 prompts instead of 4 for FedAvg and q-FFL; and ten times the other
methods' learning rate for Harmo-FL and FedSAM.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedbook.errors import FedbookError
from fedbook.methods.afl import project
from fedbook.methods.clustering import ClusterClients
from fedbook.methods.feddyn import DynamicRegulariser
from fedbook.methods.fedgcr import GroupCustomization, GroupReweighting, group_mean
from fedbook.methods.fedlc import CalibratedCrossEntropy
from fedbook.methods.fedmix import MeanMixup
from fedbook.methods.moon import ModelContrast, contrast
from fedbook.methods.q_ffl import DynamicStep
from fedbook.methods.term import Tilt
from fedbook.rounds import Batch, Equal, Local, LocalSolver, Method, Objective, Report, Weigh
from fedbook.rounds.params import Params, body, clone
from fedbook.rounds.stages import State

Change = Callable[[Method], Method]
PUBLISHED_MODEL = {"tiled": True, "dropout": 0.1}


@dataclass(frozen=True)
class Quirk:
    """A change of the method named `of`, and what it does in words."""

    of: str
    says: str
    change: Change


QUIRKS: dict[str, Quirk] = {}


def quirk(of: str, says: str) -> Callable[[Change], Change]:
    def register(change: Change) -> Change:
        QUIRKS[change.__name__] = Quirk(of, says, change)
        return change

    return register


def names(of: str) -> list[str]:
    """The quirks of one method."""
    return [name for name, q in QUIRKS.items() if q.of == of]


def apply(method: Method, quirks: Iterable[str]) -> Method:
    """The method with these quirks; "as_published" stands for all it has."""
    wanted: list[str] = []
    for name in quirks:
        wanted += names(method.name) if name == "as_published" else [name]
    for name in wanted:
        if name not in QUIRKS or QUIRKS[name].of != method.name:
            known = ", ".join(names(method.name)) or "none"
            raise FedbookError(f"{method.name} has no quirk {name!r}", f"known: {known}")
        method = QUIRKS[name].change(method)
    return method


def change(stage: Any, kind: type[Any], into: type | None = None, **settings: Any) -> Any:
    """`stage` with other settings, as one of class `into`, if it is a `kind`; else as it is."""
    if not isinstance(stage, kind):
        return stage
    own = {}
    for f in dataclasses.fields(stage):
        if getattr(stage, f.name) != f.default:
            own[f.name] = getattr(stage, f.name)
    build = type(stage) if into is None or isinstance(stage, into) else into
    return build(**(own | settings))


# -- FedGCR: weights -------------------------------------------------------------------------------
@dataclass(frozen=True)
class PublishedReweighting(GroupReweighting):
    late: bool = field(default=False, kw_only=True)
    quantised: bool = field(default=False, kw_only=True)
    by_size: bool = field(default=False, kw_only=True)
    first: float | None = field(default=None, kw_only=True)
    tiled: int | None = field(default=None, kw_only=True)

    def beta(self, r: int) -> float:
        return super().beta(r + 1 if self.late else r)

    def measure(self, local: Local, memory: State) -> State:
        """The mean loss over mini-batches in which prompts are mixed as in training."""
        if self.tiled is None:
            return {}
        model = local.model
        total = 0.0
        model.training = True  # this module alone: its parts stay in eval mode
        with torch.no_grad():
            for batch in local.batches(self.tiled):
                total += float(F.cross_entropy(batch.logits, batch.y)) * len(batch.y)
        model.training = False
        return {"tiled_loss": total / len(local.client.train)}

    def client_losses(self, reports: list[Report], r: int) -> Tensor:
        if self.tiled is None:
            L = self.losses(reports)
        else:
            L = torch.tensor([r["tiled_loss"] for r in reports], dtype=torch.float64)
        if self.first is not None and r == 1:
            L = torch.full_like(L, self.first)
        return 100 / (100 / L).floor().clamp(min=1) if self.quantised else L

    def group_losses(self, L: Tensor, reports: list[Report]) -> Tensor:
        sizes = torch.tensor([r.size for r in reports], dtype=torch.float64)
        group = torch.tensor([r.group for r in reports])
        return group_mean(L, group, sizes if self.by_size else None)


def _reweigh(method: Method, **settings: Any) -> Method:
    factors = [change(w, GroupReweighting, PublishedReweighting, **settings) for w in method.weigh]
    return method.replace(weigh=tuple(factors))


@quirk("fedgcr", "gamma = 0.9 and exponent r instead of r - 1: beta starts at 0.05, rises slowly")
def late_beta(method: Method) -> Method:
    return _reweigh(method, late=True, gamma=0.9)


@quirk("fedgcr", "L_k rounded to 100 / int(100 / L_k)")
def quantised_loss(method: Method) -> Method:
    return _reweigh(method, quantised=True)


@quirk("fedgcr", "L_k = 1 in round 1, so its weights are omega_k")
def first_loss(method: Method) -> Method:
    return _reweigh(method, first=1.0)


@quirk("fedgcr", "the cluster's loss is weighted by data size")
def weighted_cluster_loss(method: Method) -> Method:
    return _reweigh(method, by_size=True)


@quirk("fedgcr", "L_k measured on mini-batches, with prompts mixed as in training")
def tiled_loss(method: Method) -> Method:
    return _reweigh(method, tiled=method.solve.batch_size, loss=None)


# -- FedGCR: groups --------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class FewBatches(ClusterClients):
    count: int = 3
    size: int = 64

    def batches(self, local: Local) -> Iterable[Batch]:
        return islice(local.batches(self.size), self.count)


@quirk("fedgcr", "h_k measured on three mini-batches instead of all samples")
def three_batches(method: Method) -> Method:
    size = method.solve.batch_size
    return method.replace(grouping=change(method.grouping, ClusterClients, FewBatches, size=size))


@quirk("fedgcr", "GMM with full covariance, one start, vectors as they come, absolute floor")
def full_covariance(method: Method) -> Method:
    settings: dict[str, Any] = {"covariance": "full", "starts": 1}
    settings |= {"floor": None, "normalise": False}
    return method.replace(grouping=change(method.grouping, ClusterClients, **settings))


# -- FedGCR: local training ------------------------------------------------------------------------
@dataclass(frozen=True)
class RampedCustomization(GroupCustomization):
    def strength(self, local: Local) -> float:
        return self.weight * (0.5 + 0.5 * (local.round - 1) / local.rounds)


class _Features(nn.Module):
    """`embed` as a forward, so that `functional_call` can run it with other parameters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model

    def forward(self, x: Tensor, **precomputed: Tensor) -> Tensor:
        return self.model.embed(x, **precomputed)


@dataclass(frozen=True)
class PublishedContrast(ModelContrast):
    """`older`: z_0 from the parameters received one round earlier. `noisy`: both references in
    train mode, on the batch itself, so that prompts are mixed over the same images.
    """

    older: bool = field(default=False, kw_only=True)
    noisy: bool = field(default=False, kw_only=True)
    lockstep: bool = field(default=False, kw_only=True)

    @torch.no_grad()
    def under(self, params: Params, batch: Batch) -> Tensor:
        """z of the batch under other parameters than the model's own."""
        training = batch.model.training
        batch.model.train(self.noisy and training)
        named = {f"model.{n}": t for n, t in body(params).items()}
        z = functional_call(_Features(batch.model), named, (batch.x,), batch.precomputed)
        batch.model.train(training)
        return z

    def begin(self, local: Local, sent: State, memory: State) -> None:
        """Nothing is computed ahead."""

    def __call__(self, local: Local, batch: Batch, sent: State, memory: State) -> Tensor:
        if "previous" not in memory:
            return torch.zeros((), device=batch.y.device)
        z_0 = self.under(memory["received"] if self.older else local.received, batch)
        z_prev = self.under(memory["previous"], batch)
        others = torch.stack([z_0, z_prev], 1)
        return self.weight * contrast(
            batch.z, others, target=0, tau=self.tau, similarity=self.similarity
        )

    def end(self, local: Local, sent: State, memory: State) -> State:
        memory["received"] = clone(body(local.received))
        return super().end(local, sent, memory)


@dataclass(frozen=True)
class PromptsAlone(Objective):
    """The cross-entropy of the global prompts without h, in round 1 only."""

    def __call__(self, local: Local, batch: Batch, sent: State, memory: State) -> Tensor:
        if local.round > 1:
            return torch.zeros((), device=batch.y.device)
        z = batch.model.embed(batch.x, **batch.precomputed, h=torch.zeros_like(batch.z))
        return F.cross_entropy(batch.model.head(z), batch.y)


@dataclass(frozen=True, kw_only=True)
class KeptMoments(LocalSolver):
    """A solver whose optimiser goes on with the client's moments of the round before."""

    def step(self, local: Local, optimizer: torch.optim.Optimizer, batch: Batch) -> Tensor:
        memory = local.memory["solve"]
        if "moments" in memory and not optimizer.state:
            optimizer.load_state_dict({**optimizer.state_dict(), "state": memory["moments"]})
        loss = super().step(local, optimizer, batch)
        memory["moments"] = optimizer.state_dict()["state"]
        return loss


def _terms(method: Method, kind: type, into: type | None = None, **settings: Any) -> Method:
    return method.replace(
        objective=tuple(change(term, kind, into, **settings) for term in method.objective)
    )


@quirk(
    "fedgcr", "lambda_1 = 0.1 (0.5 + 0.5 (r - 1) / R), at most 0.1 instead of 0.5; lambda_2 0.05"
)
def lambda_schedule(method: Method) -> Method:
    method = _terms(method, GroupCustomization, RampedCustomization, weight=0.1)
    return _terms(method, ModelContrast, weight=0.05)


@quirk("fedgcr", "l_RA without temperature (tau = 1)")
def no_temperature(method: Method) -> Method:
    return _terms(method, ModelContrast, tau=1.0)


@quirk("fedgcr", "z_0 from the global model one round older than the received one")
def older_z0(method: Method) -> Method:
    return _terms(method, ModelContrast, PublishedContrast, older=True)


@quirk("fedgcr", "z_0 and z_prev in train mode (dropout, mixed prompts)")
def noisy_references(method: Method) -> Method:
    return _terms(method, ModelContrast, PublishedContrast, noisy=True)


@quirk("fedgcr", "round 1 adds the cross-entropy of the global prompts without h")
def prompts_alone(method: Method) -> Method:
    return method.replace(objective=(*method.objective, PromptsAlone()))


@quirk("fedgcr", "each client keeps Adam's moments from round to round")
def kept_moments(method: Method) -> Method:
    return method.replace(solve=change(method.solve, LocalSolver, KeptMoments))


@quirk("fedgcr", "prompts at ten times lr; weight decay 1e-5 / lr / 1e-2: prompts / GC-Net / head")
def parameter_groups(method: Method) -> Method:
    lr = method.solve.lr
    groups = (
        ("prompts.*", {"lr": 10 * lr, "weight_decay": 1e-5}),
        ("gc_net.*", {"lr": lr, "weight_decay": lr}),
        ("head.*", {"lr": lr, "weight_decay": 1e-2}),
    )
    return method.replace(solve=dataclasses.replace(method.solve, param_groups=groups))


# -- FedGCR's baselines ----------------------------------------------------------------------------
@dataclass(frozen=True)
class PublishedStep(DynamicStep):
    def moved(self, local: Local) -> Tensor:
        norms = [(w.detach() - local.received[n]).norm() for n, w in local.trained().items()]
        return torch.stack(norms).sum()

    def length(self, a: Tensor, move: Tensor, F: Tensor) -> float:
        return super().length(a, move, F) * len(a) * float(a[-1])


@quirk(
    "q_ffl",
    "D_i scaled by the last client's loss, so all count alike; norms not squared; the loss of "
    "local training",
)
def q_ffl_as_coded(method: Method) -> Method:
    update = change(method.update, DynamicStep, PublishedStep, loss="training")
    return method.replace(weigh=(Equal(),), update=update)


@dataclass(frozen=True)
class Stateless(Weigh):
    """lambda = Proj(omega + eta_lam L) from omega = n_i / n in every round."""

    eta_lam: float = 0.1
    loss: str | None = field(default="training", kw_only=True)

    def __call__(self, state: State, reports: list[Report]) -> tuple[Tensor, State]:
        n = torch.tensor([r.size for r in reports], dtype=torch.float64)
        return project(n / n.sum() + self.eta_lam * self.losses(reports)).log(), state


@quirk("afl", "lambda = Proj(n_i / n + eta_lam L) anew in every round; the loss of local training")
def afl_stateless(method: Method) -> Method:
    (agnostic,) = method.weigh
    return method.replace(weigh=(Stateless(agnostic.eta_lam),))  # type: ignore[attr-defined]


@quirk("term", "F_i is the running mean of the loss during local training")
def term_training_loss(method: Method) -> Method:
    factors = [change(w, Tilt, loss="training") for w in method.weigh]
    return method.replace(weigh=tuple(factors))


@dataclass(frozen=True)
class PublishedMixup(MeanMixup):
    def label(self, y: Tensor, mean: Tensor) -> Tensor:
        return y

    def each(self, slope: Tensor) -> Tensor:
        return slope


@quirk("fedmix", "the local label in both cross-entropies, so ybar is never used; (b) over B")
def fedmix_as_coded(method: Method) -> Method:
    """Its means are of two mini-batches, image by image, and then over the batch: `mean_of=2 *
    batch_size` is the same mean. There the last, smaller batch of a client goes without (b).
    """
    return _terms(method, MeanMixup, PublishedMixup)


# -- others ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class SizedRegulariser(DynamicRegulariser):
    def strength(self, local: Local) -> float:
        sizes = [len(c.train) for c in local.federation.clients]
        return self.alpha * (sum(sizes) / len(sizes) / len(local.client.train))


@quirk("feddyn", "alpha_i = alpha (mean n) / n_i (alpemreacar/FedDyn)")
def feddyn_as_coded(method: Method) -> Method:
    return _terms(method, DynamicRegulariser, SizedRegulariser)


@dataclass(frozen=True)
class UnboundedCrossEntropy(CalibratedCrossEntropy):
    def compare(self, s: Tensor, y: Tensor) -> Tensor:
        own = s.gather(1, y[:, None])[:, 0]
        others = s.scatter(1, y[:, None], float("-inf"))
        return (torch.logsumexp(others, 1) - own).mean()


@quirk("fedlc", "the own class left out of the sum, as the paper prints it: no lower bound")
def fedlc_as_printed(method: Method) -> Method:
    return _terms(method, CalibratedCrossEntropy, UnboundedCrossEntropy)
