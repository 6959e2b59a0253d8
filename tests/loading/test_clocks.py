"""Ticks to ns: exact at anchors, monotonic, honest about its error."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stashtrace.loading.clocks.host_clock import Readings, TickMap, realtime_offset, tick_map

HZ = 2_894_000_000
T0, N0, OFFSET = 7_000_000_000_000_000, 3_000_000_000_000, 1_700_000_000_000_000_000


def readings(ns: np.ndarray, *, ppb: int = 0, noise_ns: int = 0, bracket_ns: int = 20, seed: int = 0) -> Readings:
    """Readings of a TSC that runs ``ppb`` fast, each wrong by up to ``noise_ns``."""
    true = ns.astype(object)
    ticks = np.array([T0 + (n - N0) * HZ // 10**9 + (n - N0) * HZ * ppb // 10**18 for n in true], dtype=np.int64)
    wrong = np.random.default_rng(seed).integers(-noise_ns, noise_ns + 1, len(ns))
    return Readings(ticks, ns + wrong, ns + wrong + OFFSET, np.full(len(ns), bracket_ns))


def test_recovers_time_within_the_claimed_error() -> None:
    at = N0 + np.arange(0, 120_000_000_000, 1_000_000_000)
    given_readings = readings(at, ppb=40_000, noise_ns=10, bracket_ns=20)
    mapped = tick_map(given_readings, HZ)
    exact = readings(N0 + np.arange(0, 119_000_000_000, 77_777_777), ppb=40_000)
    error = np.abs(mapped(exact.ticks.view(np.uint64)) - exact.monotonic_ns)
    assert error.max() <= mapped.error_ns + 1
    assert 10 <= mapped.error_ns <= 40


def test_wide_readings_do_not_disturb_narrow_ones() -> None:
    narrow = readings(N0 + np.arange(0, 20_000_000_000, 1_000_000_000), noise_ns=5, bracket_ns=10)
    wide = readings(N0 + np.arange(500_000, 20_000_000_000, 100_000_000), noise_ns=9_000, bracket_ns=20_000, seed=1)
    mapped = tick_map(Readings.concat([wide, narrow]), HZ)
    exact = readings(N0 + np.arange(0, 19_000_000_000, 10_000_000))
    assert np.abs(mapped(exact.ticks.view(np.uint64)) - exact.monotonic_ns).max() <= 10


def test_a_single_reading_goes_on_at_the_nominal_rate() -> None:
    mapped = tick_map(readings(np.array([N0])), HZ)
    assert mapped(np.array([T0, T0 + HZ, T0 - HZ], dtype=np.uint64)).tolist() == [N0, N0 + 10**9, N0 - 10**9]


def test_an_unbracketed_reading_says_so() -> None:
    one = Readings(np.array([T0]), np.array([N0]), np.array([N0 + OFFSET]), np.array([-1]))
    assert tick_map(one, HZ).error_ns >= 1000


def test_contradicting_readings_are_counted() -> None:
    good = readings(N0 + np.arange(0, 30_000_000_000, 1_000_000_000))
    bad = Readings(*(a.copy() for a in (good.ticks, good.monotonic_ns, good.realtime_ns, good.bracket_ns)))
    bad.monotonic_ns[7] += 40_000_000_000
    mapped = tick_map(bad, HZ)
    assert mapped.rejected_count == 1
    assert abs(int(mapped(good.ticks[9:10].view(np.uint64))[0]) - int(good.monotonic_ns[9])) <= 1


def test_a_wrong_rate_in_the_header_does_not_matter() -> None:
    """The recorder measures it within a few ms of the start; readings a second apart know better."""
    at = N0 + np.arange(0, 5_000_000_000, 1_000_000_000)
    mapped = tick_map(readings(at), HZ * 1.01)
    assert mapped.rejected_count == 0
    assert mapped(readings(at + 7).ticks.view(np.uint64)).tolist() == (at + 7).tolist()


def test_where_the_clock_jumped_the_longer_part_counts() -> None:
    jumped = readings(N0 + np.arange(0, 30_000_000_000, 1_000_000_000))
    jumped.monotonic_ns[20:] += 3_600_000_000_000
    mapped = tick_map(jumped, HZ)
    assert mapped.rejected_count == 10
    assert mapped(jumped.ticks[5:6].view(np.uint64)).tolist() == jumped.monotonic_ns[5:6].tolist()


def test_clock_that_counts_ns_is_the_identity() -> None:
    at = N0 + np.arange(0, 5_000_000_000, 1_000_000_000)
    mapped = tick_map(Readings(at, at, at + OFFSET, np.full(5, 20)), 1e9)
    ticks = np.array([N0 + 1, N0 + 123_456_789, N0 + 4_999_999_999], dtype=np.uint64)
    assert mapped(ticks).tolist() == ticks.astype(np.int64).tolist()


@given(
    st.lists(st.tuples(st.integers(1, 10**10), st.integers(1, 10**10)), min_size=1, max_size=20),
    st.lists(st.integers(-(10**10), 10**11), min_size=1, max_size=50),
)
def test_exact_at_anchors_and_monotonic(steps: list[tuple[int, int]], probes: list[int]) -> None:
    ticks = T0 + np.cumsum([0] + [s[0] for s in steps])
    ns = N0 + np.cumsum([0] + [s[1] for s in steps])
    mapped = TickMap(ticks.astype(np.int64), ns.astype(np.int64), 0)
    assert mapped(ticks.astype(np.uint64)).tolist() == ns.tolist()
    moments = np.sort(np.array([T0 + p for p in probes] + ticks.tolist(), dtype=np.uint64))
    assert (np.diff(mapped(moments)) >= 0).all()


def test_an_order_of_rows_does_not_matter() -> None:
    mapped = tick_map(readings(N0 + np.arange(0, 10_000_000_000, 1_000_000_000), noise_ns=9), HZ)
    ticks = np.random.default_rng(3).integers(T0, T0 + 10 * HZ, 1000).astype(np.uint64)
    one_by_one = [int(mapped(ticks[i : i + 1])[0]) for i in range(len(ticks))]
    assert mapped(ticks).tolist() == one_by_one
    assert len(mapped(ticks[:0])) == 0


def test_realtime_offset_and_its_spread() -> None:
    given_readings = readings(N0 + np.arange(0, 10_000_000_000, 1_000_000_000))
    assert realtime_offset(given_readings) == (OFFSET, 0)
    given_readings.realtime_ns[3] += 500
    assert realtime_offset(given_readings) == (OFFSET, 250)


def test_bad_anchors_are_refused() -> None:
    with pytest.raises(ValueError, match="ascend"):
        TickMap(np.array([5, 5]), np.array([1, 2]), 0)(np.array([1], dtype=np.uint64))
