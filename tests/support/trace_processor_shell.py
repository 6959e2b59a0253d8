"""Perfetto's trace processor as the program that the package `perfetto` starts, without a download.

It is the processor of tests/support/trace_processor.py behind the few HTTP requests that the package makes of
`trace_processor_shell -D --http-port PORT`. `install(folder)` writes a file that starts it.
"""

from __future__ import annotations

import argparse
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from trace_processor import (
    END_OF_FILE,
    PARSE,
    PARSE_ARGUMENT,
    PARSE_RESULT,
    QUERY,
    QUERY_ARGUMENT,
    QUERY_RESULT,
    REQUEST_BYTES,
    TraceProcessor,
    nested,
)


def install(folder: Path) -> Path:
    """Write the program into a folder, and return its path."""
    program = folder / "trace_processor_shell"
    here = Path(__file__).resolve()
    program.write_text(
        "#!/bin/sh\n"  # which takes an interpreter with a space in its path; to Python the next line is a text
        f"'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n"
        f"import sys\nsys.path.insert(0, {str(here.parent)!r})\n"
        "from trace_processor_shell import main\nmain(sys.argv[1:])\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
    return program


class Handler(BaseHTTPRequestHandler):
    """Answers of the one processor of this program."""

    processor: TraceProcessor
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/notify_eof":
            list(self.processor._call(END_OF_FILE))
        self._answer(b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/parse":
            parts = []
            for start in range(0, len(body), REQUEST_BYTES - 64):
                argument = nested(PARSE_ARGUMENT, body[start : start + REQUEST_BYTES - 64])
                parts += [reply.get(PARSE_RESULT, b"") for reply in self.processor._call(PARSE, argument)]
        elif self.path == "/query":
            parts = [
                reply.get(QUERY_RESULT, b"") for reply in self.processor._call(QUERY, nested(QUERY_ARGUMENT, body))
            ]
        else:
            self.send_error(404)
            return
        self._answer(b"".join(parts))

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


def main(arguments: list[str]) -> None:
    """Serve until the package ends this program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-D", action="store_true")
    parser.add_argument("--http-port", type=int, required=True)
    parser.add_argument("--no-ftrace-raw", action="store_true")
    port = parser.parse_args(arguments).http_port
    Handler.processor = TraceProcessor()
    HTTPServer(("localhost", port), Handler).serve_forever()
