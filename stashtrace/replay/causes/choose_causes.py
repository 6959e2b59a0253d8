"""Which candidates are causes: each is replayed without what its level takes away; the one that saves most is first.

Of those that save nearly the same amount, the one that says most is taken. The next one is what saves most with the
first taken away, so that nothing is promised twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stashtrace.analysis.graph import Graph
from stashtrace.analysis.intervals import Floats
from stashtrace.errors import MissingDataError
from stashtrace.replay.causes.candidates import ANY, QUEUED, Candidate, Candidates, error_of_count, error_of_mean
from stashtrace.replay.causes.policy import POLICY
from stashtrace.replay.causes.work_by_line import UNKNOWN, WorkByLine
from stashtrace.replay.changes import BUCKET, IN_ORDER, KEPT
from stashtrace.replay.communication.buckets import Buckets
from stashtrace.replay.prediction_intervals import BETWEEN_RUNS, FEW_STEPS, noise_ns
from stashtrace.replay.whatif import Answer, ReplayedRun
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import CollectiveOp, StallKind

#: Settings, and what one worker takes longer: changes of `stashtrace whatif` that are no work to take away. Of each,
#: what its wait is for: two that are about one wait are one cause.
_SETTINGS = {"workers": "data", KEPT: "start", "slow_worker": "data", IN_ORDER: "data", BUCKET: "link"}
#: More workers hide what one of them takes longer, and the batches still come in turn: it says more than they do.
_DETAIL_OF_SETTING, _DETAIL_OF_CURE = 6, 7
#: Levels of candidates that are all of some work, whatever goes of it.
_WHOLE_WORK = ("gone", "half")


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
    #: Of a candidate without a function, the one with most of its work, and which part of it that is.
    within: Candidate | None = None
    within_ratio: float = 0.0

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
    needless: Sequence[int] = (CollectiveOp.BROADCAST, CollectiveOp.BARRIER),
    may_free_cpus: bool = True,
    is_called: Callable[[Candidate], bool] = lambda transfers: False,
) -> list[Cause]:
    """Return the causes of a replayed run, the first first.

    ``work``: of its graph. ``buckets``: of its gradients. ``unsaid``: gets a line for each prediction that fails by a
    fault of ours. ``left_out``: kinds of time of which it is not known whether a rank worked in it. ``needless``:
    operations that steps can do without. ``may_free_cpus``: whether waits for CPUs are made by what a job need not do.
    ``is_called``: whether code of the user waits for some transfers.
    """
    graph = run.graph
    everything = Candidates(graph, work, run.steps, run.measured_ns, left_out, needless).all()
    worth_ns = POLICY.worth_ratio * run.measured_ns
    most = max(min(POLICY.replays_count, POLICY.replayed_nodes_count // len(graph)), POLICY.causes_count)
    asked = everything[:most]
    pool = [_cause(run, one, one.removed(work, len(graph))) for one in asked if one.kind != QUEUED]
    pool += [_of_setting(run, answer) for answer in run.single_changes(buckets, unsaid, only=_SETTINGS)]
    # Less work leaves CPUs to what waited for one. How much of these waits goes with it, no replay shows.
    queued_ns = _queued_ns(run)
    chosen: list[Cause] = []
    taken = np.zeros(len(graph))
    free = [one for one in asked if one.kind == QUEUED and may_free_cpus]
    queues = [_of_queue(run, one, one.removed(work, len(graph))[1]) for one in free]
    # Free CPUs are seldom available: they are a cause only where nothing else saves the same amount.
    most_ns = max((cause.saved_ns for cause in pool if not _computes(cause)), default=0.0)
    pool += [cause for cause in queues if cause.saved_ns > most_ns]
    aimless = {id(cause.candidate) for cause in pool if _is_aimless(cause, everything, work)}
    while sum(not _is_queue(cause) for cause in chosen) < POLICY.causes_count:
        worth = [cause for cause in pool if cause.saved_ns >= worth_ns]
        best = _best([cause for cause in worth if _may_be_said(cause, aimless)], work, aimless)
        if best is not None and not chosen and _is_vague(best, is_called):
            best = next((cause for cause in worth if _computes(cause) and cause.is_certain), best)
        if best is None or (chosen and _computes(best)):  # it is said where nothing else is certain
            break
        best = _whole_function(best, pool)
        # Where free CPUs were chosen before, their waits are no longer part of what others save.
        may_free = not _is_guess(best) and not any(map(_is_queue, [*chosen, best]))
        to_say = replace(best, high_ns=best.high_ns + queued_ns) if may_free else best
        chosen.append(_with_function(to_say, everything, chosen, work))
        if _computes(best):  # nobody computes twice as fast, so nothing is taken away
            pool = [cause for cause in pool if _is_guess(cause) and not _computes(cause)]
            continue
        pool = [cause for cause in pool if cause is not best and not _is_same(cause, best, work)]
        if _is_queue(best):  # who has no other machine needs to know what a change saves on this one
            continue
        goes = _waited_for(graph, best) if best.candidate is None else _middle(best.candidate.removed(work, len(graph)))
        taken = np.minimum(taken + goes, graph.work_ns)
        saved_ns = float(run.saved_ns(taken).mean())
        pool = [_with_taken(run, cause, taken, saved_ns, work) for cause in pool]
    return chosen


def causes_by_time(
    run: ReplayedRun,
    work: WorkByLine,
    exposed_ns: Callable[[Candidate], float],
    *,
    left_out: Sequence[int] = (),
    needless: Sequence[int] = (),
) -> list[Cause]:
    """Return the causes of a run that a replay does not follow: each saves at most the time that it takes a rank.

    Whether others wait for it meanwhile is not asked. ``exposed_ns``: how much of the kind of a candidate lies in a
    mean step at most. For the other parameters see ``causes_of``.
    """
    everything = Candidates(run.graph, work, run.steps, run.measured_ns, left_out, needless).all()
    most = {id(one): min(one.most_ns, exposed_ns(one) / one.about_ratio) for one in everything}
    pool = [
        Cause(one, run.answer(()), most[id(one)], most[id(one)], 0.0, most[id(one)])
        for one in everything
        if one.kind != QUEUED and one.level != "even"  # how much of a stage's work others wait for, no time of it shows
    ]
    chosen: list[Cause] = []
    while len(chosen) < POLICY.causes_count:
        worth = [cause for cause in pool if cause.saved_ns >= POLICY.worth_ratio * run.measured_ns]
        best = _best([cause for cause in worth if not _computes(cause)], work)
        if best is None:
            break
        chosen.append(_with_function(best, everything, chosen, work))
        pool = [cause for cause in pool if cause is not best and not _is_same(cause, best, work)]
    return chosen


def _with_function(cause: Cause, everything: Sequence[Candidate], chosen: Sequence[Cause], work: WorkByLine) -> Cause:
    """Return a cause with the function that most of its work is in, if it is none itself and none of those before."""
    one = cause.candidate
    if one is None or one.function is not None or one.kind == QUEUED:
        return cause
    before = [known.within or known.candidate for known in chosen]
    named = {known.function for known in before if known is not None}
    same = (
        other
        for other in everything
        if other.function not in named
        and other.function is not None
        and other.by_workers == one.by_workers
        and other.kind in (one.kind, ANY)
        if other.level == one.level or other.level in _WHOLE_WORK
        # Of several ranks, the function has to be that of each.
        if not other.ranks or (one.ranks and set(one.ranks) <= set(other.ranks))
    )
    ratios = [(other, _part_in(one, other, work)) for other in same]
    most, ratio = max(ratios, key=lambda pair: pair[1], default=(None, 0.0))
    return cause if most is None or ratio <= 0 else replace(cause, within=most, within_ratio=min(ratio, 1.0))


def _part_in(one: Candidate, function: Candidate, work: WorkByLine) -> float:
    """Return which part of a candidate is in a function: of what a few steps take longer, what that takes longer there.

    Of what a rank takes longer than its peers only a function that is longer itself says something.
    """
    if one.level == "peers" and function.level != "peers":
        return 0.0
    if one.level != "usual" or function.level == "usual":
        goes_ns = function.goes_ns(work) * one.about_ratio / function.about_ratio if one.level != "even" else 0.0
        if one.level == "even":  # it is the work of other functions that other stages have
            in_function = np.isin(one.pieces, function.pieces)
            goes_ns = float((work.ns[one.pieces] * one.parts[1])[in_function].sum())
        return goes_ns / max(one.goes_ns(work), 1.0)
    long = np.unique(one.step[one.parts[1] > 0])
    in_function = np.isin(one.pieces, function.pieces)
    ns, in_long = work.ns[one.pieces[in_function]], np.isin(one.step[in_function], long)
    others = max(one.of_steps - len(long), 1)
    return float(ns[in_long].sum() - ns[~in_long].sum() * len(long) / others) / max(one.goes_ns(work), 1.0)


def without(run: ReplayedRun, causes: Sequence[Cause], work: WorkByLine, buckets: Buckets | None) -> Answer:
    """Predict the step without some causes; raises MissingDataError if one of several can be replayed only alone."""
    alone = [cause for cause in causes if cause.candidate is None or _is_queue(cause)]
    if alone and len(causes) > 1:
        raise MissingDataError(
            "a setting, or waits for a CPU, can be replayed only alone", hint="ask for these causes one by one"
        )
    if alone and alone[0].candidate is None:
        return run.answer(alone[0].answer.changes, buckets)
    if alone:
        unchanged = run.answer(())
        return replace(unchanged, low_ns=unchanged.replayed_ns - alone[0].saved_ns)
    each = [cause.candidate.removed(work, len(run.graph)) for cause in causes if cause.candidate is not None]
    low, high = (np.sum(bounds, axis=0) for bounds in zip(*each, strict=True))
    return run.shorter((low, high))


def _cause(run: ReplayedRun, one: Candidate, removed: tuple[Floats, Floats]) -> Cause:
    answer, of_steps, least_ns = run.shorter_by_step(removed)
    low, high = answer.replayed_ns - answer.high_ns, answer.replayed_ns - answer.low_ns
    saved_ns, doubt_ns = float(of_steps.mean()), _between_runs_ns(run, one, of_steps)
    return Cause(one, answer, saved_ns, least_ns, min(low, saved_ns) - doubt_ns, max(high, saved_ns) + doubt_ns)


def _of_queue(run: ReplayedRun, one: Candidate, queued: Floats) -> Cause:
    """Return waits for a CPU as a cause: what a replay saves in which none waits for one.

    Nobody promises as many CPUs, so that it may save less.
    """
    of_steps = run.saved_by_step(run.unchanged, run.replayed_without(queued))
    saved_ns, doubt_ns = float(of_steps.mean()), _between_runs_ns(run, one, of_steps)
    return Cause(one, run.answer(()), saved_ns, saved_ns, 0.0, saved_ns + doubt_ns)


def _between_runs_ns(run: ReplayedRun, one: Candidate, of_steps: Floats) -> float:
    """Return by how much what a fix saves may differ from a saving by step: what is left of the steps scatters, too."""
    return math.hypot(noise_ns(run.steps_ns - of_steps), BETWEEN_RUNS * run.measured_ns, _doubt_ns(one, of_steps))


def _doubt_ns(one: Candidate, of_steps: Floats) -> float:
    """Return by how much what is saved may differ in another recording, by the scatter of the steps.

    What comes in a few steps, not regularly, comes more or less often in it, what came once perhaps not at all.
    """
    if one.level in ("peers", "even") or one.steps_count > POLICY.rare_ratio * one.of_steps or one.period:
        return error_of_mean(of_steps) if len(of_steps) >= FEW_STEPS else noise_ns(of_steps)
    return float(of_steps.mean()) * min(error_of_count(one.steps_count), 1.0)


def _of_setting(run: ReplayedRun, answer: Answer) -> Cause:
    """Return a setting as a cause: it saves no more than if what it is about took no time."""
    low, high = answer.replayed_ns - answer.high_ns, answer.replayed_ns - answer.low_ns
    cause = Cause(None, answer, (low + high) / 2, low, *answer.saved_ns)
    if waits_for(cause) == "start":  # it takes the whole of its work away
        return cause
    most_ns = float(run.saved_ns(_waited_for(run.graph, cause)).mean())
    names = ("saved_ns", "least_ns", "low_ns", "high_ns")
    return replace(cause, **{name: min(getattr(cause, name), most_ns) for name in names})


def _waited_for(graph: Graph, cause: Cause) -> Floats:
    """Return the work by node that a setting is about, in ns: what would be left of the wait if it took no time."""
    if waits_for(cause) == "data":
        about = graph.is_batch | np.isin(graph.kind, (StallKind.PREP, StallKind.FETCH))
    elif waits_for(cause) == "link":
        about = graph.is_transfer
    else:
        about = np.zeros(len(graph), dtype=bool) if graph.facts is None else graph.facts.starts
    return np.where(about, graph.work_ns, 0).astype(np.float64)


def _queued_ns(run: ReplayedRun) -> float:
    """Return how long the step thread of a rank waits for a CPU in a mean step, of the rank that does so longest."""
    graph = run.graph
    if graph.facts is None:
        return 0.0
    in_steps = np.flatnonzero(graph.is_thread & np.isin(graph.step, run.steps))
    queued = GroupBy(graph.rank[in_steps]).sum(np.maximum(graph.facts.queued_ns[in_steps], 0))
    return float(queued.max(initial=0)) / len(run.steps)


def _middle(removed: tuple[Floats, Floats]) -> Floats:
    low, high = removed
    return (low + high) / 2


def _best(pool: Sequence[Cause], work: WorkByLine, aimless: Collection[int] = ()) -> Cause | None:
    """Return the cause that saves most, or one that says more and saves nearly the same.

    Half of something always helps, so it counts less than what would go whole; and of half the computation nobody can
    be advised, so it comes where nothing else is left.
    """
    others = [cause for cause in pool if not _computes(cause)]
    first = max(others or pool, key=_weight_ns, default=None)
    if first is None:
        return None
    open_to = [cause for cause in others or pool if _is_guess(cause) == _is_guess(first)]
    most_ns = max(cause.saved_ns for cause in open_to)
    mostly = [cause for cause in open_to if cause.saved_ns >= POLICY.nearly_ratio * most_ns]
    best = max(mostly, key=_says)
    if (
        best.detail <= 1 or id(best.candidate) in aimless
    ):  # that ranks take longer, by whatever they do, says next to nothing
        mostly = [cause for cause in open_to if cause.saved_ns >= POLICY.mostly_ratio * most_ns]
        best = max(mostly, key=_says)
    # A function may be most of a kind of time that is most of what a rank does longer.
    while (within := _most_within(best, open_to, work)) is not None:
        best = within
        mostly.append(best)
    lines = [cause for cause in mostly if _is_line_of(cause, best, nearly=True)]
    return max(lines, key=lambda cause: cause.saved_ns, default=best)


def _says(cause: Cause) -> tuple[int, bool, float]:
    """Return the order of causes that save nearly the same: what goes whole needs no comparison with other ranks."""
    return cause.detail, cause.candidate is not None and cause.candidate.level == "gone", cause.saved_ns


def _most_within(best: Cause, pool: Sequence[Cause], work: WorkByLine) -> Cause | None:
    """Return what says more than a cause about most of its work; None if nothing does."""
    least_ns = POLICY.nearly_ratio * best.saved_ns
    more = (cause for cause in pool if cause.detail > best.detail and cause.saved_ns >= least_ns)
    return max((cause for cause in more if _is_same(cause, best, work)), key=lambda cause: cause.saved_ns, default=None)


def _whole_function(best: Cause, pool: Sequence[Cause]) -> Cause:
    """Return the function of a line that is a part of it, also if only the line certainly saves something."""
    return next((cause for cause in pool if cause is not best and _is_line_of(best, cause, nearly=False)), best)


def _is_line_of(cause: Cause, whole: Cause, *, nearly: bool) -> bool:
    """Return True if a cause is a line of another one, which is a function: ``nearly`` all of it, or a part."""
    one, other = cause.candidate, whole.candidate
    if one is None or other is None or one.line < 0:
        return False
    is_nearly = cause.saved_ns >= POLICY.nearly_ratio * whole.saved_ns
    return is_nearly == nearly and replace(one, line=UNKNOWN).columns == other.columns


def _is_guess(cause: Cause) -> bool:
    return cause.candidate is not None and cause.candidate.is_guess


def _may_be_said(cause: Cause, aimless: Collection[int]) -> bool:
    """Return True if a cause is certain, or a guess that blames nobody and says what may be changed.

    ``aimless``: candidates of which nobody can say what to change: these are said where they save something in any
    run.
    """
    if not _is_guess(cause) or _computes(cause):
        return cause.is_certain
    return cause.low_ns > 0 or id(cause.candidate) not in aimless


def _is_aimless(cause: Cause, everything: Sequence[Candidate], work: WorkByLine) -> bool:
    """Return True for half of a kind of time of which no function has most: nothing shows what to change."""
    one = cause.candidate
    if one is None or not one.is_guess or one.function is not None or one.op >= 0:
        return False
    return _with_function(cause, everything, [], work).within_ratio < POLICY.mostly_ratio


def _is_vague(cause: Cause, is_called: Callable[[Candidate], bool]) -> bool:
    """Return True for half of transfers that no code of the user waits for, where it may save nothing."""
    one = cause.candidate
    return one is not None and one.op >= 0 and one.is_guess and cause.low_ns <= 0 and not is_called(one)


def _is_queue(cause: Cause) -> bool:
    return cause.candidate is not None and cause.candidate.kind == QUEUED


def _computes(cause: Cause) -> bool:
    """Return True if a cause is half of what operators compute."""
    one = cause.candidate
    return one is not None and one.level == "half" and one.kind == StallKind.COMPUTE and not one.is_python


def _weight_ns(cause: Cause) -> float:
    return cause.saved_ns * (POLICY.guess_ratio if _is_guess(cause) else 1.0)


def _is_same(cause: Cause, best: Cause, work: WorkByLine) -> bool:
    """Return True if most work of a cause is that of another one, or what goes with that is most of what goes with it.

    What a rank does longer, whatever it is, holds what it does longer in one function.
    """
    one, other = cause.candidate, best.candidate
    if one is None or other is None:
        return waits_for(cause) == waits_for(best) != ""
    if one.function is not None and one.function == other.function and set(one.ranks) & set(other.ranks):
        return True
    if _is_queue(cause) or _is_queue(best):  # any work waits for CPUs
        return False
    if one.level in ("peers", "even", "usual") and 2 * _taken_ns(one, other, work) > one.most_ns * one.of_steps:
        return True
    theirs = other.pieces[np.isin(work.rank[other.pieces], one.ranks)] if one.ranks else other.pieces
    shared = [np.isin(some, them) for some, them in ((one.pieces, theirs), (theirs, one.pieces))]
    own_ns, their_ns = work.ns[one.pieces], work.ns[theirs]
    within = 2 * own_ns[shared[0]].sum() > own_ns.sum()
    around = 2 * their_ns[shared[1]].sum() > their_ns.sum() and 2 * other.most_ns > one.most_ns
    return bool(within or around)


def _taken_ns(one: Candidate, other: Candidate, work: WorkByLine) -> float:
    """Return how much of the work of a candidate goes with another one, of the rank of which most goes."""
    goes = other.pieces[np.isin(other.pieces, one.pieces)]
    part = (other.parts[0] + other.parts[1])[np.isin(other.pieces, one.pieces)] / 2
    on_ranks = np.isin(work.rank[goes], one.ranks) if one.ranks else np.ones(len(goes), dtype=bool)
    return float(GroupBy(work.rank[goes[on_ranks]]).sum((work.ns[goes] * part)[on_ranks]).max(initial=0.0))


def waits_for(cause: Cause) -> str:
    """Return what the wait that a cause makes is for, where a setting may be about it, too."""
    one = cause.candidate
    if one is None:
        return _SETTINGS[cause.setting]
    if one.op >= 0:
        return "link"
    return "data" if one.by_workers or one.kind in (StallKind.PREP, StallKind.FETCH) else ""


def _with_taken(run: ReplayedRun, cause: Cause, taken: Floats, saved_ns: float, work: WorkByLine) -> Cause:
    """Return a cause with what it saves where those that were chosen are taken away."""
    if cause.candidate is None:
        return cause
    removed = cause.candidate.removed(work, len(run.graph))
    both_ns = run.saved_ns(np.minimum(taken + _middle(removed), run.graph.work_ns))
    more_ns = float(both_ns.mean()) - saved_ns
    before_ns = cause.saved_ns
    # The doubt stays the same as before, or in proportion where the cause saves less than before.
    part = min(more_ns / before_ns, 1.0) if before_ns > 0 else 1.0
    low, high = (more_ns + part * (ns - before_ns) for ns in (cause.low_ns, cause.high_ns))
    return replace(
        cause, saved_ns=more_ns, least_ns=more_ns + part * (cause.least_ns - before_ns), low_ns=low, high_ns=high
    )
