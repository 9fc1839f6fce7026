"""The project's address: one place, written into all others; each notebook alone on Colab."""

import json
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

from fedbook import badges, results
from fedbook.cli import main
from fedbook.errors import FedbookError

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))


@pytest.fixture
def copy(tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "fedbook" / "papers").mkdir(parents=True)
    (tmp_path / "fedbook" / "papers" / "__init__.py").touch()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    for path in NOTEBOOKS[:2]:
        shutil.copy(path, tmp_path / "notebooks")
    return tmp_path


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def first_code(path):
    return next("".join(c["source"]) for c in cells(path) if c["cell_type"] == "code")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_what_is_committed_follows_from_pyproject(path):
    repo = badges.repository(ROOT)
    assert first_code(path) == badges.first_cell(repo)
    assert badges.link(repo, path.name) in "".join(cells(path)[0]["source"])


def test_one_command_writes_the_address_everywhere(copy, monkeypatch, capsys):
    monkeypatch.chdir(copy)
    assert main(["badges", "--repo", "some-one/book"]) == 0
    assert "notebooks" in capsys.readouterr().out
    assert badges.repository(copy) == "some-one/book"
    address = "google.com/github/some-one/book/blob/main/notebooks/00_start_here.ipynb"
    assert address in (copy / "README.md").read_text()
    for path in NOTEBOOKS[:2]:
        before = cells(path)
        after = cells(copy / "notebooks" / path.name)
        assert "git+https://github.com/some-one/book" in first_code(copy / "notebooks" / path.name)
        changed = [i for i, (a, b) in enumerate(zip(before, after)) if a != b]
        assert changed == [0, 1] and len(before) == len(after)
    assert badges.write("some-one/book", copy) == []
    badges.write(badges.PLACEHOLDER, copy)
    assert (copy / "README.md").read_text() == (ROOT / "README.md").read_text()


@pytest.mark.parametrize("repo", ["", "book", "a/b/c", "https://github.com/a/b", "a/b;rm"])
def test_a_wrong_address_changes_nothing(copy, repo):
    before = (copy / "pyproject.toml").read_bytes()
    with pytest.raises(FedbookError, match="OWNER/NAME"):
        badges.write(repo, copy)
    assert (copy / "pyproject.toml").read_bytes() == before


# -- the first cell --------------------------------------------------------------------------------
def run_first_cell(monkeypatch, *, colab, returncode=0):
    asked = []
    if colab:
        monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    else:
        monkeypatch.delitem(sys.modules, "google.colab", raising=False)
    done = types.SimpleNamespace(returncode=returncode)
    monkeypatch.setattr(subprocess, "run", lambda command: asked.append(command) or done)
    exec(badges.first_cell("a/b"), {})
    return asked


def test_it_does_nothing_elsewhere(monkeypatch):
    assert run_first_cell(monkeypatch, colab=False) == []


def test_on_colab_it_keeps_what_colab_has(monkeypatch):
    from importlib.metadata import version

    [command] = run_first_cell(monkeypatch, colab=True)
    assert command[:5] == [sys.executable, "-m", "pip", "install", "-q"]
    assert command[5] == "fedbook[data] @ git+https://github.com/a/b"
    for name in ("torch", "torchvision", "numpy", "pandas"):
        assert f"{name}=={version(name)}" in command
    monkeypatch.setenv("FEDBOOK_ADDRESS", "fedbook.whl")
    [command] = run_first_cell(monkeypatch, colab=True)
    assert command[5] == "fedbook.whl"


def test_a_failed_install_is_one_sentence(monkeypatch):
    with pytest.raises(SystemExit, match="could not be installed"):
        run_first_cell(monkeypatch, colab=True, returncode=1)


def test_a_folder_that_hides_the_package_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "fedbook", types.ModuleType("fedbook"))
    with pytest.raises(SystemExit, match="hides the package"):
        run_first_cell(monkeypatch, colab=False)


# -- results that come with the package ------------------------------------------------------------
def test_shipped_results_are_read_and_ones_own_win(tmp_path, monkeypatch):
    config = {"a": 1}
    line = {"key": results.config_key(config), "config": config, "metrics": {"x": 1}}
    shipped = tmp_path / "stored"
    results.Store(shipped).append(line, "some_laptop")
    monkeypatch.setattr(results, "SHIPPED", shipped)
    monkeypatch.setenv("FEDBOOK_RESULTS", str(tmp_path / "own"))
    store = results.Store()
    assert [r["metrics"]["x"] for r in store.load()] == [1]
    store.append({**line, "metrics": {"x": 2}}, "some_laptop")
    assert [r["metrics"]["x"] for r in store.load()] == [2]
    assert [r["metrics"]["x"] for r in results.Store(shipped).load()] == [1]
    assert results.Store(tmp_path / "empty").load() == []


def test_an_editable_install_finds_its_results_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDBOOK_RESULTS", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(results, "SHIPPED", results._shipped())
    assert len(results.Store().load()) >= 450
    assert results.Store().folder == tmp_path / "fedbook" / "results"
