"""Flower's simulation, with Ray's processes: `pytest -m processes`. Each test has a time limit."""

import pytest
from helpers import PROCESS_SECONDS, near

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedbook[flower]'")

from fedbook.flower import compare  # noqa: E402
from fedbook.flower.app import new  # noqa: E402
from fedbook.flower.loopback import Loopback  # noqa: E402

pytestmark = pytest.mark.processes


def test_flowers_simulation_ends_where_ours_does(tmp_path):
    names = ["fedgcr", "fgpt"]
    found = compare.by_ray(names, tmp_path)
    for name in names:
        loop = compare.by_simulate(name, "loop")
        assert near(loop.params, found[name].params, atol=1e-6), name
        counted = [[(r.bytes_up, r.bytes_down) for r in x.records] for x in (loop, found[name])]
        assert counted[0] == counted[1]


def test_flwr_run_starts_a_written_app_in_simulation(tmp_path):
    app = new(tmp_path / "app", compare.experiment("fedgcr"))
    with Loopback(tmp_path / "link", simulated=4) as link:
        said = link.run(app, PROCESS_SECONDS - 20, evaluate_every=3)
    assert "Strategy execution finished" in said, said[-2000:]
    params, records = compare.result(app / "run")
    assert near(compare.by_simulate("fedgcr", "loop").params, params, atol=1e-6)
    assert [r.round for r in records] == [1, 2, 3]
