"""The server's half as a Flower strategy.

A round is one exchange of messages, or two where the method measures before it trains. Clients that
do not answer are left out: the weights are those of the clients that did, and the record says who
was missing.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy
from torch import nn

from fedbook.errors import FedbookError, whole
from fedbook.federation import Federation
from fedbook.flower.answers import measured, tested, told_by, trained, who
from fedbook.flower.client import Model, built, method_key
from fedbook.flower.deal import roster_of
from fedbook.flower.records import BROKEN, SAME, arrays, pack, tensors
from fedbook.rounds.checkpoint import Checkpoint
from fedbook.rounds.device import Device
from fedbook.rounds.halves import Server, announce
from fedbook.rounds.params import Params, count_bytes
from fedbook.rounds.record import Record, Traffic
from fedbook.rounds.stages import Method, Report, State

POLL = 1.0  # seconds between two looks for nodes
LOOK = 0.3  # seconds between two looks for answers
PATIENCE = 20.0  # seconds that a node which has been silent may take to say that it is back


def log(level: int, text: str, *values: Any) -> None:
    from flwr.supercore import log as write

    write(level, text, *values)


def run_key(method: Method, roster: Federation, seed: int) -> str:
    """What tells this run from others."""
    described = json.dumps([method.describe(), roster.fingerprint, seed])
    return hashlib.sha256(described.encode()).hexdigest()[:16]


class Relay(Grid):
    """A grid that hands all on to another."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self._grid.send_and_receive(messages, timeout=timeout)

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def create_message(self, *args: Any, **options: Any) -> Message:
        return self._grid.create_message(*args, **options)

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run


class Often(Relay):
    """A grid that looks for answers more often than every three seconds, as Flower's does."""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        left = set(self.push_messages(messages))
        limit = math.inf if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        while left and time.monotonic() < limit:
            came = list(self.pull_messages(left))
            replies += came
            left -= {m.metadata.reply_to_message_id for m in came}
            if left and not came:
                time.sleep(LOOK)
        return replies


class Few(Relay):
    """A grid that writes to a few nodes at a time."""

    def __init__(self, grid: Grid, at_once: int) -> None:
        super().__init__(grid)
        self._at_once = at_once

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        left = list(messages)
        replies: list[Message] = []
        while left:
            now = left[: self._at_once]
            left = left[self._at_once :]
            replies += self._grid.send_and_receive(now, timeout=timeout)
        return replies


class FedbookStrategy(Strategy):
    """A method's server on Flower.

    `roster` says who there is (`federation.roster()`); no sample is needed here. `rounds` is the
    length of the run. With `checkpoint=FOLDER` a run that was stopped goes on after its last
    finished round. `timeout` is how many seconds an exchange waits for answers, and how long the
    start waits for everybody. `at_once` is how many clients work at the same time, for nodes that
    share a small machine: Flower starts a process for every message, and gives up on one that has
    not come up within 30 seconds.
    """

    def __init__(
        self,
        method: Method,
        roster: Federation,
        model: nn.Module,
        *,
        rounds: int,
        seed: int = 0,
        evaluate_every: int = 1,
        checkpoint: str | Path | None = None,
        timeout: float = 3600.0,
        at_once: int | None = None,
        device: str | Device = "cpu",
    ) -> None:
        whole("rounds", rounds)
        whole("evaluate_every", evaluate_every)
        whole("seed", seed, 0)
        if at_once is not None:
            whole("at_once", at_once)
        if not timeout >= 0:
            raise FedbookError(f"timeout must be seconds, at least 0, got {timeout!r}", "try 600")
        self.method = method
        self.roster = roster
        self.rounds = rounds
        self.seed = seed
        self.records: list[Record] = []
        self.nodes: dict[int, int] = {}  # client -> node
        self._roster_ids = {c.id for c in roster.clients}
        self._ids: dict[int, int] = {}  # node -> client, of every node that answered
        self._silent: set[int] = set()  # nodes that did not
        self._model = model
        self._every = evaluate_every
        self._folder = checkpoint
        self._timeout = timeout
        self._at_once = at_once
        self._device = Device.of(device)
        self._method_key = method_key(method)
        self._known: dict[str, State] = {}
        self._informed: set[int] = set()
        self._server: Server | None = None
        self._checkpoint: Checkpoint | None = None
        self._traffic = Traffic()
        self._reports: list[Report] = []
        self._missing: list[int] = []
        self._record: Record | None = None  # of the round that is going on
        self._done = 0

    # -- the run -----------------------------------------------------------------------------------
    def run(self, grid: Grid) -> FedbookStrategy:
        """All rounds that are left."""
        grid = grid if self._at_once is None else Few(grid, self._at_once)
        self._open(grid)
        left = self.rounds - self._done
        if left > 0:
            self.start(grid, arrays(self.params), num_rounds=left, timeout=self._timeout)
        return self

    @property
    def server(self) -> Server:
        if self._server is None:
            raise FedbookError("the strategy has not met its clients", "call run(grid) or start")
        return self._server

    @property
    def params(self) -> Params:
        """The server's parameters."""
        return self.server.params

    def summary(self) -> None:
        log(INFO, "\t├── %s, %s of %s clients here", self.method.name, len(self.nodes), self._size)
        log(INFO, "\t└── rounds %s to %s", self._done + 1, self.rounds)

    @property
    def _size(self) -> int:
        return len(self.roster)

    # -- meeting -----------------------------------------------------------------------------------
    def _open(self, grid: Grid) -> None:
        """Wait for everybody, exchange what is exchanged once, and take up a stopped run."""
        if self._server is not None:
            return
        before = Traffic()
        self._run = run_key(self.method, self.roster, self.seed)
        limit = time.monotonic() + self._timeout
        self._meet(grid)
        while len(self.nodes) < self._size and time.monotonic() < limit:
            time.sleep(POLL)
            self._meet(grid)
        if not self.nodes:
            raise FedbookError("no client came", "start the nodes, or wait longer: timeout=600")
        told = []
        if any(stage.overrides("tell") for stage in self.method.stages().values()):
            asked = {id: RecordDict() for id in self.nodes}
            answers = self._exchange(grid, "query.tell", asked, partial(told_by, self.method))
            if lost := [c.id for c in self.roster.clients if c.id not in answers]:
                raise FedbookError(
                    f"{self.method.name} begins with something from everybody, and clients {lost} "
                    "are missing",
                    "start their nodes",
                )
            told = [answers[c.id] for c in self.roster.clients]
            before.receive(told)
        self._known = announce(self.method, self.roster, told)
        for stage in self.method.stages().values():
            up, down = stage.once(self.roster)
            before.up += up
            before.down += down
        self._server = Server(
            self.method,
            self.roster,
            self._model,
            rounds=self.rounds,
            seed=self.seed,
            device=self._device,
            known=self._known,
        )
        self._traffic = before
        if self._folder is not None:
            self._restore()

    def _meet(self, grid: Grid) -> None:
        """Which nodes are there, and which clients they are; new ones are asked."""
        present = set(grid.get_node_ids())
        self._silent &= present  # whoever has gone is new when it comes back
        self._ids = {node: id for node, id in self._ids.items() if node in present}
        new = present - set(self._ids)
        again = new & self._silent
        answers = self._ask(grid, new - again, self._timeout)
        answers += self._ask(grid, again, min(PATIENCE, self._timeout))
        for answer in answers:
            node = answer.metadata.src_node_id
            try:
                id, informed = who(answer.content)
            except FedbookError as error:
                log(WARNING, "a new node's answer is left out: %s", error)
                continue
            self._ids[node] = id
            self._silent.discard(node)
            if informed:
                self._informed.add(id)
            else:
                self._informed.discard(id)
            if id not in self._roster_ids:
                log(WARNING, "a node came as client %s, which is not on the roster", id)
        here = {}
        for node, id in self._ids.items():  # the node that was asked last is the client
            if id in self._roster_ids:
                here[id] = node
        for id in sorted(set(self.nodes) - set(here)):
            log(WARNING, "client %s has left", id)
        for id in sorted(set(here) - set(self.nodes)):
            log(INFO, "client %s is here", id)
        self.nodes = here

    def _ask(self, grid: Grid, nodes: set[int], seconds: float) -> list[Message]:
        """Which clients these nodes are."""
        messages = [self._message(RecordDict(), node, "query.who", 0) for node in sorted(nodes)]
        self._silent |= nodes
        return self._answers(self._send(grid, messages, seconds))

    # -- messages ----------------------------------------------------------------------------------
    def _message(self, content: RecordDict, node: int, kind: str, t: int) -> Message:
        settings: dict[str, Any] = {
            "run": self._run,
            "round": t,
            "rounds": self.rounds,
            "seed": self.seed,
        }
        settings["method"] = self._method_key
        settings["counted"] = self._counted(self._ids.get(node))
        content["run"] = ConfigRecord(settings)
        return Message(content, dst_node_id=node, message_type=kind, group_id=str(t))

    def _counted(self, id: int | None) -> int:
        """The last round in which the client's answer was used: what it remembers of a later one
        does not count.
        """
        rounds = [r.round for r in self.records if id in r.participants]
        if self._record is not None and id in self._record.participants:
            rounds.append(self._record.round)
        return max(rounds, default=0)

    def _send(
        self, grid: Grid, messages: list[Message], seconds: float | None = None
    ) -> Iterable[Message]:
        limit = self._timeout if seconds is None else seconds
        return grid.send_and_receive(messages, timeout=limit) if messages else []

    def _answers(self, replies: Iterable[Message]) -> list[Message]:
        """Those replies that are no errors, one of each node, in the order of the nodes."""
        good: dict[int, Message] = {}
        for message in replies:
            node = message.metadata.src_node_id
            client = self._ids.get(node, "of a new node")
            if message.has_error():
                log(WARNING, "client %s failed: %s", client, message.error.reason)
            elif node in good:
                log(WARNING, "client %s answered twice: the first answer counts", client)
            else:
                good[node] = message
        return [good[node] for node in sorted(good)]

    def _by_client(
        self, replies: Iterable[Message], t: int, read: Callable[[RecordDict], Any]
    ) -> dict[int, Any]:
        """What each client's answer holds. One that cannot be read counts as none."""
        found = {}
        for message in self._answers(replies):
            node = message.metadata.src_node_id
            if node not in self._ids:
                log(WARNING, "an answer of node %s, which was not asked, is left out", node)
                continue
            try:
                if message.metadata.group_id != str(t):
                    raise FedbookError(
                        f"an answer of round {message.metadata.group_id} came in round {t}",
                        "wait longer: timeout=600",
                    )
                found[self._ids[node]] = read(message.content)
            except FedbookError as error:
                log(WARNING, "the answer of client %s is left out: %s", self._ids[node], error)
        return found

    def _exchange(
        self,
        grid: Grid,
        kind: str,
        contents: dict[int, RecordDict],
        read: Callable[[RecordDict], Any],
        t: int = 0,
    ) -> dict[int, Any]:
        """Send each client its content; what those say that gave an answer, by client."""
        messages = []
        for id in sorted(contents):
            messages.append(self._message(contents[id], self.nodes[id], kind, t))
        return self._by_client(self._send(grid, messages), t, read)

    @contextmanager
    def _using(self) -> Iterator[None]:
        """Stages see what clients sent: a stage that cannot use it says so in one line."""
        try:
            yield
        except BROKEN as error:
            raise FedbookError(
                f"{self.method.name} cannot use what clients sent in round {self._t}: {error!r}",
                SAME,
            ) from error

    def _present(self, reports: list[Report], answers: dict[int, Any]) -> list[Report]:
        """The participants that answered; the others are noted."""
        for r in reports:
            if r.id not in answers:
                self._missing.append(r.id)
                if (node := self.nodes.get(r.id)) is not None:  # asked again before the next round
                    self._ids.pop(node, None)
                    self._silent.add(node)
        left = [r for r in reports if r.id in answers]
        if not left:
            raise FedbookError(
                f"nobody who was asked answered in round {self._t}",
                "look at the clients' logs; a checkpoint goes on from the last finished round",
            )
        return left

    def _content(self, id: int) -> RecordDict:
        """The first message of a round to a client: the parameters it receives."""
        content = RecordDict()
        received = self.server._download(id)
        content["parameters"] = arrays(received)
        self._traffic.send(received)
        self._inform(content, id)
        return content

    def _inform(self, content: RecordDict, id: int) -> None:
        """Whoever has not heard what was announced, hears it."""
        if id not in self._informed and any(self._known.values()):
            pack(content, "known", self._known)
            self._informed.add(id)

    # -- a round -----------------------------------------------------------------------------------
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample, let the participants measure, and write to those that answered."""
        self._began = time.perf_counter()
        self._open(grid)
        if server_round > 1:
            self._meet(grid)
        elif self._done == 0:
            self.server.params = tensors(arrays)  # what `start` was given
        self._t = t = self._done + server_round
        if t == 1:
            self._traffic.down += count_bytes(self._known) * self._size
        else:
            self._traffic = Traffic()
        self._missing = []
        reports = self._present(self.server._sample(t), self.nodes)
        contents = {r.id: self._content(r.id) for r in reports}
        if "received" in self.method.reads or self.server.measuring:
            read = partial(measured, self.method)
            answers = self._exchange(grid, "query.measure", contents, read, t)
            reports = self._present(reports, answers)
            for r in reports:
                r.loss, values = answers[r.id]
                self._traffic.receive(r.loss)
                self.server._receive(r, values, self._traffic)
            contents = {r.id: RecordDict() for r in reports}
        with self._using():
            self.server._prepare(reports)
        self._reports = reports
        messages = []
        for r in reports:
            sent = {slot: self.server._send(slot, r.id) for slot in self.method.stages()}
            self._traffic.send(sent)
            pack(contents[r.id], "sent", sent)
            messages.append(self._message(contents[r.id], self.nodes[r.id], "train", t))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Weigh those that answered, and move."""
        answers = self._by_client(replies, self._t, partial(trained, self.params))
        reports = self._present(self._reports, answers)
        uploads = []
        for r in reports:
            seen, values, upload = answers[r.id]
            r.size = int(seen["num-examples"])
            r.train_loss = float(seen["train_loss"])
            r.train_acc = float(seen["train_acc"])
            self.server._receive(r, values, self._traffic)
            self._traffic.receive([upload, r.size] if upload else [])
            uploads.append(upload)
        with self._using():
            mean, weights = self.server._aggregate(reports, iter(uploads))
            self.server._update(mean, reports)
        record = self.server._record(self._t, reports, weights, self._traffic)
        if self._missing:
            record.log["missing"] = sorted(self._missing)
            log(WARNING, "round %s went on without clients %s", self._t, sorted(self._missing))
        self._record = record
        loss = 0.0
        for w, r in zip(weights.default, reports):
            loss += w * (r.train_loss or 0.0)
        return arrays(self.params), MetricRecord({"train_loss": loss})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The new model to everybody, in the rounds that are tested."""
        if self._t % self._every and self._t != self.rounds:
            return []
        messages = []
        for id in sorted(set(self.nodes) - set(self._missing)):
            messages.append(self._message(self._test(id), self.nodes[id], "evaluate", self._t))
        return messages

    def _test(self, id: int) -> RecordDict:
        """What a client is tested with; none of it is counted, as in a simulation."""
        content = RecordDict()
        content["parameters"] = arrays(self.server._download(id))
        personal = self.method.personal is not None
        pack(content, "personal", self.server._send("personal", id) if personal else {})
        if self.server.has_global and self.method.update.overrides_download():
            content["global"] = arrays(self.params)
        self._inform(content, id)
        return content

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Every client's scores into the record; then the round is finished, and kept."""
        found = self._by_client(replies, self._t, partial(tested, self.server))
        record = self._record
        assert record is not None
        for key in next(iter(found.values()), ()):
            values = [found[c.id][key] if c.id in found else math.nan for c in self.roster.clients]
            setattr(record, key, values)
        record.seconds = time.perf_counter() - self._began
        self.records.append(record)
        if self._checkpoint is not None:
            state = {"params": self.params, "state": self.server.state}
            self._checkpoint.save(record.round, state, [record.to_json()])
        log(INFO, "%r, %.1f s", record, record.seconds)
        return None if record.accuracy is None else MetricRecord({"accuracy": record.accuracy})

    def _restore(self) -> None:
        assert self._folder is not None
        identity = self.server._identity() | {"evaluate_every": self._every}
        self._checkpoint = Checkpoint(self._folder, identity)
        found = self._checkpoint.restore(self._device.torch)
        if found is not None:
            state, records = found
            self.server.params = state["params"]
            self.server.state = state["state"]
            self.records = [Record.from_json(r) for r in records]
            self._done = self.records[-1].round
            log(INFO, "goes on after round %s", self._done)


def setting(config: Mapping[str, Any], name: str, usual: int) -> Any:
    """A number of [tool.flwr.app.config]: whole, but for the timeout."""
    value = config.get(name, usual)
    if type(value) is not int and not (name == "timeout" and type(value) is float):
        raise FedbookError(f"{name} must be a number, got {value!r}", f"write {name} = {usual}")
    return value


def server_app(
    method: Method | Callable[[], Method],
    model: Model,
    roster: Callable[[Context], Federation] = roster_of,
) -> ServerApp:
    """A `ServerApp` that runs the method; the run's configuration has rounds, seed, checkpoint, ...

    `model` is a model, or a function of the roster that builds one.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        who = roster(context)
        FedbookStrategy(
            method if isinstance(method, Method) else method(),
            who,
            built(model, who),
            rounds=setting(config, "rounds", 3),
            seed=setting(config, "seed", 0),
            evaluate_every=setting(config, "evaluate-every", 1),
            checkpoint=str(config["checkpoint"]) if config.get("checkpoint") else None,
            timeout=setting(config, "timeout", 3600),
            at_once=setting(config, "at-once", 0) or None,
        ).run(Often(grid))

    return app
