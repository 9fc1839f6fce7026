"""Which cell of a notebook is a slide: tags for `jupyter nbconvert --to slides`.

A section begins a slide. A picture, a table or a long text begins one below it. Setting up,
exercises, further reading and cells without anything to see are left out.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from fedbook.files import write_atomically

LONG = 500  # characters of text that fill a slide
LEFT_OUT = ("## Exercises", "## Further reading", "## Where to go next", "## To run one of these")


def kinds(cells: list[dict[str, Any]]) -> list[str]:
    """ "slide", "subslide", "-" (goes on) or "skip" for every cell."""
    out: list[str] = []
    room = 0  # characters left on the slide
    leaving = False
    for i, cell in enumerate(cells):
        text = "".join(cell["source"])
        heading = re.search(r"^#{1,2} .*$", text, re.M)
        if heading and cell["cell_type"] == "markdown":
            leaving = heading.group().startswith(LEFT_OUT)
        size = _size(cell, text)
        if leaving or not size:
            out.append("skip")
        elif i == 0 or (heading and cell["cell_type"] == "markdown"):
            out.append("slide")
            room = LONG - size
        elif size > room:
            out.append("subslide")
            room = LONG - size
        else:
            out.append("-")
            room -= size
    return out


def _size(cell: dict[str, Any], text: str) -> int:
    """About how much of a slide a cell takes; 0 for one that shows nothing."""
    if cell["cell_type"] == "markdown":
        return len(text)
    tags = cell["metadata"].get("tags", [])
    hidden = "google.colab" in text or "start(SCALE)" in text or "parameters" in tags
    if hidden or "answer(" in text or not cell["outputs"]:
        return 0
    data = [o.get("data", {}) for o in cell["outputs"]]
    if any("widget-view" in kind for d in data for kind in d):
        return 0
    if any("image/png" in d or "text/html" in d for d in data):
        return LONG
    return len(text) + 100


def tag(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with slide tags."""
    cells = []
    for cell, kind in zip(notebook["cells"], kinds(notebook["cells"])):
        metadata = {**cell["metadata"], "slideshow": {"slide_type": kind}}
        cells.append({**cell, "metadata": dict(sorted(metadata.items()))})
    return {**notebook, "cells": cells}


def text(path: Path) -> str:
    """A tagged notebook as it stands in its file."""
    return json.dumps(tag(json.loads(path.read_text())), indent=1, ensure_ascii=False) + "\n"


def write(folder: Path | None = None) -> list[Path]:
    """Tag the notebooks of a folder where they are."""
    from fedbook.results import default_folder

    paths = sorted((folder or default_folder("notebooks")).glob("[0-9][0-9]_*.ipynb"))
    for path in paths:
        tagged = text(path)
        with write_atomically(path) as part:
            part.write_text(tagged)
    return paths
