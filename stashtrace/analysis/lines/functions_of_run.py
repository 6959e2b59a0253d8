"""Time of the user's functions in a mean step, with its error: what comparisons between ranks and runs rest on.

A mean over steps is as uncertain as its steps vary, those that resemble their neighbours counting as fewer, and as one
sample more or less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.compare.function_times import (
    ALL_RANKS,
    IN_STEP,
    IN_WORKER,
    OWN_KINDS,
    FunctionGroup,
    FunctionsOfRun,
    FunctionTime,
    LineTime,
)
from stashtrace.analysis.intervals import Bools, Floats, Int64
from stashtrace.analysis.lines.place_times import STEP, WHERES, WORKER, PlaceTimes, is_of_others, place_times
from stashtrace.analysis.lines.user_frames import USERS, owners
from stashtrace.analysis.steps.step_time import step_time_steps
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.calibration.noise import OF_MEAN
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.trace import Trace

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
    chosen: Bools,
    function_number: Int64,
    column: Int64,
    window: Int64,
    windows_count: Int64,
    *,
    ranks_count: float = 1,
) -> FunctionMeans:
    """Return the mean time of functions in the steps of each column.

    ``chosen``: amounts that count. ``function_number``: of each place. ``column``: of each amount. ``window``: number
    of its step. ``windows_count``: steps of each column. ``ranks_count``: how many ranks a column is the mean of.
    """
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

    Similar neighbours say less: of a series in which a part r of a deviation lasts to the next step, n steps are
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


#: A line that takes more times as long, or as short, is taken for another one: the old one gone, and one that is new.
_SIMILAR_RATIO = 4


def line_that_changed(before: Sequence[LineTime], after: Sequence[LineTime]) -> tuple[int, str]:
    """Return number and leaf of the line whose time changed most, -1 if that line is gone from a function that is not.

    Lines keep their order, so the two lists are laid next to each other as `diff` lays texts: those that call the
    same and take about as long are paired so that all differ least. Of a function that is gone, the line is that of
    ``before``.

    >>> step, sleep, loss = LineTime(50, "", 30.0), LineTime(51, "time sleep", 5.0), LineTime(53, "", 2.0)
    >>> line_that_changed([step, LineTime(52, "", 2.1)], [step, sleep, loss])
    (51, 'time sleep')
    """
    if not after:
        shown = max(before, key=lambda line: line.time_ns, default=None)
        return (-1, "") if shown is None else (shown.line, shown.leaf)
    _, new = max(_paired(before, after), key=lambda pair: abs(_time(pair[1]) - _time(pair[0])))
    return (-1, "") if new is None else (new.line, new.leaf)


def _paired(before: Sequence[LineTime], after: Sequence[LineTime]) -> list[tuple[LineTime | None, LineTime | None]]:
    """Return the lines of both versions in pairs, in their order; None where the other version has no such line."""
    # Least difference of the first lines of each, and the choice that led there.
    least = [[0.0] * (len(after) + 1) for _ in range(len(before) + 1)]
    for row in range(len(before) + 1):
        for column in range(len(after) + 1):
            if row or column:
                least[row][column] = min(cost for cost, _ in _ways(least, before, after, row, column))
    found: list[tuple[LineTime | None, LineTime | None]] = []
    row, column = len(before), len(after)
    while row or column:
        _, (rows, columns) = min(_ways(least, before, after, row, column))
        found.append((before[row - 1] if rows else None, after[column - 1] if columns else None))
        row, column = row - rows, column - columns
    return found[::-1]


def _ways(
    least: Sequence[Sequence[float]], before: Sequence[LineTime], after: Sequence[LineTime], row: int, column: int
) -> list[tuple[float, tuple[int, int]]]:
    """Return what each way to this place costs: a pair, or a line without one."""
    ways = []
    if row and column:
        old, new = before[row - 1], after[column - 1]
        shorter, longer = sorted((old.time_ns, new.time_ns))
        is_one = old.leaf == new.leaf and longer <= _SIMILAR_RATIO * shorter
        both = longer - shorter if is_one else longer + shorter
        ways.append((least[row - 1][column - 1] + both, (1, 1)))
    if row:
        ways.append((least[row - 1][column] + before[row - 1].time_ns, (1, 0)))
    if column:
        ways.append((least[row][column - 1] + after[column - 1].time_ns, (0, 1)))
    return ways


def _time(line: LineTime | None) -> float:
    return 0.0 if line is None else line.time_ns


def functions_of_run(trace: Trace) -> FunctionsOfRun | None:
    """Return the time of the user's functions in the steps that the step time of a run is made of, and in batches.

    None if no stack was recorded in these steps. Raises MissingDataError if no rank has steps.
    """
    times = place_times(trace)
    if times is None:
        return None
    counted = step_time_steps(find_steps(trace))
    in_step = (times.where == WHERES.index(STEP)) & (
        GroupBy(counted["rank"], counted["step"]).find(times.rank, times.step) >= 0
    )
    if not (times.place[in_step] >= 0).any():
        return None
    found = _Groups(trace, times)
    steps_count = len(np.unique(counted["step"]))
    for kind, chosen in _by_kind(times, in_step):
        found.add(IN_STEP, kind, [ALL_RANKS], chosen, times.step, [steps_count], len(counted) / steps_count)
    ranks = GroupBy(counted["rank"])
    if len(ranks) > 1:
        rows = in_step & ~is_of_others(times, times.rank, times.kind)
        column = ranks.find(times.rank)
        found.add(IN_STEP, OWN_KINDS, ranks.values.tolist(), rows, times.step, ranks.sizes.tolist(), 1.0, column)
    length_ns = {IN_STEP: float(times.whole_ns[in_step].sum()) / len(counted)}
    batches_count = int((times.window_where == WHERES.index(WORKER)).sum())
    if batches_count:
        in_worker = times.where == WHERES.index(WORKER)
        # The numbers of batches begin again on each rank, and its last batch is no neighbour of the next rank's first.
        batch = times.step + times.rank * (int(times.step[in_worker].max()) + 2)
        length_ns[IN_WORKER] = float(times.whole_ns[in_worker].sum()) / batches_count
        for kind, chosen in _by_kind(times, in_worker):
            found.add(IN_WORKER, kind, [ALL_RANKS], chosen, batch, [batches_count], 1.0)
    return FunctionsOfRun(tuple(found.groups), length_ns, _seen(trace))


def _by_kind(times: PlaceTimes, chosen: Bools) -> Iterator[tuple[str, Bools]]:
    for kind in np.unique(times.kind[chosen]).tolist():
        yield StallKind(kind).name.lower(), chosen & (times.kind == kind)


def _seen(trace: Trace) -> frozenset[tuple[str, str]]:
    """Return the functions of the user that stood in a stack."""
    frames, of_user = trace.frames, owners(trace) == USERS
    functions = GroupBy(frames["name_code"][of_user], frames["path_code"][of_user])
    return frozenset((trace.text(name), trace.text(path)) for name, path in zip(*functions.keys, strict=True))


class _Groups:
    """Groups of functions, made one after the other."""

    def __init__(self, trace: Trace, times: PlaceTimes) -> None:
        self.groups: list[FunctionGroup] = []
        self._trace, self._times = trace, times
        self._functions = GroupBy(times.places.function_code, times.places.path_code)

    def add(
        self,
        where: str,
        kind: str,
        ranks: Sequence[int],
        chosen: Bools,
        step: Int64,
        windows_count: Sequence[int],
        ranks_count: float,
        column: Int64 | None = None,
    ) -> None:
        """Add a group for each column: of ``windows_count`` steps, the mean over ``ranks_count`` ranks."""
        times, counts = self._times, np.array(windows_count, dtype=np.int64)
        at = np.zeros(len(times.rank), dtype=np.int64) if column is None else column
        number = self._functions.number
        means = function_means(times, chosen, number, at, step, counts, ranks_count=ranks_count)
        lines = self._lines(chosen, at, counts * ranks_count)
        rows = [np.flatnonzero(means.mean[:, place]).tolist() for place in range(len(ranks))]
        for place, rank in enumerate(ranks):
            functions = tuple(self._function(means, row, place, lines) for row in rows[place])
            unknown_ns, sample_ns = (max(float(of[place]), 0.0) for of in (means.unknown, means.of_sample))
            degrees = float(max(windows_count[place] - 1, 1))
            self.groups.append(FunctionGroup(where, kind, rank, unknown_ns, sample_ns, degrees, functions))

    def _function(
        self, means: FunctionMeans, row: int, column: int, lines: dict[tuple[int, int], dict[int, list[LineTime]]]
    ) -> FunctionTime:
        number = int(means.functions[row])
        name, path = (self._trace.text(int(codes[number])) for codes in self._functions.keys)
        times = []
        for line, parts in sorted(lines[column, number].items()):
            leaf = max(parts, key=lambda part: part.time_ns).leaf
            times.append(LineTime(line, leaf, sum(part.time_ns for part in parts)))
        mean, error, degrees = (float(of[row, column]) for of in (means.mean, means.error, means.degrees))
        return FunctionTime(name, path, mean, error, degrees, tuple(times))

    def _lines(
        self, chosen: Bools, column: Int64, count: npt.NDArray[np.floating]
    ) -> dict[tuple[int, int], dict[int, list[LineTime]]]:
        """Return the time of the leaves of each line, by column and function."""
        times, places = self._times, self._times.places
        names = ("kind", "place", "whole_ns", "exact_ns", "unseen_ns", "samples_count")
        rows = {name: getattr(times, name)[chosen] for name in names}
        spent, known = spent_ns(rows, column[chosen]), rows["place"] >= 0
        by_place = GroupBy(column[chosen][known], rows["place"][known])
        found: dict[tuple[int, int], dict[int, list[LineTime]]] = {}
        for at, place, time_ns in zip(*by_place.keys, by_place.sum(spent[known]), strict=True):
            line = int(places.line[place])
            part = LineTime(line, self._trace.text(int(places.leaf_code[place])), float(time_ns) / float(count[at]))
            of_function = found.setdefault((int(at), int(self._functions.number[place])), {})
            of_function.setdefault(line, []).append(part)
        return found
