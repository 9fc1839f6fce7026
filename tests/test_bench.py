"""Benchmarks compare equals, take turns, and say what they measured."""

import json
import sys

import pytest
import torch
from helpers import vit
from torch import nn

from fedbook import clock
from fedbook.bench import bare, engines, growth, index, peers, prompts
from fedbook.cli import main


# -- clock -----------------------------------------------------------------------------------------
def test_competitors_take_turns_and_begin_in_turn():
    order = []
    steps = {name: lambda name=name: order.append(name) for name in "ab"}
    spent = clock.interleave(steps, 3, warm_up=1)
    assert order == ["b", "a", "a", "b", "b", "a", "a", "b"]
    assert all(len(t.wall) == len(t.cpu) == 3 for t in spent.values())


def test_ratios_are_medians_of_pairs():
    a = clock.Times([1.0, 4.0, 9.0], [1.0, 1.0, 1.0])
    b = clock.Times([1.0, 2.0, 3.0], [2.0, 2.0, 4.0])
    assert a.over(b) == 2.0 and b.over(a, "cpu") == 2.0 and a.median() == 4.0


def test_a_budget_stops_after_two_turns():
    spent = clock.interleave({"a": lambda: None}, 1000, budget=1e-9)
    assert len(spent["a"].wall) == 2


def test_threads_are_restored():
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), clock.use_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise ZeroDivisionError
    assert torch.get_num_threads() == before


def test_processor_time_counts_children():
    import subprocess

    code = "import time; t = time.process_time()\nwhile time.process_time() < t + 0.3: pass\n"
    child = subprocess.Popen(
        [sys.executable, "-c", code + "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    before = clock.processor_seconds()
    child.stdout.readline()
    assert clock.processor_seconds() - before > 0.2
    child.communicate(b"\n")


# -- engines ---------------------------------------------------------------------------------------
def test_engines_are_compared_on_the_same_work():
    net = engines.Net(label="linear", model="mlp", shape=(3, 4, 4), options={"width": 8})
    out = engines.bench_engines(repeats=2, threads=1, batches=(16,), participants=(3,), nets=(net,))
    (cell,) = out["cells"]
    per_sample = 2 * (48 * 8 + 8 * 10)  # forward; as much for the weights; the head's input
    work = engines.PER_CLIENT * (2 * per_sample + 2 * 8 * 10)
    assert cell["rate"]["loop"] * cell["seconds"]["loop"] == pytest.approx(3 * work)
    assert cell["repeats"] == 2 and set(cell["seconds"]) == {"loop", "channels_last", "lockstep"}
    assert f"{cell['speedup']:.2f}" in engines.text(out)
    rows = engines.markdown(out).splitlines()
    assert rows[0].count("|") == rows[1].count("|") == rows[2].count("|") == 6


def test_the_limit_says_how_much_time_products_take():
    net = engines.Net(label="cnn", model="cnn", shape=(3, 8, 8), options={"width": 2})
    out = engines.bench_limit(threads=1, repeats=2, batches=(16,), nets=(net,))
    (cell,) = out["cells"]
    assert all(0 < share < 1 for share in cell["in_products"].values())
    assert "%" in engines.limit_text(out)


def test_every_network_of_the_table_can_be_stacked():
    for net in engines.NETS:
        trainer = engines.Trainer(net, engines.federation(net, 5, 2), 2, "lockstep")
        assert trainer.run.engine == "lockstep", net.label
        trainer.train()
    sizes = {}
    for net in engines.NETS[:2]:
        run = engines.Trainer(net, engines.federation(net, 1, 2), 2, "loop").run
        sizes[net.label] = sum(p.numel() for p in run.params.values())
    assert sizes == {"CNN 66k": 65_934, "CNN 600k": 579_402}


def test_pooling_before_the_activation_is_the_same_to_the_bit():
    """What the CNN does, for speed: the maximum of a window is where its positive part's is."""
    ends = []
    for layers in ((nn.MaxPool2d(2), nn.ReLU()), (nn.ReLU(), nn.MaxPool2d(2))):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 4, 3), *layers, nn.Flatten(), nn.Linear(36, 5))
        x, y = torch.randn(8, 3, 8, 8), torch.arange(8) % 5
        x[:2] = 0  # windows of equal numbers
        nn.functional.cross_entropy(net(x), y).backward()
        ends.append([p.grad for p in net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends))


# -- growth ----------------------------------------------------------------------------------------
def test_a_hundred_thousand_clients_are_made_in_two_seconds_and_a_hundred_megabytes():
    found = growth.clients(100_000)
    assert found["clients"] == 100_000 and found["mb"] < 100
    assert found["seconds"] < 6  # 2 on an idle machine


def test_growth_is_drawn(tmp_path):
    out = {
        "clients": [{"clients": n, "seconds": n / 10, "mb": n, "round": 0.1} for n in (10, 100)],
        "participants": [{"participants": n, "loop": 2.0 * n, "lockstep": n} for n in (1, 10)],
        "rounds": [{"rounds": n, "seconds": n, "mb": 300.0} for n in (1, 10)],
    }
    made = growth.draw(out, tmp_path)
    assert [p.name for p in made] == [
        "bench_clients.png",
        "bench_participants.png",
        "bench_rounds.png",
    ]
    assert "2.00 times" in (tmp_path / "bench_participants.txt").read_text()
    assert "100" in growth.text(out)


# -- peers -----------------------------------------------------------------------------------------
def test_a_missing_library_is_a_line(monkeypatch):
    monkeypatch.setitem(peers.NEEDS, "pfl", "no_such_library")
    ours = {"name": "fedbook", "wall": 1.0, "cpu": 2.0, "whole": 30.0, "start": 10.0}
    monkeypatch.setattr(
        peers.subprocess,
        "run",
        lambda *a, **k: type(
            "Done", (), {"returncode": 0, "stdout": json.dumps(ours | {"accuracy": 0.5})}
        ),
    )
    out = peers.bench_peers(("fedbook", "pfl"))
    assert out["missing"] == ["pfl"] and out["same_accuracy"]
    assert "pfl: skipped, not installed" in peers.text(out)
    assert "| fedbook | 2.00 | 1.00 | 1.00 | 10 | 0.500 |" in peers.markdown(out)


def test_the_job_of_the_peers_is_what_the_page_says(monkeypatch):
    monkeypatch.setattr(peers, "ROUNDS", 3)
    fed, model = peers.job()
    assert len(fed) == 100 and {len(c.train) for c in fed.clients} == {128}
    marks = []
    trained = peers.run_fedbook(fed, model, lambda: marks.append(1))
    assert len(marks) == 3 and 0 < peers.accuracy(trained, fed) <= 1


# -- single steps ----------------------------------------------------------------------------------
def test_the_bare_loop_does_the_same_arithmetic():
    out = bare.speed(rounds=1, repeats=1, clients=12)
    assert out["largest_weight_difference"] <= 1e-6
    assert 550_000 < out["parameters"] < 650_000 and out["participants"] == 10
    few = bare.peak_memory(10)
    assert few["peak_mb"] > few["before_mb"] > 0
    memory = {"memory": {"10": few, "1000": few}, "memory_1000_over_10": 1.0}
    out |= memory | {"memory_1000_over_10_added": 1.0}
    assert f"bare / fedbook {out['bare_over_fedbook']:.3f}" in bare.text(out)


def test_prompts_are_timed_five_ways():
    torch.set_num_threads(2)
    out = prompts.bench_prompts(batch=2, repeats=2, backbone=vit())
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert set(out["images_per_second"]) == set(out["kept_is_faster_than"]) == set(prompts.LABELS)
    assert min(out["images_per_second"].values()) > 0
    assert out["kept_is_faster_than"]["kept"] == 1
    assert out["settings"]["backbone"] == "VisionTransformer"


def test_prompts_are_told_as_measured():
    fake = {
        "images_per_second": {"kept": 125.0, "nothing": 100.0, "plain": 160.0},
        "kept_is_faster_than": {"kept": 1.0, "nothing": 1.25, "plain": 0.8},
    }
    *rows, last = prompts.text(fake).splitlines()[1:]
    found = [line.split()[-3:] for line in rows]
    assert found == [["8.00", "125", "1.00"], ["10.00", "100", "1.25"], ["6.25", "160", "0.80"]]
    assert "costs 1.25 times" in last


def test_the_index_is_faster_than_a_stock_encoder():
    out = index.bench_index(batch=16, repeats=3, ffn=512)
    assert out["stock_over_ours"] > 1.0 and "DSA-IGN" in index.text(out)


def test_the_command_prints_numbers(capsys, monkeypatch):
    found = {"stock_over_ours": 2.0}
    monkeypatch.setattr(index, "bench_index", lambda: found)
    assert main(["bench", "index", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    assert main(["bench", "index"]) == 0 and "2.00 times" in capsys.readouterr().out
