"""The command `fedbook`: look, run, compare, check, draw. Heavy imports happen inside the commands
that need them."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fedbook.errors import FedbookError

if TYPE_CHECKING:
    from fedbook.experiment import Experiment
    from fedbook.papers import Spec
    from fedbook.results import Store

EXAMPLES = """examples:
  fedbook check                                   what is installed, which device, which data
  fedbook list                                    every table and figure of the papers
  fedbook reproduce                               the four papers' ideas at work, in minutes
  fedbook reproduce fedgcr/table1 --scale laptop  one table, three seeds
  fedbook claims                                  what the papers claim, and what we can tell
  fedbook run fedavgm digits5_offline --rounds 20 --set lr=0.05 --set partition.dif=10
"""
SCORES = ("avg_client", "avg_type", "sigma_client", "sigma_type", "worst_client", "bottom_10")


class Parser(argparse.ArgumentParser):
    """One line for a wrong argument, not a page."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see `{self.prog} --help`)\n")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def show(data: Any) -> None:
    print(json.dumps(data, indent=1))


# -- the commands ----------------------------------------------------------------------------------
def check(args: argparse.Namespace) -> int:
    """Versions, device, data, weights, results folder."""
    from fedbook import check as what

    found = what.state(_store(args))
    if args.json:
        show(found)
        return 1 if found["missing"] else 0
    print(what.text(found))
    if found["missing"]:
        raise FedbookError(f"not installed: {', '.join(found['missing'])}", "pip install fedbook")
    return 0


def list_(args: argparse.Namespace) -> int:
    """Every table and figure: runs done at each scale, estimated cost."""
    from fedbook import papers
    from fedbook.papers.reproduce import overview

    scales = papers.scales()
    out = overview(papers.specs().values(), scales, _store(args).keys())
    if args.json:
        show(out)
        return 0
    columns = "".join(f"{s:8}" for s in scales)
    print(f"{'id':19} {'kind':6}  {columns}title   (done/runs; est. = seconds of one process)")
    for e in out:
        cells = ""
        cost = []
        for scale, s in e["scales"].items():
            done = f"{s['done']}/{s['runs']}" if s["runs"] else "-"
            cells += f"{done:8}"
            if s["seconds"] and s["done"] < s["runs"]:
                cost.append(f"{scale} est. {s['seconds']:.0f} s")
        title = e["title"] if len(e["title"]) < 60 else e["title"][:57] + "..."
        note = f"  [{', '.join(cost)}]" if cost else ""
        print(f"{e['id']:19} {e['kind']:6}  {cells}{title}{note}")
    return 0


def reproduce(args: argparse.Namespace) -> int:
    """Without an ID the four papers' ideas at work in minutes, summed up in report/index.html; with
    IDs run what is missing of them, print paper against ours, draw.
    """
    if not (args.ids or args.scale or args.rehearse):
        return _tour(args)
    from fedbook.papers import reproduce as work

    args.scale = args.scale or "smoke"
    chosen = _chosen(args)
    store = _store(args)
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
        drawn = work.draw(spec, args.scale, results, _folder(args.figures), args.seeds)
        rep["figures"] = [str(p) for p in drawn]
        reports.append(rep)
    if args.json:
        show(reports)
    else:
        print("\n\n".join(work.text(r) for r in reports))
        if args.scale != "paper":
            note = "absolute values are not comparable with print; orderings are checked."
            print(f"\nAt {args.scale} scale {note}")
    if errors:
        hint = "the other runs are stored; run again after putting this right"
        raise FedbookError("; ".join(errors), hint)
    return 0


def _tour(args: argparse.Namespace) -> int:
    from fedbook.results import default_folder
    from fedbook.tour import SEEDS, page, terminal, tour

    folder = _folder(args.output) or default_folder("report")
    seen = tour(folder, _store(args), seeds=args.seeds or SEEDS, jobs=args.jobs, tell=say)
    path = page.write(seen, folder)
    if args.json:
        show({**seen.to_json(), "page": str(path)})
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
        show([dataclasses.asdict(r) for r in found])
    else:
        print(work.text(found))
    broken = [r for r in found if r.outcome != "ok"]
    if broken:
        message = f"{len(broken)} of {len(found)} distinct runs broke, first: {broken[0].outcome}"
        raise FedbookError(message, broken[0].what)
    return 0


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

    judged = verdicts.choose(_store(args), args.scale, args.which)
    if args.open:
        judged = [j for j in judged if j.verdict == "open"]
    if args.against:
        judged = [j for j in judged if j.verdict in ("contradicted", "mixed")]
    details = args.details or any(j.claim.id == args.which for j in judged)
    if args.json:
        show([j.to_json(details) for j in judged])
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
    store = _store(args)
    store.check_writable()
    jobs = args.jobs or work.default_jobs()
    tried, errors = tuning.tune(paper, args.scale, store, jobs, say)
    if args.json:
        chosen = {m: tuning.best(t) if t else None for m, t in tried.items()}
        trials = {m: [{**o, "score": v} for o, v in t] for m, t in tried.items()}
        show({"chosen": chosen, "trials": trials})
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

    store = _store(args)
    results = store.keys()
    forests = [p for p in papers.PAPERS if not args.ids or f"{p}/claims" in args.ids]
    ids = [i for i in args.ids if i.removesuffix("/claims") not in forests]
    chosen = [papers.get(i) for i in ids] if args.ids else list(papers.specs().values())
    found = []
    for scale in [args.scale] if args.scale else papers.scales():
        for spec in chosen:
            found += draw(spec, scale, results, _folder(args.figures))
        for paper in forests:
            found += draw_forest(papers.PAPERS[paper], scale, store, _folder(args.figures))
    paths = [str(p) for p in found]
    if args.json:
        show(paths)
    else:
        print("\n".join(paths) or "nothing to draw yet")
    if args.ids and not paths:
        message = f"no stored results to draw {', '.join(args.ids)} from"
        raise FedbookError(message, f"fedbook reproduce {args.ids[0]}")
    return 0


def run(args: argparse.Namespace) -> int:
    """One experiment from the shell."""
    e = _experiment(args)
    store = _store(args)
    if args.dry_run:
        from fedbook.cost import plan
        from fedbook.papers.reproduce import Estimate

        show(plan(e, Estimate(store.load())(e)))
        return 0
    store.check_writable()
    result = e.run(quiet=args.json or args.quiet, checkpoint=args.checkpoint, device=args.device)
    store.append({"spec": "run", **result}, f"run_{e.scale}")
    if args.json:
        show(result)
        return 0
    took = f"{e.rounds} rounds in {result['seconds']:.1f} s on {result['device']}"
    print(f"{args.method} on {args.dataset}: {took}")
    found = result["metrics"]
    print(_scores(found))
    if "personal" in found:
        print(f"personal models:  {_scores(found['personal'])}")
    up, down = (found["communication"][f"bytes_{way}"] / 1e6 for way in ("up", "down"))
    print(f"sent {up:.2f} MB up, {down:.2f} MB down; stored as {result['key']}")
    return 0


def _scores(found: dict[str, Any]) -> str:
    known = [k for k in (*SCORES, "best") if found.get(k) is not None]
    return "  ".join(f"{k} {found[k]:.4f}" for k in known)


def _experiment(args: argparse.Namespace) -> Experiment:
    """The settings of the paper that runs this method on this dataset, else plain ones; then the
    changes asked for.
    """
    from fedbook import methods, papers
    from fedbook.experiment import plain

    methods.get(args.method)
    e = papers.planned(args.method, args.dataset, args.scale, args.seed)
    if e is None:
        e = plain(args.method, args.dataset, scale=args.scale, seed=args.seed)
    parts: dict[str, Any] = {}
    for part in ("dataset", "partition", "model", "method"):
        parts[part] = dict(getattr(e, part))
    if args.partition:
        parts["partition"] = {"name": args.partition}
    if args.model:
        parts["model"] = {"name": args.model}
    for text in args.set or []:
        _set(parts, text)
    rounds = e.rounds if args.rounds is None else args.rounds
    return dataclasses.replace(e, **parts, rounds=rounds)


def _set(parts: dict[str, dict[str, Any]], text: str) -> None:
    """Follow one `--set part.option=value`."""
    name, equals, value = text.partition("=")
    part, dot, option = name.rpartition(".")
    part = part if dot else "method"
    if not equals or not option or part not in parts or option == "name":
        hint = "for example --set lr=0.05, --set partition.dif=10, --set model.width=16"
        raise FedbookError(f"--set expects [part.]option=value, got {text!r}", hint)
    parts[part][option] = value
    with contextlib.suppress(ValueError):
        parts[part][option] = json.loads(value)


def data(args: argparse.Namespace) -> int:
    """List, fetch or verify datasets."""
    return {"list": _list_data, "fetch": _fetch, "verify": _verify}[args.action](args)


def _list_data(args: argparse.Namespace) -> int:
    from fedbook import data as datasets

    table = [datasets.info(name) for name in datasets.names()]
    if args.json:
        show(table)
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
        show(rows)
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


def bench(args: argparse.Namespace) -> int:
    """Seconds per round against a bare loop, memory against the number of clients; or of a step
    with prompts, of Client2Vec's index.
    """
    if args.what == "prompts":
        from fedbook.models.bench_prompts import main as bench_prompts

        return bench_prompts(json=args.json)
    if args.what == "index":
        from fedbook.models.dsa_ign import bench_index

        found = bench_index()
        ratio = f"{found['stock_over_ours']:.2f} times as fast as torch's encoder with its dropout"
        show(found) if args.json else print(f"DSA-IGN steps {ratio}")
        return 0
    from fedbook.bench import bench as measure
    from fedbook.bench import text

    out = measure(rounds=args.rounds, repeats=args.repeats)
    show(out) if args.json else print(text(out))
    return 0


def lab(args: argparse.Namespace) -> int:
    """JupyterLab on the notebooks."""
    import subprocess

    from fedbook.results import default_folder

    folder = default_folder("notebooks")
    if not folder.is_dir():
        raise FedbookError(f"no notebooks at {folder}", "start this inside a checkout of fedbook")
    return subprocess.call([sys.executable, "-m", "jupyterlab", str(folder), *args.rest])


def pretrain(args: argparse.Namespace) -> int:
    """Train the default backbone again, or print what frozen networks are worth."""
    from fedbook.models.pretrain import main as pretrain_main

    return pretrain_main(args) or 0  # type: ignore[func-returns-value]


# -- the command line ------------------------------------------------------------------------------
def _store(args: argparse.Namespace) -> Store:
    from fedbook.results import Store

    return Store(args.results)


def _folder(path: str | None) -> Path | None:
    return Path(path) if path else None


def _positive(text: str) -> int:
    try:
        if (n := int(text)) > 0:
            return n
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"a whole number of at least 1 is expected, got {text!r}")


def _scale(text: str) -> str:
    """A scale that some paper has, or "published"."""
    from fedbook.papers import scales

    known = [*scales(), "published"]
    if text not in known:
        raise argparse.ArgumentTypeError(f"unknown scale {text!r}, there are {', '.join(known)}")
    return text


def parser(command: str = "") -> argparse.ArgumentParser:
    """All commands; the arguments of `pretrain`, whose module is heavy, only when it is the one
    asked for.
    """
    raw = argparse.RawDescriptionHelpFormatter
    top = Parser(prog="fedbook", description=__doc__, epilog=EXAMPLES, formatter_class=raw)
    top.add_argument("--version", action="version", version=_version())
    commands = top.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=Parser
    )

    def add(name: str, do: Any, example: str, results: bool = True) -> argparse.ArgumentParser:
        said = {"description": do.__doc__, "epilog": f"example:\n  {example}"}
        p = commands.add_parser(name, help=do.__doc__, formatter_class=raw, **said)
        p.set_defaults(do=do)
        p.add_argument("--json", action="store_true", help="machine-readable output")
        if results:
            where = "folder of result files (default: results/ of the checkout)"
            p.add_argument("--results", metavar="DIR", help=where)
        return p

    def scale(p: argparse.ArgumentParser, default: str | None, help: str = "") -> None:
        p.add_argument("--scale", type=_scale, metavar="NAME", default=default, help=help)

    def jobs(p: argparse.ArgumentParser) -> None:
        said = "processes of one thread each (default: one per core)"
        p.add_argument("--jobs", type=_positive, metavar="N", help=said)

    add("check", check, "fedbook check")
    add("list", list_, "fedbook list --json")
    example = "fedbook reproduce fedgcr/table1 client2vec/table1 --scale laptop --jobs 2"
    p = add("reproduce", reproduce, example)
    help = "tables and figures; none: a tour of the four papers"
    p.add_argument("ids", nargs="*", metavar="ID", help=help)
    scale(p, None, "of the tables: smoke (seconds), laptop or paper (one GPU); default smoke")
    p.add_argument("--seeds", type=_positive, metavar="N", help="repeats (default: the scale's)")
    jobs(p)
    help = "where figures go (default: figures/ of the checkout)"
    p.add_argument("--figures", metavar="DIR", help=help)
    help = "where the tour's page goes (default: report/ of the checkout)"
    p.add_argument("-o", "--output", metavar="DIR", help=help)
    p.add_argument("--no-open", action="store_true", help="do not open the tour's page")
    help = "one small round of every distinct run with its real network, and what it will cost"
    p.add_argument("--rehearse", action="store_true", help=help)
    p = add("claims", claims, "fedbook claims fedgcr --open")
    help = "a paper, or one claim with all its checks; none: all"
    p.add_argument("which", nargs="?", metavar="PAPER|ID", help=help)
    scale(p, None, "default: paper where it has results, else laptop; published: the printed")
    only = p.add_mutually_exclusive_group()
    only.add_argument("--open", action="store_true", help="only those that are open")
    help = "only those contradicted or mixed"
    only.add_argument("--against", action="store_true", help=help)
    p.add_argument("--details", action="store_true", help="every check of every claim")
    p = add("tune", tune, "fedbook tune fedgcr --scale laptop")
    p.add_argument("paper", metavar="PAPER")
    scale(p, "laptop")
    jobs(p)
    p = add("figures", figures, "fedbook figures fedgcr/table1 --scale laptop")
    p.add_argument("ids", nargs="*", metavar="ID")
    scale(p, None)
    p.add_argument("--figures", metavar="DIR")
    _add_run(add, scale)
    p = add("data", data, "fedbook data fetch mnist", results=False)
    p.add_argument("action", nargs="?", choices=("list", "fetch", "verify"), default="list")
    p.add_argument("names", nargs="*", metavar="NAME")
    p = add("bench", bench, "fedbook bench --json", results=False)
    p.add_argument("what", nargs="?", choices=("round", "prompts", "index"), default="round")
    p.add_argument("--rounds", type=_positive, default=1, help="rounds per repeat")
    p.add_argument("--repeats", type=_positive, default=11)
    p = add("lab", lab, "fedbook lab", results=False)
    p.add_argument("rest", nargs=argparse.REMAINDER, help="passed on to jupyter lab")
    p = add("pretrain", pretrain, "fedbook pretrain probe", results=False)
    if command == "pretrain":
        from fedbook.models.pretrain import add_arguments

        add_arguments(p)
    return top


def _add_run(add: Any, scale: Any) -> None:
    split = "--set partition.clients=20 --set partition.alpha=0.1"
    p = add("run", run, f"fedbook run fedavg digits5_offline --partition dirichlet {split}")
    p.add_argument("method", metavar="METHOD")
    help = "a name, an .npz pack or a folder domain/class/*.png"
    p.add_argument("dataset", metavar="DATASET", help=help)
    p.add_argument("--partition", metavar="NAME")
    p.add_argument("--model", metavar="NAME")
    p.add_argument("--rounds", type=int, metavar="N")
    p.add_argument("--seed", type=int, default=0)
    scale(p, "laptop", "whose settings to start from")
    help = "option of the method, or part.option of another part"
    p.add_argument("--set", action="append", metavar="KEY=VALUE", help=help)
    p.add_argument("--device", default="auto")
    help = "keep the run's state here and go on from it"
    p.add_argument("--checkpoint", metavar="DIR", help=help)
    p.add_argument("--dry-run", action="store_true", help="print the settings and stop")
    p.add_argument("--quiet", action="store_true")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"fedbook {version('fedbook')}"
    except PackageNotFoundError:
        return "fedbook (not installed)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; every foreseeable failure is one line on stderr and a non-zero exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    args = parser(argv[0] if argv else "").parse_args(argv)
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


def _one_line(error: Exception, command: str) -> str:
    """The message with a hint."""
    said = " ".join(str(error).split())
    if not isinstance(error, FedbookError):
        return f"{said} (check path, rights and space)"
    return said if error.hint else f"{said} (see `fedbook {command} --help`)"


if __name__ == "__main__":
    sys.exit(main())
