"""Sliders over a picture: a plotting function, one slider per argument. Nothing is trained while a
slider moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedbook.errors import FedbookError


def explore(plot: Callable[..., Any], **choices: Sequence[Any]) -> Any:
    """Call `plot` with one value of each list, chosen by sliders: `explore(plot_alpha, alpha=[0.1,
    1, 10])`.

    The values are shown as they are listed, the first one to begin with. Works in JupyterLab,
    Notebook and Colab; in a notebook that is only read, not run, sliders do not move.
    """
    import matplotlib.pyplot as plt
    from ipywidgets import SelectionSlider, interactive

    for name, values in choices.items():
        if isinstance(values, str) or not len(values):
            raise FedbookError(
                f"{name} needs a list of values to choose from, got {values!r}",
                f"try {name}=[1, 2, 3]",
            )

    def draw(**chosen: Any) -> Any:
        result = plot(**chosen)
        plt.show()
        return result

    def slider(values: Sequence[Any]) -> Any:
        options = [(str(v), v) for v in values]
        return SelectionSlider(
            options=options, continuous_update=False, style={"description_width": "initial"}
        )

    return interactive(draw, **{name: slider(values) for name, values in choices.items()})
