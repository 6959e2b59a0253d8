"""stalls: every nanosecond of each step of each rank goes to exactly one kind. The heart of the product.

    layers of a rank, in order of priority        |-- straggler --|   |- fetch -|      |---- compute ----|
    painted: first layer that covers an instant   [...............][.][.........][..........................]
    cut by the windows of the steps and summed     step 0                    | step 1        | ...

What the layers of a rank are is the business of its methods (``methods.METHODS``).
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from stashtrace.model.schemas import (
    STALL_INTERVALS,
    STALL_TOTALS,
    STALL_TOTALS_BY_STEP_KIND,
    STALLS,
    STALLS_COUNTED,
    STRAGGLER_CAUSES,
)
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace

#: Step number of the time outside steps.
OUTSIDE_STEPS = -1
_KINDS = tuple(StallKind)
_ALWAYS = (StallKind.COMPUTE, StallKind.OTHER)


def stalls(trace: Trace, *, by: Literal["step", "rank", "step_kind", "run"] = "step", warmup: bool = False) -> Table:
    """Attribute every nanosecond of each step of each rank to one kind.

    Overlapping causes are resolved by the order of ``docs/concepts/stalls.md``; what could not be observed is an
    interval (``low_ns``, ``high_ns``), never a guess. The kinds of a step sum to its wall time, exactly. A kind that
    did not occur has no row, except ``compute`` and ``other``.

    Parameters
    ----------
    trace : Trace
        Needs steps; uses kernels, brackets or host spans, whichever each rank has.
    by : {"step", "rank", "step_kind", "run"}
        ``step``: one row per rank, step and kind, and step -1 for the time outside steps. ``rank``, ``run``: sums over
        the steps, without the time outside them and the steps that the event budget left out; of all ranks, ``rank`` is
        -1. These have the columns of ``stall_totals``: rank, kind, stall_ns, share_ratio, method, low_ns, high_ns,
        cause_rank, cause_share_ratio, steps_count. ``step_kind``: the sums of ``rank``, training,
        validation and other kinds of steps apart; column ``step_kind`` behind ``rank``, and shares of the steps of that
        kind.
    warmup : bool
        Whether the sums count the warm-up steps.

    Columns
    -------
    rank, step, kind, stall_ns, method, low_ns, high_ns, cause_rank, cause_share_ratio

    ``cause_rank`` is the rank that a ``straggler`` row waited for longest and ``cause_share_ratio`` the part of its
    ``stall_ns`` that it did; both are -1 in rows of other kinds and where nobody is known to have been late.
    ``straggler_causes`` has all of them.

    Raises
    ------
    MissingDataError
        If no rank has steps; the message names the collector or probe to turn on.
    """
    if by not in ("step", "rank", "step_kind", "run"):
        raise UsageError(f"stalls by {by!r} is not known", hint="use step, rank, step_kind or run")
    index = TraceIndex(trace)
    return _per_step(index) if by == "step" else stall_totals(_counted(index, warmup), by)


def straggler_causes(trace: Trace) -> Table:
    """Divide the straggler time of each step of each rank among the ranks that it waited for.

    The rows of a rank and step sum to its ``straggler`` row of :func:`stalls`, exactly: ``stall_ns``, ``low_ns`` and
    ``high_ns``. What waited for nobody who is known, and what may have been a wait although the budget gives it to
    another kind, has ``cause_rank`` -1.

    Parameters
    ----------
    trace : Trace
        Needs steps.

    Columns
    -------
    rank, step, cause_rank, stall_ns, low_ns, high_ns

    Raises
    ------
    MissingDataError
        If no rank has steps.
    """
    parts = _per_step(TraceIndex(trace), apart=True)
    parts = parts.take(parts["kind"] == StallKind.STRAGGLER.name.lower())
    return Table(STRAGGLER_CAUSES, {name: parts[name] for name in STRAGGLER_CAUSES.names})


def bounds_of_groups(
    trace: Trace, steps: Table, groups: Mapping[str, Sequence[str]]
) -> dict[int, dict[str, tuple[int, int]]]:
    """Bounds of sums of kinds over some steps, by rank and name of the sum.

    Tighter than the sums of the kinds' own bounds: a doubt whether an instant was fetch or prep is none about both.

    Parameters
    ----------
    trace : Trace
        Needs steps.
    steps : Table
        Rows of ``steps``.
    groups : mapping of str to sequence of str
        Name -> stall kinds in lower case.

    Returns
    -------
    dict
        Rank -> name -> not less and not more than so many ns.
    """
    members = {name: {StallKind[kind.upper()] for kind in kinds} for name, kinds in groups.items()}
    index = TraceIndex(trace)
    found: dict[int, dict[str, tuple[int, int]]] = {}
    for thread, own in ranks_and_steps(index.origin, steps):
        layers = [*rank_layers(index, thread).layers, Layer(StallKind.OTHER, TimeSet.empty())]
        own = own.take(own["end_ns"] > own["begin_ns"]).sort_by("begin_ns")
        matrix = intervals.attribute([(x.time.begin, x.time.end) for x in layers[:-1]], own["begin_ns"], own["end_ns"])
        spent = matrix.sum(axis=0).tolist()
        of_rank = found[thread.rank] = {}
        for name, kinds in members.items():
            may = [{layer.kind, *layer.doubts} for layer in layers]
            low = sum(ns for ns, possible in zip(spent, may, strict=True) if possible <= kinds)
            high = sum(ns for ns, possible in zip(spent, may, strict=True) if possible & kinds)
            of_rank[name] = low, high
    return found


def _per_step(index: TraceIndex, *, apart: bool = False) -> Table:
    ranks = ranks_and_steps(index.origin, index.steps)
    return Table.concat(
        STALLS, [rank_table(rank_layers(index, thread), thread, own, apart=apart) for thread, own in ranks]
    )


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


def rank_table(made: RankLayers, thread: StepThread, steps: Table, *, apart: bool = False) -> Table:
    """Rows of ``stalls`` of one rank by given layers; ``apart``: a straggler row for each rank that was waited for."""
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
    waited = StallKind.STRAGGLER
    causes = _causes(made, windows, int64(row), point[:, waited], low[:, waited], high[:, waited])
    if apart:
        wanted[:, waited] = False
    at, kind = np.nonzero(wanted)
    columns: dict[str, npt.NDArray[Any]] = {
        "step": values[at],
        "kind": _names(kind),
        "stall_ns": point[at, kind],
        "method": method[at],
        "low_ns": low[at, kind],
        "high_ns": high[at, kind],
        "cause_rank": np.full(len(at), -1),
        "cause_share_ratio": np.full(len(at), -1.0),
    }
    if apart:
        of = causes["row"]
        parts = {
            "step": values[of],
            "kind": np.full(len(of), waited.name.lower()),
            "method": method[of],
            "cause_share_ratio": np.where(causes["cause_rank"] >= 0, 1.0, -1.0),
            **{name: causes[name] for name in ("stall_ns", "low_ns", "high_ns", "cause_rank")},
        }
        columns = {name: np.concatenate([values, parts[name]]) for name, values in columns.items()}
    else:
        main, stall = _heaviest(causes["row"], causes["cause_rank"], causes["stall_ns"], len(values))
        named = (kind == waited) & (main[at] >= 0)
        columns["cause_rank"][named] = main[at[named]]
        columns["cause_share_ratio"][named] = stall[at[named]] / point[at[named], waited]
    return Table(STALLS, {"rank": np.full(len(columns["step"]), thread.rank), **columns})


def _causes(
    made: RankLayers, windows: TimeSet, row: Int64, stall_ns: Int64, low_ns: Int64, high_ns: Int64
) -> dict[str, Int64]:
    """Straggler time of each row by the rank that it waited for; with -1, what waits for nobody known, all sums agree.

    What may be a wait although another kind has it belongs to nobody: it can only be in the bound of -1.
    """
    parts: list[tuple[Int64, Int64, Int64, bool]] = [(int64([]), int64([]), int64([]), True)]
    last = max((n for n, layer in enumerate(made.layers) if layer.kind == StallKind.STRAGGLER), default=-1)
    taken = TimeSet.empty()
    for layer in made.layers[: last + 1]:
        if layer.kind == StallKind.STRAGGLER:
            exposed = layer.time - taken
            begin, end, who = exposed.pieces(made.late.begin, made.late.end)
            cut = intervals.join(begin, end, windows.begin, windows.end)
            parts.append((row[cut[3]], made.late.tag[who[cut[2]]], cut[1] - cut[0], not layer.doubts))
        taken = taken | layer.time
    at, cause, length = (int64(np.concatenate([part[n] for part in parts])) for n in range(3))
    sure = np.concatenate([np.full(len(part[0]), part[3]) for part in parts])
    known = cause >= 0
    at, cause, length, sure = at[known], cause[known], length[known], sure[known]
    width = int(cause.max(initial=0)) + 1
    key, inverse = np.unique(at * width + cause, return_inverse=True)
    stall = _summed(inverse, length, len(key))
    least = _summed(inverse, np.where(sure, length, 0), len(key))
    of = key // width
    left = stall_ns - _summed(of, stall, len(stall_ns))
    left_low = low_ns - _summed(of, least, len(stall_ns))
    left_high = high_ns - _summed(of, stall, len(stall_ns))
    nobody = np.flatnonzero(left_high > 0)
    found = {
        "row": np.concatenate([of, nobody]),
        "cause_rank": np.concatenate([key % width, np.full(len(nobody), -1)]),
        "stall_ns": np.concatenate([stall, left[nobody]]),
        "low_ns": np.concatenate([least, left_low[nobody]]),
        "high_ns": np.concatenate([stall, left_high[nobody]]),
    }
    order = np.lexsort((found["cause_rank"], found["row"]))
    return {name: int64(values[order]) for name, values in found.items()}


def stalls_counted(trace: Trace, *, warmup: bool = False) -> Table:
    """Sums of :func:`stalls` over the counted steps of each rank, by kind of step, method and cause: parts of totals.

    Columns
    -------
    rank, step_kind, kind, stall_ns, method, low_ns, high_ns, cause_rank, steps_count
    """
    return _counted(TraceIndex(trace), warmup)


def stall_totals(counted: Table, by: str) -> Table:
    """``stalls`` by rank, step kind or run from what ``stalls_counted`` gives of all ranks."""
    apart = by == "step_kind"
    step_kinds, step_kind = np.unique(counted["step_kind"], return_inverse=True)
    width = max(len(step_kinds), 1)
    steps_of, at = np.unique(counted["rank"] * width + step_kind, return_index=True)
    steps_count = counted["steps_count"][at]
    rank = np.full(len(counted), -1, dtype=np.int64) if by == "run" else counted["rank"]
    whose = rank * width + (step_kind if apart else 0)
    key, inverse = np.unique(whose * 64 + _codes(counted["kind"]), return_inverse=True)
    sums = {n: _summed(inverse, counted[n], len(key)) for n in ("stall_ns", "low_ns", "high_ns")}
    owners, position = np.unique(key // 64, return_inverse=True)
    wall = _summed(position, sums["stall_ns"], len(owners))[position]
    owner_of = np.full(len(steps_of), -1) if by == "run" else steps_of // width
    counts = _summed(
        np.searchsorted(owners, owner_of * width + (steps_of % width if apart else 0)), steps_count, len(owners)
    )
    cause, of_cause = _heaviest(inverse, counted["cause_rank"], counted["stall_ns"], len(key))
    columns = {
        "rank": key // 64 // width,
        "kind": _names(key % 64),
        "stall_ns": sums["stall_ns"],
        "share_ratio": sums["stall_ns"] / np.maximum(wall, 1),
        "method": _methods(inverse, counted["method"], len(key)),
        "low_ns": sums["low_ns"],
        "high_ns": sums["high_ns"],
        "cause_rank": cause,
        "cause_share_ratio": np.where(cause >= 0, of_cause / np.maximum(sums["stall_ns"], 1), -1.0),
        "steps_count": counts[position],
    }
    if not apart:
        return Table(STALL_TOTALS, columns)
    return Table(STALL_TOTALS_BY_STEP_KIND, {**columns, "step_kind": step_kinds[key // 64 % width]})


def _counted(index: TraceIndex, warmup: bool) -> Table:
    table, kept = _per_step(index, apart=True), counted_steps(index.steps, warmup=warmup)
    order = np.argsort(_step_keys(kept))
    keys, kind_names = _step_keys(kept)[order], kept["kind"][order]
    step_kinds, kind_of_step = np.unique(kind_names, return_inverse=True)
    place = np.minimum(np.searchsorted(keys, _step_keys(table)), max(len(keys) - 1, 0))
    counted = keys[place] == _step_keys(table) if len(keys) else np.zeros(len(table), dtype=bool)
    table, place = table.take(counted), place[counted]
    method = int64(np.select([table["method"] == name for name in METHODS], range(len(METHODS))))
    step_kind = int64(kind_of_step[place])
    columns = [table["rank"], step_kind, _codes(table["kind"]), method, table["cause_rank"]]
    order = np.lexsort(columns[::-1])
    changes = [column[order][1:] != column[order][:-1] for column in columns]
    first = np.flatnonzero(np.concatenate([np.ones(min(len(order), 1), dtype=bool), np.logical_or.reduce(changes)]))
    groups = np.stack([column[order][first] for column in columns], axis=1)
    row = np.empty(len(order), dtype=np.int64)
    row[order] = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(order))))
    width = max(len(step_kinds), 1)
    by_owner = RowsBy(int64((keys >> 32) * width + kind_of_step))
    steps_count = [len(by_owner.rows(rank * width + kind)) for rank, kind in groups[:, :2].tolist()]
    return Table(
        STALLS_COUNTED,
        {
            "rank": groups[:, 0],
            "step_kind": step_kinds[groups[:, 1]] if len(groups) else np.empty(0, dtype="U16"),
            "kind": _names(groups[:, 2]),
            "method": np.array(list(METHODS))[groups[:, 3]],
            "cause_rank": groups[:, 4],
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


def _heaviest(row: Int64, cause: Int64, weight: Int64, count: int) -> tuple[Int64, Int64]:
    """Cause with the most weight of each row, of equals the lowest, and that weight; -1 and 0 if there is none."""
    out, most = np.full(count, -1, dtype=np.int64), np.zeros(count, dtype=np.int64)
    known = cause >= 0
    if not known.any():
        return out, most
    width = int(cause.max()) + 1
    key, inverse = np.unique(row[known] * width + cause[known], return_inverse=True)
    total = np.zeros(len(key), dtype=np.int64)
    np.add.at(total, inverse, weight[known])
    order = np.lexsort((-key, total))  # the heaviest comes last
    out[key[order] // width] = key[order] % width
    most[key[order] // width] = total[order]
    return out, most
