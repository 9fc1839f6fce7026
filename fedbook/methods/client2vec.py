"""Client2Vec: an index of each client, made before training, improves three stages of any method.

Guo, Wang, Tang and Lin, "Client2Vec: Improving Federated Learning by Distribution Shifts Aware
Client Indexing", 2024, section 4. The index beta and the similarity S are
`methods/client_index.py`; C^t are the clients of round t.

(i) who takes part: those like the clients of the round before, unless they took part lately
    p_i^t = exp(S(beta_i, C^{t-1}) / tau) / sum_j exp(S(beta_j, C^{t-1}) / tau)                  (1)
    0 for clients drawn within the last M / (2 |C|) rounds
(ii) what each counts: those like the clients of all rounds so far, more
    A_i^t = sum_{s=1..t} gamma^{t-s} S(beta_i, C^s) = gamma A_i^{t-1} + S(beta_i, C^t)
    max_p sum_i p_i A_i^t + lambda_1 sum_i p_i log(q_i^t / p_i),    sum_i p_i = 1                (2)
    p_{i,g}^t ~ q_i^t exp(A_i^t / lambda_1)                                                      (3)
(iii) what a client minimises: features that say nothing of clients
    l = L_cls + w || z_P B^f ||_1 + w KL(f(z), f_P(z_P)),    z_P = z P                           (4)

    client2vec("fedavgm", lr=0.05)                                     # all three on top of FedAvgM
    client2vec(fedgcr(), index, sampling=False, local=False)     # (ii) alone, any method, any index
    get("client2vec", base="moon", case_studies="i+ii", strategy="federated")  # as in the tables

| symbol | here | default | where |
|---|---|---|---|
| tau | `tau` | 1.0 GLOBAL, 0.1 FEDERATED | appendix D.2: tuned in 0.1, 0.5, 1, 2; best in Table 5 |
| gamma | `gamma` | 0.5 | appendix D.2: the best of 0.1, 0.5, 0.9 |
| lambda_1 | `lam1` | 1.0 | appendix D.2 |
| w | `weight` | 5.0 GLOBAL, 1.0 FEDERATED | caption of Table 1 (appendix D.2 differs) |
| E | `index_epochs`, and `index_...` for all of `IndexSpec` | 500 | Table 6 |
| index of Table 2, Figure 7 | `variant` | "client2vec" | see VARIANTS |

P (no bias) and the projection classifier f_P are trained and averaged with the model; tests use the
ordinary head. In (ii) q_i = n_i / sum n for methods that weigh by size or uniformly; a method with
weights of its own keeps them as q.

Differs from the paper, where it leaves things open:
- Round 1 has no C^0 and draws uniformly. Draws are without replacement, each renormalised over
  those left. The window is rounded down; then those banned are at most half, and enough are always
  left.
- || z_P B^f ||_1 is the mean over samples and clients, with beta^f at length one, so that w means
  the same for any number of clients; `reduction="sum"` is the sum over clients of the raw vectors,
  as printed; "cosine" is the mean with z_P at length one too, which no shrinking of z can lower.
- KL(softmax f(z) || softmax f_P(z_P)), with gradients to both sides (`detach=True`: to the
  projected side alone).
- "local_model_weights" (Table 2): B^f holds the classifier weights with which each client last
  ended; as they change every round, (i) and (ii) are left out, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.methods.client_index import ClientIndex, IndexSpec, client_index, to_group
from fedbook.rounds import Batch, BySize, Equal, Local, Method, Objective, Report, Uniform, Weigh
from fedbook.rounds.stages import State

Index = IndexSpec | ClientIndex
VARIANTS: dict[str, dict[str, Any]] = {
    "client2vec": {},
    "feature_average": {"kind": "feature_average"},
    "class_prototypes": {"kind": "class_prototypes"},
    "local_model_weights": {},
    "omit_diversity_loss": {"omit": ("div",)},
    "omit_text_align_loss": {"omit": ("sim",)},
    "omit_orthogonal_loss": {"omit": ("orth",)},
    "omit_reconstruction_loss": {"omit": ("recon",)},
    "only_feature_index": {},
    "only_label_index": {},
    "omit_orthogonal_regularization": {},
}
CASE_STUDIES = ("none", "index", "i", "ii", "iii")


def resolve(index: Index, federation: Federation) -> ClientIndex:
    """The index of this federation's clients, made now if it is only a specification."""
    found = client_index(federation, index) if isinstance(index, IndexSpec) else index
    ids = [c.id for c in federation.clients]
    if found.ids != ids:
        raise FedbookError(
            f"the index is of clients {found.ids[:5]}..., the federation has {ids[:5]}...",
            "make it from this federation: client_index(federation)",
        )
    return found


def _start(index: Index, federation: Federation, part: str) -> tuple[State, ClientIndex]:
    found = resolve(index, federation)
    return {"cosines": found.cosines(part), "sizes": found.sizes, "ids": list(found.ids)}, found


# -- (i) -------------------------------------------------------------------------------------------
def log_probabilities(S: Tensor, tau: float, banned: list[int]) -> Tensor:
    """log p of every client, -inf for those banned (1)."""
    scores = S / tau
    scores[banned] = -torch.inf
    return torch.log_softmax(scores, 0)


@dataclass(frozen=True)
class SampleBySimilarity(Uniform):
    """Clients like those of the round before; `tau=None` draws uniformly and only keeps the index
    in view.
    """

    index: Index = field(default_factory=IndexSpec)
    tau: float | None = 1.0
    part: str = "both"
    matrix: bool = False  # log the cosines of all pairs too, for heat maps

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tau is not None and not self.tau > 0:
            raise FedbookError(
                f"tau must be above 0, got {self.tau}", "the paper tunes 0.1, 0.5, 1 and 2"
            )

    def once(self, federation: Federation) -> tuple[int, int]:
        info = resolve(self.index, federation).info
        return info["bytes_up"], info["bytes_down"]

    def init(self, federation: Federation, model: nn.Module) -> State:
        state, index = _start(self.index, federation, self.part)
        log: State = {"index_seconds": index.info["seconds"]}
        if self.matrix:
            parts = ("both", "feature") if index.label is not None else ("feature",)
            log["similarity"] = {
                p: [[round(v, 3) for v in row] for row in index.cosines(p).tolist()] for p in parts
            }
        if 1 < federation.num_types < len(federation):
            log |= index.quality([c.type for c in federation.clients], federation.type_names)
        return {**state, "recent": [], "log": log}

    def window(self, clients: int) -> int:
        """How many rounds a client is banned after it took part."""
        return clients // (2 * self.count(clients))

    def __call__(
        self, state: State, federation: Federation, round: int, rng: torch.Generator
    ) -> tuple[list[int], State]:
        if self.tau is None:
            return super().__call__(state, federation, round, rng)
        ids = state["ids"]
        recent = state["recent"]
        window = self.window(len(federation))
        row = {id: i for i, id in enumerate(ids)}
        before = [row[id] for id in recent[-1]] if recent else []
        banned = [row[id] for chosen in recent[-window:] for id in chosen] if window else []
        S = to_group(state["cosines"].cpu(), state["sizes"].cpu(), before)
        log_p = log_probabilities(S, self.tau, banned)  # (1)
        # the largest of log p + Gumbel noise are draws without replacement
        noise = -(-torch.rand(len(ids), generator=rng, dtype=torch.float64).log()).log()
        drawn = (log_p + noise).topk(self.count(len(ids))).indices.tolist()
        chosen = [ids[i] for i in drawn]
        return chosen, {**state, "recent": [*recent, chosen][-max(window, 1) :]}


# -- (ii) ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class WeighBySimilarity(Weigh):
    """The factor exp(A_i / lambda_1) of (3); q_i is what the method's own factors make it."""

    index: Index = field(default_factory=IndexSpec)
    gamma: float = 0.5
    lam1: float = 1.0
    part: str = "both"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.gamma <= 1 and self.lam1 > 0):
            raise FedbookError(
                f"gamma must lie in [0, 1] and lam1 above 0, got {self.gamma} and {self.lam1}",
                "the paper has gamma 0.1, 0.5 or 0.9 and lam1=1",
            )

    def init(self, federation: Federation, model: nn.Module) -> State:
        state, index = _start(self.index, federation, self.part)
        return {**state, "A": torch.zeros(len(index), dtype=torch.float64)}

    def __call__(self, state: State, reports: list[Report]) -> tuple[Tensor, State]:
        row = {id: i for i, id in enumerate(state["ids"])}
        here = [row[r.id] for r in reports]
        S = to_group(state["cosines"].cpu(), state["sizes"].cpu(), here)
        A = self.gamma * state["A"].cpu() + S  # A_i^t of all clients, also of those not here
        return A[here] / self.lam1, {**state, "A": A}  # (3)


# -- (iii) -----------------------------------------------------------------------------------------
class Projected(nn.Module):
    """P and the projection classifier f_P, trained and averaged like any layer; B^f [d_i, M], which
    is neither.
    """

    B: Tensor

    def __init__(self, width: int, index_width: int, classes: int, B: Tensor) -> None:
        super().__init__()
        self.P = nn.Linear(width, index_width, bias=False)
        self.head = nn.Linear(index_width, classes)
        self.register_buffer("B", B, persistent=False)


def projected(model: nn.Module) -> Projected:
    """The projection of a model, however deep another stage has wrapped it."""
    return next(m for m in model.modules() if isinstance(m, Projected))


@dataclass(frozen=True)
class IndependentFeatures(Objective):
    """w || z_P B^f ||_1 + w KL(f(z), f_P(z_P)) of (4)."""

    index: Index = field(default_factory=IndexSpec)
    weight: float = 1.0
    orthogonal: bool = True
    reduction: str = "mean"
    detach: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.weight >= 0 or self.reduction not in ("mean", "sum", "cosine"):
            raise FedbookError(
                f"weight must be at least 0 and reduction 'mean', 'sum' or 'cosine', got "
                f"{self.weight} and {self.reduction!r}",
                "the paper has weights 1, 5 and 10",
            )

    def columns(self, beta: Tensor) -> Tensor:
        """B^f from one row per client."""
        return (beta if self.reduction == "sum" else F.normalize(beta, dim=1)).T.contiguous()

    def index_rows(self, model: Any, federation: Federation, known: State) -> Tensor:
        return known["feature"]

    def announce(self, federation: Federation, told: list[State]) -> State:
        return {"feature": resolve(self.index, federation).feature}

    def adapt(self, model: nn.Module, federation: Federation, known: State) -> nn.Module:
        head: Any = model.head
        layers = (
            [m for m in head.modules() if isinstance(m, nn.Linear)]
            if isinstance(head, nn.Module)
            else []
        )
        if not layers:
            raise FedbookError(
                f"(iii) projects the features that enter the head, and {type(head).__name__} has "
                "no linear layer",
                "use a model with a linear head, or local=False",
            )
        beta = self.index_rows(model, federation, known).float()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            sizes = layers[0].in_features, beta.shape[1], layers[-1].out_features
            model.client2vec = Projected(*sizes, self.columns(beta))
        return model

    def __call__(self, local: Local, batch: Batch, sent: State, memory: State) -> Tensor:
        if self.weight == 0:
            return torch.zeros((), device=batch.y.device)
        p = projected(local.model)
        z_p = p.P(batch.z)
        teacher = F.log_softmax(batch.logits.detach() if self.detach else batch.logits, 1)
        total = F.kl_div(
            F.log_softmax(p.head(z_p), 1), teacher, reduction="batchmean", log_target=True
        )
        if self.orthogonal:
            z_p = F.normalize(z_p, dim=1) if self.reduction == "cosine" else z_p
            products = (z_p @ self.basis(p, sent)).abs()
            total = total + (products.sum(1).mean() if self.reduction == "sum" else products.mean())
        return self.weight * total  # (4)

    def basis(self, p: Projected, sent: State) -> Tensor:
        return p.B


@dataclass(frozen=True)
class IndependentOfWeights(IndependentFeatures):
    """The same with B^f made of each client's last classifier weights, 0 for those not heard of yet
    (Table 2).
    """

    def announce(self, federation: Federation, told: list[State]) -> State:
        return {}

    def index_rows(self, model: Any, federation: Federation, known: State) -> Tensor:
        return torch.zeros(len(federation), sum(p.numel() for p in model.head.parameters()))

    def init(self, federation: Federation, model: nn.Module) -> State:
        B = projected(model).B
        return {"rows": B.new_zeros(B.T.shape), "ids": [c.id for c in federation.clients]}

    def measure(self, local: Local, memory: State) -> State:
        return {"classifier": memory["classifier"]} if "classifier" in memory else {}

    def prepare(self, state: State, reports: list[Report]) -> State:
        rows = state["rows"].clone()
        for r in reports:
            if "classifier" in r.values:
                rows[state["ids"].index(r.id)] = r["classifier"]
        return {**state, "rows": rows}

    def send(self, state: State, id: int) -> State:
        return {"B": self.columns(state["rows"])}

    def basis(self, p: Projected, sent: State) -> Tensor:
        return sent["B"]

    def end(self, local: Local, sent: State, memory: State) -> State:
        model: Any = local.model
        memory["classifier"] = torch.cat([p.detach().flatten() for p in model.head.parameters()])
        return {}


# -- all of it -------------------------------------------------------------------------------------
def client2vec(
    base: str | Method = "fedavg",
    index: Index | None = None,
    sampling: bool = True,
    aggregation: bool = True,
    local: bool = True,
    case_studies: str | None = None,
    strategy: str = "global",
    variant: str = "client2vec",
    tau: float | None = None,
    gamma: float = 0.5,
    lam1: float = 1.0,
    weight: float | None = None,
    reduction: str = "mean",
    detach: bool = False,
    **options: Any,
) -> Method:
    """A method with (i) `sampling`, (ii) `aggregation` and (iii) `local` training improved.

    `base` is a name, with its `options`, or a method; options of the base that client2vec has too
    are written `base_tau`, `base_weight`. `index_epochs`, `index_limit`, ... go to `IndexSpec`,
    unless an `index` is given. `case_studies` may name the three instead: "i+ii", or "index" to
    make an index, log it and use it nowhere.
    """
    from fedbook import methods

    made = {
        k.removeprefix("index_"): options.pop(k) for k in list(options) if k.startswith("index_")
    }
    if variant not in VARIANTS:
        raise FedbookError(f"unknown variant {variant!r}", f"known: {', '.join(VARIANTS)}")
    if index is None:
        index = IndexSpec(**{"strategy": strategy, **VARIANTS[variant], **made})
    elif made:
        raise FedbookError(
            f"an index was given, and options {sorted(made)} to make one", "leave one of them out"
        )
    if isinstance(base, Method) and options:
        raise FedbookError(
            f"a ready method was given, and options {sorted(options)}", "set them in the method"
        )
    options = {k.removeprefix("base_"): v for k, v in options.items()}
    method = base if isinstance(base, Method) else methods.get(base, **options)

    if case_studies is not None:
        asked = case_studies.split("+")
        if unknown := [c for c in asked if c not in CASE_STUDIES]:
            raise FedbookError(
                f"unknown case study {unknown[0]!r}",
                "use 'i', 'ii', 'iii' joined by '+', or 'index'",
            )
        sampling, aggregation, local = (c in asked for c in ("i", "ii", "iii"))
    if variant == "only_label_index" and local:
        raise FedbookError(
            "(iii) needs the feature index, only the label index was asked for", "use local=False"
        )
    by_weights = variant == "local_model_weights"
    if by_weights:
        sampling = aggregation = False
    if not isinstance(method.sample, Uniform):
        raise FedbookError(
            f"{method.name} draws its clients by {type(method.sample).__name__}",
            "client2vec wraps uniform sampling",
        )

    federated = isinstance(index, IndexSpec) and index.strategy == "federated"
    part = {"only_feature_index": "feature", "only_label_index": "label"}.get(variant, "both")
    heat = tau if tau is not None else 0.1 if federated else 1.0
    w = weight if weight is not None else 1.0 if federated else 5.0
    changes: dict[str, Any] = {"name": f"client2vec({method.name})"}
    if not by_weights:
        used = heat if sampling else None
        matrix = case_studies == "index"
        changes["sample"] = SampleBySimilarity(
            method.sample.participation, index, used, part, matrix
        )
    if aggregation:
        own = (BySize(),) if method.weigh == (Equal(),) else method.weigh
        changes["weigh"] = (*own, WeighBySimilarity(index, gamma, lam1, part))
    if local:
        stage = IndependentOfWeights if by_weights else IndependentFeatures
        orthogonal = variant != "omit_orthogonal_regularization"
        changes["objective"] = (*method.objective, stage(index, w, orthogonal, reduction, detach))
    return method.replace(**changes)
