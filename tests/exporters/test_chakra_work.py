"""How graphs are cut by ranks: graphs made by hand, with what recorded ones rarely have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from trace_rows import TraceBuilder

from stashtrace.analysis.graph import EdgeKind, Graph, Resource
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.exporters.chakra.export import columns_of
from stashtrace.exporters.chakra.work import IDLE, RankWork, rank_work
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.table import Table

#: (rank, resource, begin_us, end_us[, step]) of a node; (source, target, kind, lag_us) of an edge.
Node = tuple[int, ...]
Edge = tuple[int, int, EdgeKind, int]
THREAD, WORKER, TRANSFER = Resource.STEP_THREAD, Resource.WORKER, Resource.TRANSFER
PROGRAM, MEMBER, RELEASE = EdgeKind.PROGRAM, EdgeKind.MEMBER, EdgeKind.RELEASE
US = 1000


def in_steps(count: int, length_ns: int) -> Graph:
    """A rank whose thread does ``count`` pieces of work, each a step, and a collective after each."""
    nodes = [(0, (THREAD, TRANSFER)[at % 2], at, at + 1, at // 2) for at in range(2 * count)]
    edges = [(at, at + 1, (MEMBER, RELEASE)[at % 2], 0) for at in range(2 * count - 1)]
    made = graph(nodes, edges)
    begin = made.begin_ns // US * length_ns
    return replace(made, begin_ns=begin, end_ns=begin + length_ns)


def graph(nodes: Sequence[Node], edges: Sequence[Edge]) -> Graph:
    """Rows of transfers are those of :func:`collectives`; each rank's last node of a thread ends its only step."""
    columns = [np.array([node[at] for node in nodes], dtype=np.int64) for at in range(4)]
    rank, resource, begin, end = columns[0], columns[1], columns[2] * US, columns[3] * US
    transfer = resource == TRANSFER
    step = np.array([node[4] if len(node) > 4 else 0 for node in nodes], dtype=np.int64)
    ends = [int(np.flatnonzero((rank == r) & (resource == THREAD))[-1]) for r in np.unique(rank[~transfer]).tolist()]
    none = np.full(len(nodes), -1, dtype=np.int64)
    return Graph(
        rank=np.where(transfer, -1, rank),
        step=np.where((resource == THREAD), step, -1),
        resource=resource,
        kind=np.where(transfer, int(StallKind.NETWORK), int(StallKind.COMPUTE)),
        process_id=np.where(transfer, -1, rank),
        begin_ns=begin,
        end_ns=end,
        gap_ns=np.zeros(len(nodes), dtype=np.int64),
        fetch_ns=np.zeros(len(nodes), dtype=np.int64),
        moved_bytes=none,
        row=np.where(transfer, (np.cumsum(transfer) - 1) * len(ends), -1),
        source=np.array([e[0] for e in edges], dtype=np.int32),
        target=np.array([e[1] for e in edges], dtype=np.int32),
        edge_kind=np.array([int(e[2]) for e in edges], dtype=np.int8),
        lag_ns=np.array([e[3] * US for e in edges], dtype=np.int64),
        ends=np.array(ends, dtype=np.int32),
        ends_rank=rank[ends],
        ends_step=step[ends],
        ends_lag_ns=np.zeros(len(ends), dtype=np.int64),
        ends_counted=np.ones(len(ends), dtype=bool),
    )


def collectives(count: int) -> Table:
    """``count`` of ranks 0 and 1: rows 2 n and 2 n + 1 are the n-th; of a graph of one rank, take rank 0's."""
    build = TraceBuilder()
    for number in range(count):
        build.collective({0: (number, number + 1), 1: (number, number + 1)})
    return TraceIndex(build.trace()).trace.collectives.sort_by("sequence", "rank")


def listed(work: RankWork) -> list[tuple[int, int, int, int, list[int]]]:
    """(rank, resource, duration_us, idle_us, places of what it waits for in its rank)."""
    first = np.searchsorted(work.rank, work.rank)
    return [
        (
            int(work.rank[i]),
            int(work.resource[i]),
            int(work.duration_ns[i]) // US,
            int(work.idle_ns[i]) // US,
            (work.needs[work.needs_first[i] : work.needs_first[i + 1]] - first[i]).tolist(),
        )
        for i in range(len(work))
    ]


def test_runs_become_one_node_where_no_dependency_changes() -> None:
    """0-1-2-3 in a row; the batch 4 is taken by 2, so 1 and 2 stay apart, and 0 and 1, 2 and 3 become one."""
    nodes = [(0, THREAD, 0, 1), (0, THREAD, 1, 3), (0, THREAD, 3, 6), (0, THREAD, 6, 10), (0, WORKER, 0, 2)]
    edges = [(0, 1, PROGRAM, 0), (1, 2, PROGRAM, 0), (2, 3, PROGRAM, 0), (4, 2, EdgeKind.BATCH, 0)]
    found = rank_work(graph(nodes, edges), collectives(0), workers=True)
    assert sorted(listed(found)) == [(0, THREAD, 3, 0, []), (0, THREAD, 7, 0, [0, 1]), (0, WORKER, 2, 0, [])]


def test_a_batch_that_nothing_leads_to_follows_the_work_before_it() -> None:
    nodes = [(0, THREAD, 0, 10, 0), (0, THREAD, 10, 30, 1), (0, WORKER, 14, 22)]
    found = rank_work(graph(nodes, [(0, 1, PROGRAM, 0)]), collectives(0), workers=True)
    assert listed(found)[0] == (0, THREAD, 10, 0, [])
    assert sorted(listed(found)[1:]) == [(0, THREAD, 20, 0, [0]), (0, WORKER, 12, 4, [0])]


def test_a_late_call_is_a_node_before_the_collective() -> None:
    """Rank 1 calls 4 us after its work ended; a part of a collective has no separate idle time."""
    nodes = [(0, THREAD, 0, 10), (1, THREAD, 0, 20), (0, TRANSFER, 24, 30), (0, THREAD, 30, 31), (1, THREAD, 30, 31)]
    edges = [
        (0, 2, MEMBER, 0),
        (1, 2, MEMBER, 4),
        (0, 3, PROGRAM, 0),
        (1, 4, PROGRAM, 0),
        (2, 3, RELEASE, 0),
        (2, 4, RELEASE, 0),
    ]
    found = rank_work(graph(nodes, edges), collectives(1))
    mine = [row[1:] for row in listed(found) if row[0] == 1]
    assert mine == [(THREAD, 20, 0, []), (THREAD, 4, 4, [0]), (TRANSFER, 6, 0, [1]), (THREAD, 1, 0, [0, 2])]
    assert found.kind[found.rank == 1].tolist()[1] == IDLE
    # Whoever comes last, the transfer begins so much later.
    assert [row[1:4] for row in listed(found) if row[0] == 0][:2] == [(THREAD, 10, 0), (THREAD, 4, 4)]


def test_work_before_the_noted_end_of_a_collective_keeps_its_end() -> None:
    """The thread of rank 0 went on at 28, the end was noted at 30: 3 us of work become 1."""
    nodes = [(0, THREAD, 0, 10), (1, THREAD, 0, 20), (0, TRANSFER, 20, 30), (0, THREAD, 28, 31), (1, THREAD, 30, 31)]
    edges = [
        (0, 2, MEMBER, 0),
        (1, 2, MEMBER, 0),
        (0, 3, PROGRAM, 0),
        (1, 4, PROGRAM, 0),
        (2, 3, RELEASE, -2),
        (2, 4, RELEASE, 0),
    ]
    found = rank_work(graph(nodes, edges), collectives(1))
    assert listed(found)[2] == (0, THREAD, 1, 0, [0, 1])


def test_a_transfer_before_the_noted_end_of_what_enters_it_keeps_its_end() -> None:
    nodes = [(0, THREAD, 0, 10), (1, THREAD, 0, 20), (0, TRANSFER, 17, 30)]
    found = rank_work(graph(nodes, [(0, 2, MEMBER, 0), (1, 2, MEMBER, -3)]), collectives(1))
    assert listed(found) == [
        (0, THREAD, 10, 0, []),
        (0, TRANSFER, 10, 0, [0]),
        (1, THREAD, 20, 0, []),
        (1, TRANSFER, 10, 0, [0]),
    ]


def test_what_began_long_before_its_cause_ended_waits_for_an_earlier_cause() -> None:
    """The batch was asked for 100 us before the end of the node that is said to ask, so it waits for the one before."""
    nodes = [(0, THREAD, 0, 50, 0), (0, THREAD, 50, 250, 1), (0, WORKER, 150, 300), (0, THREAD, 300, 310, 2)]
    edges = [(0, 1, PROGRAM, 0), (1, 3, PROGRAM, 0), (1, 2, EdgeKind.PREFETCH, -100), (2, 3, EdgeKind.BATCH, 0)]
    found = rank_work(graph(nodes, edges), collectives(0), workers=True)
    assert (0, WORKER, 250, 100, [0]) in listed(found)
    # Two nodes back, if the one before had not ended by then either.
    nodes = [
        (0, THREAD, 0, 50, 0),
        (0, THREAD, 50, 100, 1),
        (0, THREAD, 100, 160, 2),
        (0, THREAD, 160, 250, 3),
        (0, WORKER, 120, 300),
    ]
    edges = [(0, 1, PROGRAM, 0), (1, 2, PROGRAM, 0), (2, 3, PROGRAM, 0), (3, 4, EdgeKind.PREFETCH, -130)]
    found = rank_work(graph(nodes, edges), collectives(0), workers=True)
    assert (0, WORKER, 200, 20, [1]) in listed(found)


def test_a_difference_that_clocks_can_make_moves_nothing() -> None:
    nodes = [(0, THREAD, 0, 50, 0), (0, THREAD, 50, 250, 1), (0, WORKER, 150, 300), (0, THREAD, 300, 310, 2)]
    edges = [(0, 1, PROGRAM, 0), (1, 3, PROGRAM, 0), (1, 2, EdgeKind.PREFETCH, -5), (2, 3, EdgeKind.BATCH, 0)]
    nodes[2] = (0, WORKER, 245, 300)
    found = rank_work(graph(nodes, edges), collectives(0), workers=True)
    assert (0, WORKER, 50, 0, [1]) in listed(found)


@pytest.mark.parametrize("length_ns", [400, 600, 1_400, 1_600])
def test_microseconds_add_up(length_ns: int) -> None:
    """Each piece is rounded to the one or the other microsecond, the sum of all before it to the nearest."""
    work = rank_work(in_steps(20, length_ns), collectives(20).take(np.arange(0, 40, 2)))
    found = np.array(columns_of(work)["duration"])
    threads = np.flatnonzero(work.resource == THREAD)
    wanted = np.arange(1, 21) * length_ns / 1000
    assert np.abs(np.cumsum(found[threads]) - wanted).max() <= 0.5
    assert set(found[work.resource == TRANSFER].tolist()) == {max(round(length_ns / 1000), 1)}


def test_cycles_are_cut_and_counted() -> None:
    nodes = [(0, THREAD, 0, 10, 0), (0, THREAD, 10, 20, 1), (0, THREAD, 20, 30, 2)]
    edges = [(0, 1, PROGRAM, 0), (1, 2, PROGRAM, 0), (2, 0, EdgeKind.PREFETCH, 0)]
    found = rank_work(graph(nodes, edges), collectives(0))
    assert listed(found) == [(0, THREAD, 10, 0, []), (0, THREAD, 10, 0, [0]), (0, THREAD, 10, 0, [1])]
    assert found.dropped.cycle_edges_count == 1


def test_edges_to_other_ranks_are_counted_and_the_wait_is_kept() -> None:
    nodes = [(0, THREAD, 0, 10), (1, THREAD, 0, 4, 0), (1, THREAD, 10, 15, 1)]
    found = rank_work(graph(nodes, [(1, 2, PROGRAM, 0), (0, 2, EdgeKind.QUEUE, 0)]), collectives(0))
    assert listed(found)[-1] == (1, THREAD, 11, 6, [0])
    assert found.dropped.foreign_edges_count == 1


def test_collectives_of_one_queue_keep_their_order_in_each_rank() -> None:
    nodes = [(0, THREAD, 0, 5), (1, THREAD, 0, 5), (0, TRANSFER, 5, 9), (0, TRANSFER, 9, 12)]
    edges = [(r, t, MEMBER, 0) for t in (2, 3) for r in (0, 1)] + [(2, 3, EdgeKind.QUEUE, 0)]
    found = rank_work(graph(nodes, edges), collectives(2))
    for rank in (0, 1):
        mine = [row[1:] for row in listed(found) if row[0] == rank]
        assert mine == [(THREAD, 5, 0, []), (TRANSFER, 4, 0, [0]), (TRANSFER, 3, 0, [0, 1])]
