"""The ways out of a run's samples: a port and a file for Prometheus, a push to an OTLP collector.

Nothing is printed, and nothing that follows the run waits for any of them; what does not work is a note of the run's
state. ``prometheus_client`` gets sums as they are: its counters could only be added to.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from stashtrace import __version__
from stashtrace.files.whole_files import give_mode, open_binary, whole_file
from stashtrace.live import times
from stashtrace.live.metrics.series import Distribution, Family, families_of
from stashtrace.live.state import LiveState
from stashtrace.scrubbing.secrets import scrub_urls

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

#: Connections that are answered at the same time. One that has no place, or takes longer than it may, is closed and
#: counted; scrapers come again.
_MOST_CONNECTIONS = 4
_NAME = "stashtrace-{host}-{run}.prom"
_ENDED = b"# stashtrace: this run has ended\n"
#: node_exporter runs as another user.
_MODE = 0o644
#: The most rounds whose samples wait.
_QUEUE_COUNT = 4
_LOGGER = "opentelemetry"
_REASON_CHARACTERS = 250
#: What the system said, in a line of the libraries that the exporter uses.
_ERRNO = re.compile(r"\[Errno \d+\] ([A-Z][A-Za-z ,-]+)")


class Outlet(Protocol):
    """One way out."""

    #: What it writes to, for people.
    name: str

    def publish(self, families: Sequence[Family], *, ended: bool) -> str:
        """Take the samples of a round; return what does not work, empty if all does."""


class Outlets:
    """All ways out of a run. ``say``: called once for each that does not work."""

    def __init__(self, outlets: Sequence[Outlet], say: Callable[[str], None]) -> None:
        self._outlets = outlets
        self._say = say
        self._reported: set[str] = set()

    def publish(self, state: LiveState) -> list[str]:
        """Hand over the samples of a round; return what does not work."""
        families = families_of(state)
        notes = []
        for outlet in self._outlets:
            note = outlet.publish(families, ended=state.ended)
            if note:
                notes.append(note)
                if outlet.name not in self._reported:
                    self._reported.add(outlet.name)
                    self._say(note)
        return notes


def add_outlet_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments with which the launcher says where metrics go (``record.metrics``)."""
    parser.add_argument("--metrics-file", type=Path, help="folder of the textfile collector")
    parser.add_argument("--metrics-socket", type=int, help="descriptor of a socket that listens")
    parser.add_argument("--otlp", action="store_true", help="push to an OTLP collector")


def outlets_of(arguments: argparse.Namespace, state: LiveState) -> list[Outlet]:
    """Return the ways out that :func:`add_outlet_arguments` were given for a run."""
    outlets: list[Outlet] = []
    if arguments.metrics_file is not None:
        outlets.append(Textfile(arguments.metrics_file, state.host, state.run_id))
    if arguments.metrics_socket is not None:
        outlets.append(MetricsPort(socket.socket(fileno=arguments.metrics_socket)))
    if arguments.otlp:
        outlets.append(OtlpPush(state.begin_realtime_ns, os.environ))
    return outlets


# Prometheus: what a scraper fetches ------------------------------------------------------------------------------


class NewestFamilies:
    """A collector for ``prometheus_client``; ``families``: replaced as a whole, so that a reader sees one round."""

    def __init__(self) -> None:
        self.families: Sequence[Family] = ()

    def collect(self) -> Iterable[Metric]:
        """Yield the families as its classes."""
        for family in self.families:
            yield _metric(family)

    def registry(self) -> CollectorRegistry:
        """Return a registry that holds these families and nothing else."""
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return registry


def _metric(family: Family) -> Metric:
    from prometheus_client import core

    one = family.series
    if one.type == "histogram":
        histogram = core.HistogramMetricFamily(one.name, one.doc, labels=one.labels, unit=one.unit)
        for labels, value in family.samples:
            if isinstance(value, Distribution):
                histogram.add_metric(labels, value.cumulative(), value.sum)
        return histogram
    if one.type == "info":
        info = core.InfoMetricFamily(one.name, one.doc, labels=())
        for labels, _ in family.samples:
            info.add_metric((), dict(zip(one.labels, labels, strict=True)))
        return info
    kind = core.CounterMetricFamily if one.type == "counter" else core.GaugeMetricFamily
    metric = kind(one.name, one.doc, labels=one.labels, unit=one.unit)
    for labels, value in family.samples:
        if not isinstance(value, Distribution):
            metric.add_metric(labels, value)
    return metric


class MetricsPort:
    """Answers scrapers from separate threads. ``listener``: a socket that listens, which the launcher has bound."""

    name = "metrics port"

    def __init__(self, listener: socket.socket, *, limit_s: float = times.CONNECTION_S) -> None:
        from prometheus_client import make_wsgi_app

        self._newest = NewestFamilies()
        self._server = _Server(listener, limit_s)
        self._server.set_app(make_wsgi_app(self._newest.registry()))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(times.CONNECTION_POLL_S,), daemon=True)
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
    timeout = times.CONNECTION_SILENT_S

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


class Textfile:
    """A file for the textfile collector of node_exporter, which is replaced in one step in each round.

    It stays when the job has ended, so that its last sums are fetched, and goes when another run of this host begins to
    write: node_exporter refuses the same series in two files. ``directory``: which node_exporter reads. ``host``,
    ``run_id``: of the run.
    """

    name = "metrics file"

    def __init__(self, directory: Path, host: str, run_id: str) -> None:
        self._directory, self._host = directory, host
        self._path = directory / _NAME.format(host=host, run=run_id)
        self._newest = NewestFamilies()
        self._registry = self._newest.registry()
        self._failed_count = self._rounds_count = 0
        self._other_file = self._reason = ""

    def publish(self, families: Sequence[Family], *, ended: bool) -> str:
        """Replace the file; return what does not work, empty if all does."""
        from prometheus_client import generate_latest

        self._newest.families = families
        self._rounds_count += 1
        try:
            if self._rounds_count == self._failed_count + 1:  # nothing was written yet
                self._other_file = self._tidy()
            with whole_file(self._path, own_mode=True) as partial:
                partial.write_bytes((_ENDED if ended else b"") + generate_latest(self._registry))
                give_mode(partial, _MODE)
        except OSError as error:
            self._failed_count += 1
            self._reason = error.strerror or str(error)
        if self._failed_count:
            times = f"{self._failed_count} of {self._rounds_count} times"
            return f"metrics could not be written to {self._directory} {times}: {self._reason}"
        return self._other_file

    def _tidy(self) -> str:
        """Remove the files of runs of this host that are over; return what to know of one that is not."""
        for path in sorted(self._directory.glob(_NAME.format(host=self._host, run="*"))):
            if path == self._path:
                continue
            with contextlib.suppress(OSError):  # it has gone meanwhile, or is another user's
                with open_binary(path) as file:
                    over = file.readline(len(_ENDED) + 1) == _ENDED
                if over or time.time() - path.stat().st_mtime > times.ABANDONED_S:
                    path.unlink()
                    continue
            return f"{path} is of another run of this host: give each its own folder or port, as ranks have equal names"
        return ""


# OTLP: what is pushed --------------------------------------------------------------------------------------------


class OtlpPush:
    """Pushes metrics over HTTP, from a thread that nothing waits for.

    Endpoint, headers, certificates and time limit are those of OTEL_EXPORTER_OTLP_*, names those of Prometheus, so that
    the same queries work. Sums are of the whole run: where the collector is slower than the rounds, the oldest samples
    are dropped, and the newer ones hold all that these said. ``begin_realtime_ns``: since when the sums are counted.
    ``environment``: with OTEL_*.
    """

    name = "OTLP collector"

    def __init__(self, begin_realtime_ns: int, environment: Mapping[str, str] = os.environ) -> None:
        self._begin_ns = begin_realtime_ns
        self._interval_s = _interval_s(environment)
        self._next_s = time.monotonic()
        self._queue: queue.Queue[tuple[int, Sequence[Family]] | None] = queue.Queue(_QUEUE_COUNT)
        self._reasons = _Reasons()
        self.made_count = self.dropped_count = self.failed_count = 0
        #: Whether the last push reached the collector.
        self._reaches = True
        self._thread = threading.Thread(target=self._push_all, daemon=True)
        self._thread.start()

    def publish(self, families: Sequence[Family], *, ended: bool) -> str:
        """Let the samples be pushed if it is time; return what does not work, empty if all does."""
        now_s = time.monotonic()
        if ended or now_s >= self._next_s:
            self._next_s = now_s + self._interval_s
            self.made_count += 1
            self._put((time.time_ns(), families))
        if ended:
            self._end()
        lost = self.dropped_count + self.failed_count
        if not lost:
            return ""
        known = self._reasons.last or self._reasons.of_push
        reason = f": {known}" if known else ""
        return f"{lost} of {self.made_count} pushes of metrics did not reach the OTLP collector{reason}"

    def _put(self, item: tuple[int, Sequence[Family]] | None) -> None:
        """Append to the queue; the oldest goes if it is full."""
        while True:
            try:
                return self._queue.put_nowait(item)
            except queue.Full:
                try:
                    self.dropped_count += self._queue.get_nowait() is not None
                except queue.Empty:  # the thread has taken it meanwhile
                    continue

    def _end(self) -> None:
        """Wait a little for the last push; what is left then is dropped."""
        self._put(None)
        patience_s = times.LAST_PUSH_S if self._reaches else times.LAST_PUSH_S / 5
        self._thread.join(patience_s)
        if self._thread.is_alive():
            self._reasons.take(f"no answer within {patience_s:.0f} s of the end of the job")
            self.dropped_count += self._queue.qsize()  # the sign of the end stands for the push under way

    def _push_all(self) -> None:
        """Push what comes, until the end; what goes wrong is counted."""
        logger = logging.getLogger(_LOGGER)
        logger.addHandler(self._reasons)
        logger.propagate = False  # the terminal is the job's
        exporter = None
        while (item := self._queue.get()) is not None:
            self._reasons.of_push = ""
            try:
                exporter = exporter or _new_exporter()
                result = exporter.export(metrics_data(item[1], self._begin_ns, item[0]))
                self._reaches = result.name == "SUCCESS"
            except Exception as error:  # whatever a wrong variable or a broken installation raises
                self._reasons.take(f"{type(error).__name__}: {error}")
                self._reaches = False
            if not self._reaches:
                self.failed_count += 1
                self._reasons.last = self._reasons.of_push
        if exporter is not None:
            exporter.shutdown()


def metrics_data(families: Sequence[Family], begin_ns: int, at_ns: int) -> MetricsData:
    """Return the samples as OpenTelemetry has them; sums count from ``begin_ns`` on and were read at ``at_ns``."""
    from opentelemetry.sdk.metrics import export as otel
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    metrics = []
    for family in families:
        one = family.series
        plain, spread = [], []
        for labels, value in family.samples:
            attributes = dict(zip(one.labels, labels, strict=True))
            if isinstance(value, Distribution):
                spread.append(
                    otel.HistogramDataPoint(
                        attributes=attributes,
                        start_time_unix_nano=begin_ns,
                        time_unix_nano=at_ns,
                        count=sum(value.counts),
                        sum=value.sum,
                        bucket_counts=list(value.counts),
                        explicit_bounds=list(value.bounds),
                        min=None,  # type: ignore[arg-type]  # not known; the field is left out
                        max=None,  # type: ignore[arg-type]
                    )
                )
            else:
                plain.append(otel.NumberDataPoint(attributes, begin_ns, at_ns, value))
        cumulative = otel.AggregationTemporality.CUMULATIVE
        data: Any
        if one.type == "histogram":
            data = otel.Histogram(spread, cumulative)
        elif one.type == "counter":
            data = otel.Sum(plain, cumulative, is_monotonic=True)
        else:
            data = otel.Gauge(plain)
        metrics.append(otel.Metric(one.full_name, one.doc, "s" if one.unit else "", data))
    # What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say counts before our own words.
    resource = Resource({"service.name": "stashtrace", "host.name": os.uname().nodename})
    scope = otel.ScopeMetrics(InstrumentationScope("stashtrace", __version__), metrics, "")
    return otel.MetricsData([otel.ResourceMetrics(resource.merge(OTELResourceDetector().detect()), [scope], "")])


def _new_exporter() -> Any:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter()


class _Reasons(logging.Handler):
    """Keeps the first line that the exporter logs of a push: it says why it failed, and the result does not."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        #: Of the push under way, and of the last one that failed.
        self.of_push = self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line."""
        self.take(record.getMessage())

    def take(self, text: str) -> None:
        """Keep what the system said in a text, or its first line, without what addresses may hold of secrets."""
        line = scrub_urls(text.splitlines()[0] if text else "")
        system = _ERRNO.search(line)
        self.of_push = self.of_push or (system[1].lower() if system else line[:_REASON_CHARACTERS])


def _interval_s(environment: Mapping[str, str]) -> float:
    try:
        return max(int(environment["OTEL_METRIC_EXPORT_INTERVAL"]) / 1e3, 1.0)
    except (KeyError, ValueError):
        return times.PUSH_S
