"""The one noun everything takes: a federation is tensors held once, and clients that are index
arrays into them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedbook.errors import FedbookError, whole
from fedbook.files import UNREADABLE, write_atomically

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from fedbook.data import Dataset


FORMAT = 1  # of files that `save` writes; those without a number are of the first

UNNAMED = 100_000  # classes or types that may go without names


@dataclass(frozen=True, slots=True)
class Client:
    """One participant: where its samples lie in the federation's tensors, and which type (domain)
    it belongs to. The index arrays of many clients may be views of one.
    """

    id: int
    type: int
    train: Tensor
    test: Tensor
    name: str = ""

    def __repr__(self) -> str:
        who = f"{self.id} {self.name!r}" if self.name else f"{self.id}"
        return (
            f"Client({who}: type {self.type}, {len(self.train):,} training and "
            f"{len(self.test):,} test samples)"
        )

    def _repr_html_(self) -> str:
        from fedbook.html import table

        row = [self.id, self.name, self.type, len(self.train), len(self.test)]
        return table(repr(self), ["client", "name", "type", "training", "test"], [row])


@dataclass(frozen=True)
class Federation:
    """Samples held once (`x`, `y`), clients as indices into them, and where all of it came from."""

    x: Tensor
    y: Tensor
    clients: tuple[Client, ...]
    class_names: tuple[str, ...]
    type_names: tuple[str, ...]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ids = [c.id for c in self.clients]
        if not ids:
            raise FedbookError(
                "a federation needs at least one client, none came", "check the partition's options"
            )
        if len(set(ids)) != len(ids):
            raise FedbookError(
                f"client ids must be unique, got {ids}", "number the clients 0, 1, 2, ..."
            )
        if len(self.x) != len(self.y):
            raise FedbookError(
                f"x and y must have one entry per sample, got {len(self.x)} and {len(self.y)}",
                "pass labels for exactly the given samples",
            )
        for moments in (self.mean, self.std):
            if moments is not None and len(moments) != self.x.shape[1]:
                raise FedbookError(
                    f"mean and std need one number per channel ({self.x.shape[1]}), got {moments}",
                    "leave them out for plain [0, 1] scaling",
                )
        if self.y.device.type == "meta" or not len(self.y):  # shapes alone, or a roster
            return
        if self.y.dtype != torch.int64 or self.y.ndim != 1:
            raise FedbookError(
                f"labels must be a 1-d int64 tensor, got {tuple(self.y.shape)} {self.y.dtype}",
                "convert with y.long()",
            )
        if len(self.y) and not 0 <= int(self.y.min()) <= int(self.y.max()) < len(self.class_names):
            raise FedbookError(
                f"labels must lie in 0..{len(self.class_names) - 1} ({len(self.class_names)} "
                "class names), "
                f"got {int(self.y.min())}..{int(self.y.max())}",
                "give one class name per label",
            )
        for c in self.clients:
            if not len(c.train):
                raise FedbookError(
                    f"client {c.id} has no training sample", "lower the number of clients"
                )
            if not 0 <= c.type < len(self.type_names):
                raise FedbookError(
                    f"client {c.id} has type {c.type}, there are {len(self.type_names)} types",
                    "name every type",
                )
        every = torch.cat(list(self._index_arrays().values()))
        if int(every.min()) < 0 or int(every.max()) >= len(self.y):
            for c in self.clients:
                both = torch.cat([c.train, c.test])
                if int(both.min()) < 0 or int(both.max()) >= len(self.y):
                    raise FedbookError(
                        f"client {c.id} points at sample {int(both.max())} of {len(self.y)}",
                        "indices are global, from 0",
                    )

    def _index_arrays(self) -> dict[int, Tensor]:
        """The clients' index arrays by their identity; shared test sets come once."""
        return {id(t): t for c in self.clients for t in (c.train, c.test)}

    # -- what it is --------------------------------------------------------------------------------
    def __len__(self) -> int:
        return len(self.clients)

    def __repr__(self) -> str:
        where = self.provenance.get("dataset", "arrays")
        return (
            f"Federation({where}: {len(self)} clients of {self.num_types} types, "
            f"{self.num_classes} classes, "
            f"{sum(len(c.train) for c in self.clients):,} training samples of shape "
            f"{self.input_shape})"
        )

    def _repr_html_(self) -> str:
        """One row per type, of the first twenty."""
        from fedbook.html import table

        rows = []
        for t, name in enumerate(self.type_names[:20]):
            own = [c for c in self.clients if c.type == t]
            sizes = sorted(len(c.train) for c in own)
            ends = dict.fromkeys(f"{n:,}" for n in sizes[:1] + sizes[-1:])
            rows.append([name, len(own), f"{sum(sizes):,}", " to ".join(ends)])
        if self.num_types > len(rows):
            rows.append([f"and {self.num_types - len(rows)} more", "", "", ""])
        header = ["type", "clients", "training samples", "each client"]
        return table(repr(self), header, rows)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def num_types(self) -> int:
        return len(self.type_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    @property
    def device(self) -> torch.device:
        return self.x.device

    @cached_property
    def _position(self) -> dict[int, int]:
        return {c.id: i for i, c in enumerate(self.clients)}

    def client(self, id: int) -> Client:
        """The client of that id."""
        if id not in self._position:
            raise FedbookError(
                f"no client {id} in this federation", f"ids are {sorted(self._position)}"
            )
        return self.clients[self._position[id]]

    def class_counts(self, client: Client) -> Tensor:
        """How many training samples of each class the client holds."""
        return torch.bincount(self.y[client.train], minlength=self.num_classes)

    # -- what a model sees -------------------------------------------------------------------------
    def inputs(self, index: Tensor) -> Tensor:
        """The samples at `index`: images as floats in [0, 1], half precision as float32,
        everything else as it is.

        A model normalises for itself: a pretrained network as it was trained, one from scratch by
        `mean` and `std`.
        """
        x = self.x[index]
        if x.dtype == torch.uint8:
            return x.float().div_(255)
        return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x

    def to(self, device: str | torch.device) -> Federation:
        """The same federation with its tensors on another device."""
        if torch.device(device) == self.device == self.clients[0].train.device:
            return self
        arrays = self._index_arrays()
        there = dict(zip(arrays, views(list(arrays.values()), device)))
        moved = []
        for c in self.clients:
            train = there[id(c.train)]
            test = there[id(c.test)]
            moved.append(dataclasses.replace(c, train=train, test=test))
        clients = tuple(moved)
        return dataclasses.replace(self, x=self.x.to(device), y=self.y.to(device), clients=clients)

    # -- other federations from this one -----------------------------------------------------------
    def only(self, id: int) -> Federation:
        """One client with a copy of its own samples, and nothing of anybody else's."""
        client = self.client(id)
        own = torch.cat([client.train, client.test]).unique()  # sorted: their order stays
        parts = {n: torch.searchsorted(own, getattr(client, n)) for n in ("train", "test")}
        alone = (dataclasses.replace(client, train=parts["train"], test=parts["test"]),)
        return dataclasses.replace(self, x=self.x[own], y=self.y[own], clients=alone)

    def roster(self) -> Federation:
        """Who there is without what they have: names, types and shapes, no sample."""
        clients = []
        for c in self.clients:
            clients.append(dataclasses.replace(c, train=c.train[:0], test=c.test[:0]))
        return dataclasses.replace(self, x=self.x[:0], y=self.y[:0], clients=tuple(clients))

    def split_clients(
        self, unseen: int | float | Sequence[int], seed: int = 0
    ) -> tuple[Federation, Federation]:
        """(those that train, those held out): `unseen` is a number of clients, a fraction, or their
        ids.
        """
        ids = [c.id for c in self.clients]
        if isinstance(unseen, (int, float)):
            count = unseen if isinstance(unseen, int) else round(unseen * len(ids))
            if not 0 < count < len(ids):
                raise FedbookError(
                    f"unseen must leave clients on both sides of {len(ids)}, got {unseen!r}",
                    "try unseen=0.2",
                )
            held = set(np.random.default_rng(seed).permutation(ids)[:count].tolist())
        else:
            held = set(unseen)
            if not held < set(ids) or not held:
                raise FedbookError(
                    f"unseen ids {sorted(held)} are not a proper part of {ids}", "pass existing ids"
                )
        seen = tuple(c for c in self.clients if c.id not in held)
        return (
            dataclasses.replace(self, clients=seen),
            dataclasses.replace(self, clients=tuple(c for c in self.clients if c.id in held)),
        )

    def validation(self, fraction: float = 0.2, seed: int = 0, last: bool = False) -> Federation:
        """For choosing hyper-parameters: every client is tested on samples held out of its own
        training set.

        They are drawn at random, or with `last` are the last ones, as a recording has to be
        divided.
        """
        if not 0 < fraction < 1:
            raise FedbookError(
                f"the validation fraction must lie between 0 and 1, got {fraction}", "try 0.2"
            )
        clients = []
        for c in self.clients:
            if last:
                order = torch.arange(len(c.train)).flip(0)
            else:
                order = torch.from_numpy(
                    np.random.default_rng([seed, c.id]).permutation(len(c.train))
                )
            held = min(max(1, round(fraction * len(order))), len(order) - 1)
            clients.append(
                dataclasses.replace(c, train=c.train[order[held:]], test=c.train[order[:held]])
            )
        how = {"fraction": fraction} | ({"last": True} if last else {"seed": seed})
        note = {**self.provenance, "validation": how}
        return dataclasses.replace(self, clients=tuple(clients), provenance=note)

    # -- looking at it -----------------------------------------------------------------------------
    def summary(self) -> pd.DataFrame:
        """One row per client: its type, sizes, and how its classes are spread."""
        import pandas as pd

        rows = []
        for c in self.clients:
            counts = self.class_counts(c)
            rows.append(
                {
                    "client": c.id,
                    "type": self.type_names[c.type],
                    "train": len(c.train),
                    "test": len(c.test),
                    "classes": int((counts > 0).sum()),
                    "largest class": self.class_names[int(counts.argmax())],
                    "its share": round(float(counts.max() / counts.sum()), 3),
                }
            )
        return pd.DataFrame(rows).set_index("client")

    def plot(self, ax: Axes | None = None) -> Axes:
        """Clients x classes: a dot's area is the number of training samples, its colour the
        client's type.
        """
        from fedbook import plots

        return plots.partition(self, ax=ax)

    # -- keeping it --------------------------------------------------------------------------------
    @cached_property
    def data_fingerprint(self) -> str:
        """A hash of the samples alone: what a cache of per-sample features is keyed by."""
        digest = hashlib.sha256(
            repr((self.x.dtype, tuple(self.x.shape), self.mean, self.std)).encode()
        )
        digest.update(self.x.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of samples, labels and who holds them."""
        digest = hashlib.sha256(self.data_fingerprint.encode() + self.y.cpu().numpy().tobytes())
        for c in self.clients:
            digest.update(repr((c.id, c.type, len(c.train), len(c.test))).encode())
            digest.update(torch.cat([c.train, c.test]).cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    def save(self, path: str | Path) -> Path:
        """Write one safetensors file (no pickle); it appears whole or not at all."""
        from safetensors.torch import save_file

        path = Path(path)
        tensors = {"x": self.x.cpu().contiguous(), "y": self.y.cpu().contiguous()}
        for i, c in enumerate(self.clients):
            tensors[f"train.{i}"] = c.train.cpu().clone()
            tensors[f"test.{i}"] = c.test.cpu().clone()
        header = {
            "format": FORMAT,
            "clients": [[c.id, c.type, c.name] for c in self.clients],
            "class_names": self.class_names,
            "type_names": self.type_names,
            "mean": self.mean,
            "std": self.std,
            "provenance": self.provenance,
        }
        with write_atomically(path) as part:
            save_file(tensors, part, metadata={"fedbook": json.dumps(header)})
        return path

    @classmethod
    def load(cls, path: str | Path) -> Federation:
        """Read what `save` wrote."""
        from safetensors import SafetensorError, safe_open

        path = Path(path)
        if not path.is_file():
            raise FedbookError(f"no federation file at {path}", "write one with Federation.save")
        try:
            with safe_open(path, "pt") as f:
                header = json.loads(f.metadata()["fedbook"])
                if header.get("format", 1) != FORMAT:
                    raise ValueError(f"format {header['format']}, this fedbook reads {FORMAT}")
                clients = tuple(
                    Client(
                        id,
                        type_,
                        train=f.get_tensor(f"train.{i}"),
                        test=f.get_tensor(f"test.{i}"),
                        name=name,
                    )
                    for i, (id, type_, name) in enumerate(header["clients"])
                )
                x = f.get_tensor("x")
                y = f.get_tensor("y")
            return cls(
                x=x,
                y=y,
                clients=clients,
                class_names=tuple(header["class_names"]),
                type_names=tuple(header["type_names"]),
                mean=None if header["mean"] is None else tuple(header["mean"]),
                std=None if header["std"] is None else tuple(header["std"]),
                provenance=header["provenance"],
            )
        except UNREADABLE + (SafetensorError,) as error:
            raise FedbookError(
                f"{path} is not a whole federation file: {error}", "save it again"
            ) from None

    # -- building one ------------------------------------------------------------------------------
    @classmethod
    def from_dataset(
        cls,
        dataset: Dataset,
        train: Sequence[Any],
        test: str | Sequence[Any] = "domain",
        provenance: dict[str, Any] | None = None,
        seed: int = 0,
        limit: int | None = None,
    ) -> Federation:
        """Clients from index arrays into a dataset; a client's type is the domain most of its
        samples come from.

        test="domain": every client is tested on all test samples of its domain; "split": on a slice
        of them; "match": on test samples with its own class mix, a disjoint set for each client;
        "unused" and "unused_match": the same as the first (up to 500) and the third, but on
        training samples that no client holds, for choosing hyper-parameters without a look at any
        test sample; or one index array per client. `limit`: of each class at most so many.
        """
        from fedbook.data import partition

        parts = views(train)
        for i, p in enumerate(parts):
            if not len(p):
                raise FedbookError(
                    f"client {i} has no training sample", "lower the number of clients"
                )
        types = most_frequent(dataset.domain, parts)
        rows: Any = dataset.test
        if isinstance(test, str) and test.startswith("unused"):
            left = np.setdiff1d(
                np.asarray(dataset.train), np.concatenate([np.asarray(p) for p in parts])
            )
            rows = np.random.default_rng(seed).permutation(left)
        if limit is not None:
            rows = rows[partition.at_most(dataset.y[rows], limit, seed)]
        found: list[Any] = []
        if isinstance(test, (list, tuple, np.ndarray)):
            found = list(test)
        elif test == "domain":
            found = partition.test_by_domain(dataset.domain, types, "shared", within=rows)
        elif test == "split":
            found = partition.test_by_domain(dataset.domain, types, "split", within=rows)
        elif test == "unused":
            found = [
                np.sort(t[:500])
                for t in partition.test_by_domain(dataset.domain, types, "shared", within=rows)
            ]
        elif test in ("match", "unused_match"):
            found = [
                rows[i]
                for i in partition.match([dataset.y[p] for p in parts], dataset.y[rows], seed)
            ]
        else:
            known = "'domain', 'split', 'match', 'unused', 'unused_match' or index arrays"
            raise FedbookError(f"test must be {known}, got {test!r}", "try 'match'")
        if len(found) != len(parts):
            raise FedbookError(
                f"{len(parts)} clients but {len(found)} test sets came", "give one per client"
            )
        distinct = {id(t): t for t in found}  # clients may share one
        try:
            held = dict(zip(distinct, views(list(distinct.values()))))
        except (TypeError, ValueError, RuntimeError) as error:
            raise FedbookError(
                f"a test set is no index array: {error}", "give one per client"
            ) from None
        chosen = [held[id(t)] for t in found]
        clients = tuple(Client(i, t, p, q) for i, (t, p, q) in enumerate(zip(types, parts, chosen)))
        return cls(
            dataset.x,
            dataset.y,
            clients,
            tuple(dataset.class_names),
            tuple(dataset.domain_names),
            dataset.mean,
            dataset.std,
            {
                "dataset": dataset.name,
                "test": test if isinstance(test, str) else "given",
                **(provenance or {}),
            },
        )

    @classmethod
    def from_arrays(
        cls,
        clients: Sequence[dict[str, Any]],
        class_names: Sequence[str] | None = None,
        type_names: Sequence[str] | None = None,
    ) -> Federation:
        """From one dict per client: `train=(x, y)`, optionally `test=(x, y)`, `type=int`,
        `name=str`.
        """
        xs: list[Tensor] = []
        ys: list[Tensor] = []
        built: list[Client] = []
        start = 0
        for i, c in enumerate(clients):
            index = []
            for part in ("train", "test"):
                x, y = _samples(c.get(part, ((), ())), f"client {i}, {part}")
                if len(x) != len(y):
                    raise FedbookError(
                        f"client {i}: {len(x)} {part} samples but {len(y)} labels", "one label each"
                    )
                if len(x):
                    if xs and x.shape[1:] != xs[0].shape[1:]:
                        raise FedbookError(
                            f"client {i}: samples of shape {tuple(x.shape[1:])}, expected "
                            f"{tuple(xs[0].shape[1:])}",
                            "bring all clients to one shape",
                        )
                    xs.append(x)
                    ys.append(y)
                index.append(torch.arange(start, start + len(x)))
                start += len(x)
            built.append(
                Client(
                    i,
                    int(c.get("type", 0)),
                    train=index[0],
                    test=index[1],
                    name=str(c.get("name", "")),
                )
            )
        if not xs:
            raise FedbookError("no samples came", "give at least one client with train=(x, y)")
        y = torch.cat(ys)
        most = max(int(y.max()), max(c.type for c in built))
        if most >= UNNAMED and not (class_names and type_names):
            raise FedbookError(
                f"label or type {most:,} without names", "number classes and types from 0"
            )
        names = tuple(class_names or map(str, range(int(y.max()) + 1)))
        types = tuple(type_names or (f"type {t}" for t in range(max(c.type for c in built) + 1)))
        return cls(torch.cat(xs), y, tuple(built), names, types)

    @classmethod
    def from_npz(cls, path: str | Path, how: str = "by_domain", **options: Any) -> Federation:
        """From a pack (`x, y, split[, domain, ...]`), dealt to clients by a function of
        `fedbook.data.partition`.
        """
        from fedbook.data import from_npz

        return federate(from_npz(path), how, **options)

    @classmethod
    def from_folders(
        cls, root: str | Path, how: str = "by_domain", size: int = 32, **options: Any
    ) -> Federation:
        """From image folders `root/domain/class/*.png`."""
        from fedbook.data import from_folders

        return federate(from_folders(root, size=size), how, **options)


def views(arrays: Sequence[Any], device: str | torch.device = "cpu") -> tuple[Tensor, ...]:
    """Index arrays laid one after another in a single tensor, and each as a view of it.

    A hundred thousand small tensors cost more than what they hold; views of one are cheap.
    """
    if not arrays:
        return ()
    if isinstance(arrays[0], Tensor):
        flat = torch.cat(list(arrays))
    else:
        flat = torch.as_tensor(np.concatenate([np.asarray(a) for a in arrays]))
    return flat.to(device, torch.int64).split([len(a) for a in arrays])


def most_frequent(values: Tensor, parts: Sequence[Tensor]) -> list[int]:
    """The value that most rows of each part have; of several the smallest."""
    owner = np.repeat(np.arange(len(parts)), [len(p) for p in parts])
    kinds = int(values.max()) + 1
    pairs = owner * kinds + values[torch.cat(list(parts))].numpy()
    found, count = np.unique(pairs, return_counts=True)
    best = np.lexsort((found, -count, found // kinds))
    first = np.searchsorted(found[best] // kinds, np.arange(len(parts)))
    return (found[best][first] % kinds).tolist()


def _samples(pair: Any, whose: str) -> tuple[Tensor, Tensor]:
    """Samples and labels as tensors: real numbers, and whole ones."""
    try:
        x, y = (v if isinstance(v, Tensor) else torch.as_tensor(np.asarray(v)) for v in pair)
    except (TypeError, ValueError):
        raise FedbookError(
            f"{whose} samples and labels must be two arrays of numbers",
            "give train=(x, y) with one shape for all samples",
        ) from None
    if x.is_complex() or y.is_complex() or not bool((y == y.long()).all()):
        raise FedbookError(
            f"{whose} labels must be whole numbers, got {y.dtype} values such as "
            f"{y[y != y.long()][:1].tolist()}",
            "number the classes from 0",
        )
    return x.float() if x.dtype == torch.float64 else x, y.long()


def _plain(value: Any) -> Any:
    """What JSON does not know: arrays as lists, the rest as it is written."""
    try:
        return list(value)
    except TypeError:
        return repr(value)


def federate(
    dataset: Dataset,
    how: str = "by_domain",
    test: str | None = None,
    seed: int = 0,
    limit: Sequence[int] | None = None,
    **options: Any,
) -> Federation:
    """A federation of a dataset's training samples, by a function of `fedbook.data.partition` named
    `how`.

        federate(load("digits5_offline"), "by_domain", dif=10)
        federate(load("cifar10"), "dirichlet", clients=100, alpha=0.1)

    Unless told otherwise a client is tested on its domain's test set (`by_domain`) or on its own
    class mix. `limit` is how many training and test samples of each class are used at most, drawn
    at random: `limit=(100, 20)`. Where the clients hold all training samples, `test="held_out"`
    takes the last fifth of each one's for validation.
    """
    from fedbook.data import partition

    whole("seed", seed, 0)
    note = {
        "partition": {"name": how, "seed": seed, **json.loads(json.dumps(options, default=_plain))}
    }
    rows = dataset.train
    of_test = None
    if limit is not None:
        if not isinstance(limit, (tuple, list)) or len(limit) != 2:
            raise FedbookError(
                f"limit has training and test samples per class, got {limit!r}", "try (100, 20)"
            )
        note["partition"]["limit"] = list(limit)
        rows = rows[partition.at_most(dataset.y[rows], limit[0], seed)]
        of_test = limit[1]
    parts = partition.split(dataset, rows, how, seed=seed, **options)
    test = test or ("domain" if how == "by_domain" else "match")
    if test == "held_out":
        none = [np.empty(0, np.int64)] * len(parts)
        return Federation.from_dataset(
            dataset, parts, test=none, provenance={**note, "test": test}, seed=seed
        ).validation(last=True)
    return Federation.from_dataset(
        dataset, parts, test=test, provenance=note, seed=seed, limit=of_test
    )
