"""Shifts, drifts and periods in one series of step lengths, found by ranks of values, so that outliers do not count.

    shift    the ranks of the values inside an arc of steps against those outside (circular binary segmentation)
    drift    a line (Theil and Sen) that explains a staircase of shifts better than the stairs do
    period   long steps at every P-th place: more of them than chance puts there; or half of the steps, by turns

All thresholds are of chance (what exchangeable noise of any distribution does in one of thousands of runs) and of
effect (what is worth saying). Noise that lasts for several steps counts for fewer steps than it has. Of series too
short for that, ``detect_in_short_series`` finds what stands clear of all noise.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.findings.over_time.detect_in_short_series import (
    SHORT,
    clear_arc,
    clear_line,
    is_clear,
    is_periodic,
)

Floats = npt.NDArray[np.float64]

#: Fewer steps than this say nothing about time: they hold no two stretches.
LEAST_STEPS = 12
#: Steps of the shortest stretch that is one.
_STRETCH = 6
#: More steps than this are joined to stretches of a median each.
_MOST = 400
#: Deviation of an arc's mean rank, in standard deviations, that noise reaches in fewer than one of thousands of runs.
_BEYOND_CHANCE = 5.5
#: Part of the usual step that a change has at least, and share of the pairs of steps that are in its order.
_WORTH_SAYING, _TOLD_APART = 0.05, 0.8
#: Chance of a period among the places of long steps.
_PERIOD_CHANCE = 1e-4
#: So many long steps of a period are seen, and this share of its places.
_TIMES, _KEPT = 4, 0.75
#: A long step of a period is longer than the usual one by this part, and by so many deviations.
_LONG, _DEVIATIONS = 0.1, 5.0
#: A model fits clearly better if its fit is that much less: chance makes one of twenty so.
_CLEARLY = 3.0
#: Places at which values may begin to grow.
_HINGES = 60
#: Periods of which half the steps are long; these are so in each of that many parts of the series.
_TURNS, _PARTS = (2, 4, 6, 8), 4
#: And the places of long steps, as those of short ones, differ among each other by less than this part of the excess.
_LEVEL = 1 / 3


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

    def holds(self, count: int) -> npt.NDArray[np.bool_]:
        """Return which of so many steps are those of the period."""
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
    if count < LEAST_STEPS:
        return [Stretch(0, count, float(np.median(values)) if count else 0.0)]
    size = -(-count // _MOST)
    joined = values
    if size > 1:
        whole = count // size
        joined = np.median(values[: whole * size].reshape(whole, size), axis=1)
    cuts = sorted(_cuts(joined, 0, len(joined)))
    places = [0, *(_refine_cut(values, cut * size, size) for cut in cuts), count]
    return _merge_alike(values, places)


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
    if count < 2 * _STRETCH:
        return None
    scores = _scores(part)
    total = np.concatenate([[0.0], np.cumsum(scores)])
    places = np.arange(count + 1)
    length = places[None, :] - places[:, None]
    fits = (length >= _STRETCH) & (count - length >= _STRETCH)
    # What is left before and behind an arc is a stretch as well, or nothing.
    fits &= ((places == 0) | (places >= _STRETCH))[:, None] & ((places == count) | (places <= count - _STRETCH))[
        None, :
    ]
    if not fits.any():
        return None
    spread = np.sqrt(np.where(fits, length * (count - length) / count, 1.0))
    beyond = np.where(fits, np.abs(total[None, :] - total[:, None]) / spread, 0.0)
    begin, end = (int(place) for place in np.unravel_index(int(beyond.argmax()), beyond.shape))
    inside = np.zeros(count, dtype=bool)
    inside[begin:end] = True
    # A trend inside the stretches is no noise that lasts.
    lasting = _lasting(np.concatenate([_without_line(piece) for piece in np.split(scores, [begin, end]) if len(piece)]))
    if beyond[begin, end] / math.sqrt(lasting) < _BEYOND_CHANCE:
        clear = clear_arc(part, fits) if count < SHORT else None
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
    if difference < _WORTH_SAYING * max(usual, 1.0):
        return False
    ordered = _share_of_longer(one, other)
    return max(ordered, 1 - ordered) >= _TOLD_APART


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


def _merge_alike(values: Floats, places: list[int]) -> list[Stretch]:
    """Join neighbours that do not differ by enough to be told apart."""
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
    if len(found) == 1 and LEAST_STEPS <= len(values) < SHORT:
        line = clear_line(values)
        if line is None or abs(line[0]) * (len(values) - 1) < _WORTH_SAYING * found[0].length:
            return None
        return Drift(line[0], line[1], line[1] + line[0] * (len(values) - 1))
    if len(found) < 2:
        return None
    slope, start = _line(values)
    places = np.arange(len(values))
    rise = abs(slope) * (len(values) - 1)
    if rise < _WORTH_SAYING * max(min(start, start + slope * (len(values) - 1)), 1.0):
        return None
    # Where neither fits clearly better, two levels are a shift that may have grown; more of them are a line.
    clearly = _CLEARLY if len(found) == 2 else 0.0
    straight = _fit(values, values - start - slope * places, found, 1)
    if straight > _fit(values, _off_stairs(values, found), found) - clearly:
        return None
    if straight > _fit(values, _hinge(values)[1], found, 2) + _CLEARLY:
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
    if bent < stairs - _CLEARLY:
        return place, "gradual"
    return found[1].begin, "either" if min(bent, straight) < stairs + _CLEARLY else "sudden"


def _hinge(values: Floats) -> tuple[int, Floats]:
    """Return from where on a line leaves a level so that it fits best, and what it leaves of the values."""
    count, best = len(values), None
    for place in np.unique(np.linspace(_STRETCH, count - _STRETCH, min(count, _HINGES)).astype(int)).tolist():
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
    if count < LEAST_STEPS:
        return None
    level = np.repeat([s.length for s in found], [s.end - s.begin for s in found])
    rest = values - level
    usual = float(np.median(level))
    deviation = 1.4826 * float(np.median(np.abs(rest)))
    long = np.flatnonzero(rest > max(_LONG * usual, _DEVIATIONS * deviation))
    best: tuple[float, Period] | None = None
    if len(long) >= _TIMES and len(long) <= count // 2:
        for every in range(2, count // _TIMES + 1):
            hits = np.bincount(long % every, minlength=every)
            first = int(hits.argmax())
            places = len(range(first, count, every))
            times = int(hits[first])
            if times < _TIMES or times < _KEPT * places or 3 * times < len(long):
                continue
            chance = _by_chance(count, len(long), places, times) * every * (count // _TIMES)
            all_of_it = count < SHORT and times == places == len(long)
            # A multiple of a period hits as often as it, at fewer places.
            if (chance < _PERIOD_CHANCE or (all_of_it and is_periodic(count, places, every, count // _TIMES))) and (
                best is None or chance < best[0]
            ):
                inside = np.arange(count) % every == first
                excess = float(np.median(rest[inside]) - np.median(rest[~inside]))
                best = (chance, Period(every, first, times, places, excess))
    waves = [wave for wave in (best and best[1], _by_turns(rest, usual)) if wave is not None]
    return max(waves, key=lambda wave: wave.excess * wave.places, default=None)


def _by_turns(rest: Floats, usual: float) -> Period | None:
    """Return the period of which half the steps are long; None if there is none.

    Long and short ones are the two halves of the values then, and no deviation from the median tells them from noise.
    The mean of the values, with the sign that the period gives them, does. Noise that alternates of itself lasts under
    these signs; it also changes its turn, so that each part of the series is looked at.
    """
    count, scores = len(rest), _scores(rest)
    best: tuple[float, Period] | None = None
    for every in _TURNS:
        if count // every < _TIMES:
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
    if excess < _LONG * max(usual + float(np.median(short)), 1.0):
        return None
    in_turn = all(
        _share_of_longer(rest[part][at[part]], rest[part][~at[part]]) >= _TOLD_APART
        for part in np.array_split(np.arange(count), _PARTS)
        if 0 < np.count_nonzero(at[part]) < len(part)
    )
    of_place = np.array([np.median(rest[place :: wave.every]) for place in range(wave.every)])
    is_long = wave.holds(wave.every)
    if max(float(np.ptp(of_place[is_long])), float(np.ptp(of_place[~is_long]))) > _LEVEL * excess:
        return None  # steps that grow, over and over again
    by_chance = beyond < _BEYOND_CHANCE and not (
        count < SHORT and is_clear(long, short, usual) and is_periodic(count, len(long), wave.every, count // _TIMES)
    )
    if by_chance or not in_turn:
        return None
    times = int(np.count_nonzero(long > np.median(short) + excess / 2))
    return Period(wave.every, wave.first, times, len(long), excess, wave.width)


def _by_chance(count: int, long: int, places: int, times: int) -> float:
    """Return the probability that of ``long`` steps among ``count`` at least ``times`` lie at ``places``."""
    whole = _log_choose(count, long)
    logs = [
        _log_choose(places, hits) + _log_choose(count - places, long - hits) - whole
        for hits in range(times, min(places, long) + 1)
        if long - hits <= count - places
    ]
    return sum(math.exp(log) for log in logs)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
