"""Chains of waits: who is at their end, circles, and sums that hold."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stashtrace.analysis.intervals import int64
from stashtrace.analysis.late.chains import roots
from stashtrace.analysis.stalls.index import Tagged


def waits(*pieces: tuple[int, int, int]) -> Tagged:
    """(begin, end, rank that is waited for)."""
    return Tagged(*(int64([piece[at] for piece in pieces]) for at in range(3)))


def rows(found: Tagged) -> list[tuple[int, int, int]]:
    return list(zip(found.begin.tolist(), found.end.tolist(), found.tag.tolist(), strict=True))


def test_a_chain_ends_at_whom_nothing_holds_up() -> None:
    found = roots({3: waits((0, 10, 2)), 2: waits((0, 6, 1)), 1: waits((0, 2, 0))})
    assert rows(found[3]) == [(0, 2, 0), (2, 6, 1), (6, 10, 2)]
    assert rows(found[2]) == [(0, 2, 0), (2, 6, 1)]


def test_a_circle_keeps_whom_each_waits_for() -> None:
    found = roots({0: waits((0, 4, 1)), 1: waits((2, 6, 0))})
    assert rows(found[0]) == [(0, 2, 1), (2, 4, 1)]
    assert rows(found[1]) == [(2, 4, 0), (4, 6, 0)]


def test_an_unknown_rank_ends_a_chain() -> None:
    assert rows(roots({1: waits((0, 4, 0)), 0: waits((1, 2, -1))})[1]) == [(0, 1, 0), (1, 2, -1), (2, 4, 0)]


@given(
    st.dictionaries(
        st.integers(0, 4),
        st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(-1, 4)), max_size=6),
    )
)
def test_each_instant_goes_to_one_root(gaps: dict[int, list[tuple[int, int, int]]]) -> None:
    late = {}
    for rank, pieces in gaps.items():
        at, own = 0, []
        for gap, length, cause in pieces:
            if cause != rank:
                own.append((at + gap, at + gap + length, cause))
            at += gap + length
        late[rank] = waits(*own)
    for rank, found in roots(late).items():
        instants = [t for b, e, _ in rows(late[rank]) for t in range(b, e)]
        assert [t for b, e, _ in rows(found) for t in range(b, e)] == instants
        cause_at = {r: {t: c for b, e, c in rows(x) for t in range(b, e)} for r, x in late.items()}
        for begin, end, root in rows(found):
            for t in range(begin, end):
                seen, at = [rank], cause_at[rank][t]
                while at not in seen and t in cause_at.get(at, {}):
                    seen.append(at)
                    at = cause_at[at][t]
                assert root == (at if at not in seen else cause_at[rank][t])
        assert np.all(found.begin[1:] >= found.end[:-1])
