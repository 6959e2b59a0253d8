"""The interval kernels against a brute-force model: a set of integers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stashtrace._native import intervals

LIMIT = 60
interval = st.tuples(st.integers(0, LIMIT), st.integers(-2, 15)).map(lambda p: (p[0], p[0] + p[1]))
any_intervals = st.lists(interval, max_size=12)


@st.composite
def disjoint(draw: st.DrawFn) -> list[tuple[int, int]]:
    edges = sorted(draw(st.sets(st.integers(0, LIMIT), max_size=16)))
    pairs = list(itertools.pairwise(edges))
    return [p for p in pairs if draw(st.booleans())]


def columns(rows: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return table[:, 0].copy(), table[:, 1].copy()


def points(rows) -> set[int]:
    return {t for b, e in rows for t in range(b, e)}


def as_set(result) -> set[int]:
    begin, end = result
    rows = list(zip(begin.tolist(), end.tolist(), strict=True))
    assert all(b < e for b, e in rows)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(rows)), "touching or overlapping"
    return points(rows)


@given(any_intervals, any_intervals)
def test_set_algebra(a, b) -> None:
    assert as_set(intervals.union(*columns(a))) == points(a)
    assert as_set(intervals.intersect(*columns(a), *columns(b))) == points(a) & points(b)
    assert as_set(intervals.subtract(*columns(a), *columns(b))) == points(a) - points(b)
    assert as_set(intervals.complement(*columns(a), 5, 50)) == set(range(5, 50)) - points(a)


@given(any_intervals, any_intervals)
def test_coverage(a, queries) -> None:
    expected = [len(points(a) & points([q])) for q in queries]
    assert intervals.coverage(*columns(a), *columns(queries)).tolist() == expected


@given(disjoint(), st.lists(st.integers(-3, LIMIT + 3), max_size=20))
def test_locate(rows, wanted) -> None:
    expected = [next((i for i, (b, e) in enumerate(rows) if b <= t < e), -1) for t in wanted]
    assert intervals.locate(*columns(rows), np.array(wanted, dtype=np.int64)).tolist() == expected


@given(disjoint(), disjoint())
def test_join(a, b) -> None:
    expected = sorted(
        (max(x[0], y[0]), min(x[1], y[1]), i, j)
        for i, x in enumerate(a)
        for j, y in enumerate(b)
        if max(x[0], y[0]) < min(x[1], y[1])
    )
    found = intervals.join(*columns(a), *columns(b))
    assert list(zip(*(c.tolist() for c in found), strict=True)) == expected


@given(st.lists(any_intervals, max_size=4), disjoint())
def test_paint_and_attribute(layers, windows) -> None:
    owner = {t: k for k in reversed(range(len(layers))) for t in points(layers[k])}
    begin, end, layer = (c.tolist() for c in intervals.paint([columns(x) for x in layers]))
    painted = [(t, k) for b, e, k in zip(begin, end, layer, strict=True) for t in range(b, e)]
    assert dict(painted) == owner
    assert len(painted) == len(owner)
    matrix = intervals.attribute([columns(x) for x in layers], *columns(windows))
    for row, window in zip(matrix, windows, strict=True):
        inside = [owner.get(t, len(layers)) for t in range(*window)]
        assert row.tolist() == [inside.count(k) for k in range(len(layers) + 1)]


def test_windows_must_be_a_set() -> None:
    with pytest.raises(ValueError, match="sorted"):
        intervals.attribute([], np.array([5, 0]), np.array([9, 3]))
    with pytest.raises(ValueError, match="length"):
        intervals.union(np.array([5, 0]), np.array([9]))


def test_large_values_survive() -> None:
    big = 2**62
    begin, end = intervals.union(np.array([big, -big]), np.array([big + 7, -big + 1]))
    assert (begin.tolist(), end.tolist()) == ([-big, big], [-big + 1, big + 7])
