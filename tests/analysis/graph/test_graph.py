"""The graph of a run: its replay is the run, and what is made shorter changes what the edges let it change."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from builders import MS, trace_from_text
from summary.scenes import job

from stashtrace._native import graph as native
from stashtrace.analysis.graph import EdgeKind, Graph, Resource, build
from stashtrace.errors import MissingDataError

#: Two ranks, rank 1 is late by 3 ms in each step; a transfer takes 2 ms.
LATE = """
rank 0 phase : FBBBBBBO|FBBBBBBO|FBBBBBBO
rank 0 cpu   : xx.....x|xx.....x|xx.....x
rank 0 coll  : ..00000...11111...22222
rank 0 block : ..00000...11111...22222
rank 1 phase : FBBBBBBO|FBBBBBBO|FBBBBBBO
rank 1 cpu   : xxxxx..x|xxxxx..x|xxxxx..x
rank 1 coll  : .....00......11......22
rank 1 block : .....00......11......22
"""
#: One worker takes 4 ms for a batch, the step needs 2 ms for one.
LOADED = """
rank 0 loader   : 0000..11..22..33..
rank 0 worker 0 : 000011112222333344445555
rank 0 phase    : ....FO..FO..FO..FO
rank 0 cpu      : ....xx..xx..xx..xx
"""


def drawn(text: str) -> Graph:
    return build(trace_from_text(text.replace("|", "")))


def steps_ms(graph: Graph, **lengths: np.ndarray) -> dict[int, list[float]]:
    """Lengths of the steps of each rank but the first, by a replay."""
    found = graph.step_ns(graph.replay(**lengths)) / MS
    return {r: found[(graph.ends_rank == r) & (found > 0)].tolist() for r in np.unique(graph.ends_rank).tolist()}


@pytest.mark.parametrize("text", [LATE, LOADED])
def test_the_replay_is_the_run(text: str) -> None:
    graph = drawn(text)
    replayed = graph.replay()
    assert replayed.begin_ns.tolist() == (graph.begin_ns - graph.gap_ns).tolist()
    assert (graph.step_ns(replayed) == graph.measured_step_ns).all()
    assert graph.gap_ns[graph.step > 0].sum() == 0


def test_the_replay_of_a_job_of_many_steps_is_the_job() -> None:
    for run in (job(sleep={1: 20}), job(prep={0: 40}, workers=2), job(ranks=4, fetch={2: 30})):
        graph = build(run[1])
        assert (graph.step_ns(graph.replay()) == graph.measured_step_ns).all()
        assert len(graph.plan.cut()) == 0


@pytest.mark.parametrize("text", [LATE, LOADED])
def test_of_hosts_every_edge_is_fixed(text: str) -> None:
    """Who enters a collective last a replay finds out; that all of them have to enter it is not a choice."""
    graph = drawn(text)
    assert len(graph.decided) == len(graph.source) > 0
    assert not graph.decided.any()


def test_a_faster_link_shortens_what_waits_for_it() -> None:
    graph = drawn(LATE)
    shorter = np.where(graph.resource == Resource.TRANSFER, graph.work_ns // 2, graph.work_ns)
    assert steps_ms(graph, work_ns=shorter) == {0: [7, 7], 1: [7, 7]}


def test_a_hidden_transfer_costs_nothing_until_nothing_hides_it() -> None:
    text = """
    rank 0 phase : FBBBBO|FBBBBO|FBBBBO
    rank 0 cpu   : xxxxxx|xxxxxx|xxxxxx
    rank 0 coll  : .00....11....22
    rank 0 block : ...............
    rank 1 phase : FBBBBO|FBBBBO|FBBBBO
    rank 1 cpu   : xxxxxx|xxxxxx|xxxxxx
    rank 1 coll  : .00....11....22
    """
    graph = drawn(text)
    longer = np.where(graph.resource == Resource.TRANSFER, 2 * graph.work_ns, graph.work_ns)
    assert steps_ms(graph) == {0: [6, 6], 1: [6, 6]}
    # Nobody was seen to wait for them, so nobody does.
    assert steps_ms(graph, work_ns=longer) == {0: [6, 6], 1: [6, 6]}


def test_workers_are_asked_when_batches_are_taken() -> None:
    """A worker that waits for an index is not faster for being free."""
    graph = drawn(LOADED)
    kinds = {EdgeKind(k) for k in graph.edge_kind.tolist()}
    assert {EdgeKind.BATCH, EdgeKind.PREFETCH} <= kinds
    binding = graph.replay().binding[graph.is_batch]
    assert EdgeKind.PREFETCH not in graph.edge_kind[binding[binding >= 0]]  # it never had to wait


def test_a_cycle_is_cut_at_its_least_certain_edge() -> None:
    source, target = np.array([0, 1, 2], dtype=np.int32), np.array([1, 2, 0], dtype=np.int32)
    plan = native.Plan(source, target, np.array([0, 10, 20]), np.array([-1, -2, -5], dtype=np.int8))
    assert plan.cut().tolist() == [2]
    assert plan.order().tolist() == [0, 1, 2]
    begin, binding = plan.replay(np.zeros(3, dtype=np.int64), np.array([5, 5, 5]), np.zeros(3, dtype=np.int64))
    assert (begin.tolist(), binding.tolist()) == ([0, 5, 10], [-1, 0, 1])


def test_edges_of_no_node_are_refused() -> None:
    with pytest.raises(ValueError, match="no node"):
        native.Plan(
            np.array([7], dtype=np.int32),
            np.array([0], dtype=np.int32),
            np.zeros(2, dtype=np.int64),
            np.zeros(1, dtype=np.int8),
        )


def test_a_plan_keeps_its_edges_when_the_arrays_it_was_made_of_change() -> None:
    """In a separate process: edges of no node would end it."""
    code = """
import numpy as np
from stashtrace._native import graph
edges = [np.array(ends, dtype=np.int32) for ends in ([0, 1], [1, 2])]
plan = graph.Plan(*edges, np.zeros(3, dtype=np.int64), np.zeros(2, dtype=np.int8))
for ends in edges:
    ends[:] = 2**30
begin, _ = plan.replay(np.zeros(3, dtype=np.int64), np.full(3, 5), np.zeros(2, dtype=np.int64))
print(begin.tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[0, 5, 10]\n")


def test_no_steps() -> None:
    with pytest.raises(MissingDataError):
        build(trace_from_text("rank 0 io : bb"))
