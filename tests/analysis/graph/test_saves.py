"""Checkpoints in the background: nodes with their starts and joins, on drawn runs and on a real job."""

from __future__ import annotations

import numpy as np
import pytest
from builders import MS, trace_from_text

import stashtrace
from stashtrace.analysis.graph import EdgeKind, Graph, Resource, build
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.errors import MissingDataError
from stashtrace.exporters.chakra.work import rank_work
from stashtrace.replay import Change, slowdown_of, what_if
from stashtrace.schema.kinds import StallKind

#: Steps of 4 ms; behind the first one a thread writes for 12 ms, and behind the third one the step thread waits for it.
WAITED = """
rank 0 phase      : FBBOFBBOFBBO....FBBOFBBO
rank 0 cpu        : xxxxxxxxxxxx....xxxxxxxx
rank 0 background : ....CCCCCCCCCCCC
rank 0 wait       : ............cccc
"""
UNSEEN = WAITED.replace("CCCCCCCCCCCC", "............")
#: Nobody waits for the save, and the last one outlives the run.
ASIDE = """
rank 0 phase      : FBBOFBBOFBBOFBBO
rank 0 cpu        : xxxxxxxxxxxxxxxx
rank 0 background : .....CCCCCC..CCCCCC
"""


def graph_of(text: str) -> Graph:
    return build(trace_from_text(text))


def saves_of(graph: Graph) -> np.ndarray:
    return np.flatnonzero(graph.resource == Resource.CHECKPOINT)


def edges_ms(graph: Graph, kind: EdgeKind) -> list[tuple[float, float, float]]:
    """End of the source, begin of the target, and the lag of each edge of a kind."""
    chosen = graph.edge_kind == kind
    source, target = graph.source[chosen], graph.target[chosen]
    columns = graph.end_ns[source], graph.begin_ns[target], graph.lag_ns[chosen]
    return [(a / MS, b / MS, c / MS) for a, b, c in zip(*(column.tolist() for column in columns), strict=True)]


def total_ms(graph: Graph, text: str) -> float:
    """When the last step ends with a change."""
    change = Change.parse(text)
    work = graph.work_ns * np.where((graph.kind == StallKind.COMPUTE), change.factor, 1.0)
    return int(graph.replay(work.astype(np.int64)).end_ns[graph.ends].max()) / MS


def test_a_save_is_a_node_between_who_asked_and_who_waits() -> None:
    graph = graph_of(WAITED)
    saves = saves_of(graph)
    assert (graph.begin_ns[saves] / MS).tolist() == [4]
    assert (graph.work_ns[saves] / MS).tolist() == [12]
    assert set(graph.kind[saves].tolist()) == {StallKind.CHECKPOINT}
    assert edges_ms(graph, EdgeKind.START) == [(4, 4, 0)]
    assert edges_ms(graph, EdgeKind.JOIN) == [(16, 16, 0)]
    threads = graph.resource == Resource.STEP_THREAD
    assert graph.work_ns[threads].sum() == 20 * MS  # the wait is not a node
    assert graph.gap_ns.sum() == 0
    assert (graph.step_ns(graph.replay()) == graph.measured_step_ns).all()


def test_a_wait_for_a_save_follows_from_it() -> None:
    """Twice as fast, the save begins at 2 ms and ends at 14: the wait is longer. Half as fast, none is left."""
    graph = graph_of(WAITED)
    assert total_ms(graph, "compute=x0.5") == 2 + 12 + 4
    assert total_ms(graph, "compute=x2") == 40
    assert total_ms(graph_of(UNSEEN), "compute=x0.5") == 10 + 4  # what was waited for is not known: it stays


def test_a_step_waits_for_the_save_in_its_budget() -> None:
    answer = what_if(graph_of(WAITED), [Change.parse("compute=x0.5")])
    assert answer.before_ns["save"] > 0
    assert answer.after_ns["save"] > answer.before_ns["save"]
    assert answer.before_ns["other"] == 0


def test_without_checkpoints_no_step_waits_for_one() -> None:
    """Steps of 4 ms of which one waited 4 ms more; half of the save is done before the wait."""
    graph = graph_of(WAITED)
    for change in ("checkpoint=0", "checkpoint=x0.5"):
        answer = what_if(graph, [Change.parse(change)])
        assert answer.low_ns == answer.high_ns == 4 * MS
        assert answer.after_ns["save"] == 0
    with pytest.raises(MissingDataError, match="no checkpoint that stopped a step"):
        what_if(graph_of(ASIDE), [Change.parse("checkpoint=0")])


def test_the_critical_path_goes_through_a_save_that_was_waited_for() -> None:
    trace = trace_from_text(WAITED)
    path = stashtrace.analyze(trace, "critical_path")
    save = path.take(path["resource"] == "checkpoint")
    assert (set(save["kind"].tolist()), set(save["name"].tolist())) == ({"checkpoint"}, {"checkpoint"})
    assert save["held_ns"].sum() == 12 * MS
    assert path["held_ns"].sum() == 24 * MS
    slack = stashtrace.analyze(trace, "slack")
    meanwhile = (slack["resource"] == "step_thread") & (slack["begin_ns"] >= 4 * MS) & (slack["begin_ns"] < 12 * MS)
    assert set((slack["slack_ns"][meanwhile] / MS).tolist()) == {4.0}
    assert slack["slack_ns"][slack["resource"] == "checkpoint"].tolist() == [0]


def test_saves_that_nobody_waits_for_change_nothing() -> None:
    text = "\n".join(line for line in ASIDE.splitlines() if "background" not in line)
    with_saves, without = graph_of(ASIDE), graph_of(text)
    assert len(saves_of(with_saves)) == 2
    for change in ("compute=x0.5", "compute=x2"):
        one, other = (what_if(graph, [Change.parse(change)]) for graph in (with_saves, without))
        assert (one.low_ns, one.high_ns, one.after_ns) == (other.low_ns, other.high_ns, other.after_ns)
    slack = stashtrace.analyze(trace_from_text(ASIDE), "slack")
    assert slack["slack_ns"][slack["resource"] == "checkpoint"].tolist() == [-1, -1]
    names = stashtrace.analyze(trace_from_text(ASIDE), "critical_share")["resource"]
    assert "checkpoint" not in names.tolist()


def test_saves_of_one_thread_are_a_queue() -> None:
    """The second one begins as the first one ends: it was asked for at some time before."""
    text = ASIDE.replace(".....CCCCCC..CCCCCC", ".....CCCCCC")
    trace = trace_from_text(text)
    first = trace.phases["phase_code"] == 5
    columns = {
        name: np.concatenate([trace.phases[name], trace.phases[name][first]]) for name in trace.phases.schema.names
    }
    columns["begin_ns"][-1], columns["end_ns"][-1] = 11 * MS, 14 * MS
    graph = build(trace.replace(phases=type(trace.phases)(trace.phases.schema, columns)))
    saves = saves_of(graph)
    assert len(saves) == 2
    program = np.isin(graph.target, saves) & (graph.edge_kind == EdgeKind.PROGRAM)
    assert graph.source[program].tolist() == [saves[0]]
    assert graph.target[program].tolist() == [saves[1]]
    assert len(edges_ms(graph, EdgeKind.START)) == 1


@pytest.mark.parametrize(
    ("what", "wait"),
    [
        ("too late", "............ccccc..."),
        ("begun later", "...............c...."),
        ("another call", "............ssss...."),
    ],
)
def test_other_waits_are_not_for_the_save(what: str, wait: str) -> None:
    text = WAITED.replace("............cccc", wait)
    if what == "too late":  # 10 ms behind the save
        text = text.replace("FBBO....FBBOFBBO", "FBBO..............FBBOFBBO").replace("ccccc...", "cccccccccccccc")
        text = text.replace("xxxx....xxxxxxxx", "xxxx..............xxxxxxxx")
    if what == "begun later":
        text = text.replace("CCCCCCCCCCCC", "CCCCCCCCCCC.")
    graph = graph_of(text)
    assert len(saves_of(graph)) == 1
    assert edges_ms(graph, EdgeKind.JOIN) == []


def test_other_uses_of_graphs_leave_saves_out() -> None:
    """Two ranks, of which one writes in the background: it is no slower for that, and no export has more work."""
    other = "\n".join(line for line in ASIDE.splitlines() if "background" not in line)
    traces = [trace_from_text(text + other.replace("rank 0", "rank 1")) for text in (ASIDE, other)]
    graphs = [build(trace) for trace in traces]
    tables = [slowdown_of(graph) for graph in graphs]
    assert all((tables[0][name] == tables[1][name]).all() for name in tables[0].schema.names)
    tables = [TraceIndex(trace).trace.collectives for trace in traces]
    written = [rank_work(graph, table, workers=True) for graph, table in zip(graphs, tables, strict=True)]
    assert written[0].duration_ns.sum() == written[1].duration_ns.sum()
    assert len(written[0]) >= len(written[1]) > 0


def test_an_export_without_saves_keeps_the_waits_for_them() -> None:
    trace = trace_from_text(WAITED)
    written = rank_work(build(trace), TraceIndex(trace).trace.collectives, workers=True)
    assert written.duration_ns.sum() == 24 * MS
    assert written.idle_ns.sum() == 4 * MS
    assert Resource.CHECKPOINT not in written.resource
