"""Build the graph of a pipeline whose operations were recorded rank by rank: micro-batches, sends, collectives.

    compute stream    [ forward 0 ][ forward 1 ]..[ backward 0 ][ enter ]      [ optimizer ]
    send, receive           [ enter ]-.      .->[ leg ]            |       .->[ leg ]
    meeting                           '->(*)-'                     '->(*)--'

A collective is one node for each member that enters it, the meeting of all members, and one leg for each member, from
the last arrival to the member's end. Waits follow from the edges. Loops run over ranks, never over operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np

from stashtrace.analysis.collectives.matching import process_values
from stashtrace.analysis.graph.graph_parts import Parts
from stashtrace.analysis.graph.policy import POLICY
from stashtrace.analysis.graph.work_graph import EdgeKind, Graph, Resource
from stashtrace.analysis.intervals import Bools, Int64, int64
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.stragglers.pipeline_stages import stated_numbers
from stashtrace.errors import MissingDataError
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import MESSAGES, DeviceWork, StallKind
from stashtrace.schema.trace import DATA_PARALLEL_RANK, PIPELINE_STAGE, Trace, is_stated

_DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True)
class PipelineGraph(Graph):
    """Graph of a run whose work has names."""

    #: By node, index in ``operations``; -1 for a node that is not an operation.
    operation: Int64 = field(default_factory=lambda: int64([]))
    #: Names of operations that every rank, step and micro-batch repeats.
    operations: tuple[str, ...] = ()
    #: Data-parallel number by rank.
    replica_of: Mapping[int, int] = field(default_factory=dict)


def is_pipeline(trace: Trace) -> bool:
    """Return True if the operations of a pipeline were recorded: then each process states its stage."""
    return is_stated(trace, PIPELINE_STAGE)


def build_pipeline(index: TraceIndex, *, overlapped_messages: bool = False) -> PipelineGraph:
    """Build the graph of all steps of all ranks; no step is warm-up.

    ``index``: of a trace with operations. ``overlapped_messages``: follow the simulator of the study: a receive may
    begin when the receive before it and its micro-batch have ended, whatever its rank computes then, and no message
    waits for another one of its kernel. Raises MissingDataError if no rank has a step, or the messages that a rank
    receives are not as many as the micro-batches it computes (interleaved stages, lost rows): then it is unknown which
    computation waited for which message.
    """
    parts = Parts()
    work = _work(index)
    starts = _Steps.of(index, parts)
    meetings = _meetings(index, work, parts, overlapped_messages)
    ranks = np.unique(work.rank).tolist()
    chains = [_rank(work, rank, starts, meetings, parts, overlapped_messages) for rank in ranks]
    stage_of, replica_of = (stated_numbers(index.trace, key) for key in (PIPELINE_STAGE, DATA_PARALLEL_RANK))
    _unrecorded_meetings(work, starts, chains, [stage_of, replica_of], parts)
    graph = parts.graph()
    operation = np.full(len(graph), -1, dtype=np.int64)
    for chain in chains:
        operation[chain.work_nodes] = chain.work_operations
    columns = {column.name: getattr(graph, column.name) for column in fields(graph)} | {"stage_of": stage_of}
    return PipelineGraph(**columns, operation=operation, operations=work.names, replica_of=replica_of)


@dataclass(frozen=True, slots=True)
class _Work:
    """Operations of all ranks, by rank and begin."""

    names: tuple[str, ...]
    rank: Int64
    process: Int64
    begin: Int64
    end: Int64
    #: Index in ``names``.
    operation: Int64
    #: Row of ``index.trace.collectives``, -1 for computation.
    collective: Int64
    #: Sends and receives.
    talks: Bools


def _work(index: TraceIndex) -> _Work:
    trace = index.trace
    kernels, table = trace.kernels, trace.collectives
    computes = np.flatnonzero(kernels["work_code"] == DeviceWork.KERNEL)
    moved = np.flatnonzero((table["device_begin_ns"] >= 0) & (table["device_end_ns"] >= table["device_begin_ns"]))
    process = np.concatenate([kernels["process_id"][computes], table["process_id"][moved]]).astype(np.int64)
    operations = GroupBy(np.concatenate([kernels["name_code"][computes], table["name_code"][moved]]))
    rank = process_values(trace, process, "rank")
    collective = np.concatenate([np.full(len(computes), -1), moved]).astype(np.int64)
    talks = np.concatenate([np.zeros(len(computes), dtype=bool), np.isin(table["op_code"][moved], MESSAGES)])
    begin = int64(np.concatenate([kernels["begin_ns"][computes], table["device_begin_ns"][moved]]))
    end = int64(np.concatenate([kernels["end_ns"][computes], table["device_end_ns"][moved]]))
    order = np.lexsort((end, begin, rank))
    order = order[rank[order] >= 0]
    if not len(order):
        raise MissingDataError("no operation of a rank was recorded", hint="a graph is made of them")
    return _Work(
        tuple(trace.text(code) for code in operations.values.tolist()),
        rank[order],
        process[order],
        begin[order],
        end[order],
        operations.number[order],
        collective[order],
        talks[order],
    )


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps of the job in order: number, when the first rank began each, and the node of that moment.

    ``border`` and ``node`` have one entry more, for the end of the last step.
    """

    number: Int64
    border: Int64
    node: Int64

    @classmethod
    def of(cls, index: TraceIndex, parts: Parts) -> _Steps:
        steps = index.steps
        if not len(steps):
            raise MissingDataError("no rank has a step", hint="operations belong to steps; the trace has none")
        of_step = GroupBy(steps["step"])
        begin = of_step.min(steps["begin_ns"])
        order = np.argsort(begin, kind="stable")
        number, begin = int64(of_step.values[order]), int64(begin[order])
        border = np.append(begin, steps["end_ns"].max())
        node = parts.add(
            len(border), step=np.append(number, -1), resource=Resource.MEETING, begin_ns=border, end_ns=border
        )
        return cls(number, border, node)

    def of_moments(self, moments: Int64) -> Int64:
        """Return the index of the step of each moment."""
        return np.maximum(np.searchsorted(self.border[:-1], moments, side="right") - 1, 0)


@dataclass(frozen=True, slots=True)
class _Meetings:
    """By row of the sorted ``collectives``: node of the meeting, and node of the member's leg; -1 if there is none."""

    node: Int64
    leg: Int64


def _meetings(index: TraceIndex, work: _Work, parts: Parts, overlapped: bool) -> _Meetings:
    """Add the moment at which the last member of each collective arrived, and the time that each member then took."""
    table = index.trace.collectives
    mine = np.flatnonzero(work.collective >= 0)
    rows = work.collective[mine]
    collectives = GroupBy(table["group_hash"][rows].view(np.int64), table["sequence"][rows])
    of_row = collectives.number
    arrived = collectives.max(work.begin[mine])
    node = np.full(len(table), -1, dtype=np.int64)
    leg = node.copy()
    met = parts.add(len(collectives), resource=Resource.MEETING, begin_ns=arrived, end_ns=arrived)
    link = index.in_flight.link[rows]
    other = np.arange(len(mine), dtype=np.int64) if overlapped else _in_one_kernel(work, mine)
    begin = np.maximum(arrived[of_row], arrived[of_row[other]])
    legs = parts.add(
        len(rows),
        rank=work.rank[mine],
        step=-1,
        resource=Resource.TRANSFER,
        kind=np.where(link == 0, StallKind.INTERCONNECT, StallKind.NETWORK),
        process_id=work.process[mine],
        begin_ns=begin,
        # A member that ended before the last one arrived, by its own timer, took no time.
        end_ns=np.maximum(work.end[mine], begin),
        moved_bytes=table["message_bytes"][rows],
        row=rows,
    )
    node[rows], leg[rows] = met[of_row], legs
    parts.edge(met[of_row], legs, EdgeKind.MEMBER)
    parts.edge(np.where(other == np.arange(len(mine)), -1, met[of_row[other]]), legs, EdgeKind.MEMBER)
    return _Meetings(node, leg)


def _in_one_kernel(work: _Work, rows: Int64) -> Int64:
    """Return for each of these rows the other message of its kernel, the row itself if there is none.

    A kernel that sends and receives ends when both messages have been moved: each waits for the other's peer.
    """
    talks = np.flatnonzero(work.talks[rows])
    other = np.arange(len(rows), dtype=np.int64)
    order = talks[np.lexsort((work.end[rows[talks]], work.begin[rows[talks]], work.rank[rows[talks]]))]
    a, b = rows[order[:-1]], rows[order[1:]]
    same = (work.rank[a] == work.rank[b]) & (work.operation[a] != work.operation[b])
    same &= (work.begin[b] - work.begin[a] <= POLICY.one_kernel_ns) & (
        np.abs(work.end[b] - work.end[a]) <= POLICY.one_kernel_ns
    )
    other[order[:-1][same]], other[order[1:][same]] = order[1:][same], order[:-1][same]
    return other


@dataclass(frozen=True, slots=True)
class _Chain:
    """The items that the compute stream of a rank went through in order."""

    rank: int
    #: Of each item; ``step`` is an index of :class:`_Steps`.
    operation: Int64
    step: Int64
    begin: Int64
    end: Int64
    #: Node that begins the item and node that ends it; of a collective its entry and its leg.
    first: Int64
    last: Int64
    #: All nodes of the rank that are an operation, and the operation.
    work_nodes: Int64
    work_operations: Int64


def _rank(work: _Work, rank: int, steps: _Steps, meetings: _Meetings, parts: Parts, overlapped: bool) -> _Chain:
    rows = slice(*np.searchsorted(work.rank, [rank, rank + 1]).tolist())
    begin, end, operation = work.begin[rows], work.end[rows], work.operation[rows]
    collective, talks = work.collective[rows], work.talks[rows]
    process = int(work.process[rows][0])
    met = np.append(meetings.node, -1)[collective]
    leg = np.append(meetings.leg, -1)[collective]
    step = steps.of_moments(begin)
    item = _holds_up(begin, end, collective >= 0, talks)
    entry = collective >= 0
    node = parts.add(
        len(begin),
        rank=rank,
        step=steps.number[step],
        resource=np.where(item, Resource.COMPUTE_STREAM, Resource.COMMUNICATION_STREAM),
        kind=StallKind.COMPUTE,
        process_id=process,
        begin_ns=begin,
        end_ns=np.where(entry, begin, end),
    )
    parts.edge(node, met, EdgeKind.MEMBER)
    at = np.flatnonzero(item)
    chain = _Chain(
        rank,
        operation[at],
        step[at],
        begin[at],
        end[at],
        node[at],
        np.where(entry[at], leg[at], node[at]),
        np.where(entry, leg, node),
        operation,
    )
    follows = chain.step[1:] == chain.step[:-1]
    parts.edge(np.where(follows, chain.first[:-1], -1), chain.first[1:], EdgeKind.PROGRAM)
    waits = follows & entry[at][:-1]
    parts.edge(np.where(waits, chain.last[:-1], -1), chain.first[1:], EdgeKind.RELEASE)
    _cross_borders(chain, steps, process, parts)

    receives = np.array([name.endswith("-recv") for name in work.names])[operation]
    posted = np.flatnonzero(~item & ~(receives & overlapped))
    _post(chain, steps, begin[posted], step[posted], node[posted], parts)
    # Each kind of message and collective has a stream: the next one begins when the last one has ended.
    entries = np.flatnonzero(entry)
    order = entries[np.argsort(operation[entries], kind="stable")]
    same = (operation[order][1:] == operation[order][:-1]) & (step[order][1:] == step[order][:-1])
    parts.edge(np.where(same, leg[order[:-1]], -1), node[order[1:]], EdgeKind.QUEUE)
    if overlapped:
        early = np.flatnonzero(receives)
        parts.edge(steps.node[step[early]], node[early], EdgeKind.RELEASE)
    _exchange(work.names, rank, steps, operation, step, node, leg, parts, overlapped)
    _let_go(work.names, chain, operation, step, end, leg, np.flatnonzero(~item & ~talks), parts)
    return chain


def _cross_borders(chain: _Chain, steps: _Steps, process: int, parts: Parts) -> None:
    """A step ends for all ranks when the last one has ended it, then the next begins: what is between is unrecorded."""
    waits = parts.add(
        len(steps.border),
        rank=chain.rank,
        step=np.append(-1, steps.number),
        resource=Resource.COMPUTE_STREAM,
        kind=StallKind.COMPUTE,
        process_id=process,
        begin_ns=steps.border,
        end_ns=steps.border,
    )
    parts.edge(steps.node, waits, EdgeKind.RELEASE)
    changes = chain.step[1:] != chain.step[:-1]
    alone = np.ones(min(len(chain.step), 1), dtype=bool)
    opens, closes = np.append(alone, changes), np.append(changes, alone)
    begun, ended = chain.step[opens], chain.step[closes]
    parts.edge(waits[begun], chain.first[opens], EdgeKind.PROGRAM)
    parts.edge(chain.first[closes], waits[ended + 1], EdgeKind.PROGRAM)
    parts.edge(chain.last[closes], steps.node[ended + 1], EdgeKind.MEMBER)
    if len(ended):
        parts.add_ends(
            np.append(waits[ended[:1]], waits[ended + 1]),
            chain.rank,
            np.append(-1, steps.number[ended]),
            0,
            np.append(False, np.ones(len(ended), dtype=bool)),
            np.append(steps.border[ended[:1]], steps.border[ended]),
            -1,
        )


def _holds_up(begin: Int64, end: Int64, entry: Bools, talks: Bools) -> Bools:
    """Return which operations hold up a rank's compute stream: computation, and collectives during no computation."""
    rows = np.flatnonzero(~talks)
    row_begin, row_end, enters = begin[rows], end[rows], entry[rows]
    computed = np.maximum.accumulate(np.where(enters, 0, row_end))
    before = np.concatenate([[0], computed[:-1]])
    after = np.append(row_begin[1:], np.iinfo(np.int64).max)
    during_computation = enters & (
        (before > row_begin + POLICY.same_moment_ns) | (after < row_end - POLICY.same_moment_ns)
    )
    holds = np.zeros(len(begin), dtype=bool)
    holds[rows] = ~during_computation
    return holds


def _post(chain: _Chain, steps: _Steps, begin: Int64, step: Int64, node: Int64, parts: Parts) -> None:
    """Work outside the compute stream was launched after what the compute stream had done by then."""
    ended = np.maximum.accumulate(chain.end)
    at = np.searchsorted(ended, begin + POLICY.same_moment_ns, side="right") - 1
    # Index -1 stands for an item before the first.
    known = (at >= 0) & (np.append(chain.step, -1)[at] == step)
    first, last = np.append(chain.first, -1)[at], np.append(chain.last, -1)[at]
    parts.edge(np.where(known, first, -1), node, EdgeKind.PROGRAM)
    parts.edge(np.where(known & (last != first), last, -1), node, EdgeKind.RELEASE)
    parts.edge(np.where(known, -1, steps.node[step]), node, EdgeKind.RELEASE)


def _exchange(
    names: tuple[str, ...],
    rank: int,
    steps: _Steps,
    operation: Int64,
    step: Int64,
    node: Int64,
    leg: Int64,
    parts: Parts,
    overlapped: bool,
) -> None:
    """Each micro-batch waits for its message, and the message of each is sent when it is computed."""
    for direction in _DIRECTIONS:
        computes, receives, sends = (
            np.flatnonzero(operation == (names.index(name) if name in names else -2))
            for name in (f"{direction}-compute", f"{direction}-recv", f"{direction}-send")
        )
        for messages, verb in ((receives, "receives"), (sends, "sends")):
            if not len(messages):
                continue
            count = len(steps.number)
            moved, made = (np.bincount(step[rows], minlength=count) for rows in (messages, computes))
            if (moved != made).any():
                wrong = int(np.flatnonzero(moved != made)[0])
                raise MissingDataError(
                    f"in step {steps.number[wrong]} rank {rank} {verb} {moved[wrong]} {direction} messages for"
                    f" {made[wrong]} micro-batches, so it is unknown which belongs to which",
                    hint="a pipeline with interleaved stages, or with missing rows, cannot be replayed",
                )
            if verb == "receives":
                parts.edge(leg[messages], node[computes], EdgeKind.RELEASE)
                same = overlapped & (step[computes][1:] == step[computes][:-1])
                parts.edge(np.where(same, node[computes[:-1]], -1), node[messages[1:]], EdgeKind.PROGRAM)
            else:
                parts.edge(node[computes], node[messages], EdgeKind.PROGRAM)


def _let_go(
    names: tuple[str, ...],
    chain: _Chain,
    operation: Int64,
    step: Int64,
    end: Int64,
    leg: Int64,
    collectives: Int64,
    parts: Parts,
) -> None:
    """A collective outside the compute stream is awaited by what uses its result.

    Gathered parameters are used by the next forward computation, reduced gradients by what follows the last
    micro-batch.
    """
    if not len(collectives):
        return
    gathers = np.array([name.endswith("all-gather") for name in names])
    micro_batch = np.array([name in ("forward-compute", "backward-compute") for name in names])
    forward = np.array([name == "forward-compute" for name in names])
    for chosen, users in (
        (collectives[gathers[operation[collectives]]], np.flatnonzero(forward[chain.operation])),
        (collectives[~gathers[operation[collectives]]], np.flatnonzero(~micro_batch[chain.operation])),
    ):
        if not len(users):
            continue
        at = np.searchsorted(chain.begin[users], end[chosen] - POLICY.same_moment_ns, side="left")
        known = at < len(users)
        user = users[np.minimum(at, len(users) - 1)]
        known &= chain.step[user] == step[chosen]
        parts.edge(np.where(known, leg[chosen], -1), chain.first[user], EdgeKind.RELEASE)


def _unrecorded_meetings(
    work: _Work, steps: _Steps, chains: list[_Chain], numbers_of: list[Mapping[int, int]], parts: Parts
) -> None:
    """Add meetings of ranks that waited for one another without a recorded operation.

    Loss averages and barriers are in no recording. A meeting is taken to be where all ranks, those of a stage, or those
    of a replica enter an operation of each step no earlier than the last of them was free to, and where that explains
    most of the time for which they were idle before.
    """
    ranks = [chain.rank for chain in chains]
    sets = [np.arange(len(ranks))]
    for number in numbers_of:
        of_rank = np.array([number.get(rank, -1) for rank in ranks])
        sets += [np.flatnonzero(of_rank == value) for value in np.unique(of_rank[of_rank >= 0])]
    for operation in range(len(work.names)):
        items = [np.flatnonzero(chain.operation == operation) for chain in chains]
        pairs = list(zip(chains, items, strict=True))
        if not all(np.array_equal(chain.step[at], np.arange(len(steps.number))) for chain, at in pairs):
            continue
        if not all((at > 0).all() and (chain.step[at - 1] == chain.step[at]).all() for chain, at in pairs):
            continue
        entered = np.array([chain.begin[at] for chain, at in pairs])
        first = np.array([chain.first[at] for chain, at in pairs])
        # Times and nodes that each entry is known to wait for so far.
        ready = np.array([chain.end[at - 1] for chain, at in pairs])
        source = np.array([chain.last[at - 1] for chain, at in pairs])
        for members in sets:
            moment = ready[members].max(axis=0, initial=0)
            if len(members) < 2 or not _explains(entered[members], ready[members], moment):
                continue
            meeting = parts.add(
                len(moment), step=steps.number, resource=Resource.MEETING, begin_ns=moment, end_ns=moment
            )
            for member in members.tolist():
                parts.edge(source[member], meeting, EdgeKind.MEMBER)
                parts.edge(meeting, first[member], EdgeKind.RELEASE)
            ready[members] = moment
            source = source.copy()  # the edges keep what they were given
            source[members] = meeting


def _explains(entered: Int64, ready: Int64, moment: Int64) -> bool:
    """Return True if all members entered after the moment of each step, and were idle for little longer."""
    idle, left = np.maximum(entered - ready, 0), entered - moment
    in_order = np.mean(left >= -POLICY.same_moment_ns) >= POLICY.nearly_all_ratio
    return bool(
        in_order
        and idle.mean() > POLICY.same_moment_ns
        and np.maximum(left, 0).sum() <= POLICY.most_idle_ratio * idle.sum()
    )
