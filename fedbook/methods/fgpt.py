"""FGPT: shared prompts for everybody, one prompt per group of images that look alike, averaged
group by group.

Deng, Thrampoulidis and Li, "Heterogeneous Federated Learning with Group-Aware Prompt Tuning",
arXiv:2310.18285v1, 2023.

    g = Select(x) = argmax_g cos(h_theta(x), b_g)                                                (5)
    [cls_1, Z_1, E_1] = L_1([cls_0, P_S, E_0])                                                   (2)
    [cls_u, z_u, Z_u, E_u] = L_u([cls_{u-1}, p_g, Z_{u-1}, E_{u-1}]),   y = W_C cls_U       (3), (4)
    [W_C, P_S] <- sum_{i in S_t} alpha_i [W_C, P_S]_i, alpha_i = N_i / sum_j N_j   Alg. 1 line 17
    p_g        <- sum_{i in S_t} beta_g^i p_g^i, beta_g^i = N_g^i / sum_j N_g^j    Alg. 1 line 19

(2)-(5) are the model, `models.build("fgpt", federation)`; the method is the last line, and this is
all of it:

    fgpt   = pt_fedavg.replace(weigh=(GroupCounts(),))
    FGPT-U = the same with models.build("fgpt", federation, top_k=5): five nearest groups, averaged
    both   = get("fgpt", base="fedmix"): the same stage on another method (Table 9)

| symbol | here | default | where |
|---|---|---|---|
| G | `groups` of the model | 20 | Table 3: best 20 for s = 10, 25 for s = 5; 5 for Five-Dataset |
| S, u | `prompts`, `layer` of the model | 5, 6 of 12 | section 4.1 |
| B | `keys`, `key_seed` of the model | orthogonal (QR), never trained | section 3.3 |
| K | `top_k` of the model | 1; 5 is FGPT-U | Algorithms 2, 3; Table 6 |
| N_g^i | `counts` | | Algorithm 1: how often client i selects g, one count per training image |

A client sends its G counts with its parameters. The server keeps nothing. The log has each round's
`usage` (the sum of the counts over the participants), its `total` over the rounds so far, and the
`effective` number of groups, exp of the entropy of that total: keys that collapse show there. A
client never seen needs nothing: `evaluate(run.model, others)`.

Differs from the paper:
- alpha_i is normalised over the participants; N_i / N as printed shrinks the model.
- N_g = 0 among the participants leaves beta undefined: p_g stays as it is. A prompt no image of a
  client selects gets neither gradient nor momentum nor weight decay there.
- Fig. 1b queries with the shared prompts in place, (5) and Algorithm 2 without. Default is (5);
  `prompted_query=True` of the model is the figure. Where a selection changes during training
  (there, and with learned keys), the counts are those at the received model.
Options of the model for what may go wrong or may be cheaper: `keys="random"` (Table 4),
`centre=True`, `relu=True`, `selector="light"` (Table 10's ResNet-50; offline an
EfficientNet-lite0).

Differs from the successor (SGPT, CVPR 2024, same arXiv number). Its keys are learned: `pull=1.0`
with a model of `learn_keys=True, relu=True` adds -cos(h, b_g) to the loss and moves b_g to ema b_g
+ (1 - ema) sum_i beta_g^i b_g^i on the server, `key_ema=0.5`; `threshold=50` weighs clients alike
in groups selected no more than 50 times. Not here: its load balancing during training, two training
stages per round, several prompted layers, data-size weights for p_g.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.methods import get
from fedbook.methods.fed_dualprompt import KeyPull, key_settings
from fedbook.methods.pt_fedavg import PromptSimilarity
from fedbook.models.prompts import FGPT
from fedbook.rounds import BySize, Local, Method, Report, Weigh
from fedbook.rounds.params import Params
from fedbook.rounds.stages import State
from fedbook.rounds.weights import LogWeights


@dataclass(frozen=True)
class GroupCounts(Weigh):
    """alpha_i for everything, beta_g^i for the prompt of group g."""

    threshold: int = 0

    def init(self, federation: Federation, model: nn.Module) -> State:
        return {"total": [0] * len(FGPT.of(model).groups)}

    @torch.no_grad()
    def measure(self, local: Local, memory: State) -> State:
        model = FGPT.of(local.model)
        known = local.precomputed.get("cls")
        chosen = []
        for part in local.client.train.split(256):
            query = model.query(local.federation.inputs(part)) if known is None else known[part]
            chosen.append(model.select(query)[:, 0])
        return {"counts": torch.bincount(torch.cat(chosen), minlength=len(model.groups))}  # N_g^i

    def __call__(self, state: State, reports: list[Report]) -> tuple[LogWeights, State]:
        default, _ = BySize()({}, reports)
        counts = torch.stack([r["counts"].cpu() for r in reports])
        usage = counts.sum(0)
        beta = level(counts, self.threshold).double().log()
        scores = {"": default} | {f"groups.{g}": beta[:, g] for g in range(len(usage))}
        total = [a + b for a, b in zip(state["total"], usage.tolist())]
        log = {"usage": usage.tolist(), "total": total, "effective": effective(total)}
        return scores, {**state, "total": total, "log": log}


def level(counts: Tensor, threshold: int) -> Tensor:
    """Counts [client, group] in which everybody counts alike for a group that few images chose."""
    usage = counts.sum(0)
    few = (usage > 0) & (usage <= threshold)
    return torch.where(few, torch.ones_like(counts), counts)


def effective(counts: list[int]) -> float:
    """exp of the entropy: G if all groups are used alike, 1 if only one is."""
    shares = [c / sum(counts) for c in counts if c]
    return math.exp(-sum(p * math.log(p) for p in shares))


@dataclass(frozen=True)
class AveragedKeys(PromptSimilarity):
    """Learned keys, SGPT: each row weighed by its own counts, and moved only part of the way."""

    ema: float = 0.5
    threshold: int = 0

    def __call__(
        self, state: State, server: Params, mean: Params, reports: list[Report]
    ) -> tuple[Params, State]:
        old = server["keys"]
        keys = torch.stack([r["upload"]["keys"] for r in reports])
        counts = level(torch.stack([r["counts"] for r in reports]), self.threshold).to(old)
        moved = torch.einsum("ig,igd->gd", counts, keys) / counts.sum(0).clamp(min=1)[:, None]
        used = counts.sum(0) > 0
        new = torch.where(used[:, None], torch.lerp(moved, old, self.ema), old)
        return super().__call__(state, server, {**mean, "keys": new}, reports)


def fgpt(
    base: str = "pt_fedavg",
    threshold: int = 0,
    pull: float = 0.0,
    key_ema: float = 0.5,
    **options: Any,
) -> Method:
    """FGPT on a base method, whose `options` these are; `threshold`, `pull` and `key_ema` belong to
    the successor.
    """
    if "groups" in options:
        raise FedbookError(
            "the number of groups is the model's", 'use models.build("fgpt", federation, groups=20)'
        )
    if pull:
        options["param_groups"] = (*options.get("param_groups", ()), *key_settings())
    method = get(base, **options)
    if method.weigh != (BySize(),):
        raise FedbookError(
            f"FGPT weighs clients group by group, and {base} weighs them too", "use another base"
        )
    if pull:
        method = method.replace(
            objective=(*method.objective, KeyPull(pull)), update=AveragedKeys(key_ema, threshold)
        )
    return method.replace(name="fgpt", weigh=(GroupCounts(threshold),))
