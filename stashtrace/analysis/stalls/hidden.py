"""hidden, agreement: work hidden behind the step, CPU contention, garbage collection; and how far two methods differ.

They are shown next to the budget, not in it. ``agreement`` attributes the same steps by their kernels and by brackets
alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.collectives.matching import Matched
from stashtrace.analysis.intervals import Floats, Int64, TimeSet, int64, window_at
from stashtrace.analysis.stalls.batch_waits import batch_waits
from stashtrace.analysis.stalls.budget import by_method, device_windows, rank_layers, rank_table
from stashtrace.analysis.stalls.collective_blocking import Blocked, own_collectives
from stashtrace.analysis.stalls.cpu_waits import growth_in, queued_in
from stashtrace.analysis.stalls.on_host import host_blocked, time_of_spans
from stashtrace.analysis.stalls.rows_by_thread import RankLayers, TraceIndex, checkpoints
from stashtrace.analysis.stalls.sampled_cpus import HostCounters
from stashtrace.analysis.steps.steps import ranks_and_steps
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema import columns as col
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import (
    IN_COLLECTIVES,
    LINK_KINDS,
    Bracket,
    CopyDirection,
    DeviceWork,
    PhaseFlag,
    SpanKind,
    StallKind,
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
    counters = HostCounters(trace)
    ranks = [_rank(index, thread, steps, counters) for thread, steps in ranks_and_steps(trace, index.steps)]
    if not ranks:
        return Table.empty(HIDDEN)
    return Table(HIDDEN, {name: np.concatenate([columns[name] for columns in ranks]) for name in HIDDEN.names})


def _rank(index: TraceIndex, thread: StepThread, steps: Table, counters: HostCounters) -> dict[str, npt.NDArray[Any]]:
    begin, end, made = steps["begin_ns"], steps["end_ns"], rank_layers(index, thread)
    kinds = made.painted_kinds()
    estimated = made.marked.get("estimated", TimeSet.empty()) & kinds.time_of(*LINK_KINDS)
    loading = index.making_meanwhile(thread) - batch_waits(index, thread).time - kinds.time_of(StallKind.PREP)
    of_resource = _of_device if device_windows(index, thread) else _of_host
    return {
        "rank": steps["rank"],
        "step": steps["step"],
        "wall_ns": end - begin,
        "hidden_loading_ns": loading.within(begin, end),
        "hidden_checkpoint_ns": _hidden_saves(index, thread).within(begin, end),
        "cpu_contention_ns": queued_in(index, thread, begin, end),
        "steal_ratio": _steal_ratio(counters, thread.process_id, begin, end),
        "gc_ns": time_of_spans(index, thread, SpanKind.GC).within(begin, end),
        "untimed_count": _count_untimed(index, thread, begin, end),
        "estimated_ns": estimated.within(begin, end),
        **{name: time.within(begin, end) for name, time in of_resource(index, thread, made).items()},
    }


def _of_host(index: TraceIndex, thread: StepThread, made: RankLayers) -> dict[str, TimeSet]:
    """Return the times that the columns of a rank without a device count."""
    blocked = host_blocked(index, thread)
    return {
        "hidden_communication_ns": _hidden_communication(index, thread, blocked) - made.time_of(*IN_COLLECTIVES),
        "queued_ns": _time_queued(index.in_flight, blocked),
        **dict.fromkeys(("hidden_copy_ns", "host_paced_ns", "graph_opaque_ns"), TimeSet.empty()),
    }


def _of_device(index: TraceIndex, thread: StepThread, made: RankLayers) -> dict[str, TimeSet]:
    """Return the times of a rank's device: work that no stall shows, and work that no bracket recorded."""
    devices, rows = index.on_devices, index.collectives.rows(thread.process_id)
    rows = rows[devices.timed[rows]]
    blocked = made.time_of(*IN_COLLECTIVES)
    return {
        "hidden_communication_ns": TimeSet.of(devices.begin_ns[rows], devices.end_ns[rows]) - blocked,
        "queued_ns": made.marked.get("queued", TimeSet.empty()) & blocked,
        "hidden_copy_ns": _copying(index, thread) - made.time_of(StallKind.H2D),
        "host_paced_ns": made.marked.get("host_paced", TimeSet.empty()),
        "graph_opaque_ns": made.marked.get("graph_opaque", TimeSet.empty()),
    }


def _hidden_communication(index: TraceIndex, thread: StepThread, blocked: Blocked) -> TimeSet:
    rows, call, end = own_collectives(index, thread)
    begin = np.maximum(index.trace.collectives["begin_ns"][rows], call)
    return TimeSet.of(begin, end) - TimeSet.of(blocked.begin, blocked.end)


def _hidden_saves(index: TraceIndex, thread: StepThread) -> TimeSet:
    """Return when the rank saved only in threads other than its step thread."""
    phases, (every, by_process) = index.trace.phases, checkpoints(index.origin)
    rows = every[by_process.rows(thread.process_id)]
    is_background = (phases["phase_flags"][rows] & int(PhaseFlag.BACKGROUND)) != 0
    aside = (phases["track_id"][rows] != thread.track_id) | is_background
    return TimeSet.of_rows(phases, rows[aside]) - TimeSet.of_rows(phases, rows[~aside])


def _time_queued(matched: Matched, blocked: Blocked) -> TimeSet:
    behind = (blocked.row >= 0) & (blocked.waited_row >= 0) & (blocked.row != blocked.waited_row)
    begin = np.maximum(blocked.begin[behind], matched.last_enter_ns[blocked.row[behind]])
    return TimeSet.of(begin, blocked.end[behind])


def _steal_ratio(counters: HostCounters, process_id: int, begin: Int64, end: Int64) -> Floats:
    """Return the stolen share of CPU time of a process's host in each window, 0 to 1; -1 if unknown."""
    host = counters.host_of(process_id)
    samples = [one for name in _HOST_CPU if (one := counters.of_host(host, name)) is not None]
    if len(samples) < len(_HOST_CPU):
        return np.full(len(begin), -1.0)
    growth = [growth_in(at, int64(values), begin, end) for at, values in samples]
    total = np.sum(growth, axis=0)
    return np.where(total > 0, growth[_HOST_CPU.index(_STEAL)] / np.maximum(total, 1), -1.0)


#: Copies that do not leave the device: its work.
_INSIDE = (CopyDirection.DEVICE_TO_DEVICE,)


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
