"""A guided tour: the ideas of the four papers at work in minutes, on data that come with fedbook.

A stop (`fedgcr.py`, ...) is one paper at quick scale: few runs, three seeds. Rates and powers were
chosen on validation data (`fedbook tune PAPER --quick`; the trials are stored). What so few rounds
cannot show is shown from the stored laptop results. `tour()` runs what is missing; `page.py` and
`terminal.py` show it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedbook.errors import FedbookError
from fedbook.papers.claims import Judged
from fedbook.papers.paper import Paper
from fedbook.papers.reproduce import Todo, compute, default_jobs, headless
from fedbook.papers.verdicts import choose
from fedbook.results import Result, Store
from fedbook.tour import client2vec, fedgcr, fgpt, grp_fed
from fedbook.tour.stop import QUICK, SEEDS, Effect, Found, Picture, Stop

__all__ = ["QUICK", "SEEDS", "STOPS", "Effect", "Found", "Picture", "Stop", "Tour", "quick", "tour"]

STOPS = (fedgcr.STOP, client2vec.STOP, grp_fed.STOP, fgpt.STOP)


def quick(key: str) -> Paper:
    """The paper of this key at the tour's scale, with the grid its settings come from."""
    return next(stop.quick for stop in STOPS if stop.paper.key == key)


@dataclass(frozen=True, kw_only=True)
class Tour:
    """What all stops found, and what the stored results say of the papers' claims."""

    found: tuple[Found, ...]
    judged: dict[str, list[Judged]] = field(repr=False)
    results: dict[str, Result] = field(repr=False)
    stored: dict[str, Result] = field(repr=False)
    seeds: int
    jobs: int
    runs: int
    computed: int
    seconds: float
    date: str

    def to_json(self) -> dict[str, Any]:
        """What was seen, ready for JSON."""
        out = {}
        for found in self.found:
            out[found.stop.paper.key] = [
                {
                    "text": e.text,
                    "holds": e.holds,
                    "difference": round(e.check.difference.value, 6),
                    "by_seed": list(e.check.difference.by_seed.values()),
                    "claims": list(e.claims),
                }
                for e in found.effects
            ]
        return {"seeds": self.seeds, "runs": self.runs, "seconds": self.seconds, "papers": out}


def tour(
    folder: Path,
    stored: Store,
    *,
    stops: Sequence[Stop] = STOPS,
    seeds: int = SEEDS,
    jobs: int | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Tour:
    """Run every stop, `jobs` runs at a time; finished runs are kept in FOLDER/quick.jsonl, and the
    next tour goes on from there.
    """
    began = time.perf_counter()
    headless()
    stops = [replace(s, scale=replace(s.scale, seeds=seeds)) for s in stops]
    kept = Store(folder)
    kept.check_writable()
    jobs = jobs or default_jobs()
    todo = missing(stops, kept.keys())
    with progress(len(todo), jobs, tell) as advance:
        errors = compute(todo, kept, jobs, advance, QUICK)
    if errors:
        raise FedbookError("; ".join(errors), "finished runs are kept; run again")
    results = kept.keys()
    known = stored.keys()
    found = tuple(Found(stop=stop, results=results, stored=known) for stop in stops)
    return Tour(
        found=found,
        judged={s.paper.key: choose(stored, "laptop", s.paper.key) for s in stops},
        results=results,
        stored=known,
        seeds=seeds,
        jobs=jobs,
        runs=len(planned(stops)),
        computed=len(todo),
        seconds=time.perf_counter() - began,
        date=time.strftime("%Y-%m-%d", time.gmtime()),
    )


def planned(stops: Sequence[Stop]) -> list[Todo]:
    """Every run of the tour once, seed after seed, so that the time a run takes on average tells
    the time that is left.
    """
    found: dict[str, Todo] = {}
    for stop in stops:
        for spec in stop.specs.values():
            for run in spec.plan(QUICK):
                found.setdefault(run.experiment.key, (spec.id, run.experiment))
    return sorted(found.values(), key=lambda pair: pair[1].seed)


def missing(stops: Sequence[Stop], results: dict[str, Result]) -> list[Todo]:
    return [(id, e) for id, e in planned(stops) if e.find(results) is None]


@contextmanager
def progress(runs: int, jobs: int, tell: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """A bar with the time left on a terminal, a line per run elsewhere."""
    from tqdm import tqdm

    if not runs:
        yield tell
        return
    with tqdm(total=runs, desc="four papers", unit="run", smoothing=0, disable=None) as bar:
        if bar.disable:
            tell(f"{runs} runs, {jobs} at a time")
            yield tell
            return
        over = threading.Event()
        clock = threading.Thread(target=_tick, args=(bar, over), daemon=True)
        clock.start()

        def advance(line: str) -> None:
            bar.set_postfix_str(line.split()[1], refresh=False)
            bar.update()

        try:
            yield advance
        finally:
            over.set()
            clock.join()


def _tick(bar: Any, over: threading.Event) -> None:
    """Let the clock run between updates."""
    while not over.wait(1.0):
        bar.refresh()
