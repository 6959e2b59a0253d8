"""lines_between_ranks: functions that take longer on one rank than on the others, with what chance would make of it.

    rank 0   hook |    parse |===|     median of the others of rank 1: hook 0, parse 2
    rank 1   hook |=======|            so hook takes 20 ms longer there, known to 0.1 ms
    rank 2   hook |    parse |=|       and parse on rank 0 by 2 ms, known to 3 ms: nothing

The workers of each rank are compared with those of the others in the same way, by batch. Waits for other ranks, for
transfers and for batches that workers make are left out: others are slow then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Bools, Int64, int64
from stashtrace.analysis.lines.functions_of_run import (
    CHANCE,
    FunctionMeans,
    function_means,
    median_of_others,
    variance_from_others,
)
from stashtrace.analysis.lines.lines import CostlyLine, line_that_differs
from stashtrace.analysis.lines.place_times import STEP, WHERES, WORKER, PlaceTimes, is_of_others, place_times
from stashtrace.calibration.noise import errors_at
from stashtrace.schema import columns as col
from stashtrace.schema.columns import RANK, Column, schema
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace, cached_on_trace

LINES_BETWEEN_RANKS = schema(
    "lines_between_ranks",
    "Functions of the user by how much longer they take on a rank than on the others, waits for ranks left out",
    RANK,
    col.word("where", "step, or worker: its workers make batches for counted steps"),
    col.word("step_kind", "steps.kind; empty unless where is step"),
    col.text("function_code", "qualified name"),
    Column("path_code", "i8", "", "its file", role="path"),
    col.ns("time_ns", "mean of a counted step of this rank, or of a batch, as in lines"),
    col.ns("others_ns", "median of the other ranks"),
    col.ns("longer_ns", "the difference"),
    col.ns("low_ns", "it is not less than this, with 95 % confidence for all rows together"),
    col.ns("high_ns", "and not more than this"),
    col.number("samples_count", "samples of the rank in it, beyond the long calls"),
)
#: Whose times are compared, as places in WHERES.
_COMPARED = (WHERES.index(STEP), WHERES.index(WORKER))


@dataclass(frozen=True, slots=True)
class _Means:
    """Time of functions in steps of one kind, or in batches, by rank."""

    where: str
    step_kind: str
    ranks: Int64
    of_functions: FunctionMeans


@cached_on_trace
def lines_between_ranks(trace: Trace) -> Table:
    """Compare the time of each function of the user on each rank with the other ranks, surely longer ones first.

    Of step threads it is the time of a step, of workers that of a batch. A mean over steps is as uncertain as its steps
    vary, those that resemble their neighbours counting as fewer, and as one sample more or less; the median of the
    other ranks as these are. Bounds are as many such errors wide (by Student's distribution) that with equal ranks the
    chance is 5 % that a lower bound of any function of any rank is above 0: the allowed chance is divided by the number
    of functions times ranks compared (Bonferroni). Time whose function is unknown may be in any: it widens the bounds.
    Columns: table ``lines_between_ranks`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Without Python functions, or with one rank, there are no rows.

    Raises
    ------
    MissingDataError
        If no rank has steps.
    """
    times = place_times(trace)
    if times is None:
        return Table.empty(LINES_BETWEEN_RANKS)
    functions = GroupBy(times.places.function_code, times.places.path_code)
    others = (times.where == WHERES.index(STEP)) & is_of_others(times, times.rank, times.kind)
    kinds = GroupBy(times.window_where, times.window_step_kind).keys
    parts = [
        _means_of(times, functions.number, ~others & (times.where == where) & (times.step_kind == kind), where, kind)
        for where, kind in zip(*(key.tolist() for key in kinds), strict=True)
        if where in _COMPARED
    ]
    comparisons = sum(one.of_functions.mean.size for one in parts)
    found = [_compared(one, CHANCE / comparisons) for one in parts if len(one.ranks) > 1 and len(one.of_functions.mean)]
    if not found:
        return Table.empty(LINES_BETWEEN_RANKS)
    columns: dict[str, npt.NDArray[Any]] = {name: np.concatenate([one[name] for one in found]) for name in found[0]}
    function, path = functions.keys
    columns["function_code"], columns["path_code"] = (codes[columns["function"]] for codes in (function, path))
    table = Table(LINES_BETWEEN_RANKS, {name: columns[name] for name in LINES_BETWEEN_RANKS.names})
    return table.take(
        order_by(-table["low_ns"], -table["longer_ns"], table["rank"], columns["function"], table["where"] == WORKER)
    )


def longer_lines(trace: Trace, rank: int, count: int, *, where: str = STEP) -> list[tuple[dict[str, Any], CostlyLine]]:
    """Return the functions in which a rank is certainly longer than the others, each with the line that differs most.

    The first of each pair is a row of ``lines_between_ranks``. ``where``: of its step thread, or of its workers.
    """
    table = lines_between_ranks(trace)
    rows = table.take((table["rank"] == rank) & (table["where"] == where) & (table["low_ns"] > 0))
    found = []
    for row in rows.take(slice(count)).rows():
        line = line_that_differs(trace, rank, row["function_code"], row["path_code"], where=where)
        found += [(row, line)] if line is not None else []
    return found


def _means_of(times: PlaceTimes, function_number: Int64, chosen: Bools, where: int, step_kind: int) -> _Means:
    """Return the means of one kind of step, or of batches.

    ``function_number``: of each place. ``chosen``: amounts that count.
    """
    windows = (times.window_where == where) & (times.window_step_kind == step_kind)
    ranks = GroupBy(times.window_rank[windows])
    of_functions = function_means(times, chosen, function_number, ranks.find(times.rank), times.step, ranks.sizes)
    return _Means(WHERES[where], times.step_kinds[step_kind], ranks.values, of_functions)


def _compared(means: _Means, chance: float) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of the table for one kind of step, or for batches, with the number of each function."""
    found = means.of_functions
    mean, typical = found.mean, median_of_others(found.mean)
    half = errors_at(chance, found.degrees) * np.sqrt(variance_from_others(found.error))
    high_others = median_of_others(mean + found.unknown)
    low = np.maximum(mean - high_others - half, -high_others)
    high = np.minimum(mean + found.unknown - typical + half, found.whole)
    row, column = np.nonzero(mean > 0)
    amounts = {"time_ns": mean, "others_ns": typical, "longer_ns": mean - typical, "low_ns": np.floor(low)}
    return {
        "function": found.functions[row],
        "rank": means.ranks[column],
        "where": np.full(len(row), means.where),
        "step_kind": np.full(len(row), means.step_kind),
        "samples_count": found.samples_count[row, column],
        "high_ns": int64(np.ceil(high[row, column])),
        **{name: int64(values[row, column]) for name, values in amounts.items()},
    }
