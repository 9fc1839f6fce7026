"""One run as plain data: what is learnt, by whom, with which method. Its hash is the key of its
result."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedbook import metrics
from fedbook.errors import FedbookError
from fedbook.results import Result, config_key

if TYPE_CHECKING:
    from fedbook.data import Dataset
    from fedbook.federation import Federation
    from fedbook.rounds import Method, Simulation

Options = dict[str, Any]


@dataclass(frozen=True)
class Experiment:
    """Everything that decides a run's outcome, each part a name with its options: `{"name":
    "fedavg", "lr": 0.1}`.

    The score of a run is taken at its last round (`avg_client`, ...), as the mean over its `tail`
    last evaluations (`tail`), and at its best one (`best`): the papers differ in which of these
    they print. `local_tests` adds GRP-FED's four tests, `type_tests` what FedGCR's h tells of the
    types. `unseen` clients, drawn with the seed, never take part; the model is tested on them at
    the end, as it is.
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
    local_tests: bool = False
    type_tests: bool = False
    unseen: int = 0

    @cached_property
    def config(self) -> dict[str, Any]:
        """All of it; the last five only where they differ from their default, so that adding one
        changes no key.
        """
        late = {f.name for f in dataclasses.fields(self)[7:] if getattr(self, f.name) == f.default}
        return {k: v for k, v in dataclasses.asdict(self).items() if k not in late}

    @cached_property
    def key(self) -> str:
        return config_key(self.config)

    @cached_property
    def built(self) -> bool:
        """Whether all it names is registered."""
        from fedbook import methods, models

        wanted = {self.method["name"], self.method.get("base", self.method["name"])}
        return wanted <= set(methods.names()) and self.model["name"] in models.names()

    def build_method(self) -> Method:
        from fedbook import methods

        return methods.get(self.method["name"], **_options(self.method))

    def build_federation(self) -> Federation:
        from fedbook.federation import federate

        dataset = load_dataset(json.dumps(self.dataset))
        options: Options = {"seed": self.seed} | _options(self.partition)
        return federate(dataset, self.partition["name"], **options)

    def find(self, results: dict[str, Result]) -> Result | None:
        """The stored result of this run, unless the method's defaults have changed since."""
        result = results.get(self.key)
        if result is None or not _within(result.get("method", {}), self.build_method().describe()):
            return None
        return result

    def run(
        self, quiet: bool = True, checkpoint: str | Path | None = None, device: Any = "auto"
    ) -> Result:
        """Train, and return the line to be stored."""
        from fedbook import models
        from fedbook.rounds import simulate

        began = time.perf_counter()
        method, federation = self.build_method(), self.build_federation()
        others = None
        if self.unseen:
            federation, others = federation.split_clients(self.unseen, self.seed)
        model = models.build(self.model["name"], federation, seed=self.seed, **_options(self.model))
        run = simulate(
            method,
            federation,
            model,
            rounds=self.rounds,
            seed=self.seed,
            device=device,
            checkpoint=checkpoint,
            evaluate_every=self.evaluate_every,
            quiet=quiet,
        )
        resumed, losses = len(run.records), []
        for i, record in enumerate(run):
            if self.local_tests and record.test_acc is not None:
                losses.append(global_losses(run) if i >= resumed else [math.nan])
        measured = measure(run, self.tail)
        if self.local_tests:
            measured["local"] = local_tests(run)
            seen = [r for r in run.records if r.round in measured["rounds"]]
            measured["curves"]["effective_clients"] = [
                metrics.effective_clients(r.weights) for r in seen
            ]
            if "weigh.q" in seen[-1].extra:
                measured["curves"]["q"] = [r.extra["weigh.q"] for r in seen]
            if losses:  # there is a global model
                measured["curves"]["global_loss_mean"] = [
                    sum(found) / len(found) for found in losses
                ]
                measured["curves"]["global_loss_max"] = [max(found) for found in losses]
        if self.type_tests:
            measured["types"] = type_tests(run)
        if others is not None:
            measured["unseen"] = unseen_tests(run, others)
        return {
            "key": self.key,
            "scale": self.scale,
            "seed": self.seed,
            "config": self.config,
            "method": method.describe(),
            "data": _plain(federation.provenance),
            "versions": versions(),
            "device": str(run.device.torch),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "seconds": round(time.perf_counter() - began, 3),
            "metrics": _plain(measured),
        }


@lru_cache(maxsize=2)
def load_dataset(described: str) -> Dataset:
    """A dataset by name, from an .npz pack or from a folder of images; the last two stay in
    memory.
    """
    from fedbook import data

    options = json.loads(described)
    name = options.pop("name")
    if name.endswith(".npz"):
        return data.from_npz(name, **options)
    if "/" in name or "\\" in name:
        return data.from_folders(name, **options)
    return data.load(name, **options)


def measure(run: Simulation, tail: int = 1) -> dict[str, Any]:
    """The numbers worth keeping of a finished run: last, tail and best scores, curves, clients,
    bytes, parameters.
    """
    clients = run.federation.clients
    types, sizes = [c.type for c in clients], [len(c.test) for c in clients]
    seen = [r for r in run.records if r.test_acc is not None or r.personal_acc is not None]
    scores = [metrics.summarise(r, types, sizes) for r in seen]
    main = [s if "avg_client" in s else s["personal"] for s in scores]
    last, final = seen[-1], scores[-1]
    avg, pooled = ([s[k] for s in main] for k in ("avg_client", "avg_sample"))
    acc, f1 = (
        (last.test_acc, last.test_f1)
        if last.test_acc is not None
        else (last.personal_acc, last.personal_f1)
    )
    parameters = list(run.model.parameters())
    return {
        **main[-1],
        **({"personal": final["personal"]} if "personal" in final else {}),
        "tail": sum(pooled[-tail:]) / len(pooled[-tail:]),
        "tail_std": metrics.seed_spread(pooled[-tail:]),
        "best": max(avg),
        "best_round": seen[max(range(len(avg)), key=avg.__getitem__)].round,
        "rounds": [r.round for r in seen],
        "seconds": [round(sum(r.seconds for r in run.records[: s.round]), 3) for s in seen],
        "curves": {
            "avg_client": avg,
            "avg_sample": pooled,
            "worst_client": [s["worst_client"] for s in main],
            "train_loss_mean": [sum(r.train_loss.values()) / len(r.train_loss) for r in seen],
            "train_loss_max": [max(r.train_loss.values()) for r in seen],
        },
        "clients": {"type": types, "train": [len(c.train) for c in clients], "acc": acc, "f1": f1},
        "type_names": list(run.federation.type_names),
        "communication": metrics.communication(run.records),
        "parameters": {
            "trainable": sum(p.numel() for p in parameters if p.requires_grad),
            "all": sum(p.numel() for p in parameters),
        },
        "extra": _nest(last.extra),
    }


def global_losses(run: Simulation) -> list[float]:
    """The global model's mean loss on every client's training samples, whether it took part or
    not.
    """
    from fedbook.rounds import evaluate

    run.load(run.params)
    return evaluate(run.model, run.federation, None, "train", run.device, run.extra).loss


def local_tests(run: Simulation) -> dict[str, Any]:
    """GRP-FED's T_g, T_p, T_r, T_l in macro-F1, on everybody's test samples together and on each
    client's own.

    A method without a global model is tested globally by the ensemble of its clients' models (mean
    probabilities). `near` and `far` are the same four for two clients, those whose class mix is
    nearest to and farthest from that of all (total variation); their t_g is the global model's
    score on the client's own test samples. `effective_clients` is the mean over rounds.
    """
    import torch

    federation, classes, last = run.federation, run.federation.num_classes, run.records[-1]
    personal = run.method.personal
    everybody = torch.unique(torch.cat([c.test for c in federation.clients]))
    labels = federation.y[everybody].cpu()

    @torch.no_grad()
    def probabilities(model: Any) -> Any:
        model.eval()
        parts = []
        for index in everybody.split(512):
            extra = {k: v[index] for k, v in run.extra.items()}
            parts.append(
                model(run.device.images(federation.inputs(index)), **extra).float().softmax(1)
            )
        return torch.cat(parts)

    def score(p: Any) -> float:
        return metrics.macro_f1(labels, p.argmax(1).cpu(), classes)

    alone = personal is not None and bool(run.kept or personal.alone)
    together: Any = 0.0 if alone else probabilities(run.model)
    everywhere: list[float] = []
    for c in federation.clients if personal else ():
        p = probabilities(run.personal_model(c))
        everywhere.append(score(p))
        together = together + p if alone else together
    t_g = score(together)
    everywhere = everywhere or [t_g] * len(federation)
    own = (last.personal_f1 if personal else last.test_f1) or []
    tested = [i for i, p in enumerate(own) if math.isfinite(p)]
    best, worst = max(own[i] for i in tested), min(own[i] for i in tested)
    out: dict[str, Any] = {"t_g": t_g, "best_client": best, "worst_client": worst}
    out |= metrics.local_tests([own[i] for i in tested], [everywhere[i] for i in tested])
    out["effective_clients"] = fmean(metrics.effective_clients(r.weights) for r in run.records)

    counts = torch.stack([federation.class_counts(c) for c in federation.clients]).double().cpu()
    apart = (counts / counts.sum(1, keepdim=True) - counts.sum(0) / counts.sum()).abs().sum(1) / 2
    for name, pick in (("near", min), ("far", max)):
        i = pick(tested, key=lambda k: float(apart[k]))
        rows = torch.searchsorted(everybody, federation.clients[i].test).cpu()
        here = metrics.macro_f1(labels[rows], together.argmax(1).cpu()[rows], classes, "present")
        out[name] = {
            "client": federation.clients[i].id,
            "t_g": here,
            **metrics.local_tests([own[i]], [everywhere[i]]),
        }
    return out | {"class_counts": counts.int().tolist()}


def unseen_tests(run: Simulation, others: Federation) -> dict[str, Any]:
    """The final global model on clients that never took part."""
    from fedbook.rounds import evaluate

    scores = evaluate(run.model, others.to(run.federation.device), device=run.device)
    sizes = [len(c.test) for c in others.clients]
    return {
        "avg_sample": metrics.avg_sample(scores.acc, sizes),
        "acc": list(scores.acc),
        "clients": [c.id for c in others.clients],
    }


def type_tests(run: Simulation, per_type: int = 60, neighbours: int = 10) -> dict[str, Any]:
    """How well test images of one type lie together, as h(x) and as the frozen feature GC-Net makes
    it from.

    The purity is the mean share of the nearest neighbours (cosine) that are of the image's own
    type. The maps are t-SNE of the same images, both with the same settings.
    """
    import torch
    import torch.nn.functional as F
    from sklearn.manifold import TSNE

    from fedbook.methods.clustering import class_balanced_mean, cluster

    federation, chosen, types = run.federation, [], []
    for t in range(federation.num_types):
        pool = torch.unique(torch.cat([c.test for c in federation.clients if c.type == t]))
        order = (
            torch.randperm(len(pool), generator=torch.Generator().manual_seed(run.seed))[:per_type]
            .sort()
            .values
        )
        chosen.append(pool[order.to(pool.device)])
        types += [t] * len(chosen[-1])
    index, model = torch.cat(chosen), run.model.eval()
    x, extra = (
        run.device.images(federation.inputs(index)),
        {k: v[index] for k, v in run.extra.items()},
    )
    label = torch.tensor(types)
    out: dict[str, Any] = {"type": types}
    with torch.no_grad():
        vectors = {"h": model.h(x, **extra), "frozen": extra.get("cls", model.frozen_cls(x))}  # type: ignore[operator]
    frozen = run.extra.get("cls")
    every = {} if frozen is None else {"frozen": frozen, "h": model.gc_net(frozen).detach()}  # type: ignore[operator]
    for name, v in every.items():  # could the server tell types from clients' mean vectors?
        of = [
            class_balanced_mean(v[c.train], federation.y[c.train], federation.num_classes)
            for c in federation.clients
        ]
        groups, _ = cluster(torch.stack(of), federation.num_types)
        found = metrics.clustering_accuracy(groups, [c.type for c in federation.clients])
        out[f"clustering_accuracy_{name}"] = float(found)
    for name, v in vectors.items():
        unit = F.normalize(v.float().cpu(), dim=1)
        near = (unit @ unit.T).fill_diagonal_(-2).topk(neighbours).indices
        out[f"knn_purity_{name}"] = float((label[near] == label[:, None]).float().mean())
        out[f"map_{name}"] = (
            TSNE(init="pca", perplexity=30, metric="cosine", random_state=0)
            .fit_transform(unit)
            .round(2)
        )
    return out


def versions() -> dict[str, Any]:
    """What the numbers depend on besides the configuration."""
    import platform

    import numpy
    import torch

    from fedbook import __version__

    found = {
        "fedbook": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    return found | {
        "numpy": numpy.__version__,
        "system": platform.platform(),
        "threads": torch.get_num_threads(),
    }


def _options(part: Options) -> Options:
    return {k: v for k, v in part.items() if k != "name"}


def _within(old: Any, new: Any) -> bool:
    """Whether all that `old` says is still so in `new`, which may say more."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(k in new and _within(v, new[k]) for k, v in old.items())
    return old == new or (
        isinstance(old, list) and isinstance(new, (list, tuple)) and old == list(new)
    )


def _nest(extra: dict[str, Any]) -> dict[str, Any]:
    """{"weigh.q": 1} as {"weigh": {"q": 1}}."""
    out: dict[str, Any] = {}
    for name, value in extra.items():
        stage, _, key = name.partition(".")
        out.setdefault(stage, {})[key or "value"] = value
    return out


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
