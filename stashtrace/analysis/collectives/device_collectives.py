"""Collectives as the devices saw them: who entered last by device clocks, on which stream, what stayed untimed.

    rank 0   before-event [ kernel ....................... ] after-event    enter = begin of the kernel (KernelCh),
    rank 1                              [ kernel .......... ]                else the later of before-event and return
                                        last_enter

The rules are those of ``matching``, which does the work; here its inputs are replaced by device times. A row without
them keeps its host times as a lower bound for the others and is counted as untimed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stashtrace.analysis.collectives.matching import Matched, match, operations
from stashtrace.analysis.intervals import Bools, Int64
from stashtrace.schema.groupby import GroupBy, RowsBy
from stashtrace.schema.kinds import CollectiveSource, DeviceClock, DeviceWork
from stashtrace.schema.trace import Trace


@dataclass(frozen=True, slots=True)
class DeviceCollectives:
    """Columns parallel to ``trace.collectives``."""

    #: First and last moment on the device, queueing behind earlier work left out; -1 if untimed.
    begin_ns: Int64
    end_ns: Int64
    #: When this rank could begin to move bytes.
    enter_ns: Int64
    #: True where the operation was given to a device.
    given: Bools
    #: True where its device times are known.
    timed: Bools
    #: A send or receive of it was in flight, -1 if unknown.
    network_ns: Int64
    #: Who waited for whom, by device clocks.
    matched: Matched

    def over(self, host: Matched) -> Matched:
        """The matches by device clocks where a row is timed, else those of the hosts; links are the same."""
        parts = {
            name: np.where(self.timed, getattr(self.matched, name), getattr(host, name))
            for name in ("last_enter_ns", "last_rank", "partial", "by_clock", "ordered")
        }
        return replace(host, end_ns=np.where(self.timed, self.end_ns, host.end_ns), **parts)


def on_devices(trace: Trace) -> DeviceCollectives:
    """Match the collectives of a trace by their device times."""
    table = trace.collectives
    begin, end = table["device_begin_ns"].copy(), table["device_end_ns"].copy()
    source = table["source_code"]
    known = (begin >= 0) & (end >= begin)
    clock = np.where(source == CollectiveSource.PLUGIN, int(DeviceClock.GLOBALTIMER), int(DeviceClock.EVENT))
    given = known | (source != CollectiveSource.HOST) | (table["stream_track_id"] >= 0)
    given |= np.isin(table["group_hash"], trace.groups["group_hash"][_on_nccl(trace)])
    from_kernel = _from_kernels(trace, begin, end, ~known)
    clock[from_kernel] = int(DeviceClock.CUPTI)
    given |= from_kernel
    timed = known | from_kernel
    begin[~timed], end[~timed] = -1, -1
    # A kernel's begin is its entry. An event may lie before the launch: the call was still on its way.
    launched = np.where(source == CollectiveSource.EVENTS, table["return_ns"], -1)
    launched[from_kernel] = -1
    enter = np.clip(np.maximum(begin, launched), begin, np.maximum(end, begin))
    host = np.maximum(table["return_ns"], table["call_ns"])
    seen = np.where(timed, enter, np.where(given, host, table["call_ns"]))
    replaced = table.replace(
        call_ns=seen, return_ns=seen, begin_ns=np.full(len(table), -1), end_ns=np.where(timed, end, table["end_ns"])
    )
    error = _clock_errors(trace, clock, timed)
    waits = trace.collective_waits
    key = waits["collective_key"]
    # Work.wait of a device returns once a stream waits: it says nothing of the end.
    waits = waits.replace(collective_key=np.where(np.isin(key, table["collective_key"][given]), -1, key))
    by_devices = trace.replace(collectives=replaced, collective_waits=waits)
    matched = match(by_devices, error if timed.any() else None, by_devices=True)
    matched = replace(matched, partial=matched.partial | (timed & with_untimed(trace, given & ~timed)))
    return DeviceCollectives(begin, end, enter, given, timed, _network(trace), matched)


def with_untimed(trace: Trace, untimed: Bools) -> Bools:
    """Mask of rows whose operation lacks the device times of a rank: that rank entered later than its host called."""
    if not untimed.any():
        return untimed
    each = operations(trace.collectives)
    return each.any(untimed)[each.number]


def _on_nccl(trace: Trace) -> Bools:
    """Mask of the rows of ``groups`` whose only backend is NCCL."""
    codes = trace.groups["backend_code"]
    nccl = [code for code in np.unique(codes).tolist() if trace.text(code) == "nccl"]
    return np.isin(codes, nccl)


def _from_kernels(trace: Trace, begin: Int64, end: Int64, wanted: Bools) -> Bools:
    """Times of untimed rows from the kernels that their calls launched; which rows got them."""
    table, kernels = trace.collectives, trace.kernels
    timed = np.zeros(len(table), dtype=bool)
    rows = np.flatnonzero((kernels["work_code"] == DeviceWork.COMMUNICATION) & (kernels["launch_ns"] >= 0))
    if not len(rows) or not wanted.any():
        return timed
    by_process, rows_by_process = RowsBy(kernels["process_id"][rows]), RowsBy(table["process_id"])
    for process in by_process.values.tolist():
        launches = rows[by_process.rows(process)]
        launches = launches[np.argsort(kernels["launch_ns"][launches], kind="stable")]
        mine = rows_by_process.rows(process)
        mine = mine[wanted[mine]]
        at = np.searchsorted(kernels["launch_ns"][launches], table["call_ns"][mine])
        hit = launches[np.minimum(at, len(launches) - 1)]
        inside = (at < len(launches)) & (kernels["launch_ns"][hit] <= table["return_ns"][mine])
        mine, hit = mine[inside], hit[inside]
        begin[mine], end[mine], timed[mine] = kernels["begin_ns"][hit], kernels["end_ns"][hit], True
    return timed


def _clock_errors(trace: Trace, clock: Int64, timed: Bools) -> Int64:
    """Error of the device clock behind each row; at least 1 where the times are a device's."""
    worst: dict[tuple[int, int], int] = {}
    columns = (trace.device_clocks[c].tolist() for c in ("process_id", "clock_code", "error_ns"))
    for process, code, error in zip(*columns, strict=True):
        worst[process, code] = max(worst.get((process, code), 0), error)
    out = np.zeros(len(clock), dtype=np.int64)
    process_id = trace.collectives["process_id"]
    for process in np.unique(process_id[timed]).tolist():
        for code in DeviceClock:
            rows = timed & (process_id == process) & (clock == code)
            out[rows] = max(worst.get((process, int(code)), 1), 1)
    return out


def _network(trace: Trace) -> Int64:
    """Time for which proxies had bytes of each row in flight, -1 if unknown."""
    details = trace.collective_details
    row = GroupBy(details["collective_key"]).row_of(trace.collectives["collective_key"])
    return np.append(details["network_ns"], -1)[row]
