"""TimeSet: sorted, disjoint intervals with set operations, by the native kernels; windows around moments.

Elapsed times are never added here; intervals are united.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace._native import intervals
from stashtrace.schema.table import Table

Int64 = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: Later than any real time: the end of what never ended. Half of int64, so that differences do not overflow.
NEVER = np.int64(2**62)


def int64(values: Any) -> Int64:
    """Contiguous int64 column."""
    return np.ascontiguousarray(values, dtype=np.int64)


def is_one_of(values: npt.NDArray[Any], few: Iterable[Any]) -> npt.NDArray[np.bool_]:
    """Return the mask of the values that are among a few codes; for the columns of one rank ``np.isin`` costs more."""
    found = np.zeros(len(values), dtype=bool)
    for code in few:
        # Before Python 3.12 numpy takes several times as long for a member of an enumeration as for a number.
        found |= values == (int(code) if isinstance(code, int) else code)
    return found


def value_at(column: Int64, places: Int64, otherwise: int | np.int64) -> Int64:
    """Return the value at each place, another one where that is -1; no copy of all, since each rank asks."""
    found = np.full(len(places), otherwise, dtype=np.int64)
    known = places >= 0
    found[known] = column[places[known]]
    return found


def distinct(values: Int64) -> Int64:
    """Return the distinct values, ascending; ``np.unique`` hashes integers before it sorts, and takes longer."""
    ordered = np.sort(values)
    found: Int64 = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return found


@dataclass(frozen=True, slots=True)
class TimeSet:
    """Sorted, disjoint, non-empty intervals ``[begin, end)``."""

    begin: Int64
    end: Int64

    @classmethod
    def of(cls, begin: Any, end: Any) -> TimeSet:
        """Union of any intervals; empty and inverted ones vanish."""
        if not len(begin):
            return _EMPTY
        return cls(*intervals.union(begin, end))  # the kernels convert what is no int64 column

    @classmethod
    def of_rows(cls, table: Table, rows: Any = slice(None)) -> TimeSet:
        """Union of ``begin_ns`` to ``end_ns`` of some rows of a table; ``rows`` are numbers, a mask or a slice."""
        return cls.of(table["begin_ns"][rows], table["end_ns"][rows])

    @classmethod
    def empty(cls) -> TimeSet:
        """No time."""
        return _EMPTY

    @classmethod
    def united(cls, *sets: TimeSet) -> TimeSet:
        """Union of any number of sets."""
        filled = [s for s in sets if len(s.begin)]  # of most ranks most sets are empty
        if len(filled) < 2:
            return filled[0] if filled else _EMPTY
        return cls.of(np.concatenate([s.begin for s in filled]), np.concatenate([s.end for s in filled]))

    def __or__(self, other: TimeSet) -> TimeSet:
        return TimeSet.united(self, other)

    def __and__(self, other: TimeSet) -> TimeSet:
        if not len(self.begin) or not len(other.begin):  # of most ranks most sets are empty
            return _EMPTY
        return TimeSet(*intervals.intersect(self.begin, self.end, other.begin, other.end))

    def __sub__(self, other: TimeSet) -> TimeSet:
        if not len(self.begin) or not len(other.begin):
            return self
        return TimeSet(*intervals.subtract(self.begin, self.end, other.begin, other.end))

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def total_ns(self) -> int:
        """Length of the set."""
        return int((self.end - self.begin).sum())

    def within(self, begin: Any, end: Any) -> Int64:
        """Length of the set inside each of the given windows."""
        return intervals.coverage(self.begin, self.end, begin, end)

    def gaps(self, begin: int, end: int) -> TimeSet:
        """Time of one window that is not in the set."""
        return TimeSet(*intervals.complement(self.begin, self.end, int(begin), int(end)))

    def pieces(self, begin: Any, end: Any) -> tuple[Int64, Int64, Int64]:
        """Cut by other intervals (sorted, disjoint): begin and end of each piece, row of the other interval."""
        piece_begin, piece_end, _, row = intervals.join(self.begin, self.end, begin, end)
        return piece_begin, piece_end, row


_EMPTY = TimeSet(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def rows_of(column: npt.NDArray[np.integer], value: int) -> slice:
    """Rows of one value in an ascending column.

    Bounds of another type than the column's would have all of it converted, for each value again.

    >>> rows_of(np.array([1, 4, 4, 9], dtype=np.int32), 4)
    slice(1, 3, None)
    """
    number = column.dtype.type(value)
    return slice(int(np.searchsorted(column, number)), int(np.searchsorted(column, number, side="right")))


def ranges(begins: Int64, ends: Int64) -> Int64:
    """Return the numbers of several ranges, one after the other.

    >>> ranges(np.array([3, 8, 1]), np.array([5, 8, 2])).tolist()
    [3, 4, 1]
    """
    sizes = ends - begins
    out: Int64 = np.arange(int(sizes.sum())) + np.repeat(begins - (np.cumsum(sizes) - sizes), sizes)
    return out


def equal_pairs(left: Int64, right: Int64) -> tuple[Int64, Int64]:
    """Return the places of all pairs of equal values; ``right`` is ascending.

    >>> [places.tolist() for places in equal_pairs(np.array([7, 5]), np.array([5, 7, 7]))]
    [[0, 0, 1], [1, 2, 0]]
    """
    low, high = (np.searchsorted(right, left, side=side) for side in ("left", "right"))
    return np.repeat(np.arange(len(left)), high - low), ranges(low, high)


def window_at(moments: Any, begin: Int64, end: Int64) -> Int64:
    """Row of the window ``[begin, end)`` that holds each moment, -1 outside.

    Windows ascend by their begin; where they overlap, the last that had begun is asked.

    >>> window_at([0, 5, 9, 12], int64([5, 10]), int64([9, 20])).tolist()
    [-1, 0, -1, 1]
    """
    at = np.searchsorted(begin, moments, side="right") - 1
    return np.where(moments < np.append(end, np.iinfo(np.int64).min)[at], at, -1)


def window_around(begin: Any, end: Any, windows_begin: Int64, windows_end: Int64) -> Int64:
    """Row of the window that each interval is in as a whole, -1 of others; windows as for :func:`window_at`.

    >>> window_around(int64([5, 8, 2]), int64([9, 10, 3]), int64([5, 10]), int64([9, 20])).tolist()
    [0, -1, -1]
    """
    at = np.searchsorted(windows_begin, begin, side="right") - 1
    return np.where(end <= np.append(windows_end, np.iinfo(np.int64).min)[at], at, -1)
