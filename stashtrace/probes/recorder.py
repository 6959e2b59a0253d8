"""Recording from Python: rows packed as the schema says, failures of probes, and what the probes cost.

Nothing here may raise into the user's code. The ids of strings are not cached, since a forked
child has a separate string table.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any

from stashtrace.probes import native

_FORMATS = {"u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q", "f64": "d", "text56": "56s"}

now_ticks = native.now_ticks
intern = native.intern
probe_begins = native.probe_begins
phase_ends = native.phase_ends
batch_ends = native.batch_ends
#: What ``probe_begins`` reads: ticks; CLOCKS: also CPU and run-queue time of the thread; USAGE: also its faults, reads.
TICKS, CLOCKS, USAGE = 0, 1, 2


@functools.lru_cache(maxsize=1)
def _schema() -> dict[str, Any]:
    schema: dict[str, Any] = native.schema()
    return schema


@functools.cache
def collector_code(name: str) -> int:
    """Return the number of a collector."""
    return next(int(c["code"]) for c in _schema()["collectors"] if c["name"] == name)


@functools.cache
def code(enumeration: str, name: str) -> int:
    """Return a value of an enumeration of ``records.def``, for example ``code("Phase", "forward")``."""
    for entry in _schema()["codes"]:
        if entry["enumeration"] == enumeration and entry["name"] == name:
            return int(entry["value"])
    raise KeyError(f"{enumeration}.{name}")


def code_names(enumeration: str) -> list[str]:
    """Return the names of an enumeration of ``records.def``."""
    return [entry["name"] for entry in _schema()["codes"] if entry["enumeration"] == enumeration]


class RecordWriter:
    """Emits rows of one record type; reserved fields become zero. ``name``: name of the record in ``records.def``."""

    __slots__ = ("_emit", "_id", "_pack")

    def __init__(self, name: str) -> None:
        record = next(r for r in _schema()["records"] if r["name"] == name)
        fields = record["fields"]
        layout = "".join(f"{f['size']}x" if f["name"].startswith("reserved_") else _FORMATS[f["type"]] for f in fields)
        packer = struct.Struct("<" + layout)
        if packer.size != record["row_bytes"]:
            raise ValueError(f"record {name}: {packer.size} bytes packed, {record['row_bytes']} declared")
        self._pack = packer.pack
        self._id = int(record["id"])
        self._emit: Callable[[int, bytes], bool] = native.emit

    def emit(self, *values: Any) -> bool:
        """Record one row; return False if it was dropped or recording is paused."""
        return self._emit(self._id, self._pack(*values))


class Failures:
    """Counts what was not recorded, by reason; a ``loss`` row at the 1st, 10th, 100th, ... of each."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, collector: str, reason: str, detail: str) -> None:
        """Count one event that was not recorded."""
        key = (collector, reason)
        count = self._counts[key] = self._counts.get(key, 0) + 1
        power = 1
        while power < count:
            power *= 10
        if power == count:
            new = count - count // 10
            native.report_loss(collector_code(collector), reason, new, detail, code("Severity", "data_loss"))


failures = Failures()


def failed(collector: str, where: str, error: BaseException) -> None:
    """Report an exception of a probe, in the ``except`` around our own code; never raises."""
    try:
        failures.add(collector, f"{where}_failed", f"{type(error).__name__}: {error}"[:300])
    except Exception:
        return  # nothing is left between us and the user's code that could report this


def unavailable(collector: str, reason: str, detail: str) -> None:
    """Report that something of this torch cannot be observed; the job goes on as it is."""
    native.report_loss(collector_code(collector), reason, 0, detail[:300], code("Severity", "error"))


_LONGEST_TICKS = native.tick_hz() * 300 // 1_000_000  # 300 us


class Cost:
    """Ticks spent in probes, summed over the threads without a lock; races lose a few.

    :func:`phase_ends`, :func:`batch_ends` and :func:`probe_begins` count their own.
    """

    __slots__ = ("calls", "glue_ticks", "ticks")

    def __init__(self) -> None:
        self.calls = 0
        self.ticks = 0
        self.glue_ticks = 0

    def calibrate(self) -> None:
        """Measure once what a call cannot measure itself, the Python around it; takes some ten microseconds."""

        def wrapped(*args: Any, **kwargs: Any) -> None:
            return None

        self.glue_ticks = 4 * min(_elapsed(wrapped, self) for _ in range(8))

    def forget(self) -> None:
        """Start again at zero, in a forked child."""
        self.calls = self.ticks = 0
        native.forget_probe_account()

    def add(self, ticks: int) -> None:
        """Add one call of a probe that measured itself."""
        self.calls += 1
        # A call that took longer was off the CPU, or waited for the GIL, for most of it.
        self.ticks += min(ticks, _LONGEST_TICKS)

    def total(self) -> tuple[int, int]:
        """Return ticks and recorded calls, of Python and native code."""
        native_ticks, native_calls = native.probe_account()
        calls = self.calls + native_calls
        return self.ticks + native_ticks + calls * self.glue_ticks, calls

    def as_ns(self) -> int:
        """Return the sum in nanoseconds."""
        return self.total()[0] * 1_000_000_000 // max(1, native.tick_hz())


def _elapsed(function: Callable[..., Any], *args: Any) -> int:
    begin = now_ticks()
    function(*args)
    return now_ticks() - begin


cost = Cost()


@functools.lru_cache(maxsize=1)
def _metadata_writer() -> RecordWriter:
    return RecordWriter("metadata")


def record_fact(key: str, value: object) -> None:
    """Record a fact about the process that was not known when the head of its file was written."""
    _metadata_writer().emit(now_ticks(), intern(key), intern(str(value)))


def record_cost() -> None:
    """Record what the probes have cost; called at exit and at the end of a worker."""
    record_fact("probe_cost_ns", cost.as_ns())
    record_fact("probe_calls", cost.total()[1])
