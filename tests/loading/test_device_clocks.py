"""Device time to common time: within the error it claims, monotonic, and honest about what it does not know."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stashtrace.loading.clocks.device_clock import DeviceReadings, device_time
from stashtrace.loading.clocks.host_clock import Readings, TickMap, realtime_offset, tick_map
from stashtrace.schema.kinds import DeviceClock

S = 1_000_000_000
COMMON_NS, DEVICE_NS = 5 * S, 40 * S


def on_device(common: np.ndarray, ppb: int, wave_ns: int = 0) -> np.ndarray:
    """The device's clock at these moments: offset, drift, and a slow wave if asked for."""
    since = common.astype(np.int64) - COMMON_NS
    wave = np.round(wave_ns * np.sin(since / (20 * S))).astype(np.int64)
    return DEVICE_NS + since + since * ppb // 10**9 + wave


def readings(at: np.ndarray, half: np.ndarray, ppb: int, seed: int = 0, wave_ns: int = 0) -> DeviceReadings:
    """Readings whose true moment lies anywhere within the bracket."""
    place = np.random.default_rng(seed).uniform(-1, 1, len(at))
    shown = at + np.round(place * half).astype(np.int64)
    return DeviceReadings(on_device(shown, ppb, wave_ns), at.astype(np.int64), half.astype(np.int64))


def mapped(time, device: np.ndarray) -> np.ndarray:
    return time.to_common(device.astype(np.int64).view(np.uint64))


@example(ppb=0, halves=[801, 801, 801, 200, 200, 956], spacing_ms=3130, jitter=0)
@given(
    ppb=st.integers(-200_000, 200_000),
    halves=st.lists(st.integers(200, 60_000), min_size=2, max_size=40),
    spacing_ms=st.integers(500, 4000),
    jitter=st.integers(0, 2**32),
)
def test_true_time_is_within_the_claimed_error(ppb: int, halves: list[int], spacing_ms: int, jitter: int) -> None:
    half = np.array(halves)
    rng = np.random.default_rng(jitter)
    at = COMMON_NS + np.cumsum(np.full(len(half), spacing_ms * 1_000_000) + rng.integers(0, 200_000_000, len(half)))
    time = device_time(readings(at, half, ppb, jitter), DeviceClock.CUPTI)
    moments = rng.integers(at[0], at[-1], 200)
    error = np.abs(mapped(time, on_device(moments, ppb)) - moments)
    assert error.max() <= time.error_ns + 1
    assert time.error_ns <= 6 * half.max() + 10
    ordered = np.sort(rng.integers(DEVICE_NS - 3 * S, DEVICE_NS + 200 * S, 300))
    assert (np.diff(mapped(time, ordered)) >= 0).all()


@given(ppb=st.integers(-200_000, 200_000), half=st.integers(200, 20_000), seed=st.integers(0, 999))
def test_one_interval_outside_the_readings_too(ppb: int, half: int, seed: int) -> None:
    at = COMMON_NS + np.arange(5) * 2 * S
    time = device_time(readings(at, np.full(5, half), ppb, seed), DeviceClock.CUPTI)
    moments = np.array([at[0] - 2 * S, at[-1] + 2 * S])
    assert np.abs(mapped(time, on_device(moments, ppb)) - moments).max() <= time.error_ns + 1


def test_a_clock_that_wanders_has_a_larger_error_and_keeps_it() -> None:
    at = COMMON_NS + np.arange(60) * 3 * S
    half = np.full(len(at), 300)
    steady = device_time(readings(at, half, 20_000), DeviceClock.CUPTI)
    wandering = device_time(readings(at, half, 20_000, wave_ns=200_000), DeviceClock.CUPTI)
    moments = np.random.default_rng(1).integers(at[0], at[-1], 2000)
    error = np.abs(mapped(wandering, on_device(moments, 20_000, 200_000)) - moments)
    assert 300 < error.max() <= wandering.error_ns
    assert steady.error_ns < wandering.error_ns
    assert steady.anchors_count == 60
    assert abs(steady.drift_ppb + 20_000) < 100


def test_wide_readings_are_left_out() -> None:
    at = COMMON_NS + np.arange(40) * S
    half = np.where(np.arange(40) % 3 == 1, 400_000, 500)
    time = device_time(readings(at, half, 5_000), DeviceClock.CUPTI)
    assert time.anchors_count == 27
    assert time.error_ns < 3_000


def test_narrow_readings_at_one_end_do_not_hide_what_the_others_know() -> None:
    at = COMMON_NS + np.arange(32) * S // 2
    half = np.where(np.arange(32) < 30, 801, 200)
    time = device_time(readings(at, half, 5_000), DeviceClock.CUPTI)
    assert time.error_ns < 3 * 801
    moments = np.random.default_rng(3).integers(at[0], at[-1], 500)
    assert np.abs(mapped(time, on_device(moments, 5_000)) - moments).max() <= time.error_ns + 1


def test_a_busy_while_does_not_widen_the_whole_run() -> None:
    at = COMMON_NS + np.arange(60) * 2 * S
    half = np.where((np.arange(60) > 20) & (np.arange(60) < 36), 900_000, 500)
    time = device_time(readings(at, half, 5_000), DeviceClock.CUPTI)
    assert time.error_ns < 10_000


def test_one_reading_gives_the_offset_alone() -> None:
    time = device_time(DeviceReadings(np.array([DEVICE_NS]), np.array([COMMON_NS]), np.array([700])), DeviceClock.CUPTI)
    assert mapped(time, np.array([DEVICE_NS - 5, DEVICE_NS + 9])).tolist() == [COMMON_NS - 5, COMMON_NS + 9]
    assert (time.error_ns, time.anchors_count, time.drift_ppb) == (700, 1, 0)


def test_steps_of_the_counter_are_part_of_the_error() -> None:
    at = COMMON_NS + np.arange(20) * S
    exact = readings(at, np.full(20, 300), 0)
    coarse = DeviceReadings(exact.device_ns // 1024 * 1024, exact.common_ns, exact.half_ns)
    time = device_time(coarse, DeviceClock.GLOBALTIMER)
    assert time.error_ns >= 1024 + 300
    moments = np.random.default_rng(2).integers(at[0], at[-1], 500)
    error = np.abs(mapped(time, on_device(moments, 0) // 1024 * 1024) - moments)
    assert error.max() <= time.error_ns
    assert device_time(exact, DeviceClock.EVENT).error_ns >= 500 + 300


def test_contradicting_readings_are_counted_and_left_out() -> None:
    at = COMMON_NS + np.arange(30) * S
    good = readings(at, np.full(30, 300), 0)
    wrong = good.device_ns.copy()
    wrong[9] += 7 * S
    time = device_time(DeviceReadings(wrong, good.common_ns, good.half_ns), DeviceClock.CUPTI)
    assert time.rejected_count == 1
    assert np.abs(mapped(time, good.device_ns) - at).max() <= time.error_ns
    assert time.error_ns < 2_000


def test_processes_that_read_a_shared_clock_at_once_do_not_contradict_each_other() -> None:
    at = COMMON_NS + np.repeat(np.arange(20) * 2 * S, 4) + np.tile([0, 3, 900, 5_000], 20)
    time = device_time(readings(at, np.full(80, 4_000), 1_000), DeviceClock.CUPTI)
    assert (time.rejected_count, time.anchors_count) == (0, 20)


def test_equal_readings_are_one() -> None:
    twice = DeviceReadings(np.array([DEVICE_NS] * 2), np.array([COMMON_NS] * 2), np.array([500, 400]))
    assert device_time(twice, DeviceClock.CUPTI).anchors_count == 1


def test_readings_too_wide_for_their_distance_give_no_rate() -> None:
    # 19 ms apart and off by a millisecond: 5.7 % of drift, or 75 ms at the end of a second.
    at, half = COMMON_NS + np.array([0, 18_700_000]), np.array([1_080_000, 2_300])
    found = DeviceReadings(on_device(at, 0) + np.array([1_070_000, 0]), at, half)
    time = device_time(found, DeviceClock.GLOBALTIMER)
    assert (time.anchors_count, time.drift_ppb) == (1, 0)
    late = COMMON_NS + np.array([S])
    assert np.abs(mapped(time, on_device(late, 0)) - late).max() <= time.error_ns


HZ = 2_894_000_000
T0, N0, OFFSET = 7_000_000_000_000_000, 3_000_000_000_000, 1_700_000_000_000_000_000


def read(ns: np.ndarray, *, ppb: int = 0, noise_ns: int = 0, bracket_ns: int = 20, seed: int = 0) -> Readings:
    """Readings of a TSC that runs ``ppb`` fast, each wrong by up to ``noise_ns``."""
    true = ns.astype(object)
    ticks = np.array([T0 + (n - N0) * HZ // 10**9 + (n - N0) * HZ * ppb // 10**18 for n in true], dtype=np.int64)
    wrong = np.random.default_rng(seed).integers(-noise_ns, noise_ns + 1, len(ns))
    return Readings(ticks, ns + wrong, ns + wrong + OFFSET, np.full(len(ns), bracket_ns))


def test_recovers_time_within_the_claimed_error() -> None:
    at = N0 + np.arange(0, 120_000_000_000, 1_000_000_000)
    given_readings = read(at, ppb=40_000, noise_ns=10, bracket_ns=20)
    mapped = tick_map(given_readings, HZ)
    exact = read(N0 + np.arange(0, 119_000_000_000, 77_777_777), ppb=40_000)
    error = np.abs(mapped(exact.ticks.view(np.uint64)) - exact.monotonic_ns)
    assert error.max() <= mapped.error_ns + 1
    assert 10 <= mapped.error_ns <= 40


def test_wide_readings_do_not_disturb_narrow_ones() -> None:
    narrow = read(N0 + np.arange(0, 20_000_000_000, 1_000_000_000), noise_ns=5, bracket_ns=10)
    wide = read(N0 + np.arange(500_000, 20_000_000_000, 100_000_000), noise_ns=9_000, bracket_ns=20_000, seed=1)
    mapped = tick_map(Readings.concat([wide, narrow]), HZ)
    exact = read(N0 + np.arange(0, 19_000_000_000, 10_000_000))
    assert np.abs(mapped(exact.ticks.view(np.uint64)) - exact.monotonic_ns).max() <= 10


def test_a_single_reading_goes_on_at_the_nominal_rate() -> None:
    mapped = tick_map(read(np.array([N0])), HZ)
    assert mapped(np.array([T0, T0 + HZ, T0 - HZ], dtype=np.uint64)).tolist() == [N0, N0 + 10**9, N0 - 10**9]


def test_an_unbracketed_reading_says_so() -> None:
    one = Readings(np.array([T0]), np.array([N0]), np.array([N0 + OFFSET]), np.array([-1]))
    assert tick_map(one, HZ).error_ns >= 1000


def test_contradicting_readings_are_counted() -> None:
    good = read(N0 + np.arange(0, 30_000_000_000, 1_000_000_000))
    bad = Readings(*(a.copy() for a in (good.ticks, good.monotonic_ns, good.realtime_ns, good.bracket_ns)))
    bad.monotonic_ns[7] += 40_000_000_000
    mapped = tick_map(bad, HZ)
    assert mapped.rejected_count == 1
    assert abs(int(mapped(good.ticks[9:10].view(np.uint64))[0]) - int(good.monotonic_ns[9])) <= 1


def test_a_wrong_rate_in_the_header_does_not_matter() -> None:
    """The recorder measures it within a few ms of the start; read a second apart know better."""
    at = N0 + np.arange(0, 5_000_000_000, 1_000_000_000)
    mapped = tick_map(read(at), HZ * 1.01)
    assert mapped.rejected_count == 0
    assert mapped(read(at + 7).ticks.view(np.uint64)).tolist() == (at + 7).tolist()


def test_where_the_clock_jumped_the_longer_part_counts() -> None:
    jumped = read(N0 + np.arange(0, 30_000_000_000, 1_000_000_000))
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
    mapped = tick_map(read(N0 + np.arange(0, 10_000_000_000, 1_000_000_000), noise_ns=9), HZ)
    ticks = np.random.default_rng(3).integers(T0, T0 + 10 * HZ, 1000).astype(np.uint64)
    one_by_one = [int(mapped(ticks[i : i + 1])[0]) for i in range(len(ticks))]
    assert mapped(ticks).tolist() == one_by_one
    assert len(mapped(ticks[:0])) == 0


def test_realtime_offset_and_its_spread() -> None:
    given_readings = read(N0 + np.arange(0, 10_000_000_000, 1_000_000_000))
    assert realtime_offset(given_readings) == (OFFSET, 0)
    given_readings.realtime_ns[3] += 500
    assert realtime_offset(given_readings) == (OFFSET, 250)


def test_bad_anchors_are_refused() -> None:
    with pytest.raises(ValueError, match="ascend"):
        TickMap(np.array([5, 5]), np.array([1, 2]), 0)(np.array([1], dtype=np.uint64))
