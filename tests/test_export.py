"""Tables in the papers' layout: nothing is lost, the best is the best, every format can be read
back."""

import csv
import io
import json
import shutil
import subprocess

import pytest

from fedbook import papers
from fedbook.cli import main
from fedbook.papers import export, words
from fedbook.papers.layout import Cell, axes, lay_out

TABLES = [id for id, spec in papers.specs().items() if spec.kind == "table"]


def printed(id):
    """A table with its printed numbers alone."""
    spec = papers.get(id)
    return lay_out(spec, spec.tabulate("paper", {}), "paper")


def cells(grid):
    return [c for block in grid.blocks for line in block.cells for c in line if c is not None]


@pytest.mark.parametrize("id", TABLES)
def test_every_printed_number_has_one_place(id):
    spec = papers.get(id)
    grid = printed(id)
    values = [row.value for row in spec.rows if row.value is not None]
    shown = [c.value for c in cells(printed_only(grid))]
    assert sorted(shown) == sorted(values)
    known = {k for row in spec.rows for k in row.settings} | {"method", "metric"}
    assert spec.down and spec.across and {*spec.down, *spec.across, *spec.best_over} <= known
    assert not set(spec.down) & set(spec.across)


def printed_only(grid):
    """Without what is counted, which needs no run."""
    import dataclasses

    return dataclasses.replace(grid, blocks=grid.blocks[:1])


@pytest.mark.parametrize("id", [*papers.specs()])
def test_text_fits_eighty_columns(id):
    spec = papers.get(id)
    if spec.rows and any(row.value is not None for row in spec.rows):
        assert max(map(len, export.text(printed(id)).splitlines())) <= 80


def test_the_layout_is_that_of_print():
    one = printed("fedgcr/table1")
    assert one.stub == ["Method"] and one.lines[-1] == ("FedGCR",) and len(one.lines) == 8
    assert one.columns[:4] == [
        ("DIF = 1", "Avg ↑"),
        ("DIF = 1", "σ_type ↓"),
        ("DIF = 1", "σ_client ↓"),
        ("DIF = 5", "Avg ↑"),
    ]
    three = printed("fedgcr/table3")
    assert three.columns[0] == ("T' = 3",) and [line[0] for line in three.lines] == ["1", "5", "10"]
    ladder = printed("client2vec/table1")
    assert [c[0] for c in ladder.columns].count("Client2Vec (GLOBAL)") == 3
    assert len(ladder.lines) == 16 and ladder.columns[0] == ("Original", "–")
    assert "(LSTM)" in ladder.lines[0][0]
    four = printed("fgpt/table4")
    assert four.lines[1] == ("✓", "✓", "–", "–") and "s = 10" in four.caption


def test_the_best_is_marked_as_in_print():
    one = printed("fedgcr/table1")
    assert all(c.best for c in one.blocks[0].cells[-1])  # FedGCR wins every column
    assert sum(c.best for c in cells(one)) == 9
    ladder = printed("client2vec/table1")
    bold = [[c.best for c in line] for line in ladder.blocks[0].cells]
    assert bold[0] == [False, False, False, True, False, False, False, False]
    wins = printed("grp_fed/table1").blocks[0].cells
    assert [c.best for c in wins[-1]] == [True, True, False, False, True, True, False, False]


def test_nobody_is_best_among_numbers_that_are_not_all_there():
    spec = papers.get("fedgcr/table1")
    numbers = spec.tabulate("paper", {})
    for n in numbers:
        if n["method"] != "fedgcr":
            n |= {"ours": 50.0, "verdict": "reproduced", "seeds": 1}
    grid = lay_out(spec, numbers, "paper")
    assert len(grid.blocks) == 2 and not any(c and c.best for c in sum(grid.blocks[1].cells, []))


def test_what_was_run_instead_stands_beside_what_was_printed():
    spec = papers.get("fedgcr/table7")
    grid = lay_out(spec, spec.tabulate("laptop", {}), "laptop")
    used = spec.paper.scale("laptop").data
    for column in grid.columns:
        name = next(k for k, v in words.VALUES["dataset"].items() if column[0].startswith(v))
        assert ("→" in column[0]) == (used[name]["name"].replace("_", "") != name.replace("_", ""))


def test_settings_that_follow_from_others_are_no_axis():
    down, across = axes(papers.get("client2vec/fig5"))
    assert "architecture" not in (*down, *across) and across == ("method",)


def test_latex_says_what_it_means():
    assert export.tex("σ_type ↓") == r"$\sigma_{\mathrm{type}}$ $\downarrow$"
    assert export.tex("50 % of a_b & c") == r"50 \% of a\_b \& c"
    assert export._latex_cell(Cell(12.345, 0.5, 2, True)) == r"\textbf{12.35} $\pm$ 0.50"
    assert export._latex_cell(None) == "--"
    code = export.latex(printed("fedgcr/table1"))
    for line in (r"\toprule", r"\bottomrule", r"\cmidrule(lr){2-4}", r"\label{tab:fedgcr-table1}"):
        assert line in code


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_every_table_compiles(tmp_path):
    tables = [export.latex(printed(id)) for id in TABLES]
    head = r"\documentclass{article}\usepackage{booktabs,graphicx,amssymb}\begin{document}"
    body = "\n\\clearpage\n".join([head, *tables, r"\end{document}"])
    (tmp_path / "all.tex").write_text(body, encoding="utf-8")
    line = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "all.pdf").stat().st_size > 10_000


def test_html_and_markdown_carry_the_same_cells():
    grid = printed("fgpt/table1")
    html = export.html(grid)
    assert html.count("<td>") == sum(len(line) for b in grid.blocks for line in b.cells)
    assert html.count("<b>") == sum(c.best for c in cells(grid)) and "<caption>" in html
    assert "T<sub>g</sub>" in export.html(printed("grp_fed/table1"))
    lines = export.md(grid).splitlines()
    table = [line for line in lines if line.startswith("| ")]
    assert len(table) == 1 + len(grid.lines) and len({line.count("|") for line in table}) == 1
    assert grid._repr_html_() == html


def test_names_are_escaped_in_html():
    import dataclasses

    grid = dataclasses.replace(printed("fgpt/table2"), caption="<script>", lines=[("<b>",)])
    assert "<script>" not in export.html(grid) and "<b></th>" not in export.html(grid)


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDBOOK_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("FEDBOOK_FIGURES", str(tmp_path / "figures"))

    def run(line):
        assert main(line.split()) == 0
        return capsys.readouterr().out

    return run


def test_formats_from_the_shell(call, tmp_path):
    rows = list(csv.DictReader(io.StringIO(call("reproduce fgpt/table2 --format csv"))))
    assert len(rows) == 4 and {r["architecture"] for r in rows} == {
        "resnet18",
        "resnet50",
        "vit_b16",
    }
    assert [float(r["paper"]) for r in rows] == [r.value for r in papers.get("fgpt/table2").rows]
    [report] = json.loads(call("reproduce fgpt/table2 --format json"))
    assert report["rows"][0]["settings"]["architecture"] == "resnet18"
    assert r"\begin{tabular}" in call("reproduce fgpt/table2 --format latex")
    assert call("reproduce fgpt/table2 -o deep/table.tex") == ""
    assert r"\textbf{0.10}" in (tmp_path / "deep" / "table.tex").read_text()
    call("reproduce fgpt/table2 -o table.html --format md")
    assert (tmp_path / "table.html").read_text().startswith("**fgpt/table2**")
    assert "0.10*" in call("reproduce fgpt/table2")
