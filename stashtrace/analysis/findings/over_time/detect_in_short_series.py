"""Shifts, drifts and periods in series so short that ranks of values alone cannot tell them from chance.

    shift    every step of one stretch is longer than every other step, by a gap of several times what either varies
    drift    a line that rises by many times what is left beside it
    period   the long steps are all of every P-th place, and no others

Of independent noise of any distribution no more than 2^(1 - n) of the series of n steps fall apart at one place, into
two stretches with a gap between them; how wide the gap has to be keeps out noise that lasts for several steps.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Series of fewer steps are short: unless one is cut in its middle, ranks of values do not reach the deviation that is
#: asked for.
SHORT = 96
#: A gap between stretches, and the rise of a line, in standard deviations of what they leave.
_GAP, _RISE = 4.0, 10.0
#: A stretch is at least one in so many steps of a series, so that no two bursts of a few long steps in a row are one.
_LEAST_PART = 6
#: Deviations are at least this part of the usual step, so that series without noise have some.
_LEAST_NOISE = 1e-6
#: Chance of a period in all series of its length.
_PERIOD_CHANCE = 5e-4
_DEVIATION_OF_MEAN = 1.2533


def clear_arc(part: Floats, fits: npt.NDArray[np.bool_]) -> tuple[int, int] | None:
    """Return the arc whose values all lie on one side of a wide gap to all others; None if there is none.

    ``fits`` tells by begin and end which arcs are long enough.
    """
    length = np.arange(len(part) + 1)[None, :] - np.arange(len(part) + 1)[:, None]
    least = len(part) // _LEAST_PART
    gap = np.where(fits & (length >= least) & (len(part) - length >= least), _gaps(part), 0.0)
    for at in np.argsort(-gap, axis=None)[: np.count_nonzero(gap > 0)].tolist():
        begin, end = divmod(at, gap.shape[1])
        inside = np.zeros(len(part), dtype=bool)
        inside[begin:end] = True
        rest = [values - np.median(values) for values in (part[inside], part[~inside])]
        if gap[begin, end] >= _GAP * _deviation(np.concatenate(rest), part):
            return begin, end
    return None


def _gaps(part: Floats) -> Floats:
    """Return by begin and end of an arc how far apart its values and all others are; at most 0 if they overlap."""
    count = len(part)
    lowest, highest = (np.full((count + 1, count + 1), far) for far in (np.inf, -np.inf))
    for begin in range(count):
        lowest[begin, begin + 1 :] = np.minimum.accumulate(part[begin:])
        highest[begin, begin + 1 :] = np.maximum.accumulate(part[begin:])
    # Others lie before an arc and behind it.
    low_outside = np.minimum(lowest[0, :, None], lowest[:, count][None, :])
    high_outside = np.maximum(highest[0, :, None], highest[:, count][None, :])
    return np.asarray(np.maximum(lowest - high_outside, low_outside - highest))


def clear_line(values: Floats) -> tuple[float, float] | None:
    """Return slope and begin of a line (Theil and Sen) that rises far more than values differ from it; else None."""
    count = len(values)
    places = np.arange(count, dtype=np.float64)
    first, second = np.triu_indices(count, 1)
    slope = float(np.median((values[second] - values[first]) / (second - first)))
    start = float(np.median(values - slope * places))
    if abs(slope) * (count - 1) < _RISE * _deviation(values - start - slope * places, values):
        return None
    return slope, start


def is_clear(long: Floats, short: Floats, usual: float) -> bool:
    """Return True if a wide gap parts all long values, given as what they differ from ``usual``, from all short."""
    rest = np.concatenate([long - np.median(long), short - np.median(short)])
    return float(long.min() - short.max()) >= _GAP * _deviation(rest, np.array([usual]))


def by_chance_all(count: int, places: int, every: int) -> float:
    """Return a bound of the probability that steps are long at all of every so many places, and nowhere else.

    Whatever the share of long steps is; any of the first steps may be the first of the period.
    """
    share = places / count
    return float(every * share**places * (1 - share) ** (count - places))


def is_periodic(count: int, places: int, every: int, most: int) -> bool:
    """Return True if chance does not make such a period, where periods up to ``most`` steps were tried."""
    return (most - 1) * by_chance_all(count, places, every) < _PERIOD_CHANCE


def _deviation(rest: Floats, values: Floats) -> float:
    """Return what values differ by, as a standard deviation."""
    return max(_DEVIATION_OF_MEAN * float(np.abs(rest).mean()), _LEAST_NOISE * float(np.median(values)))
