"""The options of ``stashtrace run`` about metrics, and what must be there before the job starts.

The process that follows the run makes and sends them (``stashtrace.live.metrics``). Here its packages are looked for
and its port is bound, so that a mistake shows before the job starts, and nobody takes the port in between.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import socket
from dataclasses import dataclass, field
from importlib.util import find_spec

from stashtrace.errors import OutputError, UsageError

_LOOPBACK = "127.0.0.1"
#: Connections that wait for a thread.
_BACKLOG = 8
#: Package -> the extra that brings it.
_EXTRAS = {"prometheus_client": "metrics", "opentelemetry.exporter.otlp.proto.http": "otel"}
_ADDRESS = re.compile(r"(?:(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[^:\[\]]+)):)?(?P<port>\d+)")


@dataclass(slots=True)
class MetricsOutlets:
    """Where metrics go: arguments of the process that makes them, none if nowhere, and sockets that it takes over."""

    arguments: list[str] = field(default_factory=list)
    sockets: list[socket.socket] = field(default_factory=list)
    #: Where a scraper finds them; empty without a port.
    url: str = ""


def add_metrics_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``stashtrace run`` that say where metrics go."""
    parser.add_argument(
        "--metrics-file",
        metavar="DIR",
        help="--live, and write metrics into DIR for the textfile collector of Prometheus' node_exporter",
    )
    parser.add_argument(
        "--metrics-port",
        metavar="[ADDRESS:]PORT",
        help="--live, and let Prometheus fetch metrics at this port, of 127.0.0.1 unless an address is given",
    )
    parser.add_argument(
        "--otlp",
        action="store_true",
        help="--live, and push metrics to the OTLP collector that the OTEL_EXPORTER_OTLP_* variables name",
    )


def open_outlets(arguments: argparse.Namespace) -> MetricsOutlets:
    """Return where the metrics of a run go.

    ``arguments``: with the options of :func:`add_metrics_arguments`. Raises UsageError if a package is missing or the
    port makes no sense, OutputError if it cannot be bound.
    """
    port, outlets = arguments.metrics_port, MetricsOutlets()
    if arguments.metrics_file is not None:
        _require("prometheus_client", "--metrics-file")
        outlets.arguments += ["--metrics-file", os.path.abspath(arguments.metrics_file)]
    if arguments.otlp:
        _require("opentelemetry.exporter.otlp.proto.http", "--otlp")
        outlets.arguments.append("--otlp")
    if port is not None:
        _require("prometheus_client", "--metrics-port")
        listener = _listen(*_read_address(port))
        outlets.sockets.append(listener)
        outlets.arguments += ["--metrics-socket", str(listener.fileno())]
        host, number = listener.getsockname()[:2]
        outlets.url = f"http://{f'[{host}]' if ':' in host else host}:{number}/metrics"
    return outlets


def _require(package: str, option: str) -> None:
    found = None
    with contextlib.suppress(ModuleNotFoundError):  # one of the packages that it lies in is missing
        found = find_spec(package)
    if found is None:
        name = package.replace(".", "-")
        raise UsageError(
            f"{option} needs {name}, which is not installed", hint=f"`pip install 'stashtrace[{_EXTRAS[package]}]'`"
        )


def _read_address(text: str) -> tuple[str, int]:
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) > 65535:
        raise UsageError(
            f"--metrics-port {text!r} is no port", hint="for example --metrics-port 9477, or 0.0.0.0:9477 for all hosts"
        )
    return match["six"] or match["host"] or _LOOPBACK, int(match["port"])


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; connections wait until the process that follows the run takes them."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a run that has just ended had the port
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OutputError(
            f"--metrics-port cannot listen at port {port} of {host}: {reason}",
            hint="choose another port, or 0 for one that is free",
        ) from error
    return listener
