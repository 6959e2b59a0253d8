"""Who waits for a cause: the ranks whose waits in collectives are shorter in a replay without it.

rank 2, the cause   [ hook                     ]-.
rank 1              [ forward ] waits in recv  . '->[ forward          ]-.
rank 0              [ forward ] waits in all-reduce, for 2 through 1 .  . '->[ all-reduce ]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.graph import EdgeKind, Graph, Replayed
from stashtrace.analysis.intervals import NEVER, Int64, int64
from stashtrace.errors import MissingDataError
from stashtrace.replay.causes.candidates import Candidate
from stashtrace.replay.causes.policy import POLICY
from stashtrace.replay.causes.work_by_line import Floats
from stashtrace.replay.communication.messages import gradient_messages, shows_ddp
from stashtrace.replay.whatif import ReplayedRun
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.trace import Trace


@dataclass(frozen=True, slots=True)
class Waiting:
    """The ranks that wait for a cause."""

    ranks: tuple[int, ...] = ()
    #: ``CollectiveOp`` of most of the waits, -1 if unknown.
    op: int = -1
    #: Ranks that these wait for directly, where most of the waits are not for the ranks of the cause themselves.
    through: tuple[int, ...] = ()
    #: Mean of a step, of the rank that waits longest; 0 if the threads of the ranks do not wait themselves.
    ns: float = 0.0


def who_waits(run: ReplayedRun, one: Candidate, removed: Floats) -> Waiting:
    """Return who waits for the work of a candidate. ``removed``: ns by node that go with it."""
    graph = run.graph
    members = np.flatnonzero(graph.edge_kind == EdgeKind.MEMBER)
    source = graph.source[members]
    members = members[np.isin(graph.step[source], run.steps) & ~np.isin(graph.rank[source], one.ranks)]
    if not one.ranks or not len(members):
        return Waiting()
    replays = run.unchanged, run.replayed_without(removed)
    before, after = (_waited_ns(graph, replay, members) for replay in replays)
    less_ns = (before - after) / len(run.steps)
    ranks = GroupBy(graph.rank[graph.source[members]])
    of_rank = ranks.sum(less_ns)
    most_ns = float(of_rank.max(initial=0.0))
    if most_ns < POLICY.worth_ratio * run.measured_ns:
        return Waiting()
    waiting = ranks.values[of_rank >= POLICY.mostly_ratio * most_ns]
    own = np.isin(graph.rank[graph.source[members]], waiting)
    op = _with_most(_operations(graph, members[own]), less_ns[own])
    awaited = _awaited_ranks(graph, run.unchanged, members[own])
    direct = less_ns[own][np.isin(awaited, one.ranks)].sum()
    between = -1 if direct >= POLICY.mostly_ratio * less_ns[own].sum() else _with_most(awaited, less_ns[own])
    through = (between,) if between >= 0 and between not in one.ranks else ()
    return Waiting(tuple(waiting.tolist()), op, through, _less_blocked_ns(run, *replays, waiting))


def _less_blocked_ns(run: ReplayedRun, before: Replayed, after: Replayed, ranks: Int64) -> float:
    """Return by how much shorter the step threads of some ranks wait for collectives in another replay, at most."""
    graph = run.graph
    edges = np.flatnonzero((graph.edge_kind == EdgeKind.PROGRAM) & graph.is_thread[graph.target])
    released = graph.target[graph.edge_kind == EdgeKind.RELEASE]
    edges = edges[np.isin(graph.target[edges], released) & np.isin(graph.rank[graph.target[edges]], ranks)]
    target = graph.target[edges]
    counted = np.isin(graph.step[target], run.steps)
    edges, target = edges[counted], target[counted]
    # What the thread did before ends when this edge lets it go on; it goes on when the collective does, too.
    waited = [one.begin_ns[target] - one.end_ns[graph.source[edges]] - graph.lag_ns[edges] for one in (before, after)]
    less = GroupBy(graph.rank[target]).sum((waited[0] - waited[1]).astype(float))
    return max(float(less.max(initial=0.0)) / len(run.steps), 0.0)


def _waited_ns(graph: Graph, replay: Replayed, members: Int64) -> Floats:
    """Return how long the source of each edge waits in its collective in a replay."""
    entered = replay.end_ns[graph.source[members]] + graph.lag_ns[members]
    return np.maximum(replay.begin_ns[graph.target[members]] - entered, 0).astype(float)


def _awaited_ranks(graph: Graph, replay: Replayed, members: Int64) -> Int64:
    """Return the rank that enters last into what each edge leads to."""
    edges = np.flatnonzero((graph.edge_kind == EdgeKind.MEMBER) & np.isin(graph.target, graph.target[members]))
    entered = replay.end_ns[graph.source[edges]] + graph.lag_ns[edges]
    targets = GroupBy(graph.target[edges])
    last = edges[targets.argmax(entered)]
    return int64(graph.rank[graph.source[last]][np.searchsorted(targets.values, graph.target[members])])


def _operations(graph: Graph, members: Int64) -> Int64:
    """Return the operation that each edge leads to, -1 if unknown: that of its target, or of what this leads to."""
    if graph.facts is None:
        return np.full(len(members), -1, dtype=np.int64)
    op = graph.facts.op
    following = np.full(len(graph), -1, dtype=np.int64)
    moves = graph.is_transfer[graph.target] & ~graph.is_transfer[graph.source]
    following[graph.source[moves]] = op[graph.target[moves]]
    target = graph.target[members]
    return int64(np.where(op[target] >= 0, op[target], following[target]))


def _with_most(keys: Int64, amounts: Floats) -> int:
    groups = GroupBy(keys)
    return int(groups.values[groups.sum(amounts).argmax()])


#: Most of the bytes.
_MOSTLY_RATIO = 0.6


def sends_gradients(trace: Trace, graph: Graph, op: int) -> bool:
    """Return True if most bytes of an operation are what DistributedDataParallel sends in backward passes."""
    if graph.facts is None or op != CollectiveOp.ALL_REDUCE or not shows_ddp(trace):
        return False
    try:
        messages = gradient_messages(trace)
    except MissingDataError:
        return False
    sent = (messages.step >= 0) & (messages.backward >= 0) & messages.within & (messages.op == "all_reduce")
    first, last = messages.ready_ns[sent].min(initial=NEVER), messages.end_ns[sent].max(initial=-NEVER)
    of_op = graph.is_transfer & (graph.facts.op == op)
    moved = graph.moved_bytes[of_op & (graph.begin_ns >= first) & (graph.end_ns <= last)]
    return bool(messages.bytes[sent].sum() >= _MOSTLY_RATIO * moved.sum() > 0)
