"""Names of what nodes did: the function or phase of a thread, the operation of a transfer, the worker of a batch.

Only pieces of the critical path get names: they are few compared to the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace._native import intervals
from stashtrace.analysis.collectives.collective_waits import communicator_names
from stashtrace.analysis.graph.critical_path import Part, Pieces
from stashtrace.analysis.graph.work_graph import EdgeKind, Graph, Resource
from stashtrace.analysis.intervals import Bools, Int64, TimeSet, int64, window_at
from stashtrace.analysis.lines.thread_places import innermost
from stashtrace.analysis.stalls.on_host import outer_phase_rows
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import step_at
from stashtrace.analysis.steps.threads import StepThread, step_threads
from stashtrace.analysis.stragglers.cause_names import BETWEEN_PHASES
from stashtrace.schema.groupby import GroupBy, RowsBy
from stashtrace.schema.kinds import NAMED_SPANS, CollectiveOp, Phase, StallKind, WaitOp
from stashtrace.schema.strings import StringPool

#: Name of the time for which work waited for nothing known.
GAP = "gap"
#: Name of the time from the begin of the first rank's first step to the begin of another rank's.
LATER = "begins later"
#: Name of the time between the last work of a step and the step's end.
END = "end of step"
#: In place of the kind of edges to the end of the run.
_TO_THE_END = -1
#: More than the number of processes of a run.
_PROCESSES = 1 << 32
#: Lags of these edges are time of their source: of a member of a collective that is done later than the first one,
#: and of a worker between two batches.
_OF_SOURCE = (EdgeKind.RELEASE, EdgeKind.PROGRAM)
#: Kinds of the lags of other edges, which occupy nothing.
_DELAYS = {int(EdgeKind.LAUNCH): StallKind.LAUNCH, int(EdgeKind.SYNC): StallKind.SYNC}


@dataclass(frozen=True, slots=True)
class Named:
    """Pieces with their kinds and names."""

    pieces: Pieces
    #: Pieces that are work of their node, not gaps or lags of no node.
    occupies: Bools
    #: ``StallKind``.
    kind: Int64
    #: Index in ``texts``.
    name: Int64
    texts: Sequence[str]


def named(index: TraceIndex, graph: Graph, pieces: Pieces) -> Named:
    """Cut pieces where the functions of a thread begin and end, and name each piece.

    ``index``: of the trace that the graph was built from.
    """
    labels = list(_labels(index, graph, pieces))
    cuts = [
        points[_inside(graph, pieces, labels_of, points)]
        for labels_of in labels
        for points in (labels_of.begin, labels_of.end)
    ]
    pieces, _ = pieces.cut(np.concatenate([*cuts, int64([])]))
    pool = StringPool()
    edge_kind = np.append(graph.edge_kind, _TO_THE_END)[np.minimum(pieces.edge, len(graph.edge_kind))]
    later = np.isin(pieces.node, graph.ends_before[graph.ends_before >= 0])  # a rank that began after the first one
    lag = (pieces.part == Part.LAG) & ~later
    work = ((pieces.part == Part.WORK) & ~later) | (lag & np.isin(edge_kind, _OF_SOURCE))
    kind = np.where(work, graph.kind[pieces.node], int(StallKind.OTHER))
    name = np.where(pieces.part == Part.GAP, pool.code(GAP), pool.code(""))
    name[later] = pool.code(LATER)
    for value in np.unique(edge_kind[lag & ~work]).tolist():
        mine = lag & ~work & (edge_kind == value)
        name[mine] = pool.code(END if value == _TO_THE_END else EdgeKind(value).name.lower())
        kind[mine] = _DELAYS.get(value, StallKind.OTHER)
    owners = RowsBy(np.where(work, _owner(graph, pieces.node), -1))
    for labels_of in labels:
        mine = owners.rows(labels_of.owner)
        name[mine] = _label(index, labels_of, pieces, mine, kind[mine], pool)
    transfers = np.flatnonzero(work & (graph.resource[pieces.node] == Resource.TRANSFER))
    name[transfers] = _operations(index, graph.row[pieces.node[transfers]], pool)
    rows = graph.row[pieces.node]
    kernels = np.flatnonzero(work & (graph.resource[pieces.node] == Resource.STREAM) & (rows >= 0))
    name[kernels] = _texts_of(index, index.trace.kernels["name_code"][rows[kernels]], pool)
    saves = np.flatnonzero(work & (graph.resource[pieces.node] == Resource.CHECKPOINT))
    name[saves] = _texts_of(index, index.trace.phases["name_code"][rows[saves]], pool, Phase.CHECKPOINT.name.lower())
    return Named(pieces, work, int64(kind), name, list(pool))


def _texts_of(index: TraceIndex, codes: npt.NDArray[np.integer], pool: StringPool, unnamed: str = "") -> Int64:
    """Put the texts of string codes into the pool, each once; return the code there of each."""
    distinct = GroupBy(codes)
    texts = (index.trace.text(code) or unnamed for code in distinct.values.tolist())
    return pool.codes(texts)[distinct.number]


def _label(index: TraceIndex, labels: _Labels, pieces: Pieces, mine: Int64, kind: Int64, pool: StringPool) -> Int64:
    """Name the pieces of one owner: blocked ones by the call, others by the label that they lie in."""
    begin = pieces.begin_ns[mine]
    at = window_at(begin, labels.begin, labels.end)
    inside = at >= 0
    name = np.full(len(mine), pool.code(labels.otherwise), dtype=np.int64)
    name[inside] = pool.codes(labels.texts)[labels.text[at[inside]]]
    if labels.track < 0:
        return name
    name[~inside & np.isin(kind, (StallKind.COMPUTE, StallKind.PYTHON))] = pool.code(BETWEEN_PHASES)
    stood = np.flatnonzero(kind == StallKind.OTHER)
    op = _blocking_calls(index, labels.track, begin[stood], pieces.end_ns[mine[stood]])
    calls = pool.codes(call.name.lower() for call in WaitOp)
    name[stood[op >= 0]] = calls[op[op >= 0]]
    return name


@dataclass(frozen=True, slots=True)
class _Labels:
    """Named, disjoint intervals of the nodes of one process on one resource."""

    resource: Resource
    process: int
    #: Sorted intervals, and the index of each name in ``texts``.
    begin: Int64
    end: Int64
    text: Int64
    texts: Sequence[str]
    #: Name outside of the intervals.
    otherwise: str = ""
    #: Track of a step thread; -1 for others.
    track: int = -1

    @property
    def owner(self) -> int:
        return int(self.resource) * _PROCESSES + self.process


def _owner(graph: Graph, nodes: Int64) -> Int64:
    """Return one number for the resource and the process of each node; negative for nodes of no process."""
    process = graph.process_id[nodes]
    return int64(np.where(process >= 0, graph.resource[nodes] * _PROCESSES + process, -1))


def _inside(graph: Graph, pieces: Pieces, labels: _Labels, moments: Int64) -> Bools:
    """Return which moments lie in work of the nodes that the labels are for."""
    at = pieces.at(moments)
    inside: Bools = (_owner(graph, pieces.node[at]) == labels.owner) & (pieces.part[at] == Part.WORK)
    inside &= (at >= 0) & (moments < pieces.end_ns[at])
    return inside


def _labels(index: TraceIndex, graph: Graph, pieces: Pieces) -> Iterable[_Labels]:
    """Yield the labels of each thread and worker on the path."""
    owners = np.unique(_owner(graph, pieces.node))
    present = [divmod(owner, _PROCESSES) for owner in owners[owners >= 0].tolist()]
    for thread in step_threads(index.origin):
        for resource in (Resource.STEP_THREAD, Resource.HOST):
            if (resource, thread.process_id) in present:
                yield _functions(index, thread, resource)
    numbers = index.trace.processes.lookup("process_id", "worker_id")
    for resource, process in present:
        if resource == Resource.WORKER:
            number = numbers.get(process, -1)
            name = f"worker {number}" if number >= 0 else "worker"
            none = int64([])
            yield _Labels(Resource.WORKER, process, none, none, none, [], name)


def _functions(index: TraceIndex, thread: StepThread, resource: Resource) -> _Labels:
    """Label each moment of a thread with its innermost annotated function, else with its phase."""
    trace = index.trace
    spans = trace.spans.take(index.spans.rows(thread.track_id))
    spans = spans.take(np.isin(spans["kind_code"], NAMED_SPANS) & (spans["end_ns"] > spans["begin_ns"]))
    order = np.lexsort((-spans["end_ns"], spans["begin_ns"]))
    begin, end = spans["begin_ns"][order], spans["end_ns"][order]
    names = GroupBy(spans["name_code"][order])
    inner = innermost(begin, end)
    rows = outer_phase_rows(index, thread)
    phases = GroupBy(trace.phases["phase_code"][rows])
    times = TimeSet(trace.phases["begin_ns"][rows], trace.phases["end_ns"][rows])
    around_begin, around_end, row = (times - TimeSet(inner.begin, inner.end)).pieces(times.begin, times.end)
    begin, end = np.concatenate([inner.begin, around_begin]), np.concatenate([inner.end, around_end])
    text = np.concatenate([names.number[inner.tag], len(names) + phases.number[row]])
    order = np.argsort(begin, kind="stable")
    texts = [*map(trace.text, names.values.tolist()), *(Phase(code).name.lower() for code in phases.values.tolist())]
    return _Labels(resource, thread.process_id, begin[order], end[order], text[order], texts, track=thread.track_id)


def _blocking_calls(index: TraceIndex, track: int, begin_ns: Int64, end_ns: Int64) -> Int64:
    """Return the index in ``WaitOp`` of the call that blocked a thread for most of each interval, -1 if none did."""
    waits, rows = index.trace.waits, index.waits.rows(track)
    rows = rows[np.isin(waits["wait_code"][rows], list(WaitOp))]
    ops = np.searchsorted(np.array(list(WaitOp)), waits["wait_code"][rows])
    begin, end, op = _disjoint(waits["begin_ns"][rows], waits["end_ns"][rows], ops)
    cut = intervals.join(begin_ns, end_ns, begin, end)
    cells = GroupBy.cells((cut[2], op[cut[3]]), (len(begin_ns), len(WaitOp)))
    spent = cells.sum(cut[1] - cut[0])
    most = spent.argmax(axis=1)
    known = 2 * spent[np.arange(len(most)), most] >= end_ns - begin_ns
    return np.where(known, most, -1)


def _disjoint(begin: Int64, end: Int64, value: npt.NDArray[np.intp]) -> tuple[Int64, Int64, Int64]:
    """Sort intervals by begin and cut each where the next begins; leave out those that are then empty."""
    order = np.lexsort((end, begin))
    begin, end, value = begin[order], end[order], value[order]
    end = np.minimum(end, np.append(begin[1:], end[-1:]))
    kept = end > begin
    return int64(begin[kept]), int64(end[kept]), int64(value[kept])


def _operations(index: TraceIndex, rows: Int64, pool: StringPool) -> Int64:
    """Name the operation of each of these rows of ``collectives``, with its number among its kind in its step."""
    table = index.trace.collectives
    if not len(rows) or not len(table):
        return np.full(len(rows), pool.code("transfer"), dtype=np.int64)
    operations = GroupBy(table["group_hash"], table["sequence"])
    first = operations.first
    step = step_at(index.steps, table["rank"][first], table["call_ns"][first])
    group, op = operations.keys[0], table["op_code"][first]
    nth = np.where(step >= 0, GroupBy(group, op, step).position, -1)
    communicators = GroupBy(group)
    mine = np.where(rows >= 0, operations.number[rows], -1)
    distinct = GroupBy(*(np.where(mine >= 0, column[mine], -1) for column in (op, communicators.number, nth)))
    names = communicator_names(index.trace, communicators.values)
    wanted = zip(*(column.tolist() for column in distinct.keys), strict=True)
    texts = (_operation(op, str(names[at]) if len(names) > 1 else "", number) for op, at, number in wanted)
    return pool.codes(texts)[distinct.number]


def _operation(op: int, communicator: str, number: int) -> str:
    if op < 0:
        return "transfer"
    known = {int(kind): kind.name.lower() for kind in CollectiveOp}
    parts = [known.get(op, "collective"), str(number) if number >= 0 else "", communicator]
    return " ".join(filter(None, parts))
