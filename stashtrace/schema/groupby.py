"""Groups of rows: number the distinct keys of columns, then count, add and compare the rows of each group.

    pairs = GroupBy(step, rank)                       # one group for each pair that occurs, in ascending order
    total_ns = pairs.sum(cost_ns)                     # one value for each group, exact for integers
    steps, ranks = pairs.keys
    costliest = ranks[GroupBy(steps).argmax(total_ns)]  # of equals the first row: the lowest rank
    share_ratio = cost_ns / total_ns[pairs.number]    # a group's value for each of its rows

``GroupBy(*columns)`` groups equal rows, wherever they stand. ``GroupBy.runs`` groups equal rows that stand together.
``GroupBy.numbered`` and ``GroupBy.cells`` take numbers that are known already; a negative one is in no group.
``RowsBy`` gives the rows of one value again and again; ``order_by`` sorts by several columns.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: Integers of a smaller range are distinguished by their distance from the smallest, without sorting.
_WIDEST_RANGE = 2**31
#: Keys of several columns are packed into integers below this.
_LARGEST_CODE = 2**62
#: Numbering takes a table of all codes, not sorting, if there are at most this many for each row, and this many more.
_CODES_PER_ROW, _CODES_IN_ADDITION = 4, 2048


class GroupBy:
    """Rows in groups of equal keys, numbered in ascending order of the keys.

    ``columns``: one or more columns of equal length, the most significant first: integers, texts, booleans or
    floats.
    """

    def __init__(self, *columns: Any) -> None:
        self._columns = tuple(map(np.asarray, columns))
        self._some_outside = self._some_empty = False
        if len(columns) == 1 and self._columns[0].dtype.kind in "iuf" and _is_ascending(self._columns[0]):
            self._stand_together()
            return
        if len(set(map(len, self._columns))) != 1:
            raise ValueError("the columns of a key need one length")
        self._packing = _Packing()
        self.number, self._codes = _number(*self._packing.fit(self._columns))
        self._shape: tuple[int, ...] = self._codes.shape

    @classmethod
    def numbered(cls, number: Any, count: int) -> GroupBy:
        """Groups 0 to ``count`` - 1 of known numbers; groups may be empty, and negative numbers are in no group."""
        return cls.cells((number,), (count,))

    @classmethod
    def cells(cls, places: Sequence[Any], shape: Sequence[int]) -> GroupBy:
        """Groups that are the cells of an array of ``shape``; results have that shape.

        ``places``: index of each row along each axis; a row with a negative one is in no group. ``shape``: length of
        each axis.
        """
        known: Int64 | None = None
        some_outside = False
        for place, length in zip(places, shape, strict=True):
            place = np.asarray(place, dtype=np.int64)
            least, most = (int(place.min()), int(place.max())) if len(place) else (0, -1)
            if most >= length:
                raise IndexError(f"group {most} of {length}")
            some_outside |= least < 0
            known = place if known is None else np.where((known < 0) | (place < 0), -1, known * length + place)
        made = cls.__new__(cls)
        made._columns, made.number, made._shape = (), np.asarray(known), tuple(shape)
        made._some_outside, made._some_empty = some_outside, True
        return made

    @classmethod
    def runs(cls, *columns: Any) -> GroupBy:
        """Groups of equal rows that stand together: a key that comes again later begins another group."""
        made = cls.__new__(cls)
        made._columns = tuple(map(np.asarray, columns))
        made._some_outside = made._some_empty = False
        made._stand_together()
        return made

    def _stand_together(self) -> None:
        """Make a group of each run of equal rows."""
        self.first = _changes(self._columns).nonzero()[0]
        self._shape, self._is_sorted = self.first.shape, True

    def __len__(self) -> int:
        """Number of groups."""
        return math.prod(self._shape)

    def __iter__(self) -> Iterator[Int64]:
        """Rows of each group, in ascending order of the groups."""
        bounds = self.bounds.tolist()
        return (self.order[begin:end] for begin, end in itertools.pairwise(bounds))

    def items(self) -> Iterator[tuple[Any, ...]]:
        """The key of each group, one plain Python value for each column, and behind it the rows of the group."""
        return zip(*(column.tolist() for column in self.keys), self, strict=True)

    # Keys, and where they are.

    @cached_property
    def number(self) -> Int64:
        """Group of each row, -1 of a row in no group."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @cached_property
    def keys(self) -> tuple[npt.NDArray[Any], ...]:
        """Key of each group: one array for each column."""
        return tuple(column[self.first] for column in self._columns)

    @property
    def values(self) -> npt.NDArray[Any]:
        """Key of each group, where the key is one column."""
        (values,) = self.keys
        return values

    def find(self, *columns: Any) -> Int64:
        """Group with each of the given keys, -1 where there is none.

        ``columns``: as many columns as the groups were made of, of any common length.
        """
        if len(columns) == 1 and self._is_run:
            values, wanted = self.values, np.asarray(columns[0])
            if values.dtype == wanted.dtype and values.dtype.kind in "iu" and _is_ascending(values):
                return _places(values, wanted)
        codes = self._codes  # before the packing: of runs it makes that
        return _places(codes, self._packing.pack([np.asarray(column) for column in columns]))

    @cached_property
    def _codes(self) -> Int64:
        """Packed key of each group, ascending."""
        if not self._columns:
            raise TypeError("only groups of columns are found by their keys")
        self._packing = _Packing()
        codes, _ = self._packing.fit(self.keys)
        if not (codes[1:] > codes[:-1]).all():
            raise TypeError("runs of rows are found by their keys only where these ascend")
        return codes

    def map(self, function: Callable[..., Any], dtype: npt.DTypeLike = np.int64) -> npt.NDArray[Any]:
        """Value of a function of the key for each row; it is called once for each group, with plain Python values."""
        values = [function(*key) for key in zip(*(column.tolist() for column in self.keys), strict=True)]
        return np.array(values, dtype=dtype)[self.number]

    def row_of(self, *columns: Any) -> Int64:
        """First row with each of the given keys, -1 where there is none."""
        at = self.find(*columns)
        return np.where(at >= 0, np.append(self.first, -1)[at], -1)

    # Order of the rows.

    @cached_property
    def order(self) -> Int64:
        """Rows in groups, sorted by group; those of a group in ascending order."""
        if self._is_sorted:
            return np.arange(int(self.bounds[-1]))
        return stable_order(self.number + 1)[len(self.number) - int(self.sizes.sum()) :]

    @cached_property
    def bounds(self) -> Int64:
        """Where each group begins in :attr:`order`, and the end of the last: one more than there are groups."""
        if self._is_run:
            return np.concatenate([self.first, [len(self._columns[0])]])
        return np.append(0, np.cumsum(self.sizes.ravel()))

    @property
    def _is_run(self) -> bool:
        """Whether the groups are runs of rows, one behind the other."""
        return bool(self._columns) and self._is_sorted

    @cached_property
    def first(self) -> Int64:
        """First row of each group, -1 of an empty one."""
        out = np.full(len(self), -1, dtype=np.int64)
        rows = np.arange(len(self.number) - 1, -1, -1)
        number = self.number[::-1]
        if self._some_outside:
            rows, number = rows[number >= 0], number[number >= 0]
        out[number] = rows  # of equal places the last assignment holds
        return out.reshape(self._shape)

    @cached_property
    def last(self) -> Int64:
        """Last row of each group, -1 of an empty one."""
        return self.bounds[1:] - 1 if self._is_run else self.max(np.arange(len(self.number)), empty=-1)

    @cached_property
    def position(self) -> Int64:
        """Place of each row among those of its group, from 0; -1 of a row in no group."""
        out = np.full(len(self.number), -1, dtype=np.int64)
        sizes = self.sizes.ravel()
        out[self.order] = np.arange(len(self.order)) - np.repeat(self.bounds[:-1], sizes)
        return out

    @cached_property
    def _is_sorted(self) -> bool:
        number = self.number
        return not len(number) or bool(number[0] >= 0 and (number[1:] >= number[:-1]).all())

    # One value for each group.

    @cached_property
    def sizes(self) -> Int64:
        """Number of rows of each group."""
        return self.bounds[1:] - self.bounds[:-1] if self._is_run else self.count()

    def count(self, where: Bools | None = None) -> Int64:
        """Number of rows of each group, of those for which ``where`` is true."""
        number = self.number if where is None else self.number[where]
        if self._some_outside:
            number = number[number >= 0]
        return np.bincount(number, minlength=len(self)).astype(np.int64, copy=False).reshape(self._shape)

    def sum(self, values: Any, where: Bools | None = None) -> npt.NDArray[Any]:
        """Sum of the values of each group, 0 of an empty one.

        Integers and booleans are added as int64, exactly; floats one after the other, in the order of the rows. Of two
        dimensions each column of ``values`` is added for itself.
        """
        values = np.asarray(values)
        dtype = np.float64 if values.dtype.kind == "f" else np.int64
        number, values = self._members(values, where)
        out = np.zeros((len(self), *values.shape[1:]), dtype=dtype)
        np.add.at(out, number, values.astype(dtype, copy=False))
        sums: npt.NDArray[Any] = out.reshape(self._shape + values.shape[1:])
        return sums

    def min(self, values: Any, where: Bools | None = None, *, empty: Any = None) -> npt.NDArray[Any]:
        """Smallest value of each group.

        ``values``: one value for each row. ``where``: rows that take part. ``empty``: result of a group without rows.
        Raises ValueError if a group has no rows and ``empty`` is not given.
        """
        return self._extreme(np.minimum, values, where, empty)

    def max(self, values: Any, where: Bools | None = None, *, empty: Any = None) -> npt.NDArray[Any]:
        """Largest value of each group; parameters and errors as in :meth:`min`."""
        return self._extreme(np.maximum, values, where, empty)

    def any(self, mask: Any) -> Bools:
        """Whether ``mask`` is true for a row of each group."""
        return self.count(where=np.asarray(mask, dtype=bool)) > 0

    def all(self, mask: Any) -> Bools:
        """Whether ``mask`` is true for all rows of each group."""
        return ~self.any(~np.asarray(mask, dtype=bool))

    def bits(self, values: Any) -> Int64:
        """Bits that any value of each group has."""
        number, values = self._members(np.asarray(values), None)
        out = np.zeros(len(self), dtype=np.int64)
        np.bitwise_or.at(out, number, values.astype(np.int64, copy=False))
        return out.reshape(self._shape)

    def argmin(self, values: Any, where: Bools | None = None) -> Int64:
        """Row with the smallest value of each group, of equals the first; -1 of an empty group."""
        return self._holder(np.minimum, values, where)

    def argmax(self, values: Any, where: Bools | None = None) -> Int64:
        """Row with the largest value of each group, of equals the first; -1 of an empty group."""
        return self._holder(np.maximum, values, where)

    def quantile(self, values: Any, percent: int, *, empty: Any = None) -> npt.NDArray[Any]:
        """Nearest-rank quantile of each group: the smallest value that ``percent`` of the rows do not exceed.

        ``empty`` is the result of a group without rows; ValueError if there is one and it is not given.
        """
        place = np.maximum(-(-self.sizes.ravel() * percent // 100) - 1, 0)
        return self._at_places(self._ascending(values), place, empty)

    def median(self, values: Any, *, empty: Any = None) -> npt.NDArray[Any]:
        """Median of each group; between two integers their mean, rounded down. ``empty`` as in :meth:`quantile`."""
        sizes, ascending = self.sizes.ravel(), self._ascending(values)
        low = self._at_places(ascending, np.maximum(sizes - 1, 0) // 2, empty)
        high = self._at_places(ascending, sizes // 2, empty)
        middle: npt.NDArray[Any] = (low + high) / 2 if ascending.dtype.kind == "f" else low + (high - low) // 2
        return middle

    def sum_before(self, values: Any) -> Int64:
        """Sum of the integers of earlier rows of the same group, for each row; 0 for a row in no group."""
        values = np.asarray(values, dtype=np.int64)
        if self._is_run:
            before: Int64 = np.cumsum(values) - values
            return np.asarray(before - np.repeat(before[self.first], self.sizes), dtype=np.int64)
        out = np.zeros(len(values), dtype=np.int64)
        ordered = values[self.order]
        before = np.cumsum(ordered) - ordered
        out[self.order] = before - np.repeat(np.append(before, 0)[self.bounds[:-1]], self.sizes.ravel())
        return out

    def _members(self, values: npt.NDArray[Any], where: Bools | None) -> tuple[Int64, npt.NDArray[Any]]:
        """Group and value of the rows that take part."""
        number = self.number
        if where is not None:
            number, values = number[where], values[where]
        if self._some_outside:
            inside = number >= 0
            number, values = number[inside], values[inside]
        return number, values

    def _extreme(self, ufunc: np.ufunc, values: Any, where: Bools | None, empty: Any) -> npt.NDArray[Any]:
        number, values = self._members(np.asarray(values), where)
        if values.dtype.kind in "ibu" and values.dtype != np.uint64:
            values = values.astype(np.int64, copy=False)
        out = np.full(len(self), _beyond(ufunc, values.dtype), dtype=values.dtype)
        ufunc.at(out, number, values)
        if self._some_empty or where is not None:
            has_rows = np.zeros(len(self), dtype=bool)
            has_rows[number] = True
            _fill(out, ~has_rows, empty)
        return out.reshape(self._shape)

    def _holder(self, ufunc: np.ufunc, values: Any, where: Bools | None) -> Int64:
        values = np.asarray(values)
        best = self._extreme(ufunc, values, where, 0).ravel()
        holds = (self.number >= 0) & (values == best[self.number] if len(self) else False)
        rows = np.flatnonzero(holds if where is None else holds & where)[::-1]
        out = np.full(len(self), -1, dtype=np.int64)
        out[self.number[rows]] = rows
        return out.reshape(self._shape)

    def _ascending(self, values: Any) -> npt.NDArray[Any]:
        """Values by group, in ascending order within each; without those of rows in no group."""
        ascending: npt.NDArray[Any]
        number, values = self._members(np.asarray(values), None)
        if len(values) and values.dtype.kind in "iu" and values.dtype != np.uint64:
            least, most = int(values.min()), int(values.max())
            if (most - least + 1) * len(self) <= _LARGEST_CODE:  # sorting one integer is several times faster
                codes: Int64 = number * (most - least + 1) + (values.astype(np.int64, copy=False) - least)
                ascending = np.sort(codes) % (most - least + 1) + least
                return ascending
        ascending = values[order_by(number, values)]
        return ascending

    def _at_places(self, ascending: npt.NDArray[Any], place: Int64, empty: Any) -> npt.NDArray[Any]:
        """Value at a place of each group's values in ascending order."""
        has_rows = self.sizes.ravel() > 0
        out = np.zeros(len(self), dtype=ascending.dtype)
        out[has_rows] = ascending[(self.bounds[:-1] + place)[has_rows]]
        _fill(out, ~has_rows, empty)
        return out.reshape(self._shape)


@functools.cache
def _beyond(ufunc: np.ufunc, dtype: np.dtype[Any]) -> Any:
    """What no value of a type is above, or below: where a minimum or maximum begins."""
    if dtype.kind == "f":
        return np.inf if ufunc is np.minimum else -np.inf
    return np.iinfo(dtype).max if ufunc is np.minimum else np.iinfo(dtype).min


def _fill(out: npt.NDArray[Any], empty_groups: Bools, empty: Any) -> None:
    """Give groups without rows their value."""
    if not empty_groups.any():
        return
    if empty is None:
        raise ValueError("a group has no rows, and no value was given for it")
    out[empty_groups] = empty


class RowsBy:
    """Rows of a table by the value of an integer column: grouped once, then a slice for each value.

    It holds what is needed for that alone, so it is the one to keep. Rows of one value keep their order.

    ``values``: the distinct values, ascending.
    """

    __slots__ = ("_bounds", "_order", "_place", "values")

    def __init__(self, keys: Any) -> None:
        groups = GroupBy(keys)
        self.values = groups.values
        self._bounds = groups.bounds.tolist()
        self._order = None if groups._is_sorted else groups.order
        self._place = {value: at for at, value in enumerate(self.values.tolist())}

    def rows(self, value: int) -> Int64:
        """Row numbers of one value, ascending; empty if it is not there."""
        at = self._place.get(value, -1)
        if at < 0:
            return np.empty(0, dtype=np.int64)
        begin, end = self._bounds[at], self._bounds[at + 1]
        return np.arange(begin, end) if self._order is None else self._order[begin:end]


def order_by(*columns: Any) -> Int64:
    """Order of the rows by the columns, the most significant first; equal rows keep theirs.

    >>> order_by(np.array([2, 1, 2, 1]), -np.array([5, 6, 7, 8])).tolist()
    [3, 1, 2, 0]
    """
    return np.lexsort(columns[::-1])


def stable_order(numbers: Int64) -> Int64:
    """Order of small integers that are not negative, equal ones in their own order: faster than sorting."""
    order = np.argsort(numbers.astype(np.uint16), kind="stable")  # numpy sorts 16 bits by counting
    rest = numbers >> 16
    while rest.any():
        order = order[np.argsort(rest[order].astype(np.uint16), kind="stable")]
        rest = rest >> 16
    return order


class _Part:
    """How one column becomes integers from 0: their distance from the smallest, else the place in a sorted list."""

    span: int

    def fit(self, column: npt.NDArray[Any]) -> Int64:
        """Learn a column; its codes."""
        self._distinct: npt.NDArray[Any] | None = None
        self._kind: Any = np.uint64 if column.dtype == np.uint64 else np.int64
        if column.dtype.kind in "iub":
            self._least, self._most = (int(column.min()), int(column.max())) if len(column) else (0, 0)
            self.span = self._most - self._least + 1
            if self.span <= _WIDEST_RANGE:
                return self._distance(column.astype(self._kind, copy=False))
        self._distinct, codes = np.unique(column, return_inverse=True)
        self.span = max(len(self._distinct), 1)
        return codes.reshape(-1)

    def of(self, column: npt.NDArray[Any]) -> Int64:
        """Codes of other values, -1 of those that the column did not have."""
        if column.dtype.kind in "iub":
            column = column.astype(self._kind, copy=False)
        if self._distinct is not None:
            return _places(self._distinct, column)
        inside = (column >= self._least) & (column <= self._most)
        return np.where(inside, self._distance(column), -1)

    def _distance(self, column: npt.NDArray[Any]) -> Int64:
        distance: Int64 = (column - self._kind(self._least)).view(np.int64)
        return distance


class _Packing:
    """Makes one integer of the key of each row, in the order of the keys."""

    def __init__(self) -> None:
        self._parts: list[tuple[_Part, Int64 | None]] = []

    def fit(self, columns: Sequence[npt.NDArray[Any]]) -> tuple[Int64, int]:
        """Learn columns; the codes of their rows, and what all of them are below."""
        codes, span = np.zeros(0, dtype=np.int64), 1
        for column in columns:
            part, known = _Part(), None
            part_codes = part.fit(column)
            if span * part.span > _LARGEST_CODE:
                known, codes = np.unique(codes, return_inverse=True)
                codes, span = codes.reshape(-1), len(known)
            codes, span = codes * part.span + part_codes if self._parts else part_codes, span * part.span
            self._parts.append((part, known))
        return codes, span

    def pack(self, columns: Sequence[npt.NDArray[Any]]) -> Int64:
        """Codes of other rows, -1 of those with a value that no row had."""
        first, *others = zip(self._parts, columns, strict=True)
        (part, _), column = first
        codes = part.of(column)
        for (part, known), column in others:
            if known is not None:
                codes = np.where(codes >= 0, _places(known, codes), -1)
            part_codes = part.of(column)
            codes = np.where((codes >= 0) & (part_codes >= 0), codes * part.span + part_codes, -1)
        return codes


def _number(codes: Int64, span: int) -> tuple[Int64, Int64]:
    """Place of each code, all of them from 0 to below ``span``, among the distinct ones, and these."""
    if _is_ascending(codes):
        new = _changes([codes])
        return np.cumsum(new) - 1, codes[new]
    if span > _CODES_PER_ROW * len(codes) + _CODES_IN_ADDITION:
        distinct, number = np.unique(codes, return_inverse=True)
        return number, distinct
    occurs = np.zeros(span, dtype=bool)
    occurs[codes] = True
    return (np.cumsum(occurs) - 1)[codes], np.flatnonzero(occurs)


def _is_ascending(column: npt.NDArray[Any]) -> bool:
    return len(column) < 2 or bool((column[1:] >= column[:-1]).all())


def _changes(columns: Sequence[npt.NDArray[Any]]) -> Bools:
    """Whether each row differs from the one before; true for the first."""
    new = np.ones(len(columns[0]), dtype=bool)
    if len(new):
        np.not_equal(columns[0][1:], columns[0][:-1], out=new[1:])
        for column in columns[1:]:
            new[1:] |= column[1:] != column[:-1]
    return new


def _places(known: npt.NDArray[Any], values: npt.NDArray[Any]) -> Int64:
    """Place of each value in an ascending array, -1 where it has none."""
    if not len(known):
        return np.full(len(values), -1, dtype=np.int64)
    at = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.where(known[at] == values, at, -1)
