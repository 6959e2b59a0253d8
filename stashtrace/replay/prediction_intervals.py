"""Uncertainty of a predicted step: how much recordings of a job differ, CPU waits in replays, ranks without work."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.collectives.matching import group_table
from stashtrace.analysis.intervals import Floats
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.analysis.steps.threads import threads_without_steps
from stashtrace.calibration.noise import student
from stashtrace.replay.policy import POLICY
from stashtrace.schema.trace import Trace

#: Recordings of one job differ by this, however many steps they have (`benchmarks/results/whatif.md`).
BETWEEN_RUNS = 0.03
#: The scatter of fewer steps is unknown.
FEW_STEPS = 4


def noise_ns(means: Floats, period: int = 0) -> float:
    """Return by how much the mean of another recording may differ, on either side.

    It adds the difference of long recordings, and the error of the mean by the scatter of its steps (95 %, by Student's
    distribution). The scatter of fewer than four steps is unknown and taken to be a tenth of a step.

    ``means``: length of each step in ns, the mean over its ranks. ``period``: steps after which lengths come again; 0
    if they do not.
    """
    count, mean = len(means), float(means.mean())
    if count < FEW_STEPS:
        error = POLICY.standard_errors * POLICY.one_step_ratio * mean / math.sqrt(count)
    else:
        of_blocks = blocks_of(means, period)
        error = student(len(of_blocks) - 1) * float(of_blocks.std(ddof=1)) / math.sqrt(len(of_blocks))
        if period:  # a part of a period is more or less than its share
            error += abs(float(of_blocks.mean()) - mean)
    return math.hypot(BETWEEN_RUNS * mean, error)


def blocks_of(means: Floats, period: int = 0) -> Floats:
    """Return means of blocks of neighbouring steps, which are similar; of a period, if there are two or more of it."""
    count = len(means)
    size = period if 0 < 2 * period <= count else min(max(count // POLICY.blocks_count, 1), POLICY.block_steps)
    blocks = count // size
    return np.asarray(means[count - blocks * size :].reshape(blocks, size).mean(axis=1))


def period_of(means: Floats) -> int:
    """Return after how many steps long ones come again, 0 if they do not come regularly, three times or more.

    Another recording has as many steps of a regular delay, such as a collection of garbage every 30 steps.
    """
    long = np.flatnonzero(means > POLICY.long_step_ratio * means.max(initial=0.0))
    gaps = np.diff(long)
    if len(long) < POLICY.period_times_count or 2 * len(long) > len(means) + 1:
        return 0
    return int(np.median(gaps)) if gaps.max() - gaps.min() <= 1 else 0


@dataclass(frozen=True, slots=True)
class Contention:
    """Mean step of the unchanged run, in ns: how long work waits for a CPU, and how well a replay predicts that."""

    measured_ns: float
    #: By a replay whose work shares the CPUs.
    shared_ns: float
    #: By a replay in which no work waits for a CPU.
    free_ns: float

    def bounds_ns(self, shared_ns: float, free_ns: float) -> tuple[float, float]:
        """Return the least and the largest mean step with a change.

        The replay with shared CPUs is taken to have the error that it has for the run: the same as before, or in
        proportion to how long work waits for CPUs then and now. The run shows less about contention that it did not
        have, so the error never doubles. A part of the contention that the change adds or takes away is in doubt.

        ``shared_ns``, ``free_ns``: the same two replays with the change.
        """
        missed = self.shared_ns - self.measured_ns
        now, then = max(self.shared_ns - self.free_ns, 0.0), max(shared_ns - free_ns, 0.0)
        growth = 1.0 if now <= 0 else then / now if then <= now else 2 - now / then
        ends = (shared_ns - missed, shared_ns - growth * missed)
        doubt = POLICY.contention_doubt_ratio * abs(then - now)
        # Without any wait for a CPU a step still takes its work, of which a part of what looks like such waits may be.
        floor = max(free_ns - POLICY.contention_doubt_ratio * max(self.measured_ns - self.free_ns, 0.0), 0.0)
        return max(min(ends) - doubt, floor), max(max(ends) + doubt, floor)


def ranks_recorded(trace: Trace) -> tuple[int, int]:
    """Return of how many ranks the work is recorded, and how many ranks the job has as far as is known."""
    groups = group_table(trace).values()
    members = {rank for group in groups for rank in group.members.tolist()}
    present = {*find_steps(trace)["rank"].tolist(), *(thread.rank for thread in threads_without_steps(trace))}
    return len(present), max(int(trace.processes["world_size"].max(initial=-1)), len(members))


def others_unknown(trace: Trace) -> str:
    """Return that what most ranks of a job do is not recorded, in words; empty if it is.

    A step ends for all ranks together, so what makes one of them quicker need not make the step shorter.
    """
    present, count = ranks_recorded(trace)
    if not len(trace.collectives) or not present or (present > 1 and 2 * present >= count):
        return ""
    if count > present:
        recorded = f"{present} of {count} ranks {'is' if present == 1 else 'are'} recorded"
    elif (trace.processes["world_size"] > 0).any():
        return ""
    else:
        recorded = "one rank is recorded"
    return f"not predicted: {recorded}, and what a change saves depends on the others"
