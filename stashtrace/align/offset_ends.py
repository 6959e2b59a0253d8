"""The offset of two clocks from operations that end on both hosts at nearly the same time.

The rank that enters last may end earlier than the others, because what they sent is already there. So the
differences of ends are taken apart by who came last: half of what lies between the two is what the ends may be off by.
Used by ``offset_fit``, inside of the limits that hold without any such assumption; pure.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: So many operations must have been entered last by each host.
_FEWEST = 8
#: Small are those that took at most so many times as long as a quick one.
_SMALL_RATIO = 1.5
#: Part of a quick one's duration by which the end of one host may come later, whoever entered last: threads wake up
#: late on the host, kernels on devices hardly differ.
_HOST_ASYMMETRY, _DEVICE_ASYMMETRY = 0.5, 0.125
#: On hosts, the ends are only asked where limits leave this much more open than they do.
_HOST_NEED = 3.0
_MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True, slots=True)
class CommonEnds:
    """Operations in which nobody can end before everybody has entered, as two hosts saw them, any order.

    Attributes
    ----------
    at_ns : int64 array
        End on the follower's clock.
    offset_ns : int64 array
        The leader's end minus the follower's.
    lead_ns : int64 array
        The leader's entry minus the follower's: the follower was later where this is less than the offset.
    duration_ns : int64 array
        Of the host that took less.
    error_ns : int64 array
        Of the clocks behind the ends.
    on_device : bool array
        Devices saw it.
    """

    at_ns: Int64
    offset_ns: Int64
    lead_ns: Int64
    duration_ns: Int64
    error_ns: Int64
    on_device: npt.NDArray[np.bool_]

    @property
    def need(self) -> float:
        """How many times as wide limits must be before the ends count."""
        return 1.0 if bool(self.on_device.all()) else _HOST_NEED


def line_through(time: Floats, value: Floats) -> tuple[float, float]:
    """(slope, level at 0) of the line with the median slope between points; a third of them may be wrong."""
    if len(time) < 2:
        return 0.0, float(np.median(value)) if len(value) else 0.0
    i, j = np.triu_indices(len(time), 1)
    apart = time[j] - time[i]
    slope = float(np.median((value[j] - value[i])[apart > 0] / apart[apart > 0])) if (apart > 0).any() else 0.0
    return slope, float(np.median(value - slope * time))


def ends_offset(
    ends: CommonEnds, base_at: int, base_offset: int, guess: tuple[Floats, Floats]
) -> Callable[[Floats], tuple[Floats, Floats]] | None:
    """Offset and its error as functions of time, None if too few operations tell.

    Parameters
    ----------
    ends : CommonEnds
    base_at, base_offset : int
        Zero of the times and offsets that are given and returned as floats.
    guess : (time, offset)
        Near enough to say who came last, and at what rate the offset changes.
    """
    if len(ends.at_ns) < 2 * _FEWEST:
        return None
    quick = int(np.quantile(ends.duration_ns, 0.1))
    small = ends.duration_ns <= _SMALL_RATIO * quick + 1
    time = (ends.at_ns[small] - base_at).astype(np.float64)
    guessed = np.interp(time, *guess)
    rest = (ends.offset_ns[small] - base_offset).astype(np.float64) - guessed
    later = (ends.lead_ns[small] - base_offset).astype(np.float64) < guessed
    if min(int(later.sum()), int((~later).sum())) < _FEWEST:
        return None
    slope, level = _course(time, rest)
    rest = rest - level - slope * time
    by_follower, by_leader = float(np.median(rest[later])), float(np.median(rest[~later]))
    shift = (by_follower + by_leader) / 2
    noise = max(_spread(rest[later]), _spread(rest[~later]))
    span = float(np.ptp(time)) + 1.0
    asymmetry = _DEVICE_ASYMMETRY if bool(ends.on_device.all()) else _HOST_ASYMMETRY
    fixed = abs(by_follower - by_leader) / 2 + asymmetry * quick + noise + float(ends.error_ns[small].max())

    def at(moment: Floats) -> tuple[Floats, Floats]:
        outside = np.maximum(np.abs(moment - (time.min() + time.max()) / 2) / span - 0.5, 0.0)
        return np.interp(moment, *guess) + level + shift + slope * moment, fixed + 4 * noise * outside

    return at


def _course(time: Floats, rest: Floats) -> tuple[float, float]:
    """Slope and level through the medians of eight stretches of time."""
    parts = min(8, max(1, len(time) // 8))
    order = np.argsort(time, kind="stable")[: len(time) // parts * parts].reshape(parts, -1)
    return line_through(np.median(time[order], axis=1), np.median(rest[order], axis=1))


def _spread(rest: Floats) -> float:
    return _MAD_TO_SIGMA * float(np.median(np.abs(rest - np.median(rest))))
