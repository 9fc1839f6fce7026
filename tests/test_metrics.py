"""Metrics against numbers done by hand and against scikit-learn."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from fedbook import FedbookError, metrics
from fedbook.rounds import Record

ACC, TYPES = [0.9, 0.7, 0.4], [0, 0, 1]


def test_averages_and_spreads_by_hand():
    assert metrics.avg_client(ACC) == pytest.approx(2 / 3)
    assert metrics.avg_type(ACC, TYPES) == pytest.approx((0.8 + 0.4) / 2)
    assert metrics.sigma_type(ACC, TYPES) == pytest.approx(0.2)
    assert metrics.sigma_client([1.0, 3.0]) == 1.0  # ddof 0
    assert metrics.seed_spread([1.0, 3.0]) == pytest.approx(math.sqrt(2))  # ddof 1
    assert math.isnan(metrics.seed_spread([1.0]))
    assert metrics.worst_client(ACC) == 0.4
    assert metrics.avg_sample([1.0, 0.0], [3, 1]) == 0.75


def test_anchor_of_the_published_logs():
    """FedAvg, Digit-Five, DIF 10, seed 0: domain accuracies give the Avg, sigmas and client mean
    found in the logs.
    """
    domains, counts = [92.19, 90.97, 54.02, 41.40, 28.82], [10, 6, 3, 2, 1]
    clients, types = np.repeat(domains, counts), np.repeat(range(5), counts)
    assert metrics.avg_type(clients, types) == pytest.approx(61.48, abs=0.005)
    assert metrics.sigma_type(clients, types) == pytest.approx(25.84, abs=0.005)
    assert metrics.avg_client(clients) == pytest.approx(79.15, abs=0.005)
    assert metrics.sigma_client(clients) == pytest.approx(21.12, abs=0.005)


def test_one_client_per_type_makes_both_sigmas_equal():
    assert metrics.sigma_client([0.1, 0.5, 0.6]) == pytest.approx(
        metrics.sigma_type([0.1, 0.5, 0.6], [0, 1, 2])
    )


def test_bottom_takes_at_least_one_and_rounds_up():
    assert metrics.bottom([0.5, 0.1, 0.9]) == 0.1
    assert metrics.bottom(list(range(20))) == 0.5
    assert metrics.bottom(list(range(11))) == 0.5
    assert metrics.bottom([3.0, 1.0], fraction=1.0) == 2.0
    with pytest.raises(FedbookError, match="fraction"):
        metrics.bottom([1.0], 0.0)


def test_macro_f1_by_hand():
    """Class 0: TP 1, FP 1, FN 1 -> 1/2. Class 1: TP 1, FP 1, FN 0 -> 2/3. Class 2: TP 0, FN 1 -> 0.
    Class 3 unseen.
    """
    y, p = [0, 0, 1, 2], [0, 1, 1, 0]
    assert metrics.macro_f1(y, p, 4, "present") == pytest.approx((1 / 2 + 2 / 3 + 0) / 3)
    assert metrics.macro_f1(y, p, 4, "all") == pytest.approx((1 / 2 + 2 / 3 + 0 + 0) / 4)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_macro_f1_equals_scikit_learn(pairs):
    y, p = zip(*pairs)
    ours = (
        metrics.macro_f1(y, p, 5),
        metrics.macro_f1(torch.tensor(y), torch.tensor(p), 5, "present"),
    )
    theirs = [
        f1_score(y, p, labels=labels, average="macro", zero_division=0)
        for labels in (range(5), sorted(set(y)))
    ]
    assert ours == pytest.approx(theirs)


def test_clustering_accuracy_is_the_share_of_the_majority_types():
    types = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert metrics.clustering_accuracy(types, types) == 1.0
    assert (
        metrics.clustering_accuracy([0, 0, 1, 1, 2, 2, 2, 2, 2, 2], types) == 0.6
    )  # Table 3, T' = 3, DIF 1
    assert metrics.clustering_accuracy([5, 5, 5], [0, 0, 1]) == pytest.approx(2 / 3)
    assert metrics.clustering_accuracy(list(range(10)), types) == 1.0


def test_local_tests_by_hand():
    """Clients (1, 1/3) and (0, 1): harmonic means 1/2 and 0; of the means (1/2, 2/3): 4/7."""
    out = metrics.local_tests([1.0, 0.0], [1 / 3, 1.0])
    assert out == pytest.approx({"t_p": 0.5, "t_r": 2 / 3, "t_l": 0.25, "t_l_of_means": 4 / 7})
    assert metrics.harmonic_mean(0.0, 0.0) == 0.0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=20))
def test_mean_of_harmonic_means_never_exceeds_that_of_the_means(pairs):
    out = metrics.local_tests(*zip(*pairs))
    assert out["t_l"] <= out["t_l_of_means"] + 1e-12
    assert (
        out["t_l_of_means"]
        <= min(2 * out["t_p"], 2 * out["t_r"], (out["t_p"] + out["t_r"]) / 2) + 1e-12
    )


def record(acc, personal=None, f1=None, up=10, down=20):
    loss = [1.0] * len(acc) if acc else None
    return Record(
        round=1,
        participants=[0],
        weights=[1.0],
        train_loss={0: 1.0},
        train_acc={0: 0.5},
        bytes_up=up,
        bytes_down=down,
        test_loss=loss,
        test_acc=acc,
        test_f1=f1,
        personal_acc=personal,
    )


def test_communication_adds_up_the_rounds():
    assert metrics.communication([record(ACC), record(ACC, up=1, down=2)]) == {
        "bytes_up": 11,
        "bytes_down": 22,
        "bytes": 33,
    }


def test_summarise_keeps_global_and_personal_apart_and_skips_clients_without_test_samples():
    out = metrics.summarise(
        record([0.5, float("nan"), 1.0], personal=[1.0, 1.0, 0.0]), TYPES, [1, 0, 3]
    )
    assert out["avg_client"] == 0.75 and out["avg_sample"] == pytest.approx(0.875)
    assert (
        out["personal"]["avg_client"] == pytest.approx(2 / 3)
        and out["personal"]["worst_client"] == 0.0
    )
    only = metrics.summarise(record(None, personal=[1.0, 0.5, 0.0]), TYPES)
    assert "avg_client" not in only and only["personal"]["avg_type"] == pytest.approx(0.375)


@pytest.mark.parametrize(
    "call", [lambda: metrics.avg_client([]), lambda: metrics.avg_type([1.0], [0, 1])]
)
def test_wrong_shapes_are_told(call):
    with pytest.raises(FedbookError):
        call()


# -- what mutants slipped through ------------------------------------------------------------------
def test_effective_clients():
    assert metrics.effective_clients([0.25] * 4) == 4
    assert metrics.effective_clients([1.0, 0.0]) == 1
    assert metrics.effective_clients([0.75, 0.25]) == pytest.approx(1.6)


def test_bad_metrics_are_refused():
    for y, p in (([0, 1], [0]), ([], []), ([[0]], [[0]])):
        with pytest.raises(FedbookError, match="equally long lists"):
            metrics.macro_f1(y, p, 2)
    with pytest.raises(FedbookError, match="'all' or 'present', got 'some'"):
        metrics.macro_f1([0], [0], 2, "some")
    assert metrics.macro_f1([0], [0], 2) == metrics.macro_f1([0], [0], 2, "all") == 0.5
    for g, t in (([0, 1], [0]), ([], [])):
        with pytest.raises(FedbookError, match="cluster labels"):
            metrics.clustering_accuracy(g, t)
    for fraction in (0.0, 1.5):
        with pytest.raises(FedbookError, match="fraction"):
            metrics.bottom([1.0], fraction)
    for values in ([], [[1.0]], 3.0):
        with pytest.raises(FedbookError, match="non-empty list"):
            metrics.avg_client(values)


def test_bottom_of_what_is_no_number():
    assert math.isnan(metrics.bottom([math.nan, 0.1, 0.2]))
    assert metrics.bottom([0.3, 0.1, 0.2], fraction=0.5) == pytest.approx(0.15)


def test_a_summary_has_these_numbers():
    half = {"participants": [0], "weights": [1.0], "train_loss": {}, "train_acc": {}}
    scores = {"test_loss": [1.0, 3.0], "test_acc": [0.5, 0.7], "test_f1": [0.2, 0.4]}
    record = Record(round=1, bytes_up=1, bytes_down=1, **half, **scores)
    found = metrics.summarise(record, [0, 1], [1, 3])
    expected = {"avg_client": 0.6, "avg_type": 0.6, "sigma_client": 0.1, "sigma_type": 0.1}
    expected |= {"worst_client": 0.5, "bottom_10": 0.5, "avg_sample": 0.65}
    assert found == pytest.approx(expected | {"loss": 2.0, "f1_client": 0.3})
    with pytest.raises(FedbookError, match="no client has a test sample"):
        metrics.summarise(dataclasses.replace(record, test_acc=[math.nan] * 2), [0, 1])
