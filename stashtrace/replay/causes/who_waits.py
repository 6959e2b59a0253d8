"""Who waits for a cause: the ranks whose waits in collectives are shorter in a replay without it.

rank 2, the cause   [ hook                     ]-.
rank 1              [ forward ] waits in recv  . '->[ forward          ]-.
rank 0              [ forward ] waits in all-reduce, for 2 through 1 .  . '->[ all-reduce ]

And the call in which a thread is blocked for most of the time of a cause.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stashtrace._native import intervals
from stashtrace.analysis.findings.blocked_calls import blocked_in
from stashtrace.analysis.graph import EdgeKind, Graph, Replayed
from stashtrace.analysis.intervals import NEVER, Floats, Int64, TimeSet, int64
from stashtrace.analysis.lines.thread_places import exact_calls
from stashtrace.analysis.lines.user_frames import place_of
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.threads import StepThread, step_threads
from stashtrace.analysis.stragglers.cause_names import file_calls
from stashtrace.errors import MissingDataError
from stashtrace.replay.causes.candidates import ANY, Candidate
from stashtrace.replay.causes.policy import POLICY
from stashtrace.replay.causes.work_by_line import WorkByLine
from stashtrace.replay.communication.messages import gradient_messages, shows_ddp
from stashtrace.replay.whatif import ReplayedRun
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import BatchPhase, CollectiveOp, IoOp, SpanKind, StallKind
from stashtrace.schema.trace import Trace

#: Kinds of time in which a thread may be blocked.
_BLOCKED = (StallKind.OTHER, ANY)


def blocking_call(index: TraceIndex, graph: Graph, work: WorkByLine, one: Candidate) -> str:
    """Return ``asleep``, ``gil``, ``lock``, ``socket``, ...: in which call step threads are blocked; empty if in none.

    ``garbage`` where they collect garbage. Of a candidate that is a function, the calls are those below it; where these
    are too short to have stacks, all of its kind.
    """
    rank, pieces = _of_a_rank(work, one)
    track = _step_thread(index, rank)
    if track < 0 or not len(pieces):
        return ""
    nodes = work.node[pieces]
    time = TimeSet.of(graph.begin_ns[nodes], graph.end_ns[nodes])
    below = time
    if one.function is not None:
        below = time & _calls_below(work, track, np.unique(work.line[pieces]))
    if _collects_garbage(index, graph, work, one, rank, below):
        return "garbage"
    if one.kind not in _BLOCKED:
        return ""
    time = below if below.total_ns >= POLICY.mostly_ratio * work.ns[pieces].sum() else time
    blocked_ns = blocked_in(index, track, time)
    call = max(blocked_ns, key=blocked_ns.__getitem__, default="")
    return call if blocked_ns.get(call, 0) > POLICY.mostly_ratio * time.total_ns else ""


def _of_a_rank(work: WorkByLine, one: Candidate) -> tuple[int, Int64]:
    """Return the rank that a candidate is about, or the one with most of it, and the pieces of that rank."""
    rank = one.ranks[0] if one.ranks else work.rank_with_most(one.pieces)
    return rank, one.pieces[work.rank[one.pieces] == rank]


def _step_thread(index: TraceIndex, rank: int) -> int:
    return next((thread.track_id for thread in step_threads(index.trace) if thread.rank == rank), -1)


def _collects_garbage(
    index: TraceIndex, graph: Graph, work: WorkByLine, one: Candidate, rank: int, below: TimeSet
) -> bool:
    """Return whether most of what goes from a rank is the collection of garbage, beyond what its peers collect."""
    mine = work.rank[one.pieces] == rank
    nodes, part = work.node[one.pieces[mine]], one.parts[1][mine]
    collected = _garbage(index, rank) & below
    goes_ns = float((collected.within(graph.begin_ns[nodes], graph.end_ns[nodes]) * part).sum())
    if one.level == "peers":
        goes_ns = float(collected.total_ns) - _garbage_of_others(index, graph, one, rank)
    return goes_ns > POLICY.mostly_ratio * one.most_ns * one.of_steps


def _garbage(index: TraceIndex, rank: int) -> TimeSet:
    """Return when the step thread of a rank collects garbage."""
    spans, rows = index.trace.spans, index.spans.rows(_step_thread(index, rank))
    return TimeSet.of_rows(spans, rows[spans["kind_code"][rows] == SpanKind.GC])


def _garbage_of_others(index: TraceIndex, graph: Graph, one: Candidate, rank: int) -> float:
    """Return the ns for which the other ranks collect garbage in such work in all steps, median of a few of them."""
    others = [other for other in np.unique(graph.ends_rank).tolist() if other != rank][: POLICY.lines_count]
    spent = [0.0]
    for other in others:
        nodes = np.flatnonzero(graph.is_thread & (graph.rank == other) & np.isin(graph.kind, (one.kind,)))
        spent.append(float(_garbage(index, other).within(graph.begin_ns[nodes], graph.end_ns[nodes]).sum()))
    return float(np.median(spent[1:])) if others else 0.0


@dataclass(frozen=True, slots=True)
class OnFile:
    """Calls of a step thread on files."""

    #: The file with most of the time, and the call on it that takes longest; empty if a candidate is about no file.
    name: str = ""
    call: str = ""
    files_count: int = 0
    #: All time of these calls in the counted steps, of whatever kind, as a multiple of that within the candidate.
    whole_ratio: float = 1.0


def file_of(index: TraceIndex, graph: Graph, work: WorkByLine, one: Candidate, steps: Int64) -> OnFile:
    """Return the file whose calls by the step thread are most of a candidate. ``steps``: the counted ones."""
    rank, pieces = _of_a_rank(work, one)
    thread = next((thread for thread in step_threads(index.trace) if thread.rank == rank), None)
    if thread is None or not len(pieces):
        return OnFile()
    every = np.flatnonzero(graph.is_thread & (graph.rank == rank) & np.isin(graph.step, steps))
    within, whole = (
        _time_of_files(index, thread, TimeSet.of(graph.begin_ns[nodes], graph.end_ns[nodes]))
        for nodes in (work.node[pieces], every)
    )
    spent_ns = sum(ns for ns, _ in within[0].values())
    if spent_ns < POLICY.mostly_ratio * one.about_ratio * one.most_ns * one.of_steps:
        return OnFile()
    whole_ns = sum(ns for path, (ns, _) in whole[0].items() if path in within[0])
    longest, (_, call) = next(iter(within[0].items()))
    return OnFile(index.trace.text(longest), call, within[1], max(whole_ns / max(spent_ns, 1.0), 1.0))


def _time_of_files(index: TraceIndex, thread: StepThread, time: TimeSet) -> tuple[dict[int, tuple[float, str]], int]:
    """Return the files whose calls take most of a time, longest first, and the number of all.

    Of each by its code: the ns, and the call that takes longest.
    """
    table = file_calls(index, thread)
    spent = time.within(table.begin, table.end)
    table, spent = table.take(spent > 0), spent[spent > 0]
    files, calls = GroupBy(table.path), GroupBy(table.path, table.op)
    of_file, of_call = files.sum(spent), calls.sum(spent)
    most = order_by(-of_file, files.values)[: POLICY.files_count]
    found: dict[int, tuple[float, str]] = {}
    for place in most[of_file[most] >= POLICY.part_ratio * time.total_ns].tolist():
        mine = np.flatnonzero(calls.keys[0] == files.values[place])
        longest = mine[of_call[mine].argmax()]
        found[int(files.values[place])] = float(of_file[place]), IoOp(calls.keys[1][longest]).name.lower()
    return found, len(files)


def waiting_place(index: TraceIndex, graph: Graph, work: WorkByLine, one: Candidate, function: tuple[int, int]) -> str:
    """Return where a thread waits for another one that runs a function; empty if it runs that itself.

    It is the thread of the rank, or the worker, with most of the candidate.
    """
    places = work.places
    assert places is not None
    rank, pieces = _of_a_rank(work, one)
    if one.by_workers:
        fetches = index.batches_of_phase(BatchPhase.FETCH)
        tracks = fetches["track_id"][graph.row[work.node[pieces]]]
        track = _with_most(tracks, work.ns[pieces]) if len(tracks) else -1
    else:
        track = _step_thread(index, rank)
    seen = []
    tables = ((index.trace.stack_samples, index.stack_samples), (index.trace.stack_spans, index.stack_spans))
    for table, by_track in tables:
        rows = by_track.rows(track)
        place = places.of(table["process_id"][rows], table["frame_key"][rows])
        seen.append(place)
        known = place[place >= 0]
        if function in zip(places.function_code[known].tolist(), places.path_code[known].tolist(), strict=True):
            return ""
    spans = index.trace.stack_spans.take(index.stack_spans.rows(track))
    calls, row = exact_calls(spans)
    nodes = work.node[pieces]
    begin, end, call = TimeSet.of(graph.begin_ns[nodes], graph.end_ns[nodes]).pieces(calls.begin, calls.end)
    place = seen[1][row[calls.tag[call]]]
    on_line = place >= 0
    if not on_line.any():
        return ""
    most = _with_most(place[on_line], (end - begin)[on_line])
    name, path = (index.trace.text(int(codes[most])) for codes in (places.function_code, places.path_code))
    return place_of(name, path, int(places.line[most]))


def called_in(index: TraceIndex, work: WorkByLine, one: Candidate) -> tuple[str, float]:
    """Return the line from which step threads wait for the transfers of a candidate, and its part of these waits.

    Empty if it is not known of most of their time.
    """
    places, table, waits = work.places, index.trace.collectives, index.trace.collective_waits
    if places is None or work.threads is None:
        return "", 0.0
    keys = table["collective_key"][table["op_code"] == one.op]
    spent: dict[int, float] = {}
    whole_ns = 0.0
    for thread in step_threads(index.trace)[: POLICY.lines_count]:
        rows = index.collective_waits.rows(thread.track_id)
        time = TimeSet.of_rows(waits, rows[np.isin(waits["collective_key"][rows], keys)])
        stays = work.threads.of(thread.track_id)
        begin, end, call = time.pieces(stays.calls.begin, stays.calls.end)
        sampled = stays.place[intervals.locate(time.begin, time.end, stays.moment_ns) >= 0]
        # What no long call has is divided as the samples in it are.
        rest_ns = np.full(len(sampled), (time.total_ns - int((end - begin).sum())) / max(len(sampled), 1))
        for place, ns in ((stays.calls.tag[call], end - begin), (sampled, rest_ns)):
            known = place >= 0
            lines = GroupBy(places.line_number[place[known]])
            for line, own_ns in zip(lines.values.tolist(), lines.sum(ns[known]).tolist(), strict=True):
                spent[line] = spent.get(line, 0.0) + own_ns
        whole_ns += time.total_ns
    line = max(spent, key=spent.__getitem__, default=-1)
    if line < 0 or spent[line] < POLICY.mostly_ratio * whole_ns:
        return "", 0.0
    row = work.row[line]
    function, path = (index.trace.text(code) for code in work.function(line))
    return place_of(function, path, int(places.line[row])), spent[line] / whole_ns


def _calls_below(work: WorkByLine, track: int, lines: Int64) -> TimeSet:
    """Return when a thread was in long calls below some lines."""
    assert work.threads is not None
    assert work.places is not None
    calls = work.threads.of(track).calls
    line = np.append(work.places.line_number, -1)[calls.tag]
    on_lines = np.isin(line, lines)
    return TimeSet.of(int64(calls.begin[on_lines]), int64(calls.end[on_lines]))


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
    waits = np.isin(graph.rank[graph.source[members]], waiting)
    op = _with_most(_operations(graph, members[waits]), less_ns[waits])
    awaited = _awaited_ranks(graph, run.unchanged, members[waits])
    direct = less_ns[waits][np.isin(awaited, one.ranks)].sum()
    between = -1 if direct >= POLICY.mostly_ratio * less_ns[waits].sum() else _with_most(awaited, less_ns[waits])
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


def _with_most(keys: Int64, amounts: Floats | Int64) -> int:
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
