"""Tables and figures of the papers: list, reproduce, claims, tune, figures."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbook.cli.shell import (
    Commands,
    add_jobs,
    add_scale,
    as_json,
    folder_of,
    positive,
    say,
    store_of,
)
from fedbook.errors import FedbookError
from fedbook.files import write_atomically

if TYPE_CHECKING:
    from fedbook.papers import Spec
    from fedbook.results import Store


def add(commands: Commands) -> None:
    p = commands.add("list", list_, "fedbook list fedgcr ablation")
    help = "only those in whose id or title all words occur"
    p.add_argument("words", nargs="*", metavar="WORD", help=help)
    example = "fedbook reproduce fedgcr/table1 --scale laptop --jobs 2 -o table1.tex"
    p = commands.add("reproduce", reproduce, example)
    help = "tables and figures; none: a tour of the four papers"
    p.add_argument("ids", nargs="*", metavar="ID", help=help)
    add_scale(p, None, "of the tables: smoke (seconds), laptop or paper (one GPU); default smoke")
    p.add_argument("--seeds", type=positive, metavar="N", help="repeats (default: the scale's)")
    add_jobs(p)
    help = "where figures go (default: figures/ of the checkout)"
    p.add_argument("--figures", metavar="DIR", help=help)
    kinds = ("text", "md", "latex", "csv", "json", "html")
    help = "how tables are written (default: as the file's name ends, else text)"
    p.add_argument("--format", choices=kinds, help=help)
    help = "write the tables to a file; without an ID: the folder of the tour's page"
    p.add_argument("-o", "--output", metavar="FILE", help=help)
    p.add_argument("--no-open", action="store_true", help="do not open the tour's page")
    help = "one small round of every distinct run with its real network, and what it will cost"
    p.add_argument("--rehearse", action="store_true", help=help)
    p = commands.add("claims", claims, "fedbook claims fedgcr --open")
    help = "a paper, or one claim with all its checks; none: all"
    p.add_argument("which", nargs="?", metavar="PAPER|ID", help=help)
    add_scale(p, None, "default: paper where it has results, else laptop; published: the printed")
    only = p.add_mutually_exclusive_group()
    only.add_argument("--open", action="store_true", help="only those that are open")
    help = "only those contradicted or mixed"
    only.add_argument("--against", action="store_true", help=help)
    p.add_argument("--details", action="store_true", help="every check of every claim")
    p = commands.add("tune", tune, "fedbook tune fedgcr --scale laptop")
    p.add_argument("paper", metavar="PAPER")
    p.add_argument("--quick", action="store_true", help="the settings of `fedbook reproduce`")
    help = "another of its grids: grp_fed has images, client2vec small"
    p.add_argument("--grid", metavar="NAME", help=help)
    add_scale(p, "laptop")
    add_jobs(p)
    p = commands.add("figures", figures, "fedbook figures fedgcr/table1 --scale laptop")
    p.add_argument("ids", nargs="*", metavar="ID")
    add_scale(p, None)
    p.add_argument("--figures", metavar="DIR")


def list_(args: argparse.Namespace) -> int:
    """Every table and figure: runs done at each scale, estimated cost."""
    from fedbook import papers
    from fedbook.papers.reproduce import overview

    scales = papers.scales()
    known = list(papers.specs().values())
    for word in args.words:
        known = [s for s in known if word.lower() in f"{s.id} {s.kind} {s.title}".lower()]
    if not known:
        hint = "`fedbook list` shows all"
        raise FedbookError(f"no table or figure fits {' '.join(args.words)!r}", hint)
    out = overview(known, scales, store_of(args).keys())
    if args.json:
        as_json(out)
        return 0
    columns = "".join(f"{s:8}" for s in scales)
    print(f"{'id':18} {columns}title (runs: stored/planned)")
    for e in out:
        cells = ""
        cost = []
        for scale, s in e["scales"].items():
            done = f"{s['done']}/{s['runs']}" if s["runs"] else "-"
            cells += f"{done:8}"
            if s["seconds"] and s["done"] < s["runs"]:
                cost.append(f"{scale} ~{_duration(s['seconds'] * (1 - s['done'] / s['runs']))}")
        note = f" [{', '.join(cost)}]" if cost else ""
        head = f"{e['id']:18} {cells}"
        room = 80 - len(head) - len(note)
        title = e["title"] if len(e["title"]) <= room else e["title"][: room - 3] + "..."
        print(f"{head}{title}{note}")
    return 0


def _duration(seconds: float) -> str:
    """A time in at most six characters."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def reproduce(args: argparse.Namespace) -> int:
    """Without an ID the four papers' ideas at work in minutes, summed up in report/index.html; with
    IDs run what is missing of them, print paper against ours, draw.
    """
    if not (args.ids or args.scale or args.rehearse):
        return _tour(args)
    from fedbook.papers import reproduce as work

    args.scale = args.scale or "smoke"
    chosen = _chosen(args)
    _format(args)  # before hours of work
    store = store_of(args)
    store.check_writable()
    if args.rehearse:
        return _rehearse(args, chosen, store)
    results = store.keys()
    todo = work.missing(chosen, args.scale, args.seeds, results)
    runs = sum(len(s.plan(args.scale, args.seeds)) for s in chosen)
    counts = f"{runs} runs, {len(todo)} to compute"
    say(f"{len(chosen)} tables and figures at {args.scale} scale: {counts}")
    errors = work.compute(todo, store, args.jobs or work.default_jobs(), say)
    results = store.keys()
    reports = []
    for spec in chosen:
        rep = work.report(spec, args.scale, results, args.seeds)
        drawn = work.draw(spec, args.scale, results, folder_of(args.figures), args.seeds)
        rep["figures"] = [str(p) for p in drawn]
        reports.append(rep)
    _hand_over(args, chosen, reports)
    if errors:
        hint = "the other runs are stored; run again after putting this right"
        raise FedbookError("; ".join(errors), hint)
    return 0


def _tour(args: argparse.Namespace) -> int:
    from fedbook.results import default_folder
    from fedbook.tour import SEEDS, page, terminal, tour

    folder = folder_of(args.output) or default_folder("report")
    seen = tour(folder, store_of(args), seeds=args.seeds or SEEDS, jobs=args.jobs, tell=say)
    path = page.write(seen, folder)
    if args.json:
        as_json({**seen.to_json(), "page": str(path)})
        return 0
    print(terminal.text(seen, terminal.coloured()))
    print(f"figures, tables and verdicts: {path}")
    if sys.stdout.isatty() and not args.no_open:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
    return 0


def _rehearse(args: argparse.Namespace, chosen: list[Spec], store: Store) -> int:
    from fedbook.papers import rehearse as work

    path = store.folder / f"rehearsal_{args.scale}.csv"
    kept = work.load(path)
    found = []
    for r in work.rehearse(chosen, args.scale, dict(kept), say):
        found.append(r)
        kept[r.key] = r
        work.keep(kept.values(), path)
    if args.json:
        as_json([dataclasses.asdict(r) for r in found])
    else:
        print(work.text(found))
    broken = [r for r in found if r.outcome != "ok"]
    if broken:
        message = f"{len(broken)} of {len(found)} distinct runs broke, first: {broken[0].outcome}"
        raise FedbookError(message, broken[0].what)
    return 0


def _hand_over(args: argparse.Namespace, chosen: list[Spec], reports: list[dict[str, Any]]) -> None:
    """Print the tables, or write them to a file, in the format asked for."""
    from fedbook.papers import export
    from fedbook.papers.layout import lay_out
    from fedbook.papers.reproduce import text

    grids = {}
    for spec, rep in zip(chosen, reports):
        if spec.rows:
            grids[spec.id] = lay_out(spec, rep["rows"], args.scale, args.seeds)
    format = _format(args)
    if format == "text":
        shown = [text(r, export.text(grids[r["id"]]) if r["rows"] else "") for r in reports]
        written = "\n\n".join(shown)
    else:
        written = export.write(reports, list(grids.values()), format)
    if args.output is None:
        print(written)
        return
    with write_atomically(args.output) as part:
        part.write_text(written + "\n", encoding="utf-8")
    say(f"written: {args.output}")


def _format(args: argparse.Namespace) -> str:
    """As asked for, else as the file's name ends, else text."""
    from fedbook.papers.export import SUFFIXES

    if args.json:
        return "json"
    suffix = Path(args.output or "").suffix
    if args.format or not suffix:
        return args.format or "text"
    if suffix not in SUFFIXES:
        hint = f"choose --format, or end the name in {', '.join(SUFFIXES)}"
        raise FedbookError(f"no format is known for a file *{suffix}", hint)
    return SUFFIXES[suffix]


def _chosen(args: argparse.Namespace) -> list[Spec]:
    """The tables asked for, which must have this scale; without any, those of the headline that
    have it.
    """
    from fedbook import papers

    if not args.ids:
        if args.rehearse:
            return [spec for spec in papers.specs().values() if spec.plan(args.scale)]
        headline = [papers.get(i) for i in papers.HEADLINE]
        return [spec for spec in headline if spec.paper.has(args.scale)]
    chosen = [papers.get(i) for i in args.ids]
    for spec in chosen:
        spec.paper.scale(args.scale)
    return chosen


def claims(args: argparse.Namespace) -> int:
    """What the papers claim: supported, contradicted, mixed, open."""
    from fedbook.papers import verdicts

    judged = verdicts.choose(store_of(args), args.scale, args.which)
    if args.open:
        judged = [j for j in judged if j.verdict == "open"]
    if args.against:
        judged = [j for j in judged if j.verdict in ("contradicted", "mixed")]
    details = args.details or any(j.claim.id == args.which for j in judged)
    if args.json:
        as_json([j.to_json(details) for j in judged])
    else:
        print(verdicts.details(judged) if details else verdicts.lines(judged))
    return 0


def tune(args: argparse.Namespace) -> int:
    """Choose a paper's hyper-parameters on validation data, the same number of trials for every
    method.
    """
    from fedbook import papers
    from fedbook.papers import reproduce as work
    from fedbook.papers import tune as tuning

    paper = papers.find_paper(args.paper)
    if args.quick:
        from fedbook.tour import QUICK, quick

        paper = quick(paper.key)
        args.scale = QUICK
    elif args.grid:
        paper = paper.with_grid(args.grid)
    store = store_of(args)
    store.check_writable()
    jobs = args.jobs or work.default_jobs()
    tried, errors = tuning.tune(paper, args.scale, store, jobs, say)
    if args.json:
        chosen = {m: tuning.best(t) if t else None for m, t in tried.items()}
        trials = {m: [{**o, "score": v} for o, v in t] for m, t in tried.items()}
        as_json({"chosen": chosen, "trials": trials})
    else:
        print(tuning.text(tried))
    if errors:
        raise FedbookError("; ".join(errors), "the other trials are stored")
    return 0


def figures(args: argparse.Namespace) -> int:
    """Redraw from stored results, without training."""
    from fedbook import papers
    from fedbook.papers.reproduce import draw
    from fedbook.papers.verdicts import draw_forest

    store = store_of(args)
    results = store.keys()
    forests = [p for p in papers.PAPERS if not args.ids or f"{p}/claims" in args.ids]
    ids = [i for i in args.ids if i.removesuffix("/claims") not in forests]
    chosen = [papers.get(i) for i in ids] if args.ids else list(papers.specs().values())
    found = []
    for scale in [args.scale] if args.scale else papers.scales():
        for spec in chosen:
            found += draw(spec, scale, results, folder_of(args.figures))
        for paper in forests:
            found += draw_forest(papers.PAPERS[paper], scale, store, folder_of(args.figures))
    paths = [str(p) for p in found]
    if args.json:
        as_json(paths)
    else:
        print("\n".join(paths) or "nothing to draw yet")
    if args.ids and not paths:
        message = f"no stored results to draw {', '.join(args.ids)} from"
        raise FedbookError(message, f"fedbook reproduce {args.ids[0]}")
    return 0
