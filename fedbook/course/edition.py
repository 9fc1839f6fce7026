"""The student edition: the notebooks without their solutions, and the solutions as notebooks of
their own."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from fedbook.errors import FedbookError
from fedbook.files import write_atomically

SOLUTION = re.compile(r"<details><summary>Solution</summary>\n*(.*?)\n*</details>\n*", re.S)


def students(folder: Path, clean: bool = False) -> list[Path]:
    """Write the edition to a folder; `clean` leaves the outputs out. The notebooks written."""
    from fedbook.results import default_folder

    book = default_folder("notebooks")
    if book.resolve() == folder.resolve():
        raise FedbookError(f"{folder} is where the notebooks are", "name another folder")
    paths = sorted(book.glob("*.ipynb"))
    if not paths:
        raise FedbookError(f"no notebooks at {book}", "start this inside a checkout of fedbook")
    written = []
    for path in paths:
        notebook = json.loads(path.read_text())
        written.append(_write(_without(notebook, clean), folder / path.name))
        if solved := _solutions(notebook, path.name):
            written.append(_write(solved, folder / "solutions" / path.name))
    for extra in book.glob("*.md"):
        shutil.copy2(extra, folder / extra.name)
    return written


def _text(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def _without(notebook: dict[str, Any], clean: bool) -> dict[str, Any]:
    """The notebook with every solution taken out; cells that held nothing else go."""
    cells = []
    for cell in notebook["cells"]:
        text = _text(cell)
        kept = SOLUTION.sub("", text).strip("\n")
        if kept != text:
            if not kept:
                continue
            cell = {**cell, "source": kept.splitlines(keepends=True)}
        if clean and cell["cell_type"] == "code":
            cell = {**cell, "outputs": [], "execution_count": None}
        cells.append(cell)
    return {**notebook, "cells": cells}


def _solutions(notebook: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Questions and answers alone."""
    title = _text(notebook["cells"][0]).splitlines()[0].lstrip("# ")
    cells = [_markdown(f"# Solutions to {title}\n\nThe notebook: [{name}](../{name}).", "title")]
    asked = ""
    for i, cell in enumerate(notebook["cells"]):
        text = _text(cell)
        answers = SOLUTION.findall(text)
        if cell["cell_type"] == "markdown":
            if answers:
                cells.append(_markdown(f"{asked}\n\n{answers[0]}".strip(), f"answer-{i}"))
            questions = re.findall(
                r"\*\*\d+ \(checked\).*?(?=\n\n\*\*\d|\Z)", SOLUTION.sub("", text), re.S
            )
            asked = questions[-1].strip() if questions else asked
    return {**notebook, "cells": cells} if len(cells) > 1 else None


def _markdown(text: str, id: str) -> dict[str, Any]:
    return {
        "cell_type": "markdown",
        "id": id,
        "metadata": {},
        "source": text.splitlines(keepends=True),
    }


def _write(notebook: dict[str, Any], path: Path) -> Path:
    with write_atomically(path) as part:
        part.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    return path
