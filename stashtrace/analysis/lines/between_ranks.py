"""lines_between_ranks: functions that take longer on one rank than on the others, with what chance would make of it.

    rank 0   hook |    parse |===|     median of the others of rank 1: hook 0, parse 2
    rank 1   hook |=======|            so hook takes 20 ms longer there, known to 0.1 ms
    rank 2   hook |    parse |=|       and parse on rank 0 by 2 ms, known to 3 ms: nothing

Waits for other ranks, for transfers and for batches that workers make are left out: others are slow then.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Int64, int64
from stashtrace.analysis.lines.place_times import STEP, WHERES, PlaceTimes, is_of_others, place_times
from stashtrace.schema import columns as col
from stashtrace.schema.columns import RANK, Column, schema
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace, cached_on_trace

Floats = npt.NDArray[np.float64]

LINES_BETWEEN_RANKS = schema(
    "lines_between_ranks",
    "Functions of the user by how much longer they take on a rank than on the others, waits for ranks left out",
    RANK,
    col.word("step_kind", "steps.kind"),
    col.text("function_code", "qualified name"),
    Column("path_code", "i8", "", "its file", role="path"),
    col.ns("time_ns", "mean of a counted step of this rank, as in lines"),
    col.ns("others_ns", "median of the other ranks"),
    col.ns("longer_ns", "the difference"),
    col.ns("low_ns", "it is not less than this, with 95 % confidence for all rows together"),
    col.ns("high_ns", "and not more than this"),
    col.number("samples_count", "samples of the rank in it, beyond the long calls"),
)
#: Chance that any row at all of equal ranks has a lower bound above 0.
_CHANCE = 0.05
#: Error of a median of normal values, in errors of their mean.
_OF_MEDIAN = 1.2533


@cached_on_trace
def lines_between_ranks(trace: Trace) -> Table:
    """Compare the time of each function of the user on each rank with the other ranks, surely longer ones first.

    A mean over steps is as uncertain as its steps vary, those that resemble their neighbours counting as fewer, and as
    one sample more or less; the median of the other ranks as these are. Bounds are as many such errors wide (by
    Student's distribution) that with equal ranks the chance is 5 % that a lower bound of any function of any rank is
    above 0: the allowed chance is divided by the number of functions times ranks compared (Bonferroni). Time whose
    function is unknown may be in any: it widens the bounds.

    Parameters
    ----------
    trace : Trace
        Without Python functions, or with one rank, there are no rows.

    Columns
    -------
    rank, step_kind, function_code, path_code, time_ns, others_ns, longer_ns, low_ns, high_ns, samples_count

    Raises
    ------
    MissingDataError
        If no rank has steps.
    """
    times = place_times(trace)
    if times is None:
        return Table.empty(LINES_BETWEEN_RANKS)
    functions = GroupBy(times.places.function_code, times.places.path_code)
    chosen = (times.where == WHERES.index(STEP)) & ~is_of_others(times, times.rank, times.kind)
    parts = [
        _means_of(times, functions.number, chosen & (times.step_kind == one)) for one in range(len(times.step_kinds))
    ]
    comparisons = sum(one.mean.size for one in parts)
    found = [_compared(one, _CHANCE / comparisons) for one in parts if len(one.ranks) > 1 and len(one.functions)]
    if not found:
        return Table.empty(LINES_BETWEEN_RANKS)
    columns: dict[str, npt.NDArray[Any]] = {name: np.concatenate([one[name] for one in found]) for name in found[0]}
    function, path = functions.keys
    columns["function_code"], columns["path_code"] = (codes[columns["function"]] for codes in (function, path))
    table = Table(LINES_BETWEEN_RANKS, {name: columns[name] for name in LINES_BETWEEN_RANKS.names})
    return table.take(order_by(-table["low_ns"], -table["longer_ns"], table["rank"], columns["function"]))


@dataclass(frozen=True, slots=True)
class _Means:
    """Time of a step of one kind by function (rows) and rank (columns), in ns."""

    step_kind: str
    functions: Int64
    ranks: Int64
    mean: Floats
    #: Standard error of the mean, and how many steps that is from, less one.
    error: Floats
    degrees: Floats
    samples_count: Int64
    #: Of each rank: time whose function is unknown, and all time that was compared.
    unknown: Floats
    whole: Floats


def _means_of(times: PlaceTimes, function_number: Int64, chosen: npt.NDArray[np.bool_]) -> _Means:
    """Return the means of one kind of step. ``function_number``: of each place. ``chosen``: amounts that count."""
    names = ("rank", "kind", "step", "place", "whole_ns", "exact_ns", "unseen_ns", "samples_count")
    rows = {name: getattr(times, name)[chosen] for name in names}
    step_kind = int(times.step_kind[chosen][0]) if chosen.any() else 0
    in_steps = (times.window_where == WHERES.index(STEP)) & (times.window_step_kind == step_kind)
    ranks = GroupBy(times.window_rank[in_steps])
    column, steps = ranks.find(rows["rank"]), ranks.sizes
    by_rank = GroupBy.numbered(column, len(ranks))
    kinds = GroupBy(column, rows["kind"])
    spent = rows["exact_ns"] + rows["samples_count"] * _of_sample_ns(kinds, rows)[kinds.number]
    known = rows["place"] >= 0
    functions = GroupBy(function_number[rows["place"][known]])
    shape = (len(functions), len(ranks))
    by_step = GroupBy(functions.number, column[known], rows["step"][known])
    cells = GroupBy.cells(by_step.keys[:2], shape)
    mean, error, degrees = _over_steps(cells, by_step.keys[2], by_step.sum(spent[known]), steps)
    whole = by_rank.sum(rows["whole_ns"]) / steps
    return _Means(
        times.step_kinds[step_kind],
        functions.values,
        ranks.values,
        mean,
        np.hypot(error, _of_sample_ns(by_rank, rows) / steps),
        degrees,
        GroupBy.cells((functions.number, column[known]), shape).sum(rows["samples_count"][known]),
        whole - mean.sum(axis=0),
        whole,
    )


def _of_sample_ns(groups: GroupBy, rows: dict[str, Int64]) -> Floats:
    """Return the time that a sample stands for in each group: what is neither exact nor unseen, over its samples."""
    rest_ns = groups.sum(rows["whole_ns"] - rows["exact_ns"] - rows["unseen_ns"])
    return np.asarray(rest_ns / np.maximum(groups.sum(rows["samples_count"]), 1))


def _over_steps(cells: GroupBy, step: Int64, spent: Floats, steps: Int64) -> tuple[Floats, Floats, Floats]:
    """Return mean, standard error and degrees of freedom of each series of steps; a step without a row has no time.

    Neighbours that are alike say less: of a series in which a part r of a deviation lasts to the next step, n steps are
    worth n (1 - r) / (1 + r).

    ``cells``: by function and rank, of rows sorted by cell and step. ``step``, ``spent``: of each row. ``steps``: how
    many steps each rank has.
    """
    mean = cells.sum(spent) / steps
    squares = cells.sum(spent**2) / steps - mean**2
    follows = np.append(False, (cells.number[1:] == cells.number[:-1]) & (step[1:] == step[:-1] + 1))[: len(step)]
    products = cells.sum(spent * np.append(0.0, spent[:-1])[: len(spent)], where=follows) / steps - mean**2
    lasts = np.clip(products / np.maximum(squares, 1e-9), 0.0, 0.9)
    lasts = np.clip(lasts + (1 + 3 * lasts) / steps, 0.0, 0.9)  # of few steps it seems smaller than it is
    worth = np.maximum(steps * (1 - lasts) / (1 + lasts), 2.0)
    squares = np.where(steps > 1, np.maximum(squares, 0.0), mean**2)
    return mean, np.sqrt(squares / (worth - 1)), worth - 1


def _compared(found: _Means, chance: float) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of the table for one kind of step, with the number of each function."""
    mean, others = found.mean, len(found.ranks) - 1
    typical = _median_of_others(mean)
    variance = found.error**2
    of_median = (variance.sum(axis=1, keepdims=True) - variance) / others**2 * (_OF_MEDIAN**2 if others > 2 else 1.0)
    half = _student(chance, found.degrees) * np.sqrt(variance + of_median)
    high_others = _median_of_others(mean + found.unknown)
    low = np.maximum(mean - high_others - half, -high_others)
    high = np.minimum(mean + found.unknown - typical + half, found.whole)
    row, column = np.nonzero(mean > 0)
    amounts = {"time_ns": mean, "others_ns": typical, "longer_ns": mean - typical, "low_ns": np.floor(low)}
    return {
        "function": found.functions[row],
        "rank": found.ranks[column],
        "step_kind": np.full(len(row), found.step_kind),
        "samples_count": found.samples_count[row, column],
        "high_ns": int64(np.ceil(high[row, column])),
        **{name: int64(values[row, column]) for name, values in amounts.items()},
    }


def _median_of_others(values: Floats) -> Floats:
    """Return for each value the median of the others in its row, of which there is one at least.

    Examples
    --------
    >>> _median_of_others(np.array([[1.0, 5.0, 2.0, 8.0]])).tolist()
    [[5.0, 2.0, 5.0, 2.0]]
    """
    order = np.argsort(values, axis=1, kind="stable")
    ascending = np.take_along_axis(values, order, axis=1)
    place = np.argsort(order, axis=1, kind="stable")
    others = values.shape[1] - 1
    middle = [at + (place <= at) for at in ((others - 1) // 2, others // 2)]
    low, high = (np.take_along_axis(ascending, at, axis=1) for at in middle)
    return np.asarray((low + high) / 2)


def _student(chance: float, degrees: Floats) -> Floats:
    """Return how many standard errors a value is above its mean with this chance (Wallace's approximation).

    Examples
    --------
    >>> _student(0.025, np.array([5.0, 10.0, 1000.0])).round(2).tolist()
    [2.58, 2.23, 1.96]
    """
    normal = NormalDist().inv_cdf(1 - chance) * (8 * degrees + 3) / (8 * degrees + 1)
    return np.asarray(np.sqrt(degrees * np.expm1(normal**2 / degrees)))
