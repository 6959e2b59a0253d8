"""What answers leave open: noise that holds the mean of another recording, and contention that a replay exaggerates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from replay.loader_jobs import Job

from stashtrace.analysis.graph import build
from stashtrace.replay import what_if
from stashtrace.replay.prediction_intervals import Contention, noise_ns

MS = 1e6
_BETWEEN = 0.03


def noise_of(*lengths_ms: float) -> float:
    return noise_ns(np.array(lengths_ms) * MS) / MS


def test_steps_that_never_differ_leave_what_recordings_differ_by() -> None:
    assert noise_of(*[10.0] * 40) == pytest.approx(_BETWEEN * 10)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_fewer_than_four_steps_do_not_say_how_steps_scatter(count: int) -> None:
    """However similar they are: each is taken to be off by a tenth, and the mean by twice that over the root."""
    assert noise_of(*[10.0] * count) == pytest.approx(10 * math.hypot(_BETWEEN, 0.2 / math.sqrt(count)))


def test_four_steps_scatter_as_student_says() -> None:
    """9, 9, 11, 11 ms: a deviation of 1.155 ms, half of it of the mean, and 3.182 of that on a side."""
    assert noise_of(9, 11, 9, 11) == pytest.approx(math.hypot(_BETWEEN * 10, 3.182 * math.sqrt(4 / 3) / 2))


@pytest.mark.parametrize("count", [4, 7, 12, 25, 55])
def test_the_mean_of_all_steps_is_within_the_noise_of_some(count: int) -> None:
    """Steps of 100 ms that scatter by 20: without what recordings differ by the mean is in 95 of 100 draws."""
    draws = np.random.default_rng(0).normal(100.0, 20.0, (2000, count))
    noises = np.array([noise_ns(draw) for draw in draws])
    scatter = np.sqrt(np.maximum(noises**2 - (_BETWEEN * draws.mean(axis=1)) ** 2, 0.0))
    assert np.mean(np.abs(draws.mean(axis=1) - 100.0) <= scatter) == pytest.approx(0.95, abs=0.015)


def test_steps_that_are_similar_for_a_while_count_for_less() -> None:
    """Five steps of 90 ms, then five of 110: ten such stretches count as ten steps, not as fifty."""
    stretches = noise_ns(np.repeat([90.0, 110.0] * 5, 5))
    singles = noise_ns(np.tile([90.0, 110.0], 25))
    of_ten = 2.262 * np.std([90.0, 110.0] * 5, ddof=1) / math.sqrt(10)
    assert stretches == pytest.approx(math.hypot(_BETWEEN * 100, of_ten))
    assert singles < stretches / 2


def test_a_replay_that_exaggerates_contention_does_so_again() -> None:
    """4 ms of waiting by the replay were 2 ms in the run, which takes 12 ms: 3 ms of 10 are 1.5 ms, and 6 are 3 ms."""
    run = Contention(measured_ns=12 * MS, shared_ns=14 * MS, free_ns=10 * MS)
    low, high = run.bounds_ns(10 * MS, 7 * MS)
    assert low <= 8.5 * MS <= high
    assert high - low < 1.1 * MS
    low, high = run.bounds_ns(26 * MS, 20 * MS)
    assert low <= 23 * MS <= high
    assert high - low < 1.7 * MS


def test_what_little_contention_says_of_much_is_little() -> None:
    """0.2 ms of waiting by the replay were none; of 4 ms it says at most that 0.2 more are none."""
    run = Contention(measured_ns=10 * MS, shared_ns=10.2 * MS, free_ns=10 * MS)
    low, high = run.bounds_ns(14 * MS, 10 * MS)
    doubt = 0.25 * 3.8
    assert (low / MS, high / MS) == pytest.approx((14 - 0.2 * (2 - 0.2 / 4) - doubt, 13.8 + doubt))


def test_contention_that_stays_is_not_doubtful() -> None:
    """Five ms without a wait for a CPU go: what the replay says of them is exact."""
    run = Contention(measured_ns=12 * MS, shared_ns=14 * MS, free_ns=10 * MS)
    assert run.bounds_ns(9 * MS, 5 * MS) == pytest.approx((7 * MS, 7 * MS))


def test_contention_that_goes_takes_between_all_and_its_part_of_the_miss_along() -> None:
    """Nobody waits any more: 10 ms of work are left, less a part of the 2 ms that may be no waits for a CPU."""
    run = Contention(measured_ns=12 * MS, shared_ns=14 * MS, free_ns=10 * MS)
    low, high = run.bounds_ns(10 * MS, 10 * MS)
    assert (low / MS, high / MS) == pytest.approx((10 - 0.25 * 2, 10 + 0.25 * 4))


def test_a_step_is_not_shorter_than_its_work() -> None:
    """The replay of a run whose CPUs others use has 200 ms of waits that were 2: its error says nothing of 48 ms."""
    run = Contention(measured_ns=50 * MS, shared_ns=250 * MS, free_ns=48 * MS)
    low, _ = run.bounds_ns(240 * MS, 47 * MS)
    assert low >= (47 - 0.5) * MS


def test_contention_that_was_not_there_is_taken_as_the_replay_has_it() -> None:
    run = Contention(measured_ns=10 * MS, shared_ns=10 * MS, free_ns=10 * MS)
    assert run.bounds_ns(14 * MS, 10 * MS) == pytest.approx((13 * MS, 15 * MS))


def test_the_answer_says_how_many_steps_it_is_over() -> None:
    answer = what_if(build(Job(1, batch_ns=3_000_000, step_ns=2_000_000, steps=30).run().trace()), [])
    assert 20 <= answer.steps_count < 30
    assert answer.interval_ns == pytest.approx((answer.low_ns - answer.noise_ns, answer.high_ns + answer.noise_ns))
