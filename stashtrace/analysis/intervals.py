"""TimeSet: sorted, disjoint intervals with set operators, over the native kernels.

Every file of this package that reasons about time uses it; elapsed values are never added, intervals are.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace._native import intervals
from stashtrace.groupby import RowsBy as RowsBy

Int64 = npt.NDArray[np.int64]

#: Later than any real time: the end of what never ended. Half of int64, so that differences do not overflow.
NEVER = np.int64(2**62)


def int64(values: Any) -> Int64:
    """Contiguous int64 column."""
    return np.ascontiguousarray(values, dtype=np.int64)


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
        return cls(*intervals.union(int64(begin), int64(end)))

    @classmethod
    def empty(cls) -> TimeSet:
        """No time."""
        return _EMPTY

    @classmethod
    def united(cls, *sets: TimeSet) -> TimeSet:
        """Union of several sets."""
        return cls.of(np.concatenate([s.begin for s in sets]), np.concatenate([s.end for s in sets]))

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
        return np.asarray(intervals.coverage(self.begin, self.end, int64(begin), int64(end)), dtype=np.int64)

    def gaps(self, begin: int, end: int) -> TimeSet:
        """Time of one window that is not in the set."""
        return TimeSet(*intervals.complement(self.begin, self.end, int(begin), int(end)))

    def pieces(self, begin: Any, end: Any) -> tuple[Int64, Int64, Int64]:
        """Cut by other intervals (sorted, disjoint): begin and end of each piece, row of the other interval."""
        found = intervals.join(self.begin, self.end, int64(begin), int64(end))
        return found[0], found[1], found[3]


_EMPTY = TimeSet(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def rows_of(column: npt.NDArray[np.integer], value: int) -> slice:
    """Rows of one value in an ascending column.

    Bounds of another type than the column's would have all of it converted, for each value again.

    Examples
    --------
    >>> rows_of(np.array([1, 4, 4, 9], dtype=np.int32), 4)
    slice(1, 3, None)
    """
    number = column.dtype.type(value)
    return slice(int(np.searchsorted(column, number)), int(np.searchsorted(column, number, side="right")))


def place_of(values: Int64, known: Int64) -> Int64:
    """Place of each value in a column that holds them all, each once and in any order.

    Examples
    --------
    >>> place_of(int64([7, 99]), int64([99, 11, 7])).tolist()
    [2, 0]
    """
    order = np.argsort(known, kind="stable")
    return int64(order[np.searchsorted(known[order], values)])


def running_before(lengths: Int64, group: Int64) -> Int64:
    """Sum of the lengths of earlier rows of the same group; rows of a group stand together."""
    if len(lengths) == 0:
        return np.empty(0, dtype=np.int64)
    before = np.cumsum(lengths) - lengths
    first = np.ones(len(group), dtype=bool)
    first[1:] = group[1:] != group[:-1]
    starts = np.flatnonzero(first)
    return np.asarray(before - np.repeat(before[starts], np.diff(np.append(starts, len(group)))), dtype=np.int64)
