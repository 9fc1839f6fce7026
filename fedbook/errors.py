"""One error for everything a user can put right: what was expected, what came, and what to do about
it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

LONGEST = 1000


class FedbookError(Exception):
    """A mistake in the input or the surroundings, told in one line, with a hint."""

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = _one_line(message)
        self.hint = _one_line(hint)
        super().__init__(f"{self.message} ({self.hint})" if hint else self.message)

    def __reduce__(self) -> Any:
        return type(self), (self.message, self.hint)


class Diverged(FedbookError):
    """A run whose loss or parameters are no numbers any more: an outcome, not a mistake."""


def _one_line(text: str) -> str:
    """Without line breaks, and not longer than can be read: libraries quote at length."""
    line = " ".join(str(text).split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."


def unknown(what: str, name: str, known: Iterable[str], see: str = "") -> FedbookError:
    """The error for a name that is not known: it suggests the nearest one, else where to look."""
    import difflib

    names = [str(k) for k in known]
    near = difflib.get_close_matches(str(name), names, 1, 0.5)
    hint = f"did you mean {near[0]}?" if near else see or f"known: {', '.join(names)}"
    return FedbookError(f"unknown {what} {name!r}", hint)


def whole(name: str, value: Any, least: int = 1) -> None:
    """Refuse a setting that is no whole number of at least so much; True is none."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise FedbookError(
            f"{name} must be a whole number of at least {least}, got {value!r}",
            f"try {name}={least}",
        )
