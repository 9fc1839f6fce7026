"""Is an exercise solved, and if not, what kind of mistake is it? The answer is never shown."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbook.course.exercises import EXERCISES, Exercise
from fedbook.errors import unknown

_SOLVED: dict[str, bool] = {}
_HINTS: dict[str, int] = {}


def answer(id: str, got: Any, **given: Any) -> None:
    """Tell whether exercise `id` is solved by `got`, a value or a function; None means not tried.

    `given` are things of the notebook that the check needs.
    """
    exercise = find(id)
    verdict = judge(exercise, got, given)
    _SOLVED[id] = verdict == "right"
    print(f"{id} {verdict}")


def hint(id: str) -> None:
    """The next hint to an exercise; there are up to three."""
    hints = find(id).hints
    used = _HINTS.get(id, 0)
    if used == len(hints):
        print(f"{id} has no more hints; begin again with hint 1")
        _HINTS[id] = 0
        return
    _HINTS[id] = used + 1
    print(f"{id} hint {used + 1} of {len(hints)}: {hints[used]}")


def summary(notebook: str) -> None:
    """How many checked exercises of a notebook are solved: summary("01")."""
    ids = [id for id in EXERCISES if id.split(".")[0] == notebook]
    if not ids:
        raise unknown("notebook", notebook, sorted({id.split(".")[0] for id in EXERCISES}))
    left = [id for id in ids if not _SOLVED.get(id)]
    todo = f"; still to do: {', '.join(left)}" if left else ", well done"
    print(f"{len(ids) - len(left)} of {len(ids)} solved{todo}")


def find(id: str) -> Exercise:
    if id not in EXERCISES:
        raise unknown("exercise", id, EXERCISES)
    return EXERCISES[id]


# -- the kind of mistake ---------------------------------------------------------------------------
def judge(exercise: Exercise, got: Any, given: dict[str, Any] | None = None) -> str:
    """ "right", "still to do", or "not yet: " and what is wrong, in kind."""
    if got is None:
        return "still to do"
    if not exercise.cases:
        return _judged(exercise, got, exercise.expected(**(given or {})))
    if not callable(got):
        return "not yet: give the function itself, without calling it"
    for args in exercise.cases() if callable(exercise.cases) else exercise.cases:
        try:
            result = exercise.use(got, args)
        except Exception as error:
            return f"not yet: your function stops with {type(error).__name__}: {error}"
        if result is None:
            return "still to do"
        verdict = _judged(exercise, result, exercise.expected(*args))
        if verdict != "right":
            shown = ", ".join(_short(a) for a in args)
            return f"{verdict} (called with {shown})"
    return "right"


def _short(value: Any) -> str:
    """An argument, cut to what fits into a line."""
    if hasattr(value, "shape") and np.prod(value.shape) > 8:
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    return str(value.tolist() if hasattr(value, "tolist") else value)


def _judged(exercise: Exercise, got: Any, right: Any) -> str:
    expected = _array(right)
    asked = "one number" if expected.ndim == 0 else f"numbers of shape {expected.shape}"
    if isinstance(got, (bool, np.bool_, str)):
        return f"not yet: wrong type; {asked} is asked for, you gave a {type(got).__name__}"
    try:
        mine = _array(got)
    except (TypeError, ValueError):
        return f"not yet: wrong type; {asked} is asked for, you gave a {type(got).__name__}"
    if mine.shape != expected.shape:
        given = "one number" if mine.ndim == 0 else f"shape {mine.shape}"
        return f"not yet: wrong shape; {asked} is asked for, you gave {given}"
    if not np.isfinite(mine).all():
        return "not yet: not a finite number; look for a division by 0 or an overflow"
    whole = isinstance(right, (int, np.integer))
    rtol, atol = (0.0, 0.0) if whole else (exercise.rtol, exercise.atol)
    if np.allclose(mine, expected, rtol=rtol, atol=atol):
        return "right"
    return "not yet: " + _kind(mine, expected, whole)


def _array(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(value, dtype=np.float64)


def _kind(mine: np.ndarray, right: np.ndarray, whole: bool) -> str:
    """What is wrong with finite numbers of the right shape."""

    def like(a: np.ndarray, b: np.ndarray) -> bool:
        return bool(np.allclose(a, b, rtol=1e-3, atol=1e-9))

    if like(mine, -right):
        return "the sign is wrong"
    if like(mine, 100 * right):
        return "100 times too large: a share is asked for, not per cent"
    if not whole and np.allclose(mine, right, rtol=2e-2, atol=5e-3):
        return "nearly; do not round, give at least four digits"
    if mine.ndim == 0:
        if mine * right < 0:
            return "the sign is wrong, and the size too"
        return "too large" if abs(mine) > abs(right) else "too small"
    if like(np.sort(mine.ravel()), np.sort(right.ravel())):
        return "the right numbers in the wrong order"
    if right.sum() and mine.sum() and like(mine / mine.sum(), right / right.sum()):
        return "right up to a common factor; what should they add up to?"
    first = np.argmax(~np.isclose(mine.ravel(), right.ravel(), rtol=1e-3, atol=1e-9))
    size = "large" if mine.ravel()[first] > right.ravel()[first] else "small"
    return f"number {first + 1} of {mine.size} is the first that is wrong, too {size}"
