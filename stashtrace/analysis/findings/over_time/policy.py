"""Thresholds of the search for changes of the step."""

from __future__ import annotations

from dataclasses import dataclass


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
    told_apart_ratio: float = 0.8
    #: A model fits clearly better if its fit is that much less: chance makes one of twenty so.
    clearly_better: float = 3.0
    #: Places at which values may begin to grow: more would tell no more, and take longer.
    bends_count: int = 60
    #: Chance of a period among the places of long steps.
    period_chance_ratio: float = 1e-4
    #: So many long steps of a period are seen, and this share of its places.
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
    #: A stretch is at least one in so many steps, so that no two bursts of a few long steps in a row are one.
    stretch_parts_count: int = 6
    #: Deviations are at least this part of the usual step, so that series without noise have some.
    least_noise_ratio: float = 1e-6
    #: Chance of a period in all series of its length.
    short_period_chance_ratio: float = 5e-4
    #: A period matters from this part of the mean step on.
    period_ratio: float = 0.01


POLICY = Policy()
