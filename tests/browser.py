"""A headless Chromium for tests, spoken to over its own protocol."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from itertools import count

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


class Tab:
    """One page: open it, look at it, ask it."""

    def __init__(self, address: str) -> None:
        import websocket

        self.socket = websocket.create_connection(address, timeout=60, suppress_origin=True)
        self.ids = count(1)
        self.messages: list[dict] = []
        for domain in ("Page", "Runtime", "Log"):
            self.do(f"{domain}.enable")

    def do(self, method: str, **params):
        """One command and its answer; what happens meanwhile is kept in `messages`."""
        id = next(self.ids)
        self.socket.send(json.dumps({"id": id, "method": method, "params": params}))
        while (said := json.loads(self.socket.recv())).get("id") != id:
            self.messages.append(said)
        assert "error" not in said, said
        return said["result"]

    def open(self, url: str, width: int, dark: bool = False) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.do("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.do("Emulation.setEmulatedMedia", features=[scheme])
        self.messages.clear()
        self.do("Page.navigate", url=url)
        while not any(m.get("method") == "Page.loadEventFired" for m in self.messages):
            self.messages.append(json.loads(self.socket.recv()))

    def ask(self, script: str):
        """The value of an expression."""
        found = self.do("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings on the console, and exceptions."""
        bad = []
        for m in self.messages:
            entry = m.get("params", {}).get("entry", {})
            if entry.get("level") in ("error", "warning"):
                bad.append(entry["text"])
            if m.get("method") == "Runtime.exceptionThrown":
                bad.append(str(m["params"]))
            if m.get("params", {}).get("type") in ("error", "warning"):
                bad.append(str(m["params"].get("args")))
        return bad

    def picture(self, path) -> None:
        """A screenshot of the whole page."""
        shot = self.do("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser():
    """A tab of a fresh Chromium, closed at the end."""
    from urllib.request import urlopen

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        flags = "--headless=new --no-sandbox --disable-gpu --no-first-run --remote-debugging-port=0"
        command = [CHROMIUM, *flags.split(), f"--user-data-dir={home}", "about:blank"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            for line in process.stderr:
                if found := re.search(r"ws://([\w.:]+)/", line):
                    break
            with urlopen(f"http://{found.group(1)}/json") as answer:
                tabs = json.load(answer)
            page = next(t for t in tabs if t["type"] == "page")
            yield Tab(page["webSocketDebuggerUrl"])
        finally:
            process.terminate()
            process.wait(30)
            process.stderr.close()
