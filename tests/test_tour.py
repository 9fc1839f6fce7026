"""The tour: which runs it makes, what it says of them, and its page in a real browser. The numbers
here are drawn, not trained; what the methods do with real ones is tested elsewhere."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from browser import CHROMIUM, browser
from helpers import vit

from fedbook import cli, methods, models, simulate
from fedbook.experiment import versions
from fedbook.measures import build
from fedbook.results import Store
from fedbook.tour import QUICK, STOPS, page, planned, terminal, tour

TYPES = ["mnist", "uci", "<b>&script", "synth", "street"]


def metrics(e, rng):
    """Numbers as a run of this experiment would measure them, in the paper's favour."""
    name = e.method["name"]
    good = name in ("fedgcr", "fgpt")
    types = np.repeat(np.arange(5), 4)
    acc = (0.5 + 0.2 * good + rng.uniform(0, 0.1, 20)).tolist()
    found = {
        "clients": {"type": types.tolist(), "acc": acc},
        "type_names": TYPES,
        "tail": float(np.mean(acc)),
        "avg_client": float(np.mean(acc)),
        "avg_type": float(np.mean(acc)),
        "sigma_type": 0.2 - 0.1 * good,
        "sigma_client": 0.2 - 0.1 * good,
        "worst_client": min(acc),
        "parameters": {"trainable": 2000 + 128 * e.model.get("groups", 1), "all": 1_000_000},
        "log": {},
        "curves": {},
        "rounds": [e.rounds],
    }
    cosines = np.where(types[:, None] == types, 0.9, 0.3) + 0.01 * rng.normal(size=(20, 20))
    found["log"] |= {"similarity": {"feature": cosines.tolist(), "both": cosines.tolist()}}
    apart = 0.1 if e.method.get("strategy") == "federated" else 0.0
    found["log"] |= {"within_similarity": 0.9 - apart, "across_similarity": 0.3}
    beta = e.method.get("beta", 0.5)
    found["local"] = {"t_p": 0.4 + beta / 2, "t_r": 0.8 - beta / 2, "t_l": 0.6 - (beta - 0.5) ** 2}
    xy = rng.normal(size=(50, 2))
    kinds = np.repeat(np.arange(5), 10).tolist()
    found["types"] = {"type": kinds, "map_h": xy.tolist(), "map_frozen": xy.tolist()}
    found["types"] |= {"knn_purity_h": 0.9, "knn_purity_frozen": 0.7}
    by_count = {str(t): min(1.0, t / 5) for t in range(3, 8)}
    found["types"]["clustering_accuracy_by_count"] = by_count
    groups = e.model.get("groups", 1)
    counts = rng.integers(1, 9, (5, groups)).tolist()
    found["served"] = {"counts": counts, "images": [[g, g + 1] for g in range(groups)]}
    found["served"] |= {"tells_type": 0.3, "tells_class": 0.1}
    return found


def kept(folder, seeds=3):
    """A folder in which every run of the tour is done."""
    store = Store(folder)
    rng = np.random.default_rng(0)
    stops = [replace(s, scale=replace(s.scale, seeds=seeds)) for s in STOPS]
    for id, e in planned(stops):
        result = {"key": e.key, "config": e.config, "seed": e.seed, "scale": QUICK, "spec": id}
        result |= {"seconds": 1.0, "method": e.described, "versions": versions()}
        store.append({**result, "metrics": metrics(e, rng)}, QUICK)
    return folder


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    return tour(kept(tmp_path_factory.mktemp("report")), Store())


def test_the_runs_are_few_and_need_no_download():
    runs = [e for _, e in planned(STOPS)]
    assert len({e.key for e in runs}) == len(runs) <= 60
    assert {e.scale for e in runs} == {QUICK} and {e.seed for e in runs} == {0, 1, 2}
    assert {e.dataset["name"] for e in runs} <= {"digits5_offline", "ecg_offline"}


def test_the_quick_scale_changes_no_run_of_the_papers():
    for stop in STOPS:
        for name, spec in stop.specs.items():
            whole = stop.paper.specs[f"{stop.paper.key}/{name}"]
            theirs = {r.experiment.key for r in whole.plan("laptop")}
            printed = [r for r in spec.plan("laptop") if r.row in whole.rows]
            assert {r.experiment.key for r in printed} <= theirs


def test_every_effect_holds_with_numbers_in_the_papers_favour(seen):
    for found in seen.found:
        assert found.effects and all(e.holds for e in found.effects), found.stop.paper.key


def test_an_effect_that_is_not_seen_sends_to_the_stored_results(seen):
    against = {}
    for key, r in seen.results.items():
        turned = json.loads(json.dumps(r))
        turned["metrics"]["log"]["across_similarity"] = 0.95
        against[key] = turned
    results = tuple(replace(f, results=against) for f in seen.found)
    other = replace(seen, found=results, results=against)
    index = next(f for f in other.found if f.stop.paper.key == "client2vec")
    assert not index.effects[0].holds and index.effects[0].seeds == "0 of 3 seeds"
    text = page.html(other)
    assert "So small a run does not show it" in text and "c2v1" in text
    assert "So small a run does not show it" not in page.html(seen)


def test_nothing_is_computed_twice(seen, tmp_path):
    again = tour(kept(tmp_path, seeds=2), Store(), seeds=2)
    assert again.computed == 0 and again.runs == len(planned(STOPS)) * 2 // 3


def test_the_terminal_summary_fits(seen):
    lines = terminal.text(seen).splitlines()
    assert len(lines) <= terminal.LINES and max(map(len, lines)) <= terminal.WIDTH
    for stop in STOPS:
        assert any(line.startswith(stop.paper.title) for line in lines)
    assert "\033[32m+" in terminal.text(seen, colour=True) and "\033" not in terminal.text(seen)


def test_the_page_stands_alone_and_escapes_names(seen):
    text = page.html(seen)
    assert "<b>&script" not in text and "&lt;b&gt;&amp;script" in text
    links = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert links and all(link.startswith(("data:", "#")) for link in links)
    for link in links:
        assert not link.startswith("#") or f'id="{link[1:]}"' in text


def test_the_three_columns_are_print_stored_and_here(seen):
    text = page.html(seen)
    row = re.search(r"<tr><th[^>]*>FedGCR</th><th[^>]*>3</th>(.*?)</tr>", text).group(1)
    cells = re.findall(r'<td class="(\w+)">([^<]*)</td>', row)
    printed = next(r for r in STOPS[0].specs["table3"].rows if r["t_prime"] == 3)
    assert [kind for kind, _ in cells] == ["print", "stored", "here"]
    assert cells[0][1] == f"{printed.value:.1f}" and cells[2][1].startswith("60.0")


def test_the_command_needs_no_id(tmp_path, capsys):
    kept(tmp_path)
    assert cli.main(["reproduce", "-o", str(tmp_path), "--no-open"]) == 0
    said = capsys.readouterr().out
    assert "FedGCR" in said and str(tmp_path / "index.html") in said
    assert (tmp_path / "index.html").stat().st_size < 3e6
    assert cli.main(["reproduce", "-o", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["papers"]) == {s.paper.key for s in STOPS}


def small(federation, name, method, measure, **options):
    """A run of one round on a tiny ViT, and what a measure finds at its end."""
    model = models.build(name, federation, seed=3, backbone=vit(), **options)
    method = methods.get(method, epochs=1, batch_size=8, lr=0.1)
    run = simulate(method, federation, model, rounds=1, quiet=True).run()
    found = {}
    measure.end(run, found)
    return run, found


def test_served_counts_every_training_image_once(images):
    run, found = small(images, "fgpt", "fgpt", build("served"), groups=3)
    told = found["served"]
    chosen = {}
    for c in images.clients:
        group = run.model.select(run.precomputed["cls"][c.train])[:, 0].tolist()
        chosen |= dict(zip(c.train.tolist(), group))
    by_type = np.zeros((2, 3), dtype=int)
    for c in images.clients:
        for i in c.train.tolist():
            by_type[c.type, chosen[i]] += 1
    assert told["counts"] == by_type.tolist()
    for g, shown in enumerate(told["images"]):
        assert all(chosen[i] == g for i in shown)
        assert len(shown) == min(8, by_type[:, g].sum())


def test_clients_are_grouped_with_every_count(images):
    _, found = small(images, "fedgc", "fedgcr", build("type_tests", counts=[1, 2, 6]))
    by_count = found["types"]["clustering_accuracy_by_count"]
    assert by_count[1] == 0.5  # two types of three clients in one group
    assert by_count[6] == 1.0  # a group for each
    assert by_count[2] == found["types"]["clustering_accuracy_h"] >= 0.5
    assert len(found["types"]["map_h"]) == len(found["types"]["type"]) == 48


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to open the page with")
def test_the_page_in_a_browser(seen, tmp_path):
    pytest.importorskip("websocket", reason="no websocket-client to speak to Chromium with")
    path = page.write(seen, tmp_path)
    with browser() as tab:
        for width in (400, 1400):
            for dark in (False, True):
                tab.open(path.as_uri(), width, dark)
                assert not tab.complaints
                wide = "document.documentElement.scrollWidth"
                assert tab.ask(wide) <= width
                alts = tab.ask("[...document.images].map(i => i.alt)")
                assert len(alts) >= 9 and all(len(a) > 40 for a in alts)
                assert tab.ask("[...document.images].every(i => i.naturalWidth > 0)")
                assert tab.ask("[...document.images].every(i => i.width >= 280)")
                back = tab.ask("getComputedStyle(document.body).backgroundColor")
                assert back == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")
                small = "parseFloat(getComputedStyle(e).fontSize) < 12"
                assert not tab.ask(f"[...document.querySelectorAll('p,td,li')].some(e => {small})")
