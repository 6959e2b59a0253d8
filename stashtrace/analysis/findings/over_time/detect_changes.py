"""Shifts, drifts and periods in one series of step lengths, found by ranks of values, so that outliers do not count.

    shift    the ranks of the values inside an arc of steps against those outside (circular binary segmentation)
    drift    a line (Theil and Sen) that explains a staircase of shifts better than the stairs do
    period   long steps at every P-th place: more of them than chance puts there; or half of the steps, alternately

All thresholds are of chance (what exchangeable noise of any distribution does in one of thousands of runs) and of
effect (what is worth saying). Noise that lasts for several steps counts for fewer steps than it has. Of series too
short for that, what stands clear of all noise is found:

    shift    every step of one stretch is longer than every other step, by a gap of several times what either varies
    drift    a line that rises by many times what it does not explain
    period   the long steps are all of every P-th place, and no others

Of independent noise of any distribution no more than 2^(1 - n) of the series of n steps fall apart at one place, into
two stretches with a gap between them; how wide the gap has to be keeps out noise that lasts for several steps.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from stashtrace.analysis.intervals import Bools
from stashtrace.calibration.noise import OF_MEAN, OF_MEDIAN_DEVIATION, Floats, share_or_more


@dataclass(frozen=True, slots=True)
class Policy:
    """What counts as a change of the step, each with its reason: of chance, of what is worth saying, of time."""

    #: Fewer steps hold no two stretches, each of at least this number.
    least_steps_count: int = 12
    stretch_steps_count: int = 6
    #: More values are joined to medians: the search takes the square of their number.
    values_count: int = 400
    #: Deviation of an arc's mean rank that noise reaches in fewer than one of thousands of runs.
    beyond_chance_deviations: float = 5.5
    #: A change is at least this part of the usual step, and this share of the pairs of steps is in its order.
    worth_saying_ratio: float = 0.05
    in_order_ratio: float = 0.8
    #: A model fits clearly better if its fit is that much less: chance makes one of twenty so.
    clearly_better: float = 3.0
    #: Places at which values may begin to grow: more would show no more, and take longer.
    bends_count: int = 60
    #: Chance of a period among the places of long steps.
    period_chance_ratio: float = 1e-4
    #: At least this number of long steps of a period is seen, and this share of its places.
    period_times_count: int = 4
    period_kept_ratio: float = 0.75
    #: A long step of a period is longer than the usual one by this part, and by this number of deviations.
    long_ratio: float = 0.1
    long_deviations: float = 5.0
    #: Periods of which half the steps are long; these are so in each of that many parts of the series, and the places
    #: of long steps, as those of short ones, differ among each other by less than this part of the excess.
    turns_steps: tuple[int, ...] = (2, 4, 6, 8)
    turns_parts_count: int = 4
    turns_level_ratio: float = 1 / 3
    #: Series of fewer steps are short: unless one is cut in its middle, ranks of values do not reach the deviation.
    short_steps_count: int = 96
    #: In these, a gap between stretches, and the rise of a line, in standard deviations of what they leave.
    gap_deviations: float = 4.0
    rise_deviations: float = 10.0
    #: A stretch is at least one in this number of steps, so that no two bursts of a few long steps in a row are one.
    stretch_parts_count: int = 6
    #: Deviations are at least this part of the usual step, so that series without noise have some.
    least_noise_ratio: float = 1e-6
    #: Chance of a period in all series of its length.
    short_period_chance_ratio: float = 5e-4
    #: A period matters from this part of the mean step on.
    period_ratio: float = 0.01


POLICY = Policy()


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps ``begin`` to ``end`` (not included) with their median length."""

    begin: int
    end: int
    length: float


@dataclass(frozen=True, slots=True)
class Period:
    """Steps ``first``, ``first + every``, ... are longer by ``excess``; ``count`` of ``places`` are.

    And so are as many steps after each of them as make ``width`` together.
    """

    every: int
    first: int
    count: int
    places: int
    excess: float
    width: int = 1

    def holds(self, count: int) -> Bools:
        """Return which of a number of steps are those of the period."""
        return np.asarray((np.arange(count) - self.first) % self.every < self.width)


@dataclass(frozen=True, slots=True)
class Drift:
    """Steps grow by ``slope`` each, from ``begin`` to ``end`` over the run."""

    slope: float
    begin: float
    end: float


def stretches(values: Floats) -> list[Stretch]:
    """Divide a series into stretches of different length; one stretch if nothing changes."""
    count = len(values)
    if count < POLICY.least_steps_count:
        return [Stretch(0, count, float(np.median(values)) if count else 0.0)]
    size = -(-count // POLICY.values_count)
    joined = values
    if size > 1:
        whole = count // size
        joined = np.median(values[: whole * size].reshape(whole, size), axis=1)
    cuts = sorted(_cuts(joined, 0, len(joined)))
    places = [0, *(_refine_cut(values, cut * size, size) for cut in cuts), count]
    return _merge_similar(values, places)


def _cuts(values: Floats, begin: int, end: int) -> set[int]:
    part = values[begin:end]
    arc = _arc(part)
    if arc is None:
        return set()
    cuts = {begin + place for place in arc if 0 < place < len(part)}
    borders = [begin, *sorted(cuts), end]
    for left, right in itertools.pairwise(borders):
        cuts |= _cuts(values, left, right)
    return cuts


def _arc(part: Floats) -> tuple[int, int] | None:
    """Return the arc of values that differs most from the rest; None if chance or smallness explains it."""
    count = len(part)
    if count < 2 * POLICY.stretch_steps_count:
        return None
    scores = _scores(part)
    total = np.concatenate([[0.0], np.cumsum(scores)])
    places = np.arange(count + 1)
    length = places[None, :] - places[:, None]
    fits = (length >= POLICY.stretch_steps_count) & (count - length >= POLICY.stretch_steps_count)
    # What is left before and behind an arc is a stretch as well, or nothing.
    fits &= ((places == 0) | (places >= POLICY.stretch_steps_count))[:, None] & (
        (places == count) | (places <= count - POLICY.stretch_steps_count)
    )[None, :]
    if not fits.any():
        return None
    spread = np.sqrt(np.where(fits, length * (count - length) / count, 1.0))
    beyond = np.where(fits, np.abs(total[None, :] - total[:, None]) / spread, 0.0)
    begin, end = (int(place) for place in np.unravel_index(int(beyond.argmax()), beyond.shape))
    inside = np.zeros(count, dtype=bool)
    inside[begin:end] = True
    # A trend inside the stretches is no noise that lasts.
    lasting = _lasting(np.concatenate([_without_line(piece) for piece in np.split(scores, [begin, end]) if len(piece)]))
    if beyond[begin, end] / math.sqrt(lasting) < POLICY.beyond_chance_deviations:
        clear = _clear_arc(part, fits) if count < POLICY.short_steps_count else None
        if clear is None:
            return None
        begin, end = clear
        inside = (places[:-1] >= begin) & (places[:-1] < end)
    return (begin, end) if _matters(part[inside], part[~inside]) else None


@functools.lru_cache(maxsize=64)
def _normal(count: int) -> Floats:
    normal = NormalDist()
    return np.array([normal.inv_cdf((place + 0.5) / count) for place in range(count)])


def _scores(values: Floats) -> Floats:
    """Return the normal scores of the ranks of some values; equal values have the mean of theirs."""
    order = np.argsort(values, kind="stable")
    scores = np.empty(len(values))
    scores[order] = _normal(len(values))
    _, number = np.unique(values, return_inverse=True)
    means = np.bincount(number, scores) / np.bincount(number)
    return np.asarray(means[number], dtype=np.float64)


def _without_line(scores: Floats) -> Floats:
    """Return values without their mean and their trend."""
    rest = scores - scores.mean()
    at = np.arange(len(scores)) - (len(scores) - 1) / 2
    weight = float((at * at).sum())
    return np.asarray(rest - at * (float((rest * at).sum()) / weight if weight else 0.0))


def _lasting(rest: Floats) -> float:
    """Return how much more the noise in scores of variance 1 moves means than independent noise does; at least 1.

    Noise that lasts for several steps moves the mean of as many of them more than single long steps do.
    """
    most = 1.0
    for size in (2, 4, 8):
        whole = len(rest) // size
        if whole >= 6:
            means = rest[: whole * size].reshape(whole, size).mean(axis=1)
            most = max(most, size * float(means.var()))
    return most


def _matters(one: Floats, other: Floats) -> bool:
    """Whether two stretches differ by enough of the usual step, in most pairs of their steps."""
    difference = abs(float(np.median(one)) - float(np.median(other)))
    usual = min(float(np.median(one)), float(np.median(other)))
    if difference < POLICY.worth_saying_ratio * max(usual, 1.0):
        return False
    ordered = _share_of_longer(one, other)
    return max(ordered, 1 - ordered) >= POLICY.in_order_ratio


def _share_of_longer(one: Floats, other: Floats) -> float:
    """Return the share of pairs of steps of which that of ``one`` is longer; of equal ones half counts."""
    below = np.searchsorted(np.sort(other), one, side="left").mean() / len(other)
    up_to = np.searchsorted(np.sort(other), one, side="right").mean() / len(other)
    return float((below + up_to) / 2)


def _refine_cut(values: Floats, place: int, size: int) -> int:
    """Return the place near a cut where two levels fit best; joined steps hide it by their number."""
    begin, end = max(place - 8 * size, 0), min(place + 8 * size, len(values))
    before, after = float(np.median(values[begin:place])), float(np.median(values[place:end]))
    near = range(max(place - 6 * size, begin + 1), min(place + 6 * size, end - 1) + 1)
    # One long step counts for no more than the change.
    most = abs(after - before)
    left, right = (np.minimum(np.abs(values[begin:end] - level), most) for level in (before, after))
    return min(near, key=lambda at: float(left[: at - begin].sum() + right[at - begin :].sum()), default=place)


def _merge_similar(values: Floats, places: list[int]) -> list[Stretch]:
    """Join neighbours that do not differ by enough to be distinguished."""
    borders = sorted(set(places))
    at = 1
    while at < len(borders) - 1:
        one, other = values[borders[at - 1] : borders[at]], values[borders[at] : borders[at + 1]]
        if _matters(one, other):
            at += 1
        else:
            del borders[at]
            at = max(at - 1, 1)
    return [Stretch(begin, end, float(np.median(values[begin:end]))) for begin, end in itertools.pairwise(borders)]


def drift(values: Floats, found: list[Stretch]) -> Drift | None:
    """Return the line that explains stretches of steadily longer or shorter steps better than they do."""
    if len(found) == 1 and POLICY.least_steps_count <= len(values) < POLICY.short_steps_count:
        line = _clear_line(values)
        if line is None or abs(line[0]) * (len(values) - 1) < POLICY.worth_saying_ratio * found[0].length:
            return None
        return Drift(line[0], line[1], line[1] + line[0] * (len(values) - 1))
    if len(found) < 2:
        return None
    slope, start = _line(values)
    places = np.arange(len(values))
    rise = abs(slope) * (len(values) - 1)
    if rise < POLICY.worth_saying_ratio * max(min(start, start + slope * (len(values) - 1)), 1.0):
        return None
    # Where neither fits clearly better, two levels are a shift that may have grown; more of them are a line.
    clearly = POLICY.clearly_better if len(found) == 2 else 0.0
    straight = _fit(values, values - start - slope * places, found, 1)
    if straight > _fit(values, _off_stairs(values, found), found) - clearly:
        return None
    if straight > _fit(values, _hinge(values)[1], found, 2) + POLICY.clearly_better:
        return None
    return Drift(slope, start, start + slope * (len(values) - 1))


def _line(values: Floats) -> tuple[float, float]:
    """Return slope and begin of the line through values (Theil and Sen)."""
    count = len(values)
    thin = np.unique(np.linspace(0, count - 1, min(count, 200)).astype(int))
    x, y = thin.astype(float), values[thin]
    rise = (y[None, :] - y[:, None])[np.triu_indices(len(thin), 1)]
    run = (x[None, :] - x[:, None])[np.triu_indices(len(thin), 1)]
    slope = float(np.median(rise / run))
    return slope, float(np.median(values - slope * np.arange(count)))


def _off_stairs(values: Floats, found: Sequence[Stretch]) -> Floats:
    return np.asarray(values - np.repeat([s.length for s in found], [s.end - s.begin for s in found]))


def _fit(values: Floats, rest: Floats, found: Sequence[Stretch], numbers: int = 0) -> float:
    """Return how badly a model fits, by what it leaves of the values and by how many numbers it has; less is better.

    Each stair has a place and a height, a line a slope. Noise that lasts counts for fewer steps than it has.
    """
    lasting = _lasting(_scores(_off_stairs(values, found)))
    numbers = numbers or 2 * (len(found) - 1)
    return len(values) / lasting * math.log(max(float(np.abs(rest).sum()), 1e-9)) + numbers * math.log(len(values))


def onset(values: Floats, found: Sequence[Stretch]) -> tuple[int, str]:
    """Return from which step on values differ to the end, and whether from one step to the next.

    Returns the place of the first of them, and ``sudden``, ``gradual`` where they grow from there on, or ``either``
    where what is left does not decide.
    """
    if len(found) < 2:
        return 0, "sudden"
    stairs = _fit(values, _off_stairs(values, found), found)
    place, rest = _hinge(values)
    bent = _fit(values, rest, found, 2)
    slope, start = _line(values)
    straight = _fit(values, values - start - slope * np.arange(len(values)), found, 1)
    if bent < stairs - POLICY.clearly_better:
        return place, "gradual"
    return found[1].begin, "either" if min(bent, straight) < stairs + POLICY.clearly_better else "sudden"


def _hinge(values: Floats) -> tuple[int, Floats]:
    """Return from where on a line leaves a level so that it fits best, and what it leaves of the values."""
    count, best = len(values), None
    first = POLICY.stretch_steps_count
    for place in np.unique(np.linspace(first, count - first, min(count, POLICY.bends_count)).astype(int)).tolist():
        level = float(np.median(values[:place]))
        run = np.arange(1, count - place + 1)
        # The line through the bend that leaves least is the weighted median of all slopes.
        slopes = (values[place:] - level) / run
        order = np.argsort(slopes, kind="stable")
        half = np.searchsorted(np.cumsum(run[order]), run.sum() / 2)
        rest = np.concatenate([values[:place] - level, values[place:] - level - slopes[order[half]] * run])
        if best is None or np.abs(rest).sum() < np.abs(best[1]).sum():
            best = place, rest
    assert best is not None
    return best


def period(values: Floats, found: list[Stretch]) -> Period | None:
    """Return the period of long steps that chance does not explain; None if there is none."""
    count = len(values)
    if count < POLICY.least_steps_count:
        return None
    level = np.repeat([s.length for s in found], [s.end - s.begin for s in found])
    rest = values - level
    usual = float(np.median(level))
    deviation = OF_MEDIAN_DEVIATION * float(np.median(np.abs(rest)))
    long = np.flatnonzero(rest > max(POLICY.long_ratio * usual, POLICY.long_deviations * deviation))
    best: tuple[float, Period] | None = None
    most = count // POLICY.period_times_count
    if POLICY.period_times_count <= len(long) <= count // 2:
        for every in range(2, most + 1):
            hits = np.bincount(long % every, minlength=every)
            first = int(hits.argmax())
            places = len(range(first, count, every))
            times = int(hits[first])
            if times < POLICY.period_times_count or times < POLICY.period_kept_ratio * places or 3 * times < len(long):
                continue
            chance = share_or_more(times, len(long), places, count) * every * most
            all_of_it = count < POLICY.short_steps_count and times == places == len(long)
            # A multiple of a period hits as often as it, at fewer places.
            is_sure = chance < POLICY.period_chance_ratio or (all_of_it and _is_periodic(count, places, every, most))
            if is_sure and (best is None or chance < best[0]):
                inside = np.arange(count) % every == first
                excess = float(np.median(rest[inside]) - np.median(rest[~inside]))
                best = (chance, Period(every, first, times, places, excess))
    waves = [wave for wave in (best and best[1], _by_turns(rest, usual)) if wave is not None]
    return max(waves, key=lambda wave: wave.excess * wave.places, default=None)


def _by_turns(rest: Floats, usual: float) -> Period | None:
    """Return the period of which half the steps are long; None if there is none.

    Long and short ones are the two halves of the values then, and no deviation from the median distinguishes them from
    noise. The mean of the values, with the sign that the period gives them, does. Noise that alternates of itself lasts
    under these signs; it also changes its turn, so that each part of the series is looked at.
    """
    count, scores = len(rest), _scores(rest)
    best: tuple[float, Period] | None = None
    for every in POLICY.turns_steps:
        if count // every < POLICY.period_times_count:
            break
        for first in range(every):
            wave = Period(every, first, 0, 0, 0.0, every // 2)
            signed = np.where(wave.holds(count), scores, -scores)
            beyond = float(signed.sum()) / math.sqrt(count * _lasting(signed - signed.mean()))
            if best is None or beyond > best[0]:
                best = beyond, wave
    if best is None:
        return None
    beyond, wave = best
    at = wave.holds(count)
    long, short = rest[at], rest[~at]
    excess = float(np.median(long) - np.median(short))
    if excess < POLICY.long_ratio * max(usual + float(np.median(short)), 1.0):
        return None
    in_turn = all(
        _share_of_longer(rest[part][at[part]], rest[part][~at[part]]) >= POLICY.in_order_ratio
        for part in np.array_split(np.arange(count), POLICY.turns_parts_count)
        if 0 < np.count_nonzero(at[part]) < len(part)
    )
    of_place = np.array([np.median(rest[place :: wave.every]) for place in range(wave.every)])
    is_long = wave.holds(wave.every)
    if max(float(np.ptp(of_place[is_long])), float(np.ptp(of_place[~is_long]))) > POLICY.turns_level_ratio * excess:
        return None  # steps that grow, over and over again
    by_chance = beyond < POLICY.beyond_chance_deviations and not (
        count < POLICY.short_steps_count
        and _is_clear(long, short, usual)
        and _is_periodic(count, len(long), wave.every, count // POLICY.period_times_count)
    )
    if by_chance or not in_turn:
        return None
    times = int(np.count_nonzero(long > np.median(short) + excess / 2))
    return Period(wave.every, wave.first, times, len(long), excess, wave.width)


def _clear_arc(part: Floats, fits: Bools) -> tuple[int, int] | None:
    """Return the arc whose values all lie on one side of a wide gap to all others; None if there is none.

    ``fits`` says by begin and end which arcs are long enough.
    """
    length = np.arange(len(part) + 1)[None, :] - np.arange(len(part) + 1)[:, None]
    least = len(part) // POLICY.stretch_parts_count
    gap = np.where(fits & (length >= least) & (len(part) - length >= least), _gaps(part), 0.0)
    for at in np.argsort(-gap, axis=None)[: np.count_nonzero(gap > 0)].tolist():
        begin, end = divmod(at, gap.shape[1])
        inside = np.zeros(len(part), dtype=bool)
        inside[begin:end] = True
        rest = [values - np.median(values) for values in (part[inside], part[~inside])]
        if gap[begin, end] >= POLICY.gap_deviations * _deviation(np.concatenate(rest), part):
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


def _clear_line(values: Floats) -> tuple[float, float] | None:
    """Return slope and begin of a line that rises far more than values differ from it; None if it does not."""
    slope, start = _line(values)
    rest = values - start - slope * np.arange(len(values))
    if abs(slope) * (len(values) - 1) < POLICY.rise_deviations * _deviation(rest, values):
        return None
    return slope, start


def _is_clear(long: Floats, short: Floats, usual: float) -> bool:
    """Return True if a wide gap parts all long values, given as what they differ from ``usual``, from all short."""
    rest = np.concatenate([long - np.median(long), short - np.median(short)])
    return float(long.min() - short.max()) >= POLICY.gap_deviations * _deviation(rest, np.array([usual]))


def _is_periodic(count: int, places: int, every: int, most: int) -> bool:
    """Return True if chance does not make steps long at all of every N places, and nowhere else.

    By a bound of its probability, whatever the share of long steps is: any of the first steps may be the first of the
    period, and periods up to ``most`` steps were tried.
    """
    share = places / count
    by_chance = float(every * share**places * (1 - share) ** (count - places))
    return (most - 1) * by_chance < POLICY.short_period_chance_ratio


def _deviation(rest: Floats, values: Floats) -> float:
    """Return what values differ by, as a standard deviation."""
    return max(OF_MEAN * float(np.abs(rest).mean()), POLICY.least_noise_ratio * float(np.median(values)))
