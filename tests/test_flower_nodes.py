"""A SuperLink and four SuperNodes as processes, with TLS and keys; one is killed.

`pytest -m processes` runs this. Each test has a time limit, each process a port on 127.0.0.1.
"""

import pytest
from helpers import PROCESS_SECONDS, near

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedbook[flower]'")

from fedbook.flower import compare, fault  # noqa: E402
from fedbook.flower.loopback import Loopback, private_key  # noqa: E402

pytestmark = pytest.mark.processes


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
        process.wait(PROCESS_SECONDS / 2)  # it is refused and gives up
    finally:
        link.kill(7)
    refused = link.log("node-7").read_text()
    assert process.returncode != 0
    assert "Failed to activate SuperNode" in refused and "SuperNode ID" not in refused, refused
    for k in range(4):  # the same command with a registered key
        said = link.log(f"node-{k}").read_text()
        assert "SuperNode ID" in said and "Failed" not in said, said


def test_two_deployed_runs_end_where_simulations_do(link, tmp_path):
    """At the same time, on the same nodes."""
    found = compare.by_processes(["fedgcr", "fgpt"], link, tmp_path, PROCESS_SECONDS - 20)
    for name, run in found.items():
        loop = compare.by_simulate(name, "loop")
        assert near(loop.params, run.params, atol=1e-6), name
        counted = [[(r.bytes_up, r.bytes_down) for r in x.records] for x in (loop, run)]
        assert counted[0] == counted[1] and not any("missing" in r.log for r in run.records)


def test_a_node_that_is_killed_is_left_out_and_comes_back_with_its_memory(link, tmp_path):
    story = fault.lose(link, tmp_path / "app", PROCESS_SECONDS - 20, timeout=300)
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
