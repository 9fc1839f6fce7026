"""The notebooks as committed: run, really compared by nbval, readable, described, and free of
machine traces."""

import json
import re
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("[0-9][0-9]_*.ipynb"))
IGNORED = {"nbval-ignore-output", "nbval-skip"}
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
    assert max(c.source.count("\n") + 1 for c in code(notebook)) <= 15
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


def test_links_between_notebooks_lead_somewhere(notebook):
    text = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    for target in re.findall(r"\]\(([\w./-]+\.ipynb)\)", text):
        assert (FOLDER / target).is_file(), target


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_small(path):
    assert path.stat().st_size < 1.5e6
