"""The critical path on graphs whose path and slack are known: by hand, and by lengthening each node of random ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from stashtrace.analysis.graph import EdgeKind, Graph, Resource
from stashtrace.analysis.graph.critical_path import Clocks, Course, Part, Pieces, rivals
from stashtrace.errors import MissingDataError
from stashtrace.schema.kinds import StallKind

Edge = tuple[int, int, EdgeKind, int]


def graph_of(
    nodes: Sequence[tuple[int, int, int]],
    edges: Sequence[Edge],
    ends: Sequence[tuple[int, int, int]],
    *,
    ends_lag_ns: int = 0,
) -> Graph:
    """Nodes (rank, begin, end), of which -1 is a transfer; edges; ends (node, rank, step)."""
    rank, begin, end = (np.array(column, dtype=np.int64) for column in zip(*nodes, strict=True))
    columns = list(zip(*edges, strict=True)) if edges else [(), (), (), ()]
    source, target, kind, lag = (np.array(column, dtype=np.int64) for column in columns)
    ready = np.full(len(nodes), np.iinfo(np.int64).min)
    np.maximum.at(ready, target, end[source] + lag)
    count, of_end = len(nodes), np.array(ends, dtype=np.int64).reshape(-1, 3)
    return Graph(
        rank=rank,
        step=np.full(count, -1),
        resource=np.where(rank < 0, int(Resource.TRANSFER), int(Resource.STEP_THREAD)),
        kind=np.where(rank < 0, int(StallKind.NETWORK), int(StallKind.COMPUTE)),
        process_id=rank,
        begin_ns=begin,
        end_ns=end,
        gap_ns=np.where(ready > np.iinfo(np.int64).min, np.maximum(begin - ready, 0), 0),
        fetch_ns=np.zeros(count, dtype=np.int64),
        moved_bytes=np.full(count, -1),
        row=np.full(count, -1),
        source=source.astype(np.int32),
        target=target.astype(np.int32),
        edge_kind=kind.astype(np.int8),
        lag_ns=lag,
        ends=of_end[:, 0].astype(np.int32),
        ends_rank=of_end[:, 1],
        ends_step=of_end[:, 2],
        ends_lag_ns=np.full(len(of_end), ends_lag_ns),
        ends_counted=np.ones(len(of_end), dtype=bool),
    )


#: Rank 1 enters last; after the transfer rank 0 takes longest. Node 5 is awaited by nobody.
NODES = [(0, 0, 10), (1, 0, 12), (-1, 12, 15), (0, 15, 20), (1, 15, 18), (0, 2, 9)]
EDGES: list[Edge] = [
    (0, 2, EdgeKind.MEMBER, 0),
    (1, 2, EdgeKind.MEMBER, 0),
    (2, 3, EdgeKind.RELEASE, 0),
    (2, 4, EdgeKind.RELEASE, 0),
    (0, 3, EdgeKind.PROGRAM, 0),
    (1, 4, EdgeKind.PROGRAM, 0),
]
ENDS = [(3, 0, 0), (4, 1, 0)]


def test_path_and_slack_by_hand() -> None:
    course = Course.of(graph_of(NODES, EDGES, ENDS))
    assert course.path.tolist() == [1, 2, 3]
    assert course.stop_ns == 20
    assert course.slack_ns.tolist() == [2, 0, 0, 0, 2, -1]


def test_what_nobody_waits_for_does_not_end_the_path() -> None:
    """A worker that makes batches which are never taken is done last, and holds up nobody."""
    course = Course.of(graph_of([*NODES, (1, 0, 99)], EDGES, ENDS))
    assert course.path.tolist() == [1, 2, 3]
    assert course.slack_ns[-1] == -1


def test_gaps_lags_and_the_time_behind_the_last_node_hold_the_path() -> None:
    nodes = [(0, 0, 10), (0, 13, 20), (0, 25, 30)]
    edges: list[Edge] = [(0, 1, EdgeKind.PROGRAM, 0), (1, 2, EdgeKind.PREFETCH, 5)]
    pieces = Pieces.of(Course.of(graph_of(nodes, edges, [(2, 0, 0)], ends_lag_ns=4)))
    assert [(Part(part).name, node) for part, node in zip(pieces.part.tolist(), pieces.node.tolist(), strict=True)] == [
        ("WORK", 0),
        ("GAP", 1),
        ("WORK", 1),
        ("LAG", 1),
        ("WORK", 2),
        ("LAG", 2),
    ]
    assert pieces.held_ns.tolist() == [10, 3, 7, 5, 5, 4]
    assert pieces.edge.tolist() == [-1, -1, -1, 1, -1, 2]  # the last one leads to the end of the run


def test_a_node_that_began_before_the_one_it_waited_for_had_ended() -> None:
    """A negative lag: from then on the later one holds the path, and no time is counted twice."""
    nodes = [(0, 0, 10), (0, 6, 20)]
    pieces = Pieces.of(Course.of(graph_of(nodes, [(0, 1, EdgeKind.PREFETCH, -4)], [(1, 0, 0)])))
    assert (pieces.node.tolist(), pieces.held_ns.tolist()) == ([0, 1], [6, 14])


def test_an_edge_that_the_times_contradict_does_not_move_the_path() -> None:
    """By its clock the second rank went on 3 ns before the transfer ended: the path is as measured all the same."""
    nodes = [(0, 0, 10), (-1, 10, 18), (1, 15, 30)]
    edges: list[Edge] = [(0, 1, EdgeKind.MEMBER, 0), (1, 2, EdgeKind.RELEASE, 0)]
    course = Course.of(graph_of(nodes, edges, [(2, 1, 0)]))
    assert course.path.tolist() == [0, 1, 2]
    assert Pieces.of(course).held_ns.tolist() == [10, 5, 15]
    assert course.slack_ns.tolist() == [0, 0, 0]


def test_a_cycle_does_not_keep_the_path_from_an_end() -> None:
    nodes = [(0, 0, 10), (-1, 8, 12), (1, 9, 11), (0, 12, 20)]
    edges: list[Edge] = [
        (0, 1, EdgeKind.MEMBER, 0),
        (1, 2, EdgeKind.PREFETCH, 0),
        (2, 1, EdgeKind.MEMBER, 0),
        (1, 3, EdgeKind.RELEASE, 0),
    ]
    course = Course.of(graph_of(nodes, edges, [(3, 0, 0)]))
    assert len(course.plan.cut()) == 1
    assert course.path.tolist()[-1] == 3
    assert Pieces.of(course).held_ns.sum() == 20 - course.ready_ns[course.path[0]]


def test_a_graph_without_an_end_is_refused() -> None:
    with pytest.raises(MissingDataError):
        Course.of(graph_of(NODES, EDGES, []))


def random_graph(seed: int) -> Graph:
    """Nodes on four threads, each after the one before it, a third of them after one of another thread, with gaps."""
    random = np.random.default_rng(seed)
    begin, end, rank, edges = [], [], [], []
    last: dict[int, int] = {}
    for node in range(60):
        mine = int(random.integers(4))
        before = [last[mine]] if mine in last else []
        if node and random.random() < 0.35:
            before.append(int(random.integers(node)))
        before = sorted(set(before))
        lags = [int(random.integers(-2, 4)) for _ in before]
        ready = max((end[b] + lag for b, lag in zip(before, lags, strict=True)), default=int(random.integers(10)))
        begin.append(ready + int(random.integers(3)) * bool(before))
        end.append(begin[-1] + int(random.integers(1, 20)))
        rank.append(mine)
        edges += [(b, node, EdgeKind.PROGRAM, lag) for b, lag in zip(before, lags, strict=True)]
        last[mine] = node
    ends = [(node, mine, 0) for mine, node in sorted(last.items()) if mine < 3]  # nobody asks when the fourth is done
    return graph_of(list(zip(rank, begin, end, strict=True)), edges, ends)


def end_of(graph: Graph, longer: int = 0, by_ns: int = 0) -> int:
    """End of the last step if one node takes longer: by a replay, which knows nothing of paths."""
    work = graph.work_ns.copy()
    work[longer] += by_ns
    return int(graph.replay(work_ns=work).end_ns[graph.ends].max())


@pytest.mark.parametrize("seed", range(12))
def test_slack_is_what_a_node_can_take_longer(seed: int) -> None:
    graph = random_graph(seed)
    course, stop = Course.of(graph), end_of(graph)
    assert course.stop_ns == stop
    assert (course.begin_ns[:-1] - course.ready_ns[:-1] == graph.gap_ns).all()
    assert (course.slack_ns[course.path] == 0).all()
    for node, slack in enumerate(course.slack_ns.tolist()):
        if slack < 0:
            assert end_of(graph, node, 10_000) == stop
        else:
            assert end_of(graph, node, slack) == stop
            assert end_of(graph, node, slack + 1) == stop + 1
    assert (course.slack_ns < 0).any()
    assert (course.slack_ns > 0).any()


@pytest.mark.parametrize("seed", range(12))
def test_the_pieces_are_the_path_without_a_hole(seed: int) -> None:
    course = Course.of(random_graph(seed))
    pieces = Pieces.of(course)
    assert pieces.begin_ns[0] == course.ready_ns[course.path[0]]
    assert (pieces.begin_ns[1:] == pieces.end_ns[:-1]).all()
    assert pieces.end_ns[-1] == course.stop_ns
    assert (pieces.held_ns > 0).all()
    moments = np.array([0, 17, 33, course.stop_ns // 2, course.stop_ns, 10**9])
    cut, former = pieces.cut(moments)
    assert cut.held_ns.sum() == pieces.held_ns.sum()
    assert np.isin(moments[(moments > pieces.begin_ns[0]) & (moments < course.stop_ns)], cut.begin_ns).all()
    assert (cut.node == pieces.node[former]).all()


def test_a_path_as_long_as_the_clocks_can_distinguish_is_a_rival() -> None:
    """Rank 0 entered 2 ns before rank 1. On one clock that is an order; on two that are 1 ns off each it is none."""
    graph = graph_of(NODES, EDGES, ENDS)
    course = Course.of(graph)
    pieces = Pieces.of(course)

    none = np.zeros(len(graph), dtype=np.int64)

    def found(error_ns: int, clock: Sequence[int]) -> list[tuple[int, int]]:
        clocks = Clocks(np.array(clock), np.full(len(graph), error_ns), none, graph.process_id, 0)
        overlaps = rivals(course, pieces, clocks)
        assert overlaps.ambiguous(pieces).tolist() == np.isin(pieces.node, pieces.node[overlaps.piece]).tolist()
        return list(zip(pieces.node[overlaps.piece].tolist(), overlaps.node.tolist(), strict=True))

    two, one = [0, 1, -1, 0, 1, 0], [0] * 6
    assert found(1, two) == [(1, 0), (3, 4)]
    assert found(0, two) == []
    assert found(1, one) == []


def test_what_two_ranks_did_at_one_moment_counts_as_hidden_once() -> None:
    """Ranks 1 and 2 work from 70 to 99 of the 100 ns of rank 0, rank 3 from 30 to 99 if there is one."""

    def ambiguous(*others: tuple[int, int]) -> list[bool]:
        nodes = [(0, 0, 100), *((rank, begin, 99) for rank, begin in others), (-1, 100, 120)]
        last = len(nodes) - 1
        edges = [(at, last, EdgeKind.MEMBER, 0) for at in range(last)]
        graph = graph_of(nodes, edges, [(last, 0, 0)])
        course, none = Course.of(graph), np.zeros(len(nodes), dtype=np.int64)
        hosts = np.append(np.arange(last), -1)
        clocks = Clocks(hosts, np.full(len(nodes), 1), none, graph.process_id, 0)
        pieces = Pieces.of(course)
        return rivals(course, pieces, clocks).ambiguous(pieces).tolist()

    assert ambiguous((1, 70), (2, 70)) == [False, False]
    assert ambiguous((1, 70), (2, 70), (3, 30)) == [True, False]


def test_clocks_that_two_nodes_share_do_not_disagree() -> None:
    """A thread and its device on host 0, another rank there; a rank on host 1 and its device; a transfer of both."""
    clocks = Clocks(
        host=np.array([0, 0, 0, 1, 1, -1]),
        host_error_ns=np.array([20, 20, 20, 500, 500, 500]),
        device_error_ns=np.array([0, 300, 0, 0, 400, 300]),
        process_id=np.array([0, 0, 1, 2, 2, -1]),
        reading_ns=20,
    )
    expected = {
        (0, 0): 0,
        (1, 1): 0,
        (0, 1): 2 * 20 + 300,
        (0, 2): 2 * 20,
        (0, 3): 20 + 500,
        (3, 4): 2 * 20 + 400,
        (1, 4): 20 + 500 + 300 + 400,
        (3, 5): 500 + 500 + 300,
    }
    first, second = (np.array(column) for column in zip(*expected, strict=True))
    assert clocks.apart_ns(first, second).tolist() == list(expected.values())
    assert clocks.apart_ns(second, first).tolist() == list(expected.values())
    assert clocks.widest_ns >= max(expected.values())
