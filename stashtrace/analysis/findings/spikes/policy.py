"""Thresholds of the search for slow steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Policy:
    """What counts as a slow step, and as a reason of one, each with its own reason."""

    #: Values that the level is the median of, and rests that the threshold is made of: newer ones alone, as jobs drift.
    level_steps: int = 64
    noise_steps: int = 512
    #: With fewer values nothing is said; the noise of the first is taken when so many are known, as the median of fewer
    #: may be a slow one.
    least_steps: int = 24
    first_steps: int = 8
    #: Chance that noise with an exponential tail takes a step beyond the threshold.
    chance_ratio: float = 2e-5
    #: The tail begins at this share of the rests; the last share may be slow steps.
    body_ratio: float = 0.75
    maybe_slow_ratio: float = 0.02
    #: The body's width holds this share of the rests; for heavier tails, a threshold is at least so many widths.
    width_ratio: float = 0.95
    least_widths: float = 2.75
    #: A threshold is made again once this part of its rests is new, and the part of other work that follows computing
    #: after so many steps: oftener would take longer than the steps tell.
    renewed_ratio: float = 1 / 32
    slope_steps: int = 16
    #: Gaps that are tried: one more than the sizes of slow steps that a run has at the same time.
    gaps_count: int = 8
    #: Less than this part of a step is not worth a word, however little such steps vary.
    worth_ratio: float = 0.02
    #: A kind of time explains a slow step if it makes this part of it; ranks are alike from the same part on.
    explains_ratio: float = 0.5
    #: Growth on the rank that was waited for longest counts so much more than elsewhere.
    awaited_weight: float = 2.0
    #: Batches are of about the same size if their sizes differ by less than this part; so many of them are compared.
    size_ratio: float = 0.25
    sized_batches_count: int = 48
    #: Computing varies with the data if the width of its noise is this part of it. Then it is slow only at so many
    #: times the most that was ever seen above the level, of at least so many steps. Where it does not, and the sizes of
    #: batches are not known, at so many times the most of steps that were not slow.
    varies_ratio: float = 0.1
    beyond_all_times: float = 2.0
    seen_steps: int = 128
    #: The level has changed if so many steps in a row lie beyond the threshold; so many of them are kept then.
    in_a_row_steps: int = 5
    kept_steps: int = 10
    #: A kind of time comes back after so many steps if that many slow steps lie equally far apart, to a step.
    period_times_count: int = 4
    #: Groups of like steps that are remembered, so that the memory is bounded.
    groups_count: int = 32
    #: Steps that a slow one is compared with to find what its time went to.
    compared_steps: int = 64
    #: A time beside a slow step is named if there is this part of what made it longer more of it than usual.
    beside_ratio: float = 0.1
    #: Shares of CPU and of time, and CPUs, that are named from so much more on.
    more: Mapping[str, float] = field(
        default_factory=lambda: {
            "steal_ratio": 0.05,
            "other_cpus_count": 0.5,
            "io_pressure_ratio": 0.1,
            "memory_pressure_ratio": 0.1,
        }
    )
    #: A device is slower from this part of its usual clock on.
    slower_clock_ratio: float = 0.9


POLICY = Policy()
