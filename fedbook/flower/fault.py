"""A node is killed in round 2 and comes back: what is said, who counts, and where the run ends.

    fedbook flower fault          # writes results/flower_fault.md

SCAFFOLD, since there what a client remembers moves the global model: a lost memory would show.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedbook.federation import Federation
from fedbook.files import write_atomically
from fedbook.flower import compare
from fedbook.flower.app import new
from fedbook.flower.loopback import Loopback, run_of
from fedbook.results import default_folder
from fedbook.rounds import Record, Uniform, simulate
from fedbook.rounds.params import Params
from fedbook.rounds.stages import State

METHOD = "scaffold"
ROUNDS = 12  # at most: the story ends with the round in which the client is back
LOST = 2  # the client whose node is killed
SHOWN = ("is here", "has left", "failed:", "went on without", "Record(")
PAINT = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Story:
    """What happened when (seconds after the start), and what the server kept."""

    events: list[tuple[float, str]]
    records: list[Record]
    params: Params

    @property
    def back(self) -> bool:
        """Whether the client counts again after a round without it."""
        return bool(self.missed) and LOST in self.records[-1].participants

    @property
    def missed(self) -> tuple[int, ...]:
        """The rounds that went on without the client."""
        return tuple(r.round for r in self.records if LOST in r.log.get("missing", []))


@dataclass(frozen=True)
class Without(Uniform):
    """Everybody, but for one client in some rounds."""

    rounds: tuple[int, ...] = ()

    def __call__(
        self, state: State, federation: Federation, round: int, rng: torch.Generator
    ) -> tuple[list[int], State]:
        chosen, state = super().__call__(state, federation, round, rng)
        return [id for id in chosen if id != LOST or round not in self.rounds], state


def lose(link: Loopback, folder: Path, seconds: float, **config: Any) -> Story:
    """Run on a deployment that is up; after round 1 kill a node, after round 2 start it again, and
    stop when it has taken part in a round.

    `seconds` is how long all of it may take.
    """
    app = new(folder, replace(compare.experiment(METHOD), rounds=ROUNDS))
    events: list[tuple[float, str]] = []
    began = time.monotonic()

    def note(text: str) -> None:
        events.append((time.monotonic() - began, text))

    log = link.log(run_of(app))
    run = link.begin(app, evaluate_every=ROUNDS, **config)
    note("the run begins")
    heard = rounds = 0
    ended = back = False
    steps = [
        (lambda: link.kill(LOST), f"the SuperNode of client {LOST} is killed"),
        (lambda: link.start(LOST), f"the SuperNode of client {LOST} is started again"),
    ]
    taken = 0
    try:
        while not ended and not back and time.monotonic() < began + seconds:
            ended = run.poll() is not None
            before, rounds = rounds, finished(app)
            if taken == len(steps) and rounds > before:
                back = kept(app, events).back
            if taken < len(steps) and rounds > taken:
                step, text = steps[taken]
                step()
                note(text)
                taken += 1
            lines = PAINT.sub("", log.read_text(errors="replace")).splitlines()
            for line in lines[heard:]:
                if any(word in line for word in SHOWN):
                    note(line.split(":", 1)[-1].strip())
            heard = len(lines)
            time.sleep(0.3)
    finally:
        link._end(run_of(app))
    why = f"client {LOST} is back: the run is stopped" if back else f"stopped after {seconds:g} s"
    note("the run has ended" if ended else why)
    return kept(app, events)


def kept(app: Path, events: list[tuple[float, str]]) -> Story:
    """The story as far as the server has kept it."""
    params, records = compare.result(app / "run")
    return Story(events, records, params)


def finished(app: Path) -> int:
    """How many rounds the server has kept."""
    try:
        return json.loads((app / "run" / "latest.json").read_text())["round"]
    except FileNotFoundError:
        return 0


def expected(story: Story) -> Params:
    """The same by the loop, where the client is not drawn in the rounds it missed."""
    method = compare.method_of(METHOD).replace(sample=Without(rounds=story.missed))
    rounds = len(story.records)
    settings: dict[str, Any] = {"device": "cpu", "engine": "loop", "quiet": True}
    model = compare.model_of(METHOD)
    return simulate(method, compare.federation(), model, rounds, **settings).run().params


def write(story: Story, apart: float, path: Path) -> None:
    """The story as a page."""
    out = [
        "# A node is killed in round 2",
        "",
        f"SCAFFOLD, {len(story.records)} rounds, a SuperLink and four SuperNodes as processes of "
        "one machine. Seconds are those at which the log was read. "
        "`fedbook flower fault` makes this.",
        "",
        "```text",
        *(f"{at:7.1f} s  {text}" for at, text in story.events),
        "```",
        "",
        "| round | took part | missing | weights | their sum | s |",
        "|---|---|---|---|---|---|",
    ]
    for r in story.records:
        weights = ", ".join(f"{w:.4f}" for w in r.weights)
        missing = ", ".join(str(id) for id in r.log.get("missing", [])) or "nobody"
        who = ", ".join(str(id) for id in r.participants)
        out.append(
            f"| {r.round} | {who} | {missing} | {weights} | {sum(r.weights):.6f} "
            f"| {r.seconds:.0f} |"
        )
    out += [
        "",
        f"A simulation in which client {LOST} is not drawn in rounds "
        f"{', '.join(str(t) for t in story.missed)} ends within {apart:.0e} of this, in every "
        "parameter: the client came back with what it remembered.",
    ]
    with write_atomically(path) as part:
        part.write_text("\n".join(out) + "\n")


def fault(folder: Path | None = None) -> int:
    """Start a deployment, lose a node and get it back, and write what happened."""
    folder = default_folder("results") if folder is None else folder
    with tempfile.TemporaryDirectory() as scratch:
        with Loopback(Path(scratch) / "link", compare.CLIENTS) as link:
            story = lose(link, Path(scratch) / "app", compare.LIMIT, **compare.PATIENTLY)
    apart = compare.apart(story.params, expected(story))
    path = folder / "flower_fault.md"
    write(story, apart, path)
    print(path.read_text())
    return 0
