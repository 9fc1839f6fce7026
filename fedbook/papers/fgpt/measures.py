"""Whom FGPT's group prompts serve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedbook.measures import Measure, register

if TYPE_CHECKING:
    from fedbook.rounds import Simulation

NEAREST = 8


@register("served")
class Served(Measure):
    """Which training images choose which group prompt at the end."""

    def end(self, run: Simulation, found: dict[str, Any]) -> None:
        found["served"] = served(run)


def served(run: Simulation) -> dict[str, Any]:
    """Training images by type and group prompt, the images nearest to each key among those that
    chose it, and how much the groups tell of types and of classes (mutual information, adjusted for
    what chance would give).
    """
    import torch
    from sklearn.metrics import adjusted_mutual_info_score

    from fedbook.models.prompts import FGPT

    model = FGPT.of(run.model).eval()
    clients = run.federation.clients
    type_of = {i: c.type for c in clients for i in c.train.tolist()}  # clients may share images
    index = torch.tensor(sorted(type_of), device=clients[0].train.device)
    kind = torch.tensor([type_of[i] for i in index.tolist()])
    with torch.no_grad():
        near = model.similarity(run.precomputed["cls"][index]).cpu()
    group = near.argmax(1)
    counts = torch.zeros(run.federation.num_types, near.shape[1], dtype=torch.long)
    counts.index_put_((kind, group), torch.ones_like(group), accumulate=True)
    images = []
    for g in range(near.shape[1]):
        order = near[:, g].masked_fill(group != g, -2).argsort(descending=True, stable=True)
        mine = order[: min(NEAREST, int((group == g).sum()))]
        images.append(index[mine.to(index.device)].tolist())
    classes = run.federation.y[index].cpu()
    return {
        "counts": counts.tolist(),
        "images": images,
        "tells_type": float(adjusted_mutual_info_score(kind, group)),
        "tells_class": float(adjusted_mutual_info_score(classes, group)),
    }
