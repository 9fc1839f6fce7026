"""Run what is missing behind tables and figures, and set paper and ours side by side."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from statistics import median
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from fedbook.check import cores
from fedbook.errors import Diverged, FedbookError
from fedbook.experiment import Experiment, alike, run_together
from fedbook.papers.layout import Grid, lay_out
from fedbook.papers.spec import Run, Spec, ordering, terms
from fedbook.results import Result, Store

if TYPE_CHECKING:
    import pandas as pd

Todo = tuple[str, Experiment]  # the table that asked first, and the run
Outcome = tuple[str, Experiment, Result | FedbookError]
AT_ONCE = 6  # runs of one training: what a kill may cost


# -- what there is ---------------------------------------------------------------------------------
class Estimate:
    """Seconds that runs will take, from earlier runs of the same shape: same data and model, if
    possible same method.
    """

    def __init__(self, results: Iterable[Result]) -> None:
        self.rates: dict[tuple[str, str], list[float]] = {}
        for r in results:
            config = r["config"]
            if not {"dataset", "model", "method", "rounds"} <= config.keys() or "seconds" not in r:
                continue  # a line of another program
            if "diverged" in r.get("metrics", {}):
                continue  # it ended early
            for method in (config["method"]["name"], ""):
                key = self._key(config["dataset"], config["model"], method)
                self.rates.setdefault(key, []).append(r["seconds"] / config["rounds"])

    @staticmethod
    def _key(dataset: dict[str, Any], model: dict[str, Any], method: str) -> tuple[str, str]:
        return json.dumps([dataset, model], sort_keys=True), method

    def __call__(self, e: Experiment) -> float | None:
        for method in (e.method["name"], ""):
            if rates := self.rates.get(self._key(e.dataset, e.model, method)):
                return median(rates) * e.rounds
        return None


def overview(
    specs: Iterable[Spec], scales: Sequence[str], results: dict[str, Result]
) -> list[dict[str, Any]]:
    """Every table and figure: the runs stored at each scale, and what the rest would take.

    A stored run counts as done by its key alone; `reproduce` computes it again if its method's
    defaults have changed since.
    """
    estimate = Estimate(results.values())
    out = []
    for spec in specs:
        found: dict[str, Any] = {}
        for scale in scales:
            plan = spec.plan(scale)
            stored = [results[r.experiment.key] for r in plan if r.experiment.key in results]
            left = [r.experiment for r in plan if r.experiment.key not in results]
            costs = [r["seconds"] for r in stored]
            costs += [s for s in map(estimate, left) if s is not None]
            seconds = round(sum(costs) / len(costs) * len(plan), 1) if costs else None
            found[scale] = {"done": len(stored), "runs": len(plan), "seconds": seconds}
        out.append({**about(spec), "built": spec.built, "scales": found})
    return out


def about(spec: Spec) -> dict[str, Any]:
    return {"id": spec.id, "paper": spec.paper.key, "kind": spec.kind, "title": spec.title}


def missing(
    specs: Iterable[Spec], scale: str, seeds: int | None, results: dict[str, Result]
) -> list[Todo]:
    """The runs behind the tables that are not stored yet, each once."""
    found: dict[str, Todo] = {}
    for spec in specs:
        for run in spec.runs(scale, seeds, results):
            if run.result is None and not run.diverged:
                found.setdefault(run.experiment.key, (spec.id, run.experiment))
    return list(found.values())


# -- running ---------------------------------------------------------------------------------------
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
    with contextlib.closing(_outcomes(todo, jobs)) as outcomes:  # workers go with an interrupt
        for done, (id, experiment, outcome) in enumerate(outcomes, 1):
            head = f"{done}/{len(todo)}  {id}  {describe(experiment)}"
            if isinstance(outcome, FedbookError):
                tell(f"{head}  FAILED")
                errors[str(outcome)] = None
                continue
            store.append({"spec": id, **outcome}, file or f"{id.split('/')[0]}_{experiment.scale}")
            found = outcome["metrics"]
            said = found.get("diverged") or f"accuracy {found['avg_client']:.3f}"
            tell(f"{head}  {outcome['seconds']:.1f} s  {said}")
    return list(errors)


def together(todo: Sequence[Todo]) -> list[list[Todo]]:
    """Runs that one training serves go together, `AT_ONCE` at most."""
    groups: dict[str, list[Todo]] = {}
    for id, e in todo:
        key = e.key  # also of a run that cannot be made; it says why when its turn comes
        with contextlib.suppress(FedbookError):
            key = alike(e)
        groups.setdefault(key, []).append((id, e))
    return [g[i : i + AT_ONCE] for g in groups.values() for i in range(0, len(g), AT_ONCE)]


def _outcomes(todo: Sequence[Todo], jobs: int) -> Generator[Outcome, None, None]:
    groups = together(todo)
    if jobs <= 1 or len(groups) <= 1:
        for group in groups:
            yield from _attempt(group)
        return
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(min(jobs, len(groups)), context, initializer=_one_thread)
    try:
        pending = [pool.submit(_attempt, group) for group in groups]
        died = False
        for future in as_completed(pending):
            if isinstance(future.exception(), BrokenProcessPool):
                died = True  # what others have finished is still to come
            else:
                yield from future.result()
        if died:
            hint = "run again with --jobs 1; finished runs are kept"
            raise FedbookError("a worker process died (out of memory?)", hint)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        ours = set(multiprocessing.active_children()) - others
        for child in ours:
            child.terminate()
        for child in ours:
            child.join(10)
        raise
    finally:
        pool.shutdown()


def _one_thread() -> None:
    """A worker computes with one thread, leaves Ctrl-C to the process that began it, and ends with
    that one, however it ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch
    from tqdm import tqdm

    torch.set_num_threads(1)
    # its own lock would be a semaphore left behind when the process is ended
    tqdm.set_lock(threading.RLock())


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _attempt(group: Sequence[Todo]) -> list[Outcome]:
    """The lines of runs that go together; one by one where one of them fails."""
    if len(group) > 1:
        try:
            lines = run_together([e for _, e in group])
            return [(id, e, line) for (id, e), line in zip(group, lines)]
        except FedbookError:
            pass
    return [(id, e, _alone(e)) for id, e in group]


def _alone(experiment: Experiment) -> Result | FedbookError:
    """The line of a run, also of one that diverged, or what must be put right."""
    began = time.perf_counter()
    try:
        return experiment.run(quiet=True)
    except Diverged as error:
        return experiment.line({"diverged": error.message}, began)
    except FedbookError as error:
        return error


def default_jobs() -> int:
    """One process per core, at most eight, or a single one where a GPU does the work."""
    import torch

    return 1 if torch.cuda.is_available() else min(cores(), 8)


def describe(e: Experiment) -> str:
    """An experiment in one line."""
    wanted = ("dif", "alpha", "s", "rho", "clients", "counts")
    part = [f"{k}={v}" for k, v in e.partition.items() if k in wanted]
    words = [e.method["name"], e.dataset["name"], e.partition["name"], *part, f"seed={e.seed}"]
    return " ".join(words)


# -- paper against ours ----------------------------------------------------------------------------
def report(
    spec: Spec, scale: str, results: dict[str, Result], seeds: int | None = None
) -> dict[str, Any]:
    """Paper against ours for one table or figure, ready for JSON."""
    table = spec.tabulate(scale, results, seeds)
    agree, pairs = ordering(table)
    plan = [run.experiment for run in spec.plan(scale, seeds)]
    return about(spec) | {
        "scale": scale,
        "data": list(dict.fromkeys(e.dataset["name"] for e in plan)),
        "terms": list(dict.fromkeys(terms(e) for e in plan)),
        "built": spec.built,
        "rows": table,
        "ordering": {"agree": agree, "pairs": pairs},
        "figures": [],
    }


def table(spec: Spec, scale: str, results: dict[str, Result], seeds: int | None = None) -> Grid:
    """Print and ours in the paper's own layout; a notebook shows it as a table."""
    return lay_out(spec, spec.tabulate(scale, results, seeds), scale, seeds)


def side_by_side(
    spec: Spec, scale: str, results: dict[str, Result], seeds: int | None = None
) -> pd.DataFrame:
    """Paper against ours for a notebook: a line per setting and method, two columns per metric,
    spread after ±.
    """
    import pandas as pd

    rows: dict[tuple[str, str], dict[tuple[str, str], Any]] = {}
    for r in spec.tabulate(scale, results, seeds):
        line = rows.setdefault((r["as_run"], r["method"]), {})
        line[r["metric"], "paper"] = _pm(r["paper"], r["paper_spread"], 2)
        line[r["metric"], "ours"] = _pm(r["ours"], r["ours_std"], 2)
        line["", "seeds"] = r["seeds"]
    index = pd.MultiIndex.from_tuples(list(rows), names=["setting", "method"])
    table = pd.DataFrame(list(rows.values()), index=index)
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
    """The figure of a spec from stored results; nothing is drawn where nothing has run, nor of a
    study of which only those runs are stored that it shares with a table.
    """
    if spec.plot is None:
        return []
    runs = spec.runs(scale, seeds, results)
    if not any(r.result for r in _own(spec, scale, runs) or runs):
        return []
    from fedbook import plots

    plt = headless()
    with plots.style():
        fig, alt = spec.plot(spec, runs)
    paths = plots.save(fig, f"{spec.id.replace('/', '_')}_{scale}", alt, folder)
    plt.close(fig)
    return paths


def _own(spec: Spec, scale: str, runs: list[Run]) -> list[Run]:
    """The runs of a study that no table of its paper has."""
    if spec.kind != "study":
        return runs
    tables = [s for s in spec.paper.specs.values() if s.kind == "table"]
    shared = {run.experiment.key for table in tables for run in table.plan(scale)}
    return [run for run in runs if run.experiment.key not in shared]


def headless() -> Any:
    """pyplot, drawing without a window unless somebody has chosen otherwise."""
    import matplotlib

    if "matplotlib.pyplot" not in sys.modules:
        matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def text(rep: dict[str, Any], table: str) -> str:
    """The report as lines for a terminal: the table in the paper's layout, what is missing, whether
    the order of methods is that of print, and at paper scale what differs.
    """
    if rep["kind"] == "sketch":
        return f"{rep['id']}: {rep['title']}\n  a drawing only, nothing to run"
    rows = rep["rows"]
    lines = [f"{rep['id']} at {rep['scale']} scale", table, ""]
    lines += [f"as run: {how}" for how in rep["terms"][:3]]
    for verdict in ("not run", "diverged", "nothing to run"):
        left = [r for r in rows if r["verdict"] == verdict]
        have = {r["method"] for r in rows if r["verdict"] != verdict}
        names = [r["setting"] if r["method"] in have else r["method"] for r in left]
        if left:
            said = "; ".join(dict.fromkeys(names))
            lines += _wrapped(f"{verdict}: {len(left)} of {len(rows)} numbers ({said})")
    lines += _wrapped(_agreement(rep))
    lines += [f"drawn: {p}" for p in rep["figures"]]
    return "\n".join(lines)


def _wrapped(line: str) -> list[str]:
    return wrap(line, 80, subsequent_indent="  ")


def _agreement(rep: dict[str, Any]) -> str:
    """How print and ours agree, as far as the scale allows one to say."""
    kinds = [r["verdict"] for r in rep["rows"]]
    if "reproduced" in kinds or "differs" in kinds:
        off = [f"{r['setting']} {r['method']} {r['metric']}" for r in rep["rows"]]
        off = [name for name, kind in zip(off, kinds) if kind == "differs"]
        said = f"reproduced: {kinds.count('reproduced')} numbers; differ: {len(off)}"
        return f"{said} ({'; '.join(off)})" if off else said
    if not any(r["ours"] is not None for r in rep["rows"]):
        return ""
    order = rep["ordering"]
    same = f"ordering: {order['agree']} of {order['pairs']} pairs of methods as in print; "
    return (same if order["pairs"] else "") + f"values: not comparable ({rep['scale']})"


def _pm(value: float | None, spread: float | None, digits: int) -> str:
    if value is None:
        return "-"
    return f"{value:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")
