"""Exposed communication against the number of devices: what a ring all-reduce lets one expect of counts nobody ran.

A ring of N devices sends each message in 2 (N - 1) hops, and over each link 2 (N - 1) / N of its bytes:

    exposed(N) = messages * 2 (N - 1) * alpha  +  bytes * 2 (N - 1) / N * beta

From one measured count the two terms cannot be told apart. The answer then takes all for bytes, which hardly grow with
N, and its interval reaches to all being latency. Two counts and more decide it. alpha and beta are those of *exposed*
communication. What the backward pass hides grows too, and comes out from under it: the interval holds that as well, for
as much as can be hidden. Pure.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stashtrace.models.interval import Interval, exactly

#: How far a prediction may be off beside that, as a part of it: the scatter of published runs about this model.
MODEL_ERROR = 0.1
#: More observations than this are not tried corner by corner.
_CORNERS_COUNT = 6


@dataclass(frozen=True, slots=True)
class Exposed:
    """Communication that was measured, or fitted, at one count.

    Attributes
    ----------
    devices_count : int
    time_ns : Interval
        Exposed time of a step.
    rate : float
        Of the link, in any unit, if several are compared; 1 if they are alike.
    """

    devices_count: int
    time_ns: Interval
    rate: float = 1.0


@dataclass(frozen=True, slots=True)
class Ring:
    """Exposed communication of one kind of link.

    Attributes
    ----------
    base : Exposed
        What predictions start from.
    latency_share : float
        Part of it that is latency, 0 to 1.
    low_share, high_share : float
        Between these it lies.
    counts : tuple of int
        Device counts that it was fitted to.
    hidden_ns : float
        Communication that may have been hidden by the backward pass, at most.
    """

    base: Exposed
    latency_share: float = 0.0
    low_share: float = 0.0
    high_share: float = 1.0
    counts: tuple[int, ...] = ()
    hidden_ns: float = 0.0

    def at(self, devices: int, rate: float | None = None) -> Interval:
        """Exposed time of a step with this many devices, over a link of this rate.

        Examples
        --------
        >>> ring = Ring(Exposed(4, Interval(75.0, 75.0, 75.0)))
        >>> ring.at(8)
        Interval(value=87.5, low=78.75, high=192.5)
        """
        if devices < 2:
            return Interval(0.0, 0.0, 0.0)
        rate = self.base.rate if rate is None else rate
        shares = (self.latency_share, self.low_share, self.high_share)
        point, *others = (self.base.time_ns.times(self._growth(share, devices, rate)) for share in shares)
        moved = self._growth(0.0, devices, rate)
        surfaced = (self.base.time_ns + exactly(self.hidden_ns)).times(moved) - exactly(self.hidden_ns)
        wide = point.widened([*others, surfaced.at_least(0.0)])
        return Interval(wide.value, wide.low * (1 - MODEL_ERROR), wide.high * (1 + MODEL_ERROR))

    def alpha_ns(self, messages: int) -> float:
        """Time of one hop of one message, NaN if nobody counted them."""
        n = self.base.devices_count
        return self.latency_share * self.base.time_ns.value / (messages * 2 * (n - 1)) if messages else math.nan

    def beta_ns_per_byte(self, size_bytes: int) -> float:
        """Time of one byte over one link, NaN if nobody counted them."""
        if not size_bytes:
            return math.nan
        moved = size_bytes * bytes_factor(self.base.devices_count)
        return (1 - self.latency_share) * self.base.time_ns.value / moved

    def _growth(self, share: float, devices: int, rate: float) -> float:
        n = self.base.devices_count
        by_bytes = bytes_factor(devices) / bytes_factor(n) * self.base.rate / rate
        return share * (devices - 1) / (n - 1) + (1 - share) * by_bytes


def bytes_factor(devices: int) -> float:
    """``2 (N - 1) / N``: how often a ring all-reduce sends each byte over a link.

    Examples
    --------
    >>> bytes_factor(2), bytes_factor(4), bytes_factor(1)
    (1.0, 1.5, 0.0)
    """
    return 2 * (devices - 1) / devices


def fit_ring(observed: Sequence[Exposed], base: Exposed, hidden_ns: float = 0.0) -> Ring:
    """A ring that starts from ``base``, with latency and bytes told apart if ``observed`` holds two counts.

    Parameters
    ----------
    observed : sequence of Exposed
        Of the same link and job, ``base`` among them or not.
    base : Exposed
        With two devices at least. Negative times (noise about nothing) count as none.
    hidden_ns : float
        As in :class:`Ring`.

    Examples
    --------
    >>> seen = [Exposed(n, Interval(*[10.0 * (n - 1) + 40 * (n - 1) / n] * 3)) for n in (2, 4)]
    >>> round(fit_ring(seen, seen[0]).latency_share, 3), round(fit_ring(seen, seen[0]).at(8).value, 6)
    (0.333, 105.0)
    """
    base = _positive(base)
    usable = [_positive(one) for one in observed if one.devices_count > 1]
    counts = tuple(sorted({one.devices_count for one in usable} | {base.devices_count}))
    if len({one.devices_count for one in usable}) < 2 or base.time_ns.value == 0:
        return Ring(base, counts=counts, hidden_ns=hidden_ns)
    share = _share(usable, [one.time_ns.value for one in usable], base)
    if not all(one.time_ns.known for one in usable) or len(usable) > _CORNERS_COUNT:
        return Ring(base, share, counts=counts, hidden_ns=hidden_ns)
    corners = itertools.product(*((one.time_ns.low, one.time_ns.high) for one in usable))
    shares = [share, *(_share(usable, times, base) for times in corners)]
    return Ring(base, share, min(shares), max(shares), counts, hidden_ns)


def _positive(one: Exposed) -> Exposed:
    return Exposed(one.devices_count, one.time_ns.at_least(0.0), one.rate)


def _share(observed: Sequence[Exposed], times: Sequence[float], base: Exposed) -> float:
    """Latency's part of ``base`` by non-negative least squares."""
    hops = np.array([one.devices_count - 1 for one in observed], dtype=np.float64)
    moved = np.array([bytes_factor(one.devices_count) * base.rate / one.rate for one in observed])
    time = np.asarray(times, dtype=np.float64)
    by_hop, by_byte = np.linalg.lstsq(np.stack([hops, moved], axis=1), time, rcond=None)[0]
    if by_hop < 0:
        return 0.0
    if by_byte < 0:
        return 1.0
    latency = by_hop * (base.devices_count - 1)
    whole = latency + by_byte * bytes_factor(base.devices_count)
    return float(latency / whole) if whole > 0 else 0.0
