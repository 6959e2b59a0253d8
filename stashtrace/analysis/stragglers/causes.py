"""Why a late rank was late: what it did longer than the median of the others since all of them were level.

A rank without steps of its own has no cause; neither has a rank that does nothing longer than the others.
``cause_names`` finds the worker, file, kernel or phase.

``surplus_over_peers`` compares whole steps instead, for a figure that a reader can check against the budgets:

    peers   |-- compute --|.. straggler ..|- link -|       surplus of the late rank: launch + 4, straggler - 4,
    late    |-- compute --|--- launch ----|- link -|       all others 0
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from stashtrace.analysis.collectives.matching import group_table
from stashtrace.analysis.intervals import Floats, Int64, TimeSet, int64
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.on_host import outer_phase_rows, time_of_spans
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.threads import StepThread, step_threads
from stashtrace.analysis.stragglers.instances import HUNG, UNORDERED, Instances
from stashtrace.analysis.stragglers.policy import POLICY
from stashtrace.errors import MissingDataError
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import SpanKind, StallKind, WaitOp
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace


@dataclass(frozen=True, slots=True)
class Causes:
    """One entry per chosen instance."""

    #: Column of ``CAUSES`` and its surplus of time; -1 if unknown.
    cause: Int64
    cause_ns: Int64
    #: Entry of the late rank minus the median entry of the ranks that it is compared with; -1 if unknown.
    late_by_ns: Int64
    #: The late rank and its window.
    late_rank: Int64
    begin_ns: Int64
    end_ns: Int64
    #: A rank near the median of that cause, and its window; -1 if there is none.
    other: Int64
    other_begin_ns: Int64
    other_end_ns: Int64
    #: Times of the compared ranks.
    times: dict[int, RankTimes]

    @classmethod
    def unknown(cls, count: int) -> Causes:
        """Return unknown causes for ``count`` instances."""
        a, b, c, d, e, f, g, h, i = (np.full(count, -1, dtype=np.int64) for _ in range(9))
        return cls(a, b, c, d, e, f, g, h, i, {})


def causes(index: TraceIndex, operations: Instances, chosen: Int64) -> Causes:
    """Find the causes of the chosen instances, rank by rank for all of them."""
    count = len(chosen)
    out = Causes.unknown(count)
    try:
        threads = {t.rank: t for t in step_threads(index.origin)}
    except MissingDataError:
        return out
    at, rank, is_late = _rows_to_compare(index, operations, chosen)
    known = np.isin(rank, list(threads))
    at, rank, is_late = at[known], rank[known], is_late[known]
    ends = {r: t.end_ns for r, t in threads.items()}
    begin, end = _windows(index, operations, chosen[at], rank, ends)
    valid = (begin >= 0) & (end >= begin)
    at, rank, is_late, begin, end = (x[valid] for x in (at, rank, is_late, begin, end))
    amounts = np.zeros((len(at), len(CAUSES)), dtype=np.int64)
    for value, rows in GroupBy(rank).items():
        out.times[value] = rank_times(index, threads[value])
        amounts[rows] = out.times[value].within(begin[rows], end[rows])

    # Where the ranks' clocks are too far apart, only lengths can be compared.
    origin = np.where(operations.by_clock[chosen[at]], 0, begin)
    amounts[:, BEFORE] = begin - origin
    others = np.flatnonzero(~is_late)
    typical = medians(np.column_stack([amounts, end - origin])[others], at[others], count)
    compared = GroupBy.numbered(at[others], count).sizes > 0
    late = np.flatnonzero(is_late & compared[at])
    row = at[late]
    rates = {peer: of.queue_rate for peer, of in out.times.items()}
    rate = GroupBy(rank[others]).map(rates.__getitem__, np.float64)
    usual = GroupBy.numbered(at[others], count).median(rate, empty=0)
    peers = typical[row, : len(CAUSES)].astype(np.float64)
    longer = np.rint(queue_as_work(amounts[late] - peers, peers, usual[row])).astype(np.int64)
    late_by = end[late] - origin[late] - typical[row, -1]
    cause = longer.argmax(axis=1)
    most = longer[np.arange(len(late)), cause]
    explains = (most > 0) & (late_by > 0) & (most * POLICY.explains_denominator >= late_by * POLICY.explains_numerator)
    out.cause[row] = np.where(explains, cause, -1)
    out.cause_ns[row] = np.where(explains, most, -1)
    out.late_by_ns[row], out.late_rank[row] = late_by, rank[late]
    out.begin_ns[row], out.end_ns[row] = begin[late], end[late]
    _middle(out, others, at, rank, begin, end, amounts)
    return out


def _rows_to_compare(index: TraceIndex, operations: Instances, chosen: Int64) -> tuple[Int64, Int64, np.ndarray]:
    """Return (position in chosen, rank, mask of the late ranks), sorted by position."""
    groups, late = group_table(index.trace), operations.late_rank[chosen]
    sure = (late >= 0) & (operations.method[chosen] != UNORDERED)
    parts_at, parts_rank = [np.flatnonzero(sure)], [late[sure]]
    for value, rows in GroupBy(operations.group_hash[chosen]).items():
        rows = rows[sure[rows]]
        members = groups[value].members
        # One more than needed: the late rank itself may be among them.
        spread = members[
            np.unique(
                np.linspace(0, len(members) - 1, min(POLICY.compared_ranks_count + 1, len(members))).astype(np.int64)
            )
        ]
        parts_at.append(np.repeat(rows, len(spread)))
        parts_rank.append(np.tile(spread, len(rows)))
    at, rank = np.concatenate(parts_at), np.concatenate(parts_rank)
    is_late = np.arange(len(at)) < len(parts_at[0])
    keep = is_late | (rank != late[at])
    order = np.argsort(at[keep], kind="stable")
    return int64(at[keep][order]), int64(rank[keep][order]), is_late[keep][order]


def _windows(
    index: TraceIndex, operations: Instances, instance: Int64, rank: Int64, ends: dict[int, int]
) -> tuple[Int64, Int64]:
    """Return windows from when all were level, or the step began, to the entry; without entry, to the rank's end."""
    row = operations.rows_of(instance, rank)
    last = int64([ends[r] for r in rank.tolist()])
    never = (row < 0) & (operations.method[instance] == HUNG)
    end = np.where(row >= 0, operations.enter_ns[row], np.where(never, last, -1))
    anchor = operations.anchor[instance]
    before = operations.rows_of(anchor, rank)
    # A rank whose recording began later lacks it; then all are compared from the begin of the step.
    shared = np.ones(len(operations), dtype=bool)
    shared[instance[(before < 0) & (end >= 0)]] = False
    before = np.where(shared[instance], before, -1)
    begin = np.where(before >= 0, operations.level_ns[before], -1)
    bare = np.flatnonzero((begin < 0) & (end >= 0))
    for value, rows in GroupBy(rank[bare]).items():
        starts = index.steps["begin_ns"][index.steps_by_rank.rows(value)]
        begin[bare[rows]] = np.append(starts, -1)[np.searchsorted(starts, end[bare[rows]], side="right") - 1]
    return int64(begin), int64(end)


def _middle(out: Causes, others: Int64, at: Int64, rank: Int64, begin: Int64, end: Int64, amounts: Int64) -> None:
    """Set, for each instance, the compared rank with the median time of the cause."""
    others = others[out.cause[at[others]] >= 0]
    if not len(others):
        return
    value = amounts[others, out.cause[at[others]]]
    ordered = others[order_by(at[others], value, rank[others])]
    each = GroupBy.runs(at[ordered])
    middle = ordered[each.first + (each.sizes - 1) // 2]
    where = at[middle]
    out.other[where], out.other_begin_ns[where], out.other_end_ns[where] = rank[middle], begin[middle], end[middle]


# Time of ranks by kind inside given windows: the stall kinds, with hidden times inside them as separate kinds.
#
#     compute, python: + gc + cpu_contention   python: + compile   other: + sleep   launch: + gc + compile + sleep
#
# ``sync`` ends where the blocking call returns: what the host does from there to its next launch is ``launch``.
# The window of the late rank is compared with those of the others.

_STALLS = tuple(StallKind)
#: Kinds of a late rank's time, stall kinds first. ``before``: its window began later than those of the others.
CAUSES = (*(k.name.lower() for k in _STALLS), "gc", "compile", "sleep", "cpu_contention", "before")
COMPUTE, OTHER, SYNC, LAUNCH, PYTHON = (CAUSES.index(name) for name in ("compute", "other", "sync", "launch", "python"))
GC, COMPILE, SLEEP, CONTENTION, BEFORE = range(len(_STALLS), len(CAUSES))


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Disjoint times of one rank by cause, and its run-queue time as a curve."""

    thread: StepThread
    sets: tuple[TimeSet, ...]
    queue_at_ns: Int64
    queue_ns: Int64

    @property
    def queue_rate(self) -> float:
        """How long the thread waits for a CPU for each nanosecond that it runs, over all that is known of it."""
        if not len(self.queue_at_ns):
            return 0.0
        (spent,) = self._within(self.queue_at_ns[:1], self.queue_at_ns[-1:], (COMPUTE, PYTHON))
        return float(spent[CONTENTION] / max(spent[COMPUTE] + spent[PYTHON], 1))

    def within(self, begin: Int64, end: Int64) -> Int64:
        """Return the ns of each cause in each window, as an array (windows, causes)."""
        return self._within(begin, end, range(len(self.sets)))

    def _within(self, begin: Int64, end: Int64, columns: Iterable[int]) -> Int64:
        """Return the ns of some causes, computation and Python among them, and of the waits for a CPU."""
        out = np.zeros((len(begin), len(CAUSES)), dtype=np.int64)
        for column in columns:
            time = self.sets[column]
            if len(time):
                out[:, column] = time.within(begin, end)
        if len(self.queue_at_ns):
            origin = self.queue_at_ns[0]
            edges = [np.interp(x - origin, self.queue_at_ns - origin, self.queue_ns) for x in (begin, end)]
            queued = np.rint(edges[1] - edges[0]).astype(np.int64)
            # The thread waits for a CPU wherever it runs: each of the two has its share of that.
            ran = out[:, COMPUTE] + out[:, PYTHON]
            out[:, CONTENTION] = np.clip(queued, 0, ran)
            of_python = out[:, CONTENTION] * (out[:, PYTHON] / np.maximum(ran, 1))
            out[:, PYTHON] -= np.rint(of_python).astype(np.int64)
            out[:, COMPUTE] = ran - out[:, CONTENTION] - out[:, PYTHON]
        return out


def queue_as_work(longer_ns: Floats, peers_ns: Floats, usual: Floats) -> Floats:
    """Count a longer wait for a CPU as work, as far as the peers wait as long for each nanosecond that they run.

    Who has more to do waits more often for a CPU where these are scarce. That is the host's way, and the work is what
    differs; only what a rank waits beyond it is a separate wait.

    ``longer_ns``, ``peers_ns``: by kind of time in the last axis: what the rank does longer, and what its peers do.
    ``usual``: how long the peers wait for each nanosecond that they run, over their recording: in a short window they
    may wait for none by chance.
    """
    return with_queue(longer_ns, queue_per_work(longer_ns, peers_ns, usual))


def queue_per_work(longer_ns: Floats, peers_ns: Floats, usual: Floats | float = 0.0) -> Floats:
    """Return how long a rank waits for a CPU for each nanosecond that it runs longer, as its peers do; see above."""
    more_ns, ran_ns = (of[..., [COMPUTE, PYTHON]].sum(axis=-1) for of in (longer_ns, peers_ns))
    rate = np.maximum(peers_ns[..., CONTENTION] / np.maximum(ran_ns, 1.0), usual)
    moved = np.clip(rate * more_ns, 0.0, np.maximum(longer_ns[..., CONTENTION], 0.0))
    return np.asarray(np.divide(moved, more_ns, out=np.zeros_like(moved), where=more_ns > 0))


def with_queue(longer_ns: Floats, per_work: Floats) -> Floats:
    """Return what a rank does longer with its waits for a CPU for more work in that work."""
    out = np.array(longer_ns, dtype=np.float64)
    moved = longer_ns[..., [COMPUTE, PYTHON]] * per_work[..., None]
    out[..., [COMPUTE, PYTHON]] += moved
    out[..., CONTENTION] -= moved.sum(axis=-1)
    return out


def rank_times(index: TraceIndex, thread: StepThread) -> RankTimes:
    """Return the times of a rank by cause, over its whole life."""
    made = rank_layers(index, thread)
    time = made.painted_kinds()
    sets = time.times_of(_STALLS)
    life = TimeSet.of([thread.begin_ns], [thread.end_ns])
    sets[OTHER] = sets[OTHER] | (life - TimeSet.of(time.begin, time.end))
    # Ranks that drain their devices equally differ in what their hosts do after it.
    elsewhere = sets[SYNC] & made.marked.get("host_elsewhere", TimeSet.empty())
    sets[SYNC], sets[LAUNCH] = sets[SYNC] - elsewhere, sets[LAUNCH] | elsewhere

    compiling = time_of_spans(index, thread, SpanKind.COMPILE)
    collecting = time_of_spans(index, thread, SpanKind.GC) - compiling
    waits, held = index.trace.waits, index.waits.rows(thread.track_id)
    held = held[waits["wait_code"][held] == int(WaitOp.SLEEP)]
    asleep = TimeSet.of_rows(waits, held)
    on_host = life - TimeSet.united(*(t for method, t in made.segments if method != "host"))
    # A device continues while its host collects garbage or sleeps; the host is the cause only where the device idles.
    of_compute, of_launch = (sets[COMPUTE] | sets[PYTHON]) & on_host & collecting, sets[LAUNCH] & collecting
    compiled = ((sets[PYTHON] & on_host) | sets[LAUNCH]) & compiling
    slept = (sets[OTHER] & asleep) | ((sets[LAUNCH] & asleep) - collecting - compiling)
    sets[COMPUTE], sets[OTHER] = sets[COMPUTE] - of_compute, sets[OTHER] - asleep
    sets[PYTHON] = sets[PYTHON] - of_compute - compiled
    sets[LAUNCH] = sets[LAUNCH] - collecting - compiling - asleep

    at, queued = (int64([]), int64([])) if made.segments else _queue(index, thread)
    return RankTimes(thread, (*sets, of_compute | of_launch, compiled, slept), at, queued)


def _queue(index: TraceIndex, thread: StepThread) -> tuple[Int64, Int64]:
    """Return moments with a known run-queue time of the step thread, and that time in ns."""
    phases = index.trace.phases
    rows = outer_phase_rows(index, thread)
    rows = rows[(phases["begin_runqueue_ns"][rows] >= 0) & (phases["end_runqueue_ns"][rows] >= 0)]
    if not len(rows):
        return int64([]), int64([])
    at = np.stack([phases["begin_ns"][rows], phases["end_ns"][rows]], axis=1).ravel()
    queued = np.stack([phases["begin_runqueue_ns"][rows], phases["end_runqueue_ns"][rows]], axis=1).ravel()
    return int64(at), int64(np.maximum.accumulate(queued))


def medians(values: Int64, group: Int64, count: int) -> Int64:
    """Return the median of each column over the rows of each group; 0 where a group has no rows."""
    each = GroupBy.numbered(group, count)
    return np.column_stack([each.median(column, empty=0) for column in values.T])


#: Column of the summary, or kind of time of ``late`` that has none -> its kinds of time of ``late``; each kind is in
#: one group.
GROUPS: dict[str, tuple[str, ...]] = {
    **{column: tuple(k for k in kinds if k != "python") for column, kinds in COLUMNS.items() if column != "other"},
    **{kind: (kind,) for kind in ("python", "gc", "compile", "sleep", "cpu_contention", "other")},
}


def surplus_over_peers(trace: Trace, steps: Table, rank: int, peers: Sequence[int]) -> dict[str, float]:
    """Return by how much a rank does each kind of time longer than the median of its peers, as a mean over its steps.

    ``trace``: needs steps of the rank. ``steps``: the steps to compare, rows of ``steps``. ``rank``: global rank.
    ``peers``: ranks to compare with, of which at most 15 are taken, spread evenly. A step without one of them is left
    out. Returns kind (names of ``late``'s ``cause_kind``) -> ns a step; empty if the ranks have no step in common.
    """
    by_step = surplus_by_step(trace, compared_steps(trace, steps, rank, peers))
    return {kind: float(longer.mean()) for kind, longer in by_step.items()}


def surplus_by_step(trace: Trace, compared: dict[int, Table]) -> dict[str, Floats]:
    """Return by how much a rank does each kind of time longer than the median of its peers, in each step.

    ``compared``: what ``compared_steps`` returns. Returns kind, as ``surplus_over_peers`` does -> ns in each of the
    steps; empty if there are none.
    """
    if not compared:
        return {}
    index = TraceIndex(trace)
    threads = {thread.rank: thread for thread in step_threads(trace)}
    spent = [rank_times(index, threads[one]).within(rows["begin_ns"], rows["end_ns"]) for one, rows in compared.items()]
    typical = np.median(np.stack(spent[1:]), axis=0)
    longer = spent[0] - typical
    # In single steps waits for a CPU are as chance has it: how long they are for each piece of work, the means say.
    longer = with_queue(longer, queue_per_work(longer.mean(axis=0), typical.mean(axis=0)))
    return {kind: longer[:, n] for n, kind in enumerate(CAUSES) if n != BEFORE}


def compared_steps(trace: Trace, steps: Table, rank: int, peers: Sequence[int]) -> dict[int, Table]:
    """Return the steps that a rank and the peers that it is compared with all have, the rank first; empty if none."""
    known_ranks = {thread.rank for thread in step_threads(trace)}
    known = [peer for peer in peers if peer in known_ranks and peer != rank]
    if rank not in known_ranks or not known:
        return {}
    places = np.unique(np.linspace(0, len(known) - 1, min(POLICY.compared_ranks_count, len(known))).astype(np.int64))
    tables = {one: steps.take(steps["rank"] == one) for one in (rank, *(known[place] for place in places.tolist()))}
    common = reduce(np.intersect1d, (table["step"] for table in tables.values()))
    if not len(common):
        return {}
    return {one: of_one.take(np.isin(of_one["step"], common)).sort_by("step") for one, of_one in tables.items()}
