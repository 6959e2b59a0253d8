"""How likely what a question found would be by chance: exact tails of three distributions, without scipy."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

#: Terms of a continued fraction, and the change at which it has settled.
_TERMS, _SETTLED = 300, 1e-12


def times_or_more(times: int, chances: Sequence[float]) -> float:
    """Return the probability of so many successes or more in trials that have a chance of their own each.

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
