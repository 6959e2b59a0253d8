"""A headless Chromium driven by its DevTools protocol over a pipe: no driver, no package, no open port.

with Browser() as browser:
    page = browser.open("http://127.0.0.1:1234/")
    page.wait_for("document.querySelectorAll('.pf-track').length > 0", 60)
    page.screenshot(path)
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--remote-debugging-pipe",
)


def find_chromium() -> str | None:
    """Path of an installed Chromium or Chrome."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    return None


class Browser:
    """One Chromium with a separate profile that goes with it."""

    def __init__(self, size: tuple[int, int] = (1600, 1200)) -> None:
        program = find_chromium()
        assert program is not None
        self._profile = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()

        def place() -> None:  # Chromium reads commands from 3 and answers on 4
            high = os.dup2(to_read, 100), os.dup2(to_write, 101)
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            [
                program,
                *_FLAGS,
                f"--window-size={size[0]},{size[1]}",
                f"--user-data-dir={self._profile.name}",
                "about:blank",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=place,
            close_fds=False,
            start_new_session=True,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._number = 0
        self.size = size

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.call("Browser.close")
            self._process.wait(10)
        except (OSError, RuntimeError, TimeoutError, subprocess.TimeoutExpired):
            os.killpg(self._process.pid, 9)
            self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def open(self, address: str) -> Page:
        """New tab on this address."""
        target = self.call("Target.createTarget", url="about:blank")
        session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        page = Page(self, session)
        page.call("Page.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=self.size[0],
            height=self.size[1],
            deviceScaleFactor=1,
            mobile=False,
        )
        page.call("Page.navigate", url=address)
        return page

    def call(self, method: str, *, session: str = "", timeout_s: float = 180, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; events in between are dropped."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + timeout_s
        while True:
            answer = self._receive(until)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error'].get('message')}")
                result: dict[str, Any] = answer.get("result", {})
                return result

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(until - time.monotonic(), 0))
            if not ready:
                raise TimeoutError("no answer from the browser")
            part = os.read(self._from, 1 << 20)
            if not part:
                raise RuntimeError("the browser has gone")
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message


class Page:
    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Command to this tab."""
        return self._browser.call(method, session=self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression; promises are awaited."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"].get("exception", {}).get("description")))
        return result["result"].get("value")

    def wait_for(self, expression: str, timeout_s: float) -> None:
        """Return when the expression is true."""
        until = time.monotonic() + timeout_s
        while not self.evaluate(expression):
            if time.monotonic() > until:
                raise TimeoutError(f"not true after {timeout_s} s: {expression}")
            time.sleep(0.25)

    def screenshot(self, path: Path, *, least_bytes: int = 0, timeout_s: float = 60) -> Path:
        """Picture of what the tab shows; what is still nearly blank is given time."""
        until = time.monotonic() + timeout_s
        while True:
            path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
            if path.stat().st_size > least_bytes or time.monotonic() > until:
                return path
            time.sleep(0.25)


def unfolded(page: str) -> str:
    """Address of the UI with all ranks unfolded and nothing pinned; ``page``: its address with the trace."""
    names = (r"^rank \d+ ·", "^step · rank", "^data loader$")
    commands = [{"id": "dev.perfetto.ExpandTracksByRegex", "args": [name]} for name in names]
    return f"{page.partition('&')[0]}&hideSidebar=true&startupCommands={quote(json.dumps(commands), safe='')}"


def titles_of(page: Page, wanted: Iterable[str] = (), timeout_s: float = 120) -> list[str]:
    """Names of the tracks that the Perfetto UI shows, pinned ones first; the UI is given time to show those wanted."""
    until = time.monotonic() + timeout_s
    while not all(any(word in title for title in _titles(page)) for word in wanted) and time.monotonic() < until:
        time.sleep(0.25)
    return _titles(page)


def _titles(page: Page) -> list[str]:
    found = page.evaluate("[...document.querySelectorAll('.pf-track__title')].map(t => t.textContent.trim())")
    titles = [str(t).replace("\u00a0", " ") for t in found]
    # The UI writes a title twice, once to be seen and once to be measured.
    return [t[: len(t) // 2] if t[: len(t) // 2] == t[len(t) // 2 :] else t for t in titles]
