"""A real Chromium without a window, driven over its DevTools protocol."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 60
"""Seconds to wait for a busy machine."""


def program() -> str | None:
    """Where a Chromium is, if there is one."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Tab:
    """One page: what it is told, and what it has said."""

    def __init__(self, channel: ClientConnection) -> None:
        self.channel = channel
        self.sent = 0
        self.events: list[dict[str, Any]] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self.sent += 1
        self.channel.send(json.dumps({"id": self.sent, "method": method, "params": arguments}))
        while True:
            message = json.loads(self.channel.recv(timeout=PATIENCE))
            if message.get("id") == self.sent:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    def open(self, page: Path, *, width: int = 1280, dark: bool = False) -> None:
        """Load a file as a reader does, on a screen of this width."""
        self.events.clear()
        mobile = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=844 if mobile else 900,
            deviceScaleFactor=1,
            mobile=mobile,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.call("Page.navigate", url=page.absolute().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(json.loads(self.channel.recv(timeout=PATIENCE)))

    def run(self, script: str) -> Any:
        """What a script comes to in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key."""
        pressed = {"key": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **pressed)
        self.call("Input.dispatchKeyEvent", type="keyUp", **pressed)

    def click(self, x: float, y: float) -> None:
        """A click of the mouse."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def complaints(self) -> list[str]:
        """Everything on the console, and every exception that nobody caught."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(e["params"]) for e in self.events if e["method"] in kinds]

    def requests(self) -> list[str]:
        """Every address that was asked for."""
        asked = [e["params"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [params["request"]["url"] for params in asked]

    def picture(self, path: Path, clip: Mapping[str, float] | None = None) -> None:
        """A picture of the whole page, or of a part of it."""
        part = {} if clip is None else {"clip": {**clip, "scale": 1}}
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True, **part)
        path.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self) -> bytes:
        """The page on paper."""
        return base64.b64decode(self.call("Page.printToPDF")["data"])


@contextmanager
def browser(path: str) -> Iterator[Tab]:
    """A Chromium with one tab; it ends with the block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            *(path, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-port=0"),
            *(f"--user-data-dir={profile}", "about:blank"),
        ]
        log = Path(profile) / "log"
        with log.open("wb") as errors:
            process = subprocess.Popen(command, stdout=errors, stderr=errors)
        try:
            address = _tab_address(process, Path(profile), log)
            with connect(address, max_size=None, proxy=None) as channel:
                yield Tab(channel)
        finally:
            process.terminate()
            process.wait(timeout=PATIENCE)


def _tab_address(process: subprocess.Popen[bytes], profile: Path, log: Path) -> str:
    """Where the tab listens: Chromium writes its port into the profile when it is up."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        port = profile / "DevToolsActivePort"
        if port.is_file() and (found := re.match(r"(\d+)\n", port.read_text())):
            with direct.open(f"http://127.0.0.1:{found[1]}/json/list") as answer:
                pages = [tab for tab in json.load(answer) if tab["type"] == "page"]
            if pages:
                return str(pages[0]["webSocketDebuggerUrl"])
        time.sleep(0.05)
    raise RuntimeError(f"Chromium did not start: {log.read_text(errors='replace')[-2000:]}")
