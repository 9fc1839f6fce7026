"""Assignments: readable sources, and the notebooks that nbgrader makes of them.

A source is a Python file in cells (`# %%`, jupytext's percent format). What follows `# %%` says
what a cell is for:

    # %% locked="setup"            students may not change it
    # %% solve="mean"              the answer stands between ### BEGIN SOLUTION and ### END SOLUTION
    # %% test="mean" points=3      its test; ### BEGIN HIDDEN TESTS ... is cut from the release
    # %% wrong="mean"              a typical wrong answer to "mean": it passes the visible tests and
                                   fails a hidden one; it is in no notebook, and checked by `check`
    # %% [markdown] written="report" points=6     an answer in words, graded by a person
"""

from __future__ import annotations

import contextlib
import io
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedbook.errors import FedbookError, unknown

STUB = 'raise NotImplementedError("your lines here")'
MARKED = {kind: (f"### BEGIN {kind}", f"### END {kind}") for kind in ("SOLUTION", "HIDDEN TESTS")}
ROLES = ("locked", "solve", "test", "wrong", "written")


@dataclass(frozen=True)
class Cell:
    """`role` is one of ROLES, or "" for a cell that is just read or run."""

    kind: str
    text: str
    role: str = ""
    id: str = ""
    points: int = 0


@dataclass(frozen=True)
class Assignment:
    name: str
    cells: tuple[Cell, ...]

    @property
    def title(self) -> str:
        return self.cells[0].text.splitlines()[0].lstrip("# ")

    @property
    def points(self) -> int:
        return sum(c.points for c in self.cells)

    def of(self, role: str) -> list[Cell]:
        return [c for c in self.cells if c.role == role]


# -- reading ---------------------------------------------------------------------------------------
def folder() -> Path:
    """course/ of the checkout, or where FEDBOOK_COURSE says."""
    from fedbook.results import default_folder

    found = default_folder("course")
    if not found.is_dir():
        raise FedbookError(f"no assignments at {found}", "start this inside a checkout of fedbook")
    return found


def read(path: Path) -> Assignment:
    """One source file."""
    try:
        import jupytext
    except ImportError:
        raise FedbookError("jupytext is not installed", "pip install 'fedbook[course]'") from None

    cells = []
    for cell in jupytext.reads(path.read_text(), fmt="py:percent").cells:
        role = next((r for r in ROLES if r in cell.metadata), "")
        id = str(cell.metadata.get(role, "")) if role else ""
        points = int(cell.metadata.get("points", 0))
        cells.append(Cell(cell.cell_type, cell.source, role, id, points))
    ids = [(c.role, c.id) for c in cells if c.role and c.role != "wrong"]
    twice = [i for i in ids if ids.count(i) > 1]
    if twice:
        raise FedbookError(f"{path.name} has two cells {twice[0][0]}={twice[0][1]!r}", "rename one")
    return Assignment(path.stem, tuple(cells))


def read_all(where: Path | None = None, names: Iterable[str] = ()) -> list[Assignment]:
    """All assignments of a folder, or those named."""
    paths = {p.stem: p for p in sorted((where or folder()).glob("*.py"))}
    for name in names:
        if name not in paths:
            raise unknown("assignment", name, paths)
    return [read(paths[n]) for n in (list(names) or paths)]


# -- three versions of a cell ----------------------------------------------------------------------
def cut(text: str, kind: str, stub: str = "") -> str:
    """The text without what stands between the markers; a stub takes its place."""
    begin, end = MARKED[kind]
    out: list[str] = []
    inside = False
    for line in text.splitlines():
        if line.strip() == begin:
            inside = True
            if stub:
                out.append(line[: len(line) - len(line.lstrip())] + stub)
        elif line.strip() == end:
            inside = False
        elif not inside:
            out.append(line)
    return "\n".join(out)


def plain(text: str) -> str:
    """The text without the lines that are markers."""
    marks = {m for pair in MARKED.values() for m in pair}
    return "\n".join(line for line in text.splitlines() if line.strip() not in marks)


def released(text: str) -> str:
    """What a student gets."""
    return cut(cut(text, "SOLUTION", STUB), "HIDDEN TESTS")


# -- notebooks -------------------------------------------------------------------------------------
def source_notebook(assignment: Assignment) -> Any:
    """The notebook nbgrader starts from, with solutions, hidden tests and metadata."""
    cells = []
    for c in assignment.cells:
        if c.role == "wrong":
            continue
        cells.append(_cell(c, c.text))
        if c.role:
            cells[-1].metadata["nbgrader"] = _nbgrader(c)
    return _notebook(cells)


def solution_notebook(assignment: Assignment) -> Any:
    """For reading: solved, with all tests, without markers."""
    return _notebook([_cell(c, plain(c.text)) for c in assignment.cells if c.role != "wrong"])


def _nbgrader(cell: Cell) -> dict[str, Any]:
    name = f"test_{cell.id}" if cell.role == "test" else cell.id
    out: dict[str, Any] = {"schema_version": 3, "grade_id": name, "task": False}
    out["solution"] = cell.role in ("solve", "written")
    out["grade"] = cell.role in ("test", "written")
    out["locked"] = cell.role in ("test", "locked")
    if out["grade"]:
        out["points"] = cell.points
    return out


def _cell(cell: Cell, text: str) -> Any:
    from nbformat import v4

    return v4.new_code_cell(text) if cell.kind == "code" else v4.new_markdown_cell(text)


def _notebook(cells: list[Any]) -> Any:
    from nbformat import v4

    for i, cell in enumerate(cells):
        cell["id"] = f"cell-{i:02d}"
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return v4.new_notebook(cells=cells, metadata=about)


# -- do they hold what they promise? ---------------------------------------------------------------
def run(cells: Iterable[tuple[Cell, str]]) -> dict[str, str]:
    """Execute cells of code in one namespace; for every test "" or what went wrong.

    As in nbgrader, an error in one cell does not keep the next from running. Unlike there, a test
    leaves nothing behind, so that no test can lean on another one.
    """
    space: dict[str, Any] = {"__name__": "__main__"}
    told = {}
    for cell, text in cells:
        if cell.kind != "code":
            continue
        error = ""
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                where = dict(space) if cell.role == "test" else space
                code = compile(text, f"<{cell.role} {cell.id}>", "exec", dont_inherit=True)
                exec(code, where)
        except Exception as e:
            error = f"{type(e).__name__}: {e}"
        if cell.role == "test":
            told[cell.id] = error
    return told


def check(assignment: Assignment) -> list[str]:
    """What is wrong with an assignment: the solved one must score everything, the released one
    nothing, and every typical wrong answer must pass the visible tests and fail a hidden one.
    """
    cells = [c for c in assignment.cells if c.role != "wrong"]
    began = time.process_time()
    solved = run((c, plain(c.text)) for c in cells)
    seconds = time.process_time() - began
    faults = [f"solved, test {id} fails: {e}" for id, e in solved.items() if e]
    if seconds > 30:
        faults.append(f"the solved notebook takes {seconds:.0f} s, at most 30 are allowed")
    empty = run((c, released(c.text)) for c in cells)
    faults += [f"released, test {id} passes" for id, e in empty.items() if not e]
    for wrong in assignment.of("wrong"):
        visible, hidden = _judge(cells, wrong)
        if visible:
            faults.append(f"wrong {wrong.id} fails the visible test: {visible}")
        if not hidden.startswith("AssertionError"):
            faults.append(f"wrong {wrong.id} is not told by a hidden test: {hidden or 'it passes'}")
    untested = {c.id for c in assignment.of("solve")} - {c.id for c in assignment.of("test")}
    if untested - {"name"}:
        faults.append(f"no test for {', '.join(sorted(untested - {'name'}))}")
    text_left = "\n".join(released(c.text) for c in cells)
    if re.search(r"### (BEGIN|END)", text_left):
        faults.append("a marker is left in the release")
    return faults


def _judge(cells: list[Cell], wrong: Cell) -> tuple[str, str]:
    """What the visible and what all tests say to a wrong answer, the rest being solved."""
    todo = []
    for c in cells:
        if (c.role, c.id) == ("solve", wrong.id):
            todo.append((c, wrong.text))
        elif c.role != "test":
            todo.append((c, plain(c.text)))
        elif c.id == wrong.id:
            todo.append((replace(c, id="visible"), cut(c.text, "HIDDEN TESTS")))
            todo.append((replace(c, id="all"), plain(c.text)))
    told = run(todo)
    return told["visible"], told["all"]
