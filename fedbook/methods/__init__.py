"""Methods by the names the published tables use: `get("fedavgm", server_momentum=0.9, lr=0.05)`.

One file per method, holding only what its paper adds to FedAvg. To add your own, write such a file
with a function of the method's name and add the name here; or compose stages directly:
`get("fedavg").replace(weigh=...)`.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from fedbook import own
from fedbook.errors import FedbookError, unknown
from fedbook.rounds import LocalSolver, Method

BUILT = (
    "fedavg",
    "fedavgm",
    "fedadam",
    "fedprox",
    "scaffold",
    "fedbn",
    "ditto",
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
# who passes its further options on to whom
PASSES_ON = {"fgpt": "pt_fedavg", "fed_dualprompt": "pt_fedavg", "pfedhn": "pt_fedavg"}


class UnknownOption(FedbookError):
    """An option that a method does not have; `known` are those it has."""

    def __init__(self, method: str, option: str, known: Iterable[str]) -> None:
        told = unknown(f"option of {method}", option, known)
        super().__init__(told.message, told.hint)
        self.method = method
        self.option = option
        self.known = list(known)

    def __reduce__(self) -> Any:
        return UnknownOption, (self.method, self.option, self.known)


def names() -> list[str]:
    """Every method that can be run."""
    return list(BUILT)


def builder(name: str) -> Callable[..., Method]:
    """The function that makes the method of that name, or of `my.py:mine`."""
    if own.is_own(name):
        return _own(name)
    if name not in BUILT:
        raise unknown("method", name, BUILT)
    return getattr(importlib.import_module(f"fedbook.methods.{name}"), name)


def _own(name: str) -> Callable[..., Method]:
    """A function in a file that returns a method, or a method that is there already."""
    found = own.load(name)
    if isinstance(found, Method):
        return lambda: found
    if not callable(found):
        raise FedbookError(
            f"{name} is a {type(found).__name__}",
            "it must be a Method or a function that makes one",
        )
    return found


def options(name: str) -> dict[str, Any]:
    """Every option of a method with its default: its own, then FedAvg's."""
    found: dict[str, Any] = {}
    open_ended = False
    for p in inspect.signature(builder(name)).parameters.values():
        open_ended = open_ended or p.kind is p.VAR_KEYWORD
        if p.kind is not p.VAR_KEYWORD:
            found[p.name] = p.default
    if own.is_own(name) and not open_ended:
        return found
    if name == "fedavg":
        found |= {f.name: f.default for f in dataclasses.fields(LocalSolver)}
    else:
        found |= {k: v for k, v in options(PASSES_ON.get(name, "fedavg")).items() if k not in found}
    return found


def get(name: str, quirks: Iterable[str] = (), **settings: Any) -> Method:
    """The method of that name with its own and FedAvg's options, changed by `quirks` if any.

    `help(name)` lists the options.
    """
    build = builder(name)
    try:
        method = build(**settings)
    except UnknownOption as error:  # of the method it passes its options on to
        known = dict.fromkeys([*options(name), *error.known])
        raise UnknownOption(name, error.option, known) from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        known = options(name)
        wrong = [s for s in settings if s not in known]
        if wrong:
            raise UnknownOption(name, wrong[0], known) from None
        raise FedbookError(f"{name}: {error}", f"see methods.help({name!r})") from None
    if not isinstance(method, Method):
        hint = "end it with `return methods.get(...).replace(...)`"
        raise FedbookError(f"{name} returned a {type(method).__name__}, not a Method", hint)
    if quirks:
        from fedbook.methods import quirks as published

        method = published.apply(method, quirks)
    return method


def help(name: str) -> None:
    """Print a method's citation, equations and symbols, and every option with its default."""
    build = builder(name)
    print(inspect.getdoc(importlib.import_module(f"fedbook.methods.{name}")))
    print(f"\n{build.__doc__ or ''}\n\nOptions:")
    for option, default in options(name).items():
        print(f"  {option} = {default!r}")
