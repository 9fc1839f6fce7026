"""The assignments: solved they score everything, released nothing, a typical mistake passes what
students see and fails what they do not; and the whole way through nbgrader."""

import csv
import json
import re
from pathlib import Path

import pytest

from fedbook import FedbookError
from fedbook.cli import main
from fedbook.course import edition, glossary, slides, toy

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "course").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch):
    monkeypatch.setenv("FEDBOOK_COURSE", str(ROOT / "course"))
    monkeypatch.setenv("FEDBOOK_NOTEBOOKS", str(ROOT / "notebooks"))


def read(path):
    pytest.importorskip("jupytext", reason="jupytext reads them: pip install fedbook[course]")
    from fedbook.course import assignments

    return assignments.read(path)


# -- without nbgrader ------------------------------------------------------------------------------
def test_nine_assignments_and_a_project():
    assert [p.stem[:3] for p in SOURCES] == ["pro", *(f"ps{i}" for i in range(1, 10))]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_solved_all_released_nothing_wrong_only_what_is_seen(path):
    from fedbook.course.assignments import check

    assignment = read(path)
    assert check(assignment) == []
    assert assignment.points == (40 if path.stem == "project" else 20)
    assert len(assignment.of("wrong")) == len(assignment.of("test")) >= 3
    assert re.search(r"\*\*Time\.\*\*", assignment.cells[0].text)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_no_line_of_a_solution_is_in_the_release(path):
    from fedbook.course.assignments import MARKED, released

    assignment = read(path)
    cells = [c for c in assignment.cells if c.role != "wrong"]
    text = "\n".join(released(c.text) for c in cells)
    assert "BEGIN" not in text and "END " not in text
    for kind, (begin, end) in MARKED.items():
        for c in cells:
            for block in re.findall(f"{begin}\n(.*?){end}", c.text, re.S):
                for line in block.splitlines():
                    said = kind == "SOLUTION" or line.startswith("assert")
                    if said and len(line.strip()) > 25:
                        assert line not in text, (kind, line)


def test_numbers_depend_on_the_name_and_the_assignment_alone():
    a, b = (
        toy.numbers(name, "ps1").integers(1 << 60) for name in ("Ada  Lovelace", "ada lovelace")
    )
    assert a == b
    assert toy.numbers("ada", "ps1").integers(1 << 60) != toy.numbers("bob", "ps1").integers(
        1 << 60
    )
    assert toy.numbers("ada", "ps1").integers(1 << 60) != toy.numbers("ada", "ps2").integers(
        1 << 60
    )
    with pytest.raises(FedbookError, match="write your name"):
        toy.numbers(" ", "ps1")


def test_a_cell_may_be_cut():
    from fedbook.course.assignments import plain, released

    text = "def f():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION"
    assert released(text) == 'def f():\n    raise NotImplementedError("your lines here")'
    assert plain(text) == "def f():\n    return 1"
    text = "assert f()\n### BEGIN HIDDEN TESTS\nassert f() == 1\n### END HIDDEN TESTS"
    assert released(text) == "assert f()"


def test_check_finds_what_is_wrong(tmp_path):
    from fedbook.course.assignments import check

    source = tmp_path / "bad.py"
    source.write_text(
        '# %% [markdown]\n# # Bad\n# %% solve="f"\n### BEGIN SOLUTION\nx = 1\n### END SOLUTION\n'
        '# %% wrong="f"\nx = 2\n# %% test="f" points=1\nassert True\n'
    )
    faults = check(read(source))
    assert "released, test f passes" in faults
    assert any("wrong f is not told" in f for f in faults)


# -- the student edition ---------------------------------------------------------------------------
def test_the_student_edition_has_no_solutions(tmp_path):
    made = edition.students(tmp_path)
    books = [p for p in made if p.parent == tmp_path]
    assert {p.name for p in books} >= {p.name for p in NOTEBOOKS} | {"glossary.ipynb"}
    solved = {p.name for p in made if p.parent.name == "solutions"}
    assert solved == {p.name for p in NOTEBOOKS}
    for path in NOTEBOOKS:
        before = "".join("".join(c["source"]) for c in json.loads(path.read_text())["cells"])
        after = json.loads((tmp_path / path.name).read_text())
        text = "".join("".join(c["source"]) for c in after["cells"])
        assert "Solution</summary>" not in text and "<details>" not in text
        answers = json.loads((tmp_path / "solutions" / path.name).read_text())
        given = "\n".join("".join(c["source"]) for c in answers["cells"])
        assert before.count("Solution</summary>") == len(answers["cells"]) - 1
        assert re.findall(r"\*\*\d \(checked\)", given) == re.findall(r"\*\*\d \(checked\)", before)
        for block in re.findall(r"<details>.*?```python\n(.*?)```", before, re.S):
            assert block in given and block not in text
        assert re.findall(r"\*\*\d \(open\)", text) == re.findall(r"\*\*\d \(open\)", before)


def test_a_clean_student_edition_has_no_outputs(tmp_path, capsys):
    assert main(["course", "students", str(tmp_path), "--clean"]) == 0
    cells = json.loads((tmp_path / NOTEBOOKS[0].name).read_text())["cells"]
    assert not [c for c in cells if c.get("outputs")]
    assert main(["course", "students", str(ROOT / "notebooks")]) == 1
    assert "name another folder" in capsys.readouterr().err


def test_the_guide_answers_every_open_exercise():
    guide = (ROOT / "course" / "TEACH.md").read_text()
    told = re.findall(r"^\*\*(\d\d\.\d)\*\* ", guide, re.M)
    asked = []
    for path in NOTEBOOKS:
        text = "\n".join("".join(c["source"]) for c in json.loads(path.read_text())["cells"])
        asked += [f"{path.name[:2]}.{i}" for i in re.findall(r"\*\*(\d) \(open\)", text)]
    assert told == asked and len(told) > 30


# -- the glossary ----------------------------------------------------------------------------------
def test_the_glossary_is_current_and_linked_from_every_notebook():
    assert (ROOT / "notebooks" / "glossary.ipynb").read_text() == glossary.text()
    for path in NOTEBOOKS:
        assert "](glossary.ipynb)" in path.read_text(), path.name


def test_the_glossary_tells_letters_apart():
    letters = [s for s, *_ in glossary.SYMBOLS]
    assert letters.count(r"\beta") == 2 and {"h_k", "h(x)", "B", "D", "U", "C"} <= set(letters)
    assert all(meaning for _, _, meaning, _ in glossary.SYMBOLS)
    words = [w for w, _ in glossary.TERMS]
    assert words == sorted(words, key=lambda w: w.lower().replace("-", ""))
    assert len(glossary.ALGORITHMS) == 4


def test_slides_are_tagged_as_the_rule_says():
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text())["cells"]
        tagged = [c["metadata"].get("slideshow", {}).get("slide_type") for c in cells]
        assert tagged == slides.kinds(cells), f"{path.name}: run `fedbook course slides`"
        folded = [c["metadata"].get("jupyter", {}).get("source_hidden", False) for c in cells]
        hidden = ["hide-input" in c["metadata"].get("tags", []) for c in cells]
        assert hidden == [slides.draws(c) for c in cells], f"{path.name}: `fedbook course slides`"
        assert [i for i, f in enumerate(folded) if f and not hidden[i]] == [1]  # the set-up
        assert tagged[0] == "slide" and tagged.count("slide") >= 5
        shown = [c for c, kind in zip(cells, tagged) if kind != "skip"]
        text = "".join("".join(c["source"]) for c in shown)
        assert "answer(" not in text and "Solution" not in text and "## Summary" in text


# -- the command -----------------------------------------------------------------------------------
def test_one_line_for_a_wrong_call(capsys, tmp_path):
    assert main(["course", "build"]) == 1
    assert "build needs a folder" in capsys.readouterr().err
    assert main(["course", "grade", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "nothing to grade" in told and told.count("\n") == 1


# -- through nbgrader ------------------------------------------------------------------------------
def hand_in(folder, student, name, text):
    path = folder / "inbox" / student / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_cell_that_was_stopped_is_said(tmp_path):
    from nbformat import v4, write

    from fedbook.course.grade import slow_note

    cell = v4.new_code_cell("while True:\n    pass")
    path = tmp_path / "autograded" / "ada" / "ps1" / "ps1.ipynb"
    path.parent.mkdir(parents=True)
    write(v4.new_notebook(cells=[v4.new_markdown_cell("text"), cell]), path)
    assert slow_note(tmp_path, "ada", "ps1") == ""
    cell.outputs = [v4.new_output("error", ename="CellTimeoutError", evalue="", traceback=[])]
    write(v4.new_notebook(cells=[cell]), path)
    assert "longer than a minute" in slow_note(tmp_path, "ada", "ps1")


def with_mistakes(source, mistakes):
    """A solved notebook with some typical wrong answers."""
    book = json.loads(source)
    for cell in book["cells"]:
        about = cell["metadata"].get("nbgrader", {})
        if about.get("solution") and about["grade_id"] in mistakes:
            cell["source"] = mistakes[about["grade_id"]]
    return json.dumps(book)


@pytest.mark.nbgrader
def test_the_cycle_of_nbgrader(tmp_path, capsys):
    """Ada solves everything, Bob makes typical mistakes in every second part, Eve does nothing."""
    pytest.importorskip("nbgrader", reason="nbgrader is not installed: pip install fedbook[course]")
    name = "ps2_partitions"
    assignment = read(ROOT / "course" / f"{name}.py")
    mistakes = {c.id: c.text for c in assignment.of("wrong")[::2]}
    lost = sum(c.points for c in assignment.of("test") if c.id in mistakes)
    assert 0 < lost < 20
    assert main(["course", "build", str(tmp_path), name]) == 0
    release = (tmp_path / "release" / name / f"{name}.ipynb").read_text()
    assert "SOLUTION" not in release and "HIDDEN" not in release
    assert "your lines here" in release
    source = (tmp_path / "source" / name / f"{name}.ipynb").read_text()
    hand_in(tmp_path, "ada", name, source.replace('\\"solution\\"', '\\"ada\\"'))
    mine = source.replace('\\"solution\\"', '\\"bob\\"')
    hand_in(tmp_path, "bob", name, with_mistakes(mine, mistakes))
    hand_in(tmp_path, "eve", name, release)
    capsys.readouterr()
    assert main(["course", "grade", str(tmp_path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(r["student"], r["score"], r["points"]) for r in rows] == [
        ("ada", 20.0, 20.0),
        ("bob", 20.0 - lost, 20.0),
        ("eve", 0.0, 20.0),
    ]
    assert [r["note"] for r in rows[:2]] == ["", ""] and "no name" in rows[2]["note"]
    with open(tmp_path / "grades.csv") as f:
        scores = {r["student_id"]: float(r["score"]) for r in csv.DictReader(f)}
    assert scores == {"ada": 20.0, "bob": 20.0 - lost, "eve": 0.0}
    assert "AssertionError" in (tmp_path / "feedback" / "bob" / name / f"{name}.html").read_text()
