"""Looking at stored runs: show, compare."""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from fedbook.cli.shell import Commands, as_json, say, store_of
from fedbook.errors import FedbookError

if TYPE_CHECKING:
    from fedbook.results import Result

SCORES = (
    "avg_client",
    "avg_type",
    "sigma_client",
    "sigma_type",
    "worst_client",
    "bottom_10",
    "best",
)
PARTS = ("dataset", "partition", "model", "method")
NAMED = ("method", "dataset", "partition")
MOST = 40  # runs in a list


def add(commands: Commands) -> None:
    p = commands.add("show", show, "fedbook show fedgcr/table1 fedavg dif=10")
    help = "beginning of a key, or words that all occur in a run (* and ? may stand for others)"
    p.add_argument("words", nargs="+", metavar="KEY|PATTERN", help=help)
    p.add_argument(
        "--clients", type=int, metavar="N", default=10, help="clients shown, worst first"
    )
    p.add_argument("--figure", metavar="FILE", help="draw the curves (.png, .pdf or .svg)")
    p = commands.add("compare", compare, "fedbook compare 1f3a 9c04")
    help = "beginning of a key, or a pattern in quotes, of runs that differ in their seed alone"
    p.add_argument("one", metavar="KEY", help=help)
    p.add_argument("other", metavar="KEY")
    p.add_argument("--figure", metavar="FILE", help="draw both and their difference")


# -- which runs ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone."""

    results: list[Result]

    @property
    def config(self) -> dict[str, Any]:
        return self.results[0]["config"]

    @property
    def seeds(self) -> list[int]:
        return [r["seed"] for r in self.results]

    @property
    def name(self) -> str:
        """Method, data and partition."""
        method, dataset, partition = (self.config[p]["name"] for p in NAMED)
        return f"{method} on {dataset}, {partition}"

    def values(self, score: str) -> dict[int, float]:
        """A score of every seed."""
        found = {r["seed"]: r["metrics"].get(score) for r in self.results}
        return {seed: v for seed, v in found.items() if v is not None}

    @property
    def rounds(self) -> list[int]:
        """The rounds at which all its runs were tested."""
        return min((r["metrics"]["rounds"] for r in self.results), key=len)

    def curves(self, score: str = "avg_client") -> dict[int, list[float]]:
        count = len(self.rounds)
        out = {}
        for r in self.results:
            if score in r["metrics"]["curves"]:
                out[r["seed"]] = [_number(v) for v in r["metrics"]["curves"][score][:count]]
        return out

    def mean_curve(self, score: str = "avg_client") -> list[float]:
        return [fmean(at) for at in zip(*self.curves(score).values())]


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def line(config: dict[str, Any]) -> str:
    """A run in words: method, data, partition and what was set."""
    words = []
    for part in NAMED:
        chosen = config[part]
        said = [f"{k}={_short(v)}" for k, v in chosen.items() if k != "name"]
        words += [chosen["name"], *said] if part != "dataset" else [chosen["name"]]
    return " ".join(words)


def _short(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, (list, dict)) else str(value)
    return text if len(text) <= 24 else text[:21] + "..."


def groups(results: Iterable[Result]) -> list[Group]:
    """Runs with the same settings together, their seeds in order."""
    found: dict[str, list[Result]] = {}
    for r in results:
        rest = {k: v for k, v in r["config"].items() if k != "seed"}
        found.setdefault(json.dumps(rest, sort_keys=True), []).append(r)
    return [Group(sorted(own, key=lambda r: r["seed"])) for own in found.values()]


def find(results: Sequence[Result], words: Sequence[str]) -> list[Group]:
    """Runs whose key begins so, or in whose words all the given ones occur."""
    if len(words) == 1:
        keyed = [r for r in results if r["key"].startswith(words[0])]
        if keyed:
            return groups(keyed)
    out = [r for r in results if all(_occurs(word, r) for word in words)]
    if not out:
        hint = (
            "`fedbook show '*'` lists all" if results else "`fedbook run` or `reproduce` makes some"
        )
        raise FedbookError(f"no stored run fits {' '.join(words)!r}", hint)
    return groups(out)


def _occurs(word: str, result: Result) -> bool:
    told = [result.get("spec", ""), result["scale"], result["config"]["model"]["name"]]
    told += [f"seed={result['seed']}", *line(result["config"]).split()]
    return any(word == t or fnmatch.fnmatch(t, word) for t in told)


def one(results: Sequence[Result], word: str) -> Group:
    """The runs a word names, with all their seeds; they must differ in nothing else."""
    found = find(results, word.split())
    if len(found) > 1:
        names = ", ".join(g.results[0]["key"][:8] for g in found[:4])
        hint = f"take one of them by its key: {names}" + (", ..." if len(found) > 4 else "")
        raise FedbookError(f"{word!r} fits {len(found)} settings", hint)
    config = {k: v for k, v in found[0].config.items() if k != "seed"}
    same = [r for r in results if {k: v for k, v in r["config"].items() if k != "seed"} == config]
    return groups(same)[0]


def measured(args: argparse.Namespace) -> list[Result]:
    """The stored runs that came to an end; of those that diverged nothing can be shown."""
    return [r for r in store_of(args).load() if "diverged" not in r["metrics"]]


# -- show ------------------------------------------------------------------------------------------
def show(args: argparse.Namespace) -> int:
    """Stored runs: a list, or one run with settings, curve and clients."""
    found = find(measured(args), args.words)
    if args.json:
        as_json([r for g in found for r in g.results])
        return 0
    if len(found) > 1:
        print(listing(found))
    else:
        print(details(found[0], args.clients))
    if args.figure:
        draw({g.name: g for g in found[:8]}, args.figure)
    return 0


def listing(found: Sequence[Group]) -> str:
    """One line per setting at 80 columns, with the options in which the settings differ."""
    told = [flat(g.config) for g in found]
    names = dict.fromkeys(k for t in told for k in t)
    varied = [k for k in names if len({json.dumps(t.get(k)) for t in told}) > 1]
    hidden = ("seed", "method.name", "dataset.name")
    varied = sorted((k for k in varied if k not in hidden), key=lambda k: k.startswith("method"))
    lines = ["key       seeds  accuracy       run"]
    for g, t in zip(found[:MOST], told):
        said = f"{g.results[0]['key'][:8]}  {len(g.seeds):5}  {spread(g.values('avg_client')):14} "
        options = [f"{k.split('.')[-1]}={_short(t[k])}" for k in varied if k in t]
        who = [t["method.name"], t["dataset.name"], *options]
        lines.append(f"{said}{' '.join(who)}"[:80].rstrip())
    if len(found) > MOST:
        lines.append(f"and {len(found) - MOST} more: add words to see fewer")
    return "\n".join(lines)


def spread(values: dict[int, float]) -> str:
    """Mean and standard deviation over seeds."""
    known = list(values.values())
    if not known:
        return "-"
    return f"{fmean(known):.3f}" + (f" ±{stdev(known):.3f}" if len(known) > 1 else "")


def details(g: Group, clients: int) -> str:
    """Everything about runs that differ in their seed alone."""
    from fedbook.cli.chart import chart

    first = g.results[0]
    keys = ", ".join(r["key"] for r in g.results)
    seconds = fmean(r["seconds"] for r in g.results)
    lines = wrap(f"{g.name} ({first['scale']} scale)", 80, subsequent_indent="  ")
    lines += wrap(f"key       {keys}", 80, subsequent_indent=" " * 10)
    lines.append(f"seeds     {', '.join(map(str, g.seeds))}")
    where = f"{first.get('spec', 'run')}, {first['date']}, {seconds:.1f} s, {first['device']}"
    lines.append(f"stored    {where}, torch {first['versions']['torch']}")
    for part in PARTS:
        told = " ".join(f"{k}={_plain(v)}" for k, v in g.config[part].items() if k != "name")
        said = f"{part:9} {g.config[part]['name']} {told}".rstrip()
        lines += wrap(said, 80, subsequent_indent=" " * 10)
    lines.append(f"rounds    {g.config['rounds']}")
    lines.append("")
    for score in SCORES:
        if g.values(score):
            lines.append(f"{score:13} {spread(g.values(score))}")
    traffic = fmean(r["metrics"]["communication"]["bytes"] for r in g.results)
    lines += [f"{'traffic':13} {traffic / 1e6:.2f} MB", ""]
    curves = {s: g.mean_curve(s) for s in ("avg_client", "worst_client") if g.curves(s)}
    lines += [chart(curves, g.rounds), ""]
    lines += _clients(g, clients)
    return "\n".join(lines)


def _plain(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (list, dict)) else str(value)


def _clients(g: Group, most: int) -> list[str]:
    """Clients from the worst to the best; the partition may differ by seed, so it is the first
    seed's.
    """
    told = g.results[0]["metrics"]
    own = told["clients"]
    names = told["type_names"]
    order = sorted(range(len(own["acc"])), key=lambda k: _number(own["acc"][k]))
    lines = [
        f"clients of seed {g.seeds[0]}, worst first",
        "client  type              train  accuracy",
    ]
    for k in order[:most]:
        acc = "-" if own["acc"][k] is None else f"{own['acc'][k]:.3f}"
        lines.append(f"{k:6}  {names[own['type'][k]][:16]:16}  {own['train'][k]:5}  {acc:>8}")
    if len(order) > most:
        lines.append(f"and {len(order) - most} more (--clients N)")
    return lines


# -- compare ---------------------------------------------------------------------------------------
def compare(args: argparse.Namespace) -> int:
    """Two runs: what differs in their settings, and by how much their scores differ."""
    results = measured(args)
    a = one(results, args.one)
    b = one(results, args.other)
    found = {"one": a.seeds, "other": b.seeds, "settings": different(a.config, b.config)}
    found["scores"] = {s: paired(a.values(s), b.values(s)) for s in SCORES if a.values(s)}
    if args.json:
        as_json(found)
    else:
        print(comparison(a, b, found))
    if args.figure:
        draw({"A": a, "B": b}, args.figure, difference=True)
    return 0


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Nested settings by their path: {"method.lr": 0.1}."""
    if not isinstance(value, dict):
        return {path: value}
    out: dict[str, Any] = {}
    for k, v in value.items():
        out |= flat(v, f"{path}.{k}" if path else str(k))
    return out


def different(a: dict[str, Any], b: dict[str, Any]) -> dict[str, list[Any]]:
    """The settings in which two runs differ, but for the seed."""
    one = flat(a)
    other = flat(b)
    out = {}
    for name in dict.fromkeys([*one, *other]):
        if name != "seed" and one.get(name) != other.get(name):
            out[name] = [one.get(name), other.get(name)]
    return out


def paired(a: dict[int, float], b: dict[int, float]) -> dict[str, Any]:
    """Means, and the mean difference b - a over the seeds both have with its 95 % interval."""
    from fedbook.papers.evidence import quantile

    common = [s for s in a if s in b]
    out: dict[str, Any] = {"one": fmean(a.values()) if a else None, "seeds": common}
    out |= {"other": fmean(b.values()) if b else None, "difference": None, "interval": None}
    if common:
        d = [b[s] - a[s] for s in common]
        out["difference"] = fmean(d)
        if len(d) > 1:
            half = quantile(0.975, len(d)) * stdev(d) / math.sqrt(len(d))
            out["interval"] = [fmean(d) - half, fmean(d) + half]
    return out


def comparison(a: Group, b: Group, found: dict[str, Any]) -> str:
    from fedbook.cli.chart import chart

    lines = []
    for name, g in (("A", a), ("B", b)):
        seeds = f"{g.results[0]['key'][:8]}, seeds {', '.join(map(str, g.seeds))}"
        lines += wrap(f"{name}  {g.name} ({seeds})", 80, subsequent_indent="   ")
    lines += ["", "settings that differ"]
    for name, (one, other) in found["settings"].items():
        lines += wrap(f"{name}: {_plain(one)} -> {_plain(other)}", 78, initial_indent="  ")
    if not found["settings"]:
        lines.append("  none")
    common = [s for s in a.seeds if s in b.seeds]
    lines += ["", f"scores, B - A paired over {len(common)} common seeds"]
    lines.append(f"{'':13} {'A':>8} {'B':>8} {'B - A':>8}  95 % interval")
    for score, p in found["scores"].items():
        if p["difference"] is None:
            continue
        ends = p["interval"]
        told = f"[{ends[0]:+.3f}, {ends[1]:+.3f}]" if ends else "one seed: none"
        numbers = f"{p['one']:8.3f} {p['other']:8.3f} {p['difference']:+8.3f}"
        lines.append(f"{score:13} {numbers}  {told}")
    if a.rounds == b.rounds:
        lines += ["", chart({"A": a.mean_curve(), "B": b.mean_curve()}, a.rounds)]
    return "\n".join(lines)


# -- figures ---------------------------------------------------------------------------------------
def draw(chosen: dict[str, Group], path: str, difference: bool = False) -> None:
    """The curves of some groups with a band over seeds; of two also their paired difference."""
    from fedbook import plots
    from fedbook.files import write_atomically
    from fedbook.papers.reproduce import headless

    plt = headless()
    pair = list(chosen.values())
    both = difference and pair[0].rounds == pair[1].rounds
    fig, axes = plots.panels(2 if both else 1, 4.8, 3.4)
    colours = plots.type_colours(7)
    with plots.style():
        for i, (name, g) in enumerate(chosen.items()):
            seeds = f"{len(g.seeds)} seed" + ("s" if len(g.seeds) > 1 else "")
            label = "\n".join(wrap(f"{name} ({seeds})", 44))
            _band(axes[0], g.rounds, list(g.curves().values()), colours[i % 7], label)
        axes[0].set(xlabel="round", ylabel="mean test accuracy of the clients")
        if both:
            a, b = (g.curves() for g in pair)
            d = [[y - x for x, y in zip(a[s], b[s])] for s in a if s in b]
            _band(axes[1], pair[0].rounds, d, plots.BLACK, "B - A, seed by seed")
            axes[1].axhline(0, color="#999999", linewidth=0.8)
            axes[1].set(xlabel="round", ylabel="difference of the accuracies")
        plots.legend_outside(fig, axes)
    with write_atomically(path) as part:
        fig.savefig(part, bbox_inches="tight")
    plt.close(fig)
    say(f"drawn: {path}")


def _band(ax: Any, rounds: list[int], curves: list[list[float]], colour: str, label: str) -> None:
    """The mean with its 95 % interval over seeds."""
    from fedbook.papers.evidence import quantile

    mean = [fmean(at) for at in zip(*curves)]
    ax.plot(rounds, mean, color=colour, label=label)
    if len(curves) > 1:
        half = [quantile(0.975, len(at)) * stdev(at) / math.sqrt(len(at)) for at in zip(*curves)]
        low = [m - h for m, h in zip(mean, half)]
        high = [m + h for m, h in zip(mean, half)]
        ax.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
