"""Work of each device of each rank, and the windows in which it is examined.

host     |  launch ...        | launch ...   | launch        the last step, as the loop marked it on the host
step     |------- 0 ----------|----- 1 ------|----- 2 ---
stream    ####   ###########     #######  ~~~    #####       work of step 2: launched at or after its begin
          ^ no launch known: an orphan
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Int64, TimeSet, int64
from stashtrace.analysis.steps.steps import host_steps, steps
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.schema.groupby import GroupBy, RowsBy
from stashtrace.schema.kinds import BatchPhase, DeviceWork
from stashtrace.schema.table import Table
from stashtrace.schema.trace import KERNELS_WINDOWS_COUNT, Trace, facts_named

Keep = Literal["keep", "drop"]
By = Literal["rank", "step"]


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """Rows of ``kernels`` of one device of one process, without markers of synchronisation."""

    trace: Trace
    rank: int
    process_id: int
    device_index: int
    #: Row numbers, as in the table.
    rows: Int64
    #: When the process waited for a batch; only up to the last step if that is left out.
    waits: TimeSet

    def __getitem__(self, column: str) -> npt.NDArray[Any]:
        return self.trace.kernels[column][self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def time(self, *works: DeviceWork) -> TimeSet:
        """Return when work of any of these kinds ran."""
        return TimeSet.of_rows(self.trace.kernels, self.rows[np.isin(self["work_code"], works)])


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of one device, in order, with the step of each (-1: the whole recording)."""

    step: Int64
    begin: Int64
    end: Int64


def device_rows(trace: Trace, *, orphans: Keep = "keep", last_step: Keep = "keep") -> list[DeviceRows]:
    """Return the work of every device, by rank, process and device.

    ``trace``: needs kernels. ``orphans``: what to do with work whose launch is unknown. ``last_step``: ``drop`` leaves
    out work that was launched in the last step of each rank, or later; orphans count by their begin. A rank with a
    single step keeps it. Raises MissingDataError if there is no work left; or no step, with ``last_step="drop"``.
    """
    one_of("orphans", orphans, "keep", "drop")
    one_of("last_step", last_step, "keep", "drop")
    kernels = trace.kernels
    if len(kernels) == 0:
        raise MissingDataError(
            "no kernel was recorded",
            hint="record some steps with `stashtrace run --kernels`, or give a trace of torch.profiler or nsys; "
            "`stalls` and `hidden` do without kernels",
        )
    usable = (kernels["work_code"] != DeviceWork.SYNCHRONIZATION) & (kernels["end_ns"] >= kernels["begin_ns"])
    if orphans == "drop":
        usable &= kernels["launch_ns"] >= 0
    rows = np.flatnonzero(usable)
    if len(rows) == 0:
        raise MissingDataError(
            "no piece of work on a device is left", hint="orphans=keep counts work whose launch was not recorded"
        )
    batches = trace.batches
    batches = batches.take(batches["phase_code"] == BatchPhase.WAIT)
    waits_of = RowsBy(batches["process_id"])
    devices = []
    for of_device in GroupBy(kernels["process_id"][rows], kernels["device_index"][rows]):
        chosen = rows[of_device]
        rank, process, device_index = (int(kernels[name][chosen[0]]) for name in ("rank", "process_id", "device_index"))
        waits = TimeSet.of_rows(batches, waits_of.rows(process))
        devices.append(DeviceRows(trace, rank, process, device_index, chosen, waits))
    devices.sort(key=lambda device: (device.rank, device.process_id, device.device_index))
    return _without_last_step(trace, devices) if last_step == "drop" else devices


def one_of(option: str, value: str, *known: str) -> None:
    """Raise UsageError unless an option of an analysis has one of the known values."""
    if value not in known:
        raise UsageError(f"{option} cannot be {value!r} here", hint="one of " + ", ".join(known))


def windows_of(devices: list[DeviceRows], by: By, last_step: Keep = "keep") -> list[Windows]:
    """Return the windows of each device: all its work, or the steps of its rank on the device's clock.

    Raises MissingDataError if steps are asked for and no rank has any.
    """
    one_of("by", by, "rank", "step")
    if by == "rank":
        _refuse_apart(devices)
        return [_whole(device) for device in devices]
    every_step = steps(devices[0].trace)
    by_rank = RowsBy(every_step["rank"])
    windows = []
    for device in devices:
        rank_steps = every_step.take(by_rank.rows(device.rank))
        if last_step == "drop" and len(rank_steps) > 1:
            rank_steps = rank_steps.take(slice(0, -1))
        windows.append(Windows(rank_steps["step"], rank_steps["begin_ns"], rank_steps["end_ns"]))
    return windows


def _refuse_apart(devices: list[DeviceRows]) -> None:
    """Raise UsageError where deep mode was on several times: the whole holds time in which nothing was recorded."""
    stated = facts_named(devices[0].trace, KERNELS_WINDOWS_COUNT)
    apart = {process for process, times in stated if times not in ("", "1")}
    for device in (device for device in devices if device.process_id in apart):
        rank_steps = host_steps(device.trace)
        rank_steps = rank_steps.take(rank_steps["rank"] == device.rank).sort_by("begin_ns")
        begins = np.sort(device["begin_ns"])
        counts = np.searchsorted(begins, rank_steps["end_ns"]) - np.searchsorted(begins, rank_steps["begin_ns"])
        busy = np.flatnonzero(counts)
        if (np.diff(busy) > 1).any():
            raise UsageError(
                f"kernels of rank {device.rank} were recorded several times, with steps without them in between",
                hint="by=step takes each step alone; or analyze one of the run's windows/",
            )


def _whole(device: DeviceRows) -> Windows:
    begin, end = int(device["begin_ns"].min()), int(device["end_ns"].max())
    return Windows(int64([-1]), int64([begin]), int64([end]))


def _without_last_step(trace: Trace, devices: list[DeviceRows]) -> list[DeviceRows]:
    host = host_steps(trace)
    by_rank = RowsBy(host["rank"])
    out = []
    for device in devices:
        rows = by_rank.rows(device.rank)
        if len(rows) > 1:
            until = int(host["begin_ns"][rows].max())
            launch = device["launch_ns"]
            kept = device.rows[np.where(launch >= 0, launch, device["begin_ns"]) < until]
            waits = TimeSet.of(device.waits.begin, np.minimum(device.waits.end, until))
            device = replace(device, rows=kept, waits=waits)
        if len(device):
            out.append(device)
    if not out:
        raise MissingDataError("no work was launched before the last step", hint="last_step=keep counts all steps")
    return out


def one_row_per_window(device: DeviceRows, windows: Windows) -> dict[str, Any]:
    """Return the columns rank, step and device of each row."""
    count = len(windows.step)
    return {
        "rank": np.full(count, device.rank),
        "step": windows.step,
        "device_index": np.full(count, device.device_index),
    }


def joined_columns(schema: Any, pieces: list[dict[str, Any]]) -> Table:
    """Return the table of the rows of all devices."""
    return Table.concat(schema, [Table(schema, piece) for piece in pieces])
