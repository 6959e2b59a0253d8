"""Is it noise? What chance makes of a series, a mean, a count: spreads, blocks of neighbouring steps, exact tails.

    spread      deviation(values)                    of the body of values, whatever single ones do
    a mean      standard_error(steps)                neighbouring steps are similar: a bootstrap of blocks
                student(degrees), errors_at(chance, degrees), student_tail(t)    where the spread is estimated
    a count     wilson(hits, trials)                 the share that trials leave possible
                times_or_more(times, chances)        successes, each with a separate chance (binomial where equal)
                share_or_more(...)                   of things drawn without being put back (hypergeometric)
    several     together(chances)                    Fisher's chance of all of them

Blocks: a file read slowly delays several steps, or two workers alternate, so single steps must not be drawn. The
length of a block follows the rule of Politis and White (Econometric Reviews 23(1), 2004; corrected by Patton, Politis
and White, 28(4), 2009) for circular blocks: the further apart steps are still similar, the longer the blocks. A block
has at least as many steps as the cube root of their number, since few steps do not show how similar they are. At least
eight blocks remain: fewer say little of their spread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
#: What is compared of the steps of a run.
Statistic = Literal["mean", "median"]
STATISTICS: dict[Statistic, Callable[..., Any]] = {"mean": np.mean, "median": np.median}

#: Standard deviation of normal values, in median deviations from their median.
OF_MEDIAN_DEVIATION = 1.4826
#: Standard error of the median of normal values, in standard errors of their mean; also the standard deviation of such
#: values, in mean deviations from their middle.
OF_MEAN = 1.2533
#: Normal distribution: its two-sided 95 % point.
NORMAL = 1.96
#: Standard deviations from the middle to the bound that four of five normal values stay below.
FOUR_OF_FIVE = 0.8416
#: Two-sided 97.5 % points of Student's distribution by degrees of freedom, from 1; beyond them the last.
_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
#: Blocks that are left at least, where there are as many steps.
_LEAST_BLOCKS = 8
#: Correlations below this many standard errors count as none.
_CORRELATED = 2.0
#: Resamples of a median; fewer where the spread of the median hardly varies, as there are many steps.
_RESAMPLES, _FEWEST_RESAMPLES, _DRAWN_STEPS = 1000, 100, 2_000_000
_SEED = 7
#: Terms of a continued fraction, and the change at which it has settled.
_TERMS, _SETTLED = 300, 1e-12


def median_deviation(values: npt.NDArray[Any]) -> float:
    """Return the median of what values differ from their median by."""
    return float(np.median(np.abs(values - np.median(values))))


def deviation(values: npt.NDArray[Any]) -> float:
    """Return the standard deviation of values by the body of them: wild ones do not count.

    Examples
    --------
    >>> deviation(np.array([1.0, 2.0, 3.0, 900.0]))
    1.4826
    """
    return OF_MEDIAN_DEVIATION * median_deviation(values)


def student(degrees: int) -> float:
    """Return the two-sided 95 % point of Student's distribution; infinite without a degree of freedom."""
    return _STUDENT[min(degrees, len(_STUDENT)) - 1] if degrees > 0 else math.inf


def errors_at(chance: float, degrees: Floats) -> Floats:
    """Return how many standard errors a value is above its mean with this chance (Student, Wallace's approximation).

    Examples
    --------
    >>> errors_at(0.025, np.array([5.0, 10.0, 1000.0])).round(2).tolist()
    [2.58, 2.23, 1.96]
    """
    normal = NormalDist().inv_cdf(1 - chance) * (8 * degrees + 3) / (8 * degrees + 1)
    return np.asarray(np.sqrt(degrees * np.expm1(normal**2 / degrees)))


def wilson(hits: npt.NDArray[np.int64], trials: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return the bounds that trials leave of a share, with 95 % confidence; 0 and 1 without a trial.

    Examples
    --------
    >>> low, high = wilson(np.array([0, 3, 10]), np.array([0, 8, 10]))
    >>> low.round(2).tolist(), high.round(2).tolist()
    ([0.0, 0.14, 0.72], [1.0, 0.69, 1.0])
    """
    square = NORMAL**2
    count = np.maximum(trials, 1)
    share = hits / count
    middle = share + square / (2 * count)
    half = NORMAL * np.sqrt(share * (1 - share) / count + square / (4 * count**2))
    low, high = (middle - half) / (1 + square / count), (middle + half) / (1 + square / count)
    return np.where(trials > 0, np.maximum(low, 0.0), 0.0), np.where(trials > 0, np.minimum(high, 1.0), 1.0)


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
    # The last distance after which this number in a row are no longer correlated.
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


def times_or_more(times: int, chances: Sequence[float]) -> float:
    """Return the probability of this many successes or more in trials that each have a separate chance.

    Examples
    --------
    >>> round(times_or_more(2, [0.5, 0.5]), 6), times_or_more(0, [0.1]), round(times_or_more(1, [0.5, 0.2]), 6)
    (0.25, 1.0, 0.6)
    """
    if times <= 0:
        return 1.0
    below = np.zeros(times)  # probability of exactly 0, 1, ... times - 1 so far
    below[0] = 1.0
    above = 0.0
    for chance in chances:
        above += float(below[-1]) * chance
        below[1:] = below[1:] * (1 - chance) + below[:-1] * chance
        below[0] *= 1 - chance
    return min(above, 1.0)


def share_or_more(hits: int, drawn: int, chosen: int, count: int) -> float:
    """Return the probability that of ``drawn`` things among ``count`` at least ``hits`` are of ``chosen`` ones.

    Examples
    --------
    >>> round(share_or_more(1, 1, 1, 4), 6), round(share_or_more(2, 2, 2, 4), 6)
    (0.25, 0.166667)
    """
    whole = _log_choose(count, drawn)
    logs = [
        _log_choose(chosen, several) + _log_choose(count - chosen, drawn - several) - whole
        for several in range(hits, min(chosen, drawn) + 1)
        if drawn - several <= count - chosen
    ]
    return sum(math.exp(log) for log in logs)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def student_tail(t: float, degrees: int) -> float:
    """Return the two-sided probability that Student's t is farther from 0 than this.

    Examples
    --------
    >>> round(student_tail(2.228, 10), 4), student_tail(0.0, 5), student_tail(math.inf, 3)
    (0.05, 1.0, 0.0)
    """
    if not math.isfinite(t):
        return 0.0
    x = degrees / (degrees + t * t)
    return min(1.0, _incomplete_beta(degrees / 2, 0.5, x))


def together(chances: Sequence[float]) -> float:
    """Return Fisher's probability of chances so small together, of things that do not depend on each other.

    Examples
    --------
    >>> round(together([0.05]), 6), round(together([0.1, 0.1]), 4)
    (0.05, 0.0561)
    """
    half = -sum(math.log(max(chance, 1e-300)) for chance in chances)
    term = total = math.exp(-half)
    for at in range(1, len(chances)):
        term *= half / at
        total += term
    return min(total, 1.0)


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function, by Lentz's continued fraction (Numerical Recipes, 6.4)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    result = d
    for m in range(1, _TERMS):
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 + factor * d, 1 + factor / c
            d, c = 1 / (d if abs(d) > tiny else tiny), c if abs(c) > tiny else tiny
            result *= d * c
        if abs(d * c - 1) < _SETTLED:
            break
    return front * result / a
