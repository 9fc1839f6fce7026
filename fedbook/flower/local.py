"""Flower in one process: the same strategy and the same `ClientApp`, no Ray and no network."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.flower.client import client_app
from fedbook.flower.server import FedbookStrategy
from fedbook.rounds.device import Device
from fedbook.rounds.evaluation import precompute
from fedbook.rounds.stages import Method

UNREACHABLE = 0  # the code of the error that stands for a client that does not answer


def _be_somebody() -> None:
    """Messages want to know which task writes them, and outside of a run of Flower there is none.

    This is private to Flower, so a test holds it against every release.
    """
    from flwr.supercore.task_identity import TaskIdentity

    if TaskIdentity._run_id is None:
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1


class LocalGrid(Grid):
    """A grid that calls the `ClientApp` itself, one client after another.

    `exchanged` has every (message, answer) pair. `down` holds clients that do not answer.
    """

    def __init__(
        self, app: ClientApp, clients: Sequence[int], node_config: dict[str, Any] | None = None
    ) -> None:
        _be_somebody()
        self.app = app
        self.exchanged: list[tuple[Message, Message]] = []
        self.down: set[int] = set()
        self._clients: dict[int, int] = {}
        self._contexts: dict[int, Context] = {}
        self._count = len(clients)
        self._config = node_config or {}
        for id in clients:
            self.connect(id)

    def connect(self, id: int) -> int:
        """A node that is client `id` comes, with nothing in its memory; returns the node."""
        node = 1000 - len(self._contexts)  # a later client has a smaller number: order must not say
        own = {"partition-id": id, "num-partitions": self._count, **self._config}
        self._clients = {n: c for n, c in self._clients.items() if c != id} | {node: id}
        self._contexts[node] = Context(1, node, own, RecordDict(), {})
        return node

    def state(self, id: int) -> RecordDict:
        """What client `id` keeps to itself."""
        (node,) = [n for n, c in self._clients.items() if c == id]
        return self._contexts[node].state

    def get_node_ids(self) -> Iterable[int]:
        return list(self._clients)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            if self._clients[node] in self.down:
                error = Error(UNREACHABLE, "the client does not answer")
                answer = Message(error, reply_to=message)
            else:
                answer = self.app(message, self._contexts[node])
            self.exchanged.append((message, answer))
            replies.append(answer)
        return replies

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def set_run(self, run: Any) -> None:
        pass

    @property
    def run(self) -> Any:
        raise FedbookError("a local grid belongs to no run of Flower", "it needs none")

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise FedbookError("a local grid only exchanges messages", "use send_and_receive")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise FedbookError("a local grid only exchanges messages", "use send_and_receive")


class LocalRun(FedbookStrategy):
    """A strategy with the grid it ran on."""

    grid: LocalGrid


def run_local(
    method: Method,
    federation: Federation,
    model: nn.Module,
    rounds: int = 10,
    seed: int = 0,
    *,
    evaluate_every: int = 1,
    checkpoint: str | Path | None = None,
    device: str | Device = "cpu",
    grid: LocalGrid | None = None,
    partition: Callable[[Context], Federation] | None = None,
    quiet: bool = True,
) -> LocalRun:
    """What `simulate` computes, by Flower's messages: every client sees only its own samples.

    `quiet=False` shows Flower's log.
    """
    ids = [c.id for c in federation.clients]

    def own(context: Context) -> Federation:
        return federation.only(int(context.node_config["partition-id"]))

    def features(adapted: nn.Module, id: int) -> dict[str, Tensor]:
        """The client's rows of what is computed once for all, as in a simulation."""
        client = federation.client(id)
        rows = torch.cat([client.train, client.test]).unique()
        return {name: t[rows] for name, t in precompute(adapted, federation).items()}

    strategy = LocalRun(
        method,
        federation.roster(),
        model,
        rounds=rounds,
        seed=seed,
        evaluate_every=evaluate_every,
        checkpoint=checkpoint,
        timeout=0.0,
        device=device,
    )
    app = client_app(method, model, partition or own, device, features)
    strategy.grid = LocalGrid(app, ids) if grid is None else grid
    with log_level(logging.WARNING if quiet else logging.INFO):
        strategy.run(strategy.grid)
    return strategy


@contextmanager
def log_level(level: int) -> Iterator[None]:
    """Flower logs from this level on."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
