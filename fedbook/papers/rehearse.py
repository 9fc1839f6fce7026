"""Before a GPU is rented: every distinct run of a table once, small, with its real network and
image size, to see that nothing breaks and what it will cost.

One round, two clients, a handful of images. Data that is here is loaded and dealt out as the run
would; of missing data images are drawn at random. Weights are random: what is rehearsed is the
code, not the download. Two runs are distinct if they differ in more than a number of the method or
the partition. Hours are FLOPs (`fedbook.cost`) over what a card does in float32 at half its peak.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbook.errors import FedbookError
from fedbook.experiment import Experiment
from fedbook.files import UNREADABLE, write_atomically
from fedbook.papers.rows import read_csv
from fedbook.papers.spec import Run, Spec

if TYPE_CHECKING:
    from torch.nn import Module

    from fedbook.federation import Federation

CARDS = {"t4": 8.1e12, "a100": 19.5e12}  # float32 operations per second, at best
USED = 0.5
TRAIN = 2  # images per client
TEST = 1
# Of data that may be missing: classes, training and test samples.
FACTS = {
    "digit_five": (10, 37190, 9300),
    "domainnet": (10, 12600, 5200),
    "pacs": (7, 8000, 2000),
    "cifar10": (10, 50000, 10000),
    "cifar100": (100, 50000, 10000),
    "cifar100_c": (100, 50000, 10000),
    "five_dataset": (50, 4000, 1000),
    "mitbih": (12, 80000, 20000),
    "shakespeare": (80, 40000, 10000),
}


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What came of one: `outcome` is "ok" or what went wrong."""

    key: str
    tables: str
    runs: int
    what: str
    data: str
    outcome: str
    seconds_per_image: float | None = None
    memory_mb: float | None = None
    pflop: float | None = None
    hours_t4: float | None = None
    hours_a100: float | None = None


def signature(e: Experiment) -> str:
    """What makes a run distinct: all of it but the seed and the numbers of method and partition."""
    size = {k: v for k, v in e.dataset.items() if k in ("name", "size", "variant")}
    names = [sorted(m["name"] for m in e.measures)]
    parts = [size, _names_only(e.partition), e.model, _names_only(e.method), names]
    return json.dumps(parts, sort_keys=True)


def _names_only(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _names_only(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return "list"
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def distinct(specs: Iterable[Spec], scale: str) -> list[tuple[list[str], list[Run]]]:
    """(tables, runs of all seeds and numbers) of every distinct run."""
    tables: dict[str, list[str]] = {}
    runs: dict[str, dict[str, Run]] = {}
    for spec in specs:
        for run in spec.plan(scale):
            key = signature(run.experiment)
            runs.setdefault(key, {})[run.experiment.key] = run
            if spec.id not in tables.setdefault(key, []):
                tables[key].append(spec.id)
    return [(tables[key], list(own.values())) for key, own in runs.items()]


def rehearse(
    specs: Iterable[Spec],
    scale: str,
    kept: dict[str, Rehearsal] | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Iterator[Rehearsal]:
    """Rehearse every distinct run behind the tables; one that is kept as "ok" is not done again."""
    todo = distinct(specs, scale)
    for done, (tables, runs) in enumerate(todo, 1):
        old = (kept or {}).get(runs[0].experiment.key)
        if old is not None and old.outcome == "ok":
            yield old if old.runs == len(runs) else _priced(old, runs, tables)
            continue
        found = _one(runs, tables)
        took = "" if found.seconds_per_image is None else f"  {found.seconds_per_image:.2f} s/image"
        tell(f"{done}/{len(todo)}  {found.what}  {found.outcome}{took}")
        yield found


def _priced(old: Rehearsal, runs: list[Run], tables: list[str]) -> Rehearsal:
    """A rehearsal that was made for fewer or more runs, with the price of these."""
    e = runs[0].experiment
    price = _cost(e, [run.experiment for run in runs], _whole(e))
    return dataclasses.replace(old, tables=" ".join(tables), runs=len(runs), **price)


def _one(runs: list[Run], tables: list[str]) -> Rehearsal:
    e = runs[0].experiment
    network = e.model.get("backbone", e.model["name"])
    what = f"{runs[0].row.method}, {runs[0].label}, {e.method['name']} on {network}"
    base: dict[str, Any] = {"key": e.key, "tables": " ".join(tables), "runs": len(runs)}
    base |= {"what": what, "data": "here"}
    try:
        whole = _whole(e)
        base["data"] = "drawn" if whole is None else "here"
        seconds = _train(e, whole)
        price = _cost(e, [run.experiment for run in runs], whole)
        return Rehearsal(**base, outcome="ok", seconds_per_image=seconds, **price)
    except (FedbookError, RuntimeError, ValueError, TypeError, KeyError, IndexError) as error:
        return Rehearsal(**base, outcome=f"{type(error).__name__}: {' '.join(str(error).split())}")


def _whole(e: Experiment) -> Federation | None:
    """The federation of the run with small images, None where the data is not here."""
    small = dict(e.dataset)
    if "size" in small:
        small["size"] = 32
    try:
        return dataclasses.replace(e, dataset=small).build_federation()
    except FedbookError as error:
        if "is not here" in str(error):
            return None
        raise


def _train(e: Experiment, whole: Federation | None) -> float:
    """Seconds per image of one small round."""
    small = dataclasses.replace(
        e,
        rounds=1,
        evaluate_every=1,
        tail=1,
        method=_method(e),
        measures=tuple({**m, "clients": 1} if "clients" in m else m for m in e.measures),
    )
    clients = 3 if any("clients" in m for m in e.measures) else 2
    federation = _few(e, whole, clients)
    model = _model(e, federation)
    began = time.perf_counter()
    small.train(federation, model, quiet=True, device="cpu")
    return (time.perf_counter() - began) / (2 * TRAIN)


def _method(e: Experiment) -> dict[str, Any]:
    """The method for one epoch of two clients; an index of one epoch with encoders that are
    installed.
    """
    method = {**e.method, "epochs": 1}
    method.pop("participation", None)
    if "clusters" in method:
        method["clusters"] = 2  # two clients are no more groups
    if method["name"] == "client2vec":
        method |= {"index_epochs": 1, "index_encoder": "offline/hybrid+ngram", "index_limit": TRAIN}
    return method


def _few(e: Experiment, whole: Federation | None, clients: int) -> Federation:
    """Few clients with a handful of images of the real size."""
    import torch

    from fedbook.data.dataset import resize
    from fedbook.federation import Federation

    size = e.dataset.get("size", 32)
    if whole is None:
        g = torch.Generator().manual_seed(0)
        classes, _, _ = _facts(e)
        parts: list[dict[str, Any]] = []
        for i in range(clients):
            x = torch.randint(0, 256, (TRAIN + TEST, 3, size, size), generator=g, dtype=torch.uint8)
            y = torch.randint(0, classes, (TRAIN + TEST,), generator=g)
            both = {"train": (x[:TRAIN], y[:TRAIN]), "test": (x[TRAIN:], y[TRAIN:])}
            parts.append({**both, "type": i % 2})
        return Federation.from_arrays(parts, [str(c) for c in range(classes)], ["one", "other"])

    def take(rows: Any, count: int) -> tuple[Any, Any]:
        x = whole.x[rows[:count]]
        if x.dtype == torch.uint8 and x.shape[-1] != size:
            x = resize(x, size, size)
        return x, whole.y[rows[:count]]

    parts = []
    for i in range(clients):
        c = whole.clients[-1 - i] if i % 2 else whole.clients[i]  # of two types, if there are two
        parts.append({"train": take(c.train, TRAIN), "test": take(c.test, TEST), "type": c.type})
    return Federation.from_arrays(parts, whole.class_names, whole.type_names)


def _facts(e: Experiment) -> tuple[int, int, int]:
    """Classes, training and test samples of data that is not here."""
    if e.dataset.get("variant") == "random50":
        return 50, 30000, 13000
    return FACTS[e.dataset["name"]]


def _model(e: Experiment, federation: Federation) -> Module:
    """The real network with random weights."""
    from fedbook import models

    options = {k: v for k, v in e.model.items() if k != "name"}
    if isinstance(options.get("backbone"), str) and options["backbone"] != "hybrid":
        options["backbone"] = _backbone(options["backbone"])
    if "pretrained" in options:
        options["pretrained"] = False
    return models.build(e.model["name"], federation, **options)


_BACKBONES: dict[str, Any] = {}


def _backbone(name: str) -> Any:
    """The last large network stays in memory."""
    from fedbook.models.backbones import backbone

    if name not in _BACKBONES:
        _BACKBONES.clear()
        _BACKBONES[name] = backbone(name, pretrained=False)
    return _BACKBONES[name]


def _cost(e: Experiment, runs: list[Experiment], whole: Federation | None) -> dict[str, Any]:
    """Memory of one run, FLOPs and hours of all."""
    from fedbook import cost

    size = e.dataset.get("size", 32)
    shape: tuple[int, ...] = (3, size, size)
    if whole is None:
        classes, samples, test = _facts(e)
        known = cost.published_sizes(e)
        clients = e.partition.get("clients") or sum(e.partition.get("counts", [20]))
        train = known[1] if known else [samples // clients] * clients
        dtype = None
    else:
        if whole.x.ndim < 4:
            shape = whole.input_shape
        classes = whole.num_classes
        train = [len(c.train) for c in whole.clients]
        test = len({i for c in whole.clients for i in c.test.tolist()})
        dtype = whole.x.dtype
    counted = cost.cost(
        e, shape, classes=classes, train=train, test=test, **({"dtype": dtype} if dtype else {})
    )
    times = sum(map(_epochs, runs)) / _epochs(e)
    pflop = counted["pflop"] * times
    found = {"memory_mb": counted["memory_mb"]["together"], "pflop": pflop}
    for card, peak in CARDS.items():
        found[f"hours_{card}"] = pflop * 1e15 / (USED * peak) / 3600
    return found


def _epochs(e: Experiment) -> int:
    """What makes one run of a distinct run longer than another."""
    return e.rounds * e.method.get("epochs", 1)


# -- hours per table -------------------------------------------------------------------------------
Hours = dict[str, float]  # by card


@dataclass(frozen=True, kw_only=True)
class Price:
    """What a table adds to those before it: its runs that they lack, the hours of these on each
    card, and how many of them no rehearsal has priced.
    """

    id: str
    runs: int
    hours: Hours
    unknown: int


def run_hours(specs: Iterable[Spec], scale: str, kept: dict[str, Rehearsal]) -> dict[str, Hours]:
    """The hours of every run by its key: those of its distinct run, shared out by epochs."""
    found: dict[str, Hours] = {}
    for _, runs in distinct(specs, scale):
        whole = kept.get(runs[0].experiment.key)
        if whole is None or whole.runs != len(runs) or whole.pflop is None:
            continue  # not rehearsed, not with all these runs, or broken
        epochs = sum(_epochs(run.experiment) for run in runs)
        for run in runs:
            share = _epochs(run.experiment) / epochs
            own = {card: share * getattr(whole, f"hours_{card}") for card in CARDS}
            found[run.experiment.key] = own
    return found


def keys(spec: Spec, scale: str) -> set[str]:
    """The runs behind a table."""
    return {run.experiment.key for run in spec.plan(scale)}


def price(spec: Spec, scale: str, known: dict[str, Hours], paid: Set[str] = frozenset()) -> Price:
    """What a table costs beyond the runs that are paid."""
    own = sorted(keys(spec, scale) - paid)
    priced = [known[key] for key in own if key in known]
    hours = {card: sum(h[card] for h in priced) for card in CARDS}
    return Price(id=spec.id, runs=len(own), hours=hours, unknown=len(own) - len(priced))


def prices(order: Iterable[Spec], scale: str, known: dict[str, Hours]) -> Iterator[Price]:
    """The price of each table in this order: a run that several share is paid by the first."""
    paid: set[str] = set()
    for spec in order:
        yield price(spec, scale, known, paid)
        paid |= keys(spec, scale)


# -- what is kept ----------------------------------------------------------------------------------
FIELDS = [f.name for f in dataclasses.fields(Rehearsal)]
NUMBERS = ("seconds_per_image", "memory_mb", "pflop", "hours_t4", "hours_a100")


def load(path: Path) -> dict[str, Rehearsal]:
    """The rehearsals kept in a file, by key."""
    if not path.is_file():
        return {}
    found = {}
    try:
        for line in read_csv(path):
            values: dict[str, Any] = {**line, "runs": int(line["runs"])}
            for name in NUMBERS:
                values[name] = float(line[name]) if line[name] else None
            found[line["key"]] = Rehearsal(**values)
    except UNREADABLE:
        hint = "move it away and rehearse again"
        raise FedbookError(f"{path} is no table of rehearsals", hint) from None
    return found


def keep(found: Iterable[Rehearsal], path: Path) -> None:
    """Write the table of rehearsals."""
    with write_atomically(path) as part, open(part, "w", newline="", encoding="utf-8") as f:
        out = csv.DictWriter(f, FIELDS, lineterminator="\n")
        out.writeheader()
        for r in found:
            line = dataclasses.asdict(r)
            short = {k: f"{line[k]:.4g}" for k in NUMBERS if line[k] is not None}
            out.writerow(line | short)


def text(found: list[Rehearsal]) -> str:
    """The outcome for a terminal."""
    lines = [f"{'memory':>9}  {'T4':>8}  {'A100':>8}  runs  outcome"]
    for r in found:
        if r.outcome == "ok":
            hours = f"{r.hours_t4:6.2f} h  {r.hours_a100:6.2f} h"
            lines.append(f"{r.memory_mb:6.0f} MB  {hours}  {r.runs:4}  ok  {r.what} ({r.data})")
        else:
            lines.append(f"{'':31}  {r.runs:4}  {r.outcome}  {r.what} ({r.data})")
    t4, a100 = (sum(getattr(r, f"hours_{card}") or 0 for r in found) for card in CARDS)
    broken = sum(r.outcome != "ok" for r in found)
    lines.append(
        f"{len(found)} distinct runs, {broken} broken; all {sum(r.runs for r in found)} runs: "
        f"{t4:.1f} h on a T4, {a100:.1f} h on an A100 (float32 at half of peak)"
    )
    return "\n".join(lines)
