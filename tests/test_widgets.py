"""What the notebooks lean on: sliders, figures with descriptions, the opening line."""

import base64
from xml.etree import ElementTree

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest

from fedbook import FedbookError
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


def test_every_move_shows_the_figure(monkeypatch):
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.gcf()))
    widget = explore(lambda n: plt.figure(num=n), n=[1, 2, 3])
    widget.children[0].value = 3
    assert shown[-1].number == 3
    plt.close("all")


@pytest.mark.parametrize("values", [[], "abc"])
def test_a_slider_needs_values(values):
    with pytest.raises(FedbookError, match="alpha needs a list"):
        explore(print, alpha=values)


def test_show_keeps_the_description_and_closes(monkeypatch):
    seen = {}

    def display(data, raw, metadata):
        seen.update(data=data, raw=raw, metadata=metadata)

    monkeypatch.setattr("IPython.display.display", display)
    fig = plt.figure()
    show(fig, alt='a line that rises: from 0.5 to "1 & more". It is black.')
    assert seen["raw"] and seen["metadata"]["image/png"]["alt"].startswith("a line that rises")
    assert not plt.fignum_exists(fig.number)
    html = ElementTree.fromstring(seen["data"]["text/html"].replace('100%">', '100%"/>'))
    image, caption = html.find("img"), html.find("figcaption")
    assert html.tag == "figure" and caption.text == "a line that rises."
    assert image.get("alt") == 'a line that rises: from 0.5 to "1 & more". It is black.'
    png = image.get("src").removeprefix("data:image/png;base64,")
    assert png == seen["data"]["image/png"] and base64.b64decode(png)[1:4] == b"PNG"
    assert seen["data"]["text/plain"].startswith("<Figure size")
    show(plt.figure(), alt="a line", caption="Figure 1: <loss>")
    assert "<figcaption>Figure 1: &lt;loss&gt;</figcaption>" in seen["data"]["text/html"]
    with pytest.raises(FedbookError, match="description"):
        show(fig, alt=" ")


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
