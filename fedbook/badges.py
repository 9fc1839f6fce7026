"""Where the project lives on the web, written into every place that names it.

The address stands once, in pyproject.toml (`urls`). `fedbook badges --repo OWNER/NAME` changes it
there and then writes what follows from it: the links to Colab in the README and in each notebook,
and the notebooks' first cell, which installs the book on Colab.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from fedbook.errors import FedbookError
from fedbook.files import write_atomically

PLACEHOLDER = "OWNER/fedbook"
ADDRESS = re.compile(r'^(Repository = "https://github\.com/)([^"]*)(")$', re.M)
LINKS = re.compile(r"(<!-- links -->\n).*?(<!-- end of links -->)", re.S)
LINE = "\n\n<sub>{}</sub>"
WRITTEN = re.compile(r"\n\n<sub>Colab: .*?</sub>", re.S)
FIRST = """\
import sys

if "google.colab" in sys.modules:  # install the book; keep Colab's torch, numpy, pandas
    from importlib.metadata import version
    from os import environ
    from subprocess import run
    book = "fedbook[data] @ git+https://github.com/{repo}"
    book = environ.get("FEDBOOK_ADDRESS", book)
    keep = [f"{{n}}=={{version(n)}}" for n in ("torch", "torchvision", "numpy", "pandas")]
    if run([sys.executable, "-m", "pip", "install", "-q", book, *keep]).returncode:
        raise SystemExit("fedbook could not be installed: pip says why above.")
import fedbook

if not hasattr(fedbook, "__version__"):
    raise SystemExit("A folder named fedbook hides the package: rename it or move away.")
"""


def repository(root: Path) -> str:
    """OWNER/NAME as pyproject.toml has it."""
    found = ADDRESS.search((root / "pyproject.toml").read_text(encoding="utf-8"))
    if found is None:
        raise FedbookError(
            f"{root / 'pyproject.toml'} names no repository",
            'it needs the line Repository = "https://github.com/OWNER/NAME" under [project.urls]',
        )
    return found.group(2)


def first_cell(repo: str) -> str:
    """The first code cell of every notebook."""
    return FIRST.format(repo=repo).rstrip("\n")


def link(repo: str, notebook: str) -> str:
    """A notebook's link to Colab; without an address, a word about how to set one."""
    if repo == PLACEHOLDER:
        return "Colab: the link appears once `fedbook badges --repo OWNER/NAME` has been run"
    address = f"https://colab.research.google.com/github/{repo}/blob/main/notebooks/{notebook}"
    return f"Colab: [open this notebook there]({address})"


def write(repo: str, root: Path) -> list[Path]:
    """Write the address everywhere; returns the files that changed."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise FedbookError(f"expected --repo OWNER/NAME, got {repo!r}", "for example ada/fedbook")
    repository(root)
    new = {}
    pyproject = root / "pyproject.toml"
    new[pyproject] = ADDRESS.sub(rf"\g<1>{repo}\g<3>", pyproject.read_text(encoding="utf-8"))
    notebooks = sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    readme = root / "README.md"
    listed = "".join(f"- `{n.stem}`: {link(repo, n.name)}\n" for n in notebooks)
    if repo == PLACEHOLDER:
        listed = f"{link(repo, '')}.\n"
    new[readme] = LINKS.sub(rf"\g<1>{listed}\g<2>", readme.read_text(encoding="utf-8"))
    for path in notebooks:
        book = json.loads(path.read_text(encoding="utf-8"))
        _address(book, repo, path.name)
        new[path] = json.dumps(book, indent=1, ensure_ascii=False) + "\n"
    changed = [path for path, text in new.items() if text != path.read_text(encoding="utf-8")]
    for path in changed:
        with write_atomically(path) as part:
            part.write_text(new[path], encoding="utf-8")
    return changed


def _address(book: dict[str, Any], repo: str, name: str) -> None:
    """Put the link under the title, and the first code cell where it belongs."""
    title = book["cells"][0]
    text = WRITTEN.sub("", "".join(title["source"])) + LINE.format(link(repo, name))
    title["source"] = text.splitlines(keepends=True)
    first = next(cell for cell in book["cells"] if cell["cell_type"] == "code")
    first["source"] = first_cell(repo).splitlines(keepends=True)
    first["metadata"] |= {"jupyter": {"source_hidden": True}, "tags": ["remove-cell"]}
