"""Time of functions in a mean step, with its error: what comparisons between ranks and between runs rest on.

A mean over steps is as uncertain as its steps vary, those that resemble their neighbours counting as fewer, and as one
sample more or less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Int64
from stashtrace.analysis.lines.place_times import PlaceTimes
from stashtrace.calibration.noise import OF_MEAN
from stashtrace.schema.groupby import GroupBy

Floats = npt.NDArray[np.float64]

#: Chance that a bound of any compared function at all excludes 0 where nothing differs.
CHANCE = 0.05


@dataclass(frozen=True, slots=True)
class FunctionMeans:
    """Time of a step by function (rows) and column (a rank, or all ranks), in ns."""

    functions: Int64
    mean: Floats
    #: Standard error of the mean, and how many steps that is from, less one.
    error: Floats
    degrees: Floats
    samples_count: Int64
    #: Of each column: what one sample more makes of a mean, time whose function is unknown, and all time.
    of_sample: Floats
    unknown: Floats
    whole: Floats


def function_means(
    times: PlaceTimes,
    chosen: npt.NDArray[np.bool_],
    function_number: Int64,
    column: Int64,
    window: Int64,
    windows_count: Int64,
    *,
    ranks_count: float = 1,
) -> FunctionMeans:
    """Return the mean time of functions in the steps of each column.
    ``chosen``: amounts that count. ``function_number``: of each place. ``column``: of each amount. ``window``: number
    of its step. ``windows_count``: steps of each column. ``ranks_count``: how many ranks a column is the mean of."""
    names = ("kind", "place", "whole_ns", "exact_ns", "unseen_ns", "samples_count")
    rows = {name: getattr(times, name)[chosen] for name in names}
    column, count = column[chosen], len(windows_count)
    by_column = GroupBy.numbered(column, count)
    spent = spent_ns(rows, column) / ranks_count
    known = rows["place"] >= 0
    functions = GroupBy(function_number[rows["place"][known]])
    shape = (len(functions), count)
    by_step = GroupBy(functions.number, column[known], window[chosen][known])
    cells = GroupBy.cells(by_step.keys[:2], shape)
    mean, error, degrees = _over_steps(cells, by_step.keys[2], by_step.sum(spent[known]), windows_count)
    whole = by_column.sum(rows["whole_ns"]) / windows_count / ranks_count
    of_sample = of_sample_ns(by_column, rows) / windows_count / ranks_count
    return FunctionMeans(
        functions.values,
        mean,
        np.hypot(error, of_sample),
        degrees,
        GroupBy.cells((functions.number, column[known]), shape).sum(rows["samples_count"][known]),
        of_sample,
        whole - mean.sum(axis=0),
        whole,
    )


def spent_ns(rows: dict[str, Int64], column: Int64) -> Floats:
    """Return what each amount stands for: its calls, and as many samples as it has of its column and kind."""
    kinds = GroupBy(column, rows["kind"])
    return np.asarray(rows["exact_ns"] + rows["samples_count"] * of_sample_ns(kinds, rows)[kinds.number])


def of_sample_ns(groups: GroupBy, rows: dict[str, Int64]) -> Floats:
    """Return the time that a sample stands for in each group: what is neither exact nor unseen, over its samples."""
    rest_ns = groups.sum(rows["whole_ns"] - rows["exact_ns"] - rows["unseen_ns"])
    return np.asarray(rest_ns / np.maximum(groups.sum(rows["samples_count"]), 1))


def _over_steps(cells: GroupBy, step: Int64, spent: Floats, steps: Int64) -> tuple[Floats, Floats, Floats]:
    """Return mean, standard error and degrees of freedom of each series of steps; a step without a row has no time.

    Neighbours that are alike say less: of a series in which a part r of a deviation lasts to the next step, n steps are
    worth n (1 - r) / (1 + r).

    ``cells``: by function and column, of rows sorted by cell and step. ``step``, ``spent``: of each row. ``steps``: how
    many steps each column has.
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


def median_of_others(values: Floats) -> Floats:
    """Return for each value the median of the others in its row, of which there is one at least.

    Examples
    --------
    >>> median_of_others(np.array([[1.0, 5.0, 2.0, 8.0]])).tolist()
    [[5.0, 2.0, 5.0, 2.0]]
    """
    order = np.argsort(values, axis=1, kind="stable")
    ascending = np.take_along_axis(values, order, axis=1)
    place = np.argsort(order, axis=1, kind="stable")
    others = values.shape[1] - 1
    middle = [at + (place <= at) for at in ((others - 1) // 2, others // 2)]
    low, high = (np.take_along_axis(ascending, at, axis=1) for at in middle)
    return np.asarray((low + high) / 2)


def variance_from_others(error: Floats) -> Floats:
    """Return the variance of the difference of each value to the median of the others in its row."""
    variance, others = error**2, error.shape[1] - 1
    of_mean = (variance.sum(axis=1, keepdims=True) - variance) / others**2
    return np.asarray(variance + of_mean * (OF_MEAN**2 if others > 2 else 1.0))
