"""FedAvg: local training, then the mean weighted by data size.

McMahan, Moore, Ramage, Hampson and Aguera y Arcas, "Communication-Efficient Learning of Deep
Networks from Decentralized Data", AISTATS 2017.

    w^{t+1} = sum_{k in S_t} p_k w_k^{t+1},    p_k = n_k / sum_{j in S_t} n_j

| symbol | here | default | where |
|---|---|---|---|
| S_t (fraction C) | `participation` | 1.0 (everybody) | Algorithm 1 |
| E | `epochs` | 1 | Algorithm 1 |
| B | `batch_size` | 32 | Algorithm 1 |
| eta | `lr` | 0.1 | Algorithm 1 |

Differs from the paper: p_k is normalised over the participants S_t, as everyone runs it; the
paper's Algorithm 1 prints n_k / n with n over all clients, which shrinks the model when only some
take part.
"""

from __future__ import annotations

from typing import Any

from fedbook.rounds import LocalSolver, Method, Uniform


def fedavg(participation: float | int = 1.0, **local: Any) -> Method:
    """FedAvg is what a `Method` is when nothing is replaced; `local` are the options of
    `LocalSolver`.
    """
    return Method("fedavg", sample=Uniform(participation), solve=LocalSolver(**local))
