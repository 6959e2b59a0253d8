"""launches: how far the host was ahead of each stream: from launch to begin, and how much was waiting.

host     L0 L1 L2          L3
stream      [0.........][1.....][2...]   [3...]
waiting  1  1  2        1       0      1 0          launched, not begun: latency, added, is the area below this
empty    L0: latency not hidden; L1, L2: hidden behind 0; L3: not hidden
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stashtrace.analysis.devices import work
from stashtrace.analysis.devices.device_tables import LAUNCHES
from stashtrace.analysis.intervals import Bools, Int64, TimeSet, int64, window_at
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Launches that CUDA and HIP take before the next one blocks its thread.
FULL_QUEUE = 1024
#: A queue may be full with fewer launches, where events and other entries that are not seen take places of it. It is
#: taken to be full where at least this many launches were waiting, as many as this part of the most that ever were...
FEWEST_WAITING, _FULL_RATIO = 256, 0.98
#: ... if the calls that found it so were held: took this many times as long as those that found it this far from full.
_HELD_TIMES, _FAR_RATIO = 1.5, 0.9
#: At least this many of them, and at least this part.
_FEWEST_HELD, _HELD_RATIO = 3, 0.5
#: A call may return this long before the end that the device notes.
CLOCKS_AGREE_NS = 2_000
_LATE = 95


def launches(trace: Trace, *, by: work.By = "rank", last_step: work.Keep = "keep") -> Table:
    """Measure the lead of the host over each stream.

    A launch that finds its stream empty is launch bound: its latency is idle time of the stream. Otherwise, large
    latencies are good: the host was far ahead. ``mean_queue_count`` is the mean number of launches whose work had not
    begun. If ``full_queue_ns`` is not 0, the host had to wait because the queue was full. A graph is one launch.
    Columns: table ``launches`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs kernels with launches.
    by : {"rank", "step"}
        One row per stream, or per step (on the device's clock) of each stream.
    last_step : {"keep", "drop"}
        As in ``breakdown``.

    Raises
    ------
    MissingDataError
        If no kernel was recorded; or no step, where steps are asked for.
    """
    devices = work.device_rows(trace, last_step=last_step)
    names = trace.tracks.lookup("track_id", "name_code")
    pieces = []
    for device, windows in zip(devices, work.windows_of(devices, by, last_step), strict=True):
        for stream, rows in GroupBy(device["track_id"]).items():
            chosen = replace(device, rows=device.rows[rows])
            pieces.append(_columns(chosen, windows, names.get(stream, 0)))
    return work.joined_columns(LAUNCHES, pieces)


def waiting(launch: Int64, begin: Int64) -> tuple[Int64, Int64]:
    """Return moments in order, and how many launched pieces of work had not begun from each moment to the next."""
    at = np.concatenate([launch, np.maximum(begin, launch)])
    change = np.repeat(np.array([1, -1], dtype=np.int64), len(launch))
    order = order_by(at, -change)
    at, depth = at[order], np.cumsum(change[order])
    last = GroupBy.runs(at).last
    return at[last], depth[last]


@dataclass(frozen=True, slots=True)
class FullQueue:
    """Calls that wait for a place in the queue of a stream."""

    #: A launch waits for the end of the work that was launched this many launches before it.
    ahead_count: int
    #: Launches whose calls were held up, as places in the order of launches.
    held: Int64
    #: What a call takes that is not held.
    usual_ns: int


def full_queue(launch: Int64, returned: Int64, begin: Int64, end: Int64) -> FullQueue | None:
    """Find the calls that waited because their stream's queue was full; None if there are none.

    Takes the launches of one stream in their order, and when the work of each began and ended.
    """
    call = returned - launch
    known = call >= 0
    if len(launch) < FEWEST_WAITING or not known.any():
        return None
    place = np.arange(len(launch))
    waiting = place + 1 - np.searchsorted(np.sort(begin), returned, side="right")
    most = int(waiting[known].max())
    full = known & (waiting >= max(FEWEST_WAITING, _FULL_RATIO * most))
    far = known & (waiting < _FAR_RATIO * most)
    if not full.any() or not far.any():
        return None
    usual = float(np.median(call[far]))
    held = np.flatnonzero(full & (call > _HELD_TIMES * usual))
    if len(held) < max(_FEWEST_HELD, _HELD_RATIO * np.count_nonzero(full)):
        return None
    ahead = place[held] + 1 - np.searchsorted(np.sort(end), returned[held] + CLOCKS_AGREE_NS, side="right")
    return FullQueue(int(np.median(ahead)), held, round(usual))


def _columns(stream: work.DeviceRows, windows: work.Windows, name_code: int) -> dict[str, Any]:
    count = len(windows.begin)
    columns = [stream[c] for c in ("begin_ns", "launch_ns", "end_ns", "return_ns")]
    order = order_by(*columns)
    begin, launch, end, returned = (column[order] for column in columns)
    # A mask of pieces that were launched while their stream had nothing to do and nothing queued. Takes the rows of
    # one stream in order of their begin.
    done = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, end))[:-1]
    empty = np.asarray(done <= launch)
    at = window_at(begin, windows.begin, windows.end)
    orphans = GroupBy.numbered(at, count).count(launch < 0)
    known = (at >= 0) & (launch >= 0) & first_of_each(launch)
    by_window, empty = GroupBy.numbered(at[known], count), empty[known]
    begin, launch, returned, end = begin[known], launch[known], returned[known], end[known]
    latency = np.maximum(begin - launch, 0)
    call = np.where(returned >= launch, returned - launch, -1)
    moments, depth = waiting(launch, begin)
    return {
        **work.one_row_per_window(stream, windows),
        "stream_code": np.full(count, name_code),
        "launches_count": by_window.sizes,
        "latency_ns": by_window.quantile(latency, 50, empty=-1),
        "p95_latency_ns": by_window.quantile(latency, _LATE, empty=-1),
        "longest_latency_ns": by_window.max(latency, empty=-1),
        "call_ns": by_window.quantile(call, 50, empty=-1),
        "launch_bound_ratio": by_window.count(empty) / np.maximum(by_window.sizes, 1),
        "mean_queue_count": _area(moments, depth, windows) / np.maximum(windows.end - windows.begin, 1),
        "longest_queue_count": _most(moments, depth, windows),
        "full_queue_ns": _full(moments, depth, (launch, returned, begin, end)).within(windows.begin, windows.end),
        "orphans_count": orphans,
    }


def first_of_each(launch: Int64) -> Bools:
    """Return a mask of the rows that are the first of their launch: all kernels of a graph have one launch."""
    out = np.zeros(len(launch), dtype=bool)
    out[GroupBy(launch).first] = True
    return out


def _area(moments: Int64, depth: Int64, windows: work.Windows) -> Int64:
    """Return the integral of the depth over each window, in launches * ns."""
    if not len(moments):
        return np.zeros(len(windows.begin), dtype=np.int64)
    area = np.append(0, np.cumsum(depth[:-1] * np.diff(moments)))

    def until(at: Int64) -> Int64:
        row = np.searchsorted(moments, at, side="right") - 1
        inside = np.maximum(row, 0)
        return int64(np.where(row >= 0, area[inside] + depth[inside] * (at - moments[inside]), 0))

    return until(windows.end) - until(windows.begin)


def _most(moments: Int64, depth: Int64, windows: work.Windows) -> Int64:
    """Return the largest depth in each window, including the depth at its begin."""
    out = np.zeros(len(windows.begin), dtype=np.int64)
    first = np.maximum(np.searchsorted(moments, windows.begin, side="right") - 1, 0)
    last = np.searchsorted(moments, windows.end)
    for row, (start, stop) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        out[row] = depth[start:stop].max(initial=0)
    return out


def _full(moments: Int64, depth: Int64, times: tuple[Int64, Int64, Int64, Int64]) -> TimeSet:
    """Return when a queue was full: by its length, or by the calls that were held where it is shorter.

    ``times`` are those of launches: when each was called and returned, and when its work began and ended.
    """
    full = depth[:-1] >= FULL_QUEUE if len(depth) else np.zeros(0, dtype=bool)
    if full.any():
        return TimeSet.of(moments[:-1][full], moments[1:][full])
    order = order_by(times[0])
    launch, returned, begin, end = (column[order] for column in times)
    queue = full_queue(launch, returned, begin, end)
    if queue is None:
        return TimeSet.empty()
    return TimeSet.of(launch[queue.held] + queue.usual_ns, returned[queue.held])
