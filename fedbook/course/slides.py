"""Which cell of a notebook is a slide, and which is folded: tags for `jupyter nbconvert --to
slides`, for JupyterLab and for the book.

A section begins a slide. A picture, a table or a long text begins one below it. Setting up,
exercises, further reading and cells without anything to see are left out. A cell that only draws
is folded: its code is there, one click away.
"""

from __future__ import annotations

import ast
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
        return 0 if text.startswith("### Letters") else len(text)  # a list to return to
    tags = cell["metadata"].get("tags", [])
    hidden = "google.colab" in text or "start(SCALE)" in text or "parameters" in tags
    if hidden or "answer(" in text or not cell["outputs"]:
        return 0
    data = [o.get("data", {}) for o in cell["outputs"]]
    if "explore(" in text:  # the same pictures stand still above it
        return 0
    if any("image/png" in d or "text/html" in d for d in data):
        return LONG
    return len(text) + 100


def draws(cell: dict[str, Any]) -> bool:
    """Whether a cell only draws: it shows a figure, or has functions that draw and little else."""
    text = "".join(cell["source"])
    if cell["cell_type"] != "code" or text.count("\n") < 4:
        return False
    defined = (ast.FunctionDef, ast.ClassDef)
    body = ast.parse(text).body
    functions = [ast.unparse(node) for node in body if isinstance(node, defined)]
    rest = "\n".join(ast.unparse(node) for node in body if not isinstance(node, defined))
    if re.search(r"^\s*show\(", rest, re.M):
        return True
    return bool(functions) and all(re.search(r"\b(ax|axes|plt)\b", f) for f in functions)


def tag(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the tags of slides and folds."""
    cells = []
    for cell, kind in zip(notebook["cells"], kinds(notebook["cells"])):
        metadata = {**cell["metadata"], "slideshow": {"slide_type": kind}}
        tags = set(metadata.get("tags", []))
        if draws(cell):
            metadata |= {"jupyter": {"source_hidden": True}, "tags": sorted({*tags, "hide-input"})}
        elif "hide-input" in tags:
            del metadata["jupyter"]
            metadata["tags"] = sorted(tags - {"hide-input"})
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
