"""One clock per host: ticks of every process -> CLOCK_MONOTONIC of its boot -> the run's common time.

The TSC runs host-wide, so all ``clock_sync`` rows of all processes of one boot make one mapping, piecewise
linear between the best readings. A moment is an integer anchor plus a rounded product of a small distance;
floating point holds distances inside one piece, never a time stamp. Called by ``align.align``; pure.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace import _native

Int64 = npt.NDArray[np.int64]

#: Best reading kept per this much time, or per sixteenth of a short run: shorter pieces would turn the noise
#: of readings into rate.
_WINDOW_NS = 500_000_000
#: A piece shorter than this is not used to extrapolate.
_BASELINE_NS = 10_000_000_000
#: A reading this much wider than the usual best one adds noise, not knowledge.
_WIDE_RATIO = 4
#: Error claimed for a reading without a bracket: the start pair in a file's header, read once, often right
#: after a fork, when the first touch of each page faults.
_UNBRACKETED_NS = 100_000
#: A rate is taken from readings at least this far apart, else from the files' headers.
_RATE_SPAN_NS = 20_000_000
#: Rates further than this from the usual one are a jump of the clock, not drift ...
_MAX_DRIFT_PPB = 2_000_000
#: ... and this where the usual one was measured within a few ms, at the start of a process.
_MAX_HEADER_DRIFT_PPB = 50_000_000

#: No counter ticks more slowly; what a damaged file claims must not leave 64 bits.
_STEEPEST_NS_PER_TICK = 1e6


@dataclass(frozen=True, slots=True)
class Readings:
    """Paired readings of one clock domain, any order.

    Attributes
    ----------
    ticks, monotonic_ns, realtime_ns, bracket_ns : int64 arrays
        One reading each; ``bracket_ns`` is the full width of the uncertainty, -1 if unknown.
    """

    ticks: Int64
    monotonic_ns: Int64
    realtime_ns: Int64
    bracket_ns: Int64

    @classmethod
    def concat(cls, parts: Sequence[Readings]) -> Readings:
        """Readings of several processes."""
        return cls(*(np.concatenate([getattr(p, n) for p in parts]) for n in cls.__slots__))


@dataclass(frozen=True, slots=True)
class TickMap:
    """Ticks -> ns, exact at its anchors, linear between them, monotonic.

    Attributes
    ----------
    ticks, ns : int64 arrays
        Anchors, ascending; at least two.
    error_ns : int
        Half-width of the interval around a mapped moment: brackets and what the kept readings leave unexplained.
    rejected_count : int
        Readings that contradict the others.
    """

    ticks: Int64
    ns: Int64
    error_ns: int
    rejected_count: int = 0

    def __call__(self, ticks: npt.NDArray[np.uint64]) -> Int64:
        """Map uint64 ticks to int64 ns."""
        flat = np.ascontiguousarray(ticks, dtype=np.uint64)
        return np.asarray(_native.clock.map_ticks(flat, self.ticks, self.ns), dtype=np.int64)


def tick_map(readings: Readings, tick_hz: float) -> TickMap:
    """Mapping of one clock domain from all its readings.

    Parameters
    ----------
    readings : Readings
        At least one.
    tick_hz : float
        Nominal rate, used where the readings are too close to give one.
    """
    order = np.lexsort([readings.bracket_ns, readings.ticks])
    ticks, ns = readings.ticks[order], readings.monotonic_ns[order]
    bracket = np.where(readings.bracket_ns[order] < 0, 2 * _UNBRACKETED_NS, readings.bracket_ns[order])
    kept = _best_per_window(ns, bracket)
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


def _best_per_window(ns: Int64, bracket: Int64) -> Int64:
    """Index of the narrowest reading of each window of time, windows without a narrow one left out."""
    width = min(_WINDOW_NS, int(ns.max() - ns.min()) // 16 + 1)
    window = (ns - ns.min()) // width
    best = np.lexsort([bracket, window])
    starts = np.flatnonzero(np.diff(window[best], prepend=window[best[0]] - 1))
    chosen = best[starts]
    usual = np.quantile(bracket[chosen], 0.25)
    narrow = chosen[bracket[chosen] <= _WIDE_RATIO * usual + 1]
    return np.sort(narrow)


def _usual_rate(ticks: Int64, ns: Int64, tick_hz: float) -> tuple[float, int]:
    """(ns per tick, how far a piece may be from it): the median over neighbours, which survives a jump."""
    distance, advance = np.diff(ticks), np.diff(ns)
    far = (advance >= _RATE_SPAN_NS) & (distance > 0)
    if far.any():
        return float(np.median(advance[far] / distance[far])), _MAX_DRIFT_PPB
    return 1e9 / tick_hz, _MAX_HEADER_DRIFT_PPB


def consistent_run(
    ticks: Int64, ns: Int64, bracket: Int64, kept: Int64, nominal: float, drift_ppb: int
) -> tuple[Int64, int]:
    """The longest run of readings that one clock of about the nominal rate could give, and how many it leaves out.

    A reading that its neighbours contradict is left out; where the clock jumped for good, a new run begins.
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
    """Extend the outer pieces at the rate of a longer baseline, so that two close readings do not set it."""
    ends = []
    for near, step in ((0, 1), (len(ticks) - 1, -1)):
        far = near + step
        while 0 <= far + step < len(ticks) and abs(int(ns[far] - ns[near])) < _BASELINE_NS:
            far += step
        slope = min(int(ns[far] - ns[near]) / int(ticks[far] - ticks[near]), _STEEPEST_NS_PER_TICK)
        reach = 1 << 40
        ends.append((int(ticks[near]) - step * reach, int(ns[near]) - step * round(reach * slope)))
    return (np.concatenate(([ends[0][0]], ticks, [ends[1][0]])), np.concatenate(([ends[0][1]], ns, [ends[1][1]])))


def realtime_offset(readings: Readings) -> tuple[int, int]:
    """(REALTIME - MONOTONIC in ns, half-width of its spread) of a clock domain, by its narrow readings."""
    bracket = np.where(readings.bracket_ns < 0, 2 * _UNBRACKETED_NS, readings.bracket_ns)
    narrow = bracket <= np.quantile(bracket, 0.5)
    offsets = np.sort((readings.realtime_ns - readings.monotonic_ns)[narrow])
    return int(offsets[len(offsets) // 2]), int(offsets[-1] - offsets[0] + 1) // 2
