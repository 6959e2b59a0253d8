"""straggler_roots: the rank at which a chain of waits ends. Rank 3 waits for 2, which waits for 1, which computes.

    rank 3   [ waits for 2 ................. ]        root 1 1 1 1 2 2 2 2
    rank 2   [ waits for 1 .... ][ computes  ]        root 1 1 1 1
    rank 1   [ computes ........................

Each instant of straggler time goes to one root, so the roots sum to it exactly.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stashtrace._native import intervals
from stashtrace.analysis.intervals import Int64, int64
from stashtrace.analysis.stalls.budget import coded_intervals
from stashtrace.analysis.stalls.index import Tagged
from stashtrace.analysis.steps.steps import counted_steps, in_steps, steps
from stashtrace.schema.columns import Column, schema
from stashtrace.schema.groupby import Bools, GroupBy
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

STRAGGLER_ROOTS = schema(
    "straggler_roots",
    "Straggler time by the rank at which the chain of waits ends; those of a rank and step sum to its straggler time",
    Column("rank", "i8", "", "global rank that waited", role="rank"),
    Column("step", "i8", "", "ordinal, -1 outside the steps", missing=-1),
    Column(
        "root_rank", "i8", "", "rank that waited for nobody at those instants, -1 if unknown", role="rank", missing=-1
    ),
    ("stall_ns", "i8", "ns", "straggler time whose chain ends at root_rank"),
    ("direct_ns", "i8", "ns", "straggler time that root_rank was waited for directly"),
)


def straggler_roots(trace: Trace, *, warmup: bool = False) -> Table:
    """Follow each wait to the rank that waited for nobody at that instant, by rank and step.

    A rank that is late in an operation may have waited for another rank before: ``cause_rank`` of ``stalls`` names the
    first, ``root_rank`` the last of such a chain. The rows of a rank and step sum to its ``straggler`` time.

    Parameters
    ----------
    trace : Trace
        Needs steps and collectives.
    warmup : bool
        Whether all that was recorded has rows, not only the counted steps: the warm-up too, and step -1, the time
        outside of steps.

    Columns
    -------
    rank, step, root_rank, stall_ns, direct_ns

    Raises
    ------
    MissingDataError
        If no rank has steps.
    """
    columns = coded_intervals(trace)
    rows = np.flatnonzero(columns["kind"] == StallKind.STRAGGLER)
    begin, end, step, cause, rank = (columns[c][rows] for c in ("begin_ns", "end_ns", "step", "cause_rank", "rank"))
    by_rank = GroupBy(rank)
    late: dict[int, Tagged] = {}
    step_of: dict[int, Int64] = {}
    for value, own in by_rank.items():
        own = own[np.argsort(begin[own], kind="stable")]
        late[value], step_of[value] = Tagged(begin[own], end[own], cause[own]), step[own]
    parts: list[tuple[Int64, Int64, Int64, Int64, Bools]] = []  # rank, step, root, length, is direct
    for value, root in roots(late).items():
        direct = late[value]
        at = step_of[value][np.searchsorted(direct.begin, root.begin, side="right") - 1]
        parts.append((np.full(len(at), value), at, root.tag, root.end - root.begin, np.zeros(len(at), dtype=bool)))
        count = len(direct.tag)
        length = direct.end - direct.begin
        parts.append((np.full(count, value), step_of[value], direct.tag, length, np.ones(count, dtype=bool)))
    if not parts:
        return Table.empty(STRAGGLER_ROOTS)
    rank, step, whom, length, is_direct = (np.concatenate(column) for column in zip(*parts, strict=True))
    each = GroupBy(rank, step, whom)
    columns = dict(zip(("rank", "step", "root_rank"), each.keys, strict=True))
    stall_ns, direct_ns = each.sum(length, where=~is_direct), each.sum(length, where=is_direct)
    found = Table(STRAGGLER_ROOTS, {**columns, "stall_ns": stall_ns, "direct_ns": direct_ns})
    return found if warmup else found.take(in_steps(found, counted_steps(steps(trace))))


def roots(late: Mapping[int, Tagged]) -> dict[int, Tagged]:
    """Return the straggler time of each rank, tagged with the rank at which the chain of waits ends.

    If ranks wait for each other in a cycle at one instant (possible by errors of clocks, or with several streams), each
    keeps the rank that it waits for directly.

    Parameters
    ----------
    late : mapping of int to Tagged
        Rank -> its straggler time with the ranks that it waits for, -1 if unknown.
    """
    return {rank: _root(rank, own, late) for rank, own in late.items()}


def _root(rank: int, own: Tagged, late: Mapping[int, Tagged]) -> Tagged:
    """Follow the waits of one rank, one link of every chain at a time; a chain has at most one link per rank."""
    begin, end, tag, direct = own.begin, own.end, own.tag, own.tag
    done: list[tuple[Int64, Int64, Int64]] = []
    for _ in range(len(late)):
        if not len(begin):
            break
        parts: list[tuple[Int64, Int64, Int64, Int64]] = []
        for cause in np.unique(tag).tolist():
            rows = np.flatnonzero(tag == cause)
            if cause == rank:  # a cycle
                done.append((begin[rows], end[rows], direct[rows]))
                continue
            waits = late.get(cause)
            if waits is None or not len(waits.begin):
                done.append((begin[rows], end[rows], tag[rows]))
                continue
            cut = intervals.join(begin[rows], end[rows], waits.begin, waits.end)
            parts.append((cut[0], cut[1], waits.tag[cut[3]], direct[rows][cut[2]]))
            rest = intervals.subtract(begin[rows], end[rows], waits.begin, waits.end)
            done.append((rest[0], rest[1], np.full(len(rest[0]), cause)))
        columns = [np.concatenate(c) for c in zip(*parts, strict=True)] if parts else [int64([])] * 4
        order = np.argsort(columns[0], kind="stable")
        begin, end, tag, direct = (int64(c[order]) for c in columns)
    done.append((begin, end, direct))
    begin, end, tag = (int64(np.concatenate(c)) for c in zip(*done, strict=True))
    order = np.argsort(begin, kind="stable")
    return Tagged(begin[order], end[order], tag[order])
