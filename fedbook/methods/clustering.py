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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.metrics import clustering_accuracy
from fedbook.rounds import Local, Report, Stage
from fedbook.rounds.stages import State

ALGORITHMS = ("gmm", "kmeans", "finch")
COVARIANCES = ("diag", "spherical", "full")


def class_balanced_mean(features: Tensor, y: Tensor, num_classes: int) -> Tensor:
    """Eq. 4: the mean over classes of the mean over their samples, over the classes that occur."""
    count = torch.zeros(num_classes, device=y.device).index_add_(
        0, y, torch.ones_like(y, dtype=torch.float32)
    )
    return (features / count[y][:, None]).sum(0) / (count > 0).sum()


def finch(v: np.ndarray, clusters: int) -> np.ndarray:
    """First-neighbour clusters of unit vectors, then the two nearest merged until there are as few
    as asked for.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    def similarity(rows: np.ndarray) -> np.ndarray:
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12)
        s = rows @ rows.T
        np.fill_diagonal(s, -np.inf)
        return s

    n = len(v)
    edges = (np.ones(n), (np.arange(n), similarity(v).argmax(1)))
    found, labels = connected_components(coo_matrix(edges, shape=(n, n)), directed=False)
    while found > clusters:
        means = np.stack([v[labels == k].mean(0) for k in range(found)])
        keep, gone = sorted(np.unravel_index(similarity(means).argmax(), (found, found)))
        labels = np.where(labels == gone, keep, labels)
        labels, found = labels - (labels > gone), found - 1
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
) -> tuple[list[int], Tensor]:
    """Labels g and centres H of clients' vectors [K, d]; both come from this one call, and only
    then fit together.

    Clusters are numbered in the order of their first client, and empty ones do not exist: H has at
    most `clusters` rows, each the mean of its members. floor is relative to the mean variance; None
    is scikit-learn's 1e-6.
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
        found = _partition(v, clusters, algorithm, seed, starts, covariance, floor)
    order = list(dict.fromkeys(found.tolist()))
    labels = [order.index(k) for k in found.tolist()]
    member = torch.tensor([[float(g == t) for g in labels] for t in range(len(order))])
    return labels, (member / member.sum(1, keepdim=True)).to(vectors) @ vectors


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
        warnings.simplefilter(
            "ignore", ConvergenceWarning
        )  # fewer distinct clients than clusters: fewer are returned
        if algorithm == "kmeans":
            return KMeans(clusters, n_init=starts, random_state=seed).fit_predict(v)
        reg = 1e-6 if floor is None else max(floor * float(v.var(0).mean()), 1e-12)
        gmm = GaussianMixture(
            clusters, covariance_type=covariance, n_init=starts, random_state=seed, reg_covar=reg
        )
        return gmm.fit_predict(v)


@dataclass(frozen=True, kw_only=True)
class Grouping(Stage):
    """A stage whose clients send h_k, measured at the received model, and whose server groups them.

    h is what the model's GC-Net makes of an image; a model without one is represented by its
    features z (the "FedGR only" rows of the ablations). Types are used for one thing: the
    clustering accuracy in the log.
    """

    clusters: int | None = (
        None  # T'; None: as many as the federation has types, as in the paper's main tables
    )
    cluster: str = "gmm"  # or "kmeans", "finch"
    cluster_seed: int = 0
    starts: int = 10
    covariance: str = "diag"
    floor: float | None = 0.1
    normalise: bool = True
    cluster_on: str = (
        "h"  # "frozen": labels from the feature GC-Net reads; the centres are still those of h
    )
    max_samples: int | None = (
        None  # measure h_k on this many samples drawn at random; None: on all of them
    )

    batch: ClassVar[int] = 512

    def __post_init__(self) -> None:
        for name, known in (
            ("cluster", ALGORITHMS),
            ("covariance", COVARIANCES),
            ("cluster_on", ("h", "frozen")),
        ):
            if getattr(self, name) not in known:
                raise FedbookError(
                    f"unknown {name} {getattr(self, name)!r}", f"use one of {', '.join(known)}"
                )
        if self.clusters is not None and self.clusters < 1:
            raise FedbookError(
                f"clusters (T') must be at least 1, got {self.clusters}", "None: one per type"
            )

    def init(self, federation: Federation, model: nn.Module) -> State:
        types = {c.id: c.type for c in federation.clients}
        return {"clusters": self.clusters or len(set(types.values())), "types": types}

    def describe_client(self, local: Local) -> State:
        """What a client sends: h_k, and with cluster_on="frozen" the same mean of the frozen
        feature.
        """
        model: Any = local.model
        sent = {"h": self.represent(local)}
        if self.cluster_on == "frozen":
            if not hasattr(model, "frozen_cls"):
                raise FedbookError(
                    f"{type(model).__name__} has no frozen feature", 'use cluster_on="h"'
                )
            sent["e"] = self.represent(
                local, lambda x, cls=None, **_: model.frozen_cls(x) if cls is None else cls
            )
        return sent

    @torch.no_grad()
    def represent(self, local: Local, of: Callable[..., Tensor] | None = None) -> Tensor:
        """h_k of Eq. 4, or the same mean of something else."""
        model: Any = local.model
        of = of or getattr(model, "h", model.embed)
        found, left = [], self.max_samples or len(local.client.train)
        for batch in local.batches(self.batch, shuffle=self.max_samples is not None):
            with local.device.autocast():
                h = of(batch.x, **batch.extra)[:left].float()
            found.append((h, batch.y[:left]))
            if (left := left - len(h)) <= 0:
                break
        h, y = (torch.cat(parts) for parts in zip(*found))
        return class_balanced_mean(h, y, local.federation.num_classes)

    def group(self, state: State, reports: list[Report]) -> tuple[list[int], Tensor, State]:
        """g and H from what the participants sent, and what of it is worth logging."""
        h = torch.stack([r["h"] for r in reports])
        labels, centres = cluster(
            h if self.cluster_on == "h" else torch.stack([r["e"] for r in reports]),
            state["clusters"],
            self.cluster,
            seed=self.cluster_seed,
            starts=self.starts,
            covariance=self.covariance,
            floor=self.floor,
            normalise=self.normalise,
        )
        if self.cluster_on != "h":
            centres = torch.stack(
                [h[[g == t for g in labels]].mean(0) for t in range(len(centres))]
            )
        types = [state["types"][r.id] for r in reports]
        return (
            labels,
            centres,
            {"cluster": labels, "clustering_accuracy": float(clustering_accuracy(labels, types))},
        )
