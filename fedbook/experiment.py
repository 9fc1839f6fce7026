"""One run as plain data: what is learnt, by whom, with which method. Its hash is the key of its
result."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbook.errors import FedbookError, whole
from fedbook.results import Result, config_key

if TYPE_CHECKING:
    from torch.nn import Module

    from fedbook.data import Dataset
    from fedbook.federation import Federation
    from fedbook.measures import Measure
    from fedbook.rounds import Method, Record, Simulation

Options = dict[str, Any]
PROMPTED: dict[str, Options] = {  # methods that train prompts, and the models that have them
    "fed_dualprompt": {"name": "fgpt", "learn_keys": True},
    "fedgcr": {"name": "fedgc"},
    "fgpt": {"name": "fgpt"},
    "pfedhn": {"name": "vpt"},
    "pt_fedavg": {"name": "vpt"},
}
# options of a model that matter only when it is tested, and what they are usually
TEST_ONLY: dict[str, Options] = {"fgpt": {"top_k": 1}}
_DESCRIBED: dict[str, dict[str, Any]] = {}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that decides a run's outcome, each part a name with its options: `{"name":
    "fedavg", "lr": 0.1}`.

    A part may be code of your own, `{"name": "my.py:mine", "source": hash}`; the hash of its file
    makes the key change with the code. The method's `quirks` are names of
    `fedbook.methods.quirks`. The score of a run is taken at its last round (`avg_client`, ...), as
    the mean over its `tail` last evaluations (`tail`), and at its best one (`best`): the papers
    differ in which of these they print. `measures` asks for more (see `fedbook.measures`).
    """

    dataset: Options
    partition: Options
    model: Options
    method: Options
    rounds: int
    seed: int = 0
    scale: str = "laptop"
    evaluate_every: int = 1
    tail: int = 1
    measures: tuple[Options, ...] = ()

    def __post_init__(self) -> None:
        for part in ("dataset", "partition", "model", "method"):
            options = getattr(self, part)
            if not isinstance(options, dict) or not isinstance(options.get("name"), str):
                raise FedbookError(
                    f"{part} must be a name with options, got {options!r}",
                    f'for example {part}={{"name": "..."}}',
                )
        for name in ("rounds", "evaluate_every", "tail"):
            whole(name, getattr(self, name))
        whole("seed", self.seed, 0)
        for measure in self.measures:
            if not isinstance(measure, dict) or not isinstance(measure.get("name"), str):
                raise FedbookError(
                    f"a measure must be a name with options, got {measure!r}",
                    'for example measures=({"name": "..."},)',
                )

    @cached_property
    def config(self) -> dict[str, Any]:
        """All of it, ready for JSON; the last three only where they differ from their default, so
        that adding such a field changes no key.
        """
        out: dict[str, Any] = {}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.name not in ("evaluate_every", "tail", "measures") or value != f.default:
                out[f.name] = list(value) if f.name == "measures" else value
        return out

    @cached_property
    def key(self) -> str:
        return config_key(self.config)

    def build_method(self) -> Method:
        from fedbook import methods

        return methods.get(self.method["name"], **part_options(self.method))

    def build_federation(self) -> Federation:
        from fedbook.federation import federate

        dataset = load_dataset(json.dumps(self.dataset))
        options: Options = {"seed": self.seed} | part_options(self.partition)
        return federate(dataset, self.partition["name"], **options)

    def find(self, results: dict[str, Result]) -> Result | None:
        """The stored result of this run, unless the method's defaults have changed since."""
        result = results.get(self.key)
        if result is None or not _within(result.get("method", {}), self.described):
            return None
        return result

    @property
    def described(self) -> dict[str, Any]:
        """The method's stages and all their hyper-parameters, built once per distinct method."""
        key = json.dumps(self.method, sort_keys=True)
        if key not in _DESCRIBED:
            _DESCRIBED[key] = self.build_method().describe()
        return _DESCRIBED[key]

    def run(
        self,
        quiet: bool = True,
        checkpoint: str | Path | None = None,
        device: Any = "auto",
        callbacks: Sequence[Any] = (),
    ) -> Result:
        """Train, and return the line to be stored."""
        began = time.perf_counter()
        federation = self.build_federation()
        options: dict[str, Any] = {"quiet": quiet, "checkpoint": checkpoint, "device": device}
        result = self.train(federation, callbacks=callbacks, **options)
        return {**result, "seconds": round(time.perf_counter() - began, 3)}

    def train(
        self,
        federation: Federation,
        model: Module | None = None,
        *,
        quiet: bool = True,
        checkpoint: str | Path | None = None,
        device: Any = "auto",
        callbacks: Sequence[Any] = (),
    ) -> Result:
        """The same on a federation (and with a model) of your own."""
        began = time.perf_counter()
        options: dict[str, Any] = {"quiet": quiet, "checkpoint": checkpoint, "device": device}
        options["callbacks"] = callbacks
        run, asked = self._simulated(self.build_method(), federation, model, **options)
        return self._measured(run, asked, began)

    def _simulated(
        self, method: Method, federation: Federation, model: Module | None = None, **options: Any
    ) -> tuple[Simulation, list[Measure]]:
        """The finished run, and the measures that have watched it."""
        from fedbook import measures, models
        from fedbook.rounds import simulate

        asked = [measures.build(m["name"], **part_options(m)) for m in self.measures]
        for measure in asked:
            federation = measure.begin(federation, self.seed)
        if model is None:
            shape = part_options(self.model)
            model = models.build(self.model["name"], federation, seed=self.seed, **shape)
        run = simulate(
            method,
            federation,
            model,
            rounds=self.rounds,
            seed=self.seed,
            evaluate_every=self.evaluate_every,
            **options,
        )
        resumed = len(run.records)
        for record in run:
            for measure in asked if record.round > resumed else ():
                measure.after_round(run, record)
        return run, asked

    def _measured(self, run: Simulation, asked: Sequence[Measure], began: float) -> Result:
        """The line of a finished run."""
        from fedbook import measures

        found = measures.usual(run, self.tail)
        for measure in asked:
            measure.end(run, found)
        return self.line(found, began) | {
            "data": _plain(run.federation.provenance),
            "device": str(run.device.torch),
            "engine": run.engine,
        }

    def line(self, metrics: dict[str, Any], began: float) -> Result:
        """What is stored of a run: what was asked for, what came, and when."""
        return {
            "key": self.key,
            "scale": self.scale,
            "seed": self.seed,
            "config": self.config,
            "method": self.described,
            "versions": versions(),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "seconds": round(time.perf_counter() - began, 3),
            "metrics": _plain(metrics),
        }


def alike(e: Experiment) -> str:
    """What runs have in common that differ only in personal models with no say in the global one,
    or in how the trained model is tested; of any other run its key.
    """
    personal = e.build_method().personal
    aside = personal is not None and personal.aside
    tests = {} if e.measures else TEST_ONLY.get(e.model["name"], {})
    if not (aside or tests):
        return e.key
    told = {**e.config, "method": [e.method["name"], e.method.get("quirks")]}
    told["model"] = {name: value for name, value in e.model.items() if name not in tests}
    parts = {name: part for name, part in e.described.items() if not (aside and name == "personal")}
    return json.dumps([told, parts], sort_keys=True)


def run_together(experiments: Sequence[Experiment]) -> list[Result]:
    """The lines of runs that are `alike`, of one training: personal models are trained beside each
    other, and the model is tested in every way. All but the seconds is as if they had run alone.
    """
    from fedbook.rounds.beside import Beside

    began = time.perf_counter()
    ways = [(i, e, e.build_method()) for i, e in enumerate(experiments)]
    first, method = ways[0][1:]
    if method.personal is not None and method.personal.aside:
        stages = tuple(m.personal for _, _, m in ways if m.personal is not None)
        method = method.replace(personal=Beside(stages=stages))
    records: list[list[Record]] = [[] for _ in ways]

    def test(run: Simulation, record: Record) -> None:
        for way in ways:
            mine = dataclasses.replace(record)
            if way[0] and run.due(record.round):
                with _seen(run, *way):
                    run.score(mine)
            records[way[0]].append(mine)

    run, asked = first._simulated(method, first.build_federation(), callbacks=[test], quiet=True)
    lines = []
    for way in ways:
        with _seen(run, *way):
            run.records = records[way[0]]
            run.load(run.params)
            lines.append(way[1]._measured(run, asked, began))
    seconds = round((time.perf_counter() - began) / len(lines), 3)
    return [{**line, "seconds": seconds, "together": len(lines)} for line in lines]


@contextmanager
def _seen(run: Simulation, i: int, e: Experiment, method: Method) -> Iterator[None]:
    """A run of several as if only the i-th of them had been made."""
    from fedbook.rounds.beside import Beside

    trained = run.method
    personal = run.memory if isinstance(trained.personal, Beside) else {}
    kept = {id: memory.get("personal", {}) for id, memory in personal.items()}
    usual = TEST_ONLY.get(e.model["name"], {})
    before = {name: getattr(run.model, name) for name in usual}
    run.method = method
    for id, memory in personal.items():
        memory["personal"] = kept[id].get(str(i), {})
    for name, value in usual.items():
        setattr(run.model, name, e.model.get(name, value))
    try:
        yield
    finally:
        run.method = trained
        for id, memory in personal.items():
            memory["personal"] = kept[id]
        for name, value in before.items():
            setattr(run.model, name, value)


def plain(method: str, dataset: str, *, scale: str = "laptop", seed: int = 0) -> Experiment:
    """A method on a dataset with settings that fit the data, where no paper has any.

    Images go to a small CNN, or to the hybrid ViT with the method's prompts. Their domains are
    types of two clients each; without domains a Dirichlet draw deals them out. Every patient
    of ECG beats, every role of a play is a client of its own.
    """
    domains, kind = _about(dataset)
    model = {"name": {"image": "cnn", "signal": "ecg_resnet", "text": "lstm"}[kind]}
    if kind == "image":
        model = PROMPTED.get(method, model)
    partition: Options = {"name": "dirichlet", "clients": 20, "alpha": 0.3}
    if domains > 1:
        partition = {"name": "by_domain", "dif": 1}
    if kind != "image":
        partition = {"name": "by_group", "test": "domain"}
    return Experiment(
        dataset={"name": dataset},
        partition=partition,
        model=model,
        method={"name": method},
        rounds=10,
        seed=seed,
        scale=scale,
    )


def _about(dataset: str) -> tuple[int, str]:
    """(number of domains, "image", "signal" or "text"); of a dataset that is not here, the kind of
    its nearest offline one.
    """
    from fedbook import data

    if not _is_named(dataset):
        found = load_dataset(json.dumps({"name": dataset}))
        domains = len(found.domain_names)
    else:
        entry = data.info(dataset)
        here = entry["nearest"] if entry["missing"] else dataset
        found = load_dataset(json.dumps({"name": here}))
        domains = entry["domains"]
    if found.mean is not None:  # only pixels have moments
        return domains, "image"
    return domains, "signal" if found.x.is_floating_point() else "text"


def _is_named(dataset: str) -> bool:
    """Whether a dataset is one of the catalogue, not a file, a folder or another library's."""
    return ":" not in dataset and not _is_path(dataset)


def _is_path(dataset: str) -> bool:
    return dataset.endswith(".npz") or "/" in dataset or "\\" in dataset


@lru_cache(maxsize=2)
def load_dataset(described: str) -> Dataset:
    """A dataset by name, from an .npz pack, a folder of images or another library; the last two
    stay in memory.
    """
    from fedbook import data
    from fedbook.data.outside import PREFIXES

    options = json.loads(described)
    name = options.pop("name")
    if name.startswith(PREFIXES):
        return data.from_outside(name, **options)
    if name.endswith(".npz"):
        return data.from_npz(name, **options)
    if _is_path(name):
        return data.from_folders(name, **options)
    return data.load(name, **options)


def versions() -> dict[str, Any]:
    """What the numbers depend on besides the configuration."""
    import platform

    import numpy
    import torch

    from fedbook import __version__

    return {
        "fedbook": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "system": platform.platform(),
        "threads": torch.get_num_threads(),
    }


def part_options(part: Options) -> Options:
    """The options of a part, without its name and the hash of its code."""
    return {k: v for k, v in part.items() if k not in ("name", "source")}


def _within(old: Any, new: Any) -> bool:
    """Whether all that `old` says is still so in `new`, which may say more."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(k in new and _within(v, new[k]) for k, v in old.items())
    if isinstance(old, list) and isinstance(new, (list, tuple)):
        return old == list(new)
    return old == new


def _plain(value: Any) -> Any:
    """Ready for JSON: numbers that are none become None, everything is rounded to seven digits."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    if isinstance(value, (str, int, bool, type(None))):
        return value
    raise FedbookError(
        f"cannot store a {type(value).__name__} in a result", "log numbers, strings and lists only"
    )
