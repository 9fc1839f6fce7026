"""What is kept of a round."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from fedbook.rounds.params import count_bytes


@dataclass
class Traffic:
    """Bytes that went to the server (up) and to the clients (down)."""

    up: int = 0
    down: int = 0

    def receive(self, value: Any) -> None:
        """Count what a client sent up."""
        self.up += count_bytes(value)

    def send(self, value: Any) -> None:
        """Count what a client was sent."""
        self.down += count_bytes(value)


@dataclass(kw_only=True)
class Record:
    """What happened in one round.

    `test_*` are the global model's scores on every client, `personal_*` those of the clients' own
    models; `log` is what stages left in their state under "log".
    """

    round: int
    participants: list[int]
    weights: list[float]
    train_loss: dict[int, float]
    train_acc: dict[int, float]
    bytes_up: int
    bytes_down: int
    seconds: float = 0.0
    test_loss: list[float] | None = None
    test_acc: list[float] | None = None
    test_f1: list[float] | None = None
    personal_loss: list[float] | None = None
    personal_acc: list[float] | None = None
    personal_f1: list[float] | None = None
    log: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Record:
        for name in ("train_loss", "train_acc"):
            data[name] = {int(k): v for k, v in data[name].items()}
        return cls(**data)

    @property
    def accuracy(self) -> float | None:
        """The mean over the clients that have test samples: of the global model if there is one,
        else of their own models.
        """
        scores = self.personal_acc if self.test_acc is None else self.test_acc
        tested = [score for score in scores or () if not math.isnan(score)]
        return sum(tested) / len(tested) if tested else None

    def __repr__(self) -> str:
        accuracy = "not tested" if self.accuracy is None else f"accuracy {self.accuracy:.3f}"
        return (
            f"Record(round {self.round}: {len(self.participants)} clients, {accuracy}, "
            f"{self.bytes_up:,} bytes up, {self.bytes_down:,} down)"
        )

    def _repr_html_(self) -> str:
        from fedbook.html import table

        rows = []
        for id, weight in zip(self.participants, self.weights):
            rows.append([id, f"{weight:.4f}", f"{self.train_loss[id]:.4f}"])
        return table(repr(self), ["client", "weight", "training loss"], rows)
