"""Steps that are long and short by turns are found as a period, and noise that alternates is not."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from builders import MS
from test_over_time import NOISES, SEEDS, Noise, claims, job

from stashtrace.analysis.findings.over_time.detect_changes import period, stretches
from stashtrace.analysis.findings.over_time.step_changes import over_time
from stashtrace.calibration.noise import Floats
from stashtrace.summary.summary_text import summary


def _echo(lag: int, part: float) -> Noise:
    """Noise of which each step repeats a part of the step ``lag`` before it."""

    def noise(rng: np.random.Generator, count: int) -> Floats:
        steps = rng.standard_normal(count)
        for at in range(lag, count):
            steps[at] += part * steps[at - lag]
        return 100 + 8 * steps

    return noise


ALTERNATING: dict[str, Noise] = {
    **NOISES,
    "turns back": _echo(1, -0.6),
    "turns back for long": _echo(1, -0.75),
    "like the step before the last": _echo(2, 0.6),
    "unlike the step before the last": _echo(2, -0.7),
    "as many long as short": lambda rng, n: 50 + 100 * (rng.random(n) < 0.5) + 2 * rng.standard_normal(n),
}


@pytest.mark.parametrize("name", ALTERNATING)
def test_noise_is_no_alternation(name: str) -> None:
    for seed in range(4 * SEEDS):
        rng = np.random.default_rng(1000 + seed)
        lengths = ALTERNATING[name](rng, int(rng.choice([12, 14, 16, 20, 24, 30, 48, 60, 120, 300])))
        assert period(lengths, stretches(lengths)) is None, seed


@pytest.mark.parametrize("count", [16, 24, 60, 125, 300])
@pytest.mark.parametrize(("every", "first"), [(2, 0), (2, 1), (4, 0), (4, 3)])
@pytest.mark.parametrize("noise", [0.0, 8.0])
def test_half_of_the_steps_are_long_by_turns(count: int, every: int, first: int, noise: float) -> None:
    for seed in range(5):
        long = (np.arange(count) - first) % every < every // 2
        lengths = 35 + 165.0 * long + noise * np.random.default_rng(seed).standard_normal(count)
        found = period(lengths, stretches(lengths))
        assert found is not None, seed
        assert (found.every, found.first, found.width) == (every, first, every // 2), seed
        assert abs(found.excess - 165) < 10


def test_alternation_with_single_long_steps_is_found() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        lengths = 100 + 40.0 * (np.arange(100) % 2) + NOISES["single long steps"](rng, 100)
        found = period(lengths, stretches(lengths))
        assert found is not None, seed
        assert (found.every, found.first) == (2, 1), seed


def test_a_period_of_more_time_is_said_before_an_alternation() -> None:
    """Steps that grow from the first of eight to the last, which takes 50 times as long."""
    lengths = np.tile([2.2, 2.5, 2.7, 3.0, 4.0, 4.8, 5.2, 156.0], 10)
    lengths += np.random.default_rng(1).normal(0, 0.05, 80)
    found = period(lengths, stretches(lengths))
    assert (found.every, found.first, found.width) == (8, 7, 1)


@pytest.mark.parametrize("every", [4, 6, 8])
def test_steps_that_grow_over_and_over_again_are_not_long_by_turns(every: int) -> None:
    lengths = np.tile(30 + 10.0 * np.arange(every), 12) + np.random.default_rng(1).normal(0, 1, 12 * every)
    assert period(lengths, stretches(lengths)) is None


def _words(slow: Callable[[int], bool]) -> str:
    (change,) = claims(job(120, prep=lambda rank, step: 100 * MS if rank == 1 and slow(step) else 0).trace())
    return str(change["text"])


def test_every_other_batch_slow() -> None:
    change = _words(lambda step: step % 2 == 1)
    assert change.startswith("every other step (5, 7, ...) takes 109 ms, the others 9.")


def test_the_header_says_both_lengths() -> None:
    trace = job(120, prep=lambda rank, step: 100 * MS if rank == 1 and step % 2 else 0).trace()
    shown = " ".join(summary(trace).split())
    assert "mean 59.7 ms: 109 ms in every other step, 9.32 ms in the others" in shown, shown[:400]


def test_two_of_four_batches_slow() -> None:
    change = _words(lambda step: step % 4 in (2, 3))
    assert change.startswith("in 2 of every 4 steps (6, 7, 10, 11, ...) a step takes 109 ms, in the others 9.")


def test_the_table_has_each_changed_step() -> None:
    trace = job(120, prep=lambda rank, step: 100 * MS if rank == 1 and step % 4 in (2, 3) else 0).trace()
    (row,) = over_time(trace).rows()
    assert (row["kind"], row["every_count"], row["together_count"], row["first_step_index"]) == ("period", 4, 2, 6)
    assert abs(row["delta_ns"] - 100 * MS) < 2 * MS
