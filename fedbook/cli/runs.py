"""Single runs: run."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from fedbook.cli.shell import Commands, add_scale, as_json, store_of
from fedbook.errors import FedbookError

if TYPE_CHECKING:
    from fedbook.experiment import Experiment

SCORES = ("avg_client", "avg_type", "sigma_client", "sigma_type", "worst_client", "bottom_10")


def add(commands: Commands) -> None:
    split = "--set partition.clients=20 --set partition.alpha=0.1"
    example = f"fedbook run fedavg digits5_offline --partition dirichlet {split}"
    p = commands.add("run", run, example)
    p.add_argument("method", metavar="METHOD")
    help = "a name, an .npz pack or a folder domain/class/*.png"
    p.add_argument("dataset", metavar="DATASET", help=help)
    p.add_argument("--partition", metavar="NAME")
    p.add_argument("--model", metavar="NAME")
    p.add_argument("--rounds", type=int, metavar="N")
    p.add_argument("--seed", type=int, default=0)
    add_scale(p, "laptop", "whose settings to start from")
    help = "option of the method, or part.option of another part"
    p.add_argument("--set", action="append", metavar="KEY=VALUE", help=help)
    p.add_argument("--device", default="auto")
    help = "keep the run's state here and go on from it"
    p.add_argument("--checkpoint", metavar="DIR", help=help)
    p.add_argument("--dry-run", action="store_true", help="print the settings and stop")
    p.add_argument("--quiet", action="store_true")


def run(args: argparse.Namespace) -> int:
    """One experiment from the shell."""
    e = _experiment(args)
    store = store_of(args)
    if args.dry_run:
        from fedbook.cost import plan
        from fedbook.papers.reproduce import Estimate

        as_json(plan(e, Estimate(store.load())(e)))
        return 0
    store.check_writable()
    result = e.run(quiet=args.json or args.quiet, checkpoint=args.checkpoint, device=args.device)
    store.append({"spec": "run", **result}, f"run_{e.scale}")
    if args.json:
        as_json(result)
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
