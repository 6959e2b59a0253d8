"""What a kind of time of a rank may go to, by step: calls, files, phases, workers, garbage, compilations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from stashtrace.analysis.findings.spikes.policy import POLICY
from stashtrace.analysis.intervals import Bools, Int64, TimeSet, window_at
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.cpu_waits import cpu_waits_by_step, handoffs
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.epochs import waits_of_steps
from stashtrace.analysis.steps.steps import steps_on_host
from stashtrace.analysis.steps.threads import step_threads
from stashtrace.analysis.stragglers.cause_names import as_one_database
from stashtrace.calibration.noise import Floats
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import NAMED_SPANS, BatchPhase, Phase, PhaseFlag, SpanKind, StallKind, WaitOp
from stashtrace.schema.stall_kinds import COLUMN_OF
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: A wait for a CPU, among waits.
_CPU = "cpu"
Cause = tuple[str, str, float]
NOTHING: Cause = ("", "", -1.0)
#: What a time may go to: its kind, and by name the time of each step.
Way = tuple[str, list[tuple[str, Floats]]]
Ways = Iterator[Way]


def ways(trace: Trace, rank: int, kind: str, steps: Table) -> Ways:
    """Give what a kind of time of a rank may go to, by step, what says most first.

    ``kind``: kind of time, as in ``stalls``. ``steps``: counted steps of the rank, in order.
    """
    if COLUMN_OF.get(kind) == "link":  # no rank's calls are parts of a transfer, and it waits for it in some of them
        return
    windows = _host_windows(trace, rank, steps)
    # First of all, since a wait for a CPU is part of whatever the thread does then.
    if kind == "handoff":
        yield "wait", [(_CPU, _queued_handoffs(trace, rank, windows))]
    if COLUMN_OF.get(kind) == "data" and (trace.batches["rank"] == rank).any():
        yield from _of_batches(trace, rank, steps, windows)
    else:
        yield "wait", [(_CPU, _queued_steps(trace, rank, kind, steps))]
        yield from _of_step_thread(trace, rank, steps, windows, _time_of(trace, rank, kind))


def _queued_handoffs(trace: Trace, rank: int, windows: tuple[Int64, Int64]) -> Floats:
    """Return how long hand-offs of batches to a rank waited for a CPU, by the step in which they begin."""
    spent = np.zeros(len(windows[0]))
    for one in (handoffs(TraceIndex(trace), thread) for thread in step_threads(trace) if thread.rank == rank):
        at = window_at(one.begin, *windows)
        spent += np.bincount(at[at >= 0], one.queued[at >= 0], len(spent))
    return spent


def _queued_steps(trace: Trace, rank: int, kind: str, steps: Table) -> Floats:
    """Return how long the step thread waited for a CPU in the column of a kind, or in all of its work, by step."""
    spent = np.zeros(len(steps))
    for thread in step_threads(trace):
        if thread.rank == rank:
            of_columns = cpu_waits_by_step(TraceIndex(trace), thread, steps.sort_by("begin_ns"))
            wanted = {COLUMN_OF[kind]} if kind in COLUMN_OF else {*of_columns} - {"link", "late"}
            spent += sum(queued for column, queued in of_columns.items() if column in wanted)
    return spent


def most_of(given: Iterable[Way], parts: tuple[Bools, Bools], delta_ns: float) -> Cause:
    """Return kind, name and time of what a change goes to; empty and -1 if it is nothing recorded.

    ``parts``: which steps are changed, and which are as usual. ``delta_ns``: by how much longer the time is in the
    former.
    """
    best = NOTHING
    for name, found in given:
        for label, spent in found:
            more = float(spent[parts[0]].mean() - spent[parts[1]].mean())
            if more >= POLICY.explains_ratio * delta_ns and more > best[2]:
                best = (name, label, more)
        if best[0]:  # what comes first says most
            # A call, or the making of a batch, may be longer than the part of it that is of this kind of time.
            return best[0], best[1], min(best[2], delta_ns)
    return best


def _time_of(trace: Trace, rank: int, kind: str) -> TimeSet | None:
    """Return when a rank's thread spends a kind of time; None if its host is elsewhere then, or for several kinds."""
    index = TraceIndex(trace)
    for thread in step_threads(trace):
        if thread.rank == rank and kind in COLUMN_OF:
            layers = rank_layers(index, thread)
            if layers.method == "host" and not layers.segments:
                return layers.time_of(StallKind[kind.upper()])
    return None


def _host_windows(trace: Trace, rank: int, steps: Table) -> tuple[Int64, Int64]:
    if not (steps["clock_code"] != 0).any():
        return steps["begin_ns"], steps["end_ns"]
    on_host = steps_on_host(trace, steps, rank)
    return on_host["begin_ns"], on_host["end_ns"]


def _per_step(begin: Int64, end: Int64, windows: tuple[Int64, Int64], time: TimeSet | None = None) -> Floats:
    """Sum intervals, or the part of them that lies in a time, by the step in which they begin."""
    at = window_at(begin, *windows)
    inside = at >= 0
    until = np.minimum(end, windows[1][at])[inside]
    spent = until - begin[inside] if time is None else time.within(begin[inside], until)
    return np.bincount(at[inside], spent, len(windows[0])).astype(np.float64)


def _rows_per_step(rows: Table, chosen: Bools, windows: tuple[Int64, Int64], time: TimeSet | None) -> Floats:
    return _per_step(rows["begin_ns"][chosen], rows["end_ns"][chosen], windows, time)


def _by_name(
    rows: Table, codes: Int64, windows: tuple[Int64, Int64], trace: Trace, time: TimeSet | None
) -> list[tuple[str, Floats]]:
    found = []
    for code, at in GroupBy(codes).items():
        found.append((trace.text(int(code)), _per_step(rows["begin_ns"][at], rows["end_ns"][at], windows, time)))
    return found


def _of_step_thread(trace: Trace, rank: int, steps: Table, windows: tuple[Int64, Int64], time: TimeSet | None) -> Ways:
    """Give what the step thread did, the part of it within a time, what says most first."""
    track = int(steps["track_id"][0])
    spans, phases, waits = trace.spans, trace.phases, trace.waits
    mine = spans.take(spans["track_id"] == track)
    collections = mine.take(mine["kind_code"] == SpanKind.GC)
    yield "gc", [("", _per_step(collections["begin_ns"], collections["end_ns"], windows, time))]
    compiled = mine.take(mine["kind_code"] == SpanKind.COMPILE)
    yield "compile", _by_name(compiled, compiled["name_code"], windows, trace, time)
    rows = phases.take((phases["track_id"] == track) & ((phases["phase_flags"] & PhaseFlag.NESTED) == 0))
    saves = rows.take(rows["phase_code"] == Phase.CHECKPOINT)
    yield "checkpoint", [("", _per_step(saves["begin_ns"], saves["end_ns"], windows, time))]
    named = mine.take(np.isin(mine["kind_code"], NAMED_SPANS))
    yield "annotation", _by_name(named, named["name_code"], windows, trace, time)
    yield "file", _files(trace, np.array([track]), windows, time=time)
    blocked = waits.take(waits["track_id"] == track)
    ops = {op.name.lower(): blocked["wait_code"] == op for op in WaitOp}
    yield "wait", [(name, _rows_per_step(blocked, chosen, windows, time)) for name, chosen in ops.items()]
    parts = {part.name.lower(): rows["phase_code"] == part for part in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)}
    yield "phase", [(name, _rows_per_step(rows, chosen, windows, time)) for name, chosen in parts.items()]


def _files(
    trace: Trace, tracks: Int64, windows: tuple[Int64, Int64], chosen: Table | None = None, time: TimeSet | None = None
) -> list[tuple[str, Floats]]:
    """Return the time in calls on each file by step; with ``chosen``, by the step that waits for the batch."""
    sums: dict[int, Floats] = {}
    for io in trace.io_pieces():
        rows = io.take(np.isin(io["track_id"], tracks))
        for code, of_path in GroupBy(as_one_database(trace, rows["path_code"])).items():
            begin, end = rows["begin_ns"][of_path].astype(np.int64), rows["end_ns"][of_path].astype(np.int64)
            if chosen is not None:
                spent = _within_fetches(begin, end, rows["track_id"][of_path], chosen, len(windows[0]))
            else:
                spent = _per_step(begin, end, windows, time)
            sums[int(code)] = sums.get(int(code), 0.0) + spent
    return [(trace.text(code), spent) for code, spent in sums.items() if trace.text(code)]


def _of_batches(trace: Trace, rank: int, steps: Table, windows: tuple[Int64, Int64]) -> Ways:
    """Give what made the batches that each step waited for: files, then the worker."""
    batches = trace.batches.take(trace.batches["rank"] == rank)
    waits = waits_of_steps(batches, steps)
    at = window_at(waits["begin_ns"], *windows)
    waits, at = waits.take(at >= 0), at[at >= 0]
    fetches = batches.take(batches["phase_code"] == BatchPhase.FETCH)
    served = GroupBy(waits["loader_id"], waits["batch_index"])
    row = served.find(fetches["loader_id"], fetches["batch_index"])
    fetches, row = fetches.take(row >= 0), row[row >= 0]
    step = at[served.first[row]]
    queued = np.maximum(fetches["runqueue_ns"], 0)
    yield "wait", [(_CPU, np.bincount(step, queued, len(windows[0])).astype(np.float64))]
    made = fetches.replace(batch_index=step)  # from here on the step that waits for it
    yield "file", _files(trace, np.unique(made["track_id"]), windows, made)
    length, workers = (made["end_ns"] - made["begin_ns"]).astype(np.float64), GroupBy(made["worker_id"])
    if len(workers) > 1:
        yield (
            "worker",
            [
                (str(worker), np.bincount(step[of_worker], length[of_worker], len(windows[0])).astype(np.float64))
                for worker, of_worker in workers.items()
                if worker >= 0
            ],
        )


def _within_fetches(begin: Int64, end: Int64, tracks: Int64, made: Table, steps_count: int) -> Floats:
    """Sum calls by the step that waits for the batch during whose making they began."""
    out = np.zeros(steps_count)
    for track in np.unique(tracks).tolist():
        fetches = made.take(made["track_id"] == track).sort_by("begin_ns")
        mine = tracks == track
        at = window_at(begin[mine], fetches["begin_ns"], fetches["end_ns"])
        inside = at >= 0
        out += np.bincount(fetches["batch_index"][at[inside]], (end - begin)[mine][inside], steps_count)
    return out
