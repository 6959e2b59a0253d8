"""Device time to common time: within the error it claims, monotonic, and honest about what it does not know."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from stashtrace.loading.clocks.device_clock import DeviceReadings, device_time
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
