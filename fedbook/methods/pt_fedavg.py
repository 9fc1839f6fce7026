"""PT-FedAvg: visual prompt tuning by FedAvg. Prompts and a linear head travel, the pretrained ViT
stays where it is.

The baseline of Deng, Thrampoulidis and Li, "Heterogeneous Federated Learning with Group-Aware
Prompt Tuning" (FGPT, arXiv:2310.18285v1, section 4.2); the prompts are VPT-shallow of Jia et al.,
"Visual Prompt Tuning", ECCV 2022.

    [cls_1, Z_1, E_1] = L_1([cls_0, P_S, E_0]),   y = W_C cls_U          (section 2.2)
    [W_C, P_S] <- sum_{i in S_t} alpha_i [W_C, P_S]_i,   alpha_i = N_i / sum_{j in S_t} N_j

A method says what travels and how it is averaged, the model says where the prompts are; Table 11
has two of them:

    PT-FedAvg-share   build("vpt", federation)              S prompts at layer 1
    PT-FedAvg  build("vpt", federation, extra=1)  and one more entering at layer u (FGPT, one group)

The second is the PT-FedAvg of all tables: Table 8 prints 77.29 (0.33) for s = 10, E = 2, which is
its row in Table 11.

| symbol | here | default | where |
|---|---|---|---|
| S | `prompts` of the model | 5 | section 4.1 |
| u | `layer` of the model | 6 of 12, the middle | section 4.1 |
| E | `epochs` | 5 (2 in Table 8) | section 4.1 |
| gamma | `participation` | 1.0 | section 4.1: 0.05 CIFAR-100, 0.1 the others |
| SGD | `lr`, `momentum`, ... | 0.01, 0.9, 1e-5, 40 | not printed; SGPT's code |

`PromptSimilarity` logs the three columns of Table 11 each round: how much the participants' prompts
agree after local training (shared, and group by group), and how much the global group prompts agree
with each other.

Differs from the paper: alpha_i is normalised over the participants (N_i / N as printed shrinks the
model, and section 2.1's extra 1/M even more). Appendix D.4 does not say which similarity: here it
is the cosine of corresponding prompts, its mean over pairs of different clients (of different
groups for the global one). A client counts for a group prompt only if it changed it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedbook.methods.fedavg import fedavg
from fedbook.rounds import Method, Replace, Report
from fedbook.rounds.params import Params
from fedbook.rounds.stages import State


def mean_cosine(vectors: Tensor) -> float:
    """The mean cosine over all pairs of the first axis of [k, d], or of [k, n, d] for each of n,
    then over n.
    """
    k = len(vectors)
    unit = F.normalize(vectors, dim=-1)
    return float(((unit.sum(0).square().sum(-1) - k) / (k * (k - 1))).mean())


@dataclass(frozen=True)
class PromptSimilarity(Replace):
    """FedAvg's update, with the similarities of Table 11 in the log."""

    uploads: bool = field(default=True, kw_only=True)

    def __call__(
        self, state: State, server: Params, mean: Params, reports: list[Report]
    ) -> tuple[Params, State]:
        updated, state = super().__call__(state, server, mean, reports)
        prompts = [n for n in server if n.startswith(("prompts.", "groups."))]
        log = {}
        local = []
        for name in prompts:
            sent = [r["upload"][name] for r in reports]
            if name == "prompts.1" and len(sent) > 1:
                log["shared_prompt_similarity"] = mean_cosine(torch.stack(sent))
            elif name != "prompts.1":
                changed = [p for p in sent if bool((p != server[name]).any())]
                local += [mean_cosine(torch.stack(changed))] if len(changed) > 1 else []
        if local:
            log["group_prompt_similarity_local"] = sum(local) / len(local)
        groups = [updated[n] for n in prompts if n.startswith("groups.")]
        if len(groups) > 1:
            log["group_prompt_similarity_global"] = mean_cosine(torch.stack(groups))
        return updated, {**state, "log": log}


def pt_fedavg(
    epochs: int = 5,
    batch_size: int = 40,
    lr: float = 0.01,
    momentum: float = 0.9,
    weight_decay: float = 1e-5,
    **options: Any,
) -> Method:
    """FedAvg with FGPT's local settings, for a model of prompts; `options` are FedAvg's."""
    local = dict(
        epochs=epochs, batch_size=batch_size, lr=lr, momentum=momentum, weight_decay=weight_decay
    )
    return fedavg(**local, **options).replace(name="pt_fedavg", update=PromptSimilarity())
