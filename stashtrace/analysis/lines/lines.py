"""lines: which function and line of the user's code each kind of a rank's time was spent in.

    kind `other` of rank 1     [ sleep, called by hook ][ the rest, of which 3 of 8 samples are in parse ]
    hook                        exactly
    parse                                                3/8 of it, within the interval that 3 of 8 samples leave

``user_frames`` finds the line of a stack, ``place_times`` what each thread's calls and samples say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Bools, Floats, Int64, int64
from stashtrace.analysis.lines.place_times import STEP, WHERES, WORKER, PlaceTimes, is_of_others, place_times
from stashtrace.analysis.lines.user_frames import place_of
from stashtrace.calibration.noise import wilson
from stashtrace.errors import UsageError
from stashtrace.schema import columns as col
from stashtrace.schema.columns import RANK_OR_ALL, Column, schema
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.stall_kinds import kinds_of_word
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace, cached_on_trace

LINES = schema(
    "lines",
    "Lines of the user's code in which each kind of time was spent; the lines of a rank and kind sum to it",
    RANK_OR_ALL,
    col.word("where", "step, worker (making batches for counted steps) or start (before the first counted step)"),
    col.word("step_kind", "steps.kind; empty unless where is step", detail=4),
    col.word("kind", "StallKind in lower case: at that time, of a worker whether it was blocked in storage"),
    col.text("function_code", "qualified name of the innermost function of the user; empty if it is unknown"),
    Column("path_code", "i8", "", "its file", role="path"),
    col.number("line", "where it was, -1 if unknown", missing=-1),
    col.text("leaf_code", "call of a library in which most of this time was; empty if it was the line itself"),
    col.text(
        "waiting_function_code", "function that waited for another thread, which was in the line; empty if none did"
    ),
    Column("waiting_path_code", "i8", "", "its file", role="path"),
    col.number("waiting_line", "where it waited, -1 if it did not", missing=-1),
    col.ns("time_ns", "mean of a counted step; of a worker, of a batch; of the start, all of it"),
    col.ns("low_ns", "not less than this, with 95 % confidence"),
    col.ns("high_ns", "not more than this"),
    col.number("samples_count", "samples that say so, beyond the long calls", detail=3),
    col.real("exact_ratio", "part of time_ns in calls whose begin and end were recorded", detail=2),
)


@dataclass(frozen=True, slots=True)
class CostlyLine:
    """A line of the user's code in which a kind of time was spent."""

    function: str
    path: str
    line: int
    #: Call of a library in which most of it was; empty if it was the line itself.
    leaf: str
    #: Kind of time that most of it was.
    kind: str
    time_ns: int
    low_ns: int
    high_ns: int
    #: Not less than this part of the time of this rank and kind.
    share_low: float
    #: Part of the time in calls whose begin and end were recorded.
    exact: float

    @property
    def place(self) -> str:
        """The words for it, as ``hook (late.py:14)``."""
        return place_of(self.function, self.path, self.line)

    @property
    def place_and_leaf(self) -> str:
        """The words for it and for the call of a library, as ``hook (late.py:14, in PIL resize)``."""
        return place_of(self.function, self.path, self.line, self.leaf)


def lines(trace: Trace, *, by: Literal["rank", "run"] = "rank") -> Table:
    """List the lines of the user's code in which each kind of time was spent, the most costly first.

    The innermost function of the user counts: what it calls in torch, other packages, Python's own library or this
    recorder is its time. Calls of a millisecond and more that wait, move files or collect garbage are known exactly;
    the rest of a kind is divided as the samples taken in it are. Its bounds follow from the number of samples
    (Wilson's interval of the share). Time without a sample has an empty function. A wait for a lock or for the GIL is
    spent in the line of the thread that holds it, as far as that is known; the line that waits stands with it. Rows of
    steps come first, then those of workers, then those of the start. Columns: table ``lines`` of
    ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Without Python functions there are no rows.
    by : {"rank", "run"}
        Each rank for itself, or all together (``rank`` is -1): means of the steps of all ranks.

    Raises
    ------
    MissingDataError
        If no rank has steps.
    UsageError
        If ``by`` is something else.
    """
    if by not in ("rank", "run"):
        raise UsageError(f"lines by {by!r} is not known", hint="use rank or run")
    if place_times(trace) is None:
        return Table.empty(LINES)
    found = _of_ranks(trace) if by == "rank" else _of_all(trace)
    table = Table(LINES, {name: found[name] for name in LINES.names})
    return table.take(order_by(found["where_number"], -found["time_ns"], found["line_number"] < 0, found["rank"]))


def costliest_lines(trace: Trace, rank: int, kind: str, count: int, *, step_kind: str = "") -> list[CostlyLine]:
    """Return the lines in which a rank spent most of a kind of time in its counted steps, as means of a step.

    Parameters
    ----------
    trace : Trace
        Without Python functions the list is empty.
    rank : int
        Global rank.
    kind : str
        A stall kind in lower case, or a column of the summary: the sum of its kinds.
    count : int
        No more lines than this. Time whose function is unknown has none.
    step_kind : str
        ``steps.kind``; by default the kind of step that took most of the rank's time.

    Raises
    ------
    MissingDataError
        If no rank has steps.
    """
    return _costliest(trace, rank, STEP, kind, count, step_kind)


def costliest_worker_lines(trace: Trace, rank: int, kind: str, count: int) -> list[CostlyLine]:
    """Return the lines in which the workers of a rank spent most of a kind of time, as means of a batch.

    Parameters and errors as of :func:`costliest_lines`; ``kind`` is prep, fetch or data.
    """
    return _costliest(trace, rank, WORKER, kind, count, "")


def costliest_of_all(trace: Trace) -> tuple[str, CostlyLine] | None:
    """Return the line in which the ranks together spent most of a step, as means of it; None if none is known.

    Waits for what others do are left out. Where ranks wait for batches for longer than any line of a step takes, it is
    the line of their workers, as means of a batch. The first of the pair says which, as ``lines.where`` does. Shares
    are of the time that is compared. Raises MissingDataError if no rank has steps.
    """
    times = place_times(trace)
    if times is None:
        return None
    found = _of_all(trace)
    in_steps = _of_longest_steps(found)
    of_others = is_of_others(times, found["rank"], found["kind_number"])
    choices = {STEP: in_steps & ~of_others, WORKER: found["where"] == WORKER}
    best = {where: _summed(trace, _chosen(found, rows), 1) for where, rows in choices.items()}
    for_batches = in_steps & of_others & np.isin(found["kind"], kinds_of_word("data"))
    waited_ns = int(found["time_ns"][for_batches].sum())
    of_workers = best[WORKER] and waited_ns > max((line.time_ns for line in best[STEP]), default=0)
    where = WORKER if of_workers else STEP
    return next(((where, line) for line in best[where]), None)


def costliest_rows(trace: Trace, where: str, count: int) -> list[tuple[CostlyLine, int]]:
    """Return the costliest pairs of line and kind of time of all ranks together, each with the time of all lines.

    ``where``: ``step`` (the kind of step that takes most of the time) or ``worker``. Empty without Python functions.
    Raises MissingDataError if no rank has steps.
    """
    if place_times(trace) is None:
        return []
    found = _of_all(trace)
    rows = _of_longest_steps(found) if where == STEP else found["where"] == where
    whole_ns = int(found["time_ns"][rows].sum())
    lines_of = [_summed(trace, _chosen(found, rows & (found["kind"] == kind)), count) for kind in set(found["kind"])]
    best = sorted((line for some in lines_of for line in some), key=lambda line: (-line.time_ns, line.place, line.kind))
    return [(line, whole_ns) for line in best[:count]]


def line_that_differs(
    trace: Trace, rank: int, function_code: int, path_code: int, *, where: str = STEP
) -> CostlyLine | None:
    """Return the line of a function in which a rank is furthest beyond the median of the others; None if none is known.

    A function may be all of the loop, and longer by one of its lines. Waits for what others do are left out. ``where``:
    whose time it is.
    """
    times = place_times(trace)
    if times is None:
        return None
    found = _of_ranks(trace)
    chosen = found["where"] == where
    if where == STEP:
        chosen &= ~is_of_others(times, found["rank"], found["kind_number"])
    ranks = GroupBy(found["rank"][chosen]).values
    in_function = chosen & (found["function_code"] == function_code) & (found["path_code"] == path_code)
    if rank not in ranks or not in_function.any():
        return None
    lines_of, column = GroupBy(found["line_number"][in_function]), np.searchsorted(ranks, found["rank"][in_function])
    spent = GroupBy.cells((lines_of.number, column), (len(lines_of), len(ranks))).sum(found["time_ns"][in_function])
    others = np.median(spent[:, ranks != rank], axis=1) if len(ranks) > 1 else np.zeros(len(lines_of))
    line = lines_of.values[(spent[:, ranks == rank][:, 0] - others).argmax()]
    of_line = in_function & (found["rank"] == rank) & (found["line_number"] == line)
    return next(iter(_summed(trace, _chosen(found, of_line), 1)), None)


def _costliest(trace: Trace, rank: int, where: str, kind: str, count: int, step_kind: str) -> list[CostlyLine]:
    if place_times(trace) is None:
        return []
    found = _of_ranks(trace)
    mine = (found["rank"] == rank) & (found["where"] == where) & np.isin(found["kind"], kinds_of_word(kind))
    if where == STEP:
        of_rank = (found["rank"] == rank) & (found["where"] == where)
        mine &= found["step_kind"] == (step_kind or _longest(found, of_rank))
    return _summed(trace, _chosen(found, mine), count)


def _summed(trace: Trace, found: dict[str, npt.NDArray[Any]], count: int) -> list[CostlyLine]:
    """Return the lines of some rows, over their kinds, the most costly first."""
    if not len(found["rank"]):
        return []
    whole_ns = max(int(found["kind_ns"][GroupBy(found["kind"]).first].sum()), 1)
    at = GroupBy(found["line_number"])
    time_ns, low_ns, high_ns = (at.sum(found[name]) for name in ("time_ns", "low_ns", "high_ns"))
    exact_ns, row = at.sum(found["exact_ratio"] * found["time_ns"]), at.argmax(found["time_ns"])
    order = order_by(-time_ns, at.values)
    return [
        CostlyLine(
            trace.text(found["function_code"][row[one]]),
            trace.text(found["path_code"][row[one]]),
            int(found["line"][row[one]]),
            trace.text(found["leaf_code"][row[one]]),
            str(found["kind"][row[one]]),
            time_ns=int(time_ns[one]),
            low_ns=int(low_ns[one]),
            high_ns=int(high_ns[one]),
            share_low=int(low_ns[one]) / whole_ns,
            exact=float(exact_ns[one]) / int(time_ns[one]),
        )
        for one in order[(at.values[order] >= 0) & (time_ns[order] > 0)][:count].tolist()
    ]


def _longest(found: dict[str, npt.NDArray[Any]], own: Bools) -> str:
    """Return the kind of step that took most of the time of some rows."""
    step_kinds = GroupBy(found["step_kind"][own])
    total = step_kinds.sum((found["time_ns"] * found["windows_count"])[own])
    return str(step_kinds.values[total.argmax()]) if len(step_kinds) else ""


def _of_longest_steps(found: dict[str, npt.NDArray[Any]]) -> Bools:
    """Return a mask of the rows of the kind of step that took most of the time."""
    in_steps = found["where"] == STEP
    return np.asarray(in_steps & (found["step_kind"] == _longest(found, in_steps)))


def _chosen(found: dict[str, npt.NDArray[Any]], rows: Bools) -> dict[str, npt.NDArray[Any]]:
    return {name: column[rows] for name, column in found.items()}


@cached_on_trace
def _of_all(trace: Trace) -> dict[str, npt.NDArray[Any]]:
    times = place_times(trace)
    assert times is not None
    return divide(times, np.full(len(times.rank), -1))


@cached_on_trace
def _of_ranks(trace: Trace) -> dict[str, npt.NDArray[Any]]:
    times = place_times(trace)
    assert times is not None
    return divide(times, times.rank)


def divide(times: PlaceTimes, rank: Int64) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of ``lines`` and what they were made of.

    ``rank``: of each amount: its own, or -1 for all ranks together.
    """
    kinds = GroupBy(rank, times.where, times.step_kind, times.kind)
    whole_ns, unseen_ns = kinds.sum(times.whole_ns), kinds.sum(times.unseen_ns)
    rest_ns, samples = whole_ns - kinds.sum(times.exact_ns) - unseen_ns, kinds.sum(times.samples_count)
    line_numbers = np.append(times.places.line_number, -1)
    rows = GroupBy(kinds.number, line_numbers[times.place], line_numbers[times.waiting_place])
    kind, line, _ = rows.keys
    exact_ns, count = rows.sum(times.exact_ns), rows.sum(times.samples_count)
    # Each kind has a row without a line; without a sample, it has all the rest.
    weight = np.where((samples[kind] == 0) & (line < 0), 1, count)
    total_ns = exact_ns + _in_proportion(kind, rest_ns[kind], weight) + np.where(line < 0, unseen_ns[kind], 0)
    share_low, share_high = wilson(count, samples[kind])
    low, high = exact_ns + rest_ns[kind] * share_low, exact_ns + unseen_ns[kind] + rest_ns[kind] * share_high
    windows = _windows_count(times, kinds)[kind]
    time_ns = _means(kind, total_ns, windows)
    place, leaf_code = _heaviest_leaf(times, rows, (rest_ns / np.maximum(samples, 1))[kinds.number])
    waiting = times.waiting_place[rows.first]
    number, where, step_kind, stall = (key[kind] for key in kinds.keys)
    columns: dict[str, npt.NDArray[Any]] = {
        "rank": number,
        "where": np.array(WHERES)[where],
        "where_number": where,
        "step_kind": np.array(times.step_kinds)[step_kind],
        "kind": np.array(["", *(one.name.lower() for one in StallKind)])[stall],
        "kind_number": stall,
        "line_number": line,
        "function_code": np.append(times.places.function_code, 0)[place],
        "path_code": np.append(times.places.path_code, 0)[place],
        "line": np.append(times.places.line, -1)[place],
        "leaf_code": leaf_code,
        "waiting_function_code": np.append(times.places.function_code, 0)[waiting],
        "waiting_path_code": np.append(times.places.path_code, 0)[waiting],
        "waiting_line": np.append(times.places.line, -1)[waiting],
        "time_ns": time_ns,
        "low_ns": np.minimum(int64(low // windows), time_ns),
        "high_ns": np.maximum(int64(np.ceil(high / windows)), time_ns),
        "samples_count": count,
        "exact_ratio": exact_ns / np.maximum(total_ns, 1),
        "kind_ns": whole_ns[kind] // windows,
        "windows_count": windows,
    }
    return {name: column[total_ns > 0] for name, column in columns.items()}


def _windows_count(times: PlaceTimes, kinds: GroupBy) -> Int64:
    """Return how many steps, batches or starts each kind of time is a mean of."""
    rank, where, step_kind, _ = kinds.keys
    of = times.window_rank if rank.max(initial=-1) >= 0 else np.full(len(times.window_rank), -1)
    windows = GroupBy(of, times.window_where, times.window_step_kind)
    return windows.sizes[windows.find(rank, where, step_kind)]


def _heaviest_leaf(times: PlaceTimes, rows: GroupBy, of_sample_ns: Floats) -> tuple[Int64, Int64]:
    """Return for each row a place, and the call of a library in which most of its time was."""
    leaf = np.append(times.places.leaf_code, 0)[times.place]
    leaves = GroupBy(rows.number, leaf)
    weight = leaves.sum(times.exact_ns + times.samples_count * of_sample_ns)
    best = GroupBy(leaves.keys[0]).argmax(weight)
    return times.place[rows.first], leaves.keys[1][best]


def _in_proportion(group: Int64, amount: Int64, weight: Int64) -> Int64:
    """Divide the amount of each group among its rows, to the last nanosecond; rows are sorted by group."""
    groups = GroupBy.runs(group)
    before, total = groups.sum_before(weight), groups.sum(weight)[groups.number]
    begin, end = (np.floor(amount * (part / total)) for part in (before, before + weight))
    return int64(end - begin)


def _means(group: Int64, amount: Int64, count: Int64) -> Int64:
    """Divide amounts by a count, so that those of a group still sum to their whole; rows are sorted by group."""
    before = GroupBy.runs(group).sum_before(amount)
    return int64((before + amount) // count - before // count)
