"""breakdown, copies, idle: what each device did, how fast its copies were, and why it idled.

    host     ..........[launch A].....[sync......]......next()......[launch B]
    device   ###########          A###########                               B###
    idle                                      ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
    cause                                     sync........ input... sync.launch

The work that ends a stretch decides its cause: the device waited for whatever delayed the begin of that work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stashtrace.analysis.devices import work
from stashtrace.analysis.devices.device_tables import BREAKDOWN, COPY_TIMES, IDLE
from stashtrace.analysis.intervals import NEVER, Int64, TimeSet, int64, window_around, window_at
from stashtrace.errors import MissingDataError
from stashtrace.schema.groupby import GroupBy, RowsBy, order_by
from stashtrace.schema.kinds import (
    BLOCKING_CALLS,
    COMPUTING_WORK,
    UNUSABLE_BRACKET,
    Bracket,
    BracketFlag,
    CopyDirection,
    DeviceWork,
)
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

_COPIES = (DeviceWork.COPY, DeviceWork.MEMSET)


def breakdown(
    trace: Trace, *, by: work.By = "rank", orphans: work.Keep = "keep", last_step: work.Keep = "keep"
) -> Table:
    """Divide the time of each device into compute, communication, copies and idle.

    Intervals are united, never added: work that ran at once on several streams counts once. ``busy + idle = window``
    and ``compute + exposed_communication + exposed_memcpy = busy``, exactly. The window of a row is the time from the
    begin of the first work on the device to the end of the last, or the step on the device's clock. Columns: table
    ``breakdown`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs kernels: deep mode, or imported. Waits for batches are counted where they were recorded.
    by : {"rank", "step"}
        One row per rank and device, or per step of it.
    orphans : {"keep", "drop"}
        Whether work counts whose launch was not recorded: it was launched before the recording began. Other tools
        leave it out, though the device was busy with it.
    last_step : {"keep", "drop"}
        ``drop`` leaves out what was launched in the last step, which the end of the recording may have cut.

    Raises
    ------
    MissingDataError
        If no kernel was recorded; or no step, where steps are asked for.
    """
    devices = work.device_rows(trace, orphans=orphans, last_step=last_step)
    windows = work.windows_of(devices, by, last_step)
    return work.joined_columns(BREAKDOWN, [device_columns(d, w, by) for d, w in zip(devices, windows, strict=True)])


def device_columns(device: work.DeviceRows, windows: work.Windows, by: work.By) -> dict[str, Any]:
    """Return the columns of one device, a row per window; ``by="rank"`` also counts batch waits outside its window."""
    compute, communication = device.time(*COMPUTING_WORK), device.time(DeviceWork.COMMUNICATION)
    copies, fills = device.time(*_COPIES), device.time(DeviceWork.MEMSET)
    working = compute | communication
    busy, waits = working | copies, device.waits

    def inside(time: TimeSet) -> Int64:
        return time.within(windows.begin, windows.end)

    length, ran = windows.end - windows.begin, inside(busy)
    talked, exposed = inside(communication), inside(communication - compute)
    at = window_at(device["begin_ns"], windows.begin, windows.end) if by == "step" else np.zeros(len(device), int)
    by_window = GroupBy.numbered(at, len(windows.begin))
    return {
        **work.one_row_per_window(device, windows),
        "window_ns": length,
        "busy_ns": ran,
        "idle_ns": length - ran,
        "compute_ns": inside(compute),
        "communication_ns": talked,
        "exposed_communication_ns": exposed,
        "overlap_ratio": np.where(talked > 0, (talked - exposed) / np.maximum(talked, 1), -1.0),
        "memcpy_ns": inside(copies),
        "exposed_memcpy_ns": inside(copies - working),
        "memset_ns": inside(fills),
        "input_wait_ns": inside(waits) if by == "step" else np.array([waits.total_ns]),
        "exposed_input_wait_ns": inside(waits - busy),
        "work_count": by_window.sizes,
        "orphans_count": by_window.count(device["launch_ns"] < 0),
    }


#: Copies below this are dominated by latency: their rate says nothing about the link.
_LARGE_BYTES = 1_000_000
_MEMORY = ("unknown", "pinned", "pageable", "both", "none")
_UNKNOWN, _PINNED, _PAGEABLE, _BOTH, _NO_HOST = range(len(_MEMORY))
_ON_HOST = (CopyDirection.HOST_TO_DEVICE, CopyDirection.DEVICE_TO_HOST, CopyDirection.HOST_TO_HOST)


@dataclass(frozen=True, slots=True)
class _Copies:
    """Copies of one device of one process, and the work that hides them (None: unknown)."""

    rank: int
    device_index: int
    begin: Int64
    end: Int64
    direction: Int64
    memory: Int64
    size: Int64
    working: TimeSet | None


def copies(trace: Trace, *, orphans: work.Keep = "keep", last_step: work.Keep = "keep") -> Table:
    """Sum up copies between host and device, on a device and between devices.

    Pageable host memory is copied through a pinned buffer of the driver, at a fraction of the link's rate, and blocks
    the host. Values that the record of a copy does not contain are ``unknown``. Columns: table ``copies`` of
    ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs kernels or brackets with copies.
    orphans, last_step : {"keep", "drop"}
        As in ``breakdown``; for kernels alone.

    Raises
    ------
    MissingDataError
        If neither kernels nor brackets were recorded.
    """
    of_kernels = _from_kernels(trace, orphans, last_step) if len(trace.kernels) else []
    known = np.unique(trace.kernels["process_id"])
    bracketed = _from_brackets(trace, known)
    if not len(trace.kernels) and not bracketed:
        raise MissingDataError(
            "no copy was recorded", hint="the collector cuda records copies, as do torch.profiler and nsys"
        )
    rows = [row for each in of_kernels for row in _rows(each, "kernels")]
    rows += [row for each in bracketed for row in _rows(each, "brackets")]
    return Table.from_rows(COPY_TIMES, sorted(rows, key=lambda row: (row[0], row[1], -row[6])))


def _from_kernels(trace: Trace, orphans: work.Keep, last_step: work.Keep) -> list[_Copies]:
    out = []
    memory_of = _memory_by_name(trace)
    for device in work.device_rows(trace, orphans=orphans, last_step=last_step):
        working = device.time(*COMPUTING_WORK, DeviceWork.COMMUNICATION)
        chosen = device["work_code"] == DeviceWork.COPY
        direction, name = device["copy_code"][chosen], device["name_code"][chosen]
        memory = np.where(np.isin(direction, _ON_HOST), memory_of[np.maximum(name, 0)], _NO_HOST)
        memory[~np.isin(direction, list(CopyDirection)) | (direction == CopyDirection.UNKNOWN)] = _UNKNOWN
        begin, end, size = (device[c][chosen] for c in ("begin_ns", "end_ns", "size_bytes"))
        out.append(_Copies(device.rank, device.device_index, begin, end, direction, int64(memory), size, working))
    return out


def _memory_by_name(trace: Trace) -> Int64:
    """Return the host memory in names such as ``Memcpy HtoD (Pageable -> Device)``, by string code."""
    kernels = trace.kernels
    codes = np.unique(kernels["name_code"][kernels["work_code"] == DeviceWork.COPY])
    out = np.zeros(int(codes.max(initial=0)) + 1, dtype=np.int64)
    for code in codes[codes >= 0].tolist():
        words = trace.text(code).lower()
        known = ("pinned" in words) | ("pageable" in words) << 1
        out[code] = (_UNKNOWN, _PINNED, _PAGEABLE, _BOTH)[known]
    # Names without such a word are looked up as well; no index is above the last copy's code.
    return out


def _from_brackets(trace: Trace, known: Int64) -> list[_Copies]:
    brackets = trace.device_brackets
    timed = (brackets["begin_ns"] >= 0) & (brackets["end_ns"] >= brackets["begin_ns"])
    timed &= (brackets["bracket_code"] == Bracket.COPY) & ((brackets["bracket_flags"] & UNUSABLE_BRACKET) == 0)
    table = brackets.take(timed & ~np.isin(brackets["process_id"], known))
    out = []
    for rows in GroupBy(table["process_id"], table["device_index"]):
        part = table.take(rows)
        flags, direction = part["bracket_flags"], part["copy_code"]
        recorded = ((flags & BracketFlag.PINNED) != 0) + 2 * ((flags & BracketFlag.PAGEABLE) != 0)
        memory = np.where(np.isin(direction, _ON_HOST), recorded, _NO_HOST)
        times = part["begin_ns"], part["end_ns"], direction, int64(memory), part["size_bytes"]
        out.append(_Copies(int(part["rank"][0]), int(part["device_index"][0]), *times, None))
    return out


def _rows(copied: _Copies, method: str) -> list[tuple[object, ...]]:
    return [_row(copied, chosen, method) for chosen in GroupBy(copied.direction, copied.memory)]


def _row(copied: _Copies, chosen: Int64, method: str) -> tuple[object, ...]:
    begin, end, size = copied.begin[chosen], copied.end[chosen], copied.size[chosen]
    time = TimeSet.of(begin, end)
    direction, memory = int(copied.direction[chosen][0]), int(copied.memory[chosen][0])
    named = direction in list(CopyDirection)
    sized = size > 0
    length = np.maximum(end - begin, 1)
    large = sized & (size >= _LARGE_BYTES)
    total, taken = int(size[sized].sum()), int(length[sized].sum())
    return (
        copied.rank,
        copied.device_index,
        CopyDirection(direction).name.lower() if named else "unknown",
        _MEMORY[memory],
        len(begin),
        total,
        int((end - begin).sum()),
        time.total_ns,
        -1 if copied.working is None else (time - copied.working).total_ns,
        total / taken * 1e9 if taken else 0.0,
        float((size[large] / length[large]).max(initial=0.0)) * 1e9,
        int(np.median(size[sized])) if sized.any() else -1,
        method,
    )


CAUSES = ("input", "sync", "host", "launch", "kernel_wait", "unknown")


def idle(trace: Trace, *, by: work.By = "rank", orphans: work.Keep = "keep", last_step: work.Keep = "keep") -> Table:
    """Divide the idle time of each device by what it waited for.

    ``input``: the host waited for a batch and had launched nothing. ``sync``: the host stood in a blocking call of the
    driver; or such a call had drained the device and the host had not launched again, for at most the duration of that
    call: without it, the host would have been ahead by this much. ``host``: the host did something else before it
    launched the next work. ``launch``: that launch was under way, up to the begin on the device.
    ``kernel_wait``: the next work had been launched before the device ran dry but did not begin: it waited for an
    event, or for the device to change from one kernel to the next. ``unknown``: the launch of the next work was not
    recorded.

    Times are those of the device, not sums over its streams: an instant is idle if no stream works, and counts once.
    Columns: table ``idle`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs kernels.
    by : {"rank", "step"}
        Rows of the whole recording, or of each step on the device's clock.
    orphans, last_step : {"keep", "drop"}
        As in ``breakdown``.

    Raises
    ------
    MissingDataError
        If no kernel was recorded; or no step, where steps are asked for.
    """
    devices = work.device_rows(trace, orphans=orphans, last_step=last_step)
    calls = RowsBy(trace.device_calls["process_id"])
    windows = work.windows_of(devices, by, last_step)
    return work.joined_columns(IDLE, [_columns(d, w, calls) for d, w in zip(devices, windows, strict=True)])


def idle_causes(device: work.DeviceRows, calls: RowsBy, begin_ns: int, end_ns: int) -> dict[str, TimeSet]:
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
    # Such a call returns when the device runs dry, or a moment later.
    at = window_around(host.begin, host.begin, calls.begin, calls.end)
    length = np.append(calls.end - calls.begin, 0)[at]
    return _chosen(host.begin, np.minimum(host.end, host.begin + length), at >= 0)


def _chosen(begin: Int64, end: Int64, chosen: Any) -> TimeSet:
    """Return the set of the chosen intervals, without empty ones; the intervals are sorted and disjoint."""
    chosen = chosen & (end > begin)
    return TimeSet(int64(begin[chosen]), int64(end[chosen]))


def _columns(device: work.DeviceRows, windows: work.Windows, calls: RowsBy) -> dict[str, Any]:
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
