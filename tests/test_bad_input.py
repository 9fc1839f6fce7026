"""Every bad input is told in one line what was expected, what came, what to do; no traceback,
nothing half-written."""

import re

import bad_inputs
import hardening
import pytest
from test_cli import call, packs  # noqa: F401

from fedbook import FedbookError


def content(folder):
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def check(text):
    assert "\n" not in text and "Traceback" not in text and len(text) < 400, text
    assert re.search(r" \(.+\)$", text), f"no hint: {text}"


def same(text, table, name, *folders):
    """HARDENING.md says the same, up to what libraries add."""
    page = hardening.rows(table)[name]
    assert hardening.stem(hardening.tidy(text, *folders)) == hardening.stem(page), page


@pytest.mark.parametrize("name", bad_inputs.COMMANDS)
def test_on_the_command_line(call, packs, tmp_path, name):  # noqa: F811
    code, out, err = call(bad_inputs.COMMANDS[name])
    assert code not in (0, None) and "Traceback" not in out
    said = err.strip()
    assert re.match(r"fedbook( \w+)?: error: ", said), said
    check(said)
    same(said, "commands", name, packs, tmp_path)
    assert content(tmp_path) == {}


@pytest.mark.parametrize("name", bad_inputs.PYTHON)
def test_in_python(tmp_path, name):
    (tmp_path / "file").write_text("in the way")
    before = content(tmp_path)
    with pytest.raises(FedbookError) as caught:
        bad_inputs.PYTHON[name](tmp_path)
    check(str(caught.value))
    same(str(caught.value), "python", name, tmp_path)
    assert content(tmp_path) == before


@pytest.mark.parametrize("name", bad_inputs.FILES)
def test_from_files(tmp_path, name):
    place = tmp_path / "here"
    place.mkdir()
    (place / "file").write_text("in the way")
    with pytest.raises(FedbookError) as caught:
        bad_inputs.FILES[name](place)
    check(str(caught.value))
    same(str(caught.value), "files", name, place, tmp_path)
    assert not [p for p in tmp_path.rglob("*") if ".part" in p.name]


def test_there_are_many():
    tables = (bad_inputs.COMMANDS, bad_inputs.PYTHON, bad_inputs.FILES)
    assert sum(map(len, tables)) >= 80


# -- HARDENING.md ----------------------------------------------------------------------------------
def test_the_page_names_every_case():
    import test_faults
    import test_numbers

    assert list(hardening.rows("commands")) == list(bad_inputs.COMMANDS)
    assert list(hardening.rows("python")) == list(bad_inputs.PYTHON)
    assert list(hardening.rows("files")) == list(bad_inputs.FILES)
    assert hardening.rows("faults") == hardening.described(test_faults)
    assert hardening.rows("numbers") == hardening.described(test_numbers)
