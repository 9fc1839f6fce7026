"""Hyper-parameters: the same budget for all, validation data only, and what was chosen is what is
used."""

import dataclasses
from statistics import fmean

import pytest

from fedbook import data
from fedbook.errors import FedbookError
from fedbook.federation import federate
from fedbook.papers import PAPERS, tune
from fedbook.papers.rows import Row
from fedbook.results import Store
from fedbook.tour import QUICK, STOPS, quick

FEDGCR, FGPT, GRP_FED = (PAPERS[key] for key in ("fedgcr", "fgpt", "grp_fed"))
TWICE = ({"dataset": "digit_five", "dif": 10}, {"dataset": "pacs", "dif": 10})
FEDGCR = dataclasses.replace(FEDGCR, grid=dataclasses.replace(FEDGCR.grid, on=TWICE))


def pretend(value):
    """Results for every trial that could be asked for, as `value(method, options)` says."""
    grid, found = FEDGCR.grid, {}
    for method, knob in grid.knobs.items():
        name, values = knob or ("lr", grid.more_lr)
        every = grid.first(method) + [{"lr": lr, name: v} for lr in grid.lr for v in values]
        for options in every:
            for i, setting in enumerate(grid.on):
                e = tune.trial(FEDGCR, "laptop", method, options, setting)
                found[e.key] = {"metrics": {"avg_type": value(method, options) + 0.1 * i}}
    return found


def test_every_method_has_the_same_number_of_trials():
    tried = tune.scores(FEDGCR, "laptop", pretend(lambda method, options: options["lr"]))
    assert {len(t) for t in tried.values()} == {6}
    assert tune.complete(FEDGCR.grid, tried)


def test_the_knob_is_tried_at_the_best_rate():
    def value(method, options):
        return -abs(options["lr"] - 0.01) - (options.get("q", 0) - 0.1) ** 2

    tried = tune.scores(FEDGCR, "laptop", pretend(value))
    assert tune.best(tried["q_ffl"]) == {"lr": 0.01, "q": 0.1}
    assert [o["lr"] for o, _ in tried["q_ffl"]] == [*FEDGCR.grid.lr, 0.01, 0.01]
    assert tune.best(tried["fedavg"]) == {"lr": 0.01}
    score = dict((o["lr"], v) for o, v in tried["fedavg"])[0.01]
    assert score == pytest.approx(fmean((value("", {"lr": 0.01}), value("", {"lr": 0.01}) + 0.1)))


def test_a_trial_never_sees_a_test_sample():
    for method in FEDGCR.grid.knobs:
        e = tune.trial(FEDGCR, "laptop", method, {"lr": 0.01}, FEDGCR.grid.on[0])
        assert e.partition["test"] == "unused" and e.seed == 0
    dataset = data.load("digits5_offline")
    fed = federate(dataset, "by_domain", "unused", dif=10, scale=0.3)
    trained = {i for c in fed.clients for i in c.train.tolist()}
    for c in fed.clients:
        held = set(c.test.tolist())
        assert held and not held & trained and len(held) <= 500
        assert set(dataset.domain[c.test].tolist()) == {c.type}
        assert held <= set(dataset.train.tolist())


def test_a_trial_on_class_mixes_never_sees_a_test_sample():
    for method in FGPT.grid.knobs:
        e = tune.trial(FGPT, "laptop", method, {"lr": 0.01}, FGPT.grid.on[0])
        assert e.partition["test"] == "unused_match" and e.seed == 0
    dataset = data.load("digits5_offline")
    fed = federate(dataset, "pathological", "unused_match", clients=10, s=3, limit=(40, 12))
    trained = {i for c in fed.clients for i in c.train.tolist()}
    held = [i for c in fed.clients for i in c.test.tolist()]
    assert len(set(held)) == len(held) == 120 and len(trained) == 400
    assert set(held) <= set(dataset.train.tolist()) and not set(held) & trained
    for c in fed.clients:
        assert set(dataset.y[c.test].tolist()) <= set(dataset.y[c.train].tolist())


def test_who_holds_everything_gives_up_the_last_fifth():
    e = tune.trial(GRP_FED, "laptop", "grp_fed", {"lr": 0.01, "q": 0.5}, GRP_FED.grid.on[0])
    assert e.partition["test"] == "held_out" and e.rounds == e.evaluate_every == 60
    dataset = data.load("ecg_offline")
    fed, whole = federate(dataset, "by_group", "held_out"), federate(dataset, "by_group", "domain")
    for c, before in zip(fed.clients, whole.clients):
        assert sorted([*c.train.tolist(), *c.test.tolist()]) == before.train.tolist()
        assert len(c.test) == round(0.2 * len(before.train)) and int(c.test.min()) > int(
            c.train.max()
        ), "in time order"


def test_a_score_of_several_metrics_is_their_mean():
    assert FEDGCR.grid.metrics == ("avg_type",) and GRP_FED.grid.metrics == (
        "local.t_g",
        "local.t_l",
    )
    found = {}
    for options in GRP_FED.grid.first("fedavg"):
        e = tune.trial(GRP_FED, "laptop", "fedavg", options, GRP_FED.grid.on[0])
        found[e.key] = {"metrics": {"local": {"t_g": options["lr"], "t_l": 3 * options["lr"]}}}
    tried = tune.scores(GRP_FED, "laptop", found)
    assert [score for _, score in tried["fedavg"]] == pytest.approx(
        [2 * o["lr"] for o in GRP_FED.grid.first("fedavg")]
    )
    assert not tried["grp_fed"]


def test_grp_fed_gives_every_method_two_trials_of_the_same_rates():
    grid = GRP_FED.grid
    trials = {m: grid.first(m) + grid.second(m, {"lr": 0.1}) for m in grid.knobs}
    assert {tuple(o["lr"] for o in t) for t in trials.values()} == {(0.05, 0.1)}
    own = GRP_FED.scale("laptop")
    e = GRP_FED.experiment(Row(settings=grid.on[0], method="grp_fed"), own, 0)
    assert e.method["start"] == "received" and e.method["batches"] == 4


def test_a_knob_may_turn_two_options_together():
    grid = quick("grp_fed").grid
    assert grid.first("grp_fed")[0] == {"lr": grid.lr[0], "q": 0.5, "start": "received"}


def test_a_grid_of_two_seeds_takes_the_mean_of_both():
    grid = dataclasses.replace(FEDGCR.grid, on=TWICE[1:], seeds=2)
    paper = dataclasses.replace(FEDGCR, grid=grid)
    found = {}
    for options in grid.first("fedavg"):
        for seed in (0, 1):
            e = tune.trial(paper, "laptop", "fedavg", options, TWICE[1], seed)
            assert e.seed == seed and e.partition["test"] == "unused"
            found[e.key] = {"metrics": {"avg_type": options["lr"] + seed}}
    tried = tune.scores(paper, "laptop", found)["fedavg"]
    assert [v for _, v in tried] == pytest.approx([o["lr"] + 0.5 for o in grid.first("fedavg")])
    found.pop(e.key)
    assert len(tune.scores(paper, "laptop", found)["fedavg"]) == len(tried) - 1


def test_a_trial_that_diverged_is_never_chosen():
    found = pretend(lambda method, options: options["lr"])
    worst = tune.trial(FEDGCR, "laptop", "fedavg", {"lr": 3e-2}, FEDGCR.grid.on[0])
    found[worst.key] = {"metrics": {"diverged": "training diverged: client 0, round 1"}}
    tried = tune.scores(FEDGCR, "laptop", found)
    assert tune.complete(FEDGCR.grid, tried) and tune.best(tried["fedavg"]) == {"lr": 2e-2}


def test_no_sample_left_is_said():
    with pytest.raises(FedbookError):
        federate(data.load("digits5_offline"), "by_domain", "unused", sizes="equal")


def tuned():
    """Every paper at laptop scale with each of its grids, and those stops of the tour that train
    something.
    """
    tour = [(stop.quick, QUICK) for stop in STOPS if stop.grid]
    more = [p.with_grid(name) for p in PAPERS.values() for name in p.more_grids]
    return [(paper, "laptop") for paper in (*PAPERS.values(), *more)] + tour


@pytest.mark.parametrize(("paper", "scale"), tuned(), ids=lambda x: getattr(x, "key", x))
def test_what_was_chosen_is_what_is_used(paper, scale):
    """The stored trials decide; a hand-edited number in a scale would not pass."""
    tried = tune.scores(paper, scale, Store().keys())
    assert tune.complete(paper.grid, tried), "run `fedbook tune`"
    for method, options in tried.items():
        assert paper.scale(scale).methods[method] == tune.best(options), method


def test_the_rates_of_the_spot_check_are_those_its_trials_chose():
    spot = FEDGCR.scale("laptop").sized["spot"]
    tried = {}
    for run in FEDGCR.specs["fedgcr/spot_rates"].runs("laptop", results=Store().keys()):
        tried.setdefault(run.row.method, {})[run.row["lr"]] = run.metrics["avg_type"]
    assert set(tried) == {"fedavg", "afl", "term", "fedgcr"}
    for method, scores in tried.items():
        assert spot.methods[method]["lr"] == max(scores, key=scores.get), method


def test_a_paper_without_a_grid_says_so():
    with pytest.raises(FedbookError, match="no grid"):
        tune.scores(dataclasses.replace(FEDGCR, grid=None), "laptop", {})
    with pytest.raises(FedbookError, match="unknown grid of grp_fed 'sounds'.*images"):
        GRP_FED.with_grid("sounds")


def test_a_grid_of_images_chooses_for_images_alone():
    on_images = GRP_FED.with_grid("images")
    options = {"lr": 0.3}
    for paper, name, rounds in ((GRP_FED, "mitbih", 60), (on_images, "cifar10", 40)):
        e = tune.trial(paper, "laptop", "fedavg", options, paper.grid.on[0])
        assert (e.dataset["name"], e.method["lr"], e.rounds) == (name, 0.3, rounds)
    row = Row(settings={"dataset": "cifar10"}, method="fedavg")
    used = GRP_FED.experiment(row, GRP_FED.scale("laptop"), 0)
    assert used.method["lr"] == on_images.scale("laptop").methods["fedavg"]["lr"]
