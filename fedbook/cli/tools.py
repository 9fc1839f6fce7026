"""Around the book: check, bench, lab, pretrain."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from fedbook.cli.shell import Commands, as_json, checkout, store_of
from fedbook.course import command as course_command
from fedbook.errors import FedbookError


def add(commands: Commands) -> None:
    commands.add("check", check, "fedbook check")
    p = commands.add("bench", bench, "fedbook bench engines --json", results=False)
    what = ("engines", "peers", "growth", "limit", "prompts", "index", "bare")
    help = "both engines, other libraries, growth, the limit; a step with prompts, of the index"
    p.add_argument("what", nargs="?", choices=what, default="engines", help=help)
    p.add_argument("--figures", metavar="DIR", help="where pictures of the growth go")
    p.add_argument("--markdown", action="store_true", help="engines and peers as a Markdown table")
    p = commands.add("badges", badges, "fedbook badges --repo OWNER/NAME", results=False)
    p.add_argument("--repo", metavar="OWNER/NAME", required=True, help="on GitHub")
    p = commands.add("book", book, "fedbook book build", results=False)
    p.add_argument("what", choices=("build",), help="make the pages")
    p.add_argument("folder", nargs="?", metavar="DIR", help="default: book/ of the checkout")
    course_command.add_arguments(
        commands.add("course", course_command.course, "fedbook course build DIR", results=False)
    )
    p = commands.add("lab", lab, "fedbook lab --no-browser --port 8899", results=False)
    p.set_defaults(rest=[])
    p = commands.add("pretrain", pretrain, "fedbook pretrain probe", results=False)
    if commands.asked == "pretrain":
        from fedbook.models.pretrain import add_arguments

        add_arguments(p)


def check(args: argparse.Namespace) -> int:
    """Versions, device, data, weights, results folder."""
    from fedbook import check as what

    found = what.state(store_of(args))
    if args.json:
        as_json(found)
        return 1 if found["missing"] else 0
    print(what.text(found))
    if found["missing"]:
        raise FedbookError(f"not installed: {', '.join(found['missing'])}", "pip install fedbook")
    return 0


def badges(args: argparse.Namespace) -> int:
    """Write the project's address into README, notebooks and pyproject.toml."""
    from fedbook import badges as work

    root = checkout()
    changed = [str(path.relative_to(root)) for path in work.write(args.repo, root)]
    as_json(changed) if args.json else print("\n".join(changed) or "nothing to change")
    return 0


def book(args: argparse.Namespace) -> int:
    """The notebooks, claims, figures and reference as web pages."""
    from fedbook import book as work
    from fedbook.results import default_folder

    root = default_folder("notebooks").parent
    page = work.build(root, Path(args.folder) if args.folder else root / "book")
    as_json({"page": str(page)}) if args.json else print(page)
    return 0


def bench(args: argparse.Namespace) -> int:
    """Speed and memory: both engines, other libraries, growth, the limit, single steps."""
    from fedbook.bench import measure

    out, said = measure(args.what, args.figures, args.markdown)
    as_json(out) if args.json else print(said)
    return 0


def lab(args: argparse.Namespace) -> int:
    """JupyterLab on the notebooks; further options are passed on to it."""
    import subprocess

    from fedbook.results import default_folder

    folder = default_folder("notebooks")
    if not folder.is_dir():
        raise FedbookError(f"no notebooks at {folder}", "start this inside a checkout of fedbook")
    if importlib.util.find_spec("jupyterlab") is None:
        raise FedbookError("JupyterLab is not installed", "pip install 'fedbook[lab]'")
    return subprocess.call([sys.executable, "-m", "jupyterlab", str(folder), *args.rest])


def pretrain(args: argparse.Namespace) -> int:
    """Train the default backbone again, or print what frozen networks are worth."""
    from fedbook.models.pretrain import main as pretrain_main

    return pretrain_main(args) or 0  # type: ignore[func-returns-value]
