"""stalls: every nanosecond of each step of each rank goes to exactly one kind. The heart of the product.

    layers of a rank, in order of priority        |-- straggler --|   |- fetch -|      |---- compute ----|
    painted: first layer that covers an instant   [...............][.][.........][..........................]
    cut by the windows of the steps and summed     step 0                    | step 1        | ...

What the layers of a rank are is the business of its methods (``methods.METHODS``).
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stashtrace._native import intervals
from stashtrace.analysis.methods import METHODS, rank_layers
from stashtrace.analysis.step_threads import StepThread
from stashtrace.analysis.steps import counted_steps, ranks_and_steps
from stashtrace.analysis.timeset import Int64, RowsBy, TimeSet, int64
from stashtrace.analysis.trace_index import Layer, RankLayers, TraceIndex
from stashtrace.errors import UsageError
from stashtrace.model.kinds import StallKind
from stashtrace.model.schemas import STALL_INTERVALS, STALL_TOTALS, STALLS, STALLS_COUNTED
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace

#: Step number of the time outside steps.
OUTSIDE_STEPS = -1
_KINDS = tuple(StallKind)
_ALWAYS = (StallKind.COMPUTE, StallKind.OTHER)


def stalls(trace: Trace, *, by: Literal["step", "rank", "run"] = "step", warmup: bool = False) -> Table:
    """Attribute every nanosecond of each step of each rank to one kind.

    Overlapping causes are resolved by the order of ``docs/concepts/stalls.md``; what could not be observed is an
    interval (``low_ns``, ``high_ns``), never a guess. The kinds of a step sum to its wall time, exactly. A kind that
    did not occur has no row, except ``compute`` and ``other``.

    Parameters
    ----------
    trace : Trace
        Needs steps; uses kernels, brackets or host spans, whichever each rank has.
    by : {"step", "rank", "run"}
        ``step``: one row per rank, step and kind, and step -1 for the time outside steps. ``rank``, ``run``: sums over
        the steps, without the time outside them and the steps that the event budget left out; of all ranks, ``rank`` is
        -1. These have the columns of ``stall_totals``: rank, kind, stall_ns, share_ratio, method, low_ns, high_ns,
        cause_rank, steps_count.
    warmup : bool
        Whether the sums of ``rank`` and ``run`` count the warm-up steps.

    Columns
    -------
    rank, step, kind, stall_ns, method, low_ns, high_ns, cause_rank

    Raises
    ------
    MissingDataError
        If no rank has steps; the message names the collector or probe to turn on.
    """
    if by not in ("step", "rank", "run"):
        raise UsageError(f"stalls by {by!r} is not known", hint="use step, rank or run")
    index = TraceIndex(trace)
    table = _per_step(index)
    return table if by == "step" else stall_totals(_counted(table, index.steps, warmup), by)


def _per_step(index: TraceIndex) -> Table:
    ranks = ranks_and_steps(index.origin, index.steps)
    return Table.concat(STALLS, [rank_table(rank_layers(index, thread), thread, own) for thread, own in ranks])


def stall_intervals(trace: Trace) -> Table:
    """The same attribution as intervals: what each rank did when, for the time line.

    Parameters
    ----------
    trace : Trace
        Needs steps.

    Columns
    -------
    rank, step, kind, begin_ns, end_ns, track_id, cause_rank

    Raises
    ------
    MissingDataError
        If no rank has steps.
    """
    columns: dict[str, npt.NDArray[Any]] = dict(coded_intervals(trace))
    columns["kind"] = _names(columns["kind"])
    return Table(STALL_INTERVALS, columns)


def coded_intervals(trace: Trace) -> dict[str, Int64]:
    """Columns of :func:`stall_intervals`, by rank and begin, the kinds as numbers of :class:`StallKind`.

    A long run has millions, whose texts take more room than all other columns. Raises as that does.
    """
    index = TraceIndex(trace)
    parts: dict[str, list[Int64]] = {name: [np.empty(0, dtype=np.int64)] for name in STALL_INTERVALS.names}
    for thread, steps in ranks_and_steps(trace, index.steps):
        made = rank_layers(index, thread)
        layers = made.layers
        begin, end, layer = intervals.paint([(x.time.begin, x.time.end) for x in layers])
        kind = np.array([x.kind for x in layers], dtype=np.int64)[layer]
        begin, end, kind = _merge_equal(begin, end, kind)
        windows, numbers = _windows(thread, steps)
        cut = intervals.join(begin, end, windows.begin, windows.end)
        count = len(cut[0])
        late = intervals.locate(made.late.begin, made.late.end, cut[0])
        straggles = (kind[cut[2]] == StallKind.STRAGGLER) & (late >= 0)
        columns = {
            "rank": np.full(count, thread.rank),
            "step": numbers[cut[3]],
            "kind": kind[cut[2]],
            "begin_ns": cut[0],
            "end_ns": cut[1],
            "track_id": np.full(count, thread.track_id),
            "cause_rank": np.where(straggles, np.append(made.late.tag, -1)[late], -1),
        }
        for name, values in columns.items():
            parts[name].append(values)
    return {name: np.concatenate(parts.pop(name)) for name in STALL_INTERVALS.names}  # no row is held twice


def _names(kinds: npt.NDArray[np.int64]) -> npt.NDArray[np.str_]:
    texts = np.empty(max(_KINDS) + 1, dtype="U16")
    for kind in _KINDS:
        texts[kind] = kind.name.lower()
    return texts[kinds]


def _merge_equal(begin: Int64, end: Int64, kind: Int64) -> tuple[Int64, Int64, Int64]:
    """Join neighbours of one kind (two layers may share it)."""
    if len(begin) == 0:
        return begin, end, kind
    new = np.concatenate([[True], (begin[1:] != end[:-1]) | (kind[1:] != kind[:-1])])
    first = np.flatnonzero(new)
    return begin[first], end[np.append(first[1:], len(begin)) - 1], kind[first]


def _windows(thread: StepThread, steps: Table) -> tuple[TimeSet, Int64]:
    """Steps and the time around them, sorted and disjoint, with their step numbers."""
    begin, end = steps["begin_ns"], steps["end_ns"]
    keep = end > begin
    begin, end, number = begin[keep], end[keep], steps["step"][keep]
    outside = TimeSet.of(begin, end).gaps(thread.begin_ns, thread.end_ns)
    begin, end = np.concatenate([begin, outside.begin]), np.concatenate([end, outside.end])
    number = np.concatenate([number, np.full(len(outside), OUTSIDE_STEPS)])
    order = np.argsort(begin, kind="stable")
    return TimeSet(int64(begin[order]), int64(end[order])), int64(number[order])


def rank_table(made: RankLayers, thread: StepThread, steps: Table) -> Table:
    """Rows of ``stalls`` of one rank by given layers."""
    windows, numbers = _windows(thread, steps)
    matrix = intervals.attribute([(x.time.begin, x.time.end) for x in made.layers], windows.begin, windows.end)
    values, row = np.unique(numbers, return_inverse=True)  # the windows outside steps fall into one row
    point, low, high = (np.zeros((len(values), max(_KINDS) + 1), dtype=np.int64) for _ in range(3))
    rest = Layer(StallKind.OTHER, TimeSet.empty())
    for column, layer in enumerate([*made.layers, rest]):
        np.add.at(point[:, layer.kind], row, matrix[:, column])
        np.add.at(high[:, layer.kind], row, matrix[:, column])
        if not layer.doubts:
            np.add.at(low[:, layer.kind], row, matrix[:, column])
        for doubt in layer.doubts:
            np.add.at(high[:, doubt], row, matrix[:, column])
    first = np.full(len(values), thread.begin_ns, dtype=np.int64)
    first[row[::-1]] = windows.begin[::-1]
    method = made.method_at(first)
    wanted = high > 0
    wanted[:, list(_ALWAYS)] = True
    at, kind = np.nonzero(wanted)
    cause = np.full(point.shape, -1, dtype=np.int64)
    cause[:, StallKind.STRAGGLER] = _causes(made, windows, row, len(values))
    return Table(
        STALLS,
        {
            "rank": np.full(len(at), thread.rank),
            "step": values[at],
            "kind": _names(kind),
            "stall_ns": point[at, kind],
            "method": method[at],
            "low_ns": low[at, kind],
            "high_ns": high[at, kind],
            "cause_rank": cause[at, kind],
        },
    )


def _causes(made: RankLayers, windows: TimeSet, row: Int64, count: int) -> Int64:
    """Rank that each row's straggler time waited for longest, -1 if there is none."""
    cut = intervals.join(made.late.begin, made.late.end, windows.begin, windows.end)
    cause, at = made.late.tag[cut[2]], row[cut[3]]
    out = np.full(count, -1, dtype=np.int64)
    if len(cause) == 0:
        return out
    width = int(cause.max()) + 2
    key, inverse = np.unique(at * width + cause + 1, return_inverse=True)
    total = np.zeros(len(key), dtype=np.int64)
    np.add.at(total, inverse, cut[1] - cut[0])
    order = np.lexsort((-key, total))  # the longest comes last; of equals the lowest rank
    out[key[order] // width] = key[order] % width - 1
    return out


def stalls_counted(trace: Trace, *, warmup: bool = False) -> Table:
    """Sums of :func:`stalls` over the counted steps of each rank, apart by method and cause: what totals are made of.

    Columns
    -------
    rank, kind, stall_ns, method, low_ns, high_ns, cause_rank, steps_count
    """
    index = TraceIndex(trace)
    return _counted(_per_step(index), index.steps, warmup)


def stall_totals(counted: Table, by: str) -> Table:
    """``stalls`` by rank or run from what ``stalls_counted`` gives of all ranks."""
    whose, at = np.unique(counted["rank"], return_index=True)
    steps_count = dict(zip(whose.tolist(), counted["steps_count"][at].tolist(), strict=True))
    rank = counted["rank"] if by == "rank" else np.full(len(counted), -1, dtype=np.int64)
    key, inverse = np.unique(rank * 64 + _codes(counted["kind"]), return_inverse=True)
    sums = {n: _summed(inverse, counted[n], len(key)) for n in ("stall_ns", "low_ns", "high_ns")}
    out_rank, out_kind = key // 64, key % 64
    ranks, position = np.unique(out_rank, return_inverse=True)
    wall = _summed(position, sums["stall_ns"], len(ranks))[position]
    counts = int64([steps_count[r] if r >= 0 else sum(steps_count.values()) for r in ranks.tolist()])
    return Table(
        STALL_TOTALS,
        {
            "rank": out_rank,
            "kind": _names(out_kind),
            "stall_ns": sums["stall_ns"],
            "share_ratio": sums["stall_ns"] / np.maximum(wall, 1),
            "method": _methods(inverse, counted["method"], len(key)),
            "low_ns": sums["low_ns"],
            "high_ns": sums["high_ns"],
            "cause_rank": _heaviest(inverse, counted["cause_rank"], counted["stall_ns"], len(key)),
            "steps_count": counts[position],
        },
    )


def _counted(table: Table, steps: Table, warmup: bool) -> Table:
    kept = counted_steps(steps, warmup=warmup)
    table = table.take(np.isin(_step_keys(table), _step_keys(kept)))
    method = int64(np.select([table["method"] == name for name in METHODS], range(len(METHODS))))
    columns = [table["rank"], _codes(table["kind"]), method, table["cause_rank"]]
    order = np.lexsort(columns[::-1])
    changes = [column[order][1:] != column[order][:-1] for column in columns]
    first = np.flatnonzero(np.concatenate([np.ones(min(len(order), 1), dtype=bool), np.logical_or.reduce(changes)]))
    groups = np.stack([column[order][first] for column in columns], axis=1)
    row = np.empty(len(order), dtype=np.int64)
    row[order] = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(order))))
    by_rank = RowsBy(kept["rank"])
    steps_count = [len(by_rank.rows(rank)) for rank in groups[:, 0].tolist()]
    return Table(
        STALLS_COUNTED,
        {
            "rank": groups[:, 0],
            "kind": _names(groups[:, 1]),
            "method": np.array(list(METHODS))[groups[:, 2]],
            "cause_rank": groups[:, 3],
            "steps_count": int64(steps_count),
            **{n: _summed(row, table[n], len(groups)) for n in ("stall_ns", "low_ns", "high_ns")},
        },
    )


def _step_keys(table: Table) -> Int64:
    """A number for each pair of rank and step."""
    return int64((table["rank"] << 32) + table["step"] + 1)


def _codes(kinds: npt.NDArray[np.str_]) -> Int64:
    # Comparing with each of few names is several times faster than sorting texts.
    return int64(np.select([kinds == kind.name.lower() for kind in _KINDS], [int(kind) for kind in _KINDS]))


def _summed(row: Int64, values: Int64, count: int) -> Int64:
    out = np.zeros(count, dtype=np.int64)
    np.add.at(out, row, values)
    return out


def _methods(row: Int64, method: npt.NDArray[np.str_], count: int) -> npt.NDArray[np.str_]:
    """Method of each sum; ``mixed`` where its parts have several."""
    out = np.full(count, "", dtype="U16")
    for name in np.unique(method).tolist():
        has = np.bincount(row[method == name], minlength=count) > 0
        out[has] = np.where(out[has] == "", name, "mixed")
    return out


def _heaviest(row: Int64, cause: Int64, weight: Int64, count: int) -> Int64:
    """Cause with the most weight of each row, -1 if there is none."""
    out = np.full(count, -1, dtype=np.int64)
    known = cause >= 0
    if not known.any():
        return out
    width = int(cause.max()) + 1
    key, inverse = np.unique(row[known] * width + cause[known], return_inverse=True)
    total = np.zeros(len(key), dtype=np.int64)
    np.add.at(total, inverse, weight[known])
    order = np.lexsort((-key, total))
    out[key[order] // width] = key[order] % width
    return out
