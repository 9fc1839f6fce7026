"""What notebooks share: an opening line about the surroundings, figures with descriptions, checked
answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedbook.errors import FedbookError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def start(scale: str = "smoke") -> None:
    """Give figures the book's look and print one line: versions, device, scale."""
    import matplotlib.pyplot as plt
    import torch

    from fedbook import __version__, plots

    if scale not in ("smoke", "laptop", "paper"):
        raise FedbookError(f"unknown scale {scale!r}", "use 'smoke', 'laptop' or 'paper'")
    book: Any = plots.STYLE
    plt.rcParams.update(book)
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    print(f"fedbook {__version__} | torch {torch.__version__} | {device} | {scale} scale")
    if scale == "paper" and device == "cpu":
        print("no GPU: paper scale would take days here; choose SCALE = 'smoke' or 'laptop'")


def show(fig: Figure, alt: str) -> None:
    """Display a figure with a description (alt text) for those who cannot see it, and close it."""
    import matplotlib.pyplot as plt
    from IPython.display import display

    if not alt.strip():
        raise FedbookError(
            "a figure needs a description", 'say what it shows: show(fig, alt="...")'
        )
    display(fig, metadata={"image/png": {"alt": alt}})
    plt.close(fig)


def answer(got: Any, expected: Any) -> None:
    """Tell whether an exercise is solved; None means it has not been tried."""
    if got is None:
        print("still to do")
        return
    try:
        right = np.allclose(np.asarray(got, float), np.asarray(expected, float), atol=1e-6)
    except (TypeError, ValueError):
        right = False
    print("right" if right else f"not yet: got {got}, expected {expected}")


def five_stages() -> Figure:
    """One round as five boxes, from the server to the clients and back; below: FedAvg's choice and
    who replaces it.
    """
    import matplotlib.pyplot as plt

    from fedbook import plots

    boxes = (
        ("1 sample", "who takes part", "uniform", "Client2Vec", plots.BLUE),
        (
            "2 objective",
            "what a client\nminimises",
            "cross-entropy",
            "FedGCR, GRP-FED,\nClient2Vec",
            plots.RED,
        ),
        ("3 solve", "how it minimises", "SGD epochs", "FedSAM, pFedMe", plots.RED),
        (
            "4 weigh",
            "what each\nclient counts",
            "n_k / sum n",
            "FedGCR, GRP-FED,\nFGPT, Client2Vec",
            plots.BLUE,
        ),
        (
            "5 update",
            "how the server\nmoves",
            "replace by\nthe mean",
            "FedAvgM, GRP-FED",
            plots.BLUE,
        ),
    )
    fig, ax = plt.subplots(figsize=(9.4, 3.0))
    ax.set(xlim=(0, 5), ylim=(-0.08, 1.02))
    ax.set_axis_off()
    for i, (name, question, plain, replaced, colour) in enumerate(boxes):
        ax.add_patch(
            plt.Rectangle(
                (i + 0.04, 0.56), 0.84, 0.4, facecolor="white", edgecolor=colour, linewidth=2
            )
        )
        ax.text(
            i + 0.46, 0.87, name, ha="center", va="center", weight="bold", color=colour, fontsize=11
        )
        ax.text(i + 0.46, 0.69, question, ha="center", va="center")
        ax.text(i + 0.46, 0.40, plain, ha="center", va="center", family="monospace", fontsize=8.5)
        ax.text(i + 0.46, 0.16, replaced, ha="center", va="center", color="#555555")
        if i < 4:
            ax.annotate(
                "",
                (i + 1.04, 0.76),
                (i + 0.88, 0.76),
                arrowprops={"arrowstyle": "-|>", "color": "black"},
            )
    for y, label in ((0.52, "FedAvg:"), (0.27, "replaced by:")):
        ax.text(0.04, y, label, ha="left", va="top", fontsize=8, style="italic")
    ax.annotate(
        "",
        (0.46, 0.0),
        (4.46, 0.0),
        arrowprops={"arrowstyle": "-|>", "color": "black", "linewidth": 1, "linestyle": ":"},
    )
    ax.text(
        2.46,
        0.0,
        " the new model goes to the next round ",
        ha="center",
        va="center",
        backgroundcolor="white",
    )
    ax.text(0.46, 0.985, "server", ha="center", va="bottom", color=plots.BLUE, fontsize=8)
    ax.text(1.96, 0.985, "clients", ha="center", va="bottom", color=plots.RED, fontsize=8)
    ax.text(3.96, 0.985, "server", ha="center", va="bottom", color=plots.BLUE, fontsize=8)
    return fig
