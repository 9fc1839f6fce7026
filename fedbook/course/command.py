"""`fedbook course`: assignments built and graded, the student edition, glossary and slides."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from fedbook.errors import FedbookError

ACTIONS = ("build", "grade", "students", "check", "glossary", "slides")


def course(args: argparse.Namespace) -> int:
    """Assignments for nbgrader, grading, student edition, glossary, slides."""
    folder = Path(args.folder) if args.folder else None
    if args.action in ("build", "grade", "students") and folder is None:
        raise FedbookError(
            f"{args.action} needs a folder", f"fedbook course {args.action} my_course"
        )
    return globals()[f"_{args.action}"](args, folder)


def add_arguments(p: argparse.ArgumentParser) -> None:
    p.add_argument("action", choices=ACTIONS, help="what to do")
    p.add_argument("folder", nargs="?", metavar="DIR", help="of the course, or of the edition")
    p.add_argument("names", nargs="*", metavar="ASSIGNMENT", help="none: all (build, check)")
    p.add_argument("--clean", action="store_true", help="students: without outputs")


def _tell(args: argparse.Namespace, data: object, text: str) -> int:
    print(json.dumps(data, indent=1) if args.json else text)
    return 0


def _build(args: argparse.Namespace, folder: Path) -> int:
    from fedbook.course.grade import build

    made = [str(p) for p in build(folder, args.names)]
    return _tell(args, made, "\n".join(made))


def _grade(args: argparse.Namespace, folder: Path) -> int:
    from fedbook.course.grade import grade, text

    rows = grade(folder, lambda told: print(told, file=sys.stderr, flush=True))
    after = f"\nfeedback in {folder / 'feedback'}, all grades in {folder / 'grades.csv'}"
    return _tell(args, rows, text(rows) + after)


def _students(args: argparse.Namespace, folder: Path) -> int:
    from fedbook.course.edition import students

    made = [str(p) for p in students(folder, args.clean)]
    return _tell(args, made, "\n".join(made))


def _check(args: argparse.Namespace, folder: Path | None) -> int:
    from fedbook.course.assignments import check, read_all

    faults = {a.name: check(a) for a in read_all(folder, args.names)}
    lines = [f"{name}: {'; '.join(found) or 'ok'}" for name, found in faults.items()]
    _tell(args, faults, "\n".join(lines))
    return 1 if any(faults.values()) else 0


def _glossary(args: argparse.Namespace, folder: Path | None) -> int:
    from fedbook.course.glossary import write

    path = str(write(folder))
    return _tell(args, path, path)


def _slides(args: argparse.Namespace, folder: Path | None) -> int:
    from fedbook.course.slides import write

    paths = [str(p) for p in write(folder)]
    after = "\njupyter nbconvert --to slides --SlidesExporter.reveal_scroll=True " + paths[0]
    return _tell(args, paths, "\n".join(paths) + after)
