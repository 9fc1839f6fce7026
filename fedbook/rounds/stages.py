"""The stages of a round, as small objects with explicit state; a method is what it replaces.

    sample     who takes part                      Uniform
    grouping   which participants belong together  None
    objective  what a client minimises             CrossEntropy, and any number of further terms
    solve      how it minimises                    LocalSolver (SGD or AdamW epochs)
    weigh      what each client counts             BySize (n_k / sum n), and any number of factors
    update     how the server moves                Replace (by the weighted mean)
    personal   what stays with a client            None

`objective` is a tuple whose losses add up. `weigh` is a tuple whose log-weights add up.

A stage is a frozen dataclass of hyper-parameters. What it remembers between rounds lies outside it:
a server `state` and one `memory` per client (dicts of tensors, numbers, strings and lists; all of
it is checkpointed). A stage declares what travels by returning it: `send` (server to client),
`measure` and `end` (client to server), and once before the first round `tell` (client to server)
and `announce` (server to all). All of it is counted in bytes; `once` adds what an earlier procedure
took, of which only the result is at hand.

To record a number, leave it in the state: `{..., "log": {"q": 1.5}}`. It appears as
`record.log["q"]` of that round and in stored results as `log.q`. Names are unique within a method;
values are numbers, strings and lists of them.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
import numbers
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Client, Federation
from fedbook.rounds.device import Device
from fedbook.rounds.params import Params, clone, shared_state
from fedbook.rounds.weights import LogWeights

if TYPE_CHECKING:
    from fedbook.rounds.lockstep import Step

State = dict[str, Any]


@dataclass(kw_only=True)
class Report:
    """What the server learns of one participant in one round.

    `loss` is its mean loss at the model it received, `train_loss` that of its last local epoch,
    `group` what the grouping says of it, `values` what the stages sent up.
    """

    id: int
    size: int
    loss: float | None = None
    train_loss: float | None = None
    train_acc: float | None = None
    group: int | None = None
    values: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


class Batch:
    """Samples and labels of one step; features and logits are computed once, when first asked for.

    An objective that asks the model about something else than the samples may leave its logits in
    `scored`, for the training accuracy.
    """

    scored: Tensor | None = None

    def __init__(self, local: Local, index: Tensor) -> None:
        federation = local.federation
        self.model: Any = local.model
        self.index = index
        self.y = federation.y[index]
        self.x = local.device.images(federation.inputs(index))
        self.precomputed = {name: t[index] for name, t in local.precomputed.items()}

    @cached_property
    def z(self) -> Tensor:
        return self.model.embed(self.x, **self.precomputed)

    @cached_property
    def logits(self) -> Tensor:
        return self.model.head(self.z)


@dataclass(kw_only=True)
class Local:
    """Everything a client has at hand during its turn.

    `received` are the parameters the server sent, `sent` what the stages sent with them and
    `memory` what they remember of this client, both by slot; `report` is what it has sent up so
    far in this turn. `precomputed` holds one row per sample of what no training changes.
    """

    client: Client
    federation: Federation
    model: nn.Module
    received: Params
    terms: tuple[Objective, ...] = ()
    round: int = 1
    rounds: int = 1
    generator: torch.Generator = field(default_factory=torch.Generator)
    device: Device = field(default_factory=Device)
    sent: dict[str, State] = field(default_factory=dict)
    memory: dict[str, State] = field(default_factory=dict)
    report: State = field(default_factory=dict)
    precomputed: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls, federation: Federation, model: nn.Module, *, client: int = 0, **fields: Any
    ) -> Local:
        """The turn of one client outside a simulation, for a look at single terms.

        local = Local.of(federation, model, client=0, terms=(CrossEntropy(),))
        local.loss(next(local.batches(32)))
        """
        usual: dict[str, Any] = {"received": clone(shared_state(model)), "device": Device("cpu")}
        fields = usual | fields
        return cls(client=federation.client(client), federation=federation, model=model, **fields)

    def parts(self, size: int, shuffle: bool = True, most: int | None = None) -> tuple[Tensor, ...]:
        """The client's training samples in mini-batches, each once; the last may be smaller. Only
        the first `most` of them where that is given.
        """
        index = self.client.train
        if shuffle:
            index = index[torch.randperm(len(index), generator=self.generator).to(index.device)]
        return index.split(size)[:most]

    def batches(self, size: int, shuffle: bool = True, most: int | None = None) -> Iterator[Batch]:
        """The same as batches, ready for the model."""
        for part in self.parts(size, shuffle, most):
            yield Batch(self, part)

    def loss(self, batch: Batch) -> Tensor:
        """The sum of the objective's terms on a batch."""
        losses = []
        with self.device.autocast():
            for slot, term in numbered("objective", self.terms).items():
                sent = self.sent.setdefault(slot, {})
                memory = self.memory.setdefault(slot, {})
                losses.append(term(self, batch, sent, memory))
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def trained(self) -> dict[str, nn.Parameter]:
        """The parameters that this client trains and that the server gave it."""
        found = {}
        for name, p in self.model.named_parameters():
            if p.requires_grad and name in self.received:
                found[name] = p
        return found

    @torch.no_grad()
    def features(self, index: Tensor) -> Tensor:
        """z of these samples under the model as it is, in eval mode."""
        self.model.eval()
        found = []
        for part in index.split(256):
            with self.device.autocast():
                found.append(Batch(self, part).z)
        return torch.cat(found)


def numbered(slot: str, stages: tuple[Any, ...]) -> dict[str, Any]:
    """objective.0, objective.1, ...: the slots of a tuple of stages."""
    return {f"{slot}.{i}": stage for i, stage in enumerate(stages)}


GROUP_SETTINGS = {"lr", "momentum", "weight_decay"}


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation says. NaN is no number, True is none either; a list
    will do for a tuple.
    """
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if hint in (int, float):
        kind = numbers.Integral if hint is int else numbers.Real
        return isinstance(value, kind) and not isinstance(value, bool) and value == value
    kind = origin or hint
    if kind is Any or not isinstance(kind, type):  # Any is a type from Python 3.11 on
        return True
    return isinstance(value, (tuple, list) if kind is tuple else kind)


def check_settings(stage: Any) -> None:
    """Every setting of a stage is of the kind that its annotation says."""
    try:
        hints = get_type_hints(type(stage))
    except NameError:  # an annotation of something that is not imported here
        return
    for f in dataclasses.fields(stage):
        value = getattr(stage, f.name)
        if not fits(value, hints[f.name]):
            raise FedbookError(
                f"{f.name} must be {_words(hints[f.name])}, got {value!r}",
                f"it is a setting of {type(stage).__name__}; methods.help(name) lists them",
            )


def _words(hint: Any) -> str:
    """An annotation as a person says it."""
    known = {int: "a whole number", float: "a number", str: "text", bool: "True or False"}
    known |= {type(None): "None", dict: "a dict", tuple: "a tuple"}
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_words(one) for one in get_args(hint))
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    kind = get_origin(hint) or hint
    return known.get(kind, f"a {getattr(kind, '__name__', kind)}")


@dataclass(frozen=True)
class Stage:
    """What any stage may do besides its own call. Everything is optional; doing nothing is
    FedAvg. Settings are of the kinds that their annotations say.
    """

    def __post_init__(self) -> None:
        check_settings(self)

    def tell(self, federation: Federation, client: Client) -> State:
        """On the client, once before round 1: what it sends up."""
        return {}

    def announce(self, federation: Federation, told: list[State]) -> State:
        """On the server, when all have told: what everybody is sent once."""
        return {}

    def adapt(self, model: nn.Module, federation: Federation, known: State) -> nn.Module:
        """Wrap or extend the model before anything starts; `known` is what was announced."""
        return model

    def once(self, federation: Federation) -> tuple[int, int]:
        """Bytes that all clients together sent up and received before any of this."""
        return 0, 0

    def init(self, federation: Federation, model: nn.Module) -> State:
        """The server's state before round 1."""
        return {}

    def measure(self, local: Local, memory: State) -> State:
        """On the client, at the received model, before training: what it sends up."""
        return {}

    def prepare(self, state: State, reports: list[Report]) -> State:
        """On the server, when all have measured, before anyone trains."""
        return state

    def send(self, state: State, id: int) -> State:
        """What goes down to a client besides the parameters."""
        return {}

    def begin(self, local: Local, sent: State, memory: State) -> None:
        """On the client, just before training."""

    def end(self, local: Local, sent: State, memory: State) -> State:
        """On the client, just after training: what it sends up."""
        return {}

    def overrides(self, name: str) -> bool:
        return getattr(type(self), name) is not getattr(Stage, name)


class Sample(Stage):
    def __call__(
        self, state: State, federation: Federation, round: int, rng: torch.Generator
    ) -> tuple[list[int], State]:
        """The ids of the clients that take part, and the state for the next round."""
        raise NotImplementedError


class Grouping(Stage):
    def __call__(self, state: State, reports: list[Report]) -> tuple[list[int], State]:
        """The group of each participant, once per round, when all have measured.

        Other stages read it as `report.group`.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Objective(Stage):
    """One term of what clients minimise.

    `lockstep=False`: the term needs a pass of its own (derivatives of derivatives, other images),
    so clients that use it train one after another. A term may offer `together(step, slot)`: its
    value for all clients of a lock-step at once.
    """

    lockstep: bool = field(default=True, kw_only=True)

    def __call__(self, local: Local, batch: Batch, sent: State, memory: State) -> Tensor:
        """One term of the loss a client minimises."""
        raise NotImplementedError


@dataclass(frozen=True)
class Weigh(Stage):
    """One factor of the clients' weights.

    `loss` says which loss of the participants it reads: "received", at the model they receive;
    "training", of their last local epoch, so that weights are known only after training; or None.
    """

    loss: str | None = field(default=None, kw_only=True)

    def __call__(self, state: State, reports: list[Report]) -> tuple[LogWeights, State]:
        """Log-weights of the participants (any constant may be added), and the next state."""
        raise NotImplementedError

    def losses(self, reports: list[Report]) -> Tensor:
        """The participants' losses, of the kind this stage reads."""
        return losses(reports, self.loss)


def losses(reports: list[Report], kind: str | None) -> Tensor:
    """The participants' losses of one kind, "received" or "training"."""
    if kind not in ("received", "training"):
        raise FedbookError(
            f"loss must be 'received' or 'training', got {kind!r}",
            "'received' is measured before local training, 'training' during its last epoch",
        )
    found = [r.loss if kind == "received" else r.train_loss for r in reports]
    return torch.tensor(found, dtype=torch.float64)


@dataclass(frozen=True)
class Update(Stage):
    """`uploads=True`: `reports[k]["upload"]` holds each participant's parameters. `loss` as in
    `Weigh`.
    """

    uploads: bool = field(default=False, kw_only=True)
    loss: str | None = field(default=None, kw_only=True)

    def download(self, state: State, params: Params, id: int) -> Params:
        """The parameters a client receives."""
        return params

    def overrides_download(self) -> bool:
        """Whether clients receive different parameters."""
        return type(self).download is not Update.download

    def __call__(
        self, state: State, server: Params, mean: Params, reports: list[Report]
    ) -> tuple[Params, State]:
        """The server's next parameters from its own and the weighted mean of the participants'."""
        raise NotImplementedError


@dataclass(frozen=True)
class Personal(Stage):
    """Parameters whose names match a pattern of `keep` never leave the client.

    `alone=True`: only the clients' own models are tested, no global one. A class that is `aside`
    trains its models beside the global one, which is the same whatever they are.
    """

    aside: ClassVar[bool] = False
    keep: tuple[str, ...] = ()
    alone: bool = field(default=False, kw_only=True)

    def keeps(self, name: str, model: nn.Module) -> bool:
        return any(fnmatch.fnmatch(name, pattern) for pattern in self.keep)

    def load(self, local: Local, sent: State, memory: State) -> None:
        """Turn `local.model`, which holds the received and the client's own layers, into the model
        it is tested with.
        """


# -- FedAvg's five ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class Uniform(Sample):
    """|S_t| clients without replacement: a number (int) or a fraction (float) of all."""

    participation: float | int = 1.0

    def count(self, clients: int) -> int:
        p = self.participation
        wanted = p if isinstance(p, int) else max(1, round(p * clients))
        if not 1 <= wanted <= clients or (isinstance(p, float) and not 0 < p <= 1):
            raise FedbookError(
                f"participation must be a fraction in (0, 1] or a number of the {clients} clients, "
                f"got {p!r}",
                "1.0 means everybody",
            )
        return wanted

    def __call__(
        self, state: State, federation: Federation, round: int, rng: torch.Generator
    ) -> tuple[list[int], State]:
        order = torch.randperm(len(federation), generator=rng)[: self.count(len(federation))]
        return [federation.clients[i].id for i in order.tolist()], state


@dataclass(frozen=True)
class CrossEntropy(Objective):
    def __call__(self, local: Local, batch: Batch, sent: State, memory: State) -> Tensor:
        return F.cross_entropy(batch.logits, batch.y)

    def together(self, step: Step, slot: str) -> Tensor:
        return step.layout.mean(F.cross_entropy(step.logits, step.y, reduction="none"))


@dataclass(frozen=True, kw_only=True)
class LocalSolver(Stage):
    """E epochs of SGD or AdamW, started afresh each round.

    `batches` ends an epoch after so many mini-batches, drawn anew each time: local steps are then
    the same for everybody, however much data a client has.

    `param_groups` gives some parameters settings of their own, the first match wins:
    (("prompts*", {"lr": 1e-2}), ...).
    """

    epochs: int = 1
    batch_size: int = 32
    lr: float = 0.1
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    param_groups: tuple[tuple[str, dict[str, float]], ...] = ()
    batches: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("epochs", "batch_size", "batches"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise FedbookError(
                    f"{name} must be a whole number of at least 1, got {value!r}", f"try {name}=1"
                )
        for name in ("lr", "weight_decay"):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise FedbookError(
                    f"{name} must be a finite number of at least 0, got {value!r}",
                    f"try {name}=0.1",
                )
        if not 0 <= self.momentum < 1:
            raise FedbookError(
                f"momentum must lie in [0, 1), got {self.momentum!r}", "try momentum=0.9"
            )
        if self.clip is not None and not self.clip > 0:
            raise FedbookError(
                f"clip must be a positive number or None, got {self.clip!r}", "try clip=1.0"
            )
        for group in self.param_groups:
            if not (
                len(group) == 2
                and isinstance(group[0], str)
                and isinstance(group[1], dict)
                and group[1].keys() <= GROUP_SETTINGS
                and all(fits(v, float) and 0 <= v < math.inf for v in group[1].values())
            ):
                raise FedbookError(
                    f"param_groups holds {group!r}, a pattern with settings was expected",
                    'for example (("prompts*", {"lr": 0.01}),)',
                )
        if self.optimizer not in ("sgd", "adamw"):
            raise FedbookError(
                f"optimizer must be 'sgd' or 'adamw', got {self.optimizer!r}", "pick one of the two"
            )

    def steps_of(self, samples: int) -> int:
        """Mini-batches of an epoch of a client with so many samples."""
        whole = math.ceil(samples / self.batch_size)
        return whole if self.batches is None else min(whole, self.batches)

    def seen(self, samples: int) -> int:
        """Samples of an epoch of a client with so many."""
        return min(samples, self.steps_of(samples) * self.batch_size)

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        left = {name: p for name, p in model.named_parameters() if p.requires_grad}
        groups: list[dict[str, Any]] = []
        for pattern, settings in (*self.param_groups, ("*", {})):
            chosen = [left.pop(name) for name in fnmatch.filter(left, pattern)]
            if chosen:
                groups.append({"params": chosen, **settings})
        if self.optimizer == "adamw":
            return torch.optim.AdamW(groups, lr=self.lr, weight_decay=self.weight_decay)
        return torch.optim.SGD(
            groups, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay
        )

    def step(self, local: Local, optimizer: torch.optim.Optimizer, batch: Batch) -> Tensor:
        """One move on one batch; returns the loss before it."""
        loss = local.loss(batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.clip_gradient(local.model)
        optimizer.step()
        return loss.detach()

    def together(self, step: Step, optimizer: torch.optim.Optimizer) -> Tensor:
        """The same for all clients of a lock-step, which differ in nothing but their parameters."""
        losses = step.losses()
        optimizer.zero_grad(set_to_none=True)
        losses.sum().backward()
        if self.clip is not None:
            step.clip_gradient(self.clip)
        step.move(optimizer)
        return losses.detach()

    def clip_gradient(self, model: nn.Module) -> None:
        if self.clip is not None:
            trained = [p for p in model.parameters() if p.requires_grad]
            nn.utils.clip_grad_norm_(trained, self.clip)

    def __call__(self, local: Local, sent: State, memory: State) -> tuple[Tensor, Tensor]:
        """Train; returns the mean loss and accuracy over the last epoch's batches."""
        optimizer = self.build(local.model)
        local.model.train()
        for _ in range(self.epochs):
            loss = torch.zeros((), device=local.federation.device)
            hits = torch.zeros((), device=local.federation.device)
            for batch in local.batches(self.batch_size, most=self.batches):
                loss += self.step(local, optimizer, batch) * len(batch.y)
                # an objective may never ask for the plain logits
                logits = batch.__dict__.get("logits", batch.scored)
                if logits is not None:
                    hits += (logits.detach().argmax(1) == batch.y).sum()
        seen = self.seen(len(local.client.train))
        return loss / seen, hits / seen


@dataclass(frozen=True)
class BySize(Weigh):
    """p_k = n_k / sum_{S_t} n."""

    def __call__(self, state: State, reports: list[Report]) -> tuple[Tensor, State]:
        return torch.tensor([r.size for r in reports], dtype=torch.float64).log(), state


@dataclass(frozen=True)
class Equal(Weigh):
    """p_k = 1 / |S_t|."""

    def __call__(self, state: State, reports: list[Report]) -> tuple[Tensor, State]:
        return torch.zeros(len(reports), dtype=torch.float64), state


@dataclass(frozen=True)
class Replace(Update):
    """w^{t+1} = the weighted mean."""

    def __call__(
        self, state: State, server: Params, mean: Params, reports: list[Report]
    ) -> tuple[Params, State]:
        return mean, state


@dataclass(frozen=True, kw_only=True)
class Method:
    """A composition of stages. `method.replace(weigh=...)` differs from `method` in one of them."""

    name: str = field(kw_only=False)
    sample: Sample = Uniform()
    grouping: Grouping | None = None
    objective: tuple[Objective, ...] = (CrossEntropy(),)
    solve: LocalSolver = LocalSolver()
    weigh: tuple[Weigh, ...] = (BySize(),)
    update: Update = Replace()
    personal: Personal | None = None

    def __post_init__(self) -> None:
        for slot, kind in (("objective", Objective), ("weigh", Weigh)):
            stages = getattr(self, slot)
            if not (isinstance(stages, tuple) and stages):
                raise FedbookError(
                    f"{slot} must be a tuple of at least one stage, got {type(stages).__name__}",
                    f"write {slot}=(MyStage(),)",
                )
            for stage in stages:
                if not isinstance(stage, kind):
                    raise FedbookError(
                        f"{slot} holds a {type(stage).__name__}, which is no {kind.__name__}",
                        f"derive it from fedbook.rounds.{kind.__name__}",
                    )
        check_settings(self)

    def replace(self, **changes: Any) -> Method:
        return dataclasses.replace(self, **changes)

    @property
    def reads(self) -> set[str]:
        """Which losses the server needs of the participants: "received", "training", or none."""
        found = {factor.loss for factor in self.weigh} | {self.update.loss}
        return {kind for kind in found if kind is not None}

    def stages(self) -> dict[str, Stage]:
        """Every stage by its slot, in the order in which they act."""
        found: dict[str, Stage | None] = {"sample": self.sample, "grouping": self.grouping}
        found |= numbered("objective", self.objective)
        found |= {"solve": self.solve, **numbered("weigh", self.weigh)}
        found |= {"update": self.update, "personal": self.personal}
        return {slot: stage for slot, stage in found.items() if stage is not None}

    def describe(self) -> dict[str, Any]:
        """Names and hyper-parameters, ready for JSON: what a run's key is made of."""
        return {"name": self.name} | {s: plain(stage) for s, stage in self.stages().items()}

    def difference(self) -> dict[str, str]:
        """What this method changes in FedAvg, by slot."""
        usual = Method(name="fedavg").stages()
        found = {}
        for slot, stage in self.stages().items():
            options = _changed(stage, usual.get(slot))
            if slot not in usual or type(stage) is not type(usual[slot]) or options:
                found[slot] = f"{type(stage).__name__}({options})"
        return found

    def __repr__(self) -> str:
        lines = [f"{self.name} = FedAvg with"]
        lines += [f"  {slot:12} {stage}" for slot, stage in self.difference().items()]
        return "\n".join(lines) if len(lines) > 1 else f"{self.name} = FedAvg"

    def _repr_html_(self) -> str:
        from fedbook.html import table

        rows = [[slot, stage] for slot, stage in self.difference().items()]
        return table(f"{self.name}: its difference from FedAvg", ["stage", "instead"], rows)


def plain(value: Any) -> Any:
    """A stage, or one of its settings, as JSON."""
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if dataclasses.is_dataclass(value):
        settings = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"stage": type(value).__name__} | settings
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)


def _changed(stage: Stage, usual: Stage | None) -> str:
    """The settings in which a stage differs from the usual one, or from its own defaults."""
    compare: dict[str, Any] = {}
    for f in dataclasses.fields(stage):
        compare[f.name] = f.default
        if isinstance(usual, Stage) and hasattr(usual, f.name):
            compare[f.name] = getattr(usual, f.name)
    shown = []
    for f in dataclasses.fields(stage):
        value = getattr(stage, f.name)
        if value != compare[f.name]:
            text = repr(value)
            shown.append(f"{f.name}={text if len(text) < 40 else type(value).__name__ + '(...)'}")
    return ", ".join(shown)
