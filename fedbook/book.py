"""The web edition: every notebook with its committed outputs, the claims, the figures, the course
and the reference, as pages that need no network (`fedbook book build`).

Sphinx with myst-nb makes them. mkdocs-material with mkdocs-jupyter was the other candidate: it
draws notebooks as well, but takes its search, icons and MathJax from the web unless each is
replaced by hand, and has no numbered cross-references. Here MathJax comes from a pip package, and
search and dark mode from the theme. Nothing is executed.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import fedbook
from fedbook.errors import FedbookError

LINKED = ("ARCHITECTURE.md", "CONTRIBUTING.md", "fedbook/models/weights/*.md")
NEEDED = ("sphinx", "myst_nb", "sphinx_book_theme", "sphinx-mathjax-offline")
CONF = """\
project = "fedbook"
author = "The fedbook authors"
copyright = "the fedbook authors, CC BY 4.0"
extensions = ["myst_nb", "sphinx.ext.mathjax", "sphinx-mathjax-offline"]
html_theme = "sphinx_book_theme"
html_title = "fedbook"
html_theme_options = {"show_navbar_depth": 1, "use_download_button": True}
html_context = {"default_mode": "auto"}
html_static_path = ["_static"]
html_css_files = ["book.css"]
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "myst"
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "html_image"]
myst_heading_anchors = 3
myst_heading_slug_func = "fedbook.book.anchor"
suppress_warnings = ["myst.header", "mystnb.unknown_mime_type"]
exclude_patterns = ["figures/README.md"]
"""
CSS = """\
.bd-article img { max-width: 100%; height: auto; }
html[data-theme="dark"] .bd-article img { background: white; }
.bd-article table { display: block; overflow-x: auto; font-size: 0.85em; }
.bd-article figcaption { font-size: 0.9em; }
.bd-article h1, .bd-article h2, .bd-article code, .bd-article a { overflow-wrap: anywhere; }
.bd-article code .pre { white-space: normal; }
.bd-article div.math { overflow-x: auto; }
"""
INDEX = """\
# fedbook

Federated learning for **groups of clients**: four papers explained equation by equation, run, and
judged by what comes out.

| paper | reference |
|---|---|
{papers}

Begin with [notebook 00](notebooks/{first}). What the papers claim and what we can tell:
[claims](claims.md). All figures: [gallery](gallery.md).
Symbols, words and algorithms: [glossary](notebooks/glossary.ipynb).
To teach with it: [course](course/TEACH.md).

```{{toctree}}
:caption: The book
:maxdepth: 1

{notebooks}
```

```{{toctree}}
:caption: Evidence
:maxdepth: 1

claims
gallery
```

```{{toctree}}
:caption: To teach and to build on
:maxdepth: 1
:glob:

course/TEACH
ARCHITECTURE
CONTRIBUTING
fedbook/models/weights/*
api
```
"""


def build(root: Path, target: Path) -> Path:
    """Make the pages in `target`; returns the first of them."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise FedbookError(f"not installed: {', '.join(missing)}", "pip install 'fedbook[book]'")
    source = target / "source"
    if source.is_dir():
        shutil.rmtree(source)
    write_source(root, source)
    pages = target / "html"
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", str(source), str(pages)]
    if subprocess.run(command).returncode:
        raise FedbookError("the pages could not be built", "Sphinx says why above")
    return pages / "index.html"


def write_source(root: Path, source: Path) -> None:
    """Everything Sphinx needs, as a folder of its own."""
    notebooks = sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    if not notebooks:
        raise FedbookError(f"no notebooks in {root / 'notebooks'}", "start this inside a checkout")
    (source / "_static").mkdir(parents=True)
    (source / "_static" / "book.css").write_text(CSS, encoding="utf-8")
    (source / "notebooks").mkdir()
    for path in [*notebooks, root / "notebooks" / "glossary.ipynb"]:
        _copy_notebook(path, source / "notebooks" / path.name)
    shutil.copytree(root / "figures", source / "figures", ignore=shutil.ignore_patterns("*.pdf"))
    pages = {
        "conf.py": CONF,
        "index.md": _index(notebooks),
        "claims.md": _claims(root),
        "gallery.md": _gallery(root / "figures"),
        "course/TEACH.md": _text(root / "course" / "TEACH.md"),
    }
    for path in (path for pattern in LINKED for path in sorted(root.glob(pattern))):
        pages[path.relative_to(root).as_posix()] = _text(path)
    modules = list(_modules())
    listed = "\n".join(f"api/{name}" for name in modules)
    pages["api.md"] = f"# Reference\n\n```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n"
    shutil.copytree(root / "course" / "figures", source / "course" / "figures")
    for name in modules:
        pages[f"api/{name}.md"] = _reference(name)
    for name, text in pages.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text, encoding="utf-8")


def anchor(title: str) -> str:
    """What a link to a heading is called: as in JupyterLab."""
    return title.strip().replace(" ", "-")


def _copy_notebook(path: Path, target: Path) -> None:
    """As committed; only the picture of an output gets its caption as alternative text."""
    book = json.loads(path.read_text(encoding="utf-8"))
    for cell in book["cells"]:
        for output in cell.get("outputs", []):
            alt = output.get("metadata", {}).get("image/png", {}).get("alt")
            if alt:
                cell.setdefault("metadata", {}).setdefault("mystnb", {})["image"] = {"alt": alt}
    target.write_text(json.dumps(book, indent=1, ensure_ascii=False), encoding="utf-8")


def _index(notebooks: list[Path]) -> str:
    from fedbook.papers import PAPERS

    papers = "\n".join(f"| {p.title} | {p.reference} |" for p in PAPERS.values())
    listed = "\n".join(f"notebooks/{stem}" for stem in [*(p.stem for p in notebooks), "glossary"])
    return INDEX.format(papers=papers, notebooks=listed, first=notebooks[0].name)


def _claims(root: Path) -> str:
    """All claims and their verdicts, a table per paper."""
    from fedbook.papers import PAPERS, verdicts
    from fedbook.results import Store

    lines = ["# Claims", "", verdicts.LEGEND.replace("\n", " "), ""]
    for key, paper in PAPERS.items():
        judged = verdicts.choose(Store(root / "results"), None, key)
        lines += [f"## {paper.title}", "", f"Scale: {judged[0].scale}.", ""]
        lines += ["| id | verdict | for/against/open | seeds | claim |", "|---|---|---|---|---|"]
        for j in judged:
            counts = "/".join(str(n) for n in j.counts.values())
            text = j.claim.text.replace("|", "\\|")
            lines.append(f"| {j.claim.id} | **{j.verdict}** | {counts} | {j.seeds} | {text} |")
        picture = f"figures/{key}_claims_{judged[0].scale}.png"
        if (root / picture).is_file():
            alt = _alt(root / picture)
            lines += ["", f"```{{figure}} {picture}", f":alt: {alt}", "", "All checks.", "```"]
        lines.append("")
    return "\n".join(lines)


def _gallery(folder: Path) -> str:
    """Every figure with its description."""
    lines = ["# Gallery", ""]
    for path in sorted(folder.glob("*.png")):
        title = path.stem.replace("_", " ")
        alt = _alt(path)
        lines += [f"## {title}", "", f"```{{figure}} figures/{path.name}", f":alt: {alt}", "", alt]
        lines += ["```", ""]
    return "\n".join(lines)


def _alt(picture: Path) -> str:
    """The description stored beside a figure, in one line."""
    text = picture.with_suffix(".txt")
    return " ".join(text.read_text(encoding="utf-8").split()) if text.is_file() else picture.stem


def _text(path: Path, otherwise: str = "") -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else otherwise


def _reference(name: str) -> str:
    """A module's docstring, and those of its public classes and functions, in their order."""
    module = importlib.import_module(name)
    lines = [f"# {name}", "", inspect.getdoc(module) or "", ""]
    for title, thing in _public(module):
        lines += [f"## {title}", "", f"```python\n{_signature(title, thing)}\n```", ""]
        lines += [inspect.getdoc(thing) or "", ""]
        for method, function in _public_methods(thing):
            text = " ".join((inspect.getdoc(function) or "").split())
            lines.append(f"- `{_signature(method, function)}`: {text}" if text else f"- `{method}`")
        lines.append("")
    return "\n".join(lines)


def _public(module: ModuleType) -> list[tuple[str, Any]]:
    found = []
    for name, thing in vars(module).items():
        own = getattr(thing, "__module__", None) == module.__name__
        if (
            own
            and not name.startswith("_")
            and (inspect.isclass(thing) or inspect.isroutine(thing))
        ):
            found.append((name, thing))
    return found


def _public_methods(thing: Any) -> list[tuple[str, Any]]:
    if not inspect.isclass(thing):
        return []
    own = vars(thing).items()
    return [(n, f) for n, f in own if inspect.isfunction(f) and not n.startswith("_")]


def _signature(name: str, thing: Any) -> str:
    try:
        return f"{name}{inspect.signature(thing)}"
    except (TypeError, ValueError):
        return name


def _modules() -> Iterable[str]:
    """The public modules, two levels deep."""
    for found in pkgutil.walk_packages(fedbook.__path__, "fedbook.", onerror=lambda name: None):
        parts = found.name.split(".")
        if len(parts) <= 3 and not any(p.startswith("_") for p in parts) and "cli" not in parts:
            try:
                importlib.import_module(found.name)
            except (ImportError, FedbookError):
                continue  # of an extra that is not installed
            yield found.name
