"""Anonymised clustering: which clients are of one type, from one vector each (FedGCR, section 3.2).

    h_k = (1/|C_k|) sum_{c in C_k} (1/|D_{k,c}|) sum_{x in D_{k,c}} h(x)  (4), C_k: its classes
    g, H = Cluster({h_k}, T'),   H_t = mean of h_k over cluster t                  Alg. 1, line 6

A few dozen vectors of several hundred dimensions are too few for a full covariance: it is little
but its own regularisation, and a hundred times slower. Hence, unless told otherwise, a diagonal
covariance, ten starts, vectors of length 1 (only their direction enters l_GC), and a variance floor
of a tenth of the vectors' mean variance: on synthetic clients, ten of five types in 768 dimensions
with much noise, scikit-learn's absolute floor of 1e-6 prefers components of a single client,
tearing one type apart while two others stay together. `normalise=False` clusters the vectors as
they come, which is what the paper prints.

FINCH (Sarfraz et al., CVPR 2019) joins every client to its nearest neighbour, so the only client of
a type always falls into another type's cluster: at most 26 of DomainNet's 27 clients at DIF 10 can
be right, which is what Table 14 prints. It never finds more clusters than that first step leaves,
whatever T' is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.metrics import clustering_accuracy
from fedbook.rounds import Batch, Grouping, Local, Report
from fedbook.rounds.stages import State

ALGORITHMS = ("gmm", "kmeans", "finch")
COVARIANCES = ("diag", "spherical", "full")


def class_balanced_mean(features: Tensor, y: Tensor, num_classes: int) -> Tensor:
    """Eq. 4: the mean over classes of the mean over their samples, over the classes that occur."""
    one = torch.ones_like(y, dtype=features.dtype)
    count = torch.zeros(num_classes, dtype=features.dtype, device=y.device).index_add_(0, y, one)
    return (features / count[y][:, None]).sum(0) / (count > 0).sum()


def _similarities(rows: np.ndarray) -> np.ndarray:
    """Cosines of all pairs, -inf on the diagonal."""
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12)
    s = rows @ rows.T
    np.fill_diagonal(s, -np.inf)
    return s


def _means(v: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.stack([v[labels == k].mean(0) for k in range(labels.max() + 1)])


def finch(v: np.ndarray, clusters: int) -> np.ndarray:
    """First-neighbour clusters of unit vectors, the two nearest merged until there are as few as
    asked for.

    Partitions follow one another, each joining every cluster of the one before to its nearest.
    Merging starts from the last of them that still has enough clusters.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    def join(rows: np.ndarray) -> np.ndarray:
        n = len(rows)
        edges = (np.ones(n), (np.arange(n), _similarities(rows).argmax(1)))
        return connected_components(coo_matrix(edges, shape=(n, n)), directed=False)[1]

    labels = join(v)
    while True:
        coarser = join(_means(v, labels))[labels]
        count = coarser.max() + 1
        if count == 1 or labels.max() - count < 1 or count < clusters:
            break
        labels = coarser
    while labels.max() >= clusters:
        s = _similarities(_means(v, labels))
        keep, gone = sorted(np.unravel_index(s.argmax(), s.shape))
        labels = np.where(labels == gone, keep, labels)
        labels = labels - (labels > gone)
    return labels


def cluster(
    vectors: Tensor,
    clusters: int,
    algorithm: str = "gmm",
    *,
    seed: int = 0,
    starts: int = 10,
    covariance: str = "diag",
    floor: float | None = 0.1,
    normalise: bool = True,
) -> list[int]:
    """The clusters g of clients' vectors [K, d].

    Clusters are numbered in the order of their first client, and empty ones do not exist: there
    are at most `clusters`. `floor` is relative to the mean variance; None is scikit-learn's 1e-6.
    """
    if algorithm not in ALGORITHMS:
        raise FedbookError(
            f"unknown clustering {algorithm!r}", f"use one of {', '.join(ALGORITHMS)}"
        )
    if not 1 <= clusters <= len(vectors):
        raise FedbookError(
            f"cannot find {clusters} clusters among {len(vectors)} clients",
            f"clusters (T') must lie in 1..{len(vectors)}, the number that take part in a round",
        )
    v = vectors.detach().double().cpu().numpy()
    if not np.isfinite(v).all():
        raise FedbookError("a client's representation is not finite", "lower lr")
    if normalise:
        v = v / np.linalg.norm(v, axis=1, keepdims=True).clip(1e-12)
    if clusters == 1 or len(v) == 1:
        found = np.zeros(len(v), dtype=np.int64)
    elif algorithm == "finch":
        found = finch(v, clusters)
    else:
        found = _partition(
            v,
            clusters,
            algorithm=algorithm,
            seed=seed,
            starts=starts,
            covariance=covariance,
            floor=floor,
        )
    order = list(dict.fromkeys(found.tolist()))
    return [order.index(k) for k in found.tolist()]


def centres(vectors: Tensor, labels: list[int]) -> Tensor:
    """H: the mean of each cluster's vectors."""
    member = torch.tensor([[float(g == t) for g in labels] for t in range(max(labels) + 1)])
    return (member / member.sum(1, keepdim=True)).to(vectors) @ vectors


def _partition(
    v: np.ndarray,
    clusters: int,
    algorithm: str,
    seed: int,
    starts: int,
    covariance: str,
    floor: float | None,
) -> np.ndarray:
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    with warnings.catch_warnings():
        # fewer distinct clients than clusters: fewer are returned
        warnings.simplefilter("ignore", ConvergenceWarning)
        if algorithm == "kmeans":
            return KMeans(clusters, n_init=starts, random_state=seed).fit_predict(v)
        reg = 1e-6 if floor is None else max(floor * float(v.var(0).mean()), 1e-12)
        gmm = GaussianMixture(
            clusters, covariance_type=covariance, n_init=starts, random_state=seed, reg_covar=reg
        )
        return gmm.fit_predict(v)


@torch.no_grad()
def represent(
    local: Local, of: Callable[..., Tensor] | None = None, batches: Iterable[Batch] | None = None
) -> Tensor:
    """h_k of Eq. 4, on all the client's samples; or the same mean of something else than h.

    A model without a GC-Net is represented by its features z: the "FedGR only" rows of the
    ablations.
    """
    model: Any = local.model
    of = of or getattr(model, "h", model.embed)
    h = []
    y = []
    for batch in batches or local.batches(512, shuffle=False):
        with local.device.autocast():
            h.append(of(batch.x, **batch.precomputed).float())
        y.append(batch.y)
    return class_balanced_mean(torch.cat(h), torch.cat(y), local.federation.num_classes)


@dataclass(frozen=True, kw_only=True)
class ClusterClients(Grouping):
    """Each client sends h_k, measured at the received model; the server clusters them.

    T' (`clusters`) is the number of types unless given, as in the paper's main tables. Types are
    used for one thing more: the clustering accuracy in the log. `cluster_on="frozen"` groups by the
    feature that GC-Net reads, which no training changes.
    """

    clusters: int | None = None
    cluster: str = "gmm"
    cluster_seed: int = 0
    starts: int = 10
    covariance: str = "diag"
    floor: float | None = 0.1
    normalise: bool = True
    cluster_on: str = "h"

    def __post_init__(self) -> None:
        super().__post_init__()
        known = {"cluster": ALGORITHMS, "covariance": COVARIANCES, "cluster_on": ("h", "frozen")}
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise FedbookError(
                    f"unknown {name} {getattr(self, name)!r}", f"use one of {', '.join(values)}"
                )
        if self.clusters is not None and self.clusters < 1:
            raise FedbookError(
                f"clusters (T') must be at least 1, got {self.clusters}", "None: one per type"
            )

    def init(self, federation: Federation, model: nn.Module) -> State:
        types = {c.id: c.type for c in federation.clients}
        return {"clusters": self.clusters or len(set(types.values())), "types": types}

    def batches(self, local: Local) -> Iterable[Batch]:
        """The samples on which a client measures itself."""
        return local.batches(512, shuffle=False)

    def measure(self, local: Local, memory: State) -> State:
        sent = {"h": represent(local, batches=self.batches(local))}
        if self.cluster_on == "frozen":
            sent["e"] = represent(local, frozen_feature(local.model), self.batches(local))
        return sent

    def __call__(self, state: State, reports: list[Report]) -> tuple[list[int], State]:
        read = "h" if self.cluster_on == "h" else "e"
        labels = cluster(
            torch.stack([r[read] for r in reports]),
            state["clusters"],
            self.cluster,
            seed=self.cluster_seed,
            starts=self.starts,
            covariance=self.covariance,
            floor=self.floor,
            normalise=self.normalise,
        )
        return labels, {**state, "log": group_log(state["types"], reports, labels)}


@dataclass(frozen=True)
class ByType(Grouping):
    """The true types, which no server knows: an oracle to measure groupings by."""

    def init(self, federation: Federation, model: nn.Module) -> State:
        return {"types": {c.id: c.type for c in federation.clients}}

    def __call__(self, state: State, reports: list[Report]) -> tuple[list[int], State]:
        types = [state["types"][r.id] for r in reports]
        order = list(dict.fromkeys(types))
        labels = [order.index(t) for t in types]
        return labels, {**state, "log": group_log(state["types"], reports, labels)}


def group_log(types: dict[int, int], reports: list[Report], labels: list[int]) -> State:
    accuracy = clustering_accuracy(labels, [types[r.id] for r in reports])
    return {"cluster": labels, "clustering_accuracy": float(accuracy)}


def frozen_feature(model: Any) -> Callable[..., Tensor]:
    """The feature GC-Net reads, from the images or, where it is known already, as it comes."""
    if not hasattr(model, "frozen_cls"):
        raise FedbookError(f"{type(model).__name__} has no frozen feature", 'use cluster_on="h"')

    def feature(
        x: Tensor, cls: Tensor | None = None, tokens: Tensor | None = None, **_: Tensor
    ) -> Tensor:
        return model.frozen_cls(x, tokens) if cls is None else cls

    return feature
