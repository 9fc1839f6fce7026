"""The clients' half as a Flower `ClientApp`.

A client process builds a `Site`: the client's own samples, and a model to train. What the method
remembers of the client lies in `context.state`, which Flower never sends; with `memory=FOLDER` in
the node's configuration it is also kept on disk, so that a node that was killed goes on where it
was.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.files import write_atomically
from fedbook.flower.deal import partition_of
from fedbook.flower.records import BROKEN, CPU, SAME, arrays, pack, parameters, settings, unpack
from fedbook.rounds.checkpoint import flatten, unflatten
from fedbook.rounds.device import Device
from fedbook.rounds.halves import SCORES, Clients, tell
from fedbook.rounds.params import Params
from fedbook.rounds.record import Traffic
from fedbook.rounds.stages import Method, Report, State

Partition = Callable[[Context], Federation]
Model = nn.Module | Callable[[Federation], nn.Module]
Features = Callable[[nn.Module, int], dict[str, Tensor]]
RESIDENT = 32  # sites that stay built in a process that serves many clients


class Site(Clients):
    """One client by itself: parameters and what stages send come out of messages.

    `features(model, client)` may know what the frozen part of the model makes of its samples.
    """

    def __init__(
        self,
        method: Method,
        federation: Federation,
        model: nn.Module,
        *,
        features: Features | None = None,
        **settings: Any,
    ) -> None:
        self._features = features
        super().__init__(method, federation, model, **settings)
        self.received: Params = {}
        self.sent: dict[str, State] = {}

    @property
    def expected(self) -> Params:
        """What comes has these names, shapes and kinds."""
        return {name: t for name, t in self._live.items() if name not in self._kept}

    def _precompute(self) -> dict[str, Tensor]:
        if self._features is None:
            return super()._precompute()
        return self._features(self.model, self.federation.clients[0].id)

    def _download(self, id: int) -> Params:
        return self.received

    def _send(self, slot: str, id: int) -> State:
        return self.sent.get(slot, {})


def client_app(
    method: Method | Callable[[], Method],
    model: Model,
    partition: Partition = partition_of,
    device: str | Device = "cpu",
    features: Features | None = None,
) -> ClientApp:
    """A `ClientApp` that does what clients do in this method.

    `model` is a model, or a function of the client's federation that builds one. `partition` gives
    the federation of the one client that a context belongs to.
    """
    work = Work(method, model, partition, Device.of(device), features)
    app = ClientApp()
    app.query("who")(work.who)
    app.query("tell")(work.tell)
    app.query("measure")(work.measure)
    app.train()(work.train)
    app.evaluate()(work.evaluate)
    return app


class Work:
    """What a client answers to each kind of message."""

    def __init__(
        self,
        method: Method | Callable[[], Method],
        model: Model,
        partition: Partition,
        device: Device,
        features: Features | None = None,
    ) -> None:
        self._method = method
        self._model = model
        self._partition = partition
        self._device = device
        self._features = features
        self._sites: OrderedDict[tuple[str, int], Site] = OrderedDict()

    @cached_property
    def method(self) -> Method:
        return self._method if isinstance(self._method, Method) else self._method()

    @cached_property
    def _name(self) -> str:
        return method_key(self.method)

    def settings(self, message: Message) -> dict[str, Any]:
        """What a message says of the run; it must be one of the method that is known here."""
        found = settings(message.content)
        if found["method"] != self._name:
            raise FedbookError(
                f"the server's method is {found['method']}, this client's {self._name}", SAME
            )
        return found

    # -- before the first round --------------------------------------------------------------------
    def who(self, message: Message, context: Context) -> Message:
        """Which client this is, and whether it has heard what was announced."""
        kept = read(context, self.settings(message)["run"])
        found = {"client": client_id(context), "informed": kept["known"] is not None}
        return reply(message, who=found)

    def tell(self, message: Message, context: Context) -> Message:
        self.settings(message)
        federation = self._partition(context).to(self._device.torch)
        return reply(message, told=tell(self.method, federation, federation.clients[0]))

    # -- a round -----------------------------------------------------------------------------------
    def measure(self, message: Message, context: Context) -> Message:
        """The first exchange of a round that has two: what the client says of the model."""
        turn = Turn(self, message, context)
        turn.begin()
        with torch.random.fork_rng():
            turn.site._measure([turn.report], turn.round, Traffic())
        turn.kept["values"] = turn.report.values
        turn.keep()
        return reply(message, measured={"loss": turn.report.loss, "values": turn.report.values})

    def train(self, message: Message, context: Context) -> Message:
        """The exchange in which the client trains."""
        turn = Turn(self, message, context)
        if "parameters" in message.content:
            turn.begin()
        else:
            turn.resume()
        turn.site.sent = unpack(message.content, "sent")
        if odd := sorted(turn.site.sent.keys() ^ self.method.stages().keys()):
            raise FedbookError(f"what was sent for {odd} does not fit {self.method.name}", SAME)
        before = set(turn.report.values)
        with torch.random.fork_rng():
            (upload,) = turn.site._train([turn.report], turn.round, Traffic())
        report = turn.report
        turn.kept["parameters"] = turn.kept["values"] = None
        turn.keep()
        added = {k: v for k, v in report.values.items() if k not in before}
        answer = reply(message, values=added)
        answer.content["parameters"] = arrays(upload)
        seen: dict[str, Any] = {"num-examples": report.size}
        seen |= {"train_loss": report.train_loss, "train_acc": report.train_acc}
        answer.content["metrics"] = MetricRecord(seen)
        return answer

    def evaluate(self, message: Message, context: Context) -> Message:
        """The scores of the global model and of the client's own, on its own test samples."""
        turn = Turn(self, message, context)
        turn._forget()
        turn._remember()
        site = turn.site
        site.received = site.params = parameters(message.content, site.expected)
        if "global" in message.content:
            site.params = parameters(message.content, site.expected, "global")
        site.sent = {"personal": unpack(message.content, "personal")}
        with torch.random.fork_rng():
            found = site._scores(turn.round)
        scores = {}
        for kind, values in found.items():
            for name in SCORES:
                scores[f"{kind}_{name}"] = getattr(values, name)[0]
        turn.keep()
        answer = reply(message)
        answer.content["scores"] = MetricRecord(scores)
        return answer

    # -- who does it -------------------------------------------------------------------------------
    def site(self, context: Context, config: dict[str, Any], known: dict[str, State]) -> Site:
        """The client, built when first asked for; the least used ones go."""
        key = (config["run"], client_id(context))
        if key not in self._sites:
            federation = self._partition(context)
            if [c.id for c in federation.clients] != [key[1]]:
                raise FedbookError(
                    f"client {key[1]} was given the samples of "
                    f"{[c.id for c in federation.clients]}",
                    "a partition is a federation of one client: federation.only(id)",
                )
            self._sites[key] = Site(
                self.method,
                federation,
                built(self._model, federation),
                rounds=config["rounds"],
                seed=config["seed"],
                device=self._device,
                known=known,
                features=self._features,
            )
        self._sites.move_to_end(key)
        while len(self._sites) > RESIDENT:
            self._sites.popitem(last=False)
        return self._sites[key]


class Turn:
    """One message at one client: its site, with its memory as it was left."""

    def __init__(self, work: Work, message: Message, context: Context) -> None:
        self.message = message
        self.context = context
        config = work.settings(message)
        self.run: str = config["run"]
        self.round: int = config["round"]
        self.counted: int = config["counted"]
        self.kept = read(context, self.run)
        if "known" in message.content:
            self.kept["known"] = unpack(message.content, "known")
        self.site = work.site(context, config, self.kept["known"] or {})
        client = self.site.federation.clients[0]
        self.report = Report(id=client.id, size=len(client.train))
        self._remember()

    def _forget(self) -> None:
        """What the client did in a round that the server did not count, since the answer was lost
        or the server went back to a checkpoint, has not happened.
        """
        if self.kept["round"] > self.counted:
            self.kept["memory"] = self.kept["before"]
            self.kept["round"] = self.counted

    def _remember(self) -> None:
        """The site knows what the client remembers, and nothing of an earlier message."""
        self.site.memory = {}
        if self.kept["memory"] is not None:
            self.site.memory[self.report.id] = self.kept["memory"]

    def begin(self) -> None:
        """The client's first message of a round."""
        self._forget()
        self.kept["before"] = copy.deepcopy(self.kept["memory"])
        self.kept["round"] = self.round
        self._remember()
        self.site.received = parameters(self.message.content, self.site.expected)
        self.kept["parameters"] = self.site.received

    def resume(self) -> None:
        """The second message of a round: the parameters came with the first."""
        if self.kept["parameters"] is None or self.kept["round"] != self.round:
            raise FedbookError(
                f"client {self.report.id} has no parameters of round {self.round}",
                "it was restarted within the round, and takes part again in the next",
            )
        self.site.received = self.kept["parameters"]
        self.report.values = dict(self.kept["values"] or {})

    def keep(self) -> None:
        """What is remembered goes to `context.state`, and to disk if a folder was named."""
        self.kept["memory"] = self.site.memory.get(self.report.id)
        pack(self.context.state, "kept", self.kept)
        if path := file_of(self.context, self.run):
            found: dict[str, Tensor] = {}
            nest = flatten(self.kept, found)
            owned = {k: t.clone() for k, t in found.items()}
            with write_atomically(path) as part:
                part.write_bytes(save(owned, {"nest": json.dumps(nest)}))


def built(model: Model, federation: Federation) -> nn.Module:
    """A model as it is, or made for this federation."""
    return model if isinstance(model, nn.Module) else model(federation)


def reply(message: Message, **nests: Any) -> Message:
    """An answer that holds these nests."""
    content = RecordDict()
    for name, value in nests.items():
        pack(content, name, value)
    return Message(content, reply_to=message)


def client_id(context: Context) -> int:
    """Which client a node is."""
    if "partition-id" not in context.node_config:
        raise FedbookError(
            "this node does not know which client it is",
            "start it with --node-config 'partition-id=0 num-partitions=4'",
        )
    id = context.node_config["partition-id"]
    if type(id) is not int:
        raise FedbookError(f"partition-id must be a whole number, got {id!r}", "name a client")
    return id


def method_key(method: Method) -> str:
    """A name that tells a method with its settings from others, the same in every process."""
    described = re.sub(r" at 0x[0-9a-f]+", "", json.dumps(method.describe()))
    return f"{method.name}-{hashlib.sha256(described.encode()).hexdigest()[:8]}"


def file_of(context: Context, run: str) -> Path | None:
    """Where a node that was given a folder keeps what this client remembers of this run."""
    folder = context.node_config.get("memory")
    if not folder:
        return None
    return Path(str(folder)) / run / f"client-{client_id(context)}.safetensors"


def read(context: Context, run: str) -> dict[str, Any]:
    """What the client remembers of this run: of an earlier message, or from disk."""
    kept: dict[str, Any] = {"run": run, "round": 0, "known": None}
    kept |= {"memory": None, "before": None, "parameters": None, "values": None}
    path = file_of(context, run)
    if "kept" in context.state:
        found = unpack(context.state, "kept")
        return found if found["run"] == run else kept
    if path is None or not path.is_file():
        return kept
    try:
        with safe_open(path, "pt") as f:
            stored = {name: f.get_tensor(name) for name in f.keys()}
            nest = json.loads(f.metadata()["nest"])
        return kept | unflatten(nest, stored, CPU)
    except BROKEN + (OSError, SafetensorError) as error:
        raise FedbookError(
            f"{path} is broken: {error}", "delete it, and this client begins anew"
        ) from None
