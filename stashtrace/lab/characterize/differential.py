"""Stalls as differences between runs: Stash's five configurations of a job, with intervals over repeated runs.

    t1 --(all devices)--> t2 --(real data, cached)--> t4 --(nothing cached)--> t3
                           t2 --(over a network)----> t5

``t`` is the time of a training step. Each quantity exists in a clean form, a share of the slower of the two steps, and
as Stash's code computes it, so that published numbers can be compared. Formulas: Sharma et al., Stash, ICDCS 2023, and
its code; ``docs/concepts/differential.md`` lists where the two forms part. Pure.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stashtrace.calibration.noise import NORMAL, Floats, student
from stashtrace.lab.number_intervals import Estimate

#: The five configurations: 1 one device, synthetic batches; 2 all devices of a host, synthetic; 3 as 2 with the real
#: data, its files not in the page cache; 4 as 3, its files in the page cache; 5 as 2, but over a network. JSON keys,
#: run names and the option ``--steps`` call them steps, as Stash does.
CONFIGURATIONS = (1, 2, 3, 4, 5)
#: Stall -> the configurations that it is the difference of: the faster and the slower one, as they are meant to be.
SIDES: Mapping[str, tuple[int, int]] = {"interconnect": (1, 2), "network": (2, 5), "prep": (2, 4), "fetch": (4, 3)}
STALLS = tuple(SIDES)
#: As published, the fetch stall is taken from the cold step after the prep stall, and so needs configuration 2 as well.
_PUBLISHED_NEEDS: Mapping[str, tuple[int, ...]] = {**SIDES, "fetch": (2, 3, 4)}

_RESAMPLES = 4000
_SEED = 20230718
#: A deviation this small compared with the other one is rounding.
_NOTHING = 1e-6


@dataclass(frozen=True, slots=True)
class Stall:
    """One stall in both forms."""

    #: Shares: 0.25 is a quarter of the step. The published network stall has no upper bound.
    clean: Estimate
    as_published: Estimate | None
    #: The difference of the two step times.
    lost_ns: Estimate
    #: Ratio of the slower step to the faster one.
    slowdown: Estimate


def clean_share(stall: str, times: Mapping[int, Floats]) -> Floats:
    """Share of the slower step that a stall takes, negative if the step that should be slower is not.

    ``stall``: one of :data:`STALLS`. ``times``: configuration -> step time, any unit, all of one shape.

    Examples
    --------
    >>> float(clean_share("interconnect", {1: np.array(100.0), 2: np.array(1000.0)}))
    0.9
    """
    less, more = (times[side] for side in SIDES[stall])
    return np.asarray((more - less) / more)


def published_share(stall: str, times: Mapping[int, Floats], synthetic_divisor: float = 1.0) -> Floats:
    """The same stall as Stash's code computes it.

    ``stall``: one of :data:`STALLS`. ``times``: totals of the configurations. Stash's synthetic runs process fewer
    samples than those with data. ``synthetic_divisor``: how many times fewer. Its code divides the numerators by it and
    not the denominators, which makes prep and fetch smaller by that factor. 1 where all are times per iteration, as
    ours are.

    Examples
    --------
    >>> float(published_share("network", {2: np.array(100.0), 5: np.array(500.0)}))
    4.0
    """
    d = synthetic_divisor
    if stall == "interconnect":
        return clean_share(stall, times)
    if stall == "network":
        return np.asarray((times[5] - times[2]) / times[2])
    prep = times[4] / d - times[2]
    if stall == "prep":
        return np.asarray(prep / times[4])
    return np.asarray((times[3] / d - prep) / times[3])


def step_time(runs_ns: Sequence[float]) -> Estimate:
    """Median over runs of the step time in one configuration, and its interval."""
    return _estimate({1: np.asarray(runs_ns, dtype=np.float64)}, lambda times: times[1])


def stalls(runs_ns: Mapping[int, Sequence[float]]) -> dict[str, Stall]:
    """Stalls of a characterization, with intervals; those whose configurations were not measured are missing.

    ``runs_ns``: configuration -> mean step time of each run, in the order of the repetitions; NaN for a run that
    failed. Runs of one repetition were made one after the other and are resampled together: what slows the machine down
    for some minutes slows all of them, and cancels.

    Notes
    -----
    The interval is that of the percentile bootstrap over repetitions, its deviations widened by
    ``t / z * sqrt(n / (n - 1))``: with few repetitions the plain one is too narrow (Hesterberg, The American
    Statistician 69(4), 2015, section 3.2), and a side on which no resample lies takes the deviation of the other. In
    simulations it then holds the truth in 94 of 100 cases with three repetitions, in 96 and more from four.
    """
    times = {k: np.asarray(v, dtype=np.float64) for k, v in runs_ns.items() if np.isfinite(v).any()}
    out = {}
    for name, (less, more) in SIDES.items():
        if not {less, more} <= times.keys():
            continue
        both = {less: times[less], more: times[more]}
        published = None
        if times.keys() >= {*_PUBLISHED_NEEDS[name]}:
            needed = {k: times[k] for k in _PUBLISHED_NEEDS[name]}
            published = _estimate(needed, functools.partial(published_share, name))
        out[name] = Stall(
            clean=_estimate(both, functools.partial(clean_share, name)),
            as_published=published,
            lost_ns=_estimate(both, functools.partial(_lost, name)),
            slowdown=_estimate(both, functools.partial(_slowdown, name)),
        )
    return out


def _lost(stall: str, times: Mapping[int, Floats]) -> Floats:
    less, more = SIDES[stall]
    return np.asarray(times[more] - times[less])


def _slowdown(stall: str, times: Mapping[int, Floats]) -> Floats:
    less, more = SIDES[stall]
    return np.asarray(times[more] / times[less])


def _estimate(runs: Mapping[int, Floats], statistic: Callable[[Mapping[int, Floats]], Floats]) -> Estimate:
    count = max(len(v) for v in runs.values())
    table = np.full((len(runs), count), np.nan)
    for row, values in zip(table, runs.values(), strict=True):
        row[: len(values)] = values
    fewest = int(np.isfinite(table).sum(axis=1).min())
    value = float(statistic(_medians(runs, table[:, None, :])).item())
    if fewest < 2:
        return Estimate(value, np.nan, np.nan, fewest)
    drawn = np.random.default_rng(_SEED).integers(0, count, (_RESAMPLES, count))
    resampled = statistic(_medians(runs, table[:, drawn]))
    deviation = _both_sides(np.nanpercentile(resampled, (2.5, 97.5)) - value)
    low, high = value + deviation * (student(fewest - 1) / NORMAL * np.sqrt(fewest / (fewest - 1)))
    return Estimate(value, min(float(low), value), max(float(high), value), fewest)


def _both_sides(deviation: Floats) -> Floats:
    """Deviations below and above a value, that of a side on which no resample lies being that of the other.

    The median of three is the least or the largest that resamples of three can give in one of seven studies. That says
    nothing of that side: the truth lies beyond it as often as beyond the other.
    """
    low, high = min(float(deviation[0]), 0.0), max(float(deviation[1]), 0.0)
    nothing = _NOTHING * (high - low)
    return np.array([-high if -low <= nothing else low, -low if high <= nothing else high])


def _medians(runs: Mapping[int, Floats], drawn: Floats) -> dict[int, Floats]:
    """Configuration -> median of each resample; NaN where a resample holds failed runs alone."""
    sorted_runs = np.sort(drawn, axis=-1)  # NaN comes last
    count = np.isfinite(drawn).sum(axis=-1, keepdims=True)
    low = np.take_along_axis(sorted_runs, np.maximum(count - 1, 0) // 2, axis=-1)
    high = np.take_along_axis(sorted_runs, np.maximum(count, 1) // 2, axis=-1)
    middle = np.where(count > 0, (low + high) / 2, np.nan)[..., 0]
    return dict(zip(runs, middle, strict=True))
