"""The web edition's source: every notebook, claim and figure is there, described, and linked to."""

import json
import re
from pathlib import Path

import pytest

from fedbook import book
from fedbook.errors import FedbookError
from fedbook.papers.claims import all_claims

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("book") / "source"
    book.write_source(ROOT, folder)
    return folder


def test_every_notebook_is_listed_and_copied(source):
    index = (source / "index.md").read_text()
    for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"):
        assert f"notebooks/{path.stem}" in index
        copied = json.loads((source / "notebooks" / path.name).read_text())
        committed = json.loads(path.read_text())
        assert [c["source"] for c in copied["cells"]] == [c["source"] for c in committed["cells"]]


def test_every_claim_has_its_verdict(source):
    page = (source / "claims.md").read_text()
    for id, claim in all_claims().items():
        line = next(line for line in page.splitlines() if line.startswith(f"| {id} |"))
        assert claim.text.split("|")[0] in line
        assert re.search(r"\*\*(supported|contradicted|mixed|open)\*\*", line)


def test_every_figure_is_described(source):
    page = (source / "gallery.md").read_text()
    for path in (ROOT / "figures").glob("*.png"):
        assert f"figures/{path.name}" in page
    alts = re.findall(r"^:alt: (.*)$", page, re.M)
    assert len(alts) == len(list((ROOT / "figures").glob("*.png")))
    assert min(map(len, alts)) > 10


def test_links_between_pages_lead_somewhere(source):
    for page in [*source.glob("*.md"), *source.glob("course/*.md")]:
        beside = page.parent.relative_to(source)
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text()):
            known = (page.parent / target).exists() or (ROOT / beside / target).exists()
            assert known, f"{page.name} links to {target}"


def test_the_reference_tells_what_a_method_does(source):
    page = (source / "api" / "fedbook.methods.fedgcr.md").read_text()
    assert "lambda_1 l_GC" in page and "GroupReweighting(" in page and "clusters" in page
    assert "fedbook.rounds.loop" in (source / "api.md").read_text()


def test_without_sphinx_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(book, "NEEDED", ("no_such_package",))
    with pytest.raises(FedbookError, match=r"no_such_package.*fedbook\[book\]"):
        book.build(ROOT, tmp_path / "book")
    assert not (tmp_path / "book").exists()


def test_outside_a_checkout_there_is_nothing_to_build(tmp_path):
    with pytest.raises(FedbookError, match="checkout"):
        book.write_source(tmp_path, tmp_path / "source")
    assert not (tmp_path / "source").exists()
