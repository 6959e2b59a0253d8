"""breakdown, copies: what each device did (compute, communication, copies, idle), and how fast its copies were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stashtrace.analysis.devices.device_tables import BREAKDOWN, COPY_TIMES
from stashtrace.analysis.devices.work import (
    By,
    DeviceRows,
    Keep,
    Windows,
    device_rows,
    joined_columns,
    one_row_per_window,
    windows_of,
)
from stashtrace.analysis.intervals import Int64, TimeSet, int64
from stashtrace.errors import MissingDataError
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import Bracket, BracketFlag, CopyDirection, DeviceWork
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Graphs with only a known begin and end count as compute.
COMPUTE = (DeviceWork.KERNEL, DeviceWork.GRAPH)
_COPIES = (DeviceWork.COPY, DeviceWork.MEMSET)


def breakdown(trace: Trace, *, by: By = "rank", orphans: Keep = "keep", last_step: Keep = "keep") -> Table:
    """Divide the time of each device into compute, communication, copies and idle.

    Intervals are united, never added: work that ran at once on several streams counts once. ``busy + idle = window``
    and ``compute + exposed_communication + exposed_memcpy = busy``, exactly. The window of a row is the time from the
    begin of the first work on the device to the end of the last, or the step on the device's clock.

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

    Columns
    -------
    rank, step, device_index, window_ns, busy_ns, idle_ns, compute_ns, communication_ns, exposed_communication_ns,
    overlap_ratio, memcpy_ns, exposed_memcpy_ns, memset_ns, input_wait_ns, exposed_input_wait_ns, work_count,
    orphans_count

    Raises
    ------
    MissingDataError
        If no kernel was recorded; or no step, where steps are asked for.
    """
    devices = device_rows(trace, orphans=orphans, last_step=last_step)
    windows = windows_of(devices, by, last_step)
    return joined_columns(BREAKDOWN, [device_columns(d, w, by) for d, w in zip(devices, windows, strict=True)])


def device_columns(device: DeviceRows, windows: Windows, by: By) -> dict[str, Any]:
    """Return the columns of one device, a row per window; ``by="rank"`` also counts batch waits outside its window."""
    compute, communication = device.time(*COMPUTE), device.time(DeviceWork.COMMUNICATION)
    copies, fills = device.time(*_COPIES), device.time(DeviceWork.MEMSET)
    working = compute | communication
    busy, waits = working | copies, device.waits

    def inside(time: TimeSet) -> Int64:
        return time.within(windows.begin, windows.end)

    length, ran = windows.end - windows.begin, inside(busy)
    talked, exposed = inside(communication), inside(communication - compute)
    at = np.searchsorted(windows.end, device["begin_ns"], side="right")
    at = np.where(at < len(windows.end), at, -1) if by == "step" else np.zeros(len(device), dtype=np.int64)
    if len(windows.begin):
        at[device["begin_ns"] < windows.begin[at]] = -1
    by_window = GroupBy.numbered(at, len(windows.begin))
    return {
        **one_row_per_window(device, windows),
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
_UNUSABLE = int(BracketFlag.UNTIMED | BracketFlag.CAPTURED | BracketFlag.FAILED)


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


def copies(trace: Trace, *, orphans: Keep = "keep", last_step: Keep = "keep") -> Table:
    """Sum up copies between host and device, on a device and between devices.

    Pageable host memory is copied through a pinned buffer of the driver, at a fraction of the link's rate, and blocks
    the host. Values that the record of a copy does not contain are ``unknown``.

    Parameters
    ----------
    trace : Trace
        Needs kernels or brackets with copies.
    orphans, last_step : {"keep", "drop"}
        As in ``breakdown``; for kernels alone.

    Columns
    -------
    rank, device_index, direction, host_memory, copies_count, total_bytes, copy_ns, busy_ns, exposed_ns,
    mean_bytes_per_s, best_bytes_per_s, median_bytes, method

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


def _from_kernels(trace: Trace, orphans: Keep, last_step: Keep) -> list[_Copies]:
    out = []
    memory_of = _memory_by_name(trace)
    for device in device_rows(trace, orphans=orphans, last_step=last_step):
        working = device.time(*COMPUTE, DeviceWork.COMMUNICATION)
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
        told = ("pinned" in words) | ("pageable" in words) << 1
        out[code] = (_UNKNOWN, _PINNED, _PAGEABLE, _BOTH)[told]
    # Names without such a word are looked up as well; no index is above the last copy's code.
    return out


def _from_brackets(trace: Trace, known: Int64) -> list[_Copies]:
    brackets = trace.device_brackets
    timed = (brackets["begin_ns"] >= 0) & (brackets["end_ns"] >= brackets["begin_ns"])
    timed &= (brackets["bracket_code"] == Bracket.COPY) & ((brackets["bracket_flags"] & _UNUSABLE) == 0)
    table = brackets.take(timed & ~np.isin(brackets["process_id"], known))
    out = []
    for rows in GroupBy(table["process_id"], table["device_index"]):
        own = table.take(rows)
        flags, direction = own["bracket_flags"], own["copy_code"]
        told = ((flags & BracketFlag.PINNED) != 0) + 2 * ((flags & BracketFlag.PAGEABLE) != 0)
        memory = np.where(np.isin(direction, _ON_HOST), told, _NO_HOST)
        times = own["begin_ns"], own["end_ns"], direction, int64(memory), own["size_bytes"]
        out.append(_Copies(int(own["rank"][0]), int(own["device_index"][0]), *times, None))
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
        _rate(total, taken),
        float((size[large] / length[large]).max(initial=0.0)) * 1e9,
        int(np.median(size[sized])) if sized.any() else -1,
        method,
    )


def _rate(total: int, taken_ns: int) -> float:
    return total / taken_ns * 1e9 if taken_ns else 0.0
