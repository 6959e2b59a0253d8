"""One clock per host: ticks of every process -> CLOCK_MONOTONIC of its boot -> the run's common time.

The TSC is one counter per host, so the ``clock_sync`` rows of all processes of one boot make one mapping, piecewise
linear between the best readings. A moment is an integer anchor plus a rounded product of a small distance.
Floating point holds distances inside one piece, never a time stamp.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace import _native
from stashtrace.errors import FormatError
from stashtrace.loading.clocks.fit_host_pair import STRAIGHT, Bend
from stashtrace.loading.clocks.policy import POLICY
from stashtrace.schema.groupby import Int64
from stashtrace.schema.possible import HIGHEST, is_possible
from stashtrace.schema.trace import RawProcess


@dataclass(frozen=True, slots=True)
class Readings:
    """Paired readings of one clock domain, any order."""

    #: One reading each; ``bracket_ns`` is the full width of the uncertainty, -1 if unknown.
    ticks: Int64
    monotonic_ns: Int64
    realtime_ns: Int64
    bracket_ns: Int64

    @classmethod
    def concat(cls, parts: Sequence[Readings]) -> Readings:
        """Join the readings of several processes."""
        return cls(*(np.concatenate([getattr(p, n) for p in parts]) for n in cls.__slots__))


@dataclass(frozen=True, slots=True)
class TickMap:
    """Ticks -> ns, exact at its anchors, linear between them, monotonic."""

    #: Anchors, ascending; at least two.
    ticks: Int64
    ns: Int64
    #: Half-width of the interval around a mapped moment: brackets plus what the kept readings do not explain.
    error_ns: int
    #: Number of readings that contradict the others.
    rejected_count: int = 0

    def __call__(self, ticks: npt.NDArray[np.uint64]) -> Int64:
        """Map uint64 ticks to int64 ns."""
        flat = np.ascontiguousarray(ticks, dtype=np.uint64)
        return np.asarray(_native.clock.map_ticks(flat, self.ticks, self.ns), dtype=np.int64)


def tick_map(readings: Readings, tick_hz: float) -> TickMap:
    """Return the mapping of one clock domain from all its readings.

    ``readings``: at least one. ``tick_hz``: nominal rate in Hz, used where the readings are too close together to give
    a rate.
    """
    order = np.lexsort([readings.bracket_ns, readings.ticks])
    ticks, ns = readings.ticks[order], readings.monotonic_ns[order]
    bracket = np.where(readings.bracket_ns[order] < 0, 2 * POLICY.unbracketed_ns, readings.bracket_ns[order])
    # The index of the narrowest reading in each window of time; windows without a narrow one have none
    width = min(POLICY.window_ns, int(ns.max() - ns.min()) // POLICY.least_windows_count + 1)
    window = (ns - ns.min()) // width
    best = np.lexsort([bracket, window])
    starts = np.flatnonzero(np.diff(window[best], prepend=window[best[0]] - 1))
    chosen = best[starts]
    usual = np.quantile(bracket[chosen], 0.25)
    narrow = chosen[bracket[chosen] <= POLICY.wide_times * usual + 1]
    kept = np.sort(narrow)
    nominal, drift_ppb = _usual_rate(ticks[kept], ns[kept], tick_hz)
    kept, rejected = consistent_run(ticks, ns, bracket, kept, nominal, drift_ppb)
    if len(kept) == 1:
        only = int(kept[0])
        span = 1 << 40
        ends = np.array([0, span]), np.array([0, round(span * nominal)])
        anchors = TickMap(ticks[only] + ends[0], ns[only] + ends[1], int(bracket[only] + 1) // 2, rejected)
    else:
        anchors = TickMap(*with_ends(ticks[kept], ns[kept]), int(bracket[kept].max() + 1) // 2, rejected)
    residual = np.abs(anchors(ticks.view(np.uint64)) - ns)
    unexplained = np.maximum(residual - bracket // 2, 0)
    agreeing = unexplained[unexplained <= np.quantile(unexplained, 0.99)]
    return TickMap(anchors.ticks, anchors.ns, anchors.error_ns + int(agreeing.max(initial=0)), rejected)


def _usual_rate(ticks: Int64, ns: Int64, tick_hz: float) -> tuple[float, int]:
    """Return (ns per tick, largest deviation in ppb); the median over neighbours, which a jump does not change."""
    distance, advance = np.diff(ticks), np.diff(ns)
    far = (advance >= POLICY.rate_span_ns) & (distance > 0)
    if far.any():
        return float(np.median(advance[far] / distance[far])), POLICY.most_drift_ppb
    return 1e9 / tick_hz, POLICY.most_header_drift_ppb


def consistent_run(
    ticks: Int64, ns: Int64, bracket: Int64, kept: Int64, nominal: float, drift_ppb: int
) -> tuple[Int64, int]:
    """Return the longest run of readings that fit one clock near the nominal rate, and the number of the others.

    A reading that contradicts its neighbours is left out; after a permanent jump of the clock, a new run begins.
    """

    def agree(i: int, j: int) -> bool:
        distance, advance = int(ticks[j] - ticks[i]), int(ns[j] - ns[i])
        expected = distance * nominal
        slack = expected * drift_ppb * 1e-9 + int(bracket[i] + bracket[j])
        return distance > 0 and advance > 0 and abs(advance - expected) <= slack

    runs: list[list[int]] = [[]]
    order = kept.tolist()
    for position, i in enumerate(order):
        last = runs[-1]
        if not last or agree(last[-1], i):
            last.append(i)
        elif position + 1 == len(order) or not agree(last[-1], order[position + 1]):
            runs.append([i])
    best = max(runs, key=len)
    return np.array(best, dtype=np.int64), len(order) - len(best)


def with_ends(ticks: Int64, ns: Int64) -> tuple[Int64, Int64]:
    """Extend the outer pieces at the rate of a longer baseline, so that two close readings do not set the rate."""
    ends = []
    for near, step in ((0, 1), (len(ticks) - 1, -1)):
        far = near + step
        while 0 <= far + step < len(ticks) and abs(int(ns[far] - ns[near])) < POLICY.baseline_ns:
            far += step
        slope = min(int(ns[far] - ns[near]) / int(ticks[far] - ticks[near]), POLICY.steepest_ns_per_tick)
        reach = 1 << 40
        ends.append((int(ticks[near]) - step * reach, int(ns[near]) - step * round(reach * slope)))
    return (np.concatenate(([ends[0][0]], ticks, [ends[1][0]])), np.concatenate(([ends[0][1]], ns, [ends[1][1]])))


def realtime_offset(readings: Readings) -> tuple[int, int]:
    """Return (REALTIME - MONOTONIC in ns, half-width of its spread) of a clock domain, from its narrow readings."""
    bracket = np.where(readings.bracket_ns < 0, 2 * POLICY.unbracketed_ns, readings.bracket_ns)
    narrow = bracket <= np.quantile(bracket, 0.5)
    offsets = np.sort((readings.realtime_ns - readings.monotonic_ns)[narrow])
    return int(offsets[len(offsets) // 2]), int(offsets[-1] - offsets[0] + 1) // 2


# The clock domain of each boot: from the ticks of its processes to its monotonic clock, and on to the common one.
#
# All processes of a boot give their readings to one map, since the TSC is the host's.


class HostClock:
    """Clock domain of one boot: its map to its own CLOCK_MONOTONIC and the way from there to the common clock."""

    def __init__(self, boot_id: str, map_: TickMap, realtime_ns: int, realtime_error_ns: int) -> None:
        self.boot_id = boot_id
        self.map = map_
        self.realtime_offset_ns = realtime_ns
        self.realtime_error_ns = realtime_error_ns
        self.offset_ns = 0  # to the reference's monotonic clock
        self.error_ns = map_.error_ns
        self.method = "same_clock"
        self.origin_ns = 0  # of the common clock, on the reference's monotonic clock
        self.drift_ppb = 0
        self._touch_error_ns = 0
        self._course: TickMap | None = None  # from the first guess to the reference's monotonic clock

    def bend(self) -> Bend:
        """Return how far the kernel bent the clock against the counter (quartz), beyond the error of the readings."""
        ticks, ns = self.map.ticks[1:-1], self.map.ns[1:-1]
        if len(ticks) < 3:
            return STRAIGHT
        x, y = (ticks - ticks[0]).astype(np.float64), (ns - ns[0]).astype(np.float64)
        mean = y[-1] / x[-1]
        bow = float(np.ptp(y - mean * x)) / 2 - self.map.error_ns
        return Bend(bow, float(np.abs(np.diff(y) / np.diff(x) / mean - 1).max())) if bow > 0 else STRAIGHT

    def refer_to(self, reference: HostClock) -> None:
        """Map to the clock of another boot by the wall clock, as a first guess."""
        if reference.boot_id == self.boot_id:  # another counter of the same host, with the same monotonic clock
            return
        self.offset_ns = self.realtime_offset_ns - reference.realtime_offset_ns
        self.method = "realtime"
        self.error_ns = max(
            POLICY.realtime_error_ns,
            self.realtime_error_ns + reference.realtime_error_ns + self.map.error_ns + reference.map.error_ns,
        )

    def correct(self, at_ns: Int64, offset_ns: Int64, error_ns: int, touch_error_ns: int, method: str) -> None:
        """Correct the first guess: add ``offset_ns`` at the knots ``at_ns`` of its own time; errors are half-widths."""
        slope = (int(offset_ns[-1]) - int(offset_ns[0])) / int(at_ns[-1] - at_ns[0])
        reach = 1 << 40
        outer = np.array([at_ns[0] - reach, at_ns[-1] + reach])
        beyond = np.array([offset_ns[0] - round(reach * slope), offset_ns[-1] + round(reach * slope)])
        at = np.concatenate((outer[:1], at_ns, outer[1:]))
        self._course = TickMap(at, at + np.concatenate((beyond[:1], offset_ns, beyond[1:])), 0)
        self.drift_ppb = round(slope * 1e9)
        self.error_ns, self._touch_error_ns = error_ns, touch_error_ns
        self.method = method

    def __call__(self, ticks: npt.NDArray[np.uint64]) -> Int64:
        """Ticks -> ns of the common clock."""
        out = self.map(ticks)
        out += self.offset_ns
        if self._course is not None:
            out = self._course(out.view(np.uint64))
        out -= self.origin_ns
        return out

    def settled_ns(self) -> int | None:
        """Return until when later readings do not move the times of this clock; None if they may move all of them.

        A run that has not reached the full length of the windows of readings gets others when it goes on.
        """
        ns = self.map.ns[1:-1]
        if len(ns) < 3 or ns[-1] - ns[0] < POLICY.window_ns * POLICY.least_windows_count:
            return None
        return int(ns[-2]) + self.offset_ns - self.origin_ns

    def start_ns(self, metadata: Mapping[str, Any]) -> int:
        """Return the start of the process in ns on the common clock, from its file header."""
        return int(self(_start_ticks(metadata))[0])

    def own_start_ns(self, metadata: Mapping[str, Any]) -> int:
        """Return the start of the process in ns on the monotonic clock of its boot."""
        return int(self.map(_start_ticks(metadata))[0])

    def worth(self) -> tuple[int, int, int, int]:
        """Return (offset at the common clock's origin, drift, error, error in touch) for the table ``alignment``."""
        if self._course is None:
            return self.offset_ns, self.drift_ppb, self.error_ns, self.error_ns
        return self.offset_ns + self._correction_at_origin(), self.drift_ppb, self.error_ns, self._touch_error_ns

    def monotonic_ns(self, common_ns: int) -> int:
        """Return a moment of the common clock, in ns on the monotonic clock of the boot."""
        moment = common_ns + self.origin_ns
        if self._course is not None:
            back = TickMap(self._course.ns, self._course.ticks, 0)
            moment = int(back(np.array([moment]).view(np.uint64))[0])
        return moment - self.offset_ns

    def common_ns(self, monotonic_ns: int) -> int:
        """Return a moment of the boot's monotonic clock, in ns on the common clock."""
        moment = monotonic_ns + self.offset_ns
        if self._course is not None:
            moment = int(self._course(np.array([moment]).view(np.uint64))[0])
        return moment - self.origin_ns

    def _correction_at_origin(self) -> int:
        return self.origin_ns - self.offset_ns - self.monotonic_ns(0)


class RunClocks:
    """The clocks of a run, one for each boot and tick source, and the common time that all of them map to.

    ``reference``: boot id of the host whose monotonic clock the common time follows. ``origin_monotonic_ns``: zero of
    the common time on that clock.
    """

    def __init__(self, clocks: Mapping[tuple[str, str], HostClock]) -> None:
        self._clocks = dict(clocks)
        self.reference = ""
        self.origin_monotonic_ns = 0

    def __iter__(self) -> Iterator[HostClock]:
        return iter(self._clocks.values())

    def of(self, raw: RawProcess) -> HostClock:
        """Return the clock of a process."""
        return self._clocks[_domain_of(raw)]

    def of_boots(self) -> dict[str, HostClock]:
        """Map each boot id to one of its clocks; two tick sources of a host follow the same monotonic clock."""
        return {clock.boot_id: clock for clock in self}

    def settled_ns(self) -> int | None:
        """Return until when later readings do not move the times of the reference; None if they may move all of them.

        Times of other hosts may always move: each operation that hosts have in common says more of their clocks.
        """
        times = [clock.settled_ns() for clock in self if clock.boot_id == self.reference]
        known = [time for time in times if time is not None]
        return min(known) if len(known) == len(times) else None

    def refer_to(self, reference: HostClock) -> None:
        """Map all clocks to the host of one of them; clocks of other hosts by the wall clock."""
        self.reference = reference.boot_id
        for clock in self:
            clock.refer_to(reference)

    def count_from(self, origin_monotonic_ns: int) -> None:
        """Set the zero of the common time."""
        self.origin_monotonic_ns = origin_monotonic_ns
        for clock in self:
            clock.origin_ns = origin_monotonic_ns


def _domain_of(raw: RawProcess) -> tuple[str, str]:
    """Return (boot id, tick source); processes with equal values share a clock."""
    return str(raw.metadata.get("boot_id", "")), str(raw.metadata.get("clock", "tsc"))


def _start_ticks(metadata: Mapping[str, Any]) -> npt.NDArray[np.uint64]:
    """Return the start of the process in ticks, as an array of one value; 0 if its header has none."""
    value = metadata.get("start_ticks", 0)
    return np.array([value if isinstance(value, int) and 0 <= value < 1 << 63 else 0], dtype=np.uint64)


def host_clocks(path: str, core: Sequence[RawProcess]) -> RunClocks:
    """Return one clock per boot and tick source, from the readings of all their processes.

    ``core``: with the records ``clock_sync``. Raises FormatError if a host has no clock reading.
    """
    readings: dict[tuple[str, str], list[Readings]] = {}
    rates: dict[tuple[str, str], list[float]] = {}
    for raw in core:
        # The nominal ticks per second; 10^9 where the file names no possible rate
        known = raw.metadata.get("tick_hz")
        hz = float(known) if isinstance(known, int | float) and POLICY.least_hz <= known <= POLICY.most_hz else 1e9
        rates.setdefault(_domain_of(raw), []).append(hz)
        readings.setdefault(_domain_of(raw), []).extend(_readings_of(raw, hz))
    clocks = {}
    for domain, parts in readings.items():
        if not parts:
            raise FormatError(
                f"no clock reading of host {domain[0] or '(unknown)'} in {path}",
                hint="the file header names no start time; it is damaged or not from stashtrace",
            )
        joined = Readings.concat(parts)
        rate = float(np.median(rates[domain]))
        clocks[domain] = HostClock(domain[0], tick_map(joined, rate), *realtime_offset(joined))
    return RunClocks(clocks)


def _readings_of(raw: RawProcess, hz: float) -> list[Readings]:
    readings = []
    start = [raw.metadata.get(n) for n in ("start_ticks", "start_monotonic_ns", "start_realtime_ns")]
    if all(isinstance(v, int) and 0 < v <= HIGHEST for v in start):
        readings.append(Readings(*(np.array([v], dtype=np.int64) for v in (*start, -1))))
    rows = raw.records.get("clock_sync")
    if rows is not None and len(rows.rows):
        r = rows.rows
        r = r[r["bracket_ticks"] < POLICY.most_bracket_ticks]
        for name in ("ticks", "monotonic_ns", "realtime_ns"):
            values = r[name].astype(np.int64)
            r = r[is_possible(values) & (values >= 0)]
        bracket = np.ceil(r["bracket_ticks"] * (1e9 / hz)).astype(np.int64)
        if len(r):
            readings.append(
                Readings(
                    r["ticks"].astype(np.int64),
                    r["monotonic_ns"].astype(np.int64),
                    r["realtime_ns"].astype(np.int64),
                    bracket,
                )
            )
    return readings
