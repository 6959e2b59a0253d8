"""Groups of rows against a reference in plain Python: keys, numbers, rows, sums, extremes, quantiles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stashtrace.schema.groupby import GroupBy, RowsBy, order_by, stable_order

#: Few distinct values, values far apart, hashes, texts: each takes another way to numbers.
COLUMNS = {
    "near": (st.integers(-3, 3), np.int64),
    "small": (st.integers(0, 2), np.int32),
    "far": (st.sampled_from([-(2**62), -1, 0, 7, 2**40, 2**62]), np.int64),
    "hash": (st.sampled_from([0, 5, 2**63 + 1, 2**64 - 1]), np.uint64),
    "text": (st.sampled_from(["", "a", "ab", "b"]), np.str_),
    "flag": (st.booleans(), np.bool_),
}


@st.composite
def keyed_rows(draw: st.DrawFn) -> tuple[list[np.ndarray], list[tuple[Any, ...]]]:
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=4))
    keys = draw(st.lists(st.tuples(*(COLUMNS[name][0] for name in names)), max_size=30))
    if draw(st.booleans()):
        keys.sort()
    columns = [np.array([key[at] for key in keys], dtype=COLUMNS[name][1]) for at, name in enumerate(names)]
    return columns, keys


def rows_by_key(keys: list[Any]) -> dict[Any, list[int]]:
    rows: dict[Any, list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, []).append(row)
    return dict(sorted(rows.items()))


@given(keyed_rows())
def test_numbers_keys_and_rows(case: tuple[list[np.ndarray], list[tuple[Any, ...]]]) -> None:
    columns, keys = case
    groups, expected = GroupBy(*columns), rows_by_key(keys)
    assert len(groups) == len(expected)
    assert list(zip(*(column.tolist() for column in groups.keys), strict=True)) == list(expected)
    assert [column.dtype for column in groups.keys] == [column.dtype for column in columns]
    assert groups.number.tolist() == [list(expected).index(key) for key in keys]
    assert groups.first.tolist() == [rows[0] for rows in expected.values()]
    assert groups.last.tolist() == [rows[-1] for rows in expected.values()]
    assert groups.sizes.tolist() == [len(rows) for rows in expected.values()]
    assert groups.order.tolist() == [row for rows in expected.values() for row in rows]
    assert [rows.tolist() for rows in groups] == list(expected.values())
    assert [(key, rows.tolist()) for *key, rows in groups.items()] == [(list(k), r) for k, r in expected.items()]
    assert groups.position.tolist() == [expected[key].index(row) for row, key in enumerate(keys)]


@given(st.lists(st.one_of(st.integers(-2, 4), st.integers(-(2**63), 2**63 - 1)), max_size=20), st.booleans())
def test_rows_by_value(keys: list[int], ascending: bool) -> None:
    keys = sorted(keys) if ascending else keys
    by_value, expected = RowsBy(np.array(keys, dtype=np.int64)), rows_by_key(keys)
    assert by_value.values.tolist() == list(expected)
    assert [by_value.rows(value).tolist() for value in (*expected, 5)] == [*expected.values(), []]


@given(keyed_rows(), st.data())
def test_keys_are_found(case: tuple[list[np.ndarray], list[tuple[Any, ...]]], data: st.DataObject) -> None:
    columns, keys = case
    groups, expected = GroupBy(*columns), rows_by_key(keys)
    others = {
        "i": st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-4, 8)),
        "u": st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 8)),
        "U": st.text("abc", max_size=2),
        "b": st.booleans(),
    }
    # int32 columns are asked with int64 values, as they are in practice; texts may be longer than any in the column.
    types = [{"i": np.int64, "U": np.str_}.get(column.dtype.kind, column.dtype) for column in columns]
    strange = data.draw(st.lists(st.tuples(*(others[column.dtype.kind] for column in columns)), max_size=5))
    asked = [*keys, *strange]
    wanted = [np.array([key[at] for key in asked], dtype=dtype) for at, dtype in enumerate(types)]
    assert groups.find(*wanted).tolist() == [list(expected).index(key) if key in expected else -1 for key in asked]
    assert groups.row_of(*wanted).tolist() == [expected.get(key, [-1])[0] for key in asked]


@given(keyed_rows())
def test_runs_are_rows_that_stand_together(case: tuple[list[np.ndarray], list[tuple[Any, ...]]]) -> None:
    columns, keys = case
    runs: list[list[int]] = []
    for row, key in enumerate(keys):
        if row and keys[row - 1] == key:
            runs[-1].append(row)
        else:
            runs.append([row])
    groups = GroupBy.runs(*columns)
    assert [rows.tolist() for rows in groups] == runs
    assert list(zip(*(column.tolist() for column in groups.keys), strict=True)) == [keys[run[0]] for run in runs]


VALUES = {
    np.int64: st.one_of(st.integers(-5, 5), st.integers(-(2**57), 2**57)),
    np.int32: st.integers(-(2**31), 2**31 - 1),
    np.uint8: st.integers(0, 255),
    np.float64: st.floats(-1e9, 1e9),
}


@st.composite
def numbered_values(draw: st.DrawFn) -> tuple[int, list[int], np.ndarray, list[bool]]:
    count, dtype = draw(st.integers(1, 6)), draw(st.sampled_from(list(VALUES)))
    rows = draw(st.lists(st.tuples(st.integers(-1, count - 1), VALUES[dtype], st.booleans()), max_size=30))
    number, values, where = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    return count, number, np.array(values, dtype=dtype), where


def added(values: Iterable[Any]) -> Any:
    total = 0  # sum() of Python 3.12 and later makes up for what rounding loses
    for value in values:
        total += value
    return total


def quantile(values: list[Any], percent: int) -> Any:
    return sorted(values)[max(-(-len(values) * percent // 100) - 1, 0)]


def median(values: list[Any], exact: bool) -> Any:
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return (low + high) // 2 if exact else (low + high) / 2


@given(numbered_values())
def test_one_value_for_each_group(case: tuple[int, list[int], np.ndarray, list[bool]]) -> None:
    count, number, values, where = case
    groups, mask, plain, exact = (
        GroupBy.numbered(np.array(number, dtype=np.int64), count),
        np.array(where, dtype=bool),
        values.tolist(),
        values.dtype.kind != "f",
    )
    members = [[row for row, own in enumerate(number) if own == at] for at in range(count)]
    chosen = [[row for row in rows if where[row]] for rows in members]
    assert groups.sizes.tolist() == [len(rows) for rows in members]
    assert groups.first.tolist() == [min(rows, default=-1) for rows in members]
    assert groups.last.tolist() == [max(rows, default=-1) for rows in members]
    assert [rows.tolist() for rows in groups] == members
    assert groups.any(mask).tolist() == [any(where[row] for row in rows) for rows in members]
    assert groups.all(mask).tolist() == [all(where[row] for row in rows) for rows in members]
    for rows_of, condition in ((members, None), (chosen, mask)):
        assert groups.count(condition).tolist() == [len(rows) for rows in rows_of]
        assert groups.sum(values, condition).tolist() == [added(plain[row] for row in rows) for rows in rows_of]
        for ours, reference, row_of in ((groups.min, min, groups.argmin), (groups.max, max, groups.argmax)):
            best = [reference((plain[row] for row in rows), default=-7) for rows in rows_of]
            if (exact and values.dtype != np.uint8) or all(rows_of):
                assert ours(values, condition, empty=-7).tolist() == best
            holders = [
                next((row for row in rows if plain[row] == b), -1) for rows, b in zip(rows_of, best, strict=True)
            ]
            assert row_of(values, condition).tolist() == holders
    for percent in (0, 50, 95, 100):
        expected = [quantile([plain[row] for row in rows], percent) if rows else 0 for rows in members]
        assert groups.quantile(values, percent, empty=0).tolist() == expected
    expected = [median([plain[row] for row in rows], exact) if rows else 0 for rows in members]
    assert groups.median(values, empty=0).tolist() == expected
    if exact:
        before = [sum(plain[r] for r in range(row) if number[r] == own >= 0) for row, own in enumerate(number)]
        assert groups.sum_before(values).tolist() == before
        bits = [0] * count
        for own, value in zip(number, plain, strict=True):
            if own >= 0:
                bits[own] |= value
        assert groups.bits(values).tolist() == bits


@given(st.lists(st.tuples(st.integers(-1, 2), st.integers(-1, 3), st.integers(-9, 9)), max_size=30))
def test_cells_of_an_array(rows: list[tuple[int, int, int]]) -> None:
    first, second, values = (np.array([row[at] for row in rows], dtype=np.int64) for at in range(3))
    expected, sizes, places = np.zeros((3, 4), dtype=np.int64), np.zeros((3, 4), dtype=np.int64), first.copy()
    for a, b, value in rows:
        if a >= 0 and b >= 0:
            expected[a, b] += value
            sizes[a, b] += 1
    groups = GroupBy.cells((first.astype(np.int32), second), (3, 4))
    assert (groups.sum(values) == expected).all()
    assert (groups.sizes == sizes).all()
    assert (groups.max(values, empty=-99) == -99).tolist() == (sizes == 0).tolist()
    assert (first == places).all(), "the places that were given have changed"
    both = groups.sum(np.stack([values, -values], axis=1))
    assert both.shape == (3, 4, 2)
    assert (both[..., 0] == expected).all()
    assert (both[..., 1] == -expected).all()


def test_sums_of_nanoseconds_are_exact() -> None:
    late = np.array([2**62, 1, 2**53, 1], dtype=np.int64)
    assert GroupBy(np.array([1, 1, 0, 0])).sum(late).tolist() == [2**53 + 1, 2**62 + 1]


def test_many_distinct_keys_of_many_columns_are_packed_in_pieces() -> None:
    random = np.random.default_rng(3)
    columns = [random.integers(-(2**62), 2**62, 5000) for _ in range(6)]
    columns = [np.concatenate([column, column[:100]]) for column in columns]
    groups = GroupBy(*columns)
    assert len(groups) == 5000
    assert (groups.number[5000:] == groups.number[:100]).all()
    assert (groups.find(*columns) == groups.number).all()
    columns[3][0] += 1
    assert groups.find(*columns)[0] == -1


def test_an_empty_group_needs_a_value() -> None:
    groups = GroupBy.numbered(np.array([0, 2]), 3)
    for result in (groups.min, groups.max, groups.median, lambda values: groups.quantile(values, 50)):
        with pytest.raises(ValueError, match="a group has no rows"):
            result(np.array([4, 5]))


def test_wrong_keys_are_refused() -> None:
    again = GroupBy.runs(np.array([1, 2, 1]))
    for ask in (again.find, again.row_of):
        with pytest.raises(TypeError, match="only where these ascend"):
            ask(np.array([1]))
    with pytest.raises(ValueError, match="one length"):
        GroupBy(np.arange(3), np.arange(4))
    with pytest.raises(IndexError, match="group 3 of 3"):
        GroupBy.numbered(np.array([0, 3]), 3)
    with pytest.raises(TypeError, match="only groups of columns"):
        GroupBy.numbered(np.array([0]), 1).find(np.array([0]))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-3, 3)), max_size=20))
def test_order_by_the_most_significant_first(rows: list[tuple[int, int]]) -> None:
    major, minor = (np.array([row[at] for row in rows], dtype=np.int64) for at in range(2))
    assert order_by(major, -minor).tolist() == sorted(range(len(rows)), key=lambda at: (rows[at][0], -rows[at][1]))


@settings(max_examples=20)
@given(st.lists(st.integers(0, 2**40), max_size=300), st.sampled_from([3, 2**16, 2**33, 2**41]))
def test_stable_order(numbers: list[int], modulus: int) -> None:
    small = np.array(numbers, dtype=np.int64) % modulus
    assert stable_order(small).tolist() == np.argsort(small, kind="stable").tolist()
