"""What the nodes of a graph are part of (loaders, groups, hosts), and what reads of batches would take from memory.

Changes that move nodes need these facts, replays do not. The time from memory follows from reads of similar size that
did not wait for storage: those of the same threads or, if these are few, those of all processes, which may have read
into fresh memory and so vary more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.graph.batch_nodes import own_fetches, worker_starts
from stashtrace.analysis.graph.policy import POLICY
from stashtrace.analysis.graph.work_graph import Facts, Graph, Resource
from stashtrace.analysis.intervals import Bools, Floats, Int64, int64, window_around, window_at
from stashtrace.analysis.stalls.cpu_waits import Handoffs, handoffs
from stashtrace.analysis.stalls.on_host import outer_phase_rows, time_of_spans
from stashtrace.analysis.stalls.rows_by_thread import READ_OPS, TraceIndex
from stashtrace.analysis.stalls.sampled_cpus import host_cpus
from stashtrace.analysis.steps.epochs import LoaderSamples, recorded_samples, serves, step_samples
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.groupby import GroupBy, RowsBy
from stashtrace.schema.kinds import IO_WAITED, NOT_FILES, BatchPhase, IoFlag, SpanKind, StallKind
from stashtrace.schema.table import Table

#: Backends whose all-reduce is a ring for any size of the group.
_RINGS = ("gloo",)
#: Kinds of time in which a step thread runs, or waits for a CPU.
_RUNS = (StallKind.COMPUTE, StallKind.PYTHON, StallKind.LAUNCH)
#: What a step thread does itself.
_ON_HOST = (Resource.STEP_THREAD, Resource.HOST)
_PHASE_COLUMNS = ("begin_ns", "end_ns", "begin_runqueue_ns", "end_runqueue_ns")


def facts_of(
    index: TraceIndex, ranks: Sequence[tuple[StepThread, Table]], graph: Graph, *, reads: bool = True
) -> Facts:
    """Gather the facts of a graph that was just built.

    ``reads``: estimate from all reads how long those that waited would have taken from memory.
    """
    count = len(graph)
    fetches = index.batches_of_phase(BatchPhase.FETCH)
    made = np.flatnonzero(graph.is_batch)
    rows = graph.row[made]
    cpu = _column(count, made, fetches["cpu_ns"][rows])
    queued = _column(count, made, fetches["runqueue_ns"][rows])
    loaders = GroupBy(fetches["loader_id"])
    number_of = loaders.number
    loader, batch = _column(count, made, number_of[rows]), _column(count, made, fetches["batch_index"][rows])
    starts, served = np.zeros(count, dtype=bool), np.full(len(loaders), -1, dtype=np.int64)
    running = np.flatnonzero(graph.is_thread & np.isin(graph.kind, _RUNS))
    on_host = np.flatnonzero(np.isin(graph.resource, _ON_HOST))
    by_rank, by_process = RowsBy(graph.rank[running]), RowsBy(graph.process_id[on_host])
    compiles, pickles = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    waited: list[tuple[Int64, npt.NDArray[np.str_]]] = []
    for thread, steps in ranks:
        _run(index, thread, graph, running[by_rank.rows(thread.rank)], cpu, queued)
        at = on_host[by_process.rows(thread.process_id)]
        compiles[_inside(index, thread, graph, at, SpanKind.COMPILE)] = True
        pickles[_inside(index, thread, graph, at, SpanKind.OBJECTS)] = True
        nodes, of = _own_batches(index, thread, graph, at)
        if len(nodes):
            loader[nodes], batch[nodes] = number_of[of], fetches["batch_index"][of]
            _share_out(graph, nodes, fetches.take(of), GroupBy(of), cpu, queued)
        _wait_for_cpus(handoffs(index, thread), graph, at[graph.kind[at] == StallKind.HANDOFF], queued)
        nodes, of = _starting(index, thread, graph, at, loaders)
        loader[nodes], starts[nodes] = of, True
        waited.append(_waits_in_steps(index, thread, steps))

    rows, kinds = (np.concatenate(column) for column in zip(*waited, strict=True))
    ids, codes = serves(index.batches_of_phase(BatchPhase.WAIT).take(rows), kinds)
    known = loaders.find(ids)
    served[known[known >= 0]] = codes[known >= 0]
    trace, recorded = index.trace, recorded_samples(index.trace)
    host_codes = trace.processes.lookup("process_id", "host_code")
    host_of = {thread.rank: trace.text(host_codes[thread.process_id]) for thread, _ in ranks}
    moved = np.flatnonzero(graph.is_transfer)
    operations = trace.collectives.take(graph.row[moved])
    queues = GroupBy(operations["group_hash"])
    members, hosts, ring = (column[queues.number] for column in _groups(index, queues.values))
    cpus, cpus_outside_nodes = _free_cpus(index, ranks, graph, cpu, host_of)
    memory = np.zeros(count), np.full(count, np.inf)
    if reads:
        bounds = memory_bounds_ns(index, graph.process_id[made], graph.begin_ns[made], graph.end_ns[made])
        for column, values in zip(memory, bounds, strict=True):
            column[made] = values
    return Facts(
        loader=loader,
        batch=batch,
        starts=starts,
        compiles=compiles,
        pickles=pickles,
        serves=served,
        is_parted=np.array(
            [recorded.get(one, LoaderSamples()).is_iterable for one in loaders.values.tolist()], dtype=bool
        ),
        cpu_ns=cpu,
        queued_ns=queued,
        op=_column(count, moved, operations["op_code"]),
        members=_column(count, moved, members),
        hosts=_column(count, moved, hosts),
        is_ring=_column(count, moved, ring) > 0,
        queue=_column(count, moved, queues.number),
        host_of=host_of,
        cpus=cpus,
        cpus_outside_nodes=cpus_outside_nodes,
        memory_low_ns=memory[0],
        memory_high_ns=memory[1],
        samples=_samples(index, ranks, graph, recorded),
    )


def _inside(index: TraceIndex, thread: StepThread, graph: Graph, nodes: Int64, kind: SpanKind) -> Int64:
    """Return those of a thread's nodes in which it runs code inside spans of a kind."""
    time = time_of_spans(index, thread, kind)
    if not len(time):
        return nodes[:0]
    inside = time.within(graph.begin_ns[nodes], graph.begin_ns[nodes] + 1) > 0
    return nodes[inside & np.isin(graph.kind[nodes], (StallKind.PYTHON, StallKind.LAUNCH))]


def _own_batches(index: TraceIndex, thread: StepThread, graph: Graph, nodes: Int64) -> tuple[Int64, Int64]:
    """Return those of a thread's nodes in which it makes batches itself, and the row of the batch among the fetches.

    What a loader does around that, such as asking a sampler for the next indices, its main process does with workers,
    too.
    """
    fetches, rows = index.batches_of_phase(BatchPhase.FETCH), own_fetches(index, thread)
    at = window_at(graph.begin_ns[nodes], fetches["begin_ns"][rows], fetches["end_ns"][rows])
    return nodes[at >= 0], rows[at[at >= 0]]


def _starting(
    index: TraceIndex, thread: StepThread, graph: Graph, nodes: Int64, loaders: GroupBy
) -> tuple[Int64, Int64]:
    """Return those of a thread's nodes in which it starts workers or sees them end, with the iterator's number."""
    found = worker_starts(index, thread)
    if not len(found.loader_id):
        return nodes[:0], nodes[:0]
    at = found.at(graph.begin_ns[nodes])
    of = np.append(loaders.find(found.loader_id), -1)[at]
    return nodes[of >= 0], of[of >= 0]


def _waits_in_steps(index: TraceIndex, thread: StepThread, steps: Table) -> tuple[Int64, npt.NDArray[np.str_]]:
    """Return the waits for batches of a rank in its steps, as rows, and the kinds of these steps."""
    rank_steps, rows = steps.sort_by("begin_ns"), index.batch_waits.rows(thread.track_id)
    begin = index.batches_of_phase(BatchPhase.WAIT)["begin_ns"][rows]
    at = window_at(begin, rank_steps["begin_ns"], rank_steps["end_ns"])
    return rows[at >= 0], rank_steps["kind"][at[at >= 0]]


def _share_out(graph: Graph, nodes: Int64, batches: Table, of: GroupBy, cpu_ns: Int64, queued_ns: Int64) -> None:
    """Divide the CPU and run-queue time of each batch among the nodes in which a step thread made it.

    ``batches``: the batch of each node. ``of``: nodes by batch. ``cpu_ns``, ``queued_ns``: of all nodes; filled here
    for these.
    """
    known = batches["cpu_ns"] >= 0
    # A thread that is blocked in storage is on no CPU.
    work_ns = graph.end_ns[nodes] - graph.begin_ns[nodes]
    work = np.where(graph.kind[nodes] == StallKind.FETCH, 0, work_ns).astype(np.float64)
    part = work / np.maximum(of.sum(work)[of.number], 1.0) if len(nodes) else work
    ran = np.minimum(np.rint(part * batches["cpu_ns"]), work)
    stood = np.minimum(np.rint(part * np.maximum(batches["runqueue_ns"], 0)), work - ran)
    cpu_ns[nodes[known]], queued_ns[nodes[known]] = ran[known], stood[known]


def _wait_for_cpus(handed: Handoffs, graph: Graph, nodes: Int64, queued_ns: Int64) -> None:
    """Fill in how long the hand-offs that some nodes are waited for a CPU.

    A node may be only the end of one, when the thread was no longer blocked: the wait of the thread itself is
    part of it.
    """
    at = window_at(graph.begin_ns[nodes], handed.begin, handed.end)
    nodes, at = nodes[at >= 0], at[at >= 0]
    work = graph.end_ns[nodes] - graph.begin_ns[nodes]
    whole = np.bincount(at, weights=work, minlength=len(handed.begin))
    sending = (handed.queued - handed.own) * np.minimum(whole / np.maximum(handed.end - handed.begin, 1), 1.0)
    part = np.minimum((handed.own + sending) / np.maximum(whole, 1), 1.0)
    queued_ns[nodes] = np.rint(part[at] * work)


def _column(count: int, nodes: Int64, values: Int64) -> Int64:
    column = np.full(count, -1, dtype=np.int64)
    column[nodes] = values
    return column


def _free_cpus(
    index: TraceIndex,
    ranks: Sequence[tuple[StepThread, Table]],
    graph: Graph,
    cpu_ns: Int64,
    host_of: Mapping[int, str],
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the CPUs of each host less those used by anything but nodes in the steps, and the job's part of these."""
    begin = min(int(steps["begin_ns"].min()) for _, steps in ranks)
    end = max(int(steps["end_ns"].max()) for _, steps in ranks)
    inside = (graph.begin_ns >= begin) & (graph.end_ns <= end) & (cpu_ns > 0)
    known: dict[str, float] = {}
    ranks_inside = GroupBy(graph.rank[inside])
    spent = dict(zip(ranks_inside.values.tolist(), ranks_inside.sum(cpu_ns[inside]).tolist(), strict=True))
    for rank, host in host_of.items():
        known[host] = known.get(host, 0.0) + float(spent.get(rank, 0)) / max(end - begin, 1)
    free, cpus_outside_nodes = {}, {}
    for host, cpu in host_cpus(index.trace, (begin, end)).items():
        busy = cpu.count * cpu.busy_ratio
        of_nodes = min(known.get(host, 0.0), busy)
        # Other programs do not keep the CPUs from a thread of the job: a fair scheduler gives it its share.
        others = math.ceil(cpu.others_count) if cpu.others_count > POLICY.notable_others_ratio * cpu.count else 0
        share = min(cpu.count / (1 + others), 1.0) if others else 0.0
        free[host] = max(cpu.count - busy + of_nodes, share, 0.0)
        cpus_outside_nodes[host] = max(busy - cpu.others_count - of_nodes, 0.0)
    return free, cpus_outside_nodes


def _run(index: TraceIndex, thread: StepThread, graph: Graph, nodes: Int64, cpu: Int64, queued: Int64) -> None:
    """Divide the time that a thread waited for a CPU, in a phase or between two, among what it ran there, by length."""
    phases, rows = index.trace.phases, outer_phase_rows(index, thread)
    begin, end, first, last = (phases[name][rows] for name in _PHASE_COLUMNS)
    # Ends of phases, and of what lies between them, in turns, with the counter of the thread at each.
    edge, counter = np.stack([begin, end], axis=1).ravel(), np.stack([first, last], axis=1).ravel()
    work = graph.end_ns[nodes] - graph.begin_ns[nodes]
    at = np.searchsorted(edge, graph.begin_ns[nodes], side="right") - 1
    inside = (at >= 0) & (at < len(edge) - 1)
    waited = np.where((counter[:-1] >= 0) & (counter[1:] >= counter[:-1]), counter[1:] - counter[:-1], 0)
    # What it waited for a CPU to take a batch is no part of what it ran.
    handed = handoffs(index, thread)
    taken = np.searchsorted(edge, handed.begin, side="right") - 1
    known = (taken >= 0) & (taken < len(waited))
    waited = np.maximum(waited - np.bincount(taken[known], weights=handed.own[known], minlength=len(waited)), 0)
    whole = np.bincount(at[inside], weights=work[inside], minlength=len(waited))
    share = np.minimum(waited / np.maximum(whole, 1), 1.0)
    part = np.where(inside, np.append(share, 0.0)[np.where(inside, at, -1)], 0.0) * work
    queued[nodes] = np.rint(part).astype(np.int64)
    cpu[nodes] = work - queued[nodes]


def _groups(index: TraceIndex, groups: npt.NDArray[np.uint64]) -> tuple[Int64, Int64, Int64]:
    """Return members, hosts and whether it is a ring, of each group (-1 if unknown); a network namespace is a host."""
    trace = index.trace
    columns_of_process = (trace.processes[name].tolist() for name in ("process_id", "host_code", "netns_code"))
    places = {process: place for process, *place in zip(*columns_of_process, strict=True)}
    size, ring = {}, {}
    met: dict[int, set[tuple[int, ...]]] = {}
    for row in trace.groups.rows():
        group = row["group_hash"]
        size[group] = row["group_size"]
        met.setdefault(group, set()).add(tuple(places.get(row["process_id"], ())))
        ring[group] = int(any(name in trace.text(row["backend_code"]) for name in _RINGS))
    asked = groups.tolist()
    return (
        int64([size.get(group, -1) for group in asked]),
        int64([len(met[group]) if group in met else -1 for group in asked]),
        int64([ring.get(group, 0) for group in asked]),
    )


def _samples(
    index: TraceIndex, ranks: Sequence[tuple[StepThread, Table]], graph: Graph, by_loader: dict[int, LoaderSamples]
) -> np.ndarray:
    waits = index.batches_of_phase(BatchPhase.WAIT)
    column, by_rank = np.zeros(len(graph.ends)), RowsBy(graph.ends_rank)
    for thread, steps in ranks:
        mine = index.batch_waits.rows(thread.track_id)
        mine = mine[waits["batch_index"][mine] >= 0]
        rank_steps = steps.sort_by("begin_ns")
        samples, _ = step_samples(rank_steps, waits.take(mine), by_loader)
        if not len(samples):
            continue
        ends = by_rank.rows(thread.rank)
        at = GroupBy(rank_steps["step"]).row_of(graph.ends_step[ends])
        column[ends[at >= 0]] = samples[at[at >= 0]]
    return column


def memory_bounds_ns(index: TraceIndex, process: Int64, begin: Int64, end: Int64) -> tuple[Floats, Floats]:
    """Return the least and largest time that the waiting reads of each batch would have taken from memory.

    ``process``, ``begin``, ``end``: of batches that workers made. A process makes one batch at a time. Returns in ns,
    of each batch; 0 and infinity where there are no similar reads.
    """
    calls, batch = _waiting_reads(index, process, begin, end)
    if not len(calls):
        return np.zeros(len(begin)), np.full(len(begin), np.inf)
    size = index.io.result[calls]
    quick, slow = _by_size(index, size, np.unique(index.io.track[calls]))
    by_batch = GroupBy.numbered(batch, len(begin))
    # A batch with a read of unknown bounds has no upper bound.
    return by_batch.sum(quick * size), np.where(by_batch.sizes > 0, by_batch.sum(slow * size), np.inf)


def _waiting_reads(index: TraceIndex, process: Int64, begin: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Return rows of ``index.io`` that read and waited for storage inside a batch, and the batch of each."""
    rows, batches = [], []
    for number, mine in GroupBy(process).items():
        mine = mine[np.argsort(begin[mine], kind="stable")]
        places = index.io_by_process.rows(number)
        places = places[index.io.is_storage[places] & index.io.is_read[places] & (index.io.result[places] > 0)]
        at = window_around(index.io.begin[places], index.io.end[places], begin[mine], end[mine])
        rows.append(places[at >= 0])
        batches.append(mine[at[at >= 0]])
    none = np.empty(0, dtype=np.int64)
    return np.concatenate([none, *rows]), np.concatenate([none, *batches])


def _by_size(index: TraceIndex, size: Int64, tracks: npt.NDArray[np.int32]) -> tuple[Floats, Floats]:
    """Return the least and largest time in ns that a byte of each read takes from memory."""
    octaves = GroupBy(_octave(size))
    read_octave, per_byte, by_threads = _quiet_reads(index, octaves.values, tracks)
    quick, slow = np.zeros(len(octaves)), np.full(len(octaves), np.inf)
    for number, octave in enumerate(octaves.values.tolist()):
        similar = np.abs(read_octave - octave) <= POLICY.similar_octaves_count
        chosen = (
            similar & by_threads if np.count_nonzero(similar & by_threads) >= POLICY.enough_reads_count else similar
        )
        if np.count_nonzero(chosen) >= POLICY.enough_reads_count:
            quick[number], slow[number] = np.quantile(
                per_byte[chosen], (POLICY.quick_reads_ratio, POLICY.slow_reads_ratio)
            )
    return quick[octaves.number], slow[octaves.number]


def _quiet_reads(index: TraceIndex, octaves: Int64, tracks: npt.NDArray[np.int32]) -> tuple[Int64, Floats, Bools]:
    """Return octave of size, ns per byte and a mask of reads by these threads, of file reads that did not wait."""
    columns = [(np.empty(0, dtype=np.int64), np.empty(0), np.empty(0, dtype=bool))]
    looked = 0
    for piece in index.trace.io_pieces():
        read = np.isin(piece["op_code"], READ_OPS) & (piece["result_bytes"] > 0)
        rows = np.flatnonzero(read & ((piece["io_flags"] & (IO_WAITED | NOT_FILES | int(IoFlag.DIRECT))) == 0))
        octave = _octave(piece["result_bytes"][rows])
        similar = (octave >= octaves[0] - POLICY.similar_octaves_count) & (
            octave <= octaves[-1] + POLICY.similar_octaves_count
        )
        rows, octave = rows[similar], octave[similar]
        took = (piece["end_ns"] - piece["begin_ns"])[rows] / piece["result_bytes"][rows]
        columns.append((octave, took, np.isin(piece["track_id"][rows], tracks)))
        looked += len(piece)
        if looked >= POLICY.examined_calls_count:
            break
    octave, took, by_threads = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    return octave, took, by_threads


def _octave(size: Int64) -> Int64:
    return np.frexp(np.maximum(size, 1).astype(np.float64))[1].astype(np.int64)
