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
    #: With fewer values nothing is said. The noise of the first ones is computed from ``first_steps`` on, as the median
    #: of fewer may be a slow one.
    least_steps: int = 24
    first_steps: int = 8
    #: Chance that noise with an exponential tail takes a step beyond the threshold.
    chance_ratio: float = 2e-5
    #: The tail begins at this share of the rests; the last share may be slow steps.
    body_ratio: float = 0.75
    maybe_slow_ratio: float = 0.02
    #: The body's width holds this share of the rests; for heavier tails, a threshold is at least this number of widths.
    width_ratio: float = 0.95
    least_widths: float = 2.75
    #: A threshold is computed again once this part of its rests is new, and the part of other work that follows
    #: computing after this number of steps: more often would take time and show no more.
    renewed_ratio: float = 1 / 32
    slope_steps: int = 16
    #: Gaps that are tried: one more than the sizes of slow steps that a run has at the same time.
    gaps_count: int = 8
    #: Less than this part of a step is not worth a word, however little such steps vary.
    worth_ratio: float = 0.02
    #: A kind of time explains a slow step if it makes this part of it; ranks are similar from the same part on.
    explains_ratio: float = 0.5
    #: Growth on the rank that was waited for longest counts this many times what it does elsewhere.
    awaited_weight: float = 2.0
    #: Batches are of about the same size if their sizes differ by less than this part; this number of them is compared.
    size_ratio: float = 0.25
    sized_batches_count: int = 48
    #: Computing varies with the data if the width of its noise is this part of it. Then it is slow only at
    #: ``beyond_all_times`` the most that was ever seen above the level, in ``seen_steps`` or more. Where it does not
    #: vary, and the sizes of batches are not known, at that multiple of the most of steps that were not slow.
    varies_ratio: float = 0.1
    beyond_all_times: float = 2.0
    seen_steps: int = 128
    #: The level has changed if this number of steps in a row lies beyond the threshold; the newest ``kept_steps`` stay.
    in_a_row_steps: int = 5
    kept_steps: int = 10
    #: A kind of time comes back if this number of slow steps lies equally far apart, to a step.
    period_times_count: int = 4
    #: Groups of comparable steps that are remembered, so that the memory is bounded.
    groups_count: int = 32
    #: Steps that a slow one is compared with to find what its time went to.
    compared_steps: int = 64
    #: A time during a slow step is named if it is longer than usual by this part of what the step takes longer.
    stands_out_ratio: float = 0.1
    #: Shares of CPU and of time, and CPUs, that are named if they are more than usual by this amount.
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
