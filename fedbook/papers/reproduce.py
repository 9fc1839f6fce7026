"""Run what is missing behind tables and figures, and set paper and ours side by side."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbook.errors import FedbookError
from fedbook.experiment import Experiment
from fedbook.papers.spec import Spec, ordering
from fedbook.results import Result, Store

if TYPE_CHECKING:
    import pandas as pd

Todo = tuple[str, Experiment]  # the table that asked first, and the run


def missing(
    specs: Iterable[Spec], scale: str, seeds: int | None, results: dict[str, Result]
) -> list[Todo]:
    """The runs behind the tables that are not stored yet, each once."""
    found: dict[str, Todo] = {}
    for spec in specs:
        for run in spec.runs(scale, seeds, results):
            if run.result is None:
                found.setdefault(run.experiment.key, (spec.id, run.experiment))
    return list(found.values())


def compute(
    todo: Sequence[Todo],
    store: Store,
    jobs: int = 1,
    tell: Callable[[str], None] = lambda line: None,
    file: str | None = None,
) -> list[str]:
    """Run and store them one by one (or `jobs` at a time, one thread each); returns what went
    wrong, if anything.
    """
    errors: dict[str, None] = {}
    for done, (id, experiment, outcome) in enumerate(_outcomes(todo, jobs), 1):
        head = f"{done}/{len(todo)}  {id}  {describe(experiment)}"
        if isinstance(outcome, FedbookError):
            tell(f"{head}  FAILED")
            errors[str(outcome)] = None
        else:
            store.append({"spec": id, **outcome}, file or f"{id.split('/')[0]}_{experiment.scale}")
            tell(
                f"{head}  {outcome['seconds']:.1f} s  accuracy "
                f"{outcome['metrics']['avg_client']:.3f}"
            )
    return list(errors)


def _outcomes(
    todo: Sequence[Todo], jobs: int
) -> Iterator[tuple[str, Experiment, Result | FedbookError]]:
    if jobs <= 1 or len(todo) <= 1:
        for id, e in todo:
            yield id, e, _attempt(e)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(todo)), context, initializer=_one_thread)
    try:
        pending = {pool.submit(_attempt, e): (id, e) for id, e in todo}
        for future in as_completed(pending):
            yield (*pending[future], future.result())
    except BrokenProcessPool:
        hint = "run again with --jobs 1; finished runs are kept"
        raise FedbookError("a worker process died (out of memory?)", hint) from None
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown()


def _one_thread() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import torch
    from tqdm import tqdm

    torch.set_num_threads(1)
    tqdm.set_lock(
        threading.RLock()
    )  # its own lock would be a semaphore left behind when the process is ended


def _attempt(experiment: Experiment) -> Result | FedbookError:
    try:
        return experiment.run(quiet=True)
    except FedbookError as error:
        return error


def default_jobs() -> int:
    """One process per core, at most eight, or a single one where a GPU does the work."""
    import torch

    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return 1 if torch.cuda.is_available() else min(cores, 8)


def describe(e: Experiment) -> str:
    part = " ".join(
        f"{k}={v}"
        for k, v in e.partition.items()
        if k in ("dif", "alpha", "s", "rho", "clients", "counts")
    )
    return f"{e.method['name']} {e.dataset['name']} {e.partition['name']} {part} seed={e.seed}"


def report(
    spec: Spec, scale: str, results: dict[str, Result], seeds: int | None = None
) -> dict[str, Any]:
    """Paper against ours for one table or figure, ready for JSON."""
    table = spec.tabulate(scale, results, seeds)
    agree, pairs = ordering(table)
    base: dict[str, Any] = {
        "id": spec.id,
        "paper": spec.paper,
        "kind": spec.kind,
        "title": spec.title,
        "scale": scale,
    }
    base["data"] = list(
        dict.fromkeys(r.experiment.dataset["name"] for r in spec.runs(scale, seeds))
    )
    return base | {
        "built": spec.built,
        "rows": table,
        "ordering": {"agree": agree, "pairs": pairs},
        "figures": [],
    }


def side_by_side(
    spec: Spec, scale: str, results: dict[str, Result], seeds: int | None = None
) -> pd.DataFrame:
    """Paper against ours for a notebook: a line per setting and method, two columns per metric,
    spread after ±.
    """
    import pandas as pd

    rows: dict[tuple[str, str], dict[tuple[str, str], Any]] = {}
    for r in spec.tabulate(scale, results, seeds):
        line = rows.setdefault((r["setting"], r["method"]), {})
        line[r["metric"], "paper"] = _pm(r["paper"], r["paper_spread"], 2)
        line[r["metric"], "ours"] = _pm(r["ours"], r["ours_std"], 2)
        line["", "seeds"] = r["seeds"]
    table = pd.DataFrame(
        list(rows.values()),
        index=pd.MultiIndex.from_tuples(list(rows), names=["setting", "method"]),
    )
    columns: list[Any] = list(table.columns)
    table.columns = pd.MultiIndex.from_tuples(columns)
    return table[[c for c in columns if c[0]] + [("", "seeds")]]


def draw(
    spec: Spec,
    scale: str,
    results: dict[str, Result],
    folder: Path | None,
    seeds: int | None = None,
) -> list[Path]:
    """The figure of a spec from stored results; nothing is drawn where nothing has run."""
    runs = spec.runs(scale, seeds, results) if spec.plot is not None else []
    if spec.plot is None or not any(r.result for r in runs):
        return []
    import matplotlib

    if "matplotlib.pyplot" not in sys.modules:
        matplotlib.use("Agg")
    from fedbook import plots

    fig, alt = spec.plot(spec, runs)
    paths = plots.save(fig, f"{spec.id.replace('/', '_')}_{scale}", alt, folder)
    import matplotlib.pyplot as plt

    plt.close(fig)
    return paths


def text(rep: dict[str, Any]) -> str:
    """The report as lines for a terminal."""
    scale, rows = rep["scale"], rep["rows"]
    used = f" on {', '.join(rep['data'])}" if rep["data"] else ""
    lines = [f"{rep['id']}: {rep['title']}  [{scale} scale{used}]"]
    if rep["kind"] == "sketch":
        return lines[0] + "\n  a drawing only, nothing to run"
    shown = [r for r in rows if r["verdict"] not in ("not built yet", "not run")]
    if shown:
        header = ("setting", "method", "metric", "paper", "ours", "seeds", "delta", "verdict")
        body = [
            (
                r["setting"],
                r["method"],
                r["metric"],
                _pm(r["paper"], r["paper_spread"], _digits(r)),
                _pm(r["ours"], r["ours_std"], _digits(r)),
                str(r["seeds"]),
                "" if r["delta"] is None else f"{r['delta']:+.{_digits(r)}f}",
                r["verdict"],
            )
            for r in shown
        ]
        widths = [max(map(len, column)) for column in zip(header, *body)]
        for line in (header, *body):
            lines.append("  " + "  ".join(cell.ljust(w) for cell, w in zip(line, widths)).rstrip())
    for verdict in ("not run", "not built yet"):
        left = [r for r in rows if r["verdict"] == verdict]
        if left:
            have = {r["method"] for r in rows if r["verdict"] != verdict}
            names = dict.fromkeys(
                r["method"] if r["method"] not in have else r["setting"] for r in left
            )
            lines.append(f"  {verdict}: {len(left)} of {len(rows)} rows ({'; '.join(names)})")
    if not rows:
        lines.append("  not built yet")
    if rep["ordering"]["pairs"] and scale != "paper":
        lines.append(
            f"  ordering: {rep['ordering']['agree']} of {rep['ordering']['pairs']} pairs of "
            "methods as in print"
        )
    lines += [f"  drawn: {p}" for p in rep["figures"]]
    return "\n".join(lines)


def _digits(r: dict[str, Any]) -> int:
    return 2 if max(abs(r["paper"] or 0), abs(r["ours"] or 0)) >= 1 else 3


def _pm(value: float | None, spread: float | None, digits: int) -> str:
    if value is None:
        return "-"
    return f"{value:.{digits}f}" + (f" ± {spread:.{digits}f}" if spread is not None else "")
