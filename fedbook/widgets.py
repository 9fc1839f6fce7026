"""Sliders over a picture: a plotting function, one slider per argument. Nothing is trained while a
slider moves."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from numbers import Real
from typing import Any

from fedbook.errors import FedbookError, unknown
from fedbook.notebook import display_figure


def explore(
    plot: Callable[..., Any], *, start: Mapping[str, Any] | None = None, **choices: Sequence[Any]
) -> Any:
    """Call `plot` with one value of each list, chosen by sliders: `explore(plot_alpha, alpha=[0.1,
    1, 10], start={"alpha": 1})`.

    Numbers stand in ascending order. A slider begins at its value in `start`, else at the first of
    its list. The first line of `plot`'s docstring, with the values chosen, describes the picture
    to those who cannot see it. Works in JupyterLab, Notebook and Colab. With FEDBOOK_STILL=1 in the
    environment the picture at the start is shown instead, for a notebook that is read, not run.
    """
    from ipywidgets import SelectionSlider, interactive

    first = {name: _first(name, values, start or {}) for name, values in choices.items()}
    for name in start or {}:
        if name not in choices:
            raise unknown("slider", name, list(choices))
    about = (plot.__doc__ or "").strip().split("\n")[0]

    if os.environ.get("FEDBOOK_STILL") == "1":
        plot(**first)
        _show_all(about, first, " Run the cell for a slider.")
        return None

    def draw(**chosen: Any) -> Any:
        result = plot(**chosen)
        _show_all(about, chosen)
        return result

    def slider(name: str) -> Any:
        options = [(str(v), v) for v in choices[name]]
        style = {"description_width": "initial"}
        return SelectionSlider(
            options=options, value=first[name], continuous_update=False, style=style
        )

    return interactive(draw, **{name: slider(name) for name in choices})


def _first(name: str, values: Sequence[Any], start: Mapping[str, Any]) -> Any:
    """Where a slider begins; refuses values that make no slider."""
    if isinstance(values, str) or not hasattr(values, "__len__") or not len(values):
        raise FedbookError(
            f"{name} needs a list of values to choose from, got {values!r}",
            f"try {name}=[1, 2, 3]",
        )
    numbers = [v for v in values if isinstance(v, Real)]
    if any(not a < b for a, b in pairwise(numbers)):
        raise FedbookError(
            f"{name} needs numbers in ascending order, got {list(values)}",
            f"sort them; start={{{name!r}: {values[0]!r}}} says where the slider begins",
        )
    if name in start and start[name] not in values:
        raise FedbookError(
            f"{name} cannot start at {start[name]!r}", f"choose one of {list(values)}"
        )
    return start.get(name, values[0])


def _show_all(about: str, chosen: Mapping[str, Any], more: str = "") -> None:
    """Show the open figures with their description, which is also the caption."""
    import matplotlib.pyplot as plt

    values = ", ".join(f"{name} = {value}" for name, value in chosen.items())
    alt = f"{about} Here {values}.".strip()
    for number in plt.get_fignums():
        display_figure(plt.figure(number), alt, alt + more)
