"""What an answer leaves open: how far another recording may be, and how real a replay's waits for CPUs are."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.intervals import Int64
from stashtrace.calibration.lines import STUDENT
from stashtrace.replay.scenario import Floats

#: Recordings of one job differ by so much, however many steps they have (`benchmarks/results/whatif.md`).
_BETWEEN_RUNS = 0.03
#: ... and what they wait for storage by so much: in six recordings of two jobs by 6 % and 12 % (standard deviation).
STORAGE_BETWEEN = 0.1
#: Neighbouring steps are alike: one mean is made of at most so many in a row, if so many means are left.
_BLOCK_STEPS, _BLOCKS = 5, 8
#: Fewer steps say nothing of how steps scatter ...
_FEW_STEPS = 4
#: ... each is taken to be so much of it away from the mean: two of three recordings behind that table scatter less.
_ONE_STEP = 0.1
#: Two standard errors on each side.
_ERRORS = 2.0
#: Of contention that a change makes or takes away, so much may be wrong on either side.
_CONTENTION_DOUBT = 0.25


def noise_ns(step: Int64, length: Floats) -> float:
    """By how much the mean of another recording may differ, on either side.

    What recordings differ by however long they are, and the error of the mean by how its steps scatter (95 %, by
    Student's distribution). Fewer than four steps do not say how they scatter; it is taken to be a tenth of a step.

    Parameters
    ----------
    step : int array
        Of each length.
    length : float array
        In ns; the ranks of a step are averaged.
    """
    steps, place = np.unique(step, return_inverse=True)
    means = np.bincount(place, weights=length) / np.bincount(place)
    count, mean = len(steps), float(means.mean())
    if count < _FEW_STEPS:
        error = _ERRORS * _ONE_STEP * mean / math.sqrt(count)
    else:
        size = min(max(count // _BLOCKS, 1), _BLOCK_STEPS)
        blocks = count // size
        of_blocks = means[count - blocks * size :].reshape(blocks, size).mean(axis=1)
        student = STUDENT[min(blocks - 1, len(STUDENT)) - 1]
        error = student * float(of_blocks.std(ddof=1)) / math.sqrt(blocks)
    return math.hypot(_BETWEEN_RUNS * mean, error)


@dataclass(frozen=True, slots=True)
class Contention:
    """Mean step of the run as it was, in ns: how long work waits for a CPU, and how much of that a replay gets right.

    Attributes
    ----------
    measured_ns : float
    shared_ns : float
        By a replay whose work shares the CPUs.
    free_ns : float
        By one in which nobody waits for a CPU.
    """

    measured_ns: float
    shared_ns: float
    free_ns: float

    def bounds_ns(self, shared_ns: float, free_ns: float) -> tuple[float, float]:
        """Least and largest mean step with a change.

        What the replay with shared CPUs missed the run by is missed again: as much as before, or in proportion to how
        long work waits for CPUs then and now. Of contention that is new the run tells the less, the more of it there
        is, so the miss never becomes twice as large. What the change adds to the contention, or takes from it, is the
        doubtful part.

        Parameters
        ----------
        shared_ns, free_ns : float
            The same two replays with the change.
        """
        missed = self.shared_ns - self.measured_ns
        now, then = max(self.shared_ns - self.free_ns, 0.0), max(shared_ns - free_ns, 0.0)
        growth = 1.0 if now <= 0 else then / now if then <= now else 2 - now / then
        ends = (shared_ns - missed, shared_ns - growth * missed)
        doubt = _CONTENTION_DOUBT * abs(then - now)
        return max(min(ends) - doubt, 0.0), max(max(ends) + doubt, 0.0)
