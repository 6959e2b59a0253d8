"""Answer a scraper at a port: few threads, a limit to the time of each connection, nothing printed.

The port was bound by the launcher, which hands over the socket. A connection that has no place, or takes longer than
it may, is closed and counted; scrapers come again.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
from collections.abc import Sequence
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from stashtrace.live.metrics.exposition import NewestFamilies
from stashtrace.live.metrics.series import Family

#: Connections that are answered at the same time, the time that one may take, and how long a silent one is waited for.
_MOST_CONNECTIONS, _LIMIT_S, _SILENCE_S = 4, 10.0, 5.0
#: How often it is looked for connections that take too long.
_LOOK_S = 0.5


class MetricsPort:
    """Answers scrapers from a thread of its own. ``listener``: a socket that listens."""

    name = "metrics port"

    def __init__(self, listener: socket.socket, *, limit_s: float = _LIMIT_S) -> None:
        from prometheus_client import make_wsgi_app

        self._newest = NewestFamilies()
        self._server = _Server(listener, limit_s)
        self._server.set_app(make_wsgi_app(self._newest.registry()))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_LOOK_S,), daemon=True)
        self._thread.start()

    def publish(self, families: Sequence[Family], *, ended: bool) -> str:
        """Answer with these samples from now on; return what does not work, empty if all does."""
        self._newest.families = families
        if ended:
            self._server.shutdown()
            self._server.server_close()
        counts = (self._server.refused_count, "found no place"), (self._server.cut_count, "took too long")
        lost = " and ".join(f"{count} {what}" for count, what in counts if count)
        return f"of the connections to the metrics port, {lost}, and were closed" if lost else ""


class _Handler(WSGIRequestHandler):
    timeout = _SILENCE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the terminal is the job's."""

    def get_stderr(self) -> Any:
        """Return where errors of a request are printed."""
        return io.StringIO()

    def address_string(self) -> str:
        """Return the client's address, without asking for its name."""
        return str(self.client_address[0])


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, limit_s: float) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_name, self.server_port = str(listener.getsockname()[0]), int(listener.getsockname()[1])
        self.setup_environ()
        self.refused_count = self.cut_count = 0
        self._limit_s = limit_s
        self._lock = threading.Lock()
        #: Connection -> when it began.
        self._open: dict[socket.socket, float] = {}

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return whether there is a place for one more connection; a connection without one is closed."""
        with self._lock:
            if len(self._open) >= _MOST_CONNECTIONS:
                self.refused_count += 1
                return False
            self._open[request] = time.monotonic()
        return True

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections that take too long; called every half second."""
        now = time.monotonic()
        with self._lock:
            for request, begin in list(self._open.items()):
                if now - begin > self._limit_s:
                    del self._open[request]
                    self.cut_count += 1
                    with contextlib.suppress(OSError):  # the other side has gone
                        request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing of a connection that broke: the scraper comes again."""
