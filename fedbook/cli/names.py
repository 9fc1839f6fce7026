"""What there is by name: data."""

from __future__ import annotations

import argparse

from fedbook.cli.shell import Commands, as_json
from fedbook.errors import FedbookError


def add(commands: Commands) -> None:
    p = commands.add("data", data, "fedbook data fetch mnist", results=False)
    p.add_argument("action", nargs="?", choices=("list", "fetch", "verify"), default="list")
    p.add_argument("names", nargs="*", metavar="NAME")


def data(args: argparse.Namespace) -> int:
    """List, fetch or verify datasets."""
    return {"list": _list_data, "fetch": _fetch, "verify": _verify}[args.action](args)


def _list_data(args: argparse.Namespace) -> int:
    from fedbook import data as datasets

    table = [datasets.info(name) for name in datasets.names()]
    if args.json:
        as_json(table)
        return 0
    for i in table:
        size = f"{i['mb']:g} MB" if i["mb"] else ""
        print(f"{i['name']:22} {i['status']:15} {size:>9}  {i['about']}")
        print(f"{'':50}{i['licence']}. {i['citation']}")
    return 0


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
