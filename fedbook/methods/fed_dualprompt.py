"""Fed-DualPrompt: FGPT's prompts with keys that are learned and averaged like everything else.

The baseline of Deng, Thrampoulidis and Li (FGPT, arXiv:2310.18285v1, section 4.2); learned keys are
from Wang et al., "DualPrompt: Complementary Prompting for Rehearsal-free Continual Learning", ECCV
2022.

    g(x) = argmax_g cos(h(x), b_g)
    l    = CE - c cos(h(x), b_g(x))                                                           (pull)
    [W_C, P_S, P_G, B] <- sum_{i in S_t} alpha_i [W_C, P_S, P_G, B]_i, alpha_i = N_i / sum_j N_j

The model is `models.build("fgpt", federation, learn_keys=True)`: shared prompts at layer 1, one of
G at layer u. FGPT is this method without (pull), with keys that stay where they were drawn, and
with weights of its own for P_G.

| symbol | here | default | where |
|---|---|---|---|
| c | `pull` | 1.0 | a public port of DualPrompt |
| lr of the keys | `key_lr` | that of the prompts | not printed |
| G | `groups` of the model | 20 | Table 3 |

Keys have no weight decay, so that a key no image of a client selects does not move there.

Differs from DualPrompt: one group prompt of length 1 as a token at layer u instead of prefixes of
length 5 at layers 3 to 5; keys begin orthogonal instead of uniform; every image selects for itself,
in training too, where the port takes the batch's majority. FGPT's paper says nothing of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.methods.pt_fedavg import pt_fedavg
from fedbook.models.prompts import FGPT
from fedbook.rounds import Batch, CrossEntropy, Local, Method, Objective
from fedbook.rounds.stages import State


@dataclass(frozen=True)
class KeyPull(Objective):
    """-c cos(h(x), b_g): every image draws the key it selected towards itself."""

    weight: float = 1.0

    def init(self, federation: Federation, model: nn.Module) -> State:
        if not FGPT.of(model).keys.requires_grad:
            raise FedbookError(
                "keys are to be learned, and the model's are fixed", "build it with learn_keys=True"
            )
        return {}

    def __call__(self, local: Local, batch: Batch, sent: State, memory: State) -> Tensor:
        if self.weight == 0:
            return torch.zeros((), device=batch.y.device)
        model = FGPT.of(local.model)
        query = model.query(batch.x, **batch.precomputed)
        return -self.weight * model.similarity(query).gather(1, model.select(query)).mean()


def key_settings(key_lr: float | None = None) -> tuple[tuple[str, dict[str, float]], ...]:
    """The solver's own settings for keys."""
    return (("keys", {"weight_decay": 0.0} | ({} if key_lr is None else {"lr": key_lr})),)


def fed_dualprompt(pull: float = 1.0, key_lr: float | None = None, **options: Any) -> Method:
    """Fed-DualPrompt with coefficient `pull`; `options` are PT-FedAvg's."""
    options["param_groups"] = (*options.get("param_groups", ()), *key_settings(key_lr))
    return pt_fedavg(**options).replace(
        name="fed_dualprompt", objective=(CrossEntropy(), KeyPull(pull))
    )
