"""stalls: every nanosecond of each step of each rank goes to exactly one kind. The central analysis of the package.

    layers of a rank, in order of priority        |-- straggler --|   |- fetch -|      |---- compute ----|
    painted: first layer that covers an instant   [...............][.][.........][..........................]
    cut by the windows of the steps and summed     step 0                    | step 1        | ...

Each method of ``METHODS`` has its layers: ``device_layers`` or ``on_host``. What each kind means and which
one wins is in ``docs/concepts/stalls.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stashtrace._native import intervals
from stashtrace.analysis.intervals import Bools, Int64, TimeSet, int64
from stashtrace.analysis.stalls.device_layers import bracket_layers, kernel_layers
from stashtrace.analysis.stalls.device_links import only_within
from stashtrace.analysis.stalls.on_host import host_layers
from stashtrace.analysis.stalls.rows_by_thread import LabelledIntervals, Layer, RankLayers, TraceIndex, kept_per_thread
from stashtrace.analysis.steps.steps import counted_steps, in_steps, ranks_and_steps
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.errors import UsageError
from stashtrace.schema import columns as col
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import DeviceClock, DeviceWork, StallKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace, cached_on_trace

_CAUSE = (
    col.rank("cause_rank", "straggler: the rank that was waited for longest, -1 otherwise", missing=-1),
    col.real(
        "cause_share_ratio", "straggler: part of stall_ns that waited for cause_rank; -1 if that is -1", missing=-1
    ),
)
STALLS = col.schema(
    "stalls",
    "Where the time of each counted step of each rank went; with the warm-up also step -1, outside of steps",
    col.RANK,
    col.number("step", "ordinal; -1 for time outside steps", missing=-1),
    col.word("kind", "StallKind in lower case"),
    col.ns("stall_ns", "time of this kind; the kinds of a step sum to its wall time"),
    col.word("method", "kernels, brackets or host", detail=7),
    col.ns("low_ns", "not less than this"),
    col.ns("high_ns", "not more than this"),
    *_CAUSE,
)
STRAGGLER_CAUSES = col.schema(
    "straggler_causes",
    "Whom each counted step of each rank waited for; its rows sum to the straggler row of stalls, exactly",
    col.rank("rank", "global rank that waited"),
    col.number("step", "ordinal; -1 for time outside steps", missing=-1),
    col.rank("cause_rank", "rank that was waited for, -1 if unknown", missing=-1),
    col.ns("stall_ns", "straggler time that waited for it"),
    col.ns("low_ns", "not less than this"),
    col.ns("high_ns", "not more than this; of -1 with what other kinds have and may be a wait"),
)
STALLS_COUNTED = col.schema(
    "stalls_counted",
    "Sums of stalls over the counted steps of a rank, apart by kind of step, method and the rank waited for",
    col.RANK,
    col.word("step_kind", "steps.kind"),
    col.word("kind", "StallKind in lower case"),
    col.ns("stall_ns", "time of this kind"),
    col.word("method", "kernels, brackets or host", detail=7),
    col.ns("low_ns", "not less than this"),
    col.ns("high_ns", "not more than this"),
    col.rank("cause_rank", "straggler: the rank that this part waited for, -1 otherwise or if unknown", missing=-1),
    col.number("steps_count", "counted steps of the rank and kind of step"),
)
STALL_TOTALS = col.schema(
    "stall_totals",
    "Sums of stalls over the steps of a rank, or of all ranks (rank -1)",
    col.RANK_OR_ALL,
    col.word("kind", "StallKind in lower case"),
    col.ns("stall_ns", "time of this kind in all counted steps"),
    col.real("share_ratio", "of the wall time of these steps"),
    col.word("method", "kernels, brackets or host; mixed if not the same in all steps", detail=7),
    col.ns("low_ns", "not less than this"),
    col.ns("high_ns", "not more than this"),
    *_CAUSE,
    col.number("steps_count", "steps summed"),
)
STALL_TOTALS_BY_STEP_KIND = col.Schema(
    "stall_totals_by_step_kind",
    (STALL_TOTALS.columns[0], col.word("step_kind", "steps.kind"), *STALL_TOTALS.columns[1:]),
    "Sums of stalls over the steps of one kind (train, validation, ...) of a rank; shares are of these steps",
)
STALL_INTERVALS = col.schema(
    "stall_intervals",
    "The attribution as intervals on the timeline; those of a rank neither overlap nor leave gaps",
    col.RANK,
    col.number("step", "ordinal; -1 for time outside steps", missing=-1),
    col.word("kind", "StallKind in lower case"),
    *col.INTERVAL,
    col.refers("track_id", "tracks.track_id", "the step thread", detail=5),
    col.rank("cause_rank", "straggler: the rank that was late as the interval began, -1 otherwise", missing=-1),
)

#: Step number of the time outside steps.
OUTSIDE_STEPS = -1
_KINDS = tuple(StallKind)
_ALWAYS = (StallKind.COMPUTE, StallKind.OTHER)


def stalls(trace: Trace, *, by: Literal["step", "rank", "step_kind", "run"] = "step", warmup: bool = False) -> Table:
    """Attribute every nanosecond of each step of each rank to one kind.

    Overlapping causes are resolved by the order of ``docs/concepts/stalls.md``; what could not be observed is an
    interval (``low_ns``, ``high_ns``), never a guess. The kinds of a step sum to its wall time, exactly. A kind that
    did not occur has no row, except ``compute`` and ``other``. ``cause_rank`` is the rank that a ``straggler`` row
    waited for longest and ``cause_share_ratio`` the part of its ``stall_ns`` spent waiting for it; both are -1 in rows
    of other kinds and where no late rank is known. ``straggler_causes`` has all of them. Columns: table ``stalls`` of
    ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs steps; uses kernels, brackets or host spans, whichever each rank has.
    by : {"step", "rank", "step_kind", "run"}
        ``step``: one row per rank, counted step and kind; its sums are those of the summary. ``rank``, ``run``: sums
        over the counted steps, with the columns of ``stall_totals``; of all ranks, ``rank`` is -1. ``step_kind``: the
        sums of ``rank``, training, validation and other kinds of steps apart; column ``step_kind`` behind ``rank``, and
        shares of the steps of that kind.
    warmup : bool
        Whether the warm-up steps count. By step, all that was recorded then has rows: also steps that the event budget
        left without events, and step -1, the time outside of steps.

    Raises
    ------
    MissingDataError
        If no rank has steps; the message names the collector or probe to turn on.
    """
    if by not in ("step", "rank", "step_kind", "run"):
        raise UsageError(f"stalls by {by!r} is not known", hint="use step, rank, step_kind or run")
    if by == "step":
        return _take_counted_steps(trace, _budget(trace)[0], warmup)
    return stall_totals(stalls_counted(trace, warmup=warmup), by)


def straggler_causes(trace: Trace, *, warmup: bool = False) -> Table:
    """Divide the straggler time of each counted step of each rank among the ranks that it waited for.

    The rows of a rank and step sum to its ``straggler`` row of :func:`stalls`, exactly: ``stall_ns``, ``low_ns`` and
    ``high_ns``. ``cause_rank`` is -1 for time in which the awaited rank is unknown, and for time that may have been a
    wait although the budget gives it to another kind. Columns: table ``straggler_causes`` of
    ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs steps.
    warmup : bool
        Whether all that was recorded has rows, as in :func:`stalls`.

    Raises
    ------
    MissingDataError
        If no rank has steps.
    """
    return _take_counted_steps(trace, _budget(trace)[1], warmup)


def _take_counted_steps(trace: Trace, rows: Table, warmup: bool) -> Table:
    """Return the rows of the counted steps, the same ones as in the sums; with the warm-up, all rows."""
    return rows if warmup else rows.take(in_steps(rows, counted_steps(TraceIndex(trace).steps)))


def bounds_of_groups(
    trace: Trace, steps: Table, groups: Mapping[str, Sequence[str]]
) -> dict[int, dict[str, tuple[int, int]]]:
    """Return bounds of sums of kinds over some steps, by rank and name of the sum.

    Tighter than the sums of the kinds' bounds: an alternative between fetch and prep does not affect their sum.

    ``trace``: needs steps. ``steps``: rows of ``steps``. ``groups``: name -> stall kinds in lower case. Returns rank ->
    name -> (lower, upper) bound in ns.
    """
    members = {name: {StallKind[kind.upper()] for kind in kinds} for name, kinds in groups.items()}
    index = TraceIndex(trace)
    bounds: dict[int, dict[str, tuple[int, int]]] = {}
    for thread, rank_steps in ranks_and_steps(index.origin, steps):
        layers = [*rank_layers(index, thread).layers, Layer(StallKind.OTHER, TimeSet.empty())]
        rank_steps = rank_steps.take(rank_steps["end_ns"] > rank_steps["begin_ns"]).sort_by("begin_ns")
        matrix = intervals.attribute(
            [(x.time.begin, x.time.end) for x in layers[:-1]], rank_steps["begin_ns"], rank_steps["end_ns"]
        )
        spent = [
            (ns, {layer.kind, *layer.alternatives})
            for ns, layer in zip(matrix.sum(axis=0).tolist(), layers, strict=True)
            if ns
        ]
        of_rank = bounds[thread.rank] = {}
        for name, kinds in members.items():
            low = sum(ns for ns, possible in spent if possible <= kinds)
            high = sum(ns for ns, possible in spent if possible & kinds)
            of_rank[name] = low, high
    return bounds


@cached_on_trace
def _budget(trace: Trace) -> tuple[Table, Table]:
    """Return the tables ``stalls`` and ``straggler_causes``; most callers of one need the other as well."""
    divided = _divide_all(TraceIndex(trace))
    return Table(STALLS, divided.rows()), Table(STRAGGLER_CAUSES, divided.late())


def stall_intervals(trace: Trace) -> Table:
    """The same attribution as intervals: what each rank did when, for the timeline.

    Columns: table ``stall_intervals`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs steps.

    Raises
    ------
    MissingDataError
        If no rank has steps.
    """
    columns: dict[str, npt.NDArray[Any]] = dict(coded_intervals(trace))
    columns["kind"] = _names(columns["kind"])
    return Table(STALL_INTERVALS, columns)


def coded_intervals(trace: Trace) -> dict[str, Int64]:
    """Return the columns of :func:`stall_intervals`, by rank and begin, with kinds as numbers of :class:`StallKind`.

    A long run has millions of rows; texts of kinds would take more memory than all other columns. Same errors.
    """
    index = TraceIndex(trace)
    parts: dict[str, list[Int64]] = {name: [np.empty(0, dtype=np.int64)] for name in STALL_INTERVALS.names}
    for thread, steps in ranks_and_steps(trace, index.steps):
        made = rank_layers(index, thread)
        time = _merge_equal(made.painted_kinds())
        windows, numbers = step_windows(thread, steps)
        begin, end, row, window = intervals.join(time.begin, time.end, windows.begin, windows.end)
        kind, late = time.tag[row], intervals.locate(made.late.begin, made.late.end, begin)
        straggles = (kind == StallKind.STRAGGLER) & (late >= 0)
        columns = {
            "rank": np.full(len(row), thread.rank),
            "step": numbers[window],
            "kind": kind,
            "begin_ns": begin,
            "end_ns": end,
            "track_id": np.full(len(row), thread.track_id),
            "cause_rank": np.where(straggles, np.append(made.late.tag, -1)[late], -1),
        }
        for name, values in columns.items():
            parts[name].append(values)
    return {name: np.concatenate(parts.pop(name)) for name in STALL_INTERVALS.names}  # no row is held twice


def _names(kinds: Int64) -> npt.NDArray[np.str_]:
    texts = np.empty(max(_KINDS) + 1, dtype="U16")
    for kind in _KINDS:
        texts[kind] = kind.name.lower()
    return texts[kinds]


def _merge_equal(time: LabelledIntervals) -> LabelledIntervals:
    """Join neighbours of one kind (two layers may have the same kind)."""
    apart = np.append(0, np.cumsum(time.begin[1:] != time.end[:-1]))[: len(time.begin)]
    stretches = GroupBy.runs(apart, time.tag)
    return LabelledIntervals(time.begin[stretches.first], time.end[stretches.last], time.tag[stretches.first])


def step_windows(thread: StepThread, steps: Table) -> tuple[TimeSet, Int64]:
    """Return the steps and the time around them, sorted and disjoint, with their step numbers."""
    begin, end = steps["begin_ns"], steps["end_ns"]
    keep = end > begin
    begin, end, number = begin[keep], end[keep], steps["step"][keep]
    outside = TimeSet.of(begin, end).gaps(thread.begin_ns, thread.end_ns)
    begin, end = np.concatenate([begin, outside.begin]), np.concatenate([end, outside.end])
    number = np.concatenate([number, np.full(len(outside), OUTSIDE_STEPS)])
    order = np.argsort(begin, kind="stable")
    return TimeSet(int64(begin[order]), int64(end[order])), int64(number[order])


def rank_table(made: RankLayers, thread: StepThread, steps: Table) -> Table:
    """Return the rows of ``stalls`` of one rank by given layers."""
    return Table(STALLS, _Divided.of([_divide(made, thread, steps)]).rows())


def _divide_all(index: TraceIndex) -> _Divided:
    """Return the time of all ranks by step and kind."""
    ranks = ranks_and_steps(index.origin, index.steps)
    return _Divided.of([_divide(rank_layers(index, thread), thread, own) for thread, own in ranks])


@dataclass(frozen=True, slots=True)
class _RankDivided:
    """Time of one rank by step and kind; columns as those of :class:`_Divided`."""

    rank: int
    step: Int64
    point: Int64
    low: Int64
    high: Int64
    method: npt.NDArray[np.str_]
    #: Pieces of straggler time: row of the matrices, awaited rank, length, and whether it can be no other kind.
    waits: tuple[Int64, Int64, Int64, Int64]


@dataclass(frozen=True, slots=True)
class _Divided:
    """Time of ranks by step and kind."""

    #: Rank and number of each row of the matrices; :data:`OUTSIDE_STEPS` stands for all time around the steps.
    rank: Int64
    step: Int64
    #: Nanoseconds, a row for each step and a column for each number of a kind.
    point: Int64
    low: Int64
    high: Int64
    #: Of each step.
    method: npt.NDArray[np.str_]
    #: Columns of straggler time by the awaited rank; ``row`` is the row of the matrices.
    causes: dict[str, Int64]

    @classmethod
    def of(cls, ranks: Sequence[_RankDivided]) -> _Divided:
        """Join ranks; what each waited for is summed for all of them at once."""
        nothing = np.zeros((0, max(_KINDS) + 1), dtype=np.int64)
        counts = [len(one.step) for one in ranks]
        point, low, high = (
            np.concatenate([nothing, *(getattr(one, name) for one in ranks)]) for name in ("point", "low", "high")
        )
        before = np.cumsum([0, *counts]).tolist()
        row = [one.waits[0] + first for one, first in zip(ranks, before, strict=False)]
        cause, length, sure = (np.concatenate([int64([]), *(one.waits[n] for one in ranks)]) for n in (1, 2, 3))
        waits = np.concatenate([int64([]), *row]), cause, length, sure > 0
        waited = StallKind.STRAGGLER
        return cls(
            np.repeat(int64([one.rank for one in ranks]), counts),
            np.concatenate([int64([]), *(one.step for one in ranks)]),
            point,
            low,
            high,
            np.concatenate([np.empty(0, dtype="U16"), *(one.method for one in ranks)]),
            _causes(waits, point[:, waited], low[:, waited], high[:, waited]),
        )

    def rows(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of ``stalls``."""
        waited, causes = StallKind.STRAGGLER, self.causes
        columns, at, kind = self._kinds(self._wanted())
        main, stall = _heaviest(causes["row"], causes["cause_rank"], causes["stall_ns"], len(self.step))
        named = (kind == waited) & (main[at] >= 0)
        columns["cause_rank"][named] = main[at[named]]
        columns["cause_share_ratio"][named] = stall[at[named]] / self.point[at[named], waited]
        return columns

    def rows_apart(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of ``stalls`` with one straggler row for each awaited rank."""
        wanted = self._wanted()
        wanted[:, StallKind.STRAGGLER] = False
        columns, _, _ = self._kinds(wanted)
        late, of = self.late(), self.causes["row"]
        parts = {
            **late,
            "kind": np.full(len(of), StallKind.STRAGGLER.name.lower(), dtype="U16"),
            "method": self.method[of],
            "cause_share_ratio": np.where(late["cause_rank"] >= 0, 1.0, -1.0),
        }
        return {name: np.concatenate([values, parts[name]]) for name, values in columns.items()}

    def late(self) -> dict[str, Int64]:
        """Return the columns of ``straggler_causes``."""
        of = self.causes["row"]
        amounts = {name: self.causes[name] for name in ("cause_rank", "stall_ns", "low_ns", "high_ns")}
        return {"rank": self.rank[of], "step": self.step[of], **amounts}

    def _wanted(self) -> Bools:
        wanted = np.asarray(self.high > 0, dtype=np.bool_)
        wanted[:, list(_ALWAYS)] = True
        return wanted

    def _kinds(self, wanted: Bools) -> tuple[dict[str, npt.NDArray[Any]], Int64, Int64]:
        """Return the columns of the wanted kinds, and for each row its row in the matrices and its kind's number."""
        at, kind = np.nonzero(wanted)
        columns: dict[str, npt.NDArray[Any]] = {
            "rank": self.rank[at],
            "step": self.step[at],
            "kind": _names(kind),
            "stall_ns": self.point[at, kind],
            "method": self.method[at],
            "low_ns": self.low[at, kind],
            "high_ns": self.high[at, kind],
            "cause_rank": np.full(len(at), -1),
            "cause_share_ratio": np.full(len(at), -1.0),
        }
        return columns, at, kind


def _divide(made: RankLayers, thread: StepThread, steps: Table) -> _RankDivided:
    windows, numbers = step_windows(thread, steps)
    matrix = intervals.attribute([(x.time.begin, x.time.end) for x in made.layers], windows.begin, windows.end)
    by_step = GroupBy(numbers)  # the windows outside steps fall into one row
    point, low, high = (np.zeros((len(by_step), max(_KINDS) + 1), dtype=np.int64) for _ in range(3))
    rest = Layer(StallKind.OTHER, TimeSet.empty())
    spent = by_step.sum(matrix)
    for column, layer in enumerate([*made.layers, rest]):
        point[:, layer.kind] += spent[:, column]
        high[:, layer.kind] += spent[:, column]
        if not layer.alternatives:
            low[:, layer.kind] += spent[:, column]
        for alternative in layer.alternatives:
            high[:, alternative] += spent[:, column]
    method = made.method_at(windows.begin[by_step.first])
    waits = _waits_for_ranks(made, windows, by_step.number)
    return _RankDivided(thread.rank, by_step.values, point, low, high, method, waits)


def _waits_for_ranks(made: RankLayers, windows: TimeSet, row: Int64) -> tuple[Int64, Int64, Int64, Int64]:
    """Return pieces of straggler time: row of their window, awaited rank, length, and 1 if it can be no other kind."""
    parts: list[tuple[Int64, Int64, Int64, Int64]] = [(int64([]),) * 4]
    last = max((n for n, layer in enumerate(made.layers) if layer.kind == StallKind.STRAGGLER), default=-1)
    taken = TimeSet.empty()
    for layer in made.layers[: last + 1]:
        if layer.kind == StallKind.STRAGGLER:
            exposed = layer.time - taken
            begin, end, who = exposed.pieces(made.late.begin, made.late.end)
            cut = intervals.join(begin, end, windows.begin, windows.end)
            sure = np.full(len(cut[0]), int(not layer.alternatives))
            parts.append((row[cut[3]], made.late.tag[who[cut[2]]], cut[1] - cut[0], sure))
        taken = taken | layer.time
    at, cause, length, sure = (int64(np.concatenate(column)) for column in zip(*parts, strict=True))
    return at, cause, length, sure


def _causes(
    waits: tuple[Int64, Int64, Int64, Bools], stall_ns: Int64, low_ns: Int64, high_ns: Int64
) -> dict[str, Int64]:
    """Return the straggler time of each row by the awaited rank; with -1 for an unknown one, all sums agree.

    Time of another kind that may be a wait has no awaited rank: it only widens the bound of -1.

    ``waits``: pieces of this time; row, awaited rank, length, and whether it can be no other kind.
    """
    at, cause, length, sure = waits
    known = cause >= 0
    pairs = GroupBy(at[known], cause[known])
    of, waited_for = pairs.keys
    stall, least = pairs.sum(length[known]), pairs.sum(length[known], where=sure[known])
    by_row = GroupBy.numbered(of, len(stall_ns))
    named = by_row.sum(stall)
    left, left_low, left_high = stall_ns - named, low_ns - by_row.sum(least), high_ns - named
    nobody = np.flatnonzero(left_high > 0)
    columns = {
        "row": np.concatenate([of, nobody]),
        "cause_rank": np.concatenate([waited_for, np.full(len(nobody), -1)]),
        "stall_ns": np.concatenate([stall, left[nobody]]),
        "low_ns": np.concatenate([least, left_low[nobody]]),
        "high_ns": np.concatenate([stall, left_high[nobody]]),
    }
    order = order_by(columns["row"], columns["cause_rank"])
    return {name: int64(values[order]) for name, values in columns.items()}


def stall_totals(counted: Table, by: str) -> Table:
    """Return ``stalls`` by rank, step kind or run, from the rows of ``stalls_counted`` of all ranks."""
    apart = by == "step_kind"
    nothing = np.zeros(len(counted), dtype=np.int64)
    rank = nothing - 1 if by == "run" else counted["rank"]
    step_kinds = GroupBy(counted["step_kind"])
    step_kind = step_kinds.number if apart else nothing
    rows = GroupBy(rank, step_kind, _codes(counted["kind"]))
    stall, low, high = (rows.sum(counted[name]) for name in ("stall_ns", "low_ns", "high_ns"))
    owners = GroupBy(*rows.keys[:2])  # of the rows of one rank and kind of step
    wall = owners.sum(stall)[owners.number]
    once = GroupBy(counted["rank"], step_kinds.number).first  # each row of a rank and kind of step repeats its steps
    steps_of = GroupBy.numbered(owners.find(rank[once], step_kind[once]), len(owners))
    pairs = GroupBy(rows.number, counted["cause_rank"])
    cause, of_cause = _heaviest(pairs.keys[0], pairs.keys[1], pairs.sum(counted["stall_ns"]), len(rows))
    columns = {
        "rank": rows.keys[0],
        "kind": _names(rows.keys[2]),
        "stall_ns": stall,
        "share_ratio": stall / np.maximum(wall, 1),
        "method": _methods(rows, counted["method"]),
        "low_ns": low,
        "high_ns": high,
        "cause_rank": cause,
        "cause_share_ratio": np.where(cause >= 0, of_cause / np.maximum(stall, 1), -1.0),
        "steps_count": steps_of.sum(counted["steps_count"][once])[owners.number],
    }
    if not apart:
        return Table(STALL_TOTALS, columns)
    return Table(STALL_TOTALS_BY_STEP_KIND, {**columns, "step_kind": step_kinds.values[rows.keys[1]]})


def stalls_counted(trace: Trace, *, warmup: bool = False) -> Table:
    """Sum :func:`stalls` over the counted steps of each rank, by kind of step, method and cause: parts of totals.

    Columns: table ``stalls_counted`` of ``docs/reference/tables.md``.
    """
    index = TraceIndex(trace)
    table, kept = Table(STALLS, _divide_all(index).rows_apart()), counted_steps(index.steps, warmup=warmup)
    step = GroupBy(kept["rank"], kept["step"]).row_of(table["rank"], table["step"])
    table, step = table.take(step >= 0), step[step >= 0]
    step_kinds = GroupBy(kept["kind"])
    method = int64(np.select([table["method"] == name for name in METHODS], range(len(METHODS))))
    columns = (table["rank"], step_kinds.number[step], _codes(table["kind"]), method, table["cause_rank"])
    rows = GroupBy(*columns)
    rank, step_kind, kind, method, cause_rank = rows.keys
    owners = GroupBy(kept["rank"], step_kinds.number)
    return Table(
        STALLS_COUNTED,
        {
            "rank": rank,
            "step_kind": step_kinds.values[step_kind],
            "kind": _names(kind),
            "method": np.array(list(METHODS))[method],
            "cause_rank": cause_rank,
            "steps_count": owners.sizes[owners.find(rank, step_kind)],
            **{name: rows.sum(table[name]) for name in ("stall_ns", "low_ns", "high_ns")},
        },
    )


def _codes(kinds: npt.NDArray[np.str_]) -> Int64:
    # Comparing with each of the few names is several times faster than sorting texts.
    return int64(np.select([kinds == kind.name.lower() for kind in _KINDS], [int(kind) for kind in _KINDS]))


def _methods(sums: GroupBy, method: npt.NDArray[np.str_]) -> npt.NDArray[np.str_]:
    """Return the method of each sum; ``mixed`` where its parts have several."""
    out = np.full(len(sums), "", dtype="U16")
    for name in np.unique(method).tolist():
        has = sums.any(method == name)
        out[has] = np.where(out[has] == "", name, "mixed")
    return out


def _heaviest(row: Int64, cause: Int64, weight: Int64, count: int) -> tuple[Int64, Int64]:
    """Return the cause with the most weight in each row (of equals the first), and the weight; -1 and 0 if none."""
    heaviest = GroupBy.numbered(np.where(cause >= 0, row, -1), count).argmax(weight)
    return np.append(cause, -1)[heaviest], np.append(weight, 0)[heaviest]


# Which method divides which time of a rank, and the layers it makes. The interface of the budget to its methods.
#
#     outside the steps   |  step 0  step 1  | step 2  step 3 |  step 4 ...       a rank with a device
#     host                |  brackets        | kernels        |  brackets         deep mode on for steps 2 and 3
#
# A rank without timed step marks, and any rank outside its steps, is attributed by its host.

#: Method of a stretch of a rank's time -> the rank's layers by it, in order of priority.
METHODS: dict[str, Callable[[TraceIndex, StepThread], RankLayers]] = {
    "host": host_layers,
    "brackets": bracket_layers,
    "kernels": kernel_layers,
}
#: The first and the last step of a recorded window count if they hold this share of the kernels of those in between.
_WHOLE_STEP_RATIO = 0.9


def by_method(index: TraceIndex, thread: StepThread, method: str) -> RankLayers:
    """Return the layers of a rank's whole life by one method, without empty ones; made once per trace."""
    known: dict[tuple[str, StepThread], RankLayers] = index.of_threads
    key = (method, thread)
    if key not in known:
        made = METHODS[method](index, thread)
        # Of some forty layers a rank has a handful, and every reader goes through all.
        known[key] = replace(made, layers=[layer for layer in made.layers if len(layer.time)])
    return known[key]


@kept_per_thread
def device_windows(index: TraceIndex, thread: StepThread) -> dict[str, TimeSet]:
    """Return the steps that each of kernels and brackets can attribute, maybe both; empty for a rank without device."""
    if thread.rank not in index.ranks_on_device:
        return {}
    steps = index.steps_of(thread.rank)
    steps = steps.take(steps["clock_code"] != 0)
    windows = {}
    if (steps["clock_code"] == DeviceClock.EVENT).any():
        windows["brackets"] = TimeSet.of_rows(steps)
    kernels, rows = index.trace.kernels, index.kernels.rows(thread.process_id)
    rows = rows[kernels["work_code"][rows] != DeviceWork.SYNCHRONIZATION]
    if len(rows):
        begins = np.sort(kernels["begin_ns"][rows])
        counts = np.searchsorted(begins, steps["end_ns"]) - np.searchsorted(begins, steps["begin_ns"])
        with_kernels = np.flatnonzero(counts)
        if len(with_kernels):
            typical = float(np.median(counts[with_kernels]))
            # Without brackets, all steps with kernels count: the edges of an imported recording are not in doubt.
            least = _WHOLE_STEP_RATIO * typical if "brackets" in windows else 1
            whole = with_kernels[counts[with_kernels] >= least]
            windows["kernels"] = TimeSet.of_rows(steps, whole)
    return windows


def rank_layers(index: TraceIndex, thread: StepThread) -> RankLayers:
    """Return the layers of a rank by its methods; made once per trace."""
    if not device_windows(index, thread):
        return by_method(index, thread, "host")
    return _combine_methods(index, thread)


@kept_per_thread
def _combine_methods(index: TraceIndex, thread: StepThread) -> RankLayers:
    """Return each method's layers inside its windows; these are disjoint, so their order does not matter."""
    windows = device_windows(index, thread)
    left = TimeSet.of([thread.begin_ns], [thread.end_ns])
    layers: list[Layer] = []
    late: list[LabelledIntervals] = []
    segments: list[tuple[str, TimeSet]] = []
    marked: dict[str, TimeSet] = {}
    for method in ("kernels", "brackets", "host"):
        time = left & windows.get(method, TimeSet.empty()) if method != "host" else left
        left = left - time
        if not len(time):
            continue
        made = by_method(index, thread, method)
        layers += [Layer(x.kind, x.time & time, x.alternatives) for x in made.layers]
        late.append(only_within(made.late, time))
        segments.append((method, time))
        for name, marked_time in made.marked.items():
            marked[name] = marked.get(name, TimeSet.empty()) | (marked_time & time)
    begin, end, tag = (int64(np.concatenate(c)) for c in zip(*((x.begin, x.end, x.tag) for x in late), strict=True))
    order = np.argsort(begin, kind="stable")
    return RankLayers("host", layers, LabelledIntervals(begin[order], end[order], tag[order]), tuple(segments), marked)
