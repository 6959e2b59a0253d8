"""Offset and drift between the clocks of two hosts, from events whose order is known.

A limit says that the follower's clock plus the offset cannot be later, or earlier, than the leader's: the end of a
collective on one host comes after the entry on the other. Wrong limits (an operation matched to another one, a clock
that was set) are rejected and counted. The error is a half-width: the range that the remaining limits allow at that
moment, plus the distance that a clock may wander between them. Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.calibration.noise import deviation
from stashtrace.loading.clocks.policy import POLICY
from stashtrace.schema.groupby import Bools, Floats, Int64

#: Source of a limit.
COLLECTIVES, PING = 0, 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the offset, any order."""

    #: Moment on the follower's clock.
    at_ns: Int64
    #: Limit of the offset, where follower + offset = leader.
    offset_ns: Int64
    #: True if the offset is at most this, False if it is at least this.
    upper: Bools
    #: ``COLLECTIVES`` or ``PING``.
    source: npt.NDArray[np.int8]

    def take(self, rows: npt.NDArray[np.integer] | Bools) -> Limits:
        """Return some of the limits."""
        return Limits(self.at_ns[rows], self.offset_ns[rows], self.upper[rows], self.source[rows])


@dataclass(frozen=True, slots=True)
class Bend:
    """Observed deviation of a clock, or of two together, from a straight line: a clock that NTP slews is not quartz."""

    #: Half-width around the line that fits best.
    bow_ns: float = 0.0
    #: Largest difference from the mean rate.
    rate_ratio: float = 0.0

    def __add__(self, other: Bend) -> Bend:
        return Bend(self.bow_ns + other.bow_ns, self.rate_ratio + other.rate_ratio)


STRAIGHT = Bend()


@dataclass(frozen=True, slots=True)
class OffsetFit:
    """Offset to add to the follower's clock, at knots; linear between them."""

    #: Ascending moments of the follower's clock, offset to add, half-width of its error.
    at_ns: Int64
    offset_ns: Int64
    error_ns: Int64
    #: Sources of the limits that determine the fit.
    sources: frozenset[int]
    #: (int, int); First and last knot of the time with limits.
    touch: tuple[int, int]
    #: Number of limits that the others contradict.
    rejected_count: int = 0
    #: True if most limits of some stretch of time were rejected; the error covers them.
    stepped: bool = False


def fit_offset(
    limits: Limits, ends: CommonEnds | None, begin_ns: int, end_ns: int, bend: Bend = STRAIGHT
) -> OffsetFit | None:
    """Fit one pair of hosts; None if limits of one side are missing, or if no line satisfies the limits.

    ``ends``: ends of the same small operations on both hosts. ``begin_ns``, ``end_ns``: time on the follower's clock
    for which the fit is needed. ``bend``: of the two clocks together.
    """
    upper = limits.upper
    if not upper.any() or upper.all():
        return None
    order = np.argsort(limits.at_ns, kind="stable")
    limits = limits.take(order)
    base_at = (begin_ns + end_ns) // 2
    base_offset = int(np.sort(limits.offset_ns)[len(limits.offset_ns) // 2])
    time = (limits.at_ns - base_at).astype(np.float64)
    value = (limits.offset_ns - base_offset).astype(np.float64)
    first, last = min(begin_ns, int(limits.at_ns[0])), max(end_ns, int(limits.at_ns[-1]))
    reach = float(limits.at_ns[-1] - limits.at_ns[0])
    points = _Points(time, value, limits.upper)
    bow = POLICY.wander_ratio * reach / 4 + bend.bow_ns
    settled = points.settle(min(POLICY.most_pieces_count, max(POLICY.pieces_count, int(reach // POLICY.piece_ns))), bow)
    if settled is None:
        return None
    lines, kept = settled
    knots, touch = _knots(first, int(limits.at_ns[0]), int(limits.at_ns[-1]), last)
    at = (knots - base_at).astype(np.float64)
    low, high = _reach(lines, points, kept, at, bow, bend.rate_ratio)
    middle, half = (low + high) / 2, (high - low) / 2
    if ends is not None:
        shared = ends_offset(ends, base_at, base_offset, (at, middle))
        if shared is not None:
            offset, error = shared(at)
            error = error + 2 * bend.bow_ns
            # Only while there are such ends: they say little about the time before and after.
            seen = slice(touch[0], touch[1] + 1)
            if float(np.median(half[seen])) > ends.need * float(np.median(error[seen])):
                middle[seen] = np.clip(offset, low, high)[seen]
                half[seen] = np.minimum(error, np.maximum(high - middle, middle - low))[seen]
    apart = float(np.diff(knots[touch[0] : touch[1] + 1]).max(initial=0))
    half = half + POLICY.wander_ratio * apart / 2 + min(bend.rate_ratio * apart / 2, 2 * bend.bow_ns)
    rejected = ~points.alive
    stepped, covered = _step(points, rejected, at, middle)
    return OffsetFit(
        knots,
        base_offset + np.rint(middle).astype(np.int64),
        np.ceil(np.maximum(half, covered)).astype(np.int64),
        frozenset(np.unique(limits.source[kept[_touching(lines, points, kept, bow)]]).tolist()),
        touch,
        int(rejected.sum()),
        stepped,
    )


def _knots(first: int, begin: int, end: int, last: int) -> tuple[Int64, tuple[int, int]]:
    """Return knots from the first moment to the last, and the places of the first and last one with limits."""
    count = min(POLICY.most_pieces_count, max(1, -(-(end - begin) // POLICY.piece_ns)))
    inside = begin + (end - begin) * np.arange(count + 1, dtype=np.int64) // count
    knots = np.unique(np.concatenate([[first], inside, [max(last, first + 1)]]))
    return knots, (int(np.searchsorted(knots, begin)), int(np.searchsorted(knots, end)))


class _Points:
    """Limits of one pair, by time; ``alive`` marks those that are not rejected."""

    def __init__(self, time: Floats, value: Floats, upper: Bools) -> None:
        self.time = time
        self.value = value
        self.upper = upper
        # A negated upper limit is a lower one: `sign * (value - line)` is negative where a limit is violated.
        self.sign = np.where(upper, 1.0, -1.0)
        self.alive = np.ones(len(time), dtype=bool)
        self.rough = self._rough_line()

    def violation(self, level: float, slope: float) -> Floats:
        """Return how far in ns the line is on the wrong side of each limit; negative on the right side."""
        return -self.sign * (self.value - level - slope * self.time)

    def settle(self, pieces: int, slack: float) -> tuple[Band, Int64] | None:
        """Return the lines between the limits and the index of the limits used; contradicting limits are rejected."""
        level, slope, width = self.rough
        most = POLICY.gross_half_widths * width + POLICY.gross_ns + 2 * slack
        violation = self.violation(level, slope)
        for attempt in range(POLICY.most_rounds):
            if attempt % POLICY.patience_rounds == 0:
                self.alive &= violation <= most
                most /= 2
            kept = self._tightest(pieces)
            up, down = kept[self.upper[kept]], kept[~self.upper[kept]]
            if not len(up) or not len(down):
                return None
            lines = band(self.time[up], self.value[up] + slack, self.time[down], self.value[down] - slack)
            if isinstance(lines, Band):
                return lines, kept
            against = np.concatenate([up[lines[0]], down[lines[1]]])
            # One of them is wrong, most likely the limit that the rough line violates most.
            self.alive[against[np.argmax(violation[against])]] = False
        return None

    def _tightest(self, pieces: int) -> Int64:
        """Return the index of the limits nearest to the rough line in each piece of time, above and below it.

        Any subset of the limits holds; these constrain the offset most.
        """
        level, slope, _ = self.rough
        distance = -self.violation(level, slope)
        span = float(self.time[-1] - self.time[0]) + 1.0
        piece = ((self.time - self.time[0]) * (pieces / span)).astype(np.int64) * 2 + self.upper
        rows = np.flatnonzero(self.alive)
        rows = rows[np.lexsort((distance[rows], piece[rows]))]
        leads = np.diff(piece[rows], prepend=-1) != 0
        return np.asarray(np.sort(rows[leads]), dtype=np.int64)

    def _rough_line(self) -> tuple[float, float, float]:
        """Return (level, slope, half-width of the band) of a line that a few wrong limits cannot move."""
        count = len(self.time)
        slope, level, width = 0.0, 0.0, np.inf
        for windows in (min(16, max(1, count // 16)),) * 2:
            rest = self.value - slope * self.time
            edges = np.linspace(self.time[0], self.time[-1] + 1.0, windows + 1)
            number = np.clip(np.searchsorted(edges, self.time, side="right") - 1, 0, windows - 1)
            # Sorted by window and side, the tightest limit of each first.
            key = number * 2 + self.upper
            order = np.lexsort((self.sign * rest, key))
            starts = np.searchsorted(key[order], np.arange(2 * windows + 1))
            counts = np.diff(starts).reshape(windows, 2)
            both = (counts > 0).all(axis=1)
            if not both.any():
                a, b = np.median(rest[self.upper]), np.median(rest[~self.upper])
                return float(a + b) / 2, slope, float(abs(a - b))
            down, up = rest[order[(starts[:-1].reshape(windows, 2) + _modest(counts))[both]]].T
            centre, half = (up + down) / 2, np.abs(up - down) / 2
            when = ((edges[:-1] + edges[1:]) / 2)[both]
            width = float(np.median(half))
            more, level = _line_near_most(when, centre, width + POLICY.gross_ns)
            slope += more
        return level, slope, width


def _line_near_most(when: Floats, centre: Floats, width: float) -> tuple[float, float]:
    """Return (slope, level) of the line near most of the points; a step of the clock gives two such lines."""
    i, j = np.triu_indices(len(when), 1)
    if len(i) > 1:
        slope = (centre[j] - centre[i]) / (when[j] - when[i])
        away = np.abs(centre - centre[i, None] - slope[:, None] * (when - when[i, None]))
        near = away <= width
        best = int(np.lexsort((np.minimum(away, width).sum(axis=1), -near.sum(axis=1)))[0])
        if near[best].sum() > 1:
            when, centre = when[near[best]], centre[near[best]]
    return line_through(when, centre)


def _modest(count: Int64) -> Int64:
    """Return the place of a tight limit that leaves out a few tighter ones, which may be wrong."""
    return np.minimum(count - 1, np.maximum(count // 8, np.where(count > 3, 1, 0)))


def _reach(
    lines: Band, points: _Points, kept: Int64, at: Floats, bow: float, more_rate: float
) -> tuple[Floats, Floats]:
    """Return the lowest and highest offset at each moment.

    The narrower of two bounds counts: a line plus how far a wandering clock may bow from it, and each single limit plus
    how far a clock can drift between the limit and the moment.
    """
    high, low = lines.high(at) + bow, lines.low(at) - bow
    slope = (lines.slope[0] + lines.slope[-1]) / 2
    rate = 2 * POLICY.wander_ratio + more_rate + (lines.slope[-1] - lines.slope[0]) / 2
    upper = points.upper[kept]
    rest = points.value[kept] - slope * points.time[kept]
    away = rate * np.abs(np.subtract.outer(at, points.time[kept]))
    high = np.minimum(high, (rest + away)[:, upper].min(axis=1) + slope * at)
    low = np.maximum(low, (rest - away)[:, ~upper].max(axis=1) + slope * at)
    return np.minimum(low, high), np.maximum(low, high)


def _touching(lines: Band, points: _Points, kept: Int64, bow: float) -> Bools:
    """Return a mask of the limits that determine the lines: those that a line touches."""
    time, value, upper = points.time[kept], points.value[kept], points.upper[kept]
    away = np.multiply.outer(time, lines.slope)
    above = value + bow - (lines.top + away).max(axis=1)
    below = (lines.bottom + away).min(axis=1) - (value - bow)
    gap = np.where(upper, above, below)
    return np.asarray(gap <= max(float(gap.min()), 0.0) + 1.0)


def _step(points: _Points, rejected: Bools, at: Floats, middle: Floats) -> tuple[bool, float]:
    """Return (True if most limits of a stretch of time were rejected, how far in ns these are from the line).

    An operation matched to a wrong one is a single contradiction; a clock that was set contradicts all later limits.
    """
    if not rejected.any():
        return False, 0.0
    windows = min(POLICY.windows_count, max(1, len(points.time) // 16))
    span = float(points.time[-1] - points.time[0]) + 1.0
    window = ((points.time - points.time[0]) * (windows / span)).astype(np.int64)
    both = np.bincount(window, minlength=windows)
    # An interval on the wrong side violates only one of its two limits.
    wrong = np.bincount(window[rejected], minlength=windows)
    bad = np.flatnonzero((wrong >= 3) & (4 * wrong > both))
    rest = points.value - np.interp(points.time, at, middle)
    covered = 0.0
    for w in bad.tolist():
        # The truth lies between the limits of this stretch, whatever the line says.
        for side in (window == w) & points.upper, (window == w) & ~points.upper:
            tight = np.sort(points.sign[side] * rest[side])
            if len(tight):
                covered = max(covered, abs(float(tight[_modest(np.array(len(tight)))])))
    return bool(len(bad)), covered


# The lines that one-sided limits allow for the offset of two clocks: a polygon in (offset, drift).
#
#     offset                     every upper limit lies above the true line and every lower one below it, so the true
#       |  v     v      v        line is one of those that pass between them; how far these reach up and down at a
#       |-----/------/----       moment is the error at that moment
#       |   ^     ^       ^
#       +------------------ time
#
# Times and offsets are floats of ns around the middle of the run.


@dataclass(frozen=True, slots=True)
class Band:
    """Lines ``offset = level + slope * time`` between lower and upper limits, as the corners of their polygon."""

    #: Ascending.
    slope: Floats
    #: Highest and lowest level for each slope.
    top: Floats
    bottom: Floats

    def high(self, time: Floats) -> Floats:
        """Highest offset at each moment."""
        return np.asarray((self.top + np.multiply.outer(time, self.slope)).max(axis=1))

    def low(self, time: Floats) -> Floats:
        """Lowest offset at each moment."""
        return np.asarray((self.bottom + np.multiply.outer(time, self.slope)).min(axis=1))


def band(upper_time: Floats, upper: Floats, lower_time: Floats, lower: Floats) -> Band | tuple[Floats, Floats]:
    """Return the lines between limits or, if there is none, masks of the limits that contradict each other.

    The masks mark the upper and lower limits that touch the line whose largest violation is smallest.
    """
    upper_at, lower_at = _hull(upper_time, upper), _hull(lower_time, -lower)
    ut, uv, lt, lv = upper_time[upper_at], upper[upper_at], lower_time[lower_at], lower[lower_at]
    slopes = np.unique(
        np.concatenate(
            [[-POLICY.most_drift_between_ratio, POLICY.most_drift_between_ratio], _edges(ut, uv), _edges(lt, lv)]
        )
    )
    slopes = slopes[np.abs(slopes) <= POLICY.most_drift_between_ratio]
    top = (uv - np.multiply.outer(slopes, ut)).min(axis=1)
    bottom = (lv - np.multiply.outer(slopes, lt)).max(axis=1)
    gap = top - bottom
    best = int(np.argmax(gap))
    if gap[best] < 0:
        touch = np.abs(gap[best]) * 1e-6 + 1e-3
        above = np.abs(upper - slopes[best] * upper_time - top[best]) <= touch
        below = np.abs(lower - slopes[best] * lower_time - bottom[best]) <= touch
        return above, below
    # The gap is a concave function of the slope: it is positive in one interval, whose ends lie between corners.
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
    """Return the slope, between a corner and the next one, at which the gap is zero."""
    step = float(gap[at + 1] - gap[at])
    return float(slopes[at] - gap[at] * (slopes[at + 1] - slopes[at]) / step) if step else float(slopes[at])


def _edges(time: Floats, value: Floats) -> Floats:
    return np.diff(value) / np.diff(time)


def _hull(time: Floats, value: Floats) -> Int64:
    """Return the index of the corners of the lower convex hull, by time."""
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


# The offset of two clocks from operations that end on both hosts at nearly the same time.
#
# The rank that enters last may end earlier than the others, because their data is already there. So the differences
# of ends are grouped by the host that entered last; half the distance between the two groups is the error of the ends.


@dataclass(frozen=True, slots=True)
class CommonEnds:
    """Operations in which no rank can end before all have entered, as two hosts recorded them, in any order."""

    #: End on the follower's clock.
    at_ns: Int64
    #: The leader's end minus the follower's.
    offset_ns: Int64
    #: The leader's entry minus the follower's: the follower was later where this is less than the offset.
    lead_ns: Int64
    #: The shorter one of the two hosts.
    duration_ns: Int64
    #: Of the clocks behind the ends.
    error_ns: Int64
    #: True if the times are from devices.
    on_device: Bools

    @property
    def need(self) -> float:
        """The ends are used where the limits are more than this many times as wide."""
        return 1.0 if bool(self.on_device.all()) else POLICY.host_ends_used_times


def line_through(time: Floats, value: Floats) -> tuple[float, float]:
    """Return (slope, level at 0) of the line with the median slope between points; a third of them may be wrong."""
    if len(time) < 2:
        return 0.0, float(np.median(value)) if len(value) else 0.0
    i, j = np.triu_indices(len(time), 1)
    apart = time[j] - time[i]
    slope = float(np.median((value[j] - value[i])[apart > 0] / apart[apart > 0])) if (apart > 0).any() else 0.0
    return slope, float(np.median(value - slope * time))


def ends_offset(
    ends: CommonEnds, base_at: int, base_offset: int, guess: tuple[Floats, Floats]
) -> Callable[[Floats], tuple[Floats, Floats]] | None:
    """Return a function from times to offsets and their errors; None if there are too few operations.

    ``base_at``, ``base_offset``: zero of the times and offsets that are given and returned as floats. ``guess``: close
    enough to decide which host entered last, and the rate at which the offset changes.
    """
    if len(ends.at_ns) < 2 * POLICY.fewest_last_count:
        return None
    quick = int(np.quantile(ends.duration_ns, 0.1))
    small = ends.duration_ns <= POLICY.small_times * quick + 1
    time = (ends.at_ns[small] - base_at).astype(np.float64)
    guessed = np.interp(time, *guess)
    rest = (ends.offset_ns[small] - base_offset).astype(np.float64) - guessed
    later = (ends.lead_ns[small] - base_offset).astype(np.float64) < guessed
    if min(int(later.sum()), int((~later).sum())) < POLICY.fewest_last_count:
        return None
    # Slope and level of the line through the medians of eight stretches of time
    parts = min(8, max(1, len(time) // 8))
    order = np.argsort(time, kind="stable")[: len(time) // parts * parts].reshape(parts, -1)
    slope, level = line_through(np.median(time[order], axis=1), np.median(rest[order], axis=1))
    rest = rest - level - slope * time
    by_follower, by_leader = float(np.median(rest[later])), float(np.median(rest[~later]))
    shift = (by_follower + by_leader) / 2
    noise = max(deviation(rest[later]), deviation(rest[~later]))
    span = float(np.ptp(time)) + 1.0
    asymmetry = POLICY.device_asymmetry_ratio if bool(ends.on_device.all()) else POLICY.host_asymmetry_ratio
    fixed = abs(by_follower - by_leader) / 2 + asymmetry * quick + noise + float(ends.error_ns[small].max())

    def at(moment: Floats) -> tuple[Floats, Floats]:
        outside = np.maximum(np.abs(moment - (time.min() + time.max()) / 2) / span - 0.5, 0.0)
        return np.interp(moment, *guess) + level + shift + slope * moment, fixed + 4 * noise * outside

    return at
