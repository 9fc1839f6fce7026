"""One error for everything a user can put right: what was expected, what came, and what to do about
it."""

from __future__ import annotations


class FedbookError(Exception):
    """A mistake in the input or the surroundings, told in one line, with a hint."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} ({hint})" if hint else message)
        self.message, self.hint = message, hint
