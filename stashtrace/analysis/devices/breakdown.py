"""breakdown: what each device did, by interval arithmetic: compute, communication, copies, idle."""

from __future__ import annotations

from typing import Any

import numpy as np

from stashtrace.analysis.devices.device_tables import BREAKDOWN
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
from stashtrace.analysis.intervals import Int64, TimeSet
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import DeviceWork
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
