"""Client2Vec's tables and figures: which runs are shared, what follows from several runs, what is
drawn."""

import dataclasses

import pytest

from fedbook import methods, papers
from fedbook.papers import PAPERS, tune
from fedbook.papers.client2vec import scales as client2vec

TYPES = [t for t in range(4) for _ in range(3)]
NAMES = ["photo", "art_painting", "cartoon", "sketch"]


def pretend(spec, scale="laptop", best=lambda row: 0.5):
    """Results for all runs of a spec."""
    cosines = [[1.0 if a == b else 0.2 for b in TYPES] for a in TYPES]
    pairs = {a: {b: 1.0 if a == b else 0.2 for b in NAMES} for a in NAMES}
    found = {}
    for run in spec.runs(scale):
        score = best(run.row)
        sample = {
            "index_seconds": 3.0,
            "similarity": {"both": cosines, "feature": cosines},
            "type_similarity": pairs,
        }
        found[run.experiment.key] = {
            "method": {},
            "metrics": {
                "best": score,
                "seconds": [5.0, 10.0],
                "rounds": [1, 2],
                "curves": {"avg_client": [score - 0.1, score]},
                "clients": {"type": TYPES},
                "type_names": NAMES,
                "log": {} if run.experiment.method["name"] == "fedavg" else sample,
            },
        }
    return found


def test_a_sweep_shares_its_usual_point_with_the_main_table():
    main = {r.experiment.key for r in papers.get("client2vec/table1").runs("laptop")}
    shared = {
        n: len({r.experiment.key for r in papers.get(f"client2vec/{n}").runs("laptop")} & main)
        for n in ("table2", "table3", "table4", "table5", "table6", "table7")
    }
    assert shared == {
        "table2": 3,
        "table3": 2,
        "table4": 12,
        "table5": 9,
        "table6": 12,
        "table7": 12,
    }
    assert {r.experiment.key for r in papers.get("client2vec/fig5").runs("laptop")} <= main | {
        r.experiment.key for n in (5, 7) for r in papers.get(f"client2vec/table{n}").runs("laptop")
    }


def test_sharing_changes_no_run():
    """What a row leaves out because it is usual is what the method does by itself."""
    for strategy, usual in client2vec.USUAL_OF.items():
        said = methods.get(
            "client2vec",
            strategy=strategy,
            **usual,
            index_projection="linear",
            variant="client2vec",
        )
        assert said.describe() == methods.get("client2vec", strategy=strategy).describe()


def test_an_option_that_both_have_reaches_the_base():
    m = methods.get("client2vec", base="fedlc", base_tau=0.25, tau=2.0)
    assert m.sample.tau == 2.0
    plain = methods.get("fedlc", tau=0.25).objective
    assert m.objective[: len(plain)] == plain
    scale = dataclasses.replace(client2vec.LAPTOP, methods={"fedlc": {"tau": 0.25}})
    row = next(
        r
        for r in papers.get("client2vec/table1").rows
        if r.method == "fedlc" and r["case_studies"] == "i+ii"
    )
    assert client2vec.experiment(row, scale, 0).method["base_tau"] == 0.25


def test_largest_improvement_is_of_one_cell():
    spec = papers.get("client2vec/table1")
    found = pretend(
        spec,
        best=lambda row: {"none": 0.4, "i": 0.45, "i+ii": 0.5, "i+ii+iii": 0.35}[
            row["case_studies"]
        ],
    )
    rows = [r for r in spec.tabulate("laptop", found) if r["metric"] == "max_improvement"]
    assert len(rows) == 16 and all(
        r["ours"] == pytest.approx(10.0) and r["seeds"] == 3 for r in rows
    )


def test_times_come_from_runs():
    spec = papers.get("client2vec/table3")
    found = pretend(spec, best=lambda row: 0.5 if row.method == "fedavg" else 0.6)
    ours = {(r["method"], r["metric"]): r["ours"] for r in spec.tabulate("laptop", found)}
    assert (
        ours["client2vec", "generate_client_index_time"] == 3.0
        and ours["fedavg", "generate_client_index_time"] == 0
    )
    assert (
        ours["client2vec", "training_total_time"]
        == ours["fedavg", "training_time_to_fedavg_best"]
        == 10.0
    )
    assert (
        ours["client2vec", "training_time_to_fedavg_best"] == 5.0
    )  # 0.5 is reached at its first evaluation
    assert ours["client2vec", "total_time_to_fedavg_best"] == 8.0
    never = pretend(spec, best=lambda row: 0.5 if row.method == "fedavg" else 0.3)
    assert {r["ours"] for r in spec.tabulate("laptop", never) if r["method"] == "client2vec"} == {
        3.0,
        10.0,
        None,
    }


@pytest.mark.parametrize("name", ["table1", "fig2", "fig4", "fig5", "fig7", "fig8", "fig9"])
def test_figures_say_what_they_show(name):
    import matplotlib.pyplot as plt

    spec = papers.get(f"client2vec/{name}")
    fig, alt = spec.plot(spec, spec.runs("laptop", None, pretend(spec)))
    panels = {"table1": 6, "fig2": 4, "fig4": 5, "fig5": 4, "fig7": 4, "fig8": 2, "fig9": 1}[name]
    pictures = [image for ax in fig.axes for image in ax.images]
    assert len([ax for ax in fig.axes if ax.get_title()]) == (panels if name != "fig9" else 0)
    if name in ("fig2", "fig7", "fig8"):
        assert "within a domain 1.00, across domains 0.20" in alt
        assert len({image.get_clim() for image in pictures}) == 1 and len(pictures) == panels
    elif name == "fig9":
        assert "photo and" in alt or "art_painting and photo" in alt
    else:
        assert "FedAvgM 50.0, 50.0" in alt
    plt.close(fig)


def test_domains_that_are_not_there_are_not_measured():
    spec = papers.get("client2vec/fig9")
    ours = {
        r["setting"].split("domain_a=")[1]: r["ours"]
        for r in spec.tabulate("laptop", pretend(spec))
    }
    assert ours["photo domain_b=sketch"] == 0.2 and ours["real domain_b=clipart"] is None


def test_every_base_algorithm_is_tuned_with_the_same_budget():
    grid = client2vec.GRID
    assert set(grid.knobs) == {"client2vec"} | {
        r.method for r in papers.get("client2vec/table1").rows
    }
    assert {len(grid.first(m)) + len(grid.second(m, {"lr": 0.1})) for m in grid.knobs} == {4}
    for setting in grid.on:
        e = tune.trial(PAPERS["client2vec"], "laptop", "fedavg", {"lr": 0.1}, setting)
        assert e.partition["test"].startswith("unused")
