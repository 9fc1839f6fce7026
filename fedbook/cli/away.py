"""Runs on another machine: what they cost there, and their results brought back: hours, merge."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from fedbook.cli.shell import Commands, as_json, checkout, say, store_of
from fedbook.errors import FedbookError


def add(commands: Commands) -> None:
    p = commands.add("merge", merge, "fedbook merge from_gpu/")
    help = "a .jsonl file of results, or a folder of them"
    p.add_argument("paths", nargs="+", metavar="FOLDER|FILE", help=help)
    p = commands.add("hours", hours, "fedbook hours grp_fed/table1 fedgcr/table13")
    help = "tables in the order they would be run; none: all, what claims rest on first"
    p.add_argument("ids", nargs="*", metavar="ID", help=help)
    p.add_argument("--page", action="store_true", help="write the order into GPU_DAY.md")


def merge(args: argparse.Namespace) -> int:
    """Add another machine's results to those here; what is here stays as it is."""
    files = [file for path in args.paths for file in _result_files(Path(path))]
    store = store_of(args)
    store.check_writable()
    found = {file: store.merge(file) for file in files}
    if args.json:
        as_json([{"file": str(f), **dataclasses.asdict(m)} for f, m in found.items()])
        return 0
    for file, m in found.items():
        for why in m.refused:
            say(f"fedbook: warning: {why}")
        for key in m.different:
            say(f"fedbook: warning: {file}: {key} is here with another outcome, which is kept")
        told = f"{m.new} new, {m.known} known, {len(m.different)} different"
        print(f"{file.name}: {told}, {len(m.refused)} refused")
    return 0


def _result_files(path: Path) -> list[Path]:
    """The file itself, or the result files of a folder."""
    if not path.exists():
        raise FedbookError(f"nothing is at {path}", "give a .jsonl file or a folder of them")
    found = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not found or path.is_file() and path.suffix != ".jsonl":
        hint = "results are *.jsonl, such as results/fedgcr_paper.jsonl"
        raise FedbookError(f"{path} holds no result files", hint)
    return found


def hours(args: argparse.Namespace) -> int:
    """What tables cost on a rented GPU at paper scale, by the last rehearsal."""
    from fedbook import papers
    from fedbook.papers import gpu_day, rehearse

    path = store_of(args).folder / f"rehearsal_{gpu_day.SCALE}.csv"
    kept = rehearse.load(path)
    if not kept:
        raise FedbookError(f"no rehearsal at {path}", "fedbook reproduce --scale paper --rehearse")
    known = rehearse.run_hours(papers.specs().values(), gpu_day.SCALE, kept)
    if args.page:
        page = gpu_day.write(known, checkout())
        as_json(str(page)) if args.json else print(page)
        return 0
    ordered = [papers.get(id) for id in args.ids] or gpu_day.order(known)
    if args.json:
        as_json([dataclasses.asdict(p) for p in rehearse.prices(ordered, gpu_day.SCALE, known)])
    else:
        print(gpu_day.text(ordered, known))
    return 0
