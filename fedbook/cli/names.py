"""What there is by name: methods, models, partitions, datasets, data."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from textwrap import wrap
from typing import Any

from fedbook.cli.shell import Commands, as_json
from fedbook.errors import FedbookError, unknown

ACTIONS = ("list", "fetch", "verify")
MARKS = {"offline": "✓ offline", "cached": "✓ here"}


def add(commands: Commands) -> None:
    kinds: tuple[tuple[str, Callable[[argparse.Namespace], int]], ...] = (
        ("methods", methods),
        ("models", models),
        ("partitions", partitions),
        ("datasets", datasets),
    )
    examples = {"methods": "fedgcr", "models": "cnn", "partitions": "dirichlet", "datasets": "pacs"}
    for name, do in kinds:
        p = commands.add(name, do, f"fedbook {name} {examples[name]}", results=False)
        help = "one of them, with everything known about it"
        p.add_argument("name", nargs="?", metavar="NAME", help=help)
    p = commands.add("data", data, "fedbook data digits\n  fedbook data fetch mnist", results=False)
    help = "list (the default), fetch or verify; any other word filters the list"
    p.add_argument("action", nargs="?", default="list", metavar="ACTION", help=help)
    p.add_argument("names", nargs="*", metavar="NAME")


# -- methods, models, partitions -------------------------------------------------------------------
def methods(args: argparse.Namespace) -> int:
    """Every method, or one with its equations, options and citation."""
    from fedbook import methods as known

    if args.name:
        module = inspect.getmodule(known.builder(args.name))
        about = inspect.getdoc(module) or ""
        return _one(args, args.name, about, known.options(args.name))
    return _all(args, {name: _title(known.builder(name)) for name in known.names()})


def models(args: argparse.Namespace) -> int:
    """Every model, or one with its options."""
    from fedbook import models as known

    builders = known.builders()
    if args.name:
        if args.name not in builders:
            raise unknown("model", args.name, builders)
        build = builders[args.name]
        return _one(args, args.name, inspect.getdoc(build) or "", _defaults(build, ("federation",)))
    return _all(args, {name: _first(build) for name, build in sorted(builders.items())})


def partitions(args: argparse.Namespace) -> int:
    """Every way to deal data out, or one with its options."""
    from fedbook.data.partition import HOW

    if args.name:
        if args.name not in HOW:
            raise unknown("partition", args.name, HOW)
        given = ("labels", "domain", "domains", "coarse", "ids", "within", "seed", "names")
        found = _defaults(HOW[args.name], given)
        return _one(args, args.name, inspect.getdoc(HOW[args.name]) or "", found)
    return _all(args, {name: _first(how) for name, how in HOW.items()})


def _all(args: argparse.Namespace, told: dict[str, str]) -> int:
    if args.json:
        as_json(told)
    else:
        width = max(map(len, told)) + 2
        for name, about in told.items():
            lines = wrap(about, 80 - width)
            print(name.ljust(width) + f"\n{' ' * width}".join(lines))
    return 0


def _one(args: argparse.Namespace, name: str, about: str, options: dict[str, Any]) -> int:
    """A description as it was written, and every option with its default."""
    plain = {k: None if v is inspect.Parameter.empty else v for k, v in options.items()}
    if args.json:
        as_json({"name": name, "about": about, "options": {k: _json(v) for k, v in plain.items()}})
        return 0
    print("\n".join(_wrapped(about)).rstrip())
    print("\nOptions (--set):" if options else "\nNo options.")
    for option, default in options.items():
        needed = default is inspect.Parameter.empty
        print(f"  {option}" if needed else _cut(f"  {option} = {default!r}"))
    return 0


def _wrapped(about: str) -> Iterable[str]:
    """Lines of at most 80 columns: text flows, tables of symbols become lists, equations stay."""
    text: list[str] = []
    for line in [*about.splitlines(), ""]:
        flows = line.strip() and not line.startswith(("|", "    "))
        if text and (not flows or line.startswith("- ")):
            indent = "  " if text[0].startswith("- ") else ""
            yield from wrap(" ".join(text), 80, subsequent_indent=indent)
            text = []
        if flows:
            text.append(line.strip())
        elif not re.fullmatch(r"\|[-|: ]+", line):
            yield from _kept(line)


def _kept(line: str) -> Iterable[str]:
    """An equation with its number close to it, a line of a table as words."""
    if line.startswith("|"):
        cells = [c.strip() for c in line.strip("| ").split(" | ")]
        line = "  " + " | ".join(c for c in cells if c)
    if len(line) > 80:
        line = re.sub(r" {3,}(?=\(\S+\)$)", "  ", line)
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return wrap(line, 80, subsequent_indent=indent, replace_whitespace=False) or [""]


def _json(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, bool, type(None))) else repr(value)


def _title(build: Callable[..., Any]) -> str:
    """The first sentence about a method, which its file begins with."""
    return _sentence(inspect.getdoc(inspect.getmodule(build)) or "")


def _first(build: Callable[..., Any]) -> str:
    return _sentence(inspect.getdoc(build) or "")


def _sentence(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


def _defaults(build: Callable[..., Any], given: Sequence[str]) -> dict[str, Any]:
    """Options with their defaults, without what the library passes in itself."""
    found = inspect.signature(build).parameters.values()
    return {
        p.name: p.default
        for p in found
        if p.name not in given and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    }


# -- datasets --------------------------------------------------------------------------------------
def datasets(args: argparse.Namespace) -> int:
    """Every dataset, or one with its licence and citation."""
    from fedbook import data as known

    if not args.name:
        return _list_data(args, [])
    found = known.info(args.name)
    if args.json:
        as_json(found)
        return 0
    for field, value in found.items():
        if value not in (None, "", [], 0):
            print("\n".join(wrap(f"{field:11} {_said(value)}", 80, subsequent_indent=" " * 12)))
    return 0


def _said(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def data(args: argparse.Namespace) -> int:
    """List, fetch or verify datasets."""
    if args.action not in ACTIONS:
        return _list_data(args, [args.action, *args.names])
    if args.action == "list":
        return _list_data(args, args.names)
    return {"fetch": _fetch, "verify": _verify}[args.action](args)


def _list_data(args: argparse.Namespace, words: Sequence[str]) -> int:
    """One line each: those in whose name, description or status all words occur."""
    from fedbook import data as datasets

    table = [datasets.info(name) for name in datasets.names()]
    for word in words:
        table = [i for i in table if any(word in str(i[k]) for k in ("name", "about", "status"))]
    if args.json:
        as_json(table)
        return 0
    if not table:
        raise FedbookError(f"no dataset fits {' '.join(words)!r}", "`fedbook data` lists them all")
    for i in table:
        size = f"{i['mb']:g} MB" if i["mb"] else ""
        status = MARKS.get(i["status"], i["status"])
        line = f"{i['name']:21} {status:13} {size:>8}  {i['about']}"
        print(_cut(line))
    print("`fedbook datasets NAME` tells licence and citation")
    return 0


def _cut(line: str) -> str:
    return line if len(line) <= 80 else line[:77] + "..."


def _fetch(args: argparse.Namespace) -> int:
    from fedbook import data as datasets

    if not args.names:
        raise FedbookError("fetch needs the name of a dataset", "`fedbook data` lists them")
    for name in args.names:
        made = datasets.fetch(name, quiet=args.json)
        print(f"{name}: " + (", ".join(map(str, made)) or "already here"))
    return 0


def _verify(args: argparse.Namespace) -> int:
    from fedbook import data as datasets

    rows = [row for name in args.names or [None] for row in datasets.verify(name)]
    if args.json:
        as_json(rows)
    else:
        for r in rows:
            print(f"{r['name']:18} {r['status']:8} {r['file']}  {r['note']}")
        if not rows:
            print("nothing to verify: no dataset has been fetched")
    wrong = ("broken", "changed", "missing") if args.names else ("broken", "changed")
    bad = [r["name"] for r in rows if r["status"] in wrong]
    if bad:
        hint = f"remove the file and `fedbook data fetch {bad[0]}`"
        raise FedbookError(f"not whole: {', '.join(bad)}", hint)
    return 0
