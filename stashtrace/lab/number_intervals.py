"""A number with the interval it lies in, the little arithmetic that predictions need, and its form in JSON.

Sums and differences add the deviations of each side in quadrature, as of independent measurements. An interval that
nobody knows is NaN on both sides and makes everything NaN that is computed from it. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Of numbers in JSON and CSV.
DIGITS = 7


@dataclass(frozen=True, slots=True)
class Interval:
    """A value between two bounds.

    Examples
    --------
    >>> Interval(10.0, 7.0, 14.0) + Interval(5.0, 1.0, 8.0)
    Interval(value=15.0, low=10.0, high=20.0)
    >>> Interval(10.0, 7.0, 14.0) - Interval(5.0, 1.0, 8.0)
    Interval(value=5.0, low=0.7573593128807152, high=10.656854249492381)
    """

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def known(self) -> bool:
        """Whether both bounds are numbers."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def __add__(self, other: Interval) -> Interval:
        value = self.value + other.value
        low = math.hypot(self.value - self.low, other.value - other.low)
        high = math.hypot(self.high - self.value, other.high - other.value)
        return Interval(value, value - low, value + high)

    def __sub__(self, other: Interval) -> Interval:
        return self + Interval(-other.value, -other.high, -other.low)

    def times(self, factor: float) -> Interval:
        """Scaled by a factor that is not negative."""
        return Interval(self.value * factor, self.low * factor, self.high * factor)

    def at_least(self, floor: float) -> Interval:
        """Nothing below ``floor``; NaN stays."""
        return Interval(*(bound if math.isnan(bound) else max(bound, floor) for bound in self._bounds()))

    def or_more(self, other: Interval) -> Interval:
        """The larger of two, bound by bound: two limits of which the slower one holds."""
        if not (self.known and other.known):
            return Interval(max(self.value, other.value))
        return Interval(max(self.value, other.value), max(self.low, other.low), max(self.high, other.high))

    def widened(self, others: Sequence[Interval]) -> Interval:
        """The same value, with the bounds of all: what several models say, of which one gives the value."""
        every = (self, *others)
        if not all(one.known for one in every):
            return Interval(self.value)
        bounds = [bound for one in every for bound in one._bounds()]
        return Interval(self.value, min(bounds), max(bounds))

    def overlaps(self, other: Interval) -> bool:
        """Whether the two may be the same; unknown intervals never say so."""
        return bool(self.low <= other.high and other.low <= self.high)

    def _bounds(self) -> tuple[float, float, float]:
        return self.value, self.low, self.high


@dataclass(frozen=True, slots=True)
class Estimate(Interval):
    """What several runs say of a number: their median and its 95 % interval.

    ``value``, ``low``, ``high``: ``low`` and ``high`` are NaN where a single run says nothing of its spread.
    """

    #: Runs (of the configuration that has fewest) that it comes from.
    runs_count: int = 1


def exactly(value: float) -> Interval:
    """A number that is not in doubt."""
    return Interval(value, value, value)


def finite_or_none(value: float, digits: int | None = None) -> float | None:
    """A number for JSON, which has neither NaN nor infinity; rounded to this number of significant digits, if any.

    Examples
    --------
    >>> finite_or_none(2 / 3, 4), finite_or_none(1.5), finite_or_none(float("nan"))
    (0.6667, 1.5, None)
    """
    if not math.isfinite(value):
        return None
    return value if digits is None else float(f"{value:.{digits}g}")


def numbers_of(name: str, interval: Interval) -> dict[str, float | None]:
    """Value and bounds by their names in JSON and CSV."""
    bounds = {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return {key: finite_or_none(number, DIGITS) for key, number in bounds.items()}
