"""What notebooks share: an opening line about the surroundings, figures with descriptions, checked
answers."""

from __future__ import annotations

import base64
import contextlib
import io
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbook.course.answers import answer, hint, summary
from fedbook.errors import FedbookError
from fedbook.html import figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["answer", "five_stages", "hint", "show", "start", "summary"]

NUMBERS: dict[str, int] = {}  # of the figures shown in this session, by description

BOUNDS = "Values in x were outside bounds"  # older scipy's remark about SLSQP; it clips them


def start(scale: str = "smoke") -> None:
    """Give figures the book's look and print one line: versions, device, scale."""
    import matplotlib.pyplot as plt
    import pandas as pd
    import torch

    from fedbook import __version__, plots

    if scale not in ("smoke", "laptop", "paper"):
        raise FedbookError(f"unknown scale {scale!r}", "use 'smoke', 'laptop' or 'paper'")
    book: Any = plots.STYLE
    plt.rcParams.update(book)
    warnings.filterwarnings("ignore", message=BOUNDS)
    if pd.__version__ < "3":  # tables as pandas 3 prints them; 2.1 does not know the option
        with contextlib.suppress(KeyError):
            pd.set_option("future.no_silent_downcasting", True)
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    print(f"fedbook {__version__} | torch {torch.__version__} | {device} | {scale} scale")
    if scale == "paper" and device == "cpu":
        print("no GPU: paper scale would take days here; choose SCALE = 'smoke' or 'laptop'")


def show(fig: Figure | Path, alt: str, caption: str = "") -> None:
    """Display a figure, or a PNG kept in a file, with a description (alt text) for those who cannot
    see it, a number and a caption, and close it.

    Figures count from 1 in the order in which a notebook first shows them; one that is shown again
    keeps its number. Without a caption the description's first sentence is one.
    """
    if not (isinstance(alt, str) and alt.strip()):
        raise FedbookError(
            f"a figure needs a description, got {alt!r}", 'say what it shows: show(fig, alt="...")'
        )
    number = NUMBERS.setdefault(alt, len(NUMBERS) + 1)
    display_figure(fig, alt, f"Figure {number}. {caption or _first_sentence(alt)}")


def display_figure(fig: Figure | Path, alt: str, caption: str) -> None:
    """Display a figure twice in one: as HTML, whose alt text a screen reader finds, and as the
    plain PNG for programs that show no HTML. Then close it.
    """
    import matplotlib.pyplot as plt
    from IPython.display import display

    if isinstance(fig, Path):
        png = base64.b64encode(fig.read_bytes()).decode()
        plain = fig.name
    else:
        png = _png(fig)
        plain = repr(fig)
        plt.close(fig)
    data = {
        "image/png": png,
        "text/html": figure(png, alt, caption),
        "text/plain": plain,
    }
    display(data, raw=True, metadata={"image/png": {"alt": alt}})


def _png(fig: Figure) -> str:
    """The picture in base64, with a palette of 256 colours: a third of the size."""
    from PIL import Image

    whole = io.BytesIO()
    small = io.BytesIO()
    fig.savefig(whole, format="png", dpi=fig.dpi, bbox_inches="tight")
    picture = Image.open(whole).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


def _first_sentence(alt: str) -> str:
    """Up to the first full stop, colon or semicolon that ends a thought."""
    return re.split(r"(?<=[^\d\s])[.:;](?=\s|$)", " ".join(alt.split()), maxsplit=1)[0] + "."


def five_stages() -> Figure:
    """One round as five boxes, from the server to the clients and back, and the two slots that
    FedAvg leaves empty; below: FedAvg's choice and who replaces it.
    """
    import matplotlib.pyplot as plt

    from fedbook import plots

    server = plots.BLUE
    clients = plots.RED
    # name, question, FedAvg's choice, who replaces it, where
    boxes = (
        ("1 sample", "who takes part", "uniform", "Client2Vec", server),
        ("grouping", "who belongs\ntogether", "none", "FedGCR", server),
        (
            "2 objective",
            "what a client\nminimises",
            "cross-entropy",
            "FedGCR,\nClient2Vec",
            clients,
        ),
        ("3 solve", "how it\nminimises", "SGD epochs", "FedSAM,\npFedMe", clients),
        ("4 weigh", "what each\nclient counts", "n_k / sum n", "all four\npapers", server),
        ("5 update", "how the server\nmoves", "replace by\nthe mean", "FedAvgM,\nFedAdam", server),
        ("personal", "what stays\nwith a client", "nothing", "GRP-FED,\nFedBN", clients),
    )
    middle: dict[str, Any] = {"ha": "center", "va": "center"}
    arrow: dict[str, Any] = {"arrowstyle": "-|>", "color": "black"}
    fig, ax = plt.subplots(figsize=(9.8, 2.8))
    fig.subplots_adjust(0, 0, 1, 1)
    ax.set(xlim=(-0.72, 7), ylim=(-0.08, 1.1))
    ax.set_axis_off()
    for i, (name, question, plain, replaced, colour) in enumerate(boxes):
        empty = not name[0].isdigit()
        box = plt.Rectangle((i + 0.03, 0.56), 0.86, 0.4, facecolor="white", edgecolor=colour)
        box.set(linewidth=1.2 if empty else 2, linestyle="--" if empty else "-")
        ax.add_patch(box)
        weight = "normal" if empty else "bold"
        ax.text(i + 0.46, 0.87, name, weight=weight, color=colour, fontsize=10, **middle)
        ax.text(i + 0.46, 0.69, question, fontsize=8, **middle)
        ax.text(i + 0.46, 0.42, plain, family="monospace", fontsize=8, **middle)
        ax.text(i + 0.46, 0.18, replaced, color="#555555", fontsize=8, **middle)
        where = "server" if colour == server else "clients"
        ax.text(i + 0.46, 0.985, where, ha="center", va="bottom", color=colour, fontsize=8)
        if i < 5:
            ax.annotate("", (i + 1.03, 0.76), (i + 0.89, 0.76), arrowprops=arrow)
    for y, label in ((0.42, "FedAvg:"), (0.18, "replaced by:")):
        ax.text(-0.72, y, label, ha="left", va="center", fontsize=8, style="italic")
    back = arrow | {"linewidth": 1, "linestyle": ":"}
    ax.annotate("", (0.46, 0.0), (5.46, 0.0), arrowprops=back)
    told = " the new model goes to the next round "
    ax.text(2.96, 0.0, told, ha="center", va="center", backgroundcolor="white")
    return fig
