"""Hours per table: a shared run is paid once, by the first; GPU_DAY.md says what the rehearsal
says."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from fedbook import FedbookError, papers
from fedbook.cli import main, parser
from fedbook.papers import gpu_day, rehearse

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "GPU_DAY.md").read_text()
SPECS = list(papers.specs().values())


@pytest.fixture(scope="module")
def kept():
    """Every distinct run rehearsed: an hour a run on an A100, two on a T4."""
    found = {}
    for tables, runs in rehearse.distinct(SPECS, "paper"):
        key, count = runs[0].experiment.key, len(runs)
        base = {"key": key, "tables": " ".join(tables), "runs": count, "what": "", "data": "drawn"}
        hours = {"hours_t4": 2.0 * count, "hours_a100": 1.0 * count}
        found[key] = rehearse.Rehearsal(**base, outcome="ok", pflop=1.0, **hours)
    return found


@pytest.fixture
def known(kept):
    return rehearse.run_hours(SPECS, "paper", kept)


def cost(ids, known):
    return list(rehearse.prices([papers.get(i) for i in ids], "paper", known))


# -- hours -----------------------------------------------------------------------------------------
def test_every_run_has_hours_and_none_is_counted_twice(known, kept):
    runs = {run.experiment.key for spec in SPECS for run in spec.plan("paper")}
    assert known.keys() == runs
    for order in (SPECS, SPECS[::-1]):
        found = list(rehearse.prices(order, "paper", known))
        assert sum(p.runs for p in found) == len(runs) and not any(p.unknown for p in found)
        for card in rehearse.CARDS:
            whole = sum(getattr(r, f"hours_{card}") for r in kept.values())
            assert sum(p.hours[card] for p in found) == pytest.approx(whole)


def test_a_shared_run_is_paid_by_the_first(known):
    """Table 8 of Client2Vec repeats Table 4; FedGCR's Table 13 has runs of Table 6."""
    first, again = cost(["client2vec/table4", "client2vec/table8"], known)
    assert first.runs == 108 and again.runs == 0 and again.hours == {"t4": 0, "a100": 0}
    alone = cost(["fedgcr/table13"], known)[0]
    _, after = cost(["fedgcr/table6", "fedgcr/table13"], known)
    assert alone.runs == 12 and after.runs == 6


def test_longer_runs_of_a_distinct_run_take_more_of_its_hours(known):
    """Table 8 of FGPT sweeps the local epochs."""
    swept = papers.get("fgpt/table8").plan("paper")[0]
    groups = [runs for _, runs in rehearse.distinct(SPECS, "paper")]
    group = next(g for g in groups if swept.experiment.key in {r.experiment.key for r in g})
    hours = [known[r.experiment.key]["a100"] for r in group]
    epochs = [r.experiment.method["epochs"] for r in group]
    assert len(set(epochs)) > 1 and sum(hours) == pytest.approx(len(group))
    assert [h / n for h, n in zip(hours, epochs)] == pytest.approx(
        [hours[0] / epochs[0]] * len(group)
    )


@pytest.mark.parametrize("what", ["missing", "broken", "of fewer runs"])
def test_a_run_without_a_rehearsal_is_told_not_guessed(kept, what):
    spec = papers.get("grp_fed/fig1")
    tables, runs = next((t, r) for t, r in rehearse.distinct(SPECS, "paper") if spec.id in t)
    key = runs[0].experiment.key
    base = {"key": key, "tables": " ".join(tables), "what": "", "data": "here"}
    other = {k: r for k, r in kept.items() if k != key}
    if what == "broken":
        other[key] = rehearse.Rehearsal(**base, runs=len(runs), outcome="ValueError: no")
    if what == "of fewer runs":
        hours = {"pflop": 1.0, "hours_t4": 1.0, "hours_a100": 1.0}
        other[key] = rehearse.Rehearsal(**base, runs=len(runs) + 1, outcome="ok", **hours)
    known = rehearse.run_hours(SPECS, "paper", other)
    assert rehearse.price(spec, "paper", known).unknown > 0
    assert spec not in gpu_day.fits([spec], known, "a100", 1e9)
    assert re.search(r"grp_fed/fig1 +\d+ +\? ", gpu_day.text([spec], known))


# -- order -----------------------------------------------------------------------------------------
def test_main_tables_come_first_then_what_claims_rest_on(known):
    ids = [spec.id for spec in gpu_day.order(known)]
    assert len(ids) == len(set(ids)) and set(ids[: len(gpu_day.MAIN)]) == set(gpu_day.MAIN)
    rests = gpu_day.claims()
    served = [id in rests for id in ids]
    assert served == sorted(served, reverse=True)
    printed = {s.id for s in SPECS if s.kind in ("table", "figure") and s.plan("paper")}
    assert set(ids) == printed | {"fgpt/unseen"}, "a claim rests on that study"


def test_claims_rest_on_the_tables_their_text_names():
    rests = gpu_day.claims()
    for paper in papers.PAPERS.values():
        for claim in paper.claims:
            named = re.findall(r"Table (\d+)\)", claim.text)
            for number in named if not claim.own else ():
                assert claim.id in rests[f"{paper.key}/table{number}"], claim.text


@pytest.mark.parametrize("day", [0, 24, 500])
def test_a_day_is_not_overspent(known, day):
    chosen = gpu_day.fits(gpu_day.order(known), known, "t4", day)
    assert sum(p.hours["t4"] for p in rehearse.prices(chosen, "paper", known)) <= day
    assert bool(chosen) == (day > 0)


# -- the page --------------------------------------------------------------------------------------
def test_the_page_says_what_the_rehearsal_says():
    kept = rehearse.load(ROOT / "results" / "rehearsal_paper.csv")
    known = rehearse.run_hours(SPECS, "paper", kept)
    found = gpu_day.BLOCK.search(PAGE)
    assert found is not None
    said = found[0].removeprefix(found[1]).removesuffix(found[2])
    assert said == gpu_day.block(known), "run `fedbook hours --page`"


def test_the_block_has_a_command_for_each_card(known):
    block = gpu_day.block(known)
    assert "A day on one T4 buys" in block and "A day on one A100 buys" in block
    rows = [line.split(" | ") for line in block.splitlines() if re.match(r"\| \d+ \| `", line)]
    assert [row[1].strip("`") for row in rows] == [spec.id for spec in gpu_day.order(known)]
    found = {row[1].strip("`"): (row[3], row[4], row[6]) for row in rows}
    assert found["fedgcr/table2"] == ("72", "144", "72.0")
    assert found["client2vec/fig2"][1].startswith(">"), "a small network"
    assert "| `digit_five` | 1,930 | synth_digits |" in block
    assert "| `domainnet` | 17,900 |  |" in block and "| `pacs` | 174 | pacs |" in block


def commands(text):
    """The indented lines that call fedbook, with their continuations."""
    joined = text.replace("\\\n", " ")
    return [line.split("#")[0].strip() for line in re.findall(r"^    (fedbook .*)$", joined, re.M)]


@pytest.mark.parametrize("line", commands(PAGE))
def test_its_commands_can_be_typed(line):
    words = shlex.split(line)[1:]
    args = parser(words[0]).parse_args(words)
    for id in getattr(args, "ids", ()):
        papers.get(id)


def test_its_commands_fetch_all_data(known):
    named = {w for line in commands(PAGE) if "data fetch" in line for w in line.split()[3:]}
    wanted = {name for spec in gpu_day.order(known) for name in gpu_day.data(spec)}
    assert wanted - named == {"cifar100_c"}, "computed from cifar100"


def test_the_command_writes_the_page(kept, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("FEDBOOK_RESULTS", raising=False)
    (tmp_path / "fedbook" / "papers").mkdir(parents=True)
    (tmp_path / "fedbook" / "papers" / "__init__.py").touch()
    for name in ("pyproject.toml", "GPU_DAY.md"):
        shutil.copy(ROOT / name, tmp_path)
    rehearse.keep(kept.values(), tmp_path / "results" / "rehearsal_paper.csv")
    monkeypatch.chdir(tmp_path)
    assert main(["hours", "--page"]) == 0
    page = (tmp_path / "GPU_DAY.md").read_text()
    known = rehearse.run_hours(SPECS, "paper", kept)
    assert gpu_day.block(known) in page and page.startswith("# One GPU day")
    before = PAGE.split("<!-- hours -->")[0]
    assert page.split("<!-- hours -->")[0] == before
    assert main(["hours", "fedgcr/table2", "fedgcr/table12"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"fedgcr/table2 +72 +144 +144 +72.0 +72.0\n", told)
    assert re.search(r"fedgcr/table12 +6 +12.0 +156 +6.0 +78.0\n", told)
    (tmp_path / "GPU_DAY.md").write_text("nothing")
    with pytest.raises(FedbookError, match="no place for the hours"):
        gpu_day.write(known, tmp_path)
    assert (tmp_path / "GPU_DAY.md").read_text() == "nothing"
