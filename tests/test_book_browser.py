"""The web edition as built, in a real browser: every page, every link, search, dark mode.

Minutes long, so `pytest` leaves it out; `pytest -m browser -n 0 tests/test_book_browser.py` runs
it. It needs the extras `book` and `browser`, and a Chromium on the PATH. Screenshots go to the
folder that `--basetemp` names.
"""

import re
import time
from pathlib import Path
from urllib.parse import unquote

import pytest
from browser import CHROMIUM, browser

from fedbook import book

for name in ("sphinx", "myst_nb", "websocket"):
    pytest.importorskip(name)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the PATH"),
]

ROOT = Path(__file__).parents[1]
WIDTHS = (400, 1400)
WIDE = "document.documentElement.scrollWidth"
PICTURES = "[...document.querySelectorAll('.bd-article img')]"
SHOTS = ("index", "claims", "notebooks/05_fedgcr", "course/TEACH")


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    return book.build(ROOT, tmp_path_factory.mktemp("book") / "book").parent


@pytest.fixture(scope="module")
def tab():
    with browser() as tab:
        yield tab


def pages(html):
    """All but those of the theme."""
    return [p for p in sorted(html.rglob("*.html")) if "_static" not in p.parts]


def test_every_page_at_two_widths(html, tab, tmp_path):
    found = pages(html)
    assert len(found) > 60
    for path in found:
        for width in WIDTHS:
            tab.open(path.as_uri(), width)
            assert not tab.complaints, (path.name, width, tab.complaints)
            assert tab.ask(WIDE) <= width, (path.name, width, tab.ask(WIDE))
            assert tab.ask(f"{PICTURES}.every(i => i.alt.length > 10)"), path.name
            assert tab.ask(f"{PICTURES}.every(i => i.naturalWidth > 0)"), path.name
            name = path.relative_to(html).with_suffix("").as_posix()
            if name in SHOTS:
                tab.picture(tmp_path / f"{name.replace('/', '-')}-{width}.png")


def test_every_link_leads_somewhere(html):
    texts = {path: path.read_text(encoding="utf-8") for path in pages(html)}
    anchors = {path: set(re.findall(r'\sid="([^"]+)"', text)) for path, text in texts.items()}
    followed = 0
    for path, text in texts.items():
        for link in re.findall(r'<a\s[^>]*?href="([^"]+)"', text):
            if re.match(r"[a-z]+:", link):
                continue  # to the web
            target, _, anchor = unquote(link).partition("#")
            there = (path.parent / target).resolve() if target else path
            assert there.is_file(), f"{path.name}: {link}"
            if anchor and there in anchors:
                assert anchor in anchors[there], f"{path.name}: {link}"
            followed += 1
    assert followed > 1000


def wait(tab, selector, least):
    """How many there are of something that a script makes, once there are enough, or after 30 s."""
    for _ in range(60):
        count = tab.ask(f"document.querySelectorAll('{selector}').length")
        if count >= least:
            break
        time.sleep(0.5)
    return count


def test_formulas_are_drawn_without_a_network(html, tab):
    tab.open((html / "notebooks" / "05_fedgcr.html").as_uri(), 1400)
    assert wait(tab, "mjx-container", 50) >= 50
    assert not tab.ask("document.querySelectorAll('mjx-merror').length")
    assert not tab.complaints


def test_search_finds_and_dark_is_dark(html, tab, tmp_path):
    tab.open(f"{(html / 'search.html').as_uri()}?q=clustering", 1400)
    assert wait(tab, "#search-results li", 10) >= 10
    light = {}
    for dark in (False, True):
        tab.open((html / "index.html").as_uri(), 1400, dark)
        tab.picture(tmp_path / f"index-{'dark' if dark else 'light'}.png")
        colour = tab.ask("getComputedStyle(document.body).backgroundColor")
        light[dark] = sum(map(int, re.findall(r"\d+", colour)[:3]))
    assert light[True] < 150 < 600 < light[False]
