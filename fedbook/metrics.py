"""What is measured: accuracy, how unevenly it is spread over clients and types, macro-F1, GRP-FED's
tests, bytes.

Pure functions of plain numbers (lists, numpy arrays or tensors). Spreads over clients and types are
population standard deviations (ddof 0), spreads over seeds are sample ones (ddof 1), as in the
papers' own logs. `avg_type` is what FedGCR prints as Avg although its text says mean over clients;
both are always reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fedbook.errors import FedbookError

if TYPE_CHECKING:
    from fedbook.rounds import Record


def _numbers(values: ArrayLike) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise FedbookError(
            f"expected a non-empty list of numbers, got shape {array.shape}",
            "one number per client",
        )
    return array


def type_means(values: ArrayLike, types: ArrayLike) -> np.ndarray:
    """The mean over the clients of each type that occurs, in the order of the types' numbers."""
    v = _numbers(values)
    t = np.asarray(types)
    if v.shape != t.shape:
        raise FedbookError(f"{len(v)} values but {len(t)} types", "give one type per client")
    return np.array([v[t == k].mean() for k in np.unique(t)])


def avg_client(values: ArrayLike) -> float:
    """Mean over clients."""
    return float(_numbers(values).mean())


def avg_type(values: ArrayLike, types: ArrayLike) -> float:
    """Mean over types of the mean over their clients."""
    return float(type_means(values, types).mean())


def avg_sample(values: ArrayLike, sizes: ArrayLike) -> float:
    """Mean over clients weighted by how many samples each value rests on: the pooled accuracy."""
    return float(np.average(_numbers(values), weights=np.asarray(sizes, dtype=np.float64)))


def sigma_client(values: ArrayLike) -> float:
    """Population standard deviation over clients."""
    return float(_numbers(values).std())


def sigma_type(values: ArrayLike, types: ArrayLike) -> float:
    """Population standard deviation over types."""
    return float(type_means(values, types).std())


def seed_spread(values: ArrayLike) -> float:
    """Sample standard deviation over repeated runs; not a number for a single run."""
    v = _numbers(values)
    return float(v.std(ddof=1)) if len(v) > 1 else float("nan")


def worst_client(values: ArrayLike) -> float:
    """The client served worst."""
    return float(_numbers(values).min())


def bottom(values: ArrayLike, fraction: float = 0.1) -> float:
    """Mean over the worst tenth (or another fraction) of the clients, at least one of them."""
    if not 0 < fraction <= 1:
        raise FedbookError(
            f"the fraction must lie in (0, 1], got {fraction}", "0.1 is the bottom tenth"
        )
    v = np.sort(_numbers(values))  # NaN comes last
    if np.isnan(v[-1]):
        return float("nan")
    return float(v[: max(1, int(np.ceil(fraction * len(v) - 1e-9)))].mean())


def macro_f1(
    labels: ArrayLike, predictions: ArrayLike, num_classes: int, classes: str = "all"
) -> float:
    """Unweighted mean of the classes' F1 = 2 TP / (2 TP + FP + FN), a class never seen and never
    predicted counting 0.

    classes="all": over all `num_classes`; "present": over those that occur in the labels.
    """
    y = np.asarray(labels, dtype=np.int64)
    p = np.asarray(predictions, dtype=np.int64)
    if y.shape != p.shape or y.ndim != 1 or not len(y):
        raise FedbookError(
            f"labels {y.shape} and predictions {p.shape} must be equally long lists",
            "one per sample",
        )
    if classes not in ("all", "present"):
        raise FedbookError(
            f"classes must be 'all' or 'present', got {classes!r}", "'all' for a global test"
        )
    hit = np.bincount(y[y == p], minlength=num_classes)
    support = np.bincount(y, minlength=num_classes)
    predicted = np.bincount(p, minlength=num_classes)
    f1 = 2 * hit / np.maximum(support + predicted, 1)
    return float(f1[support > 0].mean() if classes == "present" else f1.mean())


def clustering_accuracy(labels: ArrayLike, types: ArrayLike) -> float:
    """The share of clients whose type is the majority type of their cluster."""
    g = np.asarray(labels)
    t = np.asarray(types)
    if g.shape != t.shape or not len(g):
        raise FedbookError(
            f"{len(g)} cluster labels but {len(t)} types", "give one of each per client"
        )
    return sum(np.unique(t[g == k], return_counts=True)[1].max() for k in np.unique(g)) / len(g)


def harmonic_mean(a: ArrayLike, b: ArrayLike) -> Any:
    """2ab / (a + b), 0 where both are 0."""
    x = np.asarray(a, dtype=np.float64)
    y = np.asarray(b, dtype=np.float64)
    return np.divide(
        2 * x * y, x + y, out=np.zeros(np.broadcast_shapes(x.shape, y.shape)), where=(x + y) > 0
    )


def local_tests(personalization: ArrayLike, generalization: ArrayLike) -> dict[str, float]:
    """GRP-FED's tests of the clients' own models, from their scores on their own and on the global
    test set.

    t_p and t_r are means over clients. t_l (Eq. 6) is the mean over clients of their harmonic
    means, the reading that fits the printed numbers; t_l_of_means is the harmonic mean of the two
    means, never smaller.
    """
    p = _numbers(personalization)
    r = _numbers(generalization)
    t_p = float(p.mean())
    t_r = float(r.mean())
    of_means = float(harmonic_mean(t_p, t_r))
    return {
        "t_p": t_p,
        "t_r": t_r,
        "t_l": float(harmonic_mean(p, r).mean()),
        "t_l_of_means": of_means,
    }


def effective_clients(weights: ArrayLike) -> float:
    """1 / sum of squared weights: how many clients with equal weights would make as noisy a
    mean.
    """
    return float(1 / np.square(_numbers(weights)).sum())


def communication(records: Sequence[Record]) -> dict[str, int]:
    """Bytes that travelled in all the rounds, to the server (up) and to the clients (down)."""
    up = sum(r.bytes_up for r in records)
    down = sum(r.bytes_down for r in records)
    return {"bytes_up": up, "bytes_down": down, "bytes": up + down}


def summarise(
    record: Record, types: Sequence[int], sizes: Sequence[int] | None = None
) -> dict[str, Any]:
    """The numbers of one round: those of the global model, and under `personal` those of the
    personal models.

    Clients without a test sample (their score is not a number) are left out.
    """

    def scores(
        acc: list[float], loss: list[float] | None, f1: list[float] | None
    ) -> dict[str, float]:
        a = np.asarray(acc, dtype=np.float64)
        seen = np.isfinite(a)
        if not seen.any():
            raise FedbookError("no client has a test sample", "give the clients test=(x, y)")
        t = np.asarray(types)[seen]
        a = a[seen]
        out = {"avg_client": avg_client(a), "avg_type": avg_type(a, t)}
        out |= {"sigma_client": sigma_client(a), "sigma_type": sigma_type(a, t)}
        out |= {"worst_client": worst_client(a), "bottom_10": bottom(a)}
        if sizes is not None:
            out["avg_sample"] = avg_sample(a, np.asarray(sizes)[seen])
        if loss is not None:
            out["loss"] = avg_client(np.asarray(loss)[seen])
        if f1 is not None:
            out["f1_client"] = avg_client(np.asarray(f1)[seen])
        return out

    out: dict[str, Any] = {}
    if record.test_acc is not None:
        out |= scores(record.test_acc, record.test_loss, record.test_f1)
    if record.personal_acc is not None:
        out["personal"] = scores(record.personal_acc, record.personal_loss, record.personal_f1)
    return out
