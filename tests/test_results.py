"""The store: whole lines only, the newest of a key, no interleaving, nothing half-used after a kill
or a full disk."""

import json
import multiprocessing
import warnings

import pytest

from fedbook import FedbookError
from fedbook.results import FORMAT, Store, config_key, default_folder


def line(seed=0, value=1.0, **config):
    config = {"method": {"name": "fedavg"}, "seed": seed, **config}
    return {
        "key": config_key(config),
        "config": config,
        "scale": "smoke",
        "seed": seed,
        "metrics": {"avg": value},
    }


def test_key_depends_on_content_not_on_order():
    assert config_key({"a": 1, "b": [1, 2]}) == config_key({"b": [1, 2], "a": 1})
    assert config_key({"a": 1}) != config_key({"a": 2})
    assert len(config_key({})) == 16


def test_append_load_filter_frame(tmp_path):
    store = Store(tmp_path / "deep" / "results")
    for seed in (0, 1):
        store.append(line(seed, 0.5 + seed), "fedgcr_smoke")
    store.append({**line(7), "scale": "laptop"}, "fedgcr_laptop")
    assert len(store.load()) == 3 and [r["seed"] for r in store.load(scale="laptop")] == [7]
    frame = store.frame(scale="smoke")
    assert (
        frame["metrics.avg"].tolist() == [0.5, 1.5]
        and frame["config.method.name"].eq("fedavg").all()
    )
    assert Store(tmp_path / "nowhere").load() == []


def test_newest_line_of_a_key_wins(tmp_path):
    store = Store(tmp_path)
    store.append(line(0, 1.0), "a")
    assert store.keys()[line()["key"]]["metrics"]["avg"] == 1.0
    store.append(line(0, 2.0), "a")
    assert len(store.load()) == 1 and store.load()[0]["metrics"]["avg"] == 2.0


def test_torn_last_line_is_reported_ignored_and_removed(tmp_path):
    store, path = Store(tmp_path), tmp_path / "a.jsonl"
    store.append(line(0), "a")
    whole = path.read_bytes()
    for cut in (1, 60, len(json.dumps(line(1))) - 2):
        path.write_bytes(whole + json.dumps(line(1)).encode()[:cut])
        with pytest.warns(UserWarning, match="line 2 is broken or unfinished"):
            assert len(Store(tmp_path).load()) == 1
        with pytest.warns(UserWarning, match="removed an unfinished last line"):
            store.append(line(2), "a")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert [r["seed"] for r in Store(tmp_path).load()] == [0, 2]
        path.write_bytes(whole)


def test_a_whole_last_line_without_newline_is_kept(tmp_path):
    store, path = Store(tmp_path), tmp_path / "a.jsonl"
    path.write_text(json.dumps(line(0)))
    assert len(store.load()) == 1
    store.append(line(1), "a")
    assert [r["seed"] for r in store.load()] == [0, 1]


def test_lines_carry_their_format_and_older_ones_are_read(tmp_path):
    store, path = Store(tmp_path), tmp_path / "a.jsonl"
    store.append(line(0), "a")
    assert json.loads(path.read_text())["format"] == FORMAT == 2
    first = line(1) | {"metrics": {"avg": 0.5, "extra": {"weigh.0.q": 1.5, "update.step": 3}}}
    unmarked = line(2) | {"metrics": {"avg": 0.5, "log": {"q": 1.5}}}
    with path.open("a") as f:
        f.write(json.dumps(first) + "\n" + json.dumps(unmarked) + "\n")
    logs = [r["metrics"].get("log") for r in Store(tmp_path).load()]
    assert logs == [None, {"q": 1.5, "step": 3}, {"q": 1.5}]
    assert all("extra" not in r["metrics"] for r in Store(tmp_path).load())


@pytest.mark.parametrize("number", [0, 3, "2", None])
def test_a_line_of_an_unknown_format_is_refused_with_a_hint(tmp_path, number):
    text = json.dumps(line(0)) + "\n" + json.dumps(line(1) | {"format": number}) + "\n"
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(FedbookError, match="line 2 has format .*, this fedbook reads 1 to 2"):
        Store(tmp_path).load()
    assert (tmp_path / "a.jsonl").read_text() == text


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":NaN}', "7", "null", "[]", '{"key":1, "config": [], "metrics": 1}'],
)
def test_what_is_no_result_is_reported_and_ignored(tmp_path, text):
    (tmp_path / "a.jsonl").write_text(text + "\n" + json.dumps(line(1)) + "\n")
    with pytest.warns(UserWarning, match="line 1"):
        assert [r["seed"] for r in Store(tmp_path).load()] == [1]


def test_an_edited_configuration_no_longer_fits_its_key(tmp_path):
    forged = {**line(0), "config": {"seed": 99}}
    (tmp_path / "a.jsonl").write_text(json.dumps(forged) + "\n" + json.dumps(line(1)) + "\n")
    with pytest.warns(UserWarning, match="line 1"):
        assert [r["seed"] for r in Store(tmp_path).load()] == [1]


def test_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    store, path = Store(tmp_path), tmp_path / "a.jsonl"
    store.append(line(0), "a")
    before = path.read_bytes()

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(FedbookError, match="no space left.*nothing half-written"):
        store.append(line(1), "a")
    assert path.read_bytes() == before


# -- results of another machine --------------------------------------------------------------------
def put(path, *lines):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    return path


def test_merge_adds_what_is_not_here_under_the_same_name(tmp_path):
    store = Store(tmp_path / "here")
    store.append(line(0), "a_paper")
    path = put(tmp_path / "there" / "b_paper.jsonl", line(0), line(1, 2.0), line(2), line(2, 3.0))
    merged = store.merge(path)
    assert (merged.new, merged.known, merged.different, merged.refused) == (2, 1, [], [])
    assert [r["seed"] for r in store.load()] == [0, 1, 2]
    assert len((tmp_path / "here" / "b_paper.jsonl").read_text().splitlines()) == 2
    assert store.keys()[line(2)["key"]]["metrics"]["avg"] == 3.0, "the newest line of a key"
    again = store.merge(path)
    assert (again.new, again.known) == (0, 3)
    assert store.merge(tmp_path / "here" / "b_paper.jsonl").known == 2, "even from its own folder"


def test_merge_keeps_what_is_here_and_tells_another_outcome_but_not_another_time(tmp_path):
    store = Store(tmp_path / "here")
    for seed in (0, 1):
        timed = {"avg": 0.5, "seconds": [1, 2], "log": {"index_seconds": 3, "q": 1}}
        store.append(line(seed) | {"metrics": timed, "seconds": 9}, "a")
    before = (tmp_path / "here" / "a.jsonl").read_bytes()
    slower = {"avg": 0.5, "seconds": [7, 8], "log": {"index_seconds": 4, "q": 1}}
    better = {**slower, "avg": 0.6}
    path = tmp_path / "there" / "a.jsonl"
    put(path, line(0) | {"metrics": slower}, line(1) | {"metrics": better})
    merged = store.merge(path)
    assert merged.known == 1 and merged.different == [line(1)["key"]] and merged.new == 0
    assert (tmp_path / "here" / "a.jsonl").read_bytes() == before


def test_merge_refuses_what_it_cannot_read_and_reads_older_lines(tmp_path):
    store = Store(tmp_path / "here")
    old = line(1) | {"format": 1, "metrics": {"avg": 0.5, "extra": {"weigh.0.q": 1.5}}}
    lacking = [{k: v for k, v in line(2).items() if k != part} for part in ("key", "config")]
    future = line(3) | {"format": 99}
    torn = json.dumps(line(4))[:50]
    path = put(tmp_path / "there" / "a.jsonl", old, *lacking, future, "", torn)
    merged = store.merge(path)
    assert merged.new == 1 and len(merged.refused) == 4
    places = [int(why.split("line ")[1].split()[0]) for why in merged.refused]
    assert places == [2, 3, 4, 6] and "format 99" in merged.refused[2]
    [kept] = Store(tmp_path / "here").load()
    assert kept["metrics"] == {"avg": 0.5, "log": {"q": 1.5}} and kept["format"] == FORMAT


def test_merge_on_a_full_disk_adds_no_line_at_all(tmp_path, monkeypatch):
    store = Store(tmp_path / "here")
    store.append(line(0), "a")
    before = (tmp_path / "here" / "a.jsonl").read_bytes()
    path = put(tmp_path / "there" / "a.jsonl", *(line(seed) for seed in range(1, 9)))

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(FedbookError, match="no space left.*nothing half-written"):
        store.merge(path)
    assert (tmp_path / "here" / "a.jsonl").read_bytes() == before


def test_unwritable_folder_is_found_before_any_run(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FedbookError, match="--results DIR"):
        Store(tmp_path / "file").check_writable()
    Store(tmp_path / "new").check_writable()
    assert list((tmp_path / "new").iterdir()) == []


def _append_many(folder, start):
    store = Store(folder)
    for i in range(40):
        store.append(line(start + i, text="x" * 3000), "shared")


def test_processes_do_not_interleave(tmp_path):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_append_many, args=(tmp_path, 1000 * k)) for k in range(4)]
    [w.start() for w in workers]
    [w.join() for w in workers]
    assert len(Store(tmp_path).load()) == 160


def test_default_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDBOOK_RESULTS", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.chdir(tmp_path)
    assert default_folder() == tmp_path / "share" / "fedbook" / "results"
    (tmp_path / "repo" / "fedbook" / "papers").mkdir(parents=True)
    (tmp_path / "repo" / "fedbook" / "papers" / "__init__.py").write_text("")
    (tmp_path / "repo" / "pyproject.toml").write_text("")
    monkeypatch.chdir(tmp_path / "repo" / "fedbook")
    assert default_folder() == tmp_path / "repo" / "results"
    monkeypatch.setenv("FEDBOOK_RESULTS", str(tmp_path / "mine"))
    assert default_folder() == tmp_path / "mine"
