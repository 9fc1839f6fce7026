"""Every table and figure is there, its runs follow from its printed rows, and paper stands beside
ours."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedbook import FedbookError, methods, models, papers, plots, tour
from fedbook.experiment import Experiment, _within
from fedbook.papers.claims import evaluate
from fedbook.papers.fedgcr import scales as fedgcr
from fedbook.papers.reproduce import Estimate, overview
from fedbook.papers.rows import Row, read_csv, read_rows
from fedbook.papers.spec import ordering, tolerance
from fedbook.papers.tune import best, scores, trial
from fedbook.results import Store

ROOT = Path(__file__).parents[1]
IID = {"name": "iid", "clients": 4}
STUDIES = ["fedgcr/quirks", "fedgcr/grouping", "fedgcr/spot", "fedgcr/spot_rates", "fedgcr/rounds"]
STUDIES += ["fedgcr/settings", "fedgcr/halves", "fedgcr/precision", "fedgcr/protocols"]
STUDIES += ["client2vec/maximum", "client2vec/pilot", "client2vec/local"]
STUDIES += ["grp_fed/fig4_own", "grp_fed/printed", "grp_fed/weights", "grp_fed/choices"]
STUDIES += ["grp_fed/adaptive", "grp_fed/split", "grp_fed/longer"]
STUDIES += ["fgpt/unseen", "fgpt/prompt_rate", "fgpt/spot", "fgpt/precision"]
STUDIES += ["fgpt/grouping", "fgpt/images"]


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
    for paper in papers.PAPERS.values():
        for entry in read_csv(paper.published / "tables.csv"):
            rows = read_rows(paper.published / entry["file"])
            assert len(rows) == int(entry["rows"]), entry["file"]
            assert sum(r.value is None for r in rows) == int(entry["blank_cells"]), entry["file"]
    row = papers.get("fedgcr/table1").rows[0]
    assert (row.settings, row.method, row.metric, row.value, row.std) == (
        {"dataset": "digit_five", "dif": 1},
        "fedavg",
        "avg",
        68.19,
        0.26,
    )


def test_a_row_knows_what_fits_it():
    row = Row(settings={"dataset": "pacs", "dif": 10}, method="fedavg", metric="avg")
    assert row.fits() and row.fits(dif=10, method="fedavg") and row.setting == "pacs dif=10"
    assert not row.fits(dif=5) and not row.fits(metric="sigma_type") and not row.fits(s=10)


@pytest.mark.parametrize("paper", papers.PAPERS.values(), ids=lambda p: p.key)
def test_a_scale_is_numbers_and_names_only(paper):
    assert [s.name for s in paper.scales] == ["smoke", "laptop", "paper"] == papers.scales()
    for scale in paper.scales:
        json.dumps(dataclasses.asdict(scale))
    with pytest.raises(FedbookError, match="unknown scale of"):
        paper.scale("huge")


def test_a_paper_without_a_field_is_no_paper():
    whole = {f.name: None for f in dataclasses.fields(papers.Paper)}
    for name in ("key", "scales", "experiment", "metrics", "figures", "claims", "grid"):
        with pytest.raises(TypeError, match=name):
            papers.Paper(**{k: v for k, v in whole.items() if k != name})


def test_published_orders_of_domains_are_those_of_the_partition():
    from fedbook.data.partition import PUBLISHED

    for name, published in PUBLISHED.items():
        assert fedgcr.PRINTED.own.order[name] == published.order
        assert fedgcr.PRINTED.own.swapped[name] == published.swapped


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
    """delta = 0.5 and GMM are what Table 1 has, so a sweep's middle is not computed again."""
    main = {
        r.experiment.key
        for r in papers.get("fedgcr/table1").runs("laptop")
        if r.row.method == "fedgcr"
    }
    for id, usual in (
        ("table10", ("delta", 0.5)),
        ("table14", ("clustering_algo", "gmm")),
    ):
        for run in papers.get(f"fedgcr/{id}").runs("laptop"):
            if run.row["dataset"] == "digit_five":
                assert (run.experiment.key in main) == (run.row[usual[0]] == usual[1]), (
                    run.row.setting
                )


def test_figure_3_needs_no_runs_of_its_own_on_digits():
    main = {r.experiment.key for r in papers.get("fedgcr/table1").runs("laptop")}
    runs = papers.get("fedgcr/fig3").runs("laptop")
    assert {r.row["dataset"] for r in runs if r.experiment.key in main} == {"digit_five"}


def test_a_study_is_drawn_from_its_own_runs_not_from_a_tables_alone(tmp_path):
    from fedbook.papers.reproduce import draw

    stored = Store(ROOT / "results").keys()
    table = {r.experiment.key for r in papers.get("fedgcr/table6").runs("laptop")}
    shared = {key: stored[key] for key in table & set(stored)}
    study = papers.get("fedgcr/precision")
    assert any(run.result for run in study.runs("laptop", None, shared))
    assert draw(study, "laptop", shared, tmp_path) == []
    own = {r.experiment.key: stored.get(r.experiment.key) for r in study.runs("laptop")}
    assert draw(study, "laptop", shared | {k: v for k, v in own.items() if v}, tmp_path)


def test_panels_that_compare_nothing_are_left_out():
    from types import SimpleNamespace

    from fedbook.papers.draw import compared

    def run(dataset, protocol, result=1):
        return SimpleNamespace(row={"dataset": dataset, "protocol": protocol}, result=result)

    digits = [run("digits", "tuned"), run("digits", "printed", None)]
    pacs = [run("pacs", "tuned"), run("pacs", "printed")]
    assert compared([*digits, *pacs], "dataset", "protocol") == ["pacs"]
    assert compared(digits, "dataset", "protocol") == ["digits"]


def test_a_setting_of_one_method_is_left_out_of_pictures():
    from fedbook.papers.draw import by_setting

    spec = papers.get("fedgcr/table6")
    runs = spec.runs("laptop", results=Store(ROOT / "results").keys())
    mine = [r for r in runs if r.row.method == "fedgcr"]
    assert list(by_setting(spec, runs)) == list(by_setting(spec, mine)) and len(mine) > 3
    at_ten = [r for r in runs if r.row["dif"] == 10]
    assert list(by_setting(spec, [*mine, *at_ten])) == ["DIF = 10"]


def test_precisions_differ_in_the_frozen_blocks_alone():
    runs = papers.get("fedgcr/precision").runs("laptop")
    main = {r.experiment.key for r in papers.get("fedgcr/table6").runs("laptop")}
    by = {(r.row.method, r.seed, r.row["precision"]): r.experiment for r in runs}
    for (method, seed, precision), e in by.items():
        usual = by[method, seed, "float32"]
        assert usual.key in main
        name = "hybrid+bf16" if precision == "bfloat16" else "hybrid"
        assert dataclasses.replace(e, model=usual.model) == usual and e.model["backbone"] == name


def test_a_half_at_the_rate_of_plain_prompts_differs_in_its_rate_alone():
    runs = papers.get("fedgcr/halves").runs("laptop")
    tables = (papers.get(f"fedgcr/table{n}").runs("laptop") for n in (12, 13))
    ablation = {r.experiment.key for own in tables for r in own}
    by = {(r.row["dataset"], r.row.method, r.seed, r.row["rate_of"]): r.experiment for r in runs}
    new = {at: e for at, e in by.items() if e.key not in ablation}
    assert {at[1::2] for at in new} == {("fedgr_only", "fedavg")} and len(new) == 6
    for (dataset, method, seed, _), e in new.items():
        usual = by[dataset, method, seed, "fedgcr"]
        lr = by[dataset, "fedavg", seed, "fedavg"].method["lr"]
        assert e.method == usual.method | {"lr": lr} != usual.method
        assert dataclasses.replace(e, method=usual.method) == usual
    assert papers.get("fedgcr/halves").runs("paper") == []


def test_clusters_keep_their_distance_from_the_number_of_types():
    """emoji7 has seven domains where DomainNet has six: T' = 5 of 6 becomes 6 of 7."""
    runs = papers.get("fedgcr/table8").runs("laptop")
    asked = {r.row["t_prime"]: r.experiment.method.get("clusters") for r in runs}
    assert asked == {4: 5, 5: 6, 7: 8, 8: 9}


def test_a_table_may_have_seeds_of_its_own():
    assert (
        papers.get("fedgcr/table1").seeds("laptop") == 3
        and papers.get("fedgcr/table4").seeds("laptop") == 1
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
    main = {r.experiment.key for r in papers.get("fedgcr/table6").runs("laptop")}
    assert set(on) == set(off) == set(fedgcr.STUDY) and {e.key for e in off.values()} < main
    assert on["fedsam_lr_x10"].method["lr"] == pytest.approx(10 * off["fedsam_lr_x10"].method["lr"])
    assert on["prompt_tiling"].model == {**off["prompt_tiling"].model, "tiled": True}
    assert on["as_published"].build_method() != off["as_published"].build_method()
    assert len({e.key for e in on.values()}) == len(on)


def test_a_published_run_has_all_that_its_authors_did_otherwise():
    """Beside the same method at one rate for all; TERM and Harmo-FL as the table of notebook 04."""
    plan = papers.get("fedgcr/protocols").plan("laptop")
    of = {(r.row["protocol"], r.row.method): r.experiment for r in plan if r.seed == 0}
    published = {m for protocol, m in of if protocol == "published"}
    assert published == {m for _, m in of}
    for m in published:
        assert of["published", m].key != of["printed", m].key, m
        assert of["published", m].rounds == of["printed", m].rounds == 50
    lr = {m: of["published", m].method["lr"] for m in published}
    assert {m for m in lr if lr[m] == pytest.approx(1e-2)} == {"harmofl", "fedsam"}
    assert {lr[m] for m in published - {"harmofl", "fedsam"}} == {1e-3}
    assert of["published", "harmofl"].method["window"] == 0.0
    assert of["published", "term"].method["t"] == 0.01
    assert of["published", "term"].build_method() != of["printed", "term"].build_method()
    assert {m for m in published if of["published", m].model["prompts"] == 6} == {"fedavg", "q_ffl"}


def test_settings_are_tried_one_at_a_time_where_no_test_image_is():
    plan = papers.get("fedgcr/settings").plan("laptop")
    assert len({r.experiment.key for r in plan}) == len(plan) == 8
    assert {r.experiment.partition["test"] for r in plan} == {"unused"}
    usual = papers.get("fedgcr/table6").plan("laptop")
    for method in ("fedgcr", "fedavg"):
        mine = [r.experiment for r in plan if r.row.method == method]
        (main,) = {
            r.experiment.key: r.experiment
            for r in usual
            if r.row.method == method and r.row["dif"] == 10 and r.seed == 0
        }.values()
        assert (mine[0].method, mine[0].model) == (main.method, main.model)
        assert {e.rounds for e in mine} == {main.rounds} == {30}
        for e in mine[1:]:
            parts = [{**a, **b} for a, b in ((e.method, e.model), (main.method, main.model))]
            changed = {k for k in parts[0] if parts[0][k] != parts[1].get(k)}
            assert len(changed) == 1 and changed < {"cluster_on", "normalise", "prompts"}


def test_every_run_names_methods_and_models_that_exist():
    known = set(methods.names())
    for spec in papers.specs().values():
        assert spec.built in (("sketch",) if spec.kind == "sketch" else ("yes", "partial")), spec.id
        for scale in papers.scales():
            for run in spec.plan(scale):
                e = run.experiment
                assert {e.method["name"], e.method.get("base", e.method["name"])} <= known
                assert e.model["name"] in models.names()


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
    assert verdicts == {"not run"}


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
    def row(unit, value, std=None, spread=""):
        return Row(settings={}, method="m", unit=unit, value=value, std=std, spread=spread)

    percent = row("percent", 50.0, 0.3, "std_over_3_runs")
    assert tolerance(percent, None) == 1.0 and tolerance(percent, 0.4) == pytest.approx(1.0)
    assert tolerance(percent, 4.0) == pytest.approx(2 * (0.3**2 + 16) ** 0.5)
    assert tolerance(row("macro_f1", 0.5), None) == 0.01
    assert tolerance(row("million", 25.6), None) == pytest.approx(0.05)
    assert tolerance(row("percent", 50.0, 9.0, "variance_last_10_rounds"), None) == 6.0


def test_ordering_counts_pairs_within_a_setting():
    rows = [("a", 1.0, 5.0), ("a", 2.0, 6.0), ("a", 3.0, 4.0), ("b", 1.0, 2.0), ("b", 2.0, None)]
    table = [{"setting": s, "metric": "m", "paper": p, "ours": o} for s, p, o in rows]
    assert ordering(table) == (1, 3)


def experiment(**changes):
    parts = {"dataset": "d", "partition": "iid", "model": "cnn", "method": "fedavg"}
    return Experiment(**{k: {"name": v} for k, v in parts.items()} | {"rounds": 1} | changes)


def test_changed_defaults_make_a_result_stale_added_ones_do_not():
    assert _within({"a": 1, "b": {"c": [1]}}, {"a": 1, "b": {"c": [1], "new": 0}, "more": 2})
    assert not _within({"a": 1}, {"a": 2}) and not _within({"a": 1}, {})
    e = experiment(rounds=3)
    result = {"method": e.build_method().describe()}
    assert e.find({e.key: result}) is result
    result["method"] = {**result["method"], "solve": {"lr": 77.0}}
    assert e.find({e.key: result}) is None


def test_cost_is_estimated_from_runs_of_the_same_shape():
    e = experiment(rounds=10)
    old = []
    for method, seconds in (("fedavg", 20), ("moon", 50)):
        config = experiment(method={"name": method}, rounds=5).config
        old.append({"config": config, "seconds": seconds})
    assert Estimate(old)(e) == 40.0
    assert Estimate(old[1:])(e) == 100.0
    assert Estimate([])(e) is None


def test_parameters_are_counted_not_quoted():
    table = {
        (r["setting"], r["method"]): r for r in papers.get("fgpt/table2").tabulate("smoke", {})
    }
    assert table["architecture=vit_b16", "fgpt"]["ours"] == pytest.approx(0.0961)
    assert all(r["verdict"] == "reproduced" for r in table.values())


def test_what_is_kept_is_what_is_counted():
    from fedbook.papers.fgpt import counts

    rows = counts.to_count()
    assert len(rows) == len(counts.kept()) == 31
    for row in rows:
        assert counts.counted(row) == pytest.approx(counts.count(row), rel=1e-9), row


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
    from fedbook import methods

    looks = [
        tuple(plots.look(m)[k] for k in ("color", "marker", "linestyle")) for m in plots.METHODS
    ]
    assert len(set(looks)) == len(looks)
    assert {look[0] for look in looks} <= {*plots.OKABE_ITO, plots.GREY} - {plots.YELLOW}
    assert set(methods.names()) <= set(plots.METHODS)
    assert {r.method for s in papers.specs().values() for r in s.rows} <= set(plots.METHODS)


@pytest.mark.parametrize("id", [s.id for s in papers.specs().values() if s.rows])
def test_no_two_methods_of_a_figure_look_alike(id):
    shown = {r.method for r in papers.get(id).rows}
    for part in ("color", "marker", "label"):
        found = [plots.look(m)[part] for m in sorted(shown)]
        assert len(set(found)) == len(found), (part, shown)


def test_points_of_categories_are_not_joined_and_carry_their_seeds():
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots()
    found = {"fedavg": {"a": [1.0, 3.0], "b": [2.0]}, "fedgcr": {"b": [5.0, 5.0]}}
    plots.dodged(found, ["a", "b"], ["first", "second"], ax)
    assert all(line.get_linestyle() == "None" for line in ax.lines if line.get_label()[0] != "_")
    bars = [c for container in ax.containers for c in container[2]]
    ends = bars[0].get_segments()
    assert ends[0][:, 1].tolist() == [1.0, 3.0] and ends[1][:, 1].tolist() == [2.0, 2.0]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["first", "second"]
    for end in plots.over_seeds([[0.1, 0.1, 0.1]])[1]:
        assert 0 <= end[0] < 1e-12  # never below zero by rounding
    plt.close(fig)


def test_legends_lie_outside_and_cut_axes_are_marked():
    fig, axes = plots.panels(2)
    for ax, low in zip(axes, (0, 40)):
        plots.curves({"fedavg": [[50, 60]], "fedgcr": [[45, 70]]}, [1, 2], ax=ax)
        ax.set_ylim(low, 80)
    before = [len(ax.lines) for ax in axes]
    plots.legend_outside(fig, axes)
    assert [ax.get_legend() for ax in axes] == [None, None] and len(fig.legends) == 1
    assert [t.get_text() for t in fig.legends[0].get_texts()] == ["FedAvg", "FedGCR"]
    assert [len(ax.lines) - n for ax, n in zip(axes, before)] == [0, 2]
    fig.canvas.draw()
    box = fig.legends[0].get_window_extent()
    assert not any(box.overlaps(ax.get_window_extent()) for ax in axes)
    alone = plots.curves({"fedavg": [[1, 2]]}, [1, 2])
    alone.figure.canvas.draw()
    assert not alone.get_legend().get_window_extent().overlaps(alone.get_window_extent())


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
    assert Image.open(paths[0]).info["dpi"] == pytest.approx((200, 200), abs=0.1)
    assert Image.open(paths[0]).info["Description"] == "two lines that rise"
    assert (tmp_path / "figures" / "demo.txt").read_text() == "two lines that rise\n"
    (tmp_path / "file").write_text("")
    with pytest.raises(FedbookError, match="another folder"):
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
    few = {**e.partition, "limit": [100, 40]}
    e = dataclasses.replace(e, rounds=1, evaluate_every=1, partition=few)
    result = e.run()["metrics"]
    assert len(result["unseen"]["acc"]) == len(set(result["unseen"]["clients"])) == 10
    assert len(result["clients"]["acc"]) == e.partition["clients"] - 10
    assert 0 <= result["unseen"]["avg_sample"] <= 1
    assert e.config["measures"] == [{"name": "unseen", "clients": 10}]
    assert "measures" not in dataclasses.replace(e, measures=()).config


def test_an_unknown_measure_is_named():
    e = experiment(measures=({"name": "unsene", "clients": 1},))
    with pytest.raises(FedbookError, match="did you mean unseen"):
        dataclasses.replace(e, dataset={"name": "digits5_offline"}, partition=IID).run()


# -- stored results --------------------------------------------------------------------------------
STORED = {"fedgcr": 60, "client2vec": 140, "grp_fed": 53, "fgpt": 16}


@pytest.mark.parametrize("key", papers.PAPERS)
def test_stored_results_are_still_found(key):
    """A change of a configuration that forgets the stored runs would let them be computed again."""
    results = Store(ROOT / "results").keys()
    found = set()
    for spec in papers.PAPERS[key].specs.values():
        for run in spec.runs("laptop", None, results):
            if run.result is not None:
                found.add(run.experiment.key)
    assert len(found) >= STORED[key]


@pytest.mark.parametrize("key", papers.PAPERS)
def test_every_stored_key_is_asked_for(key):
    """A stored run that no table, figure or grid asks for would be carried along unseen."""
    paper = papers.PAPERS[key]
    asked: dict[str, set[str]] = {}
    for scale in ("laptop", "paper"):
        for spec in paper.specs.values():
            for run in spec.plan(scale, 5):
                asked.setdefault(run.experiment.key, set()).add(spec.id)
    stored = Store(ROOT / "results").load()
    mine = [r for r in stored if r["spec"].startswith(f"{key}/") and r["spec"] != f"{key}/grid"]
    assert mine and [r["key"] for r in mine if r["key"] not in asked] == []


@pytest.mark.parametrize("key", papers.PAPERS)
def test_every_stored_trial_is_asked_for(key):
    paper = papers.PAPERS[key]
    if paper.grid is None:
        pytest.skip("nothing is tuned")
    results = Store(ROOT / "results").keys()
    asked = set()
    askers = [(paper, "laptop"), (tour.quick(key), tour.QUICK)]
    askers += [(paper.with_grid(name), "laptop") for name in paper.more_grids]
    for asker, scale in askers:
        for method, tried in scores(asker, scale, results).items() if asker.grid else ():
            first = asker.grid.first(method)
            options = first + (asker.grid.second(method, best(tried)) if len(tried) else [])
            options += [{**first[0], "lr": lr} for lr in asker.grid.more_lr]  # some tried these too
            for o in options:
                for setting, seed in asker.grid.places:
                    asked.add(trial(asker, scale, method, o, setting, seed).key)
    mine = [k for k, r in results.items() if r["spec"] == f"{key}/grid"]
    assert [k for k in mine if k not in asked] == []


def test_what_is_stored_has_one_shape():
    for result in Store(ROOT / "results").load():
        m = result["metrics"]
        if "diverged" in m:
            assert set(m) == {"diverged"}
            continue
        assert "extra" not in m and isinstance(m["log"], dict)
        assert not any("." in name for name in m["log"])


# -- work done -------------------------------------------------------------------------------------
@pytest.fixture
def builds(monkeypatch):
    """Every method that is built."""
    real, seen = Experiment.build_method, []

    def build(self):
        seen.append(self)
        return real(self)

    monkeypatch.setattr(Experiment, "build_method", build)
    monkeypatch.setattr("fedbook.experiment._DESCRIBED", {})
    return seen


def test_listing_builds_no_method_and_needs_no_torch(builds):
    overview(papers.specs().values(), papers.scales(), Store(ROOT / "results").keys())
    assert not builds
    code = "import sys, fedbook.cli as c; c.main(['list']); print('torch' in sys.modules)"
    out = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    assert out.splitlines()[-1] == "False"


def test_claims_build_every_method_once(builds):
    results = Store(ROOT / "results")
    evaluate(results)
    stored = {json.dumps([r["config"]["method"], r["config"]["rounds"]]) for r in results.load()}
    assert 0 < len(builds) <= len(stored)


def test_runs_are_planned_once(monkeypatch):
    spec = dataclasses.replace(papers.get("fedgcr/table5"))
    asked = []
    real = spec.paper.experiment

    def experiment(row, scale, seed):
        asked.append(row)
        return real(row, scale, seed)

    spec = dataclasses.replace(spec, paper=dataclasses.replace(spec.paper, experiment=experiment))
    spec.plan("laptop")
    first = len(asked)
    spec.runs("laptop", None, {}), spec.runs("laptop", 3, {"no such": {}})
    assert 0 < first == len(asked)


# -- in a notebook ---------------------------------------------------------------------------------
def test_a_table_shows_its_printed_rows():
    html = papers.get("fedgcr/table1")._repr_html_()
    assert "<caption>fedgcr/table1: Main results Digit-Five (72 printed numbers)" in html
    assert html.count("<tr>") == 1 + 24 and "68.19" in html and ">sigma_type<" in html
    assert "(iii)" in papers.get("client2vec/local")._repr_html_()
    row = Row(settings={"dataset": "<b>"}, method="a&b", metric="avg", value=1.0)
    html = dataclasses.replace(papers.get("fedgcr/table1"), rows=(row,))._repr_html_()
    assert "&lt;b&gt;" in html and "a&amp;b" in html
