"""Error of the mean and of the median of a run's steps, by a block bootstrap.

Neighbouring steps are alike (a file read slowly delays several), or alternate (two workers deliver by turns). So blocks
of neighbouring steps are drawn, not single steps. The length of a block follows the rule of Politis and White
(Econometric Reviews 23(1), 2004; corrected by Patton, Politis and White, 28(4), 2009) for circular blocks: the further
apart two steps still are alike, the longer the blocks. A block has at least as many steps as the cube root of their
number, since few steps do not show how alike they are. At least eight blocks remain: fewer say little of their spread.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stashtrace.calibration.robust_line import STUDENT

Floats = npt.NDArray[np.float64]
#: What is compared of the steps of a run.
Statistic = Literal["mean", "median"]
STATISTICS: dict[Statistic, Callable[..., Any]] = {"mean": np.mean, "median": np.median}

#: So many blocks are left at least, where there are as many steps.
_LEAST_BLOCKS = 8
#: Correlations below this many standard errors count as none.
_CORRELATED = 2.0
#: Resamples of a median; fewer where the steps are so many that the spread of their median hardly varies.
_RESAMPLES, _FEWEST_RESAMPLES, _DRAWN_STEPS = 1000, 100, 2_000_000
_SEED = 7
#: Normal distribution: its two-sided 95 % point.
NORMAL = 1.96
#: Standard deviations from the middle to the bound that four of five normal values stay below.
FOUR_OF_FIVE = 0.8416


def student(degrees: int) -> float:
    """Return the two-sided 95 % point of Student's distribution; infinite without a degree of freedom."""
    return STUDENT[min(degrees, len(STUDENT)) - 1] if degrees > 0 else math.inf


def block_steps(values: npt.ArrayLike) -> int:
    """Return the length of a block, in steps.

    ``values``: one value per step, in their order.

    Examples
    --------
    >>> block_steps([5.0] * 40), block_steps(np.repeat([1.0, 9.0, 4.0, 2.0, 8.0, 3.0] * 8, 5))
    (1, 30)
    """
    steps = np.asarray(values, dtype=np.float64)
    count = len(steps)
    longest = max(count // _LEAST_BLOCKS, 1)
    shortest = min(math.floor(math.pow(count, 1 / 3) + 1e-9), longest)
    from_mean = steps - (steps.mean() if count else 0.0)
    if longest == 1 or not from_mean.any():
        return 1
    in_a_row = max(5, math.ceil(math.sqrt(math.log10(count))))
    farthest = min(math.ceil(math.sqrt(count)) + in_a_row, count - 1)
    covariance = _autocovariance(from_mean, farthest)
    small = np.abs(covariance[1:] / covariance[0]) < _CORRELATED * math.sqrt(math.log10(count) / count)
    # The last distance after which so many in a row are no longer correlated.
    rows = np.flatnonzero(np.convolve(small, np.ones(in_a_row), "valid") == in_a_row)
    reach = int(rows[0]) if len(rows) else int(np.flatnonzero(~small)[-1]) + 1
    if reach == 0:
        return shortest
    width = min(2 * reach, farthest)
    distance = np.arange(1, width + 1)
    weight = np.clip(2 * (1 - distance / width), 0.0, 1.0)  # flat up to the half, then down to zero
    slope = 2 * float((weight * distance * covariance[1 : width + 1]).sum())
    level = float(covariance[0] + 2 * (weight * covariance[1 : width + 1]).sum())
    if level <= 0:
        return longest
    length = math.pow(1.5 * (slope / level) ** 2 * count, 1 / 3)
    return min(max(math.ceil(length), shortest), longest)


def standard_error(values: npt.ArrayLike, statistic: Statistic = "mean") -> tuple[float, int]:
    """Return the standard error of a statistic of the steps, and the degrees of freedom that its interval has.

    The error of a mean is that of all circular block resamples together, which has a closed form; that of a median is
    drawn, always with the same seed. Both are widened for the number of blocks, as the spread of few is understated.

    ``values``: one value per step, in their order. Returns in the unit of the values; infinite, with no degree of
    freedom, for fewer than two steps.
    """
    steps = np.asarray(values, dtype=np.float64)
    if len(steps) < 2:
        return math.inf, 0
    length = block_steps(steps)
    blocks = len(steps) / length
    error = _error_of_mean(steps, length) if statistic == "mean" else _error_of_median(steps, length)
    return error * math.sqrt(blocks / (blocks - 1)), max(math.floor(blocks) - 1, 1)


def _autocovariance(from_mean: Floats, farthest: int) -> Floats:
    """Return the covariance of steps that are 0, 1, ... ``farthest`` apart."""
    size = 1 << (2 * len(from_mean) - 1).bit_length()
    spectrum = np.abs(np.fft.rfft(from_mean, size)) ** 2
    return np.asarray(np.fft.irfft(spectrum, size)[: farthest + 1] / len(from_mean))


def _error_of_mean(steps: Floats, length: int) -> float:
    sums = np.cumsum(np.concatenate([[0.0], steps, steps[: length - 1]]))
    means = (sums[length:] - sums[:-length]) / length
    return float(means.std()) * math.sqrt(length / len(steps))


def _error_of_median(steps: Floats, length: int) -> float:
    count = len(steps)
    resamples = min(max(_DRAWN_STEPS // count, _FEWEST_RESAMPLES), _RESAMPLES)
    random = np.random.default_rng(_SEED)
    begins = random.integers(0, count, (resamples, -(-count // length), 1))
    drawn = ((begins + np.arange(length)) % count).reshape(resamples, -1)[:, :count]
    return float(np.median(steps[drawn], axis=1).std())
