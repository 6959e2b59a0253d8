"""The lines that one-sided limits leave to the offset of two clocks: a polygon in (offset, drift).

    offset                     every upper limit lies above the true line, every lower one below it, so the lines that
      |  v     v      v        pass between them are all that can be said; how far they reach up and down at a moment
      |-----/------/----       is the error at that moment
      |   ^     ^       ^
      +------------------ time

Used by ``offset_fit``, which chooses the limits. Times and offsets are floats of ns around the middle of the run.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: No two clocks differ by more: each may be slewed by 500 ppm.
MAX_DRIFT = 1e-3


@dataclass(frozen=True, slots=True)
class Band:
    """Lines ``offset = level + slope * time`` between lower and upper limits, as the corners of their polygon.

    Attributes
    ----------
    slope : float array
        Ascending.
    top, bottom : float array
        Highest and lowest level for each slope.
    """

    slope: Floats
    top: Floats
    bottom: Floats

    def high(self, time: Floats) -> Floats:
        """Highest offset at each moment."""
        return np.asarray((self.top + np.multiply.outer(time, self.slope)).max(axis=1))

    def low(self, time: Floats) -> Floats:
        """Lowest offset at each moment."""
        return np.asarray((self.bottom + np.multiply.outer(time, self.slope)).min(axis=1))


def band(upper_time: Floats, upper: Floats, lower_time: Floats, lower: Floats) -> Band | tuple[Floats, Floats]:
    """The lines between limits, or, if there is none, which limits stand against each other.

    Returns
    -------
    Band, or (bool array, bool array)
        The second: upper and lower limits that touch the line that violates the worst of them least.
    """
    upper_at, lower_at = _hull(upper_time, upper), _hull(lower_time, -lower)
    ut, uv, lt, lv = upper_time[upper_at], upper[upper_at], lower_time[lower_at], lower[lower_at]
    slopes = np.unique(np.concatenate([[-MAX_DRIFT, MAX_DRIFT], _edges(ut, uv), _edges(lt, lv)]))
    slopes = slopes[np.abs(slopes) <= MAX_DRIFT]
    top = (uv - np.multiply.outer(slopes, ut)).min(axis=1)
    bottom = (lv - np.multiply.outer(slopes, lt)).max(axis=1)
    gap = top - bottom
    best = int(np.argmax(gap))
    if gap[best] < 0:
        touch = np.abs(gap[best]) * 1e-6 + 1e-3
        above = np.abs(upper - slopes[best] * upper_time - top[best]) <= touch
        below = np.abs(lower - slopes[best] * lower_time - bottom[best]) <= touch
        return above, below
    # The gap is a concave function of the slope: it is positive on one interval, whose ends lie between corners.
    inside = np.flatnonzero(gap >= 0)
    first, last = int(inside[0]), int(inside[-1])
    chosen = [slopes[inside]]
    if first > 0:
        chosen.insert(0, np.array([_zero(slopes, gap, first - 1)]))
    if last + 1 < len(slopes):
        chosen.append(np.array([_zero(slopes, gap, last)]))
    slope = np.concatenate(chosen)
    top = (uv - np.multiply.outer(slope, ut)).min(axis=1)
    bottom = (lv - np.multiply.outer(slope, lt)).max(axis=1)
    return Band(slope, np.maximum(top, bottom), np.minimum(top, bottom))


def _zero(slopes: Floats, gap: Floats, at: int) -> float:
    """Where the gap is nothing between a slope and the next."""
    step = float(gap[at + 1] - gap[at])
    return float(slopes[at] - gap[at] * (slopes[at + 1] - slopes[at]) / step) if step else float(slopes[at])


def _edges(time: Floats, value: Floats) -> Floats:
    return np.diff(value) / np.diff(time)


def _hull(time: Floats, value: Floats) -> npt.NDArray[np.int64]:
    """Index of the corners of the lower convex hull, by time."""
    order = np.lexsort((value, time))
    order = order[np.diff(time[order], prepend=-np.inf) > 0]
    t, v = time[order].tolist(), value[order].tolist()
    kept: list[int] = []
    for i in range(len(t)):
        while len(kept) > 1:
            a, b = kept[-2], kept[-1]
            if (v[b] - v[a]) * (t[i] - t[a]) < (v[i] - v[a]) * (t[b] - t[a]):
                break
            kept.pop()
        kept.append(i)
    return np.asarray(order[kept], dtype=np.int64)
