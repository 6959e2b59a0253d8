"""Push the samples to an OTLP collector over HTTP, from a thread that nothing waits for.

The endpoint, its headers, certificates and time limit are those of the variables OTEL_EXPORTER_OTLP_*, as everywhere.
Names are those of Prometheus, so that the same queries work. Sums are of the whole run: where the collector is slower
than the rounds, the oldest samples are dropped, and the newer ones hold all that these said.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import logging
import os
import queue
import re
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stashtrace import __version__
from stashtrace.live.metrics.series import Distribution, Family
from stashtrace.scrubbing import scrub_urls

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

#: Samples of so many rounds wait at most; the last ones are waited for so long when the job has ended.
_QUEUE_COUNT, _PATIENCE_S = 4, 5.0
#: Seconds between two pushes, where OTEL_METRIC_EXPORT_INTERVAL (in milliseconds) does not say it.
_INTERVAL_S = 15.0
_LOGGER = "opentelemetry"
_REASON_CHARACTERS = 250
#: What the system said, in a line of the libraries that the exporter uses.
_ERRNO = re.compile(r"\[Errno \d+\] ([A-Z][A-Za-z ,-]+)")


class OtlpPush:
    """Pushes metrics. ``begin_realtime_ns``: since when the sums are counted. ``environment``: with OTEL_*."""

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
        patience_s = _PATIENCE_S if self._reaches else _PATIENCE_S / 5
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
        return _INTERVAL_S
