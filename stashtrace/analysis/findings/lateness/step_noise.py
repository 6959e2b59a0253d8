"""Tell whether a mean over steps is larger than the variation of the steps explains."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np

from stashtrace.analysis.stragglers.causes import Floats

#: With fewer steps nothing is known about what they vary.
ENOUGH_STEPS = 5
#: A mean stands out if it is so many of its standard errors above 0; more where there are more series to choose from.
_ERRORS = 3.0


def stands_out_of_noise(longer: Floats, choices: int) -> bool:
    """Return True if times of steps are above 0 on average, by more than they vary and than chance would make it.

    ``longer``: by step; so few that they show no noise stand out if all of them are above 0. ``choices``: from how many
    such series this one was chosen for its size.
    """
    if len(longer) < ENOUGH_STEPS:
        return bool((longer > 0).all())
    limit = _ERRORS + math.sqrt(2 * math.log(max(choices, 2))) - math.sqrt(2 * math.log(2))
    return bool(longer.mean() > max(limit * _standard_error(longer), noise_of(longer)))


def noise_of(values: Floats) -> float:
    """Return by how much values differ from their median, as a standard deviation that a few large ones do not make."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _standard_error(values: Floats) -> float:
    """Return the standard error of a mean, also where neighbours are alike: the larger one of values and of blocks."""
    alone = float(values.std(ddof=1)) / math.sqrt(len(values))
    blocks = math.isqrt(len(values))
    if blocks < 4:
        return alone
    means = np.array([block.mean() for block in np.array_split(values, blocks)])
    return max(alone, float(means.std(ddof=1)) / math.sqrt(blocks))
