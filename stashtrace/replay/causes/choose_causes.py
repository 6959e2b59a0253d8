"""Which candidates are causes: each is replayed without what its level takes away; the one that saves most is first.

Of those that save nearly as much, the one that says most is taken. The next one is what saves most with the first taken
away, so that nothing is promised twice.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stashtrace.analysis.graph import Graph
from stashtrace.replay.causes.candidates import Candidate, Candidates, error_of_count, error_of_mean
from stashtrace.replay.causes.policy import POLICY
from stashtrace.replay.causes.work_by_line import UNKNOWN, Floats, WorkByLine
from stashtrace.replay.changes import BUCKET, IN_ORDER, KEPT
from stashtrace.replay.communication.buckets import Buckets
from stashtrace.replay.prediction_intervals import BETWEEN_RUNS, FEW_STEPS, noise_ns
from stashtrace.replay.whatif import Answer, ReplayedRun
from stashtrace.schema.kinds import StallKind

#: Settings, and what one worker takes longer: changes of `stashtrace whatif` that are no work to take away. Of each,
#: what its wait is for: two that are about one wait are one cause.
_SETTINGS = {"workers": "data", KEPT: "start", "slow_worker": "data", IN_ORDER: "data", BUCKET: "link"}
#: More workers hide what one of them takes longer, and the batches still come in turn: it says more than they do.
_DETAIL_OF_SETTING, _DETAIL_OF_CURE = 6, 7
_COMPUTES = 2


@dataclass(frozen=True, slots=True)
class Cause:
    """A candidate or a setting, and the replay of the run without it."""

    candidate: Candidate | None
    answer: Answer
    #: What it saves of the mean step of this recording: by a replay, and at least. By chance it may be nothing.
    saved_ns: float
    least_ns: float
    #: What it saves of another recording.
    low_ns: float
    high_ns: float

    @property
    def is_certain(self) -> bool:
        """Whether it made the steps of this recording longer. A setting is advised where it helps in another one."""
        return (self.least_ns if self.candidate is not None else self.low_ns) > 0

    @property
    def setting(self) -> str:
        """The quantity of a setting; empty for a candidate."""
        return "" if self.candidate is not None else self.answer.changes[0].quantity

    @property
    def detail(self) -> int:
        """How much it says."""
        if self.candidate is not None:
            return self.candidate.detail
        return _DETAIL_OF_CURE if self.setting == "slow_worker" else _DETAIL_OF_SETTING


def causes_of(
    run: ReplayedRun,
    work: WorkByLine,
    *,
    buckets: Buckets | None = None,
    unsaid: list[str] | None = None,
    left_out: Sequence[int] = (),
) -> list[Cause]:
    """Return the causes of a replayed run, the first first.

    ``work``: of its graph. ``buckets``: of its gradients. ``unsaid``: gets a line for each prediction that fails by a
    fault of ours. ``left_out``: kinds of time of which it is not known whether a rank worked in it.
    """
    graph = run.graph
    everything = Candidates(graph, work, run.steps, run.measured_ns, left_out).all()
    worth_ns = POLICY.worth_ratio * run.measured_ns
    most = max(min(POLICY.replays_count, POLICY.replayed_nodes_count // len(graph)), POLICY.causes_count)
    asked = everything[:most]
    pool = [_cause(run, one, one.removed(work, len(graph))) for one in asked]
    pool += [_of_setting(run, answer) for answer in run.single_changes(buckets, unsaid, only=_SETTINGS)]
    chosen: list[Cause] = []
    taken = np.zeros(len(graph))
    while len(chosen) < POLICY.causes_count:
        best = _best([cause for cause in pool if cause.saved_ns >= worth_ns and cause.is_certain])
        if best is None or (chosen and _tier(best) == _COMPUTES):
            break
        chosen.append(best)
        pool = [cause for cause in pool if cause is not best and not _is_same(cause, best, work)]
        goes = _waited_for(graph, best) if best.candidate is None else _middle(best.candidate.removed(work, len(graph)))
        taken = np.minimum(taken + goes, graph.work_ns)
        saved_ns = float(run.saved_ns(taken).mean())
        pool = [_beside(run, cause, taken, saved_ns, work) for cause in pool]
    return chosen


def _cause(run: ReplayedRun, one: Candidate, removed: tuple[Floats, Floats]) -> Cause:
    answer, of_steps = run.shorter_by_step(removed)
    low, high = answer.replayed_ns - answer.high_ns, answer.replayed_ns - answer.low_ns
    saved_ns = float(of_steps.mean())
    doubt_ns = math.hypot(BETWEEN_RUNS * run.measured_ns, _doubt_ns(one, of_steps))
    return Cause(one, answer, saved_ns, low, min(low, saved_ns) - doubt_ns, max(high, saved_ns) + doubt_ns)


def _doubt_ns(one: Candidate, of_steps: Floats) -> float:
    """Return by how much what is saved may differ in another recording, by the scatter of the steps.

    What comes in a few steps, not regularly, comes more or less often; what came once is said for that once.
    """
    if one.level == "peers" or one.steps_count > POLICY.rare_ratio * one.of_steps or one.period:
        return error_of_mean(of_steps) if len(of_steps) >= FEW_STEPS else noise_ns(of_steps)
    if one.steps_count == 1:
        return 0.0
    return float(of_steps.mean()) * min(error_of_count(one.steps_count), 1.0)


def _of_setting(run: ReplayedRun, answer: Answer) -> Cause:
    """Return a setting as a cause: it saves no more than if what it is about took no time."""
    low, high = answer.replayed_ns - answer.high_ns, answer.replayed_ns - answer.low_ns
    cause = Cause(None, answer, (low + high) / 2, low, *answer.saved_ns)
    if waits_for(cause) == "start":  # it takes the whole of its work away
        return cause
    most_ns = float(run.saved_ns(_waited_for(run.graph, cause)).mean())
    return replace(cause, low_ns=min(cause.low_ns, most_ns), high_ns=min(cause.high_ns, most_ns))


def _waited_for(graph: Graph, cause: Cause) -> Floats:
    """Return the work by node that a setting is about, in ns: what would be left of the wait if it took no time."""
    if waits_for(cause) == "data":
        about = graph.is_batch | np.isin(graph.kind, (StallKind.PREP, StallKind.FETCH))
    elif waits_for(cause) == "link":
        about = graph.is_transfer
    else:
        about = np.zeros(len(graph), dtype=bool) if graph.facts is None else graph.facts.starts
    return np.where(about, graph.work_ns, 0).astype(np.float64)


def _middle(removed: tuple[Floats, Floats]) -> Floats:
    low, high = removed
    return (low + high) / 2


def _best(pool: Sequence[Cause]) -> Cause | None:
    """Return the cause that saves most, or one that says more and saves nearly as much.

    Half of something always helps, so it comes where nothing is left that would go whole; and of half the computation
    nobody can be advised, so it comes where nothing else is left.
    """
    tier = min(map(_tier, pool), default=0)
    open_to = [cause for cause in pool if _tier(cause) == tier]
    most_ns = max((cause.saved_ns for cause in open_to), default=0.0)
    mostly = [cause for cause in open_to if cause.saved_ns >= POLICY.mostly_ratio * most_ns]
    best = max(mostly, key=lambda cause: (cause.detail, cause.saved_ns), default=None)
    lines = [cause for cause in mostly if best is not None and _is_line_of(cause, best)]
    return max(lines, key=lambda cause: cause.saved_ns, default=best)


def _is_line_of(cause: Cause, best: Cause) -> bool:
    """Return True if a cause is nearly all of another one, which is a function."""
    one, other = cause.candidate, best.candidate
    if one is None or other is None or one.line < 0 or cause.saved_ns < POLICY.nearly_ratio * best.saved_ns:
        return False
    return replace(one, line=UNKNOWN).columns == other.columns


def _tier(cause: Cause) -> int:
    """Return 0 for what would go whole, 1 for half of something, and _COMPUTES for half of the computation."""
    one = cause.candidate
    if one is None or one.level != "half":
        return 0
    return _COMPUTES if one.kind == StallKind.COMPUTE else 1


def _is_same(cause: Cause, best: Cause, work: WorkByLine) -> bool:
    """Return True if a cause is mostly about the work that another one is about."""
    one, other = cause.candidate, best.candidate
    if one is None or other is None:
        return waits_for(cause) == waits_for(best) != ""
    own_ns = work.ns[one.pieces]
    return bool(2 * own_ns[np.isin(one.pieces, other.pieces)].sum() > own_ns.sum())


def waits_for(cause: Cause) -> str:
    """Return what the wait that a cause makes is for, where a setting may be about it, too."""
    one = cause.candidate
    if one is None:
        return _SETTINGS[cause.setting]
    if one.op >= 0:
        return "link"
    return "data" if one.by_workers or one.kind in (StallKind.PREP, StallKind.FETCH) else ""


def _beside(run: ReplayedRun, cause: Cause, taken: Floats, saved_ns: float, work: WorkByLine) -> Cause:
    """Return a cause with what it saves where those that were chosen are taken away."""
    if cause.candidate is None:
        return cause
    removed = cause.candidate.removed(work, len(run.graph))
    both_ns = run.saved_ns(np.minimum(taken + _middle(removed), run.graph.work_ns))
    more_ns = float(both_ns.mean()) - saved_ns
    before_ns = cause.saved_ns
    # What was in doubt before is as much in doubt now, in proportion where it saves less than before.
    part = min(more_ns / before_ns, 1.0) if before_ns > 0 else 1.0
    low, high = (more_ns + part * (ns - before_ns) for ns in (cause.low_ns, cause.high_ns))
    return replace(
        cause, saved_ns=more_ns, least_ns=more_ns + part * (cause.least_ns - before_ns), low_ns=low, high_ns=high
    )
