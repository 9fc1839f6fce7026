"""Costs counted on the meta device: against formulas, and against what a method is known to add."""

import dataclasses

import pytest

from fedbook.cost import cost, published_sizes
from fedbook.papers import get


def planned(method, **options):
    spec = get("fedgcr/table6")
    e = spec.experiment(
        next(r for r in spec.rows if r.method == method and r["dif"] == 10), "paper", 0
    )
    return dataclasses.replace(
        e, model={**e.model, "backbone": "hybrid"}, method={**e.method, **options}
    )


def counted(method, **options):
    return cost(planned(method, **options), (3, 32, 32), 7, [40, 60], 30)


def test_a_linear_probe_costs_what_its_matrix_does():
    e = dataclasses.replace(planned("fedavg"), model={"name": "linear_probe", "backbone": "hybrid"})
    found = cost(e, (3, 32, 32), 7, [40, 60], 30)
    # features are computed once: forward 2 * 192 * 7, and the weight's gradient the same
    assert found["gflop_per_image_and_round"] * 1e9 == 2 * 2 * 192 * 7
    assert found["gflop_per_image_tested"] * 1e9 == 2 * 192 * 7
    assert found["pflop"] * 1e15 == pytest.approx(50 * (100 * 4 * 192 * 7 + 30 * 2 * 192 * 7))


def test_what_methods_add():
    plain, sam, gcr = counted("fedavg"), counted("fedsam"), counted("fedgcr")
    step, look = plain["gflop_per_image_and_round"], plain["gflop_per_image_tested"]
    assert sam["gflop_per_image_and_round"] == pytest.approx(2 * step)  # two gradients
    assert sam["memory_mb"]["activations_of_a_batch"] == pytest.approx(
        plain["memory_mb"]["activations_of_a_batch"]
    )
    assert gcr["gflop_per_image_and_round"] == pytest.approx(
        step + 2 * look, rel=0.05
    )  # z_0 and z_prev
    assert counted("fedmix")["gflop_per_image_and_round"] > 1.5 * step
    assert gcr["memory_mb"]["weights"] > plain["memory_mb"]["weights"]
    assert counted("fedavg", batch_size=32)["gflop_per_image_and_round"] == pytest.approx(step)


def test_epochs_and_participation_count():
    plain = counted("fedavg")["pflop"]
    look = counted("fedavg")["gflop_per_image_tested"] * 30 * 50 / 1e6
    assert counted("fedavg", epochs=2)["pflop"] - look == pytest.approx(2 * (plain - look))
    assert counted("fedavg", participation=0.5)["pflop"] - look == pytest.approx((plain - look) / 2)


def test_published_clients_need_no_data():
    types, sizes = published_sizes(planned("fedgcr"))
    assert len(sizes) == 18 and types[:10] == ["photo"] * 10
    assert (
        published_sizes(dataclasses.replace(planned("fedgcr"), partition={"name": "dirichlet"}))
        is None
    )
