"""PT-FedAvg: visual prompt tuning by FedAvg. Prompts and a linear head travel, the pretrained ViT stays where it is.

The baseline of Deng, Thrampoulidis and Li, "Heterogeneous Federated Learning with Group-Aware Prompt Tuning" (FGPT,
arXiv:2310.18285v1, section 4.2); the prompts are VPT-shallow of Jia et al., "Visual Prompt Tuning", ECCV 2022.

    [cls_1, Z_1, E_1] = L_1([cls_0, P_S, E_0]),   y = W_C cls_U          (section 2.2)
    [W_C, P_S] <- sum_{i in S_t} alpha_i [W_C, P_S]_i,   alpha_i = N_i / sum_{j in S_t} N_j

A method says what travels and how it is averaged, the model says where the prompts are; Table 11 has two of them:

    PT-FedAvg-share   build("vpt", federation)              S prompts at layer 1
    PT-FedAvg         build("vpt", federation, extra=1)     and one more entering at layer u (= FGPT with one group)

| symbol | here | default | where |
|---|---|---|---|
| S | `prompts` of the model | 5 | section 4.1 |
| u | `layer` of the model | 6 of 12, the middle | section 4.1 |
| E | `epochs` | 5 (2 in Table 8) | section 4.1 |
| gamma | `participation` | 1.0 | section 4.1: 0.05 CIFAR-100, 0.1 the others |
| SGD | `lr`, `momentum`, `weight_decay`, `batch_size` | 0.01, 0.9, 1e-5, 40 | not printed; code of its successor SGPT |

Differs from the paper: alpha_i is normalised over the participants (N_i / N as printed shrinks the model, and section
2.1's extra 1/M even more).
"""

from __future__ import annotations

from typing import Any

from fedbook.methods.fedavg import fedavg
from fedbook.rounds import Method


def pt_fedavg(
    epochs: int = 5,
    batch_size: int = 40,
    lr: float = 0.01,
    momentum: float = 0.9,
    weight_decay: float = 1e-5,
    **options: Any,
) -> Method:
    """FedAvg with FGPT's local settings, for a model of prompts; `options` are FedAvg's."""
    local = dict(epochs=epochs, batch_size=batch_size, lr=lr, momentum=momentum, weight_decay=weight_decay)
    return fedavg(**local, **options).replace(name="pt_fedavg")
