"""Whom FGPT's group prompts serve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedbook.measures import Measure, register

if TYPE_CHECKING:
    from fedbook.rounds import Simulation

NEAREST = 8


@register("served")
class Served(Measure):
    """Which test images choose which group prompt at the end."""

    def end(self, run: Simulation, found: dict[str, Any]) -> None:
        found["served"] = served(run)


def served(run: Simulation) -> dict[str, Any]:
    """Test images by type and group prompt, the images nearest to each key among those that chose
    it, and how much the groups tell of types and of classes (normalised mutual information).
    """
    import torch
    from sklearn.metrics import normalized_mutual_info_score

    from fedbook.models.prompts import FGPT

    model = FGPT.of(run.model).eval()
    clients = run.federation.clients
    index = torch.cat([c.test for c in clients])
    kind = torch.cat([torch.full_like(c.test, c.type) for c in clients])
    with torch.no_grad():
        near = model.similarity(run.precomputed["cls"][index]).cpu()
    group = near.argmax(1)
    counts = torch.zeros(run.federation.num_types, near.shape[1], dtype=torch.long)
    counts.index_put_((kind.cpu(), group), torch.ones_like(group), accumulate=True)
    images = []
    for g in range(near.shape[1]):
        order = near[:, g].masked_fill(group != g, -2).argsort(descending=True, stable=True)
        mine = order[: min(NEAREST, int((group == g).sum()))]
        images.append(index[mine.to(index.device)].tolist())
    classes = run.federation.y[index].cpu()
    return {
        "counts": counts.tolist(),
        "images": images,
        "nmi_type": float(normalized_mutual_info_score(kind.cpu(), group)),
        "nmi_class": float(normalized_mutual_info_score(classes, group)),
    }
