"""What is usual of a figure of comparable steps: its level of late, and how far noise takes it from there.

    level       the median of the newest values, so that a drift is followed
    threshold   the rest above the level that noise exceeds in fewer than one of thousands of steps

The threshold is taken from the body of the rests, without the largest of them: a few slow steps among those remembered
do not hide the next one. Where many are searched for, it is taken without those, too, that stand apart from the body by
more than its own noise.
From the body, an exponential tail is drawn on to the chance that is asked for, further out the fewer values it rests
on; for heavier tails, it is never less than a multiple of the width of the body.
"""

from __future__ import annotations

import math

import numpy as np

from stashtrace.analysis.findings.spikes.policy import POLICY
from stashtrace.calibration.noise import Floats


def middle(values: Floats) -> Floats:
    """Return the median along the first axis, the upper one of two; several times as fast as numpy's on few values."""
    half = len(values) // 2
    return np.asarray(np.partition(values, half, axis=0)[half])


class Ring:
    """The newest values of a series, or rows of them."""

    def __init__(self, size: int, shape: tuple[int, ...] = ()) -> None:
        self._values = np.zeros((size, *shape))
        self._added = 0

    def __len__(self) -> int:
        return min(self._added, len(self._values))

    def add(self, value: float | Floats) -> None:
        """Take in a value; the oldest one goes where there is no room."""
        self._values[self._added % len(self._values)] = value
        self._added += 1

    @property
    def values(self) -> Floats:
        """In no order."""
        return self._values[: len(self)]

    def newest(self, count: int) -> Floats:
        """Return the newest values, the oldest of them first."""
        places = np.arange(max(self._added - min(count, len(self)), 0), self._added) % len(self._values)
        return np.asarray(self._values[places])

    def keep_newest(self, count: int) -> None:
        """Let go of all but the newest values."""
        kept = self.newest(count)
        self._added = len(kept)
        self._values[: len(kept)] = kept


class Noise:
    """How far a figure lies above its level by chance."""

    def __init__(self, *, frequent: bool) -> None:
        """``frequent``: many values that stand apart are no noise either."""
        self._frequent = frequent
        self._rests = Ring(POLICY.noise_steps)
        self._stale = self._in_a_row = 0
        self._threshold = math.inf
        self._width = math.inf
        #: The largest rest of all so far, and of those that were not called slow.
        self.largest = self.largest_usual = 0.0

    def __len__(self) -> int:
        return len(self._rests)

    def add(self, rest: float, *, slow: bool) -> None:
        """Take in what a value has above the level that its predecessors give."""
        self._rests.add(rest)
        self._stale += 1
        self.largest = max(self.largest, rest)
        self.largest_usual = max(self.largest_usual, 0.0 if slow else rest)
        self._in_a_row = self._in_a_row + 1 if slow else 0

    def is_beyond(self, rest: float, worth: float) -> bool:
        """Return whether neither chance nor smallness explains it."""
        return rest > max(self.threshold, worth)

    @property
    def has_changed(self) -> bool:
        """Whether enough values in a row are beyond for these to be the usual ones now."""
        return self._in_a_row >= POLICY.in_a_row_steps

    def start_over(self) -> None:
        """Take the last values for usual ones."""
        self._in_a_row = 0

    @property
    def threshold(self) -> float:
        """Rest that chance does not explain; infinite while too few are known."""
        self._refresh()
        return self._threshold

    @property
    def width(self) -> float:
        """Of the rests, without the largest and the smallest of them."""
        self._refresh()
        return self._width

    def _refresh(self) -> None:
        count = len(self._rests)
        if count < POLICY.least_steps or (
            math.isfinite(self._threshold) and self._stale < POLICY.renewed_ratio * count
        ):
            return
        self._stale = 0
        rests = np.sort(self._rests.values)
        self._width = _width(rests)
        self._threshold = _threshold(_body(rests) if self._frequent else rests)


def _body(rests: Floats) -> Floats:
    """Return sorted rests without those that stand apart: beyond the threshold that all below them give.

    Where many steps are slow they would else be taken for noise, and hide each other; a few never count. Candidates are
    cuts at the widest gaps above the median; of those that bear themselves out, the one with the fewest rests below
    it.
    """
    half, few = len(rests) // 2 + 1, _few(rests)
    gaps = np.diff(rests[half - 1 : len(rests) - few])
    for cut in sorted((half + np.argsort(-gaps, kind="stable")[: POLICY.gaps_count]).tolist()):
        if rests[cut] > _threshold(rests[:cut]):
            return rests[:cut]
    return rests


def _few(rests: Floats) -> int:
    """Return how many of the largest may be slow steps, whatever the noise."""
    return math.ceil(POLICY.maybe_slow_ratio * len(rests))


def _threshold(rests: Floats) -> float:
    return max(_exponential_tail(rests), float(rests[len(rests) // 2]) + POLICY.least_widths * _width(rests))


def _width(rests: Floats) -> float:
    last = len(rests) - 1
    low, high = np.interp(
        (last * (1 - POLICY.width_ratio) / 2, last * (1 + POLICY.width_ratio) / 2), np.arange(last + 1), rests
    )
    return float(high - low)


def _exponential_tail(rests: Floats) -> float:
    """Return the value that an exponential tail exceeds by the chance that is asked for, given sorted values.

    What is estimated from few values may be wrong: the chance is that of the next value by all of them (a predictive
    distribution), not that of a tail taken as known.
    """
    tail = rests[int(POLICY.body_ratio * len(rests)) :]
    censored = _few(rests)
    known = tail[: len(tail) - censored]
    begin = float(known[0])
    # Those that may be slow steps count as somewhere beyond the largest of the others.
    mean = (float((known - begin).sum()) + censored * float(known[-1] - begin)) / len(known)
    odds = len(tail) / len(rests) / POLICY.chance_ratio
    return begin + mean * len(known) * (float(odds ** (1 / len(known))) - 1)
