"""What the notebooks lean on: sliders, figures with descriptions, the opening line."""

import base64
from xml.etree import ElementTree

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest

from fedbook import FedbookError
from fedbook.data import ecg
from fedbook.notebook import five_stages, show, start
from fedbook.widgets import explore


def test_a_slider_per_argument_in_the_order_listed():
    calls = []

    def plot(alpha, dif):
        calls.append((alpha, dif))
        return alpha * dif

    widget = explore(plot, alpha=[0.1, 1.0, 10.0], dif=[1, 5])
    alpha, dif = widget.children[:2]
    assert [v for _, v in alpha.options] == [0.1, 1.0, 10.0] and (alpha.value, dif.value) == (
        0.1,
        1,
    )
    alpha.value = 10.0
    dif.value = 5
    assert calls[-1] == (10.0, 5)
    assert widget.result == 50.0


@pytest.fixture
def displayed(monkeypatch):
    """What a notebook would show."""
    seen = []

    def display(data, raw, metadata):
        assert raw
        seen.append((data, metadata))

    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr("fedbook.notebook.NUMBERS", {})
    return seen


def line(n):
    """A line of n points.

    More about it.
    """
    plt.plot(range(n))


def test_every_move_shows_the_figure_described(displayed):
    widget = explore(line, n=[2, 3, 5])
    widget.children[0].value = 5
    first, *_, last = [data for data, _ in displayed]
    assert first["image/png"] != last["image/png"]
    assert 'alt="A line of n points. Here n = 5."' in last["text/html"]
    assert not plt.get_fignums()


def test_a_slider_begins_where_it_is_told():
    assert explore(print, tau=[0.1, 0.5, 2.0], start={"tau": 0.5}).children[0].value == 0.5


def test_a_still_picture_for_those_who_only_read(displayed, monkeypatch):
    monkeypatch.setenv("FEDBOOK_STILL", "1")
    assert explore(line, n=[2, 3, 5], start={"n": 3}) is None
    [(data, metadata)] = displayed
    assert metadata["image/png"]["alt"] == "A line of n points. Here n = 3."
    assert "interactive" not in data["text/plain"]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"n": [3, 1]}, "ascending order"),
        ({"n": [1, 3], "start": {"n": 2}}, "n cannot start at 2"),
        ({"n": [1, 3], "start": {"m": 1}}, "unknown slider 'm'"),
    ],
)
def test_sliders_that_mislead(choices, message):
    with pytest.raises(FedbookError, match=message):
        explore(print, **choices)


@pytest.mark.parametrize("values", [[], "abc"])
def test_a_slider_needs_values(values):
    with pytest.raises(FedbookError, match="alpha needs a list"):
        explore(print, alpha=values)


def test_show_keeps_the_description_and_closes(displayed):
    fig = plt.figure()
    alt = 'a line that rises: from 0.5 to "1 & more". It is black.'
    show(fig, alt=alt)
    [(data, metadata)] = displayed
    assert metadata["image/png"]["alt"].startswith("a line that rises")
    assert not plt.fignum_exists(fig.number)
    html = ElementTree.fromstring(data["text/html"].replace('100%">', '100%"/>'))
    image, caption = html.find("img"), html.find("figcaption")
    assert html.tag == "figure" and caption.text == "Figure 1. a line that rises."
    assert image.get("alt") == alt
    png = image.get("src").removeprefix("data:image/png;base64,")
    assert png == data["image/png"] and base64.b64decode(png)[1:4] == b"PNG"
    assert data["text/plain"].startswith("<Figure size")
    with pytest.raises(FedbookError, match="description"):
        show(fig, alt=" ")


def test_a_kept_picture_is_shown_as_it_is(displayed, monkeypatch, tmp_path):
    """Recorded heartbeats are seen with and without the recordings, the same to the byte."""
    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path))
    assert ecg.place() is None
    show(ecg.PICTURE, alt="beats of three records")
    [(data, metadata)] = displayed
    assert base64.b64decode(data["image/png"]) == ecg.PICTURE.read_bytes()
    assert metadata["image/png"]["alt"] == "beats of three records"
    assert data["text/plain"] == "mitbih_beats.png"


def test_figures_keep_their_numbers(displayed):
    for alt in ("one", "two", "one", "three"):
        show(plt.figure(), alt=alt, caption=f"<{alt}>")
    captions = [data["text/html"].split("<figcaption>")[1] for data, _ in displayed]
    assert [c.split("<")[0] for c in captions] == [
        f"Figure {n}. &lt;{alt}&gt;"
        for n, alt in ((1, "one"), (2, "two"), (1, "one"), (3, "three"))
    ]


def test_the_opening_line(capsys):
    with plt.rc_context():
        start("smoke")
    assert "smoke scale" in capsys.readouterr().out
    with pytest.raises(FedbookError, match="unknown scale 'huge'"):
        start("huge")


def test_the_picture_of_the_round_names_the_five_stages():
    fig = five_stages()
    words = " ".join(t.get_text() for t in fig.axes[0].texts)
    assert all(stage in words for stage in ("sample", "objective", "solve", "weigh", "update"))
    assert "grouping" in words and "personal" in words
    plt.close(fig)
