"""Local: every client trains alone, nothing is ever sent.

The baseline without a federation, of Chou et al., "GRP-FED", 2021 (Table 1).

    w_m <- SGD on F_m(w_m), from the same w^0 for all                                            (a)

| symbol | here | default | where |
|---|---|---|---|
| R | `epochs`, each round | 1 | GRP-FED 5 |

A round is only a moment at which everybody is tested. The global test is that of the ensemble: the
mean of all clients' probabilities (`fedbook.experiment.local_tests`), as LG-FedAvg has it and
GRP-FED follows. Differs from the paper: it does not say how long its clients train; here rounds x
epochs, and the optimiser starts afresh each round, as for all other methods.
"""

from __future__ import annotations

from typing import Any

from fedbook.methods.fedavg import fedavg
from fedbook.rounds import Method, Personal


def local(**options: Any) -> Method:
    """Training alone; `options` are FedAvg's."""
    return fedavg(**options).replace(name="local", personal=Personal(("*",)))  # (a)
