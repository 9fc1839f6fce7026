"""The notebooks as committed: run, really compared by nbval, readable, described, and free of
machine traces."""

import ast
import dis
import json
import re
from collections import Counter
from pathlib import Path

import nbformat
import pytest

from fedbook.course.slides import draws

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("[0-9][0-9]_*.ipynb"))
IGNORED = {"nbval-ignore-output", "nbval-skip"}
READS = {"LOAD_NAME", "LOAD_GLOBAL"}
CANVAS = {"fig", "ax", "axes", "image"}  # what a picture is drawn on belongs to its cell alone
MACHINE = re.compile(
    r"(?<![\w.])/(?:home|root|tmp|opt|work|usr|Users|content|mnt|var)/|[A-Z]:\\\\|site-packages"
)


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return nbformat.read(request.param, as_version=4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell):
    return set(cell.metadata.get("tags", []))


def images(notebook):
    return [o for c in code(notebook) for o in c.outputs if "image/png" in o.get("data", {})]


def test_the_first_three_are_there():
    assert [path.name[:2] for path in NOTEBOOKS][:3] == ["00", "01", "02"]


def test_it_was_run_from_top_to_bottom_without_errors(notebook):
    cells = [c for c in code(notebook) if "nbval-skip" not in tags(c)]
    assert [c.execution_count for c in cells] == list(range(1, len(cells) + 1))
    assert not [
        o for c in cells for o in c.outputs if o.output_type == "error" or o.get("name") == "stderr"
    ]


def test_it_renders_and_runs_anywhere(notebook):
    assert "widgets" not in notebook.metadata
    assert notebook.metadata.kernelspec.name == "python3"


def test_enough_cells_are_compared(notebook):
    """A notebook without outputs passes nbval without comparing anything."""
    compared = [c for c in code(notebook) if c.outputs and not tags(c) & IGNORED]
    texts = [
        c
        for c in compared
        if any(o.output_type == "stream" or "image/png" not in o.data for o in c.outputs)
    ]
    assert len(compared) >= 12 and len(texts) >= 8


def test_widgets_are_not_compared(notebook):
    for cell in code(notebook):
        if any("widget-view" in kind for o in cell.outputs for kind in o.get("data", {})):
            assert tags(cell) & IGNORED, cell.source


def test_no_machine_path_in_outputs(notebook):
    for cell in code(notebook):
        for output in cell.outputs:
            shown = {k: v for k, v in output.get("data", {}).items() if not k.startswith("image/")}
            assert not MACHINE.search(json.dumps(shown) + output.get("text", "")), cell.source


def test_cells_are_short(notebook):
    for cell in code(notebook):
        assert cell.source.count("\n") + 1 <= (18 if draws(cell) else 15), cell.source
    assert max(len(line) for c in code(notebook) for line in c.source.split("\n")) <= 92


def test_every_figure_has_a_description(notebook):
    assert images(notebook)
    for output in images(notebook):
        assert len(output.metadata.get("image/png", {}).get("alt", "")) > 60


def test_it_follows_the_template(notebook):
    first, text = (
        notebook.cells[0].source,
        "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown"),
    )
    assert (
        re.match(r"# \d\d · ", first) and "**Time.**" in first and "**Reproduced here:**" in first
    )
    assert "google.colab" in code(notebook)[0].source and "parameters" in tags(code(notebook)[1])
    for heading in (
        "### After this notebook you can",
        "## Exercises",
        "## Summary",
        "## Further reading",
    ):
        assert heading in text
    assert (
        len(re.findall(r"\*\*\d \(checked\)", text)) >= 2
        and len(re.findall(r"\*\*\d \(open\)", text)) >= 2
    )


def bound(cell):
    """The names that a cell binds, but for loop variables and what only adds to a thing."""
    found = set()

    class Names(ast.NodeVisitor):
        def visit_Name(self, node):
            if isinstance(node.ctx, ast.Store) and not node.id.startswith("_"):
                found.add(node.id)

        def visit_FunctionDef(self, node):
            found.add(node.name)

        def visit_For(self, node):
            for inner in node.body:
                self.visit(inner)

        def skip(self, node):
            pass

        visit_ClassDef = visit_FunctionDef
        visit_AugAssign = visit_Lambda = skip
        visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = skip

    Names().visit(ast.parse(cell.source))
    return found


def test_a_name_means_one_thing(notebook):
    """Else a cell that is run again gives another one something else to work with."""
    cells = Counter(name for cell in code(notebook) for name in bound(cell) - CANVAS)
    assert [name for name, times in cells.items() if times > 1] == []


def test_the_rule_for_names_can_fail():
    def bind(source):
        return bound(nbformat.v4.new_code_cell(source))

    assert bind("a = 1\nfor b in []:\n    c = b\nd += [e for e in a]\n_ = 2") == {"a", "c"}
    assert bind("def f(x):\n    y = x\n\nclass G:\n    z = 1\nh, (i, *j) = k") == set("fGhij")


def used(code):
    """The global names that a piece of compiled code reads, its functions included."""
    inner = [const for const in code.co_consts if hasattr(const, "co_code")]
    names = {i.argval for i in dis.get_instructions(code) if i.opname in READS}
    return names.union(*map(used, inner))


def test_what_is_hidden_is_needed_by_pictures_alone(notebook):
    """A folded cell binds nothing that a visible one uses, but functions that draw."""
    hidden = set()
    for cell in code(notebook):
        if draws(cell):
            functions = {n.name for n in ast.parse(cell.source).body if hasattr(n, "name")}
            hidden |= bound(cell) - functions
        else:
            assert not used(compile(cell.source, "cell", "exec")) & (hidden - bound(cell)), (
                cell.source
            )


def test_figures_are_numbered_and_captioned(notebook):
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", json.dumps(notebook.cells))
    numbers = [int(found) for found in re.findall(r"Figure (\d+)\. \w", "\n".join(captions))]
    sliders = sum("explore(" in c.source for c in code(notebook))
    assert numbers == list(range(1, len(captions) - sliders + 1))
    assert len(captions) == len(images(notebook))


def test_a_slider_that_was_not_run_is_a_still_picture(notebook):
    for cell in code(notebook):
        if "explore(" in cell.source:
            assert tags(cell) & IGNORED
            [output] = cell.outputs
            assert "image/png" in output.data and "interactive" not in output.data["text/plain"]


def test_study_time_stands_beside_computing_time(notebook):
    """As the lecturer's table has it."""
    title = notebook.cells[0].source
    said = r"\*\*Time\.\*\* Reading (\d+) min, exercises (\d+) min, computing \d+ (?:s|min) on"
    reading, exercises = map(int, re.search(said, title).groups())
    guide = (FOLDER.parent / "course" / "TEACH.md").read_text()
    row = re.search(rf"^\| {title[2:4]} .*$", guide, re.M).group().split("|")
    planned, checked, open_ = map(int, row[2:5])
    assert reading == planned and abs(exercises - checked - open_) <= 5


def test_every_open_exercise_has_a_cell_to_begin_with(notebook):
    number = notebook.cells[0].source[2:4]
    for i, cell in enumerate(notebook.cells):
        for exercise in re.findall(r"\*\*(\d) \(open\)", cell.source):
            after = [c for c in notebook.cells[i + 1 : i + 3] if c.cell_type == "code"]
            assert any(f"{number}.{exercise}" in c.source for c in after), exercise


def test_links_between_notebooks_lead_somewhere(notebook):
    text = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    for target in re.findall(r"\]\(([\w./-]+\.ipynb)\)", text):
        assert (FOLDER / target).is_file(), target


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_small(path):
    assert path.stat().st_size < 1.5e6
