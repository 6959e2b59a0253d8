"""idle: why each device idled. Each instant without work has one cause.

    host     ..........[launch A].....[sync......]......next()......[launch B]
    device   ###########          A###########                               B###
    idle                                      ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
    cause                                     sync........ input... sync.launch

The work that ends a stretch decides its cause: the device waited for whatever delayed the begin of that work.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stashtrace.analysis.devices.device_tables import IDLE
from stashtrace.analysis.devices.work import By, DeviceRows, Keep, Windows, device_rows, joined_columns, windows_of
from stashtrace.analysis.intervals import NEVER, Int64, TimeSet, int64
from stashtrace.schema.groupby import GroupBy, RowsBy, order_by
from stashtrace.schema.kinds import BLOCKING_CALLS
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

CAUSES = ("input", "sync", "host", "launch", "kernel_wait", "unknown")


def idle(trace: Trace, *, by: By = "rank", orphans: Keep = "keep", last_step: Keep = "keep") -> Table:
    """Divide the idle time of each device by what it waited for.

    ``input``: the host waited for a batch and had launched nothing. ``sync``: the host stood in a blocking call of the
    driver; or such a call had drained the device and the host had not launched again, for at most the duration of that
    call: without it, the host would have been ahead by so much. ``host``: the host did something else before it
    launched the next work. ``launch``: that launch was under way, up to the begin on the device.
    ``kernel_wait``: the next work had been launched before the device ran dry but did not begin: it waited for an
    event, or for the device to change from one kernel to the next. ``unknown``: the launch of the next work was not
    recorded.

    Times are those of the device, not sums over its streams: an instant is idle if no stream works, and counts once.

    Parameters
    ----------
    trace : Trace
        Needs kernels.
    by : {"rank", "step"}
        Rows of the whole recording, or of each step on the device's clock.
    orphans, last_step : {"keep", "drop"}
        As in ``breakdown``.

    Columns
    -------
    rank, step, device_index, cause, idle_ns, share_ratio, pieces_count, longest_ns

    Raises
    ------
    MissingDataError
        If no kernel was recorded; or no step, where steps are asked for.
    """
    devices = device_rows(trace, orphans=orphans, last_step=last_step)
    calls = RowsBy(trace.device_calls["process_id"])
    windows = windows_of(devices, by, last_step)
    return joined_columns(IDLE, [_columns(d, w, calls) for d, w in zip(devices, windows, strict=True)])


def idle_causes(device: DeviceRows, calls: RowsBy, begin_ns: int, end_ns: int) -> dict[str, TimeSet]:
    """Return a device's idle time from ``begin_ns`` to ``end_ns`` by cause; ``calls``: device_calls by process."""
    begin, end, launch = device["begin_ns"], device["end_ns"], device["launch_ns"]
    lasting = end > begin
    begin, end, launch = begin[lasting], end[lasting], launch[lasting]
    # If several pieces of work begin at once, the one launched first decides, and a known launch before unknown ones.
    order = order_by(begin, np.where(launch >= 0, launch, NEVER))
    begin, launch = begin[order], launch[order]
    before = np.maximum.accumulate(np.append(min(begin_ns, int(begin.min(initial=NEVER))), end[order]))
    gap = np.flatnonzero(begin > before[:-1])
    dry, next_, launch = before[gap], begin[gap], launch[gap]
    last = int(before[-1])
    if end_ns > last:  # after the last work: the next work is unknown
        dry, next_, launch = np.append(dry, last), np.append(next_, end_ns), np.append(launch, -1)
    waits = device.waits
    unknown = _chosen(dry, next_, launch < 0)
    queued = _chosen(dry, next_, (launch >= 0) & (launch <= dry))
    late = launch > dry
    launched = np.minimum(launch, next_)
    coming = _chosen(launched, next_, late)
    host = _chosen(dry, launched, late)

    table, rows = device.trace.device_calls, calls.rows(device.process_id)
    rows = rows[np.isin(table["call_code"][rows], BLOCKING_CALLS)]
    inside = TimeSet.of_rows(table, rows)
    blocked = _time_after_draining(host, inside) | inside
    return {
        "input": host & waits,
        "sync": (host & blocked) - waits,
        "host": (host - blocked) - waits,
        "launch": coming,
        "kernel_wait": queued,
        "unknown": unknown,
    }


def _time_after_draining(host: TimeSet, calls: TimeSet) -> TimeSet:
    """Return the time lost after blocking calls drained the device: at most as long as the host stood in each."""
    if not len(calls):
        return calls
    at = np.searchsorted(calls.begin, host.begin, side="right") - 1
    inside = np.maximum(at, 0)
    # Such a call returns when the device runs dry, or a moment later.
    covered = (at >= 0) & (calls.end[inside] >= host.begin)
    length = (calls.end - calls.begin)[inside]
    return _chosen(host.begin, np.minimum(host.end, host.begin + length), covered)


def _chosen(begin: Int64, end: Int64, chosen: Any) -> TimeSet:
    """Return the set of the chosen intervals, without empty ones; the intervals are sorted and disjoint."""
    chosen = chosen & (end > begin)
    return TimeSet(int64(begin[chosen]), int64(end[chosen]))


def _columns(device: DeviceRows, windows: Windows, calls: RowsBy) -> dict[str, Any]:
    count = len(windows.begin)
    first = int(windows.begin.min()) if count else 0
    last = int(windows.end.max()) if count else 0
    causes = idle_causes(device, calls, first, last)
    shape = (count, len(CAUSES))
    total, pieces, longest = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    lasting = np.flatnonzero(windows.end > windows.begin)
    for at, cause in enumerate(CAUSES):
        begin, end, row = causes[cause].pieces(windows.begin[lasting], windows.end[lasting])
        by_window = GroupBy.numbered(lasting[row], count)
        total[:, at], pieces[:, at] = by_window.sum(end - begin), by_window.sizes
        longest[:, at] = by_window.max(end - begin, empty=0)
    length = np.repeat(windows.end - windows.begin, len(CAUSES))
    return {
        "rank": np.full(length.shape, device.rank),
        "step": np.repeat(windows.step, len(CAUSES)),
        "device_index": np.full(length.shape, device.device_index),
        "cause": np.tile(np.array(CAUSES), count),
        "idle_ns": total.ravel(),
        "share_ratio": total.ravel() / np.maximum(length, 1),
        "pieces_count": pieces.ravel(),
        "longest_ns": longest.ravel(),
    }
