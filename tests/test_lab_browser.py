"""Notebooks in JupyterLab in a real browser, as a student meets them: opened, run, sliders dragged.

Minutes long, so `pytest` leaves it out; `pytest -m browser -n 0 tests/test_lab_browser.py` runs it.
It needs the extra `browser` and a Chromium on the PATH. Screenshots of a slider before and after go
to the folder that `--basetemp` names.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest
from browser import CHROMIUM

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the PATH"),
]

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
SECOND = 1000  # playwright counts milliseconds
OPENED = 90 * SECOND
RUN = 400 * SECOND
MOVED = 30 * SECOND
SETTINGS = {  # all cells in the page, not only those in sight; no question about the kernel
    "notebook-extension/tracker": '{"windowingMode": "none", "autoStartDefaultKernel": true}',
    "apputils-extension/notification": '{"fetchNews": "false", "checkForUpdates": false}',
}
IDLE = "Python 3 (ipykernel) | Idle"
RUN_ALL_DONE = """() => {
    const prompts = [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')];
    const ran = prompts.filter(p => /\\[\\d+\\]:/.test(p.textContent));
    const folded = prompts.filter(p => p.textContent === '');
    return ran.length > 10 && ran.length + folded.length === prompts.length;
}"""
PICTURES = """() => [...document.querySelectorAll('.jp-Notebook .jp-OutputArea img')].map(
    i => ({alt: i.alt, seen: i.complete && i.naturalWidth > 0}))"""

CHANGED = """([widget, before]) => {
    const picture = widget.querySelector('img');
    return picture && picture.complete && picture.src !== before;
}"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """JupyterLab on a copy of the notebooks; its address as a function of a notebook's name."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(NOTEBOOKS, folder / "notebooks")
    for name, text in SETTINGS.items():
        path = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(8)
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": port,
        "ServerApp.root_dir": folder / "notebooks",
        "IdentityProvider.token": token,
        "LabApp.user_settings_dir": folder / "settings",
        "LabApp.workspaces_dir": folder / "workspaces",
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [f"--{name}={value}" for name, value in options.items()]
    places = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_RUNTIME_DIR": "runtime"}
    surroundings = os.environ | {name: str(folder / at) for name, at in places.items()}
    surroundings.pop("FEDBOOK_STILL", None)
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, env=surroundings, stdout=log, stderr=log)
    try:
        _wait(f"http://127.0.0.1:{port}/api?token={token}", server, folder / "log")
        yield lambda name: f"http://127.0.0.1:{port}/lab/tree/{name}?token={token}&reset"
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def _wait(address, server, log, seconds=60):
    """Until the server answers."""
    for _ in range(2 * seconds):
        assert server.poll() is None, log.read_text()
        try:
            urlopen(address, timeout=5).close()
            return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"JupyterLab did not answer for {seconds} s: {log.read_text()}")


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=["00_start_here", "05_fedgcr", "08_client2vec_index"])
def page(request, lab, chromium):
    """A notebook, opened and not run."""
    page = chromium.new_page(viewport={"width": 1300, "height": 1000})
    page.set_default_timeout(OPENED)
    page.goto(lab(f"{request.param}.ipynb"))
    page.wait_for_selector(".jp-Notebook .jp-CodeCell .jp-OutputArea img", state="attached")
    page.get_by_text(IDLE).wait_for()
    yield page
    page.close()


def _described(page):
    """Every picture is loaded, and described; how many there are."""
    pictures = page.evaluate(PICTURES)
    assert all(p["seen"] for p in pictures)
    assert min(len(p["alt"]) for p in pictures) > 20, [p["alt"] for p in pictures]
    return len(pictures)


def _run_all(page):
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.wait_for_function(f"() => !({RUN_ALL_DONE})()", timeout=MOVED)  # begun: [*]
    page.wait_for_function(RUN_ALL_DONE, timeout=RUN, polling=500)
    page.get_by_text(IDLE).wait_for(timeout=RUN)


def _drag(page, slider):
    """Pull a slider's handle with the mouse, two fifths of its track to the farther side."""
    handle = slider.locator(".noUi-handle")
    handle.scroll_into_view_if_needed()
    at = handle.bounding_box()
    track = slider.locator(".noUi-base").bounding_box()
    x, y = at["x"] + at["width"] / 2, at["y"] + at["height"] / 2
    right = x < track["x"] + track["width"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + (1 if right else -1) * 0.4 * track["width"], y, steps=8)
    page.mouse.up()


def test_it_opens_runs_and_its_sliders_move_the_pictures(page, tmp_path):
    assert "interactive(children" not in page.locator(".jp-Notebook").inner_text()
    still = _described(page)
    _run_all(page)
    assert not page.locator('[data-mime-type="application/vnd.jupyter.error"]').count()
    assert not page.locator('[data-mime-type="application/vnd.jupyter.stderr"]').count()
    assert _described(page) == still
    widgets = page.locator(".jp-OutputArea .widget-interact")
    assert widgets.count()
    for i in range(widgets.count()):
        widget = widgets.nth(i)
        sliders = widget.locator(".noUi-target")
        assert sliders.count()
        for j in range(sliders.count()):
            before = widget.locator("img").get_attribute("src")
            widget.screenshot(path=tmp_path / f"slider-{i}-{j}-before.png")
            _drag(page, sliders.nth(j))
            page.wait_for_function(CHANGED, arg=[widget.element_handle(), before], timeout=MOVED)
            widget.screenshot(path=tmp_path / f"slider-{i}-{j}-after.png")
            assert len(widget.locator("img").get_attribute("alt")) > 20
