"""The clock domain of each boot: from the ticks of its processes to its monotonic clock, and on to the common one.

Made and used by ``align.session``. All processes of a boot give their readings to one map, since the TSC is the host's.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stashtrace.align.clocks import Readings, TickMap, realtime_offset, tick_map
from stashtrace.align.offset_fit import STRAIGHT, Bend
from stashtrace.collectors.context import Int64
from stashtrace.errors import FormatError
from stashtrace.format.reader import RawRun
from stashtrace.model.possible import HIGHEST, is_possible
from stashtrace.model.trace import RawProcess

#: Floor of the error between two hosts whose only common clock is the wall clock: NTP over a busy network.
REALTIME_ERROR_NS = 10_000_000
#: A reading that took longer (a day at 3 GHz) is none, and no counter ticks at another rate.
_MAX_BRACKET_TICKS = 1 << 48
_LEAST_HZ, _MOST_HZ = 1e3, 1e12


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
        """How far the kernel bent the clock against the counter, which is quartz, beyond what readings are off by."""
        ticks, ns = self.map.ticks[1:-1], self.map.ns[1:-1]
        if len(ticks) < 3:
            return STRAIGHT
        x, y = (ticks - ticks[0]).astype(np.float64), (ns - ns[0]).astype(np.float64)
        mean = y[-1] / x[-1]
        bow = float(np.ptp(y - mean * x)) / 2 - self.map.error_ns
        return Bend(bow, float(np.abs(np.diff(y) / np.diff(x) / mean - 1).max())) if bow > 0 else STRAIGHT

    def refer_to(self, reference: HostClock) -> None:
        """Map to another boot by the wall clock, as a first guess."""
        if reference.boot_id == self.boot_id:  # another counter of the same host, with the same monotonic clock
            return
        self.offset_ns = self.realtime_offset_ns - reference.realtime_offset_ns
        self.method = "realtime"
        self.error_ns = max(
            REALTIME_ERROR_NS,
            self.realtime_error_ns + reference.realtime_error_ns + self.map.error_ns + reference.map.error_ns,
        )

    def correct(self, at_ns: Int64, offset_ns: Int64, error_ns: int, touch_error_ns: int, method: str) -> None:
        """Improve the first guess: what is to be added to it, at knots of its own time, and the half-widths."""
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

    def worth(self) -> tuple[int, int, int, int]:
        """(offset at the origin of the common clock, drift, error, error in touch) for the table ``alignment``."""
        if self._course is None:
            return self.offset_ns, self.drift_ppb, self.error_ns, self.error_ns
        return self.offset_ns + self._correction_at_origin(), self.drift_ppb, self.error_ns, self._touch_error_ns

    def _correction_at_origin(self) -> int:
        assert self._course is not None
        back = TickMap(self._course.ns, self._course.ticks, 0)
        origin = np.array([self.origin_ns])
        return self.origin_ns - int(back(origin.view(np.uint64))[0])


def domain_of(raw: RawProcess) -> tuple[str, str]:
    """Boot and tick source: processes with the same share a clock."""
    return str(raw.metadata.get("boot_id", "")), str(raw.metadata.get("clock", "tsc"))


def start_ticks(metadata: object) -> npt.NDArray[np.uint64]:
    """When the process began, as an array of one; 0 if its header does not say."""
    value = metadata.get("start_ticks", 0) if isinstance(metadata, dict) else 0
    return np.array([value if isinstance(value, int) and 0 <= value < 1 << 63 else 0], dtype=np.uint64)


def host_clocks(runs: Sequence[RawRun], core: Sequence[RawProcess]) -> dict[tuple[str, str], HostClock]:
    """One clock per boot from the readings of all its processes."""
    readings: dict[tuple[str, str], list[Readings]] = {}
    rates: dict[tuple[str, str], list[float]] = {}
    for raw in core:
        hz = _rate_of(raw)
        rates.setdefault(domain_of(raw), []).append(hz)
        readings.setdefault(domain_of(raw), []).extend(_readings_of(raw, hz))
    clocks = {}
    for domain, parts in readings.items():
        if not parts:
            raise FormatError(
                f"no clock reading of host {domain[0] or '(unknown)'} in {runs[0].path}",
                hint="the file header names no start time; it is damaged or not from stashtrace",
            )
        joined = Readings.concat(parts)
        rate = float(np.median(rates[domain]))
        clocks[domain] = HostClock(domain[0], tick_map(joined, rate), *realtime_offset(joined))
    return clocks


def _rate_of(raw: RawProcess) -> float:
    """Nominal ticks per second; 10^9 where the file says what no counter does."""
    told = raw.metadata.get("tick_hz")
    return float(told) if isinstance(told, int | float) and _LEAST_HZ <= told <= _MOST_HZ else 1e9


def _readings_of(raw: RawProcess, hz: float) -> list[Readings]:
    found = []
    start = [raw.metadata.get(n) for n in ("start_ticks", "start_monotonic_ns", "start_realtime_ns")]
    if all(isinstance(v, int) and 0 < v <= HIGHEST for v in start):
        found.append(Readings(*(np.array([v], dtype=np.int64) for v in (*start, -1))))
    rows = raw.records.get("clock_sync")
    if rows is not None and len(rows.rows):
        r = rows.rows
        r = r[r["bracket_ticks"] < _MAX_BRACKET_TICKS]
        for name in ("ticks", "monotonic_ns", "realtime_ns"):
            values = r[name].astype(np.int64)
            r = r[is_possible(values) & (values >= 0)]
        bracket = np.ceil(r["bracket_ticks"] * (1e9 / hz)).astype(np.int64)
        if len(r):
            found.append(
                Readings(
                    r["ticks"].astype(np.int64),
                    r["monotonic_ns"].astype(np.int64),
                    r["realtime_ns"].astype(np.int64),
                    bracket,
                )
            )
    return found
