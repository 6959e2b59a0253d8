"""Tails of distributions, and the block bootstrap over steps: its blocks, errors, how often an interval is right."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stashtrace.calibration.noise import (
    block_steps,
    share_or_more,
    standard_error,
    student,
    student_tail,
    times_or_more,
    together,
)


def similar(random: np.random.Generator, count: int, likeness: float) -> np.ndarray:
    """Values of variance 1 and mean 0, each like the one before."""
    shocks = random.standard_normal(count) * math.sqrt(1 - likeness**2)
    values = np.empty(count)
    values[0] = random.standard_normal()
    for at in range(1, count):
        values[at] = likeness * values[at - 1] + shocks[at]
    return values


def share_of_right_intervals(count: int, likeness: float, trials: int = 300) -> float:
    random = np.random.default_rng(11)
    right = 0
    for _ in range(trials):
        values = similar(random, count, likeness)
        error, degrees = standard_error(values)
        right += abs(values.mean()) <= error * student(degrees)
    return right / trials


@pytest.mark.parametrize(
    ("count", "likeness", "least"),
    [(25, 0.0, 0.90), (60, 0.0, 0.92), (200, 0.0, 0.92), (60, 0.5, 0.85), (200, 0.7, 0.88), (60, -0.9, 0.95)],
)
def test_the_interval_holds_the_mean(count: int, likeness: float, least: float) -> None:
    """Nominal are 95 of 100; of steps that are very similar, a few less. Single steps would be right in 0.5 to 0.7."""
    assert share_of_right_intervals(count, likeness) >= least


def test_steps_taken_singly_would_be_too_sure() -> None:
    random = np.random.default_rng(11)
    right = 0
    for _ in range(300):
        values = similar(random, 200, 0.7)
        right += abs(values.mean()) <= 1.96 * values.std(ddof=1) / math.sqrt(200)
    assert right / 300 < 0.7


def test_blocks_grow_with_likeness() -> None:
    random = np.random.default_rng(3)
    means = [np.mean([block_steps(similar(random, 400, rho)) for _ in range(20)]) for rho in (0.0, 0.5, 0.9)]
    assert means[0] < 10
    assert means[0] < means[1] < means[2]


def test_alternating_steps_are_surer_than_single_ones() -> None:
    """Two workers that deliver alternately: long, short, long, short. Their mean is known well."""
    values = np.tile([10.0, 30.0], 40) + np.random.default_rng(1).normal(0, 0.1, 80)
    error, _ = standard_error(values)
    assert error < 0.2 * values.std(ddof=1) / math.sqrt(80)


def test_the_error_of_a_mean_is_that_of_all_resamples() -> None:
    candidates = (similar(np.random.default_rng(seed), 96, 0.6) for seed in range(100))
    values = next(v for v in candidates if block_steps(v) in (6, 8, 12))  # whole blocks
    length = block_steps(values)
    blocks = len(values) // length
    begins = np.random.default_rng(6).integers(0, len(values), (20_000, blocks, 1))
    drawn = values[((begins + np.arange(length)) % len(values)).reshape(20_000, -1)].mean(axis=1)
    error, degrees = standard_error(values)
    assert error == pytest.approx(drawn.std() * math.sqrt(blocks / (blocks - 1)), rel=0.03)
    assert degrees == blocks - 1


def test_the_error_of_a_median() -> None:
    values = np.random.default_rng(2).normal(100, 5, 2000)
    error, _ = standard_error(values, "median")
    assert error == pytest.approx(1.2533 * 5 / math.sqrt(2000), rel=0.25)
    assert standard_error(values, "median") == standard_error(values, "median")


def test_long_runs_take_no_longer_than_a_moment() -> None:
    values = np.random.default_rng(2).normal(100, 5, 100_000)
    assert standard_error(values, "median")[0] == pytest.approx(1.2533 * 5 / math.sqrt(100_000), rel=0.4)


@pytest.mark.parametrize("values", [[], [5.0]])
def test_one_step_says_nothing(values: list[float]) -> None:
    assert standard_error(values) == (math.inf, 0)


def test_student() -> None:
    assert [student(degrees) for degrees in (0, 1, 2, 20, 500)] == [math.inf, 12.706, 4.303, 2.086, 2.086]


def test_tails_are_those_of_the_distributions() -> None:
    """Poisson-binomial of equal chances is the binomial; Student's 97.5 % points are tabled; Fisher by its formula."""
    equal = sum(math.comb(9, k) * 0.3**k * 0.7 ** (9 - k) for k in range(5, 10))
    assert times_or_more(5, [0.3] * 9) == pytest.approx(equal)
    for degrees, point in ((1, 12.706), (4, 2.776), (20, 2.086)):
        assert student_tail(point, degrees) == pytest.approx(0.05, abs=2e-4)
    assert together([0.2, 0.3, 0.4]) == pytest.approx(0.024 * (1 - math.log(0.024) + math.log(0.024) ** 2 / 2))
    drawn = sum(math.comb(4, k) * math.comb(16, 6 - k) for k in (3, 4)) / math.comb(20, 6)
    assert share_or_more(3, 6, 4, 20) == pytest.approx(drawn)
