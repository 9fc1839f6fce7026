"""One way to say "did you mean"."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a name that is not known: the nearest one, or the list of all."""
    known = list(known)
    near = difflib.get_close_matches(name, known, 1, 0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
