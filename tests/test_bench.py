"""The benchmark compares equals: both loops end with the same weights, and it reports what it
promises."""

from fedbook import bench


def test_both_loops_do_the_same_arithmetic():
    out = bench.speed(rounds=1, repeats=1, clients=12)
    assert out["largest_weight_difference"] <= 1e-6
    assert 550_000 < out["parameters"] < 650_000 and out["participants"] == 10
    assert out["bare_over_fedbook"] > 0


def test_memory_is_that_of_the_run():
    few = bench.peak_memory(10)
    assert few["peak_mb"] > few["before_mb"] > 0
    out = {
        **dict(
            clients=100,
            participants=10,
            samples_per_client=128,
            parameters=1,
            threads=1,
            repeats=1,
            rounds=1,
        ),
        "seconds_per_round": {"fedbook": 1.0, "bare": 0.95},
        "bare_over_fedbook": 0.95,
        "cpu_bare_over_fedbook": 0.95,
        "largest_weight_difference": 0.0,
        "memory": {"10": few, "1000": few},
        "memory_1000_over_10": 1.0,
        "memory_1000_over_10_added": 1.0,
    }
    assert "bare / fedbook 0.950" in bench.text(out) and "ratio 1.000" in bench.text(out)
