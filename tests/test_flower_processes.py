"""Flower with real processes: Ray, SuperLink and SuperNodes, a node that is killed, TLS and keys.

`pytest -n 0 -m "processes and not long"` runs those that `.ci/run` runs, `-m processes` all. Flower
starts a process for every message, which imports torch anew: a prompted ViT, with timm, takes ten
processor seconds for that, so runs of FedGCR and FGPT on SuperNodes are `long`. Each test has a
hard time limit, and ports of its own on 127.0.0.1.
"""

import os
import signal

import pytest
from helpers import near

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedbook[flower]'")

from fedbook.flower import compare, fault  # noqa: E402
from fedbook.flower.app import new  # noqa: E402
from fedbook.flower.loopback import Loopback, private_key  # noqa: E402

pytestmark = pytest.mark.processes
LIMIT = int(os.environ.get("FEDBOOK_PROCESS_SECONDS", 400))  # for any one test


@pytest.fixture(autouse=True)
def hard_limit():
    def stop(*_):
        raise TimeoutError(f"longer than {LIMIT} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_flowers_simulation_ends_where_ours_does(tmp_path):
    names = ["fedgcr", "fgpt"]
    found = compare.by_ray(names, tmp_path)
    for name in names:
        loop = compare.by_simulate(name, "loop")
        assert near(loop.params, found[name].params, atol=1e-6), name
        counted = [[(r.bytes_up, r.bytes_down) for r in x.records] for x in (loop, found[name])]
        assert counted[0] == counted[1]


@pytest.mark.long
def test_flwr_run_starts_a_written_app_in_simulation(tmp_path):
    app = new(tmp_path / "app", compare.experiment("fedgcr"))
    with Loopback(tmp_path / "link", simulated=4) as link:
        said = link.run(app, LIMIT - 20, evaluate_every=3)
    assert "Strategy execution finished" in said, said[-2000:]
    params, records = compare.result(app / "run")
    assert near(compare.by_simulate("fedgcr", "loop").params, params, atol=1e-6)
    assert [r.round for r in records] == [1, 2, 3]


# -- SuperLink and four SuperNodes, with TLS and node authentication -------------------------------
@pytest.fixture(scope="module")
def link(tmp_path_factory):
    with Loopback(tmp_path_factory.mktemp("link"), nodes=4, secure=True) as running:
        yield running


def test_a_node_whose_key_was_not_registered_is_not_let_in(link):
    stranger = link.folder / "keys" / "stranger"
    private_key(stranger)
    link.start(7, key=str(stranger))
    process = link._processes["node-7"]
    try:
        process.wait(LIMIT / 2)  # it is refused and gives up
    finally:
        link.kill(7)
    refused = link.log("node-7").read_text()
    assert process.returncode != 0
    assert "Failed to activate SuperNode" in refused and "SuperNode ID" not in refused, refused
    for k in range(4):  # the same command with a registered key
        said = link.log(f"node-{k}").read_text()
        assert "SuperNode ID" in said and "Failed" not in said, said


@pytest.mark.long
@pytest.mark.parametrize("name", ["fedgcr", "fgpt"])
def test_a_deployment_ends_where_the_simulation_does(link, name, tmp_path):
    found = compare.by_processes(name, link, tmp_path, LIMIT - 20)
    loop = compare.by_simulate(name, "loop")
    assert near(loop.params, found.params, atol=1e-6)
    counted = [[(r.bytes_up, r.bytes_down) for r in x.records] for x in (loop, found)]
    assert counted[0] == counted[1] and not any("missing" in r.log for r in found.records)


def test_a_node_that_is_killed_is_left_out_and_comes_back_with_its_memory(link, tmp_path):
    story = fault.lose(link, tmp_path / "app", LIMIT - 20, timeout=300)  # four nodes at once
    said = "\n".join(text for _, text in story.events)
    assert story.back, said
    assert 2 in story.missed and story.records[-1].participants == [0, 1, 2, 3]
    assert "went on without clients [2]" in said
    for r in story.records:
        assert sum(r.weights) == pytest.approx(1)
        assert len(r.weights) == 4 - (r.round in story.missed)
    assert near(fault.expected(story), story.params, atol=1e-6)
    fault.write(story, 0.0, tmp_path / "fault.md")
    assert "| 2 | 0, 1, 3 | 2 |" in (tmp_path / "fault.md").read_text()
