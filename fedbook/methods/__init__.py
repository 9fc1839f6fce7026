"""Methods by the names the published tables use: `get("fedavgm", server_momentum=0.9, lr=0.05)`.

One file per method, holding only what its paper adds to FedAvg. To add your own, write such a file
with a function of the method's name and add the name here; or compose stages directly:
`get("fedavg").replace(weigh=...)`.
"""

from __future__ import annotations

import difflib
import importlib
from typing import Any

from fedbook.errors import FedbookError
from fedbook.rounds import Method

BUILT = (
    "fedavg",
    "fedavgm",
    "feddyn",
    "fedlc",
    "fediir",
    "client2vec",
    "fedgcr",
    "afl",
    "fedmix",
    "fed_dualprompt",
    "fedsam",
    "fgpt",
    "grp_fed",
    "harmofl",
    "lg_fedavg",
    "local",
    "moon",
    "per_fedavg",
    "pfedhn",
    "pfedme",
    "pt_fedavg",
    "q_ffl",
    "term",
)


def names() -> list[str]:
    """Every method that can be run."""
    return list(BUILT)


def get(name: str, **options: Any) -> Method:
    """The method of that name with its own and FedAvg's options (participation, lr, epochs,
    batch_size, ...).
    """
    if name not in BUILT:
        near = difflib.get_close_matches(name, BUILT, 1)
        raise FedbookError(
            f"unknown method {name!r}",
            f"did you mean {near[0]!r}?" if near else f"known: {', '.join(BUILT)}",
        )
    build = getattr(importlib.import_module(f"fedbook.methods.{name}"), name)
    try:
        return build(**options)
    except TypeError as error:
        raise FedbookError(
            f"method {name!r}: {error}", "see the options in its docstring"
        ) from None
