"""stacks: Python functions of the ranks' threads by time, from what py-spy sampled in deeper steps."""

from __future__ import annotations

from typing import Literal

import numpy as np

from stashtrace.analysis.intervals import Int64, TimeSet, int64, window_around
from stashtrace.analysis.steps.threads import step_threads
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.schema import columns as col
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

FUNCTIONS = col.schema(
    "stacks",
    "Python functions of the ranks' threads; each is known to about one sampling period",
    col.RANK_OR_NONE,
    col.refers("track_id", "tracks.track_id", "the thread", detail=5),
    col.text("name_code", "function at file"),
    col.number("line", "on which it was first seen, of the longest time in it"),
    col.ns("self_ns", "it was the innermost function"),
    col.real("self_ratio", "share of the time that the thread was sampled"),
    col.ns("total_ns", "it was on the stack"),
    col.real("total_ratio", "share of that time"),
)


def stacks(trace: Trace, *, threads: Literal["step", "all"] = "step") -> Table:
    """Sum up which Python functions threads were in, the most costly first.

    Columns: table ``stacks`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        A window of which some steps were recorded with stacks from outside (``capture --stacks``).
    threads : {"step", "all"}
        The step thread of each rank, or all threads of Python.

    Raises
    ------
    MissingDataError
        If no stack was sampled.
    UsageError
        If ``threads`` is something else.
    """
    if threads not in ("step", "all"):
        raise UsageError(f"threads cannot be {threads!r} here", hint="one of step, all")
    table = trace.stacks
    if not len(table):
        raise MissingDataError(
            "py-spy sampled no Python stack",
            hint="`stashtrace analyze lines` has those that the recorder took itself; all threads are sampled by"
            " `stashtrace capture RUN --stacks`",
        )
    rank_of = trace.processes.lookup("process_id", "rank")
    process_of = trace.tracks.lookup("track_id", "process_id")
    wanted = {thread.track_id for thread in step_threads(trace)} if threads == "step" else set(process_of)
    rows = []
    for track, at in GroupBy(table["track_id"]).items():
        if track not in wanted:
            continue
        part = table.take(at)
        whole_ns = TimeSet.of_rows(part).total_ns
        lengths = part["end_ns"] - part["begin_ns"]
        alone = lengths - _inner_ns(part)
        for name, same in GroupBy(part["name_code"]).items():
            self_ns, total_ns = int(alone[same].sum()), TimeSet.of_rows(part, same).total_ns
            line = int(part["line"][same[lengths[same].argmax()]])
            rank = rank_of.get(process_of[track], -1)
            rows.append((rank, track, name, line, self_ns, self_ns / whole_ns, total_ns, total_ns / whole_ns))
    found = Table.from_rows(FUNCTIONS, rows)
    return found.take(np.lexsort((found["name_code"], -found["self_ns"], found["track_id"], found["rank"])))


def _inner_ns(calls: Table) -> Int64:
    """Return the time of the functions that each one called, of one thread."""
    begin, end = calls["begin_ns"], calls["end_ns"]
    inner = np.zeros(len(calls), dtype=np.int64)
    by_depth = {depth: at[np.argsort(begin[at])] for depth, at in GroupBy(calls["depth"]).items()}
    for depth, callees in by_depth.items():
        callers = by_depth.get(depth - 1)
        if callers is None:
            continue
        at = window_around(begin[callees], end[callees], begin[callers], end[callers])
        np.add.at(inner, callers[at[at >= 0]], (end - begin)[callees[at >= 0]])
    return int64(inner)
