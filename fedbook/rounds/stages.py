"""The five stages of a round, as small objects with explicit state; a method is what it replaces.

    sample     who takes part                      Uniform
    objective  what a client minimises             CrossEntropy, and any number of further terms
    solve      how it minimises                    LocalSolver (SGD or AdamW epochs)
    weigh      what each client counts             BySize (n_k / sum n), Equal (1 / |S|)
    update     how the server moves                Replace (by the weighted mean)

and, for methods that have them, `personal`: what stays with a client and which model it is tested
with.

A stage is a frozen dataclass of hyper-parameters. What it remembers between rounds lies outside it:
a server `state` and one `memory` per client (dicts of tensors, numbers, strings and lists, all of
it checkpointed). What travels is declared by returning it: `send` (server to client), `measure` and
`end` (client to server). Those are counted in bytes, and so is `once`, for what is exchanged before
the first round and then kept.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Client, Federation
from fedbook.rounds.device import Device
from fedbook.rounds.weights import Scores

State = dict[str, Any]
Params = dict[str, Tensor]


@dataclass
class Report:
    """What the server learns of one participant: its size, its loss at the received model, and what
    stages sent up.
    """

    id: int
    size: int
    loss: float | None = None
    train_loss: float | None = None
    values: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


class Batch:
    """Samples and labels; features and logits are computed once and shared by all terms of the
    objective.

    An objective that asks the model about something else than the samples may leave its logits in
    `scored`, for the training accuracy.
    """

    scored: Tensor | None = None

    def __init__(self, local: Local, index: Tensor) -> None:
        federation = local.federation
        self.model: Any = local.model
        self.index, self.y = index, federation.y[index]
        self.x = local.device.images(federation.inputs(index))
        self.extra = {name: t[index] for name, t in local.extra.items()}

    @cached_property
    def z(self) -> Tensor:
        return self.model.embed(self.x, **self.extra)

    @cached_property
    def logits(self) -> Tensor:
        return self.model.head(self.z)


@dataclass
class Local:
    """Everything a client has at hand during its turn."""

    client: Client
    federation: Federation
    model: nn.Module
    received: Params
    round: int
    generator: torch.Generator
    device: Device
    terms: tuple[Objective, ...]
    sent: dict[str, State]
    memory: dict[str, State]
    extra: dict[str, Tensor] = field(default_factory=dict)

    def batches(self, size: int, shuffle: bool = True) -> Iterator[Batch]:
        """The client's training samples, each once; the last batch may be smaller."""
        index = self.client.train
        if shuffle:
            index = index[torch.randperm(len(index), generator=self.generator).to(index.device)]
        for part in index.split(size):
            yield Batch(self, part)

    def loss(self, batch: Batch) -> Tensor:
        """The sum of the objective's terms on a batch."""
        with self.device.autocast():
            terms = [
                t(self, batch, self.sent.setdefault(slot, {}), self.memory.setdefault(slot, {}))
                for slot, t in slots(self.terms)
            ]
        return terms[0] if len(terms) == 1 else torch.stack(terms).sum()


def slots(terms: tuple[Objective, ...]) -> list[tuple[str, Objective]]:
    return [(f"objective.{i}", t) for i, t in enumerate(terms)]


@dataclass(frozen=True)
class Stage:
    """What any stage may do besides its own call. Everything is optional; nothing here means plain
    FedAvg.
    """

    needs_loss: ClassVar[bool] = (
        False  # True: each participant reports its mean loss at the received model
    )

    def adapt(self, model: nn.Module, federation: Federation) -> nn.Module:
        """Wrap or extend the model before anything starts."""
        return model

    def once(self, federation: Federation) -> tuple[int, int]:
        """Bytes all clients together send up and receive before round 1, for what `adapt` put into
        the model.
        """
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

    @classmethod
    def overrides(cls, name: str) -> bool:
        return getattr(cls, name) is not getattr(Stage, name)


class Sample(Stage):
    def __call__(
        self, state: State, federation: Federation, round: int, rng: torch.Generator
    ) -> tuple[list[int], State]:
        """The ids of the clients that take part, and the state for the next round."""
        raise NotImplementedError


class Objective(Stage):
    def __call__(self, local: Local, batch: Batch, sent: State, memory: State) -> Tensor:
        """One term of the loss a client minimises."""
        raise NotImplementedError


class Weigh(Stage):
    late: ClassVar[bool] = False  # True: weights depend on what clients report after training

    def __call__(self, state: State, reports: list[Report]) -> tuple[Scores, State]:
        """Log-weights of the participants (any constant may be added), and the state for the next
        round.
        """
        raise NotImplementedError


class Update(Stage):
    wants_uploads: ClassVar[bool] = (
        False  # True: `reports[k].values["upload"]` holds each participant's parameters
    )

    def download(self, state: State, params: Params, id: int) -> Params:
        """The parameters a client receives."""
        return params

    def __call__(
        self, state: State, server: Params, mean: Params, reports: list[Report]
    ) -> tuple[Params, State]:
        """The server's next parameters from its own and the weighted mean of the participants'."""
        raise NotImplementedError


@dataclass(frozen=True)
class Personal(Stage):
    """Parameters whose names match a pattern of `keep` never leave the client; everything else is
    shared.
    """

    alone: ClassVar[bool] = False  # True: no global model is tested, only the clients' own

    keep: tuple[str, ...] = ()

    def keeps(self, name: str) -> bool:
        return any(fnmatch.fnmatch(name, pattern) for pattern in self.keep)

    def load(self, local: Local, sent: State, memory: State) -> None:
        """Turn `local.model`, holding the received and the client's own layers, into the model it
        is tested with.
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
                f"participation must be a fraction in (0, 1] or a number of the {clients} "
                f"clients, got {p!r}",
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


@dataclass(frozen=True)
class LocalSolver(Stage):
    """E epochs of SGD or AdamW, started afresh each round.

    `groups` gives some parameters settings of their own: (("prompts*", {"lr": 1e-2}), ...), first
    match wins.
    """

    epochs: int = 1
    batch_size: int = 32
    lr: float = 0.1
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    groups: tuple[tuple[str, dict[str, float]], ...] = ()

    def __post_init__(self) -> None:
        for name, low in (("epochs", 1), ("batch_size", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < low:
                raise FedbookError(
                    f"{name} must be a whole number of at least {low}, got {value!r}",
                    f"try {name}={low}",
                )
        if not (self.lr >= 0 and math.isfinite(self.lr)):
            raise FedbookError(
                f"lr must be a finite number of at least 0, got {self.lr!r}", "try lr=0.1"
            )
        if self.optimizer not in ("sgd", "adamw"):
            raise FedbookError(
                f"optimizer must be 'sgd' or 'adamw', got {self.optimizer!r}", "pick one of the two"
            )

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        groups: list[dict[str, Any]] = []
        for pattern, settings in (*self.groups, ("*", {})):
            chosen = [(n, p) for n, p in named if fnmatch.fnmatch(n, pattern)]
            named = [(n, p) for n, p in named if not fnmatch.fnmatch(n, pattern)]
            if chosen:
                groups.append({"params": [p for _, p in chosen], **settings})
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

    def clip_gradient(self, model: nn.Module) -> None:
        if self.clip is not None:
            nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], self.clip)

    def __call__(self, local: Local, sent: State, memory: State) -> tuple[Tensor, Tensor]:
        """Train; returns the mean loss and accuracy over the last epoch's batches, as they were
        met.
        """
        optimizer = self.build(local.model)
        local.model.train()
        for _ in range(self.epochs):
            loss = torch.zeros((), device=local.federation.device)
            hits = torch.zeros((), device=local.federation.device)
            for batch in local.batches(self.batch_size):
                loss += self.step(local, optimizer, batch) * len(batch.y)
                logits = batch.__dict__.get(
                    "logits", batch.scored
                )  # an objective may never ask for the plain ones
                if logits is not None:
                    hits += (logits.detach().argmax(1) == batch.y).sum()
        return loss / len(local.client.train), hits / len(local.client.train)


@dataclass(frozen=True)
class BySize(Weigh):
    """p_k = n_k / sum_{S_t} n."""

    def __call__(self, state: State, reports: list[Report]) -> tuple[Scores, State]:
        return torch.tensor([math.log(r.size) for r in reports], dtype=torch.float64), state


@dataclass(frozen=True)
class Equal(Weigh):
    """p_k = 1 / |S_t|."""

    def __call__(self, state: State, reports: list[Report]) -> tuple[Scores, State]:
        return torch.zeros(len(reports), dtype=torch.float64), state


@dataclass(frozen=True)
class Replace(Update):
    """w^{t+1} = the weighted mean."""

    def __call__(
        self, state: State, server: Params, mean: Params, reports: list[Report]
    ) -> tuple[Params, State]:
        return mean, state


@dataclass(frozen=True)
class Method:
    """A composition of stages. `method.replace(weigh=...)` is a new method that differs in one of
    them.
    """

    name: str
    sample: Sample = Uniform()
    objective: tuple[Objective, ...] = (CrossEntropy(),)
    solve: LocalSolver = LocalSolver()
    weigh: Weigh = BySize()
    update: Update = Replace()
    personal: Personal | None = None

    def replace(self, **changes: Any) -> Method:
        return dataclasses.replace(self, **changes)

    def stages(self) -> dict[str, Stage]:
        """Every stage by its slot, in the order in which they act."""
        found: dict[str, Stage] = {
            "sample": self.sample,
            **dict(slots(self.objective)),
            "solve": self.solve,
        }
        found |= {"weigh": self.weigh, "update": self.update}
        return found if self.personal is None else {**found, "personal": self.personal}

    def describe(self) -> dict[str, Any]:
        """Names and hyper-parameters, ready for JSON: what a run's key is made of."""

        def plain(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [plain(v) for v in value]
            if isinstance(value, dict):
                return {k: plain(v) for k, v in value.items()}
            if dataclasses.is_dataclass(value):
                return {"stage": type(value).__name__} | {
                    f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)
                }
            return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)

        return {"name": self.name} | {slot: plain(stage) for slot, stage in self.stages().items()}
