"""What a run measures: the usual scores of every run, and more for runs that ask for it by name.

A measure is a class with three hooks, registered under a name:

    @register("global_losses")
    class GlobalLosses(Measure):
        def after_round(self, run, record): ...

`Experiment(..., measures=({"name": "unseen", "clients": 10},))` asks for it. The papers register
those that only they need, so `fedbook.papers` must have been imported to use them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from fedbook import metrics
from fedbook.errors import FedbookError, unknown

if TYPE_CHECKING:
    from fedbook.federation import Federation
    from fedbook.rounds import Record, Simulation


class Measure:
    """Something measured besides the usual scores. Every hook may be left out."""

    def begin(self, federation: Federation, seed: int) -> Federation:
        """See the federation before the run; return the one to train on."""
        return federation

    def after_round(self, run: Simulation, record: Record) -> None:
        """See the run after every round that was computed, not resumed."""

    def end(self, run: Simulation, found: dict[str, Any]) -> None:
        """Add to the metrics of the finished run."""


MEASURES: dict[str, type[Measure]] = {}
Kind = TypeVar("Kind", bound=type[Measure])


def register(name: str) -> Callable[[Kind], Kind]:
    """Make a measure known under a name."""

    def add(measure: Kind) -> Kind:
        MEASURES[name] = measure
        return measure

    return add


def build(name: str, **options: Any) -> Measure:
    """A measure by name."""
    if name not in MEASURES:
        raise unknown("measure", name, MEASURES, "import fedbook.papers to know the papers' own")
    try:
        return MEASURES[name](**options)
    except TypeError as error:
        raise FedbookError(f"measure {name!r}: {error}", "see its docstring") from None


def tested(run: Simulation) -> list[Record]:
    """The rounds after which the clients were tested."""
    return [r for r in run.records if r.test_acc is not None or r.personal_acc is not None]


def usual(run: Simulation, tail: int = 1) -> dict[str, Any]:
    """The numbers every run keeps: last, tail and best scores, curves, clients, bytes, parameters.

    They are the global model's, or those of the clients' own models where there is none.
    """
    clients = run.federation.clients
    types = [c.type for c in clients]
    sizes = [len(c.test) for c in clients]
    seen = tested(run)
    scores = [metrics.summarise(r, types, sizes) for r in seen]
    main = [s if "avg_client" in s else s["personal"] for s in scores]
    average = [s["avg_client"] for s in main]
    pooled = [s["avg_sample"] for s in main]
    last = seen[-1]
    is_global = last.test_acc is not None
    parameters = list(run.model.parameters())
    found = dict(main[-1])
    if "personal" in scores[-1]:
        found["personal"] = scores[-1]["personal"]
    return found | {
        "tail": sum(pooled[-tail:]) / len(pooled[-tail:]),
        "tail_std": metrics.seed_spread(pooled[-tail:]),
        "best": max(average),
        "best_round": seen[average.index(max(average))].round,
        "rounds": [r.round for r in seen],
        "seconds": [round(sum(r.seconds for r in run.records[: s.round]), 3) for s in seen],
        "curves": {
            **_logged(seen),
            "avg_client": average,
            "avg_sample": pooled,
            "worst_client": [s["worst_client"] for s in main],
            "train_loss_mean": [sum(r.train_loss.values()) / len(r.train_loss) for r in seen],
            "train_loss_max": [max(r.train_loss.values()) for r in seen],
        },
        "clients": {
            "type": types,
            "train": [len(c.train) for c in clients],
            "acc": last.test_acc if is_global else last.personal_acc,
            "f1": last.test_f1 if is_global else last.personal_f1,
        },
        "type_names": list(run.federation.type_names),
        "communication": metrics.communication(run.records),
        "parameters": {
            "trainable": sum(p.numel() for p in parameters if p.requires_grad),
            "all": sum(p.numel() for p in parameters),
        },
        "log": last.log,
    }


def _logged(seen: Sequence[Record]) -> dict[str, list[Any]]:
    """The numbers that stages logged in each of these rounds, such as GRP-FED's q, by name."""
    found = {}
    for name, value in seen[-1].log.items():
        values = [r.log.get(name) for r in seen]
        if isinstance(value, (int, float)) and None not in values:
            found[name] = values
    return found


@register("unseen")
@dataclass
class Unseen(Measure):
    """Keep some clients, drawn with the seed, out of training; test the final global model on
    them.
    """

    clients: int
    others: Federation | None = None

    def begin(self, federation: Federation, seed: int) -> Federation:
        rest, self.others = federation.split_clients(self.clients, seed)
        return rest

    def end(self, run: Simulation, found: dict[str, Any]) -> None:
        from fedbook.rounds import evaluate

        assert self.others is not None
        scores = evaluate(run.model, self.others.to(run.federation.device), device=run.device)
        sizes = [len(c.test) for c in self.others.clients]
        found["unseen"] = {
            "avg_sample": metrics.avg_sample(scores.acc, sizes),
            "acc": list(scores.acc),
            "clients": [c.id for c in self.others.clients],
        }


@register("global_losses")
@dataclass
class GlobalLosses(Measure):
    """Mean and highest loss of the global model over all clients' training samples, whether they
    took part or not, at every test. Rounds that were resumed are unknown.
    """

    losses: dict[int, list[float]] = field(default_factory=dict)

    def after_round(self, run: Simulation, record: Record) -> None:
        if record.test_acc is not None:  # there is a global model
            self.losses[record.round] = global_losses(run)

    def end(self, run: Simulation, found: dict[str, Any]) -> None:
        if not self.losses:
            return
        known: Sequence[list[float]] = [self.losses.get(r, [float("nan")]) for r in found["rounds"]]
        found["curves"]["global_loss_mean"] = [sum(x) / len(x) for x in known]
        found["curves"]["global_loss_max"] = [max(x) for x in known]


def global_losses(run: Simulation) -> list[float]:
    """The global model's mean loss on every client's training samples."""
    run.load(run.params)
    return run.evaluate(run.model, part="train").loss
