"""MOON: features stay near those of the received model, and away from those of the client's last
local one.

Li, He and Song, "Model-Contrastive Federated Learning", CVPR 2021 (FedMoon in FGPT).

    l = CE + mu l_con,
    l_con = -log exp(z.z_glob / tau) / (exp(z.z_glob / tau) + exp(z.z_prev / tau)), z.y: cosine  (3)

z is the feature of an image under the model being trained, z_glob under the one received, z_prev
under the client's own after its last turn; the last two without gradient, in eval mode.

| symbol | here | default | where |
|---|---|---|---|
| mu | `mu` | 1.0 | the authors' code; the paper tunes 0.1 to 10, Client2Vec 0.01 to 1 |
| tau | `tau` | 0.5 | the paper; Client2Vec |
| projection head | `projection` | None: z is `model.embed(x)` | 256 in the paper |

Until a client has had a turn there is no z_prev, and the term is left out. Taking z_prev = z_glob
instead would add the constant log 2 and no gradient. z_glob and z_prev do not change during a turn,
so they are computed once per image.

`projection=256` is the paper's network: two linear layers with a ReLU between, from which both z
and a new head read. They begin the same in every run.

Differs from the authors' code: there, from round 2 on, a client that was never drawn takes its own
random network for its last local model. Every client keeps one former model (their default), its
BatchNorm statistics included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.methods.fedavg import fedavg
from fedbook.rounds import Batch, CrossEntropy, Local, Method, Objective
from fedbook.rounds.evaluation import precompute
from fedbook.rounds.lockstep import Lockstep, Step
from fedbook.rounds.params import Params, body, clone, copy_into, shared_state
from fedbook.rounds.stages import State


def contrast(
    x: Tensor,
    candidates: Tensor,
    target: int | Tensor,
    tau: float,
    similarity: str = "cosine",
    reduction: str = "mean",
) -> Tensor:
    """-log softmax(x.candidates / tau)[target], mean over the batch.

    `candidates` are [M, d], the same for all, or [B, M, d], for each x its own; so is `target`.
    """
    candidates = candidates.expand(len(x), -1, -1)
    if similarity == "cosine":
        s = F.cosine_similarity(x[:, None], candidates, dim=2)
    else:
        s = (x[:, None] * candidates).sum(2)
    if isinstance(target, int):
        target = torch.full((len(x),), target, device=x.device)
    return F.cross_entropy(s / tau, target, reduction=reduction)


def check_contrast(stage: Any) -> None:
    """Refuse a weight, temperature or similarity that `contrast` cannot use."""
    if not stage.weight >= 0:
        raise FedbookError(
            f"the weight must be at least 0, got {stage.weight}", "0 switches it off"
        )
    if not stage.tau > 0:
        raise FedbookError(f"tau must be positive, got {stage.tau}", "try tau=0.5")
    if stage.similarity not in ("cosine", "dot"):
        raise FedbookError(f"unknown similarity {stage.similarity!r}", "use 'cosine' or 'dot'")


class Projected(nn.Module):
    """A model whose features pass through a projection head before they are classified."""

    def __init__(self, model: Any, width: int, classes: int) -> None:
        super().__init__()
        features = getattr(model.head, "in_features", None)
        if features is None:
            raise FedbookError(
                f"a projection needs a model with a linear head, got {type(model.head).__name__}",
                "use projection=None",
            )
        model.head = nn.Identity()
        self.model = model
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.projection = nn.Sequential(
                nn.Linear(features, features), nn.ReLU(), nn.Linear(features, width)
            )
            self.head = nn.Linear(width, classes)

    def embed(self, x: Tensor, **precomputed: Tensor) -> Tensor:
        return self.projection(self.model.embed(x, **precomputed))

    def forward(self, x: Tensor, **precomputed: Tensor) -> Tensor:
        return self.head(self.embed(x, **precomputed))

    def precompute(self, federation: Federation) -> dict[str, Tensor]:
        return precompute(self.model, federation)


@dataclass(frozen=True)
class ModelContrast(Objective):
    """weight l_con: z towards what the received model makes of the image, away from what the
    client's last local model makes of it.

    Neither changes while the client trains: both are computed once per image and round.
    """

    weight: float = 1.0
    tau: float = 0.5
    projection: int | None = None
    similarity: str = "cosine"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_contrast(self)

    def adapt(self, model: nn.Module, federation: Federation, known: State) -> nn.Module:
        if self.projection is None:
            return model
        return Projected(model, self.projection, federation.num_classes)

    def begin(self, local: Local, sent: State, memory: State) -> None:
        if "previous" not in memory or self.weight == 0:
            return
        index = local.client.train.sort().values
        live = shared_state(local.model)
        z_glob = local.features(index)
        here = clone({name: live[name] for name in memory["previous"]})
        copy_into(live, memory["previous"])
        z_prev = local.features(index)
        copy_into(live, here)
        memory |= {"index": index, "z": torch.stack([z_glob, z_prev], 1)}

    def ahead(self, engine: Lockstep, slot: str, turns: list[Local], starts: list[Params]) -> None:
        """The same as `begin`, for many clients."""
        asked = []
        for local, start in zip(turns, starts):
            memory = local.memory[slot]
            if "previous" in memory and self.weight > 0:
                memory["index"] = local.client.train.sort().values
                asked.append((memory, start))
        index = [memory["index"] for memory, _ in asked]
        here = engine.received(turns[0].round, [start for _, start in asked], index)
        before = engine.passes([start | memory["previous"] for memory, start in asked], index)
        for (memory, _), z_glob, (z_prev, _) in zip(asked, here, before):
            memory["z"] = torch.stack([z_glob, z_prev], 1)

    def __call__(self, local: Local, batch: Batch, sent: State, memory: State) -> Tensor:
        if "z" not in memory:
            return torch.zeros((), device=batch.y.device)
        others = memory["z"][torch.searchsorted(memory["index"], batch.index)]
        return self.weight * contrast(
            batch.z, others, target=0, tau=self.tau, similarity=self.similarity
        )  # (3)

    def together(self, step: Step, slot: str) -> Tensor:
        kept = [local.memory[slot] for local in step.clients]
        if not all("z" in memory for memory in kept):
            return step.one_by_one(self, slot)
        others = []
        for memory, part in zip(kept, step.parts):
            others.append(memory["z"][torch.searchsorted(memory["index"], part)])
        l_con = contrast(
            step.z,
            torch.cat(others),
            target=0,
            tau=self.tau,
            similarity=self.similarity,
            reduction="none",
        )
        return self.weight * step.layout.mean(l_con)

    def end(self, local: Local, sent: State, memory: State) -> State:
        for name in ("index", "z"):
            memory.pop(name, None)
        if self.weight > 0:
            memory["previous"] = clone(body(shared_state(local.model)))
        return {}


def moon(
    mu: float = 1.0, tau: float = 0.5, projection: int | None = None, **options: Any
) -> Method:
    """MOON with weight `mu` and temperature `tau`; `options` are FedAvg's."""
    term = ModelContrast(mu, tau, projection)
    return fedavg(**options).replace(name="moon", objective=(CrossEntropy(), term))
