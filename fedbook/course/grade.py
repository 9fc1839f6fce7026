"""Assignments through nbgrader, without a server: build, collect, autograde, feedback, export.

A course is a folder:

    nbgrader_config.py, gradebook.db
    source/NAME/NAME.ipynb            with solutions; what nbgrader starts from
    release/NAME/NAME.ipynb           what students get
    solutions/NAME.ipynb              what they get afterwards
    inbox/STUDENT/NAME.ipynb          what they hand in
    submitted, autograded, feedback   made by `grade`
    grades.csv                        one row per student and assignment
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedbook.course.assignments import STUB, read_all, solution_notebook, source_notebook
from fedbook.errors import FedbookError
from fedbook.files import write_atomically

SLOW = "CellTimeoutError"
CONFIG = f'''"""Settings of nbgrader for this course."""

c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "fedbook"
c.ClearSolutions.code_stub = {{"python": {STUB!r}}}
c.Execute.timeout = 60  # seconds for one cell
c.ExecutePreprocessor.timeout = 60
c.Execute.error_on_timeout = {{
    "ename": "{SLOW}",
    "evalue": "this cell took longer than a minute",
    "traceback": ["this cell took longer than a minute"],
}}
'''


def build(folder: Path, names: Iterable[str] = ()) -> list[Path]:
    """Write source, release and solutions of the assignments named, or of all; the releases."""
    assignments = read_all(names=names)
    config = folder / "nbgrader_config.py"
    if not config.is_file():
        with write_atomically(config) as part:
            part.write_text(CONFIG)
    for a in assignments:
        _write(source_notebook(a), folder / "source" / a.name / f"{a.name}.ipynb")
        _write(solution_notebook(a), folder / "solutions" / f"{a.name}.ipynb")
    (folder / "inbox").mkdir(exist_ok=True)
    with _nbgrader(folder) as api:
        for a in assignments:
            _require(api.generate_assignment(a.name, force=True, create=True), f"release {a.name}")
    return [folder / "release" / a.name / f"{a.name}.ipynb" for a in assignments]


def _write(notebook: Any, path: Path) -> None:
    import nbformat

    with write_atomically(path) as part:
        nbformat.write(notebook, part)


@contextlib.contextmanager
def _nbgrader(folder: Path) -> Iterator[Any]:
    """nbgrader with the course's own settings. It calls alembic by name, which is beside python."""
    try:
        from nbgrader.apps import NbGraderAPI
        from traitlets.config import PyFileConfigLoader
    except ImportError:
        raise FedbookError("nbgrader is not installed", "pip install 'fedbook[course]'") from None
    if not (folder / "nbgrader_config.py").is_file():
        raise FedbookError(f"{folder} is no course", f"fedbook course build {folder}")
    config = PyFileConfigLoader("nbgrader_config.py", path=str(folder)).load_config()
    config.CourseDirectory.root = str(folder.resolve())
    before = os.environ["PATH"]
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), before])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its database, about its own way to write rows
            yield NbGraderAPI(config=config)
    finally:
        os.environ["PATH"] = before


def _require(outcome: dict[str, Any], what: str) -> None:
    if not outcome["success"]:
        told = f"{outcome.get('error') or ''}\n{outcome.get('log') or ''}"
        causes = re.findall(r"^\s*(\w*(?:Error|Exception): .*)$", told, re.M)
        raise FedbookError(f"nbgrader could not {what}", causes[0] if causes else told[-300:])


# -- grading ---------------------------------------------------------------------------------------
def collect(folder: Path) -> list[tuple[str, str]]:
    """Copy what was handed in to where nbgrader looks for it: (student, assignment) pairs."""
    known = {p.parent.name for p in (folder / "release").glob("*/*.ipynb")}
    found = []
    for path in sorted((folder / "inbox").glob("*/*.ipynb")):
        student = path.parent.name
        name = path.stem
        if name not in known:
            raise FedbookError(
                f"{student} handed in {path.name}, which is no assignment",
                f"name the file as released: {', '.join(sorted(known))}",
            )
        there = folder / "submitted" / student / name / path.name
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, there)
        found.append((student, name))
    if not found:
        raise FedbookError(
            f"nothing to grade in {folder / 'inbox'}", "hand in as inbox/STUDENT/ASSIGNMENT.ipynb"
        )
    return found


def grade(folder: Path, say: Any = print) -> list[dict[str, Any]]:
    """Collect, autograde, write feedback and grades.csv; a row per student and assignment.

    A notebook that cannot be graded is noted in its row and does not stop the others.
    """
    handed_in = collect(folder)
    rows = []
    with _nbgrader(folder) as api:
        for i, (student, name) in enumerate(handed_in, 1):
            say(f"grading {name} of {student} ({i} of {len(handed_in)})")
            row = {"student": student, "assignment": name, "score": 0.0, "points": 0.0, "note": ""}
            rows.append(row)
            try:
                outcome = api.autograde(name, student, force=True, create=True)
                _require(outcome, f"grade {name} of {student}")
                _require(api.generate_feedback(name, student, force=True), "write feedback")
            except FedbookError as error:
                row["note"] = str(error)
                continue
            with api.gradebook as book:
                done = book.find_submission(name, student)
                row["score"] = done.score
                row["points"] = done.max_score
                by_hand = "part of it is graded by hand" if done.needs_manual_grade else ""
            notes = [name_note(folder, student, name), slow_note(folder, student, name), by_hand]
            row["note"] = "; ".join(note for note in notes if note)
        _export(api, folder / "grades.csv")
    return rows


def name_note(folder: Path, student: str, name: str) -> str:
    """A word about whose numbers a notebook was solved with, if they are not the student's."""
    import nbformat

    path = folder / "submitted" / student / name / f"{name}.ipynb"
    text = "\n".join(c.source for c in nbformat.read(path, as_version=4).cells)
    names = re.findall(r'^STUDENT = ["\'](.*?)["\']', text, re.M)
    said = " ".join(names[-1].lower().split()) if names else ""
    if said == " ".join(student.lower().split()):
        return ""
    return f"solved with the numbers of {said!r}" if said else "no name in the notebook"


def slow_note(folder: Path, student: str, name: str) -> str:
    """A word about a cell that was stopped: it may be the machine's fault, not the student's."""
    import nbformat

    path = folder / "autograded" / student / name / f"{name}.ipynb"
    for cell in nbformat.read(path, as_version=4).cells:
        if any(output.get("ename") == SLOW for output in cell.get("outputs", [])):
            return "a cell took longer than a minute: grade again when the machine is free"
    return ""


def _export(api: Any, path: Path) -> None:
    from nbgrader.plugins import CsvExportPlugin

    with write_atomically(path) as part, api.gradebook as book:
        plugin = CsvExportPlugin()
        plugin.to = str(part)
        plugin.export(book)


def text(rows: list[dict[str, Any]]) -> str:
    """One line per student and assignment."""
    lines = [f"{'student':16} {'assignment':18} {'score':>12}"]
    for r in rows:
        score = f"{r['score']:g} / {r['points']:g}"
        lines.append(f"{r['student']:16} {r['assignment']:18} {score:>12}  {r['note']}".rstrip())
    return "\n".join(lines)
