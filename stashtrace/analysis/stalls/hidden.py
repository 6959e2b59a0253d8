"""hidden, agreement: work hidden behind the step, CPU contention, garbage collection; and how far two methods differ.

They are shown next to the budget, not in it. ``agreement`` attributes the same steps by their kernels and by brackets
alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.collectives.matching import Matched
from stashtrace.analysis.intervals import Int64, TimeSet, int64, window_at
from stashtrace.analysis.stalls.batch_waits import batch_waits
from stashtrace.analysis.stalls.budget import by_method, device_windows, rank_layers, rank_table
from stashtrace.analysis.stalls.collective_blocking import Blocked, own_collectives
from stashtrace.analysis.stalls.cpu_waits import growth_in, queued_in
from stashtrace.analysis.stalls.on_host import host_blocked
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import ranks_and_steps
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema import columns as col
from stashtrace.schema.groupby import GroupBy, RowsBy
from stashtrace.schema.kinds import (
    IN_COLLECTIVES,
    LINK_KINDS,
    Bracket,
    CopyDirection,
    DeviceWork,
    Phase,
    PhaseFlag,
    SpanKind,
    StallKind,
    TrackKind,
)
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

HIDDEN = col.schema(
    "hidden",
    "Work of each step that was hidden behind other work; none of it is part of the budget",
    col.RANK,
    col.number("step", "ordinal"),
    col.ns("wall_ns", "length of the step"),
    col.ns("hidden_communication_ns", "a collective in flight while the rank was not blocked on it"),
    col.ns("hidden_loading_ns", "a worker made a batch while the rank waited for none"),
    col.ns("hidden_checkpoint_ns", "another thread wrote a checkpoint while the step thread did something else"),
    col.ns("cpu_contention_ns", "the step thread was runnable but not running, -1 if unknown", missing=-1),
    col.real("steal_ratio", "share of the host's CPU time taken by its hypervisor, -1 if unknown", missing=-1),
    col.ns("gc_ns", "Python garbage collection on the step thread, inside compute"),
    col.ns("queued_ns", "waited for a collective that stood behind an earlier one, inside the link's time"),
    col.ns("hidden_copy_ns", "a copy between host and device while the device did something else"),
    col.ns("host_paced_ns", "device: no record proves it had work; the bound of launch, part of compute"),
    col.ns("graph_opaque_ns", "device: inside a graph launch of which nothing is known, part of compute"),
    col.number("untimed_count", "collectives given to a device without device times"),
    col.ns("estimated_ns", "link time that an estimate divides between hosts and inside one"),
)

_STEAL = "host_steal_ns_total"
_HOST_CPU = ("host_user_ns_total", "host_system_ns_total", "host_idle_ns_total", "host_iowait_ns_total", _STEAL)


def hidden(trace: Trace) -> Table:
    """Measure work of each step that was hidden behind other work.

    Hidden work is the time that it overlapped with something else: it costs nothing now, and would become a stall if
    what hides it became faster. ``cpu_contention_ns`` is run-queue time of the step thread, part of ``compute`` (or of
    any kind that it ran in). Columns: table ``hidden`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs steps.

    Raises
    ------
    MissingDataError
        If no rank has steps.
    """
    index = TraceIndex(trace)
    steal, saves = _Steal(trace), _Saves(trace)
    ranks = [_rank(index, thread, steps, steal, saves) for thread, steps in ranks_and_steps(trace, index.steps)]
    if not ranks:
        return Table.empty(HIDDEN)
    return Table(HIDDEN, {name: np.concatenate([columns[name] for columns in ranks]) for name in HIDDEN.names})


def _rank(
    index: TraceIndex, thread: StepThread, steps: Table, steal: _Steal, saves: _Saves
) -> dict[str, npt.NDArray[Any]]:
    trace, begin, end = index.trace, steps["begin_ns"], steps["end_ns"]
    loads, blocked = batch_waits(index, thread).time, host_blocked(index, thread)
    spans, rows = trace.spans, index.spans.rows(thread.track_id)
    rows = rows[spans["kind_code"][rows] == int(SpanKind.GC)]
    device, made = device_hidden(index, thread, begin, end), rank_layers(index, thread)
    kinds = made.painted_kinds()
    estimated = made.marked.get("estimated", TimeSet.empty()) & kinds.time_of(*LINK_KINDS)
    on_host = (_hidden_communication(index, thread, blocked) - kinds.time_of(*IN_COLLECTIVES)).within(begin, end)
    loading = index.making_meanwhile(thread) - loads - kinds.time_of(StallKind.PREP)
    return {
        "rank": steps["rank"],
        "step": steps["step"],
        "wall_ns": end - begin,
        "hidden_communication_ns": device.hidden_communication_ns if device.present else on_host,
        "hidden_loading_ns": loading.within(begin, end),
        "hidden_checkpoint_ns": saves.hidden(thread).within(begin, end),
        "cpu_contention_ns": queued_in(index, thread, begin, end),
        "steal_ratio": steal.ratio(thread.process_id, begin, end),
        "gc_ns": TimeSet.of_rows(spans, rows).within(begin, end),
        "queued_ns": device.queued_ns if device.present else _time_queued(index.in_flight, blocked).within(begin, end),
        "hidden_copy_ns": device.hidden_copy_ns,
        "host_paced_ns": device.host_paced_ns,
        "graph_opaque_ns": device.graph_opaque_ns,
        "untimed_count": device.untimed_count,
        "estimated_ns": estimated.within(begin, end),
    }


def _hidden_communication(index: TraceIndex, thread: StepThread, blocked: Blocked) -> TimeSet:
    rows, call, end = own_collectives(index, thread)
    begin = np.maximum(index.trace.collectives["begin_ns"][rows], call)
    return TimeSet.of(begin, end) - TimeSet.of(blocked.begin, blocked.end)


class _Saves:
    """Checkpoints of all processes, grouped once."""

    def __init__(self, trace: Trace) -> None:
        phases = trace.phases
        self._table = phases.take(phases["phase_code"] == Phase.CHECKPOINT)
        self._by_process = RowsBy(self._table["process_id"])

    def hidden(self, thread: StepThread) -> TimeSet:
        """Return when the rank saved only in threads other than its step thread."""
        rows = self._by_process.rows(thread.process_id)
        if not len(rows):
            return TimeSet.empty()
        part = self._table.take(rows)
        aside = (part["track_id"] != thread.track_id) | ((part["phase_flags"] & int(PhaseFlag.BACKGROUND)) != 0)
        begin, end = part["begin_ns"], part["end_ns"]
        return TimeSet.of(begin[aside], end[aside]) - TimeSet.of(begin[~aside], end[~aside])


def _time_queued(matched: Matched, blocked: Blocked) -> TimeSet:
    behind = (blocked.row >= 0) & (blocked.waited_row >= 0) & (blocked.row != blocked.waited_row)
    begin = np.maximum(blocked.begin[behind], matched.last_enter_ns[blocked.row[behind]])
    return TimeSet.of(begin, blocked.end[behind])


class _Steal:
    """CPU time of each host, for each counter from the process with most samples."""

    def __init__(self, trace: Trace) -> None:
        tracks, processes = trace.tracks, trace.processes
        host_of = dict(zip(processes["process_id"].tolist(), processes["host_code"].tolist(), strict=True))
        self._host_of = host_of
        self._samples: dict[int, dict[str, tuple[Int64, Int64]]] = {}
        by_track = RowsBy(trace.counters["track_id"])
        wanted = {trace.strings.find(n): n for n in _HOST_CPU if trace.strings.find(n) >= 0}
        rows = np.flatnonzero((tracks["kind_code"] == TrackKind.COUNTER) & np.isin(tracks["name_code"], list(wanted)))
        longest: dict[tuple[int, str], int] = {}
        for row in rows.tolist():
            name = wanted[int(tracks["name_code"][row])]
            host = host_of.get(int(tracks["process_id"][row]), -1)
            samples = by_track.rows(int(tracks["track_id"][row]))
            if len(samples) > max(longest.get((host, name), 1), 1):
                longest[host, name] = len(samples)
                at = trace.counters["ts_ns"][samples]
                order = np.argsort(at, kind="stable")
                pair = (at[order], int64(trace.counters["value"][samples][order]))
                self._samples.setdefault(host, {})[name] = pair

    def ratio(self, process_id: int, begin: Int64, end: Int64) -> np.ndarray:
        """Return the stolen share of CPU time of a process's host in each window, 0 to 1; -1 if unknown."""
        samples = self._samples.get(self._host_of.get(process_id, -1), {})
        if any(name not in samples for name in _HOST_CPU):
            return np.full(len(begin), -1.0)
        growth = {name: growth_in(*samples[name], begin, end) for name in _HOST_CPU}
        total = np.sum(list(growth.values()), axis=0)
        return np.where(total > 0, growth[_STEAL] / np.maximum(total, 1), -1.0)


# What a rank's device did that is no stall, per window: hidden work, and work that no bracket recorded.

#: Copies that do not leave the device: its work.
_INSIDE = (CopyDirection.DEVICE_TO_DEVICE,)


@dataclass(frozen=True, slots=True)
class DeviceHidden:
    """Columns of ``hidden`` by window; ``present`` is False for a rank whose stalls its host attributes."""

    present: bool
    hidden_communication_ns: Int64
    hidden_copy_ns: Int64
    host_paced_ns: Int64
    graph_opaque_ns: Int64
    untimed_count: Int64
    queued_ns: Int64


def device_hidden(index: TraceIndex, thread: StepThread, begin: Int64, end: Int64) -> DeviceHidden:
    """Measure the columns of the device in windows of one rank."""
    untimed = _count_untimed(index, thread, begin, end)
    if not device_windows(index, thread):
        nothing = np.zeros(len(begin), dtype=np.int64)
        return DeviceHidden(False, nothing, nothing, nothing, nothing, untimed, nothing)
    made = rank_layers(index, thread)
    devices, rows = index.on_devices, index.collectives.rows(thread.process_id)
    rows = rows[devices.timed[rows]]
    blocked = made.time_of(*IN_COLLECTIVES)
    talking = TimeSet.of(devices.begin_ns[rows], devices.end_ns[rows]) - blocked
    copying = _copying(index, thread) - made.time_of(StallKind.H2D)
    return DeviceHidden(
        True,
        talking.within(begin, end),
        copying.within(begin, end),
        made.marked.get("host_paced", TimeSet.empty()).within(begin, end),
        made.marked.get("graph_opaque", TimeSet.empty()).within(begin, end),
        untimed,
        (made.marked.get("queued", TimeSet.empty()) & blocked).within(begin, end),
    )


def _copying(index: TraceIndex, thread: StepThread) -> TimeSet:
    """Return when copies between host and device ran, by brackets and by kernels."""
    brackets, rows = index.trace.device_brackets, index.brackets.rows(thread.process_id)
    rows = rows[(brackets["bracket_code"][rows] == Bracket.COPY) & (brackets["begin_ns"][rows] >= 0)]
    rows = rows[~np.isin(brackets["copy_code"][rows], _INSIDE)]
    kernels, at = index.trace.kernels, index.kernels.rows(thread.process_id)
    at = at[(kernels["work_code"][at] == DeviceWork.COPY) & ~np.isin(kernels["copy_code"][at], _INSIDE)]
    return TimeSet.of_rows(brackets, rows) | TimeSet.of_rows(kernels, at)


def _count_untimed(index: TraceIndex, thread: StepThread, begin: Int64, end: Int64) -> Int64:
    """Return the number of collectives given to a device without device times, by the window of their call."""
    devices, rows = index.on_devices, index.collectives.rows(thread.process_id)
    rows = rows[devices.given[rows] & ~devices.timed[rows]]
    if not len(rows):
        return np.zeros(len(begin), dtype=np.int64)
    at = window_at(index.trace.collectives["call_ns"][rows], begin, end)
    return GroupBy.numbered(at, len(begin)).sizes


AGREEMENT = col.schema(
    "agreement",
    "Steps whose kernels were recorded, attributed twice",
    col.RANK,
    col.number("step", "ordinal"),
    col.word("kind", "StallKind in lower case"),
    col.ns("kernels_ns", "by kernels"),
    col.ns("brackets_ns", "by brackets"),
    col.ns("low_ns", "by brackets, not less than this"),
    col.ns("high_ns", "by brackets, not more than this"),
    col.real("difference_ratio", "brackets minus kernels, of the step"),
)

_Row = tuple[int, int, str, int, int, int, int, float]


def agreement(trace: Trace) -> Table:
    """Compare what brackets say of a step with what its kernels say.

    Brackets are the mode that stays on; kernels, recorded for a window of steps, are its check. A step that has only
    one of the two is not in the table, and a kind that neither names has no row. ``low_ns`` and ``high_ns`` are the
    bounds from the brackets; the value from the kernels should lie between them. Columns: table ``agreement`` of
    ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs steps; of a run without deep mode the table is empty.

    Raises
    ------
    MissingDataError
        If no rank has steps.
    """
    index = TraceIndex(trace)
    rows: list[_Row] = []
    for thread, rank_steps in ranks_and_steps(trace, index.steps):
        windows = device_windows(index, thread)
        both = windows.get("kernels", TimeSet.empty()) & windows.get("brackets", TimeSet.empty())
        length = rank_steps["end_ns"] - rank_steps["begin_ns"]
        steps = rank_steps.take((length > 0) & (both.within(rank_steps["begin_ns"], rank_steps["end_ns"]) == length))
        if len(steps):
            walls = dict(zip(steps["step"].tolist(), (steps["end_ns"] - steps["begin_ns"]).tolist(), strict=True))
            exact, bounded = (
                _by_step(rank_table(by_method(index, thread, method), thread, steps)) for method in METHODS_COMPARED
            )
            for step, wall in walls.items():
                for kind in (k.name.lower() for k in StallKind):
                    by_kernels = exact.get((step, kind), (0, 0, 0))[0]
                    point, low, high = bounded.get((step, kind), (0, 0, 0))
                    if by_kernels or high:
                        difference = (point - by_kernels) / wall
                        rows.append((thread.rank, step, kind, by_kernels, point, low, high, difference))
    return Table.from_rows(AGREEMENT, rows)


#: The reference method, and the method that is checked.
METHODS_COMPARED = ("kernels", "brackets")


def _by_step(table: Table) -> dict[tuple[int, str], tuple[int, int, int]]:
    columns = (table[c].tolist() for c in ("step", "kind", "stall_ns", "low_ns", "high_ns"))
    return {(step, kind): (point, low, high) for step, kind, point, low, high in zip(*columns, strict=True)}
