"""Which line of the user's code the work of each node was in.

    node            [ python                          ][ other, asleep ]
    its lines       [ hook, a long call ][ a  a  b  ? ][ fetch         ]     samples divide what is left of a node

A long call is known exactly. What is left of the nodes of one thread and kind is divided as its samples there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from stashtrace._native import intervals
from stashtrace.analysis.graph import Graph, Resource
from stashtrace.analysis.intervals import Bools, Floats, Int64, int64
from stashtrace.analysis.lines.thread_places import Stays, ThreadPlaces
from stashtrace.analysis.lines.user_frames import Places, places
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import ranks_and_steps
from stashtrace.replay.causes.policy import POLICY
from stashtrace.schema.groupby import GroupBy, RowsBy
from stashtrace.schema.kinds import BatchPhase
from stashtrace.schema.trace import Trace

_THREADS = (Resource.STEP_THREAD, Resource.HOST)
#: The function of torch that runs a backward pass.
BACKWARD = "_engine_run_backward"
#: How the words for a call of torch begin.
_TORCH = "torch "
#: Kinds of work besides those of ``StallKind``: inside torch.compile, and inside collectives of Python objects.
COMPILE, OBJECTS = 100, 101
#: What is known without a line.
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class WorkByLine:
    """Pieces of the work of nodes; the pieces of a node sum to its length."""

    node: Int64
    #: Number of the line in ``places``, -1 if it is unknown.
    line: Int64
    #: Number of the function that the training loop calls and that it is in; -1 for the loop itself, or if unknown.
    entry: Int64
    ns: Floats
    #: Standard error that the number of samples leaves of it, the same way for all pieces of one line and thread.
    doubt_ns: Floats
    #: Of each such function: the codes of its name and file.
    entries: tuple[tuple[int, int], ...]
    #: Of each line by its number: a row of the columns of ``places``.
    row: Int64
    places: Places | None
    #: Of each piece.
    rank: Int64
    #: Where the threads were; None without stacks.
    threads: ThreadPlaces | None
    #: Of each line by its number: samples, and those in which its thread held the GIL and ran no code of torch.
    samples_count: Int64
    holds_gil_count: Int64
    #: Whether it is the call of a backward pass, which is the work of all modules.
    is_backward: Bools

    def python_ratio(self, pieces: Int64) -> float:
        """Return which part of some pieces ran Python, not torch or what releases the GIL; -1 with few samples."""
        known = pieces[self.line[pieces] >= 0]
        lines = GroupBy(self.line[known])
        count, ns = self.samples_count[lines.values], lines.sum(self.ns[known])
        sampled = (count > 0) & (ns > 0)
        if count.sum() < POLICY.samples_count or 2 * ns[sampled].sum() < self.ns[pieces].sum():
            return -1.0
        return float(np.average(self.holds_gil_count[lines.values][sampled] / count[sampled], weights=ns[sampled]))

    def backward_ratio(self, pieces: Int64) -> float:
        """Return which part of some pieces is inside backward passes; -1 if the lines of most of it are not known."""
        known = pieces[self.line[pieces] >= 0]
        if 2 * self.ns[known].sum() < self.ns[pieces].sum():
            return -1.0
        return float(self.ns[known[self.is_backward[self.line[known]]]].sum() / self.ns[pieces].sum())

    def rank_with_most(self, pieces: Int64) -> int:
        """Return the rank with most of some pieces; transfers are of no rank."""
        pieces = pieces[self.rank[pieces] >= 0]
        ranks = GroupBy(self.rank[pieces])
        return int(ranks.values[ranks.sum(self.ns[pieces]).argmax()])

    def function(self, line: int) -> tuple[int, int]:
        """Return the codes of the function that a line is in, and of its file."""
        assert self.places is not None
        return int(self.places.function_code[self.row[line]]), int(self.places.path_code[self.row[line]])


def work_by_line(index: TraceIndex, graph: Graph) -> WorkByLine:
    """Divide the nodes of step threads and workers among lines; other nodes are one piece each."""
    trace = index.trace
    found = places(index.origin) if len(trace.frames) else None
    whole = graph.work_ns.astype(np.float64)
    parts: list[tuple[Int64, Int64, Floats, Floats]] = []
    threads = ThreadPlaces(index, found) if found is not None else None
    lines_count = int(found.line_number.max(initial=-1)) + 1 if found is not None else 0
    samples, holds = np.zeros(lines_count, dtype=np.int64), np.zeros(lines_count, dtype=np.int64)
    if found is not None and threads is not None:
        spot_of, line_of = np.append(_spots(found).number, UNKNOWN), np.append(found.line_number, UNKNOWN)
        in_torch = np.append(_is_leaf(trace, found, lambda leaf: leaf.startswith(_TORCH)), False)
        kinds = kinds_of(graph)
        for track, nodes in _threads(index, graph):
            stays = threads.of(track)
            parts += _divided(graph, kinds, nodes, whole, stays, spot_of)
            of_sample = line_of[stays.place]
            known = of_sample >= 0
            np.add.at(samples, of_sample[known], 1)
            # What torch does in Python is no code of the user's.
            np.add.at(holds, of_sample[known & stays.holds_gil & ~in_torch[stays.place]], 1)
    parts.append((np.arange(len(graph)), np.full(len(graph), UNKNOWN), np.maximum(whole, 0.0), 0.0 * whole))
    node, spot, ns, doubt_ns = (np.concatenate(column) for column in zip(*parts, strict=True))
    kept = ns > 0
    node, spot = int64(node[kept]), int64(spot[kept])
    lines = GroupBy(found.line_number) if found is not None else GroupBy(int64([]))
    line, entry, entries = _of_spots(found, spot)
    columns = node, line, entry, ns[kept], doubt_ns[kept], entries
    of_lines = lines.first, found, graph.rank[node], threads, samples, holds
    return WorkByLine(*columns, *of_lines, _calls_of_backward(trace, found, lines_count))


def kinds_of(graph: Graph) -> Int64:
    """Return the kind of each node, with compilations and collectives of objects as separate kinds."""
    if graph.facts is None:
        return graph.kind
    return np.where(graph.facts.compiles, COMPILE, np.where(graph.facts.pickles, OBJECTS, graph.kind))


def _spots(found: Places) -> GroupBy:
    """Number the lines with the functions that the loop calls and that they were reached through."""
    return GroupBy(found.line_number, found.entry_code, found.entry_path_code)


def _of_spots(found: Places | None, spot: Int64) -> tuple[Int64, Int64, tuple[tuple[int, int], ...]]:
    """Return the line of each spot, the number of the function that the loop calls, and the names of these."""
    if found is None:
        return spot, spot, ()
    line, *names = _spots(found).keys
    entries = GroupBy(*names)
    known = np.where(entries.keys[0] >= 0, np.arange(len(entries)), UNKNOWN)
    pairs = zip(*(column.tolist() for column in entries.keys), strict=True)
    return np.append(line, UNKNOWN)[spot], np.append(known[entries.number], UNKNOWN)[spot], tuple(pairs)


def _calls_of_backward(trace: Trace, found: Places | None, lines_count: int) -> Bools:
    """Return the mask of lines below which torch runs a backward pass."""
    is_backward = np.zeros(lines_count, dtype=bool)
    if found is not None and lines_count:
        is_backward[found.line_number[_is_leaf(trace, found, lambda leaf: leaf.endswith(BACKWARD))]] = True
    return is_backward


def _is_leaf(trace: Trace, found: Places, is_wanted: Callable[[str], bool]) -> Bools:
    """Return the mask of places whose call of a library is a wanted one."""
    return GroupBy(found.leaf_code).map(lambda leaf: is_wanted(trace.text(leaf)), bool)


def _threads(index: TraceIndex, graph: Graph) -> Iterator[tuple[int, Int64]]:
    """Yield the track and the nodes, in their order, of each step thread and of each worker."""
    on_thread = np.isin(graph.resource, _THREADS)
    for thread, _ in ranks_and_steps(index.origin, index.steps):
        nodes = np.flatnonzero(on_thread & (graph.rank == thread.rank))
        yield thread.track_id, nodes[np.argsort(graph.begin_ns[nodes], kind="stable")]
    fetches = index.batches_of_phase(BatchPhase.FETCH)
    made = np.flatnonzero(graph.is_batch & (graph.row >= 0))
    for track, rows in GroupBy(fetches["track_id"][graph.row[made]]).items():
        nodes = made[rows]
        yield track, nodes[np.argsort(graph.begin_ns[nodes], kind="stable")]


def _divided(
    graph: Graph, kinds: Int64, nodes: Int64, whole: Floats, stays: Stays, line_of: Int64
) -> Iterator[tuple[Int64, Int64, Floats, Floats]]:
    """Yield pieces of a thread's nodes with their lines, and take them from ``whole``. ``kinds``: of all nodes."""
    begin = graph.begin_ns[nodes]
    end = np.minimum(graph.end_ns[nodes], np.append(begin[1:], graph.end_ns[nodes][-1:]))
    kept = end > begin
    nodes, begin, end = nodes[kept], begin[kept], end[kept]
    if not len(nodes):
        return
    calls = stays.calls
    first, last, call, at = intervals.join(calls.begin, calls.end, begin, end)
    exact_ns = (last - first).astype(np.float64)
    np.subtract.at(whole, nodes[at], exact_ns)
    yield nodes[at], line_of[calls.tag[call]], exact_ns, 0.0 * exact_ns
    at, line = intervals.locate(begin, end, stays.moment_ns), line_of[stays.place]
    line, at = line[at >= 0], at[at >= 0]
    rest_ns = np.maximum(whole[nodes], 0.0)
    # A line needs enough samples in all of a kind of time. A node with enough samples is divided by these, the
    # others by those of nodes of their kind that are about as long: what only long nodes do makes them long.
    kind = GroupBy(kinds[nodes]).number
    by_line = GroupBy(kind[at], line)
    often = (by_line.sizes[by_line.number] >= POLICY.samples_count) & (line >= 0)
    line = np.where(often, line, UNKNOWN)
    pairs, kinds_sampled = GroupBy(kind[at], line), GroupBy(kind[at])
    share_of_kind = pairs.sizes / kinds_sampled.sizes[kinds_sampled.find(pairs.keys[0])]
    usual = dict(zip(zip(*(key.tolist() for key in pairs.keys), strict=True), share_of_kind.tolist(), strict=True))
    has_enough = GroupBy(at).sizes[GroupBy(at).number] >= POLICY.samples_count
    yield from _shares(nodes, rest_ns, whole, at[has_enough], line[has_enough], np.arange(len(nodes)), kind, usual)
    left = np.ones(len(nodes), dtype=bool)
    left[at[has_enough]] = False
    at, line = at[~has_enough], line[~has_enough]
    similar = GroupBy(kind, int64(np.log2(np.maximum(rest_ns, 1.0))))
    enough = GroupBy.numbered(similar.number[at], len(similar)).sizes >= POLICY.samples_count
    group = np.where(enough[similar.number], similar.number, len(similar) + kind)
    yield from _shares(nodes, np.where(left, rest_ns, 0.0), whole, group[at], line, group, kind, usual)


def _shares(
    nodes: Int64,
    rest_ns: Floats,
    whole: Floats,
    group_of_sample: Int64,
    line: Int64,
    group: Int64,
    kind: Int64,
    usual: Mapping[tuple[int, int], float],
) -> Iterator[tuple[Int64, Int64, Floats, Floats]]:
    """Yield what each line has of the rest of nodes, by the samples of their groups, and take it from ``whole``.

    ``usual``: share of each kind and line in all samples of that kind.
    """
    lines = GroupBy(group_of_sample, line)
    total = GroupBy(lines.keys[0]).sum(lines.sizes)[GroupBy(lines.keys[0]).number]
    known = np.flatnonzero(lines.keys[1] >= 0)
    members = RowsBy(group)
    for one in known.tolist():
        rows = members.rows(int(lines.keys[0][one]))
        rows = rows[rest_ns[rows] > 0]
        if not len(rows):
            continue
        share, samples = lines.sizes[one] / total[one], total[one]
        part_ns = rest_ns[rows] * share
        whole[nodes[rows]] -= part_ns
        # Where all samples of a group are of one line, the next may be of another, as those of its kind are.
        likely = (lines.sizes[one] + usual.get((int(kind[rows[0]]), int(lines.keys[1][one])), 0.0)) / (samples + 1)
        doubt = math.sqrt(likely * (1 - likely) / samples)
        yield nodes[rows], np.full(len(rows), lines.keys[1][one]), part_ns, rest_ns[rows] * doubt
