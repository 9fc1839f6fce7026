"""Every table and figure is there, its runs follow from its printed rows, and paper stands beside
ours."""

import csv
import dataclasses
import json

import pytest

from fedbook import FedbookError, methods, papers, plots
from fedbook.experiment import Experiment, _within
from fedbook.papers import client2vec, fedgcr, fgpt, grp_fed
from fedbook.papers.spec import PUBLISHED, SCALES, Row, estimate, ordering, read_rows, tolerance

MODULES = (fedgcr, client2vec, grp_fed, fgpt)
STUDIES = ["fedgcr/quirks", "fedgcr/grouping", "fedgcr/size", "client2vec/local"]
STUDIES += ["grp_fed/fig4_own", "grp_fed/printed", "grp_fed/weights", "grp_fed/choices"]
STUDIES += ["fgpt/unseen", "fgpt/prompt_rate"]


def test_all_34_tables_and_all_figures_are_listed():
    specs = papers.specs()
    assert sum(s.kind == "table" for s in specs.values()) == 34
    assert sum(s.kind != "study" for s in specs.values()) == 54
    assert [i for i, s in specs.items() if s.kind == "study"] == STUDIES
    assert {i for i, s in specs.items() if s.kind == "sketch"} == {
        *(f"fedgcr/fig{n}" for n in (1, 2)),
        *(f"client2vec/fig{n}" for n in (1, 3, 6)),
        "grp_fed/fig2",
        "fgpt/fig1",
    }
    assert all(papers.get(i) in specs.values() for i in papers.HEADLINE)


def test_every_printed_row_is_read():
    with open(PUBLISHED / "tables_index.csv", newline="") as f:
        for entry in csv.DictReader(f):
            rows = read_rows(entry["file"])
            assert len(rows) == int(entry["rows"]), entry["file"]
            assert sum(r.value is None for r in rows) == int(entry["blank_cells"]), entry["file"]
    row = read_rows("fedgcr_table1_digit_five.csv")[0]
    assert (row.settings, row.method, row.metric, row.value, row.std) == (
        {"dataset": "digit_five", "dif": 1},
        "fedavg",
        "avg",
        68.19,
        0.26,
    )


@pytest.mark.parametrize("module", MODULES)
def test_a_scale_is_numbers_and_names_only(module):
    assert set(module.SCALES) == set(SCALES)
    json.dumps(module.SCALES)


def test_unknown_id_suggests_a_near_one():
    with pytest.raises(FedbookError, match="did you mean fedgcr/table1"):
        papers.get("fedgcr/tabel1")


def test_runs_are_the_distinct_settings_times_seeds():
    spec = papers.get("fedgcr/table1")
    fedavg = [r for r in spec.runs("paper") if r.row.method == "fedavg"]
    assert [(r.row["dif"], r.seed) for r in fedavg] == [
        (d, s) for d in (1, 5, 10) for s in (0, 1, 2)
    ]
    assert len({r.experiment.key for r in fedavg}) == 9
    e = fedavg[0].experiment
    assert (
        e.rounds == 50
        and e.method["optimizer"] == "adamw"
        and e.method["lr"] == 1e-3
        and e.dataset["size"] == 224
    )
    assert len([r for r in spec.runs("smoke", seeds=2) if r.row.method == "fedavg"]) == 6


def test_tables_share_runs():
    """The FedAvg row of the ablation (Table 5) is the one of Table 1 at DIF 10: computed once."""
    key = {
        t: [r.experiment.key for r in papers.get(t).runs("laptop") if r.row.method == "fedavg"]
        for t in ("fedgcr/table1", "fedgcr/table5")
    }
    assert set(key["fedgcr/table5"]) < set(key["fedgcr/table1"])


def test_sweeps_share_the_runs_of_the_main_table():
    """T' = T, delta = 0.5 and GMM are what Table 1 has, so a sweep's middle is not computed
    again.
    """
    main = {
        r.experiment.key
        for r in papers.get("fedgcr/table1").runs("laptop")
        if r.row.method == "fedgcr"
    }
    for id, usual in (
        ("table3", ("t_prime", 5)),
        ("table10", ("delta", 0.5)),
        ("table14", ("clustering_algo", "gmm")),
    ):
        for run in papers.get(f"fedgcr/{id}").runs("laptop"):
            if run.row["dataset"] == "digit_five":
                assert (run.experiment.key in main) == (run.row[usual[0]] == usual[1]), (
                    run.row.setting
                )


def test_clusters_keep_their_distance_from_the_number_of_types():
    """emoji7 has seven domains where DomainNet has six: T' = 5 of 6 becomes 6 of 7."""
    runs = papers.get("fedgcr/table8").runs("laptop")
    asked = {r.row["t_prime"]: r.experiment.method.get("clusters") for r in runs}
    assert asked == {4: 5, 5: 6, 7: 8, 8: 9}


def test_a_table_may_have_seeds_of_its_own():
    assert (
        papers.get("fedgcr/table1").seeds("laptop") == 3
        and papers.get("fedgcr/table3").seeds("laptop") == 1
    )
    assert (
        papers.get("fedgcr/table3").seeds("laptop", 2) == 2
        and papers.get("fedgcr/table3").seeds("paper") == 3
    )


def test_the_study_of_quirks_changes_one_thing_at_a_time():
    on, off = (
        {
            r.row["quirk"]: r.experiment
            for r in papers.get("fedgcr/quirks").runs("laptop")
            if r.row["on"] == flag
        }
        for flag in (1, 0)
    )
    main = {r.experiment.key for r in papers.get("fedgcr/table1").runs("laptop")}
    assert set(on) == set(off) == set(fedgcr.STUDY) and {e.key for e in off.values()} < main
    assert on["fedsam_lr_x10"].method["lr"] == pytest.approx(10 * off["fedsam_lr_x10"].method["lr"])
    assert on["prompt_tiling"].model == {**off["prompt_tiling"].model, "tiled": True}
    assert on["as_published"].build_method() != off["as_published"].build_method()
    assert len({e.key for e in on.values()}) == len(on)


def test_built_follows_from_the_registered_methods(monkeypatch):
    from dataclasses import replace

    spec = papers.get("fedgcr/table1")
    monkeypatch.setattr(methods, "names", lambda: [])
    assert replace(spec).built == "no" and replace(spec).runs("smoke") == []
    monkeypatch.setattr(methods, "names", lambda: ["fedavg"])
    assert replace(spec).built == "partial"
    assert {r.row.method for r in replace(spec).runs("smoke")} == {"fedavg"}
    everything = [r.method for s in papers.specs().values() for r in s.rows] + ["client2vec"]
    monkeypatch.setattr(methods, "names", lambda: everything)
    assert replace(spec).built == "yes"
    assert replace(papers.get("client2vec/table9")).built == "yes"
    assert papers.get("fgpt/fig1").built == "sketch"


def stored(spec, scale, value):
    """Made-up results for every FedAvg run of a spec: metrics are value(run)."""
    found = {}
    for run in spec.runs(scale):
        if run.row.method == "fedavg":
            e = run.experiment
            found[e.key] = {
                "key": e.key,
                "config": e.config,
                "method": e.build_method().describe(),
                "seconds": 10.0,
                "metrics": value(run),
            }
    return found


def test_paper_against_ours():
    spec = papers.get("fedgcr/table1")
    accuracy = {0: 0.68, 1: 0.69, 2: 0.70}
    results = stored(
        spec,
        "laptop",
        lambda r: {"avg_type": accuracy[r.seed], "sigma_type": 0.2, "sigma_client": 0.1},
    )
    table = spec.tabulate("laptop", results)
    assert len(table) == 72
    first = table[0]
    assert (first["setting"], first["method"], first["metric"]) == (
        "digit_five dif=1",
        "fedavg",
        "avg",
    )
    assert (
        first["ours"] == pytest.approx(69.0)
        and first["ours_std"] == pytest.approx(1.0)
        and first["seeds"] == 3
    )
    assert (
        first["delta"] == pytest.approx(69.0 - 68.19)
        and first["verdict"] == "not comparable (laptop)"
    )
    verdicts = {r["verdict"] for r in table if r["method"] != "fedavg"}
    assert verdicts <= {"not built yet", "not run"}


def test_a_verdict_only_at_paper_scale():
    spec = papers.get("fedgcr/table1")
    results = stored(
        spec,
        "paper",
        lambda r: {"avg_type": 0.6819, "sigma_type": 0.5, "sigma_client": 0.19 + r.seed / 100},
    )
    rows = {r["metric"]: r["verdict"] for r in spec.tabulate("paper", results)[:3]}
    assert rows == {"avg": "reproduced", "sigma_type": "differs", "sigma_client": "reproduced"}


def test_tolerance_is_a_point_or_two_standard_deviations():
    row = Row({}, "m", "avg", "percent", 50.0, 0.3, "std_over_3_runs")
    assert tolerance(row, None) == 1.0 and tolerance(row, 0.4) == pytest.approx(1.0)
    assert tolerance(row, 4.0) == pytest.approx(2 * (0.3**2 + 16) ** 0.5)
    assert tolerance(Row({}, "m", "x", "macro_f1", 0.5), None) == 0.01
    assert (
        tolerance(Row({}, "m", "x", "percent", 50.0, 9.0, "variance_last_10_rounds"), None) == 6.0
    )


def test_ordering_counts_pairs_within_a_setting():
    rows = [("a", 1.0, 5.0), ("a", 2.0, 6.0), ("a", 3.0, 4.0), ("b", 1.0, 2.0), ("b", 2.0, None)]
    table = [{"setting": s, "metric": "m", "paper": p, "ours": o} for s, p, o in rows]
    assert ordering(table) == (1, 3)


def test_changed_defaults_make_a_result_stale_added_ones_do_not():
    assert _within({"a": 1, "b": {"c": [1]}}, {"a": 1, "b": {"c": [1], "new": 0}, "more": 2})
    assert not _within({"a": 1}, {"a": 2}) and not _within({"a": 1}, {})
    e = Experiment({"name": "d"}, {"name": "iid"}, {"name": "cnn"}, {"name": "fedavg"}, 3)
    result = {"method": e.build_method().describe()}
    assert e.find({e.key: result}) is result
    result["method"]["solve"] = {**result["method"]["solve"], "lr": 77.0}
    assert e.find({e.key: result}) is None


def test_cost_is_estimated_from_runs_of_the_same_shape():
    parts = {"name": "d"}, {"name": "iid"}, {"name": "cnn"}
    e = Experiment(*parts, {"name": "fedavg"}, rounds=10)
    old = [
        {"config": Experiment(*parts, {"name": m}, rounds=5).config, "seconds": s}
        for m, s in (("fedavg", 20), ("moon", 50))
    ]
    assert estimate(e, old) == 40.0
    assert estimate(e, old[1:]) == 100.0
    assert estimate(e, []) is None


def test_parameters_are_counted_not_quoted():
    table = {
        (r["setting"], r["method"]): r for r in papers.get("fgpt/table2").tabulate("smoke", {})
    }
    assert table["architecture=vit_b16", "fgpt"]["ours"] == pytest.approx(0.0961)
    assert all(r["verdict"] == "reproduced" for r in table.values())


def test_experiments_differ_where_rows_differ():
    """Two rows with different settings never point at one run, or a sweep would be flat by
    mistake.
    """
    for id in ("fedgcr/table1", "fedgcr/table7", "client2vec/table1", "fgpt/table8"):
        seen = {}
        for run in papers.get(id).runs("paper"):
            assert seen.setdefault(run.experiment.key, (run.row.setting, run.row.method)) == (
                run.row.setting,
                run.row.method,
            )


def test_every_method_has_a_look_of_its_own():
    keys = (
        "fedavg fedavgm feddyn moon fedlc fediir afl q_ffl term harmofl fedsam fedmix local "
        "per_fedavg pfedme "
    )
    keys += "lg_fedavg pt_fedavg pfedhn fed_dualprompt fedgcr client2vec grp_fed fgpt"
    assert list(plots.METHODS) == keys.split()
    looks = [
        tuple(plots.look(m)[k] for k in ("color", "marker", "linestyle"))
        for m in (*plots.METHODS, *plots.RELATIVES)
    ]
    assert len(set(looks)) == len(looks)
    assert {look[0] for look in looks} <= set(plots.OKABE_ITO)
    assert {r.method for s in papers.specs().values() for r in s.rows} <= {
        *plots.METHODS,
        *plots.RELATIVES,
    }


def test_a_figure_is_saved_whole_with_its_description(tmp_path):
    import matplotlib

    matplotlib.use("Agg")
    from PIL import Image

    ax = plots.curves({"fedavg": [[0.1, 0.2], [0.2, 0.4]], "fedgcr": [[0.3, 0.5]]}, [1, 2])
    assert [line.get_label() for line in ax.lines] == ["FedAvg", "FedGCR"]
    assert ax.lines[0].get_ydata().tolist() == pytest.approx([0.15, 0.3])
    assert ax.get_xlabel() == "round" and ax.get_ylabel()
    paths = plots.save(ax.figure, "demo", "two lines that rise", tmp_path / "figures")
    assert {p.suffix for p in paths} == {".png", ".pdf"} and all(
        p.stat().st_size > 1000 for p in paths
    )
    assert Image.open(paths[0]).info["Description"] == "two lines that rise"
    assert (tmp_path / "figures" / "demo.txt").read_text() == "two lines that rise\n"
    (tmp_path / "file").write_text("")
    with pytest.raises(FedbookError, match="--figures"):
        plots.save(ax.figure, "demo", "", tmp_path / "file" / "deeper")


def test_a_partition_is_drawn_client_by_client():
    import matplotlib

    matplotlib.use("Agg")
    x, y = [[0.0], [1.0], [2.0]], [0, 1, 1]
    from fedbook import Federation

    federation = Federation.from_arrays(
        [{"train": (x, y), "type": 0}, {"train": (x, [1, 1, 1]), "type": 1}]
    )
    ax = federation.plot()
    dots = [c.get_sizes().tolist() for c in ax.collections]
    assert len(dots) == 2 and dots[0][1] == pytest.approx(2 * dots[0][0]) and dots[1][0] == 0
    assert ax.get_xlabel() == "client" and ax.get_ylabel() == "class"


def test_flops_are_counted_and_the_printed_unit_is_billions_of_multiply_adds():
    """Table 10: ours is within a tenth where print counts the same thing; accuracies still come
    from runs.
    """
    spec = papers.get("fgpt/table10")
    table = {(r["method"], r["metric"]): r for r in spec.tabulate("smoke", {})}
    for method, metric in (
        ("fgpt", "testing_flops"),
        ("fgpt", "embedding_inference_flops"),
        ("fgpt_resnet", "embedding_inference_flops"),
        ("moon", "testing_flops"),
        ("fedmix", "training_flops_per_update"),
    ):
        row = table[method, metric]
        assert row["ours"] == pytest.approx(row["paper"], rel=0.1), (method, metric)
    query = table["fgpt", "embedding_inference_flops"]["ours"]
    assert table["fgpt", "testing_flops"]["ours"] - table["moon", "testing_flops"][
        "ours"
    ] == pytest.approx(query)
    assert (
        table["fgpt", "accuracy"]["verdict"] == "not run"
        and table["fgpt", "testing_flops"]["seeds"] == 1
    )


def test_clients_that_never_took_part_are_tested_with_the_final_model():
    row = next(r for r in papers.get("fgpt/unseen").rows if r.method == "pt_fedavg")
    e = papers.get("fgpt/unseen").experiment(row, "smoke", 0)
    e = dataclasses.replace(e, rounds=1, evaluate_every=1)
    result = e.run()["metrics"]
    assert len(result["unseen"]["acc"]) == len(set(result["unseen"]["clients"])) == 10
    assert len(result["clients"]["acc"]) == e.partition["clients"] - 10
    assert 0 <= result["unseen"]["avg_sample"] <= 1
    assert "unseen" not in dataclasses.replace(e, unseen=0).config
