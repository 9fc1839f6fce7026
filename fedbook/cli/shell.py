"""What the commands share: how they are added, how they talk, arguments that several of them
take."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NoReturn

from fedbook.errors import FedbookError

if TYPE_CHECKING:
    from fedbook.results import Store

RAW = argparse.RawDescriptionHelpFormatter


class Parser(argparse.ArgumentParser):
    """One line for a wrong argument, not a page."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see `{self.prog} --help`)\n")


class Commands:
    """The commands of `fedbook`; `asked` is the one on the command line, so that the arguments of a
    command whose module is heavy need not be known for the others.
    """

    def __init__(self, top: argparse.ArgumentParser, asked: str) -> None:
        self.asked = asked
        self._known = top.add_subparsers(
            dest="command", metavar="COMMAND", required=True, parser_class=Parser
        )

    def add(
        self,
        name: str,
        do: Callable[[argparse.Namespace], int],
        example: str,
        results: bool = True,
    ) -> argparse.ArgumentParser:
        """A command: `do(args)` returns the exit code, its docstring is the help."""
        about = " ".join((do.__doc__ or "").split())
        told: dict[str, Any] = {"description": fill(about, 78), "epilog": f"example:\n  {example}"}
        p = self._known.add_parser(name, help=about, formatter_class=RAW, **told)
        p.set_defaults(do=do)
        p.add_argument("--json", action="store_true", help="machine-readable output")
        if results:
            where = "folder of result files (default: results/ of the checkout)"
            p.add_argument("--results", metavar="DIR", help=where)
        return p


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def as_json(data: Any) -> None:
    print(json.dumps(data, indent=1))


# -- arguments -------------------------------------------------------------------------------------
def add_scale(p: argparse.ArgumentParser, default: str | None, help: str = "") -> None:
    p.add_argument("--scale", type=scale, metavar="NAME", default=default, help=help)


def add_jobs(p: argparse.ArgumentParser) -> None:
    said = "processes of one thread each (default: one per core)"
    p.add_argument("--jobs", type=positive, metavar="N", help=said)


def store_of(args: argparse.Namespace) -> Store:
    from fedbook.results import Store

    return Store(args.results)


def checkout() -> Path:
    """The project's folder, for commands that write its pages."""
    from fedbook.results import default_folder

    root = default_folder().parent
    if not (root / "pyproject.toml").is_file():
        raise FedbookError("this is no checkout of fedbook", "run it in the project's folder")
    return root


def folder_of(path: str | None) -> Path | None:
    return Path(path) if path else None


def positive(text: str) -> int:
    try:
        if (n := int(text)) > 0:
            return n
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"a whole number of at least 1 is expected, got {text!r}")


def scale(text: str) -> str:
    """A scale that some paper has, or "published"."""
    from fedbook.papers import scales

    known = [*scales(), "published"]
    if text not in known:
        raise argparse.ArgumentTypeError(f"unknown scale {text!r}, there are {', '.join(known)}")
    return text
