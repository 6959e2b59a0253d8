"""Whether what happens again and again could be chance."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np


def chance(times: int, trials: int, choices: int) -> float:
    """Probability that one of several equal choices comes up so many times or more.

    Examples
    --------
    >>> chance(1, 1, 4), chance(0, 3, 2), round(chance(5, 8, 8), 5)
    (0.25, 1.0, 0.00123)
    """
    if times <= 0 or choices <= 1:
        return 1.0
    successes = np.arange(times, trials + 1)
    ways = np.array([math.lgamma(n + 1) for n in range(trials + 1)])
    logs = ways[trials] - ways[successes] - ways[trials - successes]
    logs += successes * -math.log(choices) + (trials - successes) * math.log1p(-1 / choices)
    most = logs.max()
    return float(min(1.0, math.exp(most) * np.exp(logs - most).sum()))
