"""One experiment from the shell: run."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from fedbook.cli.look import SCORES, Group, spread
from fedbook.cli.shell import Commands, add_scale, as_json, folder_of, positive, store_of
from fedbook.errors import FedbookError, unknown

if TYPE_CHECKING:
    from fedbook.experiment import Experiment
    from fedbook.results import Result

PARTS = ("dataset", "partition", "model", "method")


def add(commands: Commands) -> None:
    example = "fedbook run fedavg digits5_offline --partition dirichlet \\\n"
    example += "      --set partition.clients=20 --set partition.alpha=0.1\n"
    example += "  fedbook run --method my.py:mine --data photos/ --model my.py:net --seeds 3"
    p = commands.add("run", run, example)
    help = "a name (`fedbook methods`) or FILE.py:NAME"
    p.add_argument("method", nargs="?", metavar="METHOD", help=help)
    help = "a name (`fedbook data`), an .npz pack, a folder domain/class/*.png, "
    help += "torchvision:NAME or hf:NAME"
    p.add_argument("dataset", nargs="?", metavar="DATASET", help=help)
    p.add_argument("--method", dest="own_method", metavar="METHOD", help="the same as an option")
    p.add_argument("--data", dest="own_dataset", metavar="DATASET", help="the same as an option")
    _add_settings(p)
    p.add_argument("--seeds", type=positive, metavar="N", default=1, help="how many, one by one")
    help = "print the settings as such a file and stop"
    p.add_argument("--dump-config", action="store_true", help=help)
    p.add_argument("--device", default="auto", metavar="NAME")
    help = "keep the run's state here and go on from it"
    p.add_argument("--checkpoint", metavar="DIR", help=help)
    help = "write the trained global model (.safetensors)"
    p.add_argument("--save", metavar="FILE", help=help)
    help = "csv, tensorboard, wandb, wandb-offline or mlflow, with =WHERE if not the usual place"
    p.add_argument("--log", action="append", metavar="KIND", help=help)
    help = "print what would be run and its cost, and stop"
    p.add_argument("--dry-run", action="store_true", help=help)
    p.add_argument("--quiet", action="store_true", help="no progress bar")
    example = "fedbook flower new DIR --method fedgcr --dataset digits5_offline"
    p = commands.add("flower", flower, example)
    p.add_argument("action", choices=("new", "compare", "fault"))
    help = "new: a folder; compare: engines and methods"
    p.add_argument("names", nargs="*", metavar="NAME", help=help)
    p.add_argument("--method", dest="own_method", metavar="METHOD", default="fedavg")
    p.add_argument("--dataset", dest="own_dataset", metavar="NAME", default="digits5_offline")
    p.set_defaults(method=None, dataset=None)
    _add_settings(p)


def _add_settings(p: argparse.ArgumentParser) -> None:
    """What `_experiment` reads besides method and dataset."""
    p.add_argument("--partition", metavar="NAME", help="see `fedbook partitions`")
    help = "a name (`fedbook models`) or FILE.py:NAME"
    p.add_argument("--model", metavar="NAME", help=help)
    p.add_argument("--rounds", type=int, metavar="N")
    p.add_argument("--seed", type=int, metavar="N", help="the first seed (default: 0)")
    add_scale(p, "laptop", "whose settings to start from")
    help = "option of the method, or part.option of another part"
    p.add_argument("--set", action="append", metavar="KEY=VALUE", help=help)
    p.add_argument("--config", metavar="FILE", help="settings from a YAML or JSON file")


def flower(args: argparse.Namespace) -> int:
    """A Flower app of a method, the engines compared, or a node that is lost."""
    if args.action == "compare":
        from fedbook.flower.compare import compare

        return compare(args.names, folder_of(args.results))
    if args.action == "fault":
        from fedbook.flower.fault import fault

        return fault(folder_of(args.results))
    from fedbook.flower.app import new

    if len(args.names) != 1:
        raise FedbookError("new needs one folder", "fedbook flower new DIR --method fedgcr")
    folder = new(args.names[0], _experiment(args))
    as_json(str(folder)) if args.json else print(f"{folder}: its README.md says how to start it")
    return 0


def run(args: argparse.Namespace) -> int:
    """One experiment from the shell."""
    first = _experiment(args)
    store = store_of(args)
    if args.dump_config:
        as_json(first.config) if args.json else print(_yaml(first), end="")
        return 0
    if args.dry_run:
        from fedbook.cost import plan
        from fedbook.papers.reproduce import Estimate

        found = plan(first, Estimate(store.load())(first))
        as_json(found) if args.json else print(_summary(first, found))
        return 0
    store.check_writable()
    results = []
    for seed in range(first.seed, first.seed + args.seeds):
        e = dataclasses.replace(first, seed=seed)
        result = e.run(
            quiet=args.json or args.quiet,
            checkpoint=_of_seed(args.checkpoint, seed, args.seeds),
            device=args.device,
            callbacks=_callbacks(args, e),
        )
        store.append({"spec": "run", **result}, f"run_{e.scale}")
        results.append(result)
    if args.json:
        as_json(results if args.seeds > 1 else results[0])
    else:
        print(_outcome(first, results))
    return 0


def _callbacks(args: argparse.Namespace, e: Experiment) -> list[Any]:
    from fedbook import callbacks
    from fedbook.saved import Save

    method = Path(e.method["name"]).name.replace(":", "-")
    out: list[Any] = [callbacks.build(told, f"{method}-seed{e.seed}") for told in args.log or []]
    if args.save:
        out.append(Save(_of_seed(args.save, e.seed, args.seeds) or "", e))
    return out


def _of_seed(path: str | None, seed: int, seeds: int) -> str | None:
    """A file or folder of each seed where there are several: model-seed1.safetensors."""
    if path is None or seeds == 1:
        return path
    return str(Path(path).with_name(f"{Path(path).stem}-seed{seed}{Path(path).suffix}"))


def _outcome(e: Experiment, results: list[Result]) -> str:
    """Scores, curve and traffic of one setting."""
    from fedbook.cli.chart import chart

    g = Group(results)
    seconds = sum(r["seconds"] for r in results)
    took = f"{e.rounds} rounds in {seconds:.1f} s on {results[0]['device']}"
    lines = [f"{e.method['name']} on {e.dataset['name']}: {took}"]
    if len(results) > 1:
        lines.append(f"mean ± standard deviation of {len(results)} seeds")
    for score in SCORES:
        if g.values(score):
            lines.append(f"{score:13} {spread(g.values(score))}")
    own = {r["seed"]: r["metrics"]["personal"] for r in results if "personal" in r["metrics"]}
    for score in ("avg_client", "worst_client") if own else ():
        lines.append(f"personal models, {score}: {spread({s: m[score] for s, m in own.items()})}")
    if len(g.rounds) > 1:
        lines += ["", chart({"avg_client": g.mean_curve()}, g.rounds)]
    sent = results[0]["metrics"]["communication"]
    up, down = (sent[f"bytes_{way}"] / 1e6 for way in ("up", "down"))
    keys = " ".join(r["key"] for r in results)
    lines.append(f"sent {up:.2f} MB up, {down:.2f} MB down")
    lines += wrap(f"stored as {keys}", 80, subsequent_indent=" " * 10)
    return "\n".join(lines)


# -- settings --------------------------------------------------------------------------------------
def _experiment(args: argparse.Namespace) -> Experiment:
    """The settings of the paper that runs this method on this dataset, else plain ones; then those
    of the file, then the changes asked for.
    """
    from fedbook import own, papers
    from fedbook.experiment import plain
    from fedbook.methods import builder

    told = _config(args.config) if args.config else {}
    method = args.own_method or args.method or told.get("method", {}).get("name")
    dataset = args.own_dataset or args.dataset or told.get("dataset", {}).get("name")
    if not method or not dataset:
        hint = "for example `fedbook run fedavg digits5_offline`"
        raise FedbookError("a method and a dataset are needed", hint)
    builder(method)
    scale = told.get("scale", args.scale)
    e = papers.planned(method, dataset, scale) or plain(method, dataset, scale=scale)
    parts: dict[str, Any] = {part: dict(told.get(part, getattr(e, part))) for part in PARTS}
    for part, name in (("method", method), ("dataset", dataset)):
        if parts[part]["name"] != name:
            parts[part] = {"name": name}
    for part in ("partition", "model"):
        if getattr(args, part):
            parts[part] = {"name": getattr(args, part)}
    for text in args.set or []:
        _set(parts, text)
    for part in ("method", "model"):
        if own.is_own(parts[part]["name"]):
            parts[part]["source"] = own.source(parts[part]["name"])
    rest = {k: v for k, v in told.items() if k not in PARTS}
    for name in ("rounds", "seed"):
        if getattr(args, name) is not None:
            rest[name] = getattr(args, name)
    return dataclasses.replace(e, **parts, **rest)


def _config(path: str) -> dict[str, Any]:
    """Settings from a file; a part may be a mere name."""
    import yaml

    from fedbook.experiment import Experiment
    from fedbook.papers import scales

    try:
        told = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        hint = "`fedbook run METHOD DATASET --dump-config` prints such a file"
        raise FedbookError(f"{path} is no YAML: {error}", hint) from error
    if not isinstance(told, dict):
        raise FedbookError(f"{path} holds a {type(told).__name__}", "settings are expected")
    known = [f.name for f in dataclasses.fields(Experiment)]
    for name in told:
        if name not in known:
            raise unknown(f"setting in {path}", name, known)
    for part in PARTS:
        if isinstance(told.get(part), str):
            told[part] = {"name": told[part]}
        if part in told and not (isinstance(told[part], dict) and "name" in told[part]):
            raise FedbookError(f"{path}: {part} has no name", f"write `{part}: {{name: ...}}`")
    if told.get("scale", "laptop") not in scales():
        raise unknown(f"scale in {path}", told["scale"], scales())
    if "measures" in told:
        listed = isinstance(told["measures"], list)
        told["measures"] = tuple(told["measures"]) if listed else (told["measures"],)
    return told


def _yaml(e: Experiment) -> str:
    import yaml

    config = json.loads(json.dumps(e.config))
    for part in ("method", "model"):
        config[part].pop("source", None)
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True)


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


# -- dry run ---------------------------------------------------------------------------------------
def _summary(e: Experiment, plan: dict[str, Any]) -> str:
    """What a run would do, in a few lines."""
    lines = [f"key          {plan['key']}"]
    for part in PARTS:
        own = getattr(e, part)
        told = " ".join(f"{k}={v}" for k, v in own.items() if k not in ("name", "source"))
        lines += wrap(f"{part:12} {own['name']} {told}".rstrip(), 80, subsequent_indent=" " * 13)
    lines.append(f"rounds       {e.rounds}, seed {e.seed}, settings of {e.scale} scale")
    stages = {k: v for k, v in plan["stages"].items() if k != "name"}
    for slot, stage in stages.items():
        lines += wrap(f"{slot:12} {_stage(stage)}", 80, subsequent_indent=" " * 13)
    if "data" in plan:
        lines += wrap(f"data         {plan['data']}", 80, subsequent_indent=" " * 13)
    train = plan["clients"]["train"]
    if train:
        sizes = f"{min(train)} to {max(train)} training samples each, {sum(train):,} together"
        types = len(set(plan["clients"]["types"]))
        lines.append(f"clients      {len(train)} of {types} types, {sizes}")
    lines += wrap(f"cost         {_cost(plan)}", 80, subsequent_indent=" " * 13)
    return "\n".join(lines)


def _stage(stage: Any) -> str:
    if isinstance(stage, dict):
        return " ".join(f"{k}={_stage(v)}" for k, v in stage.items())
    return ", ".join(map(_stage, stage)) if isinstance(stage, (list, tuple)) else str(stage)


def _cost(plan: dict[str, Any]) -> str:
    """Work, memory and, where such runs are stored, time."""
    cost = plan["cost"]
    if isinstance(cost, str):
        return cost
    seconds = plan["seconds"]
    time = "no such run is stored to tell the time" if seconds is None else f"about {seconds:.0f} s"
    memory = cost["memory_mb"]["together"]
    return f"{cost['pflop'] * 1000:.3g} TFLOP, {memory:.0f} MB of memory, {time}"
