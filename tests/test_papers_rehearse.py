"""A rehearsal proves that every distinct run works, on drawn images where the data is missing, and
prices it."""

import csv
import dataclasses
import json

import pytest

from fedbook import papers
from fedbook.cli import main
from fedbook.papers import rehearse


def test_runs_that_differ_in_a_number_only_are_one_rehearsal():
    """Table 10: delta from 0.1 to 0.9 (0.5 is not said again), DIF 1 and 5, three seeds."""
    found = rehearse.distinct([papers.get("fedgcr/table10")], "paper")
    assert all(tables == ["fedgcr/table10"] for tables, _ in found)
    sizes = sorted(len(runs) for _, runs in found)
    assert sum(sizes) == 5 * 2 * 3 and len(sizes) < 5
    specs = papers.PAPERS["fedgcr"].specs.values()
    keys = [run.experiment.key for _, own in rehearse.distinct(specs, "paper") for run in own]
    planned = {run.experiment.key for spec in specs for run in spec.plan("paper")}
    assert len(keys) == len(set(keys)) and set(keys) == planned


def test_what_was_rehearsed_for_fewer_runs_is_priced_anew(tmp_path, monkeypatch):
    """Table 13's FedAvg is Table 6's too: the same small round, more runs to pay."""
    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path))
    plan = rehearse.distinct([papers.get("fedgcr/table13")], "laptop")[0]
    few = rehearse._one(plan[1][:1], plan[0])
    kept = {few.key: few}
    spec = papers.get("fedgcr/table13")
    again = next(rehearse.rehearse([spec], "laptop", kept))
    assert again.key == few.key and (few.runs, again.runs) == (1, 3)
    assert again.seconds_per_image == few.seconds_per_image, "nothing was trained again"
    assert again.hours_t4 == pytest.approx(3 * few.hours_t4)


def test_missing_data_is_drawn(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path))
    found = list(rehearse.rehearse([papers.get("fedgcr/table13")], "laptop"))
    assert len(found) == 4 and {r.outcome for r in found} == {"ok"}
    assert {r.data for r in found} == {"drawn"} and all(r.runs == 3 for r in found)
    assert all(r.memory_mb > 0 and 0 < r.hours_a100 < r.hours_t4 for r in found)
    both, plain = (next(r for r in found if r.what.startswith(m)) for m in ("fedgcr", "fedavg"))
    assert both.pflop > plain.pflop, "FedGCR's reference passes cost something"


def test_the_command_keeps_what_came_out(tmp_path, monkeypatch, capsys):
    line = f"reproduce client2vec/table9 --scale smoke --rehearse --results {tmp_path}"
    assert main(line.split()) == 0
    out, err = capsys.readouterr()
    assert "4 distinct runs, 0 broken" in out and "4/4" in err
    kept = tmp_path / "rehearsal_smoke.csv"
    lines = list(csv.DictReader(kept.open()))
    assert len(lines) == 4 and {r["data"] for r in lines} == {"here"}
    assert not list(tmp_path.glob("*.jsonl")), "a rehearsal is no result"
    assert main(line.split()) == 0 and "4/4" not in capsys.readouterr().err, "done is done"
    kept.unlink()

    paper = papers.PAPERS["client2vec"]
    smoke = dataclasses.replace(paper.scale("smoke"), solver={"lr": 0.1, "no_such": 1})
    broken = dataclasses.replace(paper, scales=(smoke,))
    monkeypatch.setitem(papers.PAPERS, "client2vec", broken)
    assert main([*line.split(), "--json"]) == 1
    out, err = capsys.readouterr()
    assert all("no_such" in r["outcome"] for r in json.loads(out))
    assert "4 of 4 distinct runs broke" in err.splitlines()[-1]


@pytest.mark.parametrize("key", papers.PAPERS)
def test_facts_are_there_for_whatever_may_be_missing(key):
    for scale in papers.PAPERS[key].scales:
        for data in scale.data.values():
            name = data["name"]
            assert name.endswith("_offline") or name in rehearse.FACTS or scale.name == "laptop"
