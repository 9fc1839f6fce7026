"""The command line: every bad input is one line with a hint, every command has its shape, nothing
is computed twice."""

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from bad_inputs import RUN

from fedbook import papers
from fedbook.cli import main
from fedbook.papers import rehearse
from fedbook.results import Store, config_key


@pytest.fixture(scope="module")
def packs(tmp_path_factory):
    """A tiny pack of two domains and four classes, one cut off in the middle, one whose columns do
    not fit.
    """
    folder = tmp_path_factory.mktemp("packs")
    rng = np.random.default_rng(0)
    y = np.arange(160) % 4
    x = rng.integers(0, 120, (160, 8, 8)).astype(np.uint8)
    x[np.arange(160), y * 2] += 120
    columns = {
        "y": y,
        "split": (np.arange(160) % 5 == 0).astype(np.uint8),
        "domain": np.arange(160) // 80,
    }
    np.savez(
        folder / "tiny.npz",
        x=x,
        domain_names=["left", "right"],
        class_names=list("abcd"),
        **columns,
    )
    (folder / "cut.npz").write_bytes((folder / "tiny.npz").read_bytes()[:3000])
    np.savez(folder / "misfit.npz", x=x[:100], **columns)
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "latest.json").write_text("{not json")
    (folder / "file").write_text("in the way")
    (folder / "future").mkdir()
    (folder / "future" / "a.jsonl").write_text(
        json.dumps({"format": 99, "key": config_key({}), "config": {}, "metrics": {}}) + "\n"
    )
    for name, line in (("rehearsed", "a,fedgcr/table1,1,b,here,ok,,,,,"), ("torn", "a,b")):
        (folder / name).mkdir()
        text = ",".join(rehearse.FIELDS) + "\n" + line + "\n"
        (folder / name / "rehearsal_paper.csv").write_text(text)
    return folder


@pytest.fixture
def call(packs, tmp_path, monkeypatch, capsys):
    """Run a command in this process, in a folder of its own; `{packs}` stands for the folder of
    packs.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDBOOK_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("FEDBOOK_FIGURES", str(tmp_path / "figures"))
    monkeypatch.delenv("FEDBOOK_DEBUG", raising=False)

    def run(line):
        try:
            code = main([part.replace("{packs}", str(packs)) for part in line.split()])
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_full_disk(call, monkeypatch, tmp_path):
    def full(fd):
        raise OSError(28, "No space left on device")

    real = os.fsync
    monkeypatch.setattr("fedbook.results.os.fsync", full)
    code, _, err = call(RUN)
    monkeypatch.setattr("fedbook.results.os.fsync", real)
    assert code == 1 and "no space left" in err and len(err.strip().splitlines()) == 1
    assert Store(tmp_path / "results").load() == []


@pytest.mark.parametrize("line", ["run nosuch digits5_offline", "reproduce nosuch/table1"])
def test_the_real_process_shows_no_traceback(line, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "fedbook.cli", *line.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (
        done.returncode == 1
        and done.stderr.startswith("fedbook: error: ")
        and len(done.stderr.splitlines()) == 1
    )


def test_debug_shows_the_traceback(call, monkeypatch):
    monkeypatch.setenv("FEDBOOK_DEBUG", "1")
    with pytest.raises(Exception, match="unknown dataset"):
        call("run fedavg mnits")


def test_interrupt_and_broken_pipe_are_quiet(call, monkeypatch):
    def stop(args):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedbook.cli.tables.claims", stop)
    code, _, err = call("claims")
    assert code == 130 and "finished runs are kept" in err and len(err.strip().splitlines()) == 1


def test_run_stores_a_line_and_tells_it(call, tmp_path):
    code, out, _ = call(RUN + " --rounds 8 --set lr=0.05 --json")
    result = json.loads(out)
    assert (
        code == 0
        and result["config"]["rounds"] == 8
        and result["config"]["method"] == {"name": "fedavg", "lr": 0.05}
    )
    assert result["metrics"]["avg_client"] > 0.5
    [stored] = Store(tmp_path / "results").load()
    assert stored["key"] == result["key"] and stored["metrics"] == result["metrics"]
    assert {"versions", "device", "seconds", "scale", "seed", "date"} <= set(stored)
    assert stored["engine"] in ("loop", "lockstep")
    code, out, _ = call(RUN + " --rounds 8 --set lr=0.05")
    assert code == 0 and "avg_client" in out and "MB up" in out


def test_run_is_deterministic_and_resumes(call, tmp_path):
    first = json.loads(call(RUN + " --rounds 4 --json")[1])["metrics"]
    call(RUN + f" --rounds 2 --checkpoint {tmp_path}/state")
    resumed = json.loads(call(RUN + f" --rounds 4 --checkpoint {tmp_path}/state --json")[1])[
        "metrics"
    ]
    assert resumed["clients"] == first["clients"] and resumed["curves"] == first["curves"]


@pytest.mark.parametrize("method", ["fedgcr", "fgpt", "pt_fedavg", "client2vec", "grp_fed"])
def test_a_dry_run_knows_the_network_a_method_needs(call, method):
    """Nothing but the method and the data is named; the cost is counted without training."""
    code, out, said = call(f"run {method} digits5_offline --rounds 1 --dry-run")
    assert code == 0 and not said and "FLOP" in out


def test_dry_run_prints_the_settings_and_trains_nothing(call, tmp_path):
    code, out, _ = call(RUN + " --dry-run --json --partition iid --set partition.clients=4")
    plan = json.loads(out)
    assert (
        code == 0 and plan["clients"]["train"] == [32] * 4 and plan["stages"]["solve"]["lr"] == 0.1
    )
    assert not (tmp_path / "results").exists()
    code, out, _ = call(RUN + " --dry-run --partition iid --set partition.clients=4")
    assert "clients      4 of " in out and "32 to 32 training samples each" in out
    assert "TFLOP" in out
    code, out, _ = call("run fedavg pacs --scale paper --dry-run --json")
    config = json.loads(out)["config"]
    assert (config["rounds"], config["method"]["lr"], config["dataset"]["size"]) == (50, 1e-3, 224)


def test_list_shape(call):
    code, out, _ = call("list --json")
    entries = json.loads(out)
    assert code == 0 and [e["id"] for e in entries] == list(papers.specs())
    for e in entries:
        assert {"id", "paper", "kind", "title", "scales"} <= set(e)
        assert set(e["scales"]) == {"smoke", "laptop", "paper"}
        assert all(set(s) == {"done", "runs", "seconds"} for s in e["scales"].values())
    code, out, _ = call("list")
    assert code == 0 and len(out.splitlines()) == len(entries) + 1 and "fgpt/table11" in out


def test_lines_of_other_programs_are_left_alone(call, tmp_path):
    Store(tmp_path / "results").append(
        {"key": config_key({"a": 1}), "config": {"a": 1}, "metrics": {}, "spec": "x"}, "foreign"
    )
    assert call("list")[0] == 0 and call("claims grp_fed")[0] == 0


def test_claims_shape(call):
    code, out, _ = call("claims --json")
    verdicts = json.loads(out)
    assert code == 0 and len(verdicts) == 57
    fields = {"id", "paper", "text", "status", "margin", "clear", "seeds", "scale", "note"}
    for v in verdicts:
        assert fields < set(v) and v["status"] in ("held", "failed", "untested")
        assert v["verdict"] in ("supported", "contradicted", "mixed", "open")
    code, out, _ = call("claims --scale published")
    assert code == 0 and "gcr4   mixed" in out and max(map(len, out.splitlines())) <= 80
    assert "own studies: 0 supported" in out


def test_claims_of_a_paper_one_claim_and_filters(call):
    ids = [v["id"] for v in json.loads(call("claims grp_fed --json")[1])]
    assert ids == [f"grp{n}" for n in range(1, 9)]
    [one] = json.loads(call("claims gcr4 --scale published --json")[1])
    assert len(one["checks"]) == 48 and {"label", "verdict", "interval"} < set(one["checks"][0])
    out = call("claims gcr4 --scale published")[1]
    assert out.count("\n  for") + out.count("\n  against") == 48
    against = call("claims fedgcr --scale published --against")[1]
    assert "gcr4" in against and "gcr1 " not in against
    still = call("claims --scale published --open")[1]
    assert "grp5" in still and "grp1 " not in still
    assert "did you mean gcr1" in call("claims gcr01")[2]
    assert call("claims --open --against")[0] == 2


def test_data_and_check(call):
    code, out, _ = call("data")
    assert code == 0 and "digits5_offline" in out and "offline" in out
    assert {i["name"] for i in json.loads(call("data --json")[1])} >= {
        "digits5_offline",
        "emoji7",
        "pacs",
    }
    code, out, _ = call("check --json")
    assert code == 0 and json.loads(out)["packages"]["torch"]
    assert "device" in call("check")[1]


@pytest.fixture
def tiny_table(packs, monkeypatch):
    """Client2Vec's Table 9 on the tiny pack; call it with options of methods to change them."""
    paper = papers.PAPERS["client2vec"]
    smoke = paper.scale("smoke")
    own = dataclasses.replace(
        smoke.own,
        clients={"cifar10": 4},
        models={"resnet18": {"name": "linear"}},
        index=smoke.own.index | {"index_samples": 8, "index_limit": 8},
        index_share=0.002,
    )

    def use(**methods):
        tiny = dataclasses.replace(
            smoke,
            rounds=2,
            seeds=2,
            evaluate_every=1,
            data={"cifar10": {"name": str(packs / "tiny.npz")}},
            solver={"lr": 0.1, "participation": 1.0},
            methods=methods,
            own=own,
        )
        changed = dataclasses.replace(paper, scales=(tiny,))
        monkeypatch.setitem(papers.PAPERS, "client2vec", changed)

    use()
    return use


def test_reproduce_prints_draws_and_computes_only_what_is_missing(call, tiny_table, tmp_path):
    code, out, err = call("reproduce client2vec/table9 --jobs 1")
    assert code == 0 and "8 runs, 8 to compute" in err
    assert "not comparable (smoke)" in out and "21.35" in out and "±" in out
    assert max(map(len, out.splitlines())) <= 80 or str(tmp_path) in out
    drawn = {p.name for p in (tmp_path / "figures").iterdir()}
    assert drawn == {f"client2vec_table9_smoke.{suffix}" for suffix in ("png", "pdf", "txt")}
    assert "FedAvgM" in (tmp_path / "figures" / "client2vec_table9_smoke.txt").read_text()
    code, out, err = call("reproduce client2vec/table9 --jobs 1 --seeds 3 --json")
    assert "12 runs, 4 to compute" in err
    [report] = json.loads(out)
    assert report["id"] == "client2vec/table9" and report["rows"][0]["seeds"] == 3
    assert "0 to compute" in call("reproduce client2vec/table9 --seeds 3")[2]
    assert len(Store(tmp_path / "results").load()) == 12
    code, out, _ = call("figures client2vec/table9 --scale smoke")
    assert code == 0 and out.count("client2vec_table9_smoke") == 2


def test_an_interrupt_loses_at_most_one_run(call, tiny_table, tmp_path, monkeypatch):
    from fedbook.experiment import Experiment

    real, count = Experiment.run, []

    def third_is_interrupted(self, **options):
        count.append(self)
        if len(count) == 3:
            raise KeyboardInterrupt
        return real(self, **options)

    monkeypatch.setattr(Experiment, "run", third_is_interrupted)
    code, _, err = call("reproduce client2vec/table9 --jobs 1")
    assert code == 130 and len(Store(tmp_path / "results").load()) == 2
    code, _, err = call("reproduce client2vec/table9 --jobs 1")
    assert code == 0 and "6 to compute" in err


def test_a_run_that_diverges_is_an_outcome(call, tiny_table, tmp_path):
    """It is stored and named, is not run again, and the others are measured."""
    tiny_table(fedavgm={"lr": 1e30})
    code, out, err = call("reproduce client2vec/table9 --jobs 1")
    assert code == 0 and "training diverged: client" in err and "FedAvg " in out
    assert "diverged: 2 of 4 numbers (fedavgm)" in out and "not run" not in out
    stored = Store(tmp_path / "results").load()
    assert len(stored) == 8 and sum("diverged" in r["metrics"] for r in stored) == 4
    assert "0 to compute" in call("reproduce client2vec/table9 --jobs 1")[2]
    assert "fedavgm" not in call("show")[1] and call("show fedavg")[0] == 0


def test_a_failing_run_does_not_take_the_others_along(call, tiny_table, tmp_path):
    tiny_table(fedavgm={"server_momentum": -1.0})
    code, out, err = call("reproduce client2vec/table9 --jobs 1")
    assert code == 1 and "momentum" in err.splitlines()[-1] and "FedAvg " in out
    assert len(Store(tmp_path / "results").load()) == 4


def test_jobs_run_in_processes_of_one_thread(call, tiny_table, tmp_path):
    code, _, err = call("reproduce client2vec/table9 --jobs 2")
    results = Store(tmp_path / "results").load()
    assert code == 0 and len(results) == 8, err
    assert {r["versions"]["threads"] for r in results} == {1}


def test_a_drawing_has_nothing_to_run(call):
    code, out, _ = call("reproduce fedgcr/fig1")
    assert code == 0 and "a drawing only" in out


def test_a_scale_a_paper_lacks_is_said(call, tiny_table):
    code, _, err = call("reproduce client2vec/table9 --scale laptop")
    assert code == 1 and "unknown scale of client2vec 'laptop' (known: smoke)" in err


GUESSED = {  # what the word "domain" in a description used to get wrong
    "ecg_offline": ("by_group", "ecg_resnet", 12),
    "roles_offline": ("by_group", "lstm", 8),
    "mitbih": ("by_group", "ecg_resnet", 46),
    "shakespeare": ("by_group", "lstm", 81),
    "five_dataset_chars74k": ("by_domain", "cnn", 5),
}


@pytest.mark.parametrize("name", GUESSED)
def test_domains_come_from_the_catalogue(name, monkeypatch, tmp_path):
    from fedbook import data
    from fedbook.experiment import plain

    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path))
    partition, model, domains = GUESSED[name]
    e = plain("fedavg", name)
    assert (e.partition["name"], e.model["name"]) == (partition, model)
    assert data.info(name)["domains"] == domains


def test_patients_and_roles_are_clients(call):
    for name, clients in (("ecg_offline", 12), ("roles_offline", 8)):
        plan = json.loads(call(f"run fedavg {name} --dry-run --json")[1])
        assert plan["clients"]["number"] == len(set(plan["clients"]["types"])) == clients
    code, out, err = call("run fedavg ecg_offline --rounds 1 --quiet")
    assert code == 0 and "avg_client" in out, err


def test_lab_passes_options_on(call, monkeypatch):
    asked = []
    monkeypatch.setenv("FEDBOOK_NOTEBOOKS", ".")
    monkeypatch.setattr("subprocess.call", lambda line: asked.append(line) or 0)
    assert call("lab --no-browser --port 8899 --ip=0.0.0.0")[0] == 0
    assert asked[0][1:] == [
        "-m",
        "jupyterlab",
        ".",
        "--no-browser",
        "--port",
        "8899",
        "--ip=0.0.0.0",
    ]
    code, _, err = call("list --no-browser")
    assert code == 2 and "unrecognized arguments: --no-browser" in err


def test_help_has_examples(call):
    for line in ("--help", "reproduce --help", "run --help"):
        code, out, _ = call(line)
        assert code == 0 and "example" in out and "fedbook " in out


# -- results of another machine --------------------------------------------------------------------
def test_merge_says_what_it_did(call, packs, tmp_path):
    for seed in (0, 1):
        call(f"{RUN} --seed {seed} --results {tmp_path}/gpu")
    Store(tmp_path / "results").append(Store(tmp_path / "gpu").load(seed=0)[0], "run_laptop")
    code, out, err = call(f"merge {tmp_path}/gpu {{packs}}/future/a.jsonl")
    assert code == 0 and "run_laptop.jsonl: 1 new, 1 known, 0 different, 0 refused" in out
    assert "a.jsonl: 0 new, 0 known, 0 different, 1 refused" in out and "format 99" in err
    assert len(Store(tmp_path / "results").load()) == 2
    assert [p.name for p in (tmp_path / "results").iterdir()] == ["run_laptop.jsonl"]
    again = json.loads(call(f"merge {tmp_path}/gpu/run_laptop.jsonl --json")[1])
    assert [(m["new"], m["known"], m["refused"]) for m in again] == [(0, 2, [])]


def test_merge_warns_of_another_outcome(call, tmp_path):
    config = {"seed": 0}
    for folder, value in (("gpu", 1), ("results", 2)):
        line = {"key": config_key(config), "config": config, "metrics": {"avg_client": value}}
        Store(tmp_path / folder).append(line, "run_laptop")
    code, out, err = call(f"merge {tmp_path}/gpu")
    assert code == 0 and "1 different" in out and config_key(config) in err
    assert Store(tmp_path / "results").load()[0]["metrics"]["avg_client"] == 2
