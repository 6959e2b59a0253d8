"""What the longer time of changed steps goes to: calls, files and phases that take more of it than in others."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Int64, window_at
from stashtrace.analysis.steps.steps import host_steps
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import BatchPhase, Phase, PhaseFlag, SpanKind, WaitOp
from stashtrace.schema.stall_kinds import COLUMN_OF
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

Bools = npt.NDArray[np.bool_]
#: What is behind a change takes at least this part of it.
_PART = 0.5
_NOTHING = ("", "", -1.0)
Cause = tuple[str, str, float]


def behind(trace: Trace, rank: int, kind: str, steps: Table, parts: tuple[Bools, Bools], delta_ns: float) -> Cause:
    """Return kind, name and time of what is behind a change of a rank's time; empty and -1 if nothing recorded is.

    Parameters
    ----------
    trace : Trace
    rank : int
    kind : str
        Kind of time, as in ``stalls``.
    steps : Table
        Counted steps of the rank, in order.
    parts : pair of bool array
        Which of them are changed, and which are as usual.
    delta_ns : float
        By how much longer that time is in a changed step.
    """
    windows = _host_windows(trace, rank, steps)
    ways = _of_batches if COLUMN_OF.get(kind) == "data" else _of_step_thread
    best = _NOTHING
    for name, found in ways(trace, rank, steps, windows):
        for label, spent in found:
            more = float(spent[parts[0]].mean() - spent[parts[1]].mean())
            if more >= _PART * delta_ns and more > best[2]:
                best = (name, label, more)
        if best[0]:  # what comes first says most
            return best
    return best


def _host_windows(trace: Trace, rank: int, steps: Table) -> tuple[Int64, Int64]:
    if not (steps["clock_code"] != 0).any():
        return steps["begin_ns"], steps["end_ns"]
    host = host_steps(trace)
    own = host.take((host["rank"] == rank) & np.isin(host["step"], steps["step"])).sort_by("step")
    return own["begin_ns"], own["end_ns"]


def _per_step(begin: Int64, end: Int64, windows: tuple[Int64, Int64]) -> npt.NDArray[np.float64]:
    """Sum intervals by the step in which they begin."""
    at = window_at(begin, *windows)
    inside = at >= 0
    spent = np.minimum(end, windows[1][at])[inside] - begin[inside]
    return np.bincount(at[inside], spent, len(windows[0])).astype(np.float64)


def _rows_per_step(rows: Table, chosen: Bools, windows: tuple[Int64, Int64]) -> npt.NDArray[np.float64]:
    return _per_step(rows["begin_ns"][chosen], rows["end_ns"][chosen], windows)


def _by_name(
    rows: Table, codes: Int64, windows: tuple[Int64, Int64], trace: Trace
) -> list[tuple[str, npt.NDArray[np.float64]]]:
    found = []
    for code, own in GroupBy(codes).items():
        found.append((trace.text(int(code)), _per_step(rows["begin_ns"][own], rows["end_ns"][own], windows)))
    return found


Ways = Iterator[tuple[str, list[tuple[str, npt.NDArray[np.float64]]]]]


def _of_step_thread(trace: Trace, rank: int, steps: Table, windows: tuple[Int64, Int64]) -> Ways:
    """Give what the step thread did, the most telling first."""
    track = int(steps["track_id"][0])
    spans, phases, waits = trace.spans, trace.phases, trace.waits
    mine = spans.take(spans["track_id"] == track)
    collections = mine.take(mine["kind_code"] == SpanKind.GC)
    yield "gc", [("", _per_step(collections["begin_ns"], collections["end_ns"], windows))]
    own = phases.take((phases["track_id"] == track) & ((phases["phase_flags"] & PhaseFlag.NESTED) == 0))
    saves = own.take(own["phase_code"] == Phase.CHECKPOINT)
    yield "checkpoint", [("", _per_step(saves["begin_ns"], saves["end_ns"], windows))]
    user = mine.take(mine["kind_code"] == SpanKind.USER)
    yield "annotation", _by_name(user, user["name_code"], windows, trace)
    yield "file", _files(trace, np.array([track]), windows)
    blocked = waits.take(waits["track_id"] == track)
    yield "wait", [(op.name.lower(), _rows_per_step(blocked, blocked["wait_code"] == op, windows)) for op in WaitOp]
    parts = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
    yield "phase", [(part.name.lower(), _rows_per_step(own, own["phase_code"] == part, windows)) for part in parts]


def _files(
    trace: Trace, tracks: Int64, windows: tuple[Int64, Int64], chosen: Table | None = None
) -> list[tuple[str, npt.NDArray[np.float64]]]:
    """Return the time in calls on each file by step; with ``chosen``, by the step that waits for the batch."""
    sums: dict[int, npt.NDArray[np.float64]] = {}
    for io in trace.io_pieces():
        rows = io.take(np.isin(io["track_id"], tracks))
        for code, own in GroupBy(rows["path_code"]).items():
            begin, end = rows["begin_ns"][own].astype(np.int64), rows["end_ns"][own].astype(np.int64)
            if chosen is not None:
                spent = _within_fetches(begin, end, rows["track_id"][own], chosen, len(windows[0]))
            else:
                spent = _per_step(begin, end, windows)
            sums[int(code)] = sums.get(int(code), 0.0) + spent
    return [(trace.text(code), spent) for code, spent in sums.items() if trace.text(code)]


def _of_batches(trace: Trace, rank: int, steps: Table, windows: tuple[Int64, Int64]) -> Ways:
    """Give what made the batches that each step waited for: files, then the worker."""
    batches = trace.batches.take(trace.batches["rank"] == rank)
    waits = batches.take((batches["phase_code"] == BatchPhase.WAIT) & (batches["batch_index"] >= 0))
    at = window_at(waits["begin_ns"], *windows)
    waits, at = waits.take(at >= 0), at[at >= 0]
    fetches = batches.take(batches["phase_code"] == BatchPhase.FETCH)
    served = GroupBy(waits["loader_id"], waits["batch_index"])
    row = served.find(fetches["loader_id"], fetches["batch_index"])
    fetches, row = fetches.take(row >= 0), row[row >= 0]
    step = at[served.first[row]]
    made = fetches.replace(batch_index=step)  # from here on the step that waits for it
    yield "file", _files(trace, np.unique(made["track_id"]), windows, made)
    length, workers = (made["end_ns"] - made["begin_ns"]).astype(np.float64), GroupBy(made["worker_id"])
    if len(workers) > 1:
        yield (
            "worker",
            [
                (str(worker), np.bincount(step[own], length[own], len(windows[0])).astype(np.float64))
                for worker, own in workers.items()
                if worker >= 0
            ],
        )


def _within_fetches(begin: Int64, end: Int64, tracks: Int64, made: Table, steps_count: int) -> npt.NDArray[np.float64]:
    """Sum calls by the step that waits for the batch during whose making they began."""
    out = np.zeros(steps_count)
    for track in np.unique(tracks).tolist():
        own = made.take(made["track_id"] == track).sort_by("begin_ns")
        mine = tracks == track
        at = window_at(begin[mine], own["begin_ns"], own["end_ns"])
        inside = at >= 0
        out += np.bincount(own["batch_index"][at[inside]], (end - begin)[mine][inside], steps_count)
    return out
