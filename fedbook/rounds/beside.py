"""Several personal stages of one global run, so that a sweep of personal settings trains the global
model once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedbook.rounds.stages import Local, Personal, State


@dataclass(frozen=True)
class Beside(Personal):
    """Each of `stages`, all of them `aside`, is trained as if it were alone: from the received
    model, with the same random numbers, and with a memory of its own. The first is tested.
    """

    stages: tuple[Personal, ...] = ()

    def end(self, local: Local, sent: State, memory: State) -> State:
        shuffles = local.generator.get_state()
        others = torch.get_rng_state()
        for i, stage in enumerate(self.stages):
            local.generator.set_state(shuffles)
            torch.set_rng_state(others)
            stage.end(local, sent, memory.setdefault(str(i), {}))
        return {}

    def load(self, local: Local, sent: State, memory: State) -> None:
        self.stages[0].load(local, sent, memory.get("0", {}))
