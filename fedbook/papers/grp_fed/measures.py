"""GRP-FED's four tests of the global and the personal models."""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedbook import metrics
from fedbook.measures import Measure, register

if TYPE_CHECKING:
    from fedbook.rounds import Simulation


@register("local_tests")
class LocalTests(Measure):
    """The four tests at the end, and over the rounds how many clients the weights amount to."""

    def end(self, run: Simulation, found: dict[str, Any]) -> None:
        found["local"] = local_tests(run)
        seen = [r for r in run.records if r.round in found["rounds"]]
        effective = [metrics.effective_clients(r.weights) for r in seen]
        found["curves"]["effective_clients"] = effective


def local_tests(run: Simulation) -> dict[str, Any]:
    """GRP-FED's T_g, T_p, T_r, T_l in macro-F1, on everybody's test samples together and on each
    client's own.

    A method without a global model is tested globally by the ensemble of its clients' models (mean
    probabilities). `near` and `far` are the same four for two clients, those whose class mix is
    nearest to and farthest from that of all (total variation); their t_g is the global model's
    score on the client's own test samples. `effective_clients` is the mean over rounds.
    """
    import torch

    federation = run.federation
    classes = federation.num_classes
    last = run.records[-1]
    personal = run.method.personal
    everybody = torch.unique(torch.cat([c.test for c in federation.clients]))
    labels = federation.y[everybody].cpu()

    @torch.no_grad()
    def probabilities(model: Any) -> Any:
        model.eval()
        parts = []
        for index in everybody.split(512):
            rows = {k: v[index] for k, v in run.precomputed.items()}
            logits = model(run.device.images(federation.inputs(index)), **rows)
            parts.append(logits.float().softmax(1))
        return torch.cat(parts)

    def score(p: Any) -> float:
        return metrics.macro_f1(labels, p.argmax(1).cpu(), classes)

    alone = personal is not None and not run.has_global
    together: Any = 0.0 if alone else probabilities(run.model)
    everywhere: list[float] = []
    for c in federation.clients if personal else ():
        p = probabilities(run.personal_model(c))
        everywhere.append(score(p))
        together = together + p if alone else together
    t_g = score(together)
    everywhere = everywhere or [t_g] * len(federation)
    own = (last.personal_f1 if personal else last.test_f1) or []
    tested = [i for i, p in enumerate(own) if math.isfinite(p)]
    out: dict[str, Any] = {
        "t_g": t_g,
        "best_client": max(own[i] for i in tested),
        "worst_client": min(own[i] for i in tested),
    }
    out |= metrics.local_tests([own[i] for i in tested], [everywhere[i] for i in tested])
    out["effective_clients"] = fmean(metrics.effective_clients(r.weights) for r in run.records)

    counts = torch.stack([federation.class_counts(c) for c in federation.clients]).double().cpu()
    apart = (counts / counts.sum(1, keepdim=True) - counts.sum(0) / counts.sum()).abs().sum(1) / 2
    for name, pick in (("near", min), ("far", max)):
        i = pick(tested, key=lambda k: float(apart[k]))
        rows = torch.searchsorted(everybody, federation.clients[i].test).cpu()
        guess = together.argmax(1).cpu()[rows]
        out[name] = {
            "client": federation.clients[i].id,
            "t_g": metrics.macro_f1(labels[rows], guess, classes, "present"),
            **metrics.local_tests([own[i]], [everywhere[i]]),
        }
    return out | {"class_counts": counts.int().tolist()}
