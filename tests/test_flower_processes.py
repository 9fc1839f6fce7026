"""Flower with real processes: Ray, SuperLink and SuperNodes, a node that is killed, TLS and keys.

`pytest -m processes` runs them. Each has a hard time limit, and ports of its own on 127.0.0.1.
"""

import dataclasses
import json
import signal
import time

import pytest
from helpers import near

from fedbook import models, simulate
from fedbook.experiment import Experiment
from fedbook.rounds import Uniform

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedbook[flower]'")

from fedbook.flower import compare  # noqa: E402
from fedbook.flower.app import new  # noqa: E402
from fedbook.flower.loopback import Loopback  # noqa: E402

pytestmark = pytest.mark.processes
LIMIT = 280  # seconds for any one test


@pytest.fixture(autouse=True)
def hard_limit():
    def stop(*_):
        raise TimeoutError(f"longer than {LIMIT} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def small(name, rounds=3, **partition):
    """An experiment on a few digits."""
    e = compare.experiment(name)
    return dataclasses.replace(e, rounds=rounds, partition=e.partition | partition)


def simulated(e: Experiment, **changes):
    """The same by the loop."""
    federation = e.build_federation()
    options = dict(e.model)
    model = models.build(options.pop("name"), federation, seed=e.seed, **options)
    method = e.build_method().replace(**changes)
    settings = {"device": "cpu", "engine": "loop", "quiet": True}
    return simulate(method, federation, model, e.rounds, **settings).run()


def test_flowers_simulation_ends_where_ours_does(tmp_path):
    names = ["fedavg", "scaffold", "fedgcr", "fgpt"]
    found = compare.by_ray(names, tmp_path)
    for name in names:
        loop = compare.by_simulate(name, "loop")
        assert near(loop.params, found[name].params, atol=1e-6), name
        counted = [[(r.bytes_up, r.bytes_down) for r in x.records] for x in (loop, found[name])]
        assert counted[0] == counted[1]


def test_flwr_run_starts_a_written_app_in_simulation(tmp_path):
    app = new(tmp_path / "app", small("fedgcr"))
    with Loopback(tmp_path / "link", simulated=4) as link:
        said = link.run(app, 240, evaluate_every=3)
    assert "Strategy execution finished" in said, said[-2000:]
    params, records = compare.result(app / "run")
    assert near(simulated(small("fedgcr")).params, params, atol=1e-6)
    assert [r.round for r in records] == [1, 2, 3]


# -- SuperLink and four SuperNodes -----------------------------------------------------------------
@pytest.fixture(scope="module")
def link(tmp_path_factory):
    with Loopback(tmp_path_factory.mktemp("link"), nodes=4) as running:
        yield running


@pytest.mark.parametrize("name", ["fedgcr", "fgpt"])
def test_a_deployment_ends_where_the_simulation_does(link, name, tmp_path):
    app = new(tmp_path / "app", small(name))
    said = link.run(app, 260, evaluate_every=3)
    params, records = compare.result(app / "run")
    expected = simulated(small(name))
    assert near(expected.params, params, atol=1e-6), said[-2000:]
    counted = [[(r.bytes_up, r.bytes_down) for r in x] for x in (expected.records, records)]
    assert counted[0] == counted[1] and not any("missing" in r.log for r in records)


@dataclasses.dataclass(frozen=True)
class Without(Uniform):
    """Everybody, but for client 2 in some rounds."""

    rounds: tuple[int, ...] = ()

    def __call__(self, state, federation, round, rng):
        chosen, state = super().__call__(state, federation, round, rng)
        return [id for id in chosen if id != 2 or round not in self.rounds], state


def finished(app):
    """How many rounds the server has kept."""
    try:
        return json.loads((app / "run" / "latest.json").read_text())["round"]
    except FileNotFoundError:
        return 0


def test_a_node_that_is_killed_is_left_out_and_comes_back_with_its_memory(link, tmp_path):
    """SCAFFOLD: what a client remembers moves the global model, so a lost memory would show."""
    e = small("scaffold", rounds=5)
    app = new(tmp_path / "app", e)
    link.log("run").unlink(missing_ok=True)
    run = link.begin(app, evaluate_every=5, timeout=30)
    while finished(app) < 1 and run.poll() is None:
        time.sleep(0.2)
    link.kill(2)  # in round 2
    while finished(app) < 2 and run.poll() is None:
        time.sleep(0.2)
    link.start(2)
    run.wait(LIMIT)
    said = link.log("run").read_text()
    params, records = compare.result(app / "run")
    assert [r.round for r in records] == [1, 2, 3, 4, 5], said[-2000:]
    missing = tuple(r.round for r in records if r.log.get("missing") == [2])
    assert 2 in missing and records[-1].participants == [0, 1, 2, 3]
    assert "went on without clients [2]" in said
    for r in records:
        assert sum(r.weights) == pytest.approx(1) and len(r.weights) == 4 - (r.round in missing)
    expected = simulated(e, sample=Without(rounds=missing))
    assert near(expected.params, params, atol=1e-6)


# -- TLS and node authentication -------------------------------------------------------------------
def test_a_deployment_with_tls_and_keys_lets_only_registered_nodes_in(tmp_path):
    from fedbook.flower.loopback import private_key

    e = small("fedavg", rounds=1, clients=2)
    app = new(tmp_path / "app", e)
    with Loopback(tmp_path / "link", nodes=2, secure=True) as link:
        stranger = tmp_path / "link" / "keys" / "stranger"
        private_key(stranger)
        link.start(7, key=str(stranger))
        said = link.run(app, 240)
        assert link._processes["node-7"].poll() is not None  # it was not let in
        refused = link.log("node-7").read_text()
    params, _ = compare.result(app / "run")
    assert near(simulated(e).params, params, atol=1e-6), said[-2000:]
    assert "client 7" not in said and "Strategy execution finished" in said
    assert "auth" in refused.lower() or "denied" in refused.lower(), refused[-2000:]
