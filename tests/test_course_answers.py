"""Checked exercises: the printed solutions are right, mistakes are named in kind, and the answer
never appears."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from fedbook import FedbookError, papers
from fedbook.course import answers
from fedbook.course.exercises import EXERCISES, Exercise
from fedbook.notebook import answer, hint, summary

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("[0-9][0-9]_*.ipynb"))
CLIENTS = [10, 6, 3, 2, 1]
NEEDS_THE_NOTEBOOK = {"03.2", "08.1"}


def exercises():
    """(id, source of the question's cell, text of the cell with its solution)."""
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text())["cells"]
        for cell, after in zip(cells, cells[1:]):
            source = "".join(cell["source"])
            if found := re.search(r'^answer\("([\d.]+)"', source, re.M):
                yield pytest.param(source, "".join(after["source"]), id=found.group(1))


def last(capsys):
    return capsys.readouterr().out.splitlines()[-1]


def test_every_checked_exercise_is_known_and_asked_once():
    ids = [p.id for p in exercises()]
    assert ids == list(EXERCISES)


@pytest.mark.parametrize(("question", "solution"), exercises())
def test_the_printed_solution_is_right_and_the_question_gives_nothing_away(
    question, solution, capsys, request
):
    id = request.node.callspec.id
    assert "return None" in question or "= None" in question
    if id in NEEDS_THE_NOTEBOOK:
        return
    space = {"np": np, "pd": pd, "math": math, "torch": torch, "F": F, "papers": papers}
    space |= {"answer": lambda *a, **k: None, "clients": CLIENTS}
    if id == "04.3":
        space |= {"c": np.zeros(4)}
    exec(question, space)
    code = re.search(r"```python\n(.*?)```", solution, re.S).group(1)
    exec(code, space)
    name = re.search(rf'answer\("{id}", (\w+)', question).group(1)
    answer(id, space[name])
    assert last(capsys) == f"{id} right"


@pytest.mark.parametrize(
    ("got", "told"),
    [
        (None, "still to do"),
        (0.5, "right"),
        (np.float32(0.5), "right"),
        (torch.tensor(0.5), "right"),
        ("x", "wrong type; one number is asked for, you gave a str"),
        (True, "wrong type"),
        ({}, "wrong type"),
        ([1, 2], "wrong shape; one number is asked for, you gave shape (2,)"),
        (math.nan, "not a finite number"),
        (-0.5, "the sign is wrong"),
        (-7.0, "the sign is wrong, and the size too"),
        (50.0, "100 times too large: a share is asked for"),
        (0.503, "nearly; do not round"),
        (0.9, "too large"),
        (0.1, "too small"),
    ],
)
def test_the_kind_of_mistake(got, told):
    verdict = answers.judge(Exercise(lambda: 0.5, ()), got)
    assert told in verdict
    assert "0.5" not in verdict.replace("0.503", "")


@pytest.mark.parametrize(
    ("got", "told"),
    [
        ([0.25, 0.25, 0.5], "right"),
        ([0.5, 0.25, 0.25], "wrong order"),
        ([1, 1, 2], "up to a common factor"),
        ([0.25, 0.25], "wrong shape"),
        ([0.25, 0.4, 0.35], "number 2 of 3 is the first that is wrong, too large"),
    ],
)
def test_the_kind_of_mistake_in_several_numbers(got, told):
    verdict = answers.judge(EXERCISES["05.1"], got)
    assert told in verdict
    assert "0.25" not in verdict


def test_whole_numbers_must_be_exact():
    verdict = answers.judge(EXERCISES["07.2"], 61_500)
    assert verdict in ("not yet: too small", "not yet: too large")


@pytest.mark.parametrize(
    ("got", "told"),
    [
        (lambda a, t: None, "still to do"),
        (0.5, "give the function itself"),
        (lambda a, t: 1 / 0, "ZeroDivisionError"),
        (lambda a, t: 0.5, "(called with [0.8, 0.6, 0.5, 0.1, 0.3, 0.7]"),
        (lambda a, t: np.mean(a), "too large"),
    ],
)
def test_functions_are_tried_on_several_cases(got, told):
    assert told in answers.judge(EXERCISES["00.1"], got)


def test_what_a_check_needs_of_the_notebook(capsys):
    class Model:
        def embed(self, x):
            return 2 * x

    answer("03.2", torch.ones(3), model=Model(), images=torch.ones(3) / 2)
    assert last(capsys) == "03.2 right"


def test_hints_come_one_by_one_and_summary_counts(capsys):
    for i in range(len(EXERCISES["07.1"].hints)):
        hint("07.1")
        assert last(capsys).startswith(f"07.1 hint {i + 1} of 3")
    hint("07.1")
    assert "no more hints" in last(capsys)
    answers._SOLVED.clear()
    summary("07")
    assert last(capsys) == "0 of 2 solved; still to do: 07.1, 07.2"
    answer("07.1", 2.5)
    summary("07")
    assert last(capsys) == "1 of 2 solved; still to do: 07.2"
    answer("07.2", (5 + 25) * 768 + 769 * 50)
    summary("07")
    assert last(capsys) == "2 of 2 solved, well done"


def test_hints_are_two_or_three_and_do_not_print_the_answer():
    for id, exercise in EXERCISES.items():
        assert 2 <= len(exercise.hints) <= 3, id
        if exercise.cases or id == "03.2":
            continue
        for number in np.ravel(exercise.expected()):
            if float(number) not in (0.0, 0.5):  # too common to be given away
                shown = re.findall(r"(?<![\w.])\d+(?:\.\d+)?", " ".join(exercise.hints))
                assert f"{number:g}" not in shown, id


def test_an_unknown_exercise_and_notebook():
    with pytest.raises(FedbookError, match="did you mean 01.1"):
        answer("01.11", 1)
    with pytest.raises(FedbookError, match="unknown notebook"):
        summary("77")
