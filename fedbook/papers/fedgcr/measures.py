"""What FedGCR's type prompt h tells of the types (Figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedbook import metrics
from fedbook.measures import Measure, register

if TYPE_CHECKING:
    from torch import Tensor

    from fedbook.rounds import Simulation


@register("type_tests")
@dataclass
class TypeTests(Measure):
    """How well types can be told apart at the end, by h and by the frozen feature; with `counts`
    also how well clients are grouped when so many groups are asked for.
    """

    counts: Sequence[int] = ()

    def end(self, run: Simulation, found: dict[str, Any]) -> None:
        found["types"] = type_tests(run)
        if self.counts:
            by_count = {t: _clustering(run, t)["clustering_accuracy_h"] for t in self.counts}
            found["types"]["clustering_accuracy_by_count"] = by_count


def type_tests(run: Simulation, per_type: int = 60, neighbours: int = 10) -> dict[str, Any]:
    """How well test images of one type lie together, as h(x) and as the frozen feature GC-Net makes
    it from.

    The purity is the mean share of the nearest neighbours (cosine) that are of the image's own
    type. The maps are t-SNE of the same images, both with the same settings. The clustering
    accuracies say whether the server could tell types from the clients' mean vectors.
    """
    import torch
    import torch.nn.functional as F
    from sklearn.manifold import TSNE

    from fedbook.methods.clustering import frozen_feature

    index, types = _some_of_each_type(run, per_type)
    model = run.model.eval()
    x = run.device.images(run.federation.inputs(index))
    rows = {k: v[index] for k, v in run.precomputed.items()}
    label = torch.tensor(types)
    others = len(types) - 1
    out: dict[str, Any] = {"type": types} | _clustering(run)
    with torch.no_grad():
        vectors = {"h": model.h(x, **rows), "frozen": frozen_feature(model)(x, **rows)}  # type: ignore[operator]
    for name, v in vectors.items():
        unit = F.normalize(v.float().cpu(), dim=1)
        near = (unit @ unit.T).fill_diagonal_(-2).topk(min(neighbours, others)).indices
        out[f"knn_purity_{name}"] = float((label[near] == label[:, None]).float().mean())
        plane = TSNE(init="pca", perplexity=min(30, others), metric="cosine", random_state=0)
        out[f"map_{name}"] = plane.fit_transform(unit).round(2)
    return out


def _some_of_each_type(run: Simulation, per_type: int) -> tuple[Tensor, list[int]]:
    """Test images of every type, drawn with the run's seed, and their types."""
    import torch

    chosen = []
    types: list[int] = []
    for t in range(run.federation.num_types):
        pool = torch.unique(torch.cat([c.test for c in run.federation.clients if c.type == t]))
        order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(run.seed))
        chosen.append(pool[order[:per_type].sort().values.to(pool.device)])
        types += [t] * len(chosen[-1])
    return torch.cat(chosen), types


def _clustering(run: Simulation, count: int | None = None) -> dict[str, float]:
    """Accuracy of clustering the clients by their class-balanced mean vectors, into as many groups
    as there are types or as asked for.
    """
    import torch

    from fedbook.methods.clustering import class_balanced_mean, cluster

    federation = run.federation
    frozen = run.precomputed.get("cls")
    if frozen is None:
        return {}
    found = {}
    for name, v in {"frozen": frozen, "h": run.model.gc_net(frozen).detach()}.items():  # type: ignore[operator]
        of = []
        for c in federation.clients:
            y = federation.y[c.train]
            of.append(class_balanced_mean(v[c.train], y, federation.num_classes))
        groups = cluster(torch.stack(of), count or federation.num_types)
        types = [c.type for c in federation.clients]
        found[f"clustering_accuracy_{name}"] = float(metrics.clustering_accuracy(groups, types))
    return found
