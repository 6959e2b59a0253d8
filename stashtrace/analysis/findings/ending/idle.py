"""idle: ranks of which none gets on, though none waits for another: each stands in a call of its own."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.findings.ending.last_activity import step_track
from stashtrace.analysis.findings.ending.newest_row import newest_ns
from stashtrace.analysis.findings.ending.still_works import last_work_ns, still_works
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.errors import MissingDataError
from stashtrace.schema.trace import Trace

#: A job is not called idle before so long; before its first steps it loads, compiles and connects.
_LEAST_NS, _LEAST_WITHOUT_STEPS_NS = 10_000_000_000, 30_000_000_000
#: Nor before its ranks have done nothing for so many of its longest steps: a checkpoint is a part of one.
_LONGEST_STEPS = 3


@dataclass(frozen=True, slots=True)
class Idle:
    """Ranks that stand still, and for how long the one that worked last has done nothing."""

    ranks: tuple[int, ...]
    since_ns: int


def find_idle(trace: Trace) -> Idle | None:
    """Return the ranks of a job in which every rank stands still at the end of the records; None if one works."""
    ranks = trace.ranks.tolist()
    if not ranks:
        return None
    end = newest_ns(trace)
    last = max(_last_ns(trace, rank) for rank in ranks)
    since = end - last
    if last < 0 or since < long_ns(trace) or any(still_works(trace, rank, since) for rank in ranks):
        return None
    return Idle(tuple(ranks), since)


def _last_ns(trace: Trace, rank: int) -> int:
    thread = step_track(trace, rank)
    return last_work_ns(trace, thread[1]) if thread is not None else -1


def long_ns(trace: Trace) -> int:
    """Return how long nothing may end before that is more than a long step."""
    try:
        table = find_steps(trace)
    except MissingDataError:
        return _LEAST_WITHOUT_STEPS_NS
    longest = int(np.max(table["end_ns"] - table["begin_ns"], initial=0))
    return max(_LEAST_NS if len(table) else _LEAST_WITHOUT_STEPS_NS, _LONGEST_STEPS * longest)
