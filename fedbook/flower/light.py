"""A client's process lives for one message: what it does not need, it does not import.

torch's compiler takes as long to import as the rest of torch. Optimisers and timm import it to be
left alone by it, torchvision to ask what it can do. Here nobody compiles, so stand-ins answer;
whoever wants more of the compiler than that gets the real one.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


def disable(fn: Any = None, *_: Any, **__: Any) -> Any:
    """What is never compiled need not be kept from it."""
    return disable if fn is None else fn


def is_compile_supported(device: str) -> bool:
    return False


def graph_break() -> None:
    """There is no graph."""


ANSWERS: dict[str, list[Any]] = {
    "torch._dynamo": [disable, graph_break],
    "torch._dynamo.utils": [is_compile_supported],
}


class StandIn(ModuleType):
    """Answers what is usually asked of it."""

    def __getattr__(self, name: str) -> Any:
        part = self.__name__ == "torch._dynamo" and name == "__path__"  # a part of it is wanted
        if name.startswith("__") and not part:  # what the import system asks of any module
            raise AttributeError(name)
        for other in ANSWERS:
            if isinstance(sys.modules.get(other), StandIn):
                del sys.modules[other]
        return getattr(importlib.import_module(self.__name__), name)


def without_compiler() -> None:
    """Keep torch's compiler out of this process, unless it is in already."""
    if "torch._dynamo" in sys.modules:
        return
    for name, answers in ANSWERS.items():
        sys.modules[name] = StandIn(name)
        for answer in answers:
            setattr(sys.modules[name], answer.__name__, answer)
