"""Taking times: competitors in turns, so that a busy machine slows all of them alike."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Times:
    """Seconds of each repeat, on the wall clock and of the processor."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def median(self, kind: str = "wall") -> float:
        return statistics.median(getattr(self, kind))

    def over(self, other: Times, kind: str = "wall") -> float:
        """The median of the ratios, each of two repeats that followed each other."""
        pairs = zip(getattr(self, kind), getattr(other, kind))
        return statistics.median(a / b for a, b in pairs)


def interleave(
    steps: Mapping[str, Callable[[], object]],
    repeats: int,
    warm_up: int = 1,
    budget: float | None = None,
) -> dict[str, Times]:
    """Times of each step, taken in turns; who begins changes from turn to turn.

    With a `budget` in seconds, at least two and at most `repeats` turns, as many as fit.
    """
    spent = {name: Times() for name in steps}
    began = time.perf_counter()
    for i in range(warm_up + repeats):
        turn = time.perf_counter()
        for name in list(steps)[:: 1 if i % 2 else -1]:
            cpu = time.process_time()
            wall = time.perf_counter()
            steps[name]()
            if i >= warm_up:
                spent[name].wall.append(time.perf_counter() - wall)
                spent[name].cpu.append(time.process_time() - cpu)
        now = time.perf_counter()
        if budget and i > warm_up and now - began + (now - turn) > budget:
            break
    return spent


@contextlib.contextmanager
def use_threads(threads: int) -> Iterator[None]:
    """torch with so many threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def resident(field: str = "VmRSS") -> float:
    """MB of resident memory now (VmRSS) or at most so far (VmHWM); only the latter where /proc is
    missing.
    """
    try:
        with open("/proc/self/status") as f:
            return next(int(line.split()[1]) / 1024 for line in f if line.startswith(field))
    except OSError:
        import resource

        unit = 1024 * 1024 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def give_back() -> None:
    """Return to the system what was freed, where the C library can."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def processor_seconds() -> float:
    """Of this process and of all that it has started, as far as they are alive; where /proc is
    missing of this one alone.
    """
    if not os.path.isdir("/proc/self"):
        return time.process_time()
    parent: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as f:
                fields = f.read().rpartition(")")[2].split()
                parent[int(name)] = int(fields[1])
                ticks[int(name)] = int(fields[11]) + int(fields[12])
    total = time.process_time()
    for pid in ticks:
        above = parent.get(pid, 0)
        while above not in (0, os.getpid()):
            above = parent.get(above, 0)
        if above:
            total += ticks[pid] / os.sysconf("SC_CLK_TCK")
    return total


def in_fresh_process(work: Callable[[int], dict[str, Any]], count: int) -> dict[str, Any]:
    """What `work(count)` finds where nothing has run before, with one thread."""
    name = work.__name__
    code = f"import json; from {work.__module__} import {name}; print(json.dumps({name}({count})))"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])
