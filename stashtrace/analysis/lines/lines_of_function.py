"""The line of a function that changed between two versions of it, whose lines have other numbers."""

from __future__ import annotations

from collections.abc import Sequence

from stashtrace.analysis.compare.function_times import LineTime

#: A line that takes more times as long, or as short, is taken for another one: the old one gone, and one that is new.
_SIMILAR_RATIO = 4


def line_that_changed(before: Sequence[LineTime], after: Sequence[LineTime]) -> tuple[int, str]:
    """Return number and leaf of the line whose time changed most, -1 if that line is gone from a function that is not.

    Lines keep their order, so the two lists are laid next to each other as `diff` lays texts: of those that call the
    same and take about as long, so many are paired that all differ least. Of a function that is gone, the line is that
    of ``before``.

    Examples
    --------
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
