"""Federated learning for groups of clients: run, reproduce, compare, look."""

# One module per family of commands. Heavy imports happen inside the commands that need them.

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence

from fedbook.cli import away, look, names, runs, tables, tools
from fedbook.cli.shell import RAW, Commands, Parser, say
from fedbook.errors import FedbookError

EXAMPLES = """examples:
  fedbook check                     what is installed, which device, which data
  fedbook list fedgcr               the tables and figures of a paper
  fedbook reproduce                 the four papers' ideas at work, in minutes
  fedbook reproduce fedgcr/table1 --scale laptop -o table1.tex
  fedbook claims                    what the papers claim, and what we can tell
  fedbook run fedavgm digits5_offline --rounds 20 --set lr=0.05 --seeds 3
  fedbook show fedavgm              the stored runs of a method
"""
FAMILIES = (tables, runs, look, away, names, tools)


def parser(command: str = "") -> argparse.ArgumentParser:
    """All commands; `command` is the one asked for."""
    top = Parser(prog="fedbook", description=__doc__, epilog=EXAMPLES, formatter_class=RAW)
    top.add_argument("--version", action="version", version=_version())
    commands = Commands(top, command)
    for family in FAMILIES:
        family.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; every foreseeable failure is one line on stderr and a non-zero exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    top = parser(argv[0] if argv else "")
    args, rest = top.parse_known_args(argv)
    if rest and "rest" not in args:
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    args.rest = rest
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: say(f"fedbook: warning: {message}")  # type: ignore[assignment]
            code = args.do(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        say("fedbook: interrupted; finished runs are kept, the same command goes on from there")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (FedbookError, OSError) as error:
        if os.environ.get("FEDBOOK_DEBUG"):
            raise
        say(f"fedbook: error: {_one_line(error, args.command)}")
        return 1


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"fedbook {version('fedbook')}"
    except PackageNotFoundError:
        return "fedbook (not installed)"


def _one_line(error: Exception, command: str) -> str:
    """The message with a hint."""
    said = " ".join(str(error).split())
    if not isinstance(error, FedbookError):
        return f"{said} (check path, rights and space)"
    return said if error.hint else f"{said} (see `fedbook {command} --help`)"
