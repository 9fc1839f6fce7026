"""Client indices: one vector per client that tells how its data differ from others' (Client2Vec,
section 3).

    beta_i^f = mean_j u_ij,    beta_i^l = mean_j L_ij,    beta_i = [beta_i^f; beta_i^l]          (a)
    S(i, C)  = (1 / 2 N_C) sum_{j in C} N_j (cos(beta_i^f, beta_j^f) + cos(beta_i^l, beta_j^l))  (b)

    index = client_index(federation)         # GLOBAL: the server trains on 128 pairs of each client
    index = client_index(federation, strategy="federated")  # FedAvg; pairs stay at home
    index = client_index(federation, kind="feature_average")   # a baseline of Table 2, no network

u comes from `models.dsa_ign`, L from the text encoder of `models.clip`; embeddings are computed
once per sample and kept. An index depends on the federation and on the `IndexSpec`, and on no model
that is trained later; it is made once and kept in memory, and in the folder FEDBOOK_CACHE if that
is set.

| symbol | here | default | where |
|---|---|---|---|
| strategy | `strategy` | "global", or "federated" | section 3.2 |
| pairs uploaded (GLOBAL) | `samples` | 128 | section 3.2 |
| E | `epochs` | 500 | Table 6 |
| participation, local epochs | `participation`, `local_epochs` | 0.1, 10 | section 3.2 |

Differs from the paper: FEDERATED training has no stated length; here E epochs are E / 10 rounds of
10 local epochs. Its batches are one client's, those of GLOBAL mix clients. `limit` takes at most so
many samples of each client, where embedding all of them would take long; the paper has no limit.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation
from fedbook.methods.fedavg import fedavg
from fedbook.models.cache import CACHE
from fedbook.models.dsa_ign import DSAIGN, losses, sample_index, train
from fedbook.rounds import Batch, Local, Objective, simulate
from fedbook.rounds.params import count_bytes
from fedbook.rounds.stages import State

KINDS = ("client2vec", "feature_average", "class_prototypes")
Embeddings = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class IndexSpec:
    """Everything that decides an index besides the data."""

    kind: str = "client2vec"
    strategy: str = "global"
    epochs: int = 500
    samples: int = 128
    limit: int | None = None
    batch_size: int = 128
    lr: float = 1e-3
    omit: tuple[str, ...] = ()
    orth: str = "mean"
    projection: str = "linear"
    ffn: int = 2048
    participation: float = 0.1
    local_epochs: int = 10
    encoder: str = "offline"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise FedbookError(f"unknown kind of index {self.kind!r}", f"known: {', '.join(KINDS)}")
        if self.strategy not in ("global", "federated"):
            raise FedbookError(
                f"strategy must be 'global' or 'federated', got {self.strategy!r}", "pick one"
            )
        for name in ("epochs", "samples", "batch_size", "local_epochs"):
            if getattr(self, name) < 1:
                raise FedbookError(
                    f"{name} must be at least 1, got {getattr(self, name)}", f"try {name}=10"
                )


class ClientIndex:
    """beta of every client, in the federation's order; `label` is None where an index is a single
    vector.
    """

    def __init__(
        self,
        feature: Tensor,
        label: Tensor | None,
        sizes: Sequence[int],
        ids: Sequence[int],
        info: dict[str, Any] | None = None,
    ) -> None:
        if not len(feature) == len(sizes) == len(ids) or (
            label is not None and len(label) != len(ids)
        ):
            raise FedbookError(
                f"{len(ids)} clients but {len(feature)} indices", "give one row per client"
            )
        self.feature = feature.detach().cpu()
        self.label = None if label is None else label.detach().cpu()
        self.sizes = torch.tensor(sizes, dtype=torch.float64)
        self.ids = list(ids)
        self.info = {"seconds": 0.0, "bytes_up": 0, "bytes_down": 0, **(info or {})}

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        tensors = (self.feature, self.feature if self.label is None else self.label, self.sizes)
        digest = hashlib.sha256(
            b"".join(t.contiguous().numpy().tobytes() for t in tensors)
        ).hexdigest()[:16]
        return f"ClientIndex({len(self)} clients, {digest})"

    def cosines(self, part: str = "both") -> Tensor:
        """[M, M], in float64: of the feature indices, the label indices, or the mean of the two."""
        parts = {"feature": self.feature, "label": self.label}
        if part not in ("both", *parts) or (part == "label" and self.label is None):
            raise FedbookError(f"this index has no part {part!r}", "use 'both' or 'feature'")
        chosen = [t for n, t in parts.items() if part in (n, "both") and t is not None]
        unit = [F.normalize(t.double(), dim=1) for t in chosen]
        return torch.stack([u @ u.T for u in unit]).mean(0).clamp(-1, 1)

    def quality(self, types: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
        """How well feature indices tell types apart: mean cosines within and across, and
        1-nearest-neighbour accuracy.

        `type_similarity` holds the mean cosine of each pair of types (Figure 9).
        """
        cos = self.cosines("feature")
        t = torch.tensor(list(types))
        same = t[:, None] == t
        other = ~torch.eye(len(t), dtype=torch.bool)
        nearest = cos.masked_fill(~other, -2).argmax(1)
        pairs = {
            a: {b: cos[(t[:, None] == i) & (t == j) & other] for j, b in enumerate(names)}
            for i, a in enumerate(names)
        }
        return {
            "within_similarity": _mean(cos[same & other]),
            "across_similarity": _mean(cos[~same]),
            "nearest_domain_accuracy": float((t[nearest] == t).double().mean()),
            "type_similarity": {
                a: {b: _mean(v) for b, v in row.items()} for a, row in pairs.items()
            },
        }

    def save(self, path: Path) -> None:
        """One safetensors file; it appears whole or not at all."""
        from safetensors.torch import save

        from fedbook.files import write_atomically

        tensors = {"feature": self.feature.contiguous()}
        if self.label is not None:
            tensors["label"] = self.label.contiguous()
        header = {"sizes": [int(n) for n in self.sizes], "ids": self.ids, "info": self.info}
        with write_atomically(path) as part:
            part.write_bytes(save(tensors, {"fedbook": json.dumps(header)}))

    @classmethod
    def load(cls, path: Path) -> ClientIndex:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "pt") as f:
                header = json.loads(f.metadata()["fedbook"])
                label = f.get_tensor("label") if "label" in f.keys() else None
                return cls(
                    f.get_tensor("feature"), label, header["sizes"], header["ids"], header["info"]
                )
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise FedbookError(
                f"{path} is not a client index: {error}", "delete it, and it is made again"
            ) from None


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if len(values) else None


def to_group(cosines: Tensor, sizes: Tensor, group: Sequence[int]) -> Tensor:
    """S(i, C) of every client i, for C the rows `group`; 0 for nobody (b)."""
    if not len(group):
        return torch.zeros(len(cosines), dtype=torch.float64)
    n = sizes[list(group)]
    return cosines[:, list(group)] @ (n / n.sum())


# -- embeddings ------------------------------------------------------------------------------------
def embed(federation: Federation, encoder: str = "offline") -> tuple[Tensor, Tensor]:
    """(D [samples, 512], L [classes, 512]) of images, or of texts whose next character is asked
    for.
    """
    from fedbook.models.clip import embed_federation, image_text_encoder

    if federation.x.is_floating_point() or federation.x.dtype == torch.uint8:
        return embed_federation(federation, encoder)
    from fedbook.models.sequence import embed_text_federation

    return embed_text_federation(federation, image_text_encoder(encoder))


def embedding_seconds(federation: Federation, encoder: str = "offline", sample: int = 32) -> float:
    """How long embedding everybody's training samples takes, timed on a few of them: they may be
    kept from before.
    """
    from fedbook.models.clip import image_text_encoder
    from fedbook.models.sequence import text_sentence

    model = image_text_encoder(encoder)
    rows = torch.cat([c.train for c in federation.clients])
    pictures = federation.x.is_floating_point() or federation.x.dtype == torch.uint8

    def encode(x: Tensor) -> float:
        began = time.perf_counter()
        model.images(x) if pictures else model.sentences(
            [text_sentence(row, federation.class_names) for row in x]
        )
        return (time.perf_counter() - began) / len(x)

    encode(federation.x[rows[:1]])  # the first call also loads things
    return encode(federation.x[rows[:sample]]) * len(rows)


def _embedded(
    federation: Federation, spec: IndexSpec, embeddings: Embeddings | None = None
) -> tuple[Federation, Tensor]:
    """The federation of embeddings, with at most `limit` samples of each client and no test worth
    the name; and L.
    """
    clients = []
    for c in federation.clients:
        rng = torch.Generator().manual_seed(spec.seed * 1_000_003 + c.id)
        rows = c.train
        if spec.limit is not None and len(rows) > spec.limit:
            chosen = torch.randperm(len(rows), generator=rng)[: spec.limit].sort().values
            rows = rows[chosen.to(rows.device)]
        clients.append(dataclasses.replace(c, train=rows, test=rows[:1]))
    small = dataclasses.replace(federation, clients=tuple(clients))
    D, L = embed(small, spec.encoder) if embeddings is None else embeddings
    return dataclasses.replace(small, x=D, mean=None, std=None), L


# -- the two ways of training ----------------------------------------------------------------------
class Decomposer(nn.Module):
    """DSA-IGN as a model of rounds: z is the feature, its cosines with the label sentences are the
    logits.
    """

    labels: Tensor

    def __init__(self, net: DSAIGN, labels: Tensor) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("labels", labels, persistent=False)

    def embed(self, x: Tensor) -> Tensor:
        return self.net.decompose(x)[0]

    def head(self, z: Tensor) -> Tensor:
        return F.normalize(z, dim=1) @ F.normalize(self.labels, dim=1).T

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x))


@dataclass(frozen=True)
class Decomposition(Objective):
    omit: tuple[str, ...] = ()
    orth: str = "mean"

    def __call__(self, local: Local, batch: Batch, sent: State, memory: State) -> Tensor:
        model: Any = local.model
        terms = losses(model.net, batch.x, model.labels[batch.y], self.omit, self.orth)
        return torch.stack(list(terms.values())).sum()


def _train_global(net: DSAIGN, data: Federation, L: Tensor, spec: IndexSpec) -> dict[str, Any]:
    """Each client uploads one batch of pairs, the server trains and sends the network to all."""
    parts = []
    for c in data.clients:
        rng = torch.Generator().manual_seed(spec.seed * 1_000_003 + c.id + 1)
        parts.append(
            c.train[torch.randperm(len(c.train), generator=rng)[: spec.samples].to(c.train.device)]
        )
    rows = torch.cat(parts)
    D = data.x[rows]
    history = train(
        net,
        D,
        L[data.y[rows]],
        spec.epochs,
        spec.batch_size,
        spec.lr,
        spec.seed,
        spec.omit,
        spec.orth,
    )
    return {"history": history, "bytes_up": 2 * count_bytes(D)}


def _train_federated(net: DSAIGN, data: Federation, L: Tensor, spec: IndexSpec) -> dict[str, Any]:
    """FedAvg, by the same rounds as everything else."""
    local = {
        "epochs": min(spec.local_epochs, spec.epochs),
        "batch_size": spec.batch_size,
        "lr": spec.lr,
    }
    method = fedavg(spec.participation, optimizer="adamw", **local).replace(
        name="dsa_ign", objective=(Decomposition(spec.omit, spec.orth),)
    )
    rounds = max(1, spec.epochs // spec.local_epochs)
    run = simulate(
        method,
        data,
        Decomposer(net, L),
        rounds,
        spec.seed,
        data.device,
        evaluate_every=rounds,
        quiet=True,
    ).run()
    net.load_state_dict(run.model.net.state_dict())  # type: ignore[union-attr]
    mean_loss = [{"loss": sum(r.train_loss.values()) / len(r.train_loss)} for r in run.records]
    up, down = (sum(getattr(r, name) for r in run.records) for name in ("bytes_up", "bytes_down"))
    return {"history": mean_loss, "bytes_up": up, "bytes_down": down}


# -- the index -------------------------------------------------------------------------------------
_KEPT: dict[tuple[str, tuple[str, ...], IndexSpec], ClientIndex] = {}


def client_index(
    federation: Federation,
    spec: IndexSpec | None = None,
    embeddings: Embeddings | None = None,
    **options: Any,
) -> ClientIndex:
    """The index of every client; `options` are those of `IndexSpec`, `embeddings` (D, L) may be
    your own.
    """
    spec = IndexSpec(**options) if spec is None else spec
    if not len(federation.x):
        raise FedbookError(
            "an index is made from samples, and this federation has none",
            "make it before with client_index(federation), and pass it as index=...",
        )
    if federation.x.is_meta:  # nothing to be learnt from shapes alone
        nothing = torch.zeros(len(federation), 512)
        return ClientIndex(
            nothing, nothing, [len(c.train) for c in federation.clients], _ids(federation)
        )
    if embeddings is not None:
        return _make(federation, spec, embeddings)
    key = (federation.fingerprint, federation.class_names, spec)
    if key not in _KEPT:
        path = _file(key)
        found = (
            ClientIndex.load(path)
            if path is not None and path.is_file()
            else _make(federation, spec)
        )
        if path is not None and not path.is_file():
            found.save(path)
        while len(_KEPT) >= 8:
            del _KEPT[next(iter(_KEPT))]
        _KEPT[key] = found
    return _KEPT[key]


def _ids(federation: Federation) -> list[int]:
    return [c.id for c in federation.clients]


def _file(key: tuple[str, tuple[str, ...], IndexSpec]) -> Path | None:
    """Where an index is kept, if a folder for it was named."""
    from fedbook.models.clip import image_text_encoder

    if CACHE.directory is None:
        return None
    digest = hashlib.sha256(
        repr((key, image_text_encoder(key[2].encoder).fingerprint)).encode()
    ).hexdigest()[:16]
    return CACHE.directory / f"client_index-{digest}.safetensors"


def _make(
    federation: Federation, spec: IndexSpec, embeddings: Embeddings | None = None
) -> ClientIndex:
    data, L = _embedded(federation, spec, embeddings)
    began = time.perf_counter()
    ids = _ids(federation)
    sizes = [len(c.train) for c in federation.clients]
    info: dict[str, Any] = {"bytes_down": 0, "bytes_up": 0}
    label: Tensor | None = None
    if spec.kind == "client2vec":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(spec.seed)
            net = DSAIGN(L.shape[1], ffn=spec.ffn, projection=spec.projection).to(data.device)
        info |= (_train_global if spec.strategy == "global" else _train_federated)(
            net, data, L, spec
        )
        info["bytes_down"] = info.get("bytes_down", 0) + len(ids) * count_bytes(net.state_dict())
        feature = torch.stack(
            [sample_index(net, data.x[c.train]).mean(0) for c in data.clients]
        )  # (a)
        label = torch.stack([L[data.y[c.train]].mean(0) for c in data.clients])
    elif spec.kind == "feature_average":
        feature = torch.stack([data.x[c.train].mean(0) for c in data.clients])
    else:  # class_prototypes: one after the other, zeros for classes a client has not
        width = (data.num_classes, data.x.shape[1])
        rows = []
        for c in data.clients:
            total = torch.zeros(width, device=data.device).index_add_(
                0, data.y[c.train], data.x[c.train]
            )
            rows.append((total / data.class_counts(c).clamp(min=1)[:, None]).flatten())
        feature = torch.stack(rows)
    info["bytes_up"] += count_bytes(feature) + (0 if label is None else count_bytes(label))
    info["training_seconds"] = time.perf_counter() - began
    small = dataclasses.replace(data, x=federation.x, mean=federation.mean, std=federation.std)
    info["embedding_seconds"] = (
        0.0 if embeddings is not None else embedding_seconds(small, spec.encoder)
    )
    info["seconds"] = info["embedding_seconds"] + info["training_seconds"]
    return ClientIndex(feature, label, sizes, ids, info)
