"""What the threads of a Kineto file without device work did: operators, and Python functions between them.

    thread     [train.py(20): step .............................................]
               [sample .......................][aten::mm][aten::add]   [log ....]
    spans      [ sample                       ][ operators         ]   [ log    ]

A second pass reads them, since most files have work of a device, and need neither.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stashtrace.importers.import_context import Int64, stretches
from stashtrace.importers.kineto.events import FileRows, ThreadEvents
from stashtrace.importers.kineto.host import Steps
from stashtrace.schema.kinds import OPERATORS, SpanKind

#: Operators less than this apart belong to one stretch of work.
_SAME_STRETCH_NS = 50_000


def add_operators(rows: FileRows, operators: Mapping[int, ThreadEvents], steps: Steps) -> None:
    """Add annotations where threads ran operators: elsewhere, a thread with a collective in flight may wait for it.

    Operators with little between them form one stretch, which is cut where steps begin and end.
    """
    edges = np.union1d(steps.begin_ns, steps.end_ns)
    borders = np.append(edges, np.iinfo(np.int64).max)
    for number, events in sorted(operators.items()):
        begin, end = _stretches(events)
        after, until = np.searchsorted(edges, begin, "right"), np.searchsorted(edges, end, "left")
        parts = until - after + 1
        row = np.repeat(np.arange(len(begin)), parts)
        nth = np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
        rows.context.add(
            "spans",
            begin_ns=np.where(nth == 0, begin[row], borders[after[row] + nth - 1]),
            end_ns=np.where(nth == parts[row] - 1, end[row], borders[np.minimum(after[row] + nth, len(borders) - 1)]),
            track_id=np.full(len(row), rows.context.tracks.thread(rows.process_id, number)),
            kind_code=int(SpanKind.USER),
            name_code=rows.context.code(OPERATORS),
        )


def _stretches(events: ThreadEvents) -> tuple[Int64, Int64]:
    """Return begins and ends of the stretches in which a thread ran operators."""
    order = np.argsort(events.begin_ns, kind="stable")
    first, end = stretches(events.begin_ns[order], events.end_ns[order], _SAME_STRETCH_NS)
    return events.begin_ns[order][first], end


def add_functions(rows: FileRows, operators: Mapping[int, ThreadEvents], functions: Mapping[int, ThreadEvents]) -> None:
    """Add annotations of the Python function that most of each time without an operator lies in, the innermost one."""
    for number, events in sorted(functions.items()):
        if number not in operators:
            continue
        begin, end = _stretches(operators[number])
        since = np.append(min(int(events.begin_ns.min()), int(begin[0])), end)
        until = np.append(begin, max(int(events.end_ns.max()), int(end[-1])))
        long = until - since >= _SAME_STRETCH_NS
        since, until = since[long], until[long]
        chosen = _innermost(events, since, until)
        known = chosen >= 0
        place = chosen[known]
        rows.context.add(
            "spans",
            begin_ns=np.maximum(since[known], events.begin_ns[place]),
            end_ns=np.minimum(until[known], events.end_ns[place]),
            track_id=np.full(len(place), rows.context.tracks.thread(rows.process_id, number)),
            kind_code=int(SpanKind.USER),
            name_code=rows.context.codes([events.texts[n].rpartition("/")[2] for n in events.name[place].tolist()]),
        )


def _innermost(events: ThreadEvents, since: Int64, until: Int64) -> Int64:
    """Return for each stretch the innermost function that at least half of it lies in; -1 where there is none."""
    shortest = int((until - since).min()) // 2 if len(since) else 0
    rows = np.flatnonzero(events.end_ns - events.begin_ns >= shortest)
    rows = rows[np.lexsort((-events.end_ns[rows], events.begin_ns[rows]))]
    begins, ends = events.begin_ns[rows].tolist(), events.end_ns[rows].tolist()
    chosen, inside, at = [], list[int](), 0
    for begin, end in zip(since.tolist(), until.tolist(), strict=True):
        middle = (begin + end) // 2
        while at < len(begins) and begins[at] <= middle:
            while inside and ends[inside[-1]] <= begins[at]:
                inside.pop()
            inside.append(at)
            at += 1
        while inside and ends[inside[-1]] <= middle:
            inside.pop()
        half = (end - begin) / 2
        deepest = (n for n in reversed(inside) if min(ends[n], end) - max(begins[n], begin) >= half)
        chosen.append(next(deepest, -1))
    found = np.array(chosen, dtype=np.int64)
    return np.where(found >= 0, np.append(rows, -1)[found], -1)
