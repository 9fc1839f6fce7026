"""Adding a paper touches its own folder and one line: a tiny fifth one, of one scale, goes through
every command."""

import importlib
import json
import sys

import pytest

from fedbook import papers
from fedbook.cli import main
from fedbook.results import Store

PACKAGE = '''
"""A paper of one table, one scale and one claim."""

from dataclasses import dataclass
from pathlib import Path

from fedbook.experiment import Experiment
from fedbook.papers.claims import Claims, leads
from fedbook.papers.draw import learning_curves
from fedbook.papers.paper import Figure, Paper, Scale
from fedbook.papers.rows import Row
from fedbook.papers.tune import Grid

claims = Claims("tiny")


@dataclass(frozen=True, kw_only=True)
class Own:
    clients: int


@claims("tiny1", "FedAvgM is above FedAvg")
def tiny1(t):
    yield from leads(t, "fedavgm", "accuracy", "table1")


def experiment(row, scale, seed):
    return Experiment(
        dataset=scale.data[row["dataset"]],
        partition={"name": "iid", "clients": scale.own.clients, "limit": [60, 20]},
        model={"name": "linear"},
        method={"name": row.method, **scale.solver, **scale.methods.get(row.method, {})},
        rounds=scale.rounds,
        seed=seed,
        scale=scale.name,
    )


SMOKE = Scale(
    name="smoke",
    rounds=2,
    seeds=2,
    data={"digits": {"name": "digits5_offline", "size": 8}},
    solver={"lr": 0.05, "participation": 2},
    own=Own(clients=4),
)
PAPER = Paper(
    key="tiny",
    title="Tiny",
    reference="nobody, never",
    published=Path(__file__).parent / "published",
    scales=(SMOKE,),
    experiment=experiment,
    metrics={"accuracy": "best"},
    plots={"table1": learning_curves},
    figures={},
    grid=Grid(
        on=({"dataset": "digits"},),
        lr=(0.05, 0.1),
        more_lr=(),
        knobs={"fedavg": None, "fedavgm": ("server_momentum", (0.5, 0.9))},
        score="avg_client",
    ),
    claims=tuple(claims),
)
'''
TABLE = """paper,table,dataset,method,metric,value,std,unit,spread_kind,method_label,note
tiny,1,digits,fedavg,accuracy,50.0,1.0,percent,std_over_3_runs,FedAvg,
tiny,1,digits,fedavgm,accuracy,60.0,1.0,percent,std_over_3_runs,FedAvgM,
"""
TABLES = "file,table,rows,blank_cells,source_version,content\ntable1.csv,1,2,0,only,one result\n"
FIGURES = "figure,shows,axes,data_needed,numeric_facts_in_text,basis\n1,a drawing,none,none,,text\n"


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    published = tmp_path / "tiny_paper" / "published"
    published.mkdir(parents=True)
    (tmp_path / "tiny_paper" / "__init__.py").write_text(PACKAGE)
    for name, text in (("table1", TABLE), ("tables", TABLES), ("figures", FIGURES)):
        (published / f"{name}.csv").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    paper = importlib.import_module("tiny_paper").PAPER
    monkeypatch.setitem(papers.PAPERS, "tiny", paper)  # the one line
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDBOOK_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("FEDBOOK_FIGURES", str(tmp_path / "figures"))
    yield paper
    del sys.modules["tiny_paper"]


def test_a_fifth_paper_goes_through_every_command(tiny, tmp_path, capsys):
    def call(line):
        code = main(line.split())
        out, err = capsys.readouterr()
        assert code == 0, err
        return out

    listed = {e["id"]: e for e in json.loads(call("list --json"))}
    assert listed["tiny/table1"]["scales"]["smoke"]["runs"] == 4
    assert listed["tiny/table1"]["scales"]["laptop"] == {"done": 0, "runs": 0, "seconds": None}
    assert listed["tiny/fig1"]["kind"] == "sketch" and "tiny/table1" in call("list")

    [report] = json.loads(call("reproduce tiny/table1 --jobs 1 --json"))
    assert [r["paper"] for r in report["rows"]] == [50.0, 60.0]
    assert all(r["seeds"] == 2 for r in report["rows"]) and len(report["figures"]) == 2
    assert len(Store().load(scale="smoke")) == 4

    by_id = {v["id"]: v for v in json.loads(call("claims --scale smoke --json"))}
    assert by_id["tiny1"]["seeds"] == 2 and by_id["tiny1"]["margin"] is not None
    assert json.loads(call("claims --json"))[-1]["id"] == "tiny1"
    assert "tiny1" in call("claims --scale published")

    chosen = json.loads(call("tune tiny --scale smoke --jobs 1 --json"))
    assert [len(t) for t in chosen["trials"].values()] == [2, 3]
    assert main("tune tiny".split()) == 1 and "known: smoke" in capsys.readouterr().err
    assert main("tune tini --scale smoke".split()) == 1
    assert "did you mean tiny?" in capsys.readouterr().err
