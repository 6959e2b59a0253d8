"""The graph of a pipeline's operations: its replay is the run, its waits follow from its edges."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from corpus import corpus, reference
from pipeline_files import Row, load, two_stages, write

from stashtrace.analysis.graph import PipelineGraph, Resource, build
from stashtrace.errors import MissingDataError
from stashtrace.replay import Ideal

SECOND = 1_000_000_000


def graph_of(path: Path, rows: list[Row]) -> PipelineGraph:
    graph = build(load(write(path / "trace-X.parquet", rows)))
    assert isinstance(graph, PipelineGraph)
    assert len(graph.plan.cut()) == 0
    return graph


def replayed_s(graph: PipelineGraph, **lengths: float) -> list[float]:
    """Steps of the job if each operation of a name took this number of seconds."""
    work = graph.work_ns.copy()
    for name, seconds in lengths.items():
        work[graph.operation == graph.operations.index(name.replace("_", "-"))] = round(seconds * SECOND)
    return (Ideal(graph).steps_ns(work) / SECOND).round(3).tolist()


def test_only_work_has_a_length(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, two_stages({(1, 0): 2.0}))
    lengths = {
        name: sorted(set((graph.work_ns[graph.operation == code] / SECOND).round(4).tolist()))
        for code, name in enumerate(graph.operations)
    }
    assert lengths == {
        "forward-compute": [1.0, 2.0],
        "backward-compute": [2.0, 4.0],
        "optimizer": [0.25],
        "forward-send": [0.125],
        "forward-recv": [0.125],
        "backward-send": [0.125],
        "backward-recv": [0.125],
        "grads-reduce-scatter": [0.5],
    }
    assert graph.gap_ns.max() < 10_000  # times of the file are 32-bit floats
    assert graph.stage_of == {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 1, 7: 1}
    assert graph.replica_of == {rank: rank % 4 for rank in range(8)}


def test_the_replay_is_the_run(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, two_stages({(1, 0): 2.0}))
    whole = Ideal(graph)
    assert whole.steps.tolist() == [0, 1, 2]
    assert whole.measured_ns == pytest.approx(np.full(3, 10.0 * SECOND), rel=1e-5)
    assert whole.replayed_ns == pytest.approx(whole.measured_ns, rel=1e-5)
    assert graph.step_ns(graph.replay()) == pytest.approx(graph.measured_step_ns, rel=1e-5)


def test_who_waits_for_whom(tmp_path: Path) -> None:
    """A step of 7 s; of what is longer, what the edges let through."""
    graph = graph_of(tmp_path, two_stages({}))
    assert replayed_s(graph) == [7.0] * 3
    assert replayed_s(graph, forward_compute=2.0) == [9.0] * 3
    assert replayed_s(graph, forward_recv=1.125) == [8.0] * 3
    assert replayed_s(graph, forward_send=1.125) == [7.0] * 3  # nobody waits for the sender
    assert replayed_s(graph, backward_recv=1.125) == [8.0] * 3
    assert replayed_s(graph, grads_reduce_scatter=1.5) == [8.0] * 3


def one_rank(*rows: tuple[int, str, float, float]) -> list[Row]:
    """Rows of (number, operation, begin, end) on two equal replicas, so that nobody waits."""
    return [(0, replica, 0, name, begin, end, number) for replica in (0, 1) for number, name, begin, end in rows]


def test_what_runs_parallel_to_the_compute_stream_does_not_hold_it_up(tmp_path: Path) -> None:
    """The first reduction runs during the second backward pass; the optimizer waits for both reductions."""
    rows = one_rank(
        (0, "params-all-gather", 0.0, 0.5),
        (0, "forward-compute", 0.5, 1.5),
        (0, "backward-compute", 1.5, 2.5),
        (0, "grads-reduce-scatter", 2.5, 3.0),
        (1, "backward-compute", 2.5, 3.5),
        (1, "grads-reduce-scatter", 3.5, 4.0),
        (0, "optimizer", 4.0, 4.5),
    )
    graph = graph_of(tmp_path, rows)
    reductions = (graph.resource == Resource.COMMUNICATION_STREAM) & (graph.rank == 0)
    assert (graph.begin_ns[reductions] / SECOND).tolist() == [2.5]
    assert replayed_s(graph) == [4.5]
    assert replayed_s(graph, params_all_gather=1.0) == [5.0]
    assert replayed_s(graph, grads_reduce_scatter=0.75) == [4.75]
    # 2.5 to 4.0, then the second one, which has the same stream: to 5.5.
    assert replayed_s(graph, grads_reduce_scatter=1.5) == [6.0]


def test_a_send_and_a_receive_of_one_kernel_end_together(tmp_path: Path) -> None:
    """Stage 0 sends and receives in one kernel: what it sent is delivered when it has been sent to, as well."""
    rows: list[Row] = []
    for replica in (0, 1):
        rows += [
            (0, replica, 0, "forward-compute", 0.0, 1.0, 0),
            (0, replica, 0, "forward-send", 1.0, 3.25, 0),
            (0, replica, 0, "backward-recv", 1.0, 3.25, 0),
            (0, replica, 1, "forward-recv", 0.0, 1.25, 0),
            (0, replica, 1, "forward-compute", 1.25, 2.0, 0),
            (0, replica, 1, "backward-compute", 2.0, 3.0, 0),
            (0, replica, 1, "backward-send", 3.0, 3.25, 0),
            (0, replica, 0, "backward-compute", 3.25, 4.25, 0),
        ]
    graph = graph_of(tmp_path, rows)
    sends = graph.operation == graph.operations.index("forward-send")
    assert (graph.work_ns[sends] / SECOND).round(4).tolist() == [0.25, 0.25]
    assert replayed_s(graph) == [4.25]


@pytest.mark.parametrize("only_stage", [None, 1])
def test_meetings_that_nobody_recorded(tmp_path: Path, only_stage: int | None) -> None:
    """Replica 1 is slow; all ranks, or those of stage 1 alone, enter the norm 20 ms after its backward pass."""
    rows: list[Row] = []
    for step in range(4):
        for replica, slow in ((0, 1.0 + step / 8), (1, 3.0)):
            for stage in (0, 1):
                computed = slow + stage / 4
                met = 3.0 + (stage if only_stage is not None else 1) / 4 + 0.02
                entered = met if only_stage in (None, stage) else computed
                rows += [
                    (step, replica, stage, "backward-compute", 0.0, computed, 0),
                    (step, replica, stage, "layernorm-grads-all-reduce", entered, entered + 0.125, 0),
                    (step, replica, stage, "optimizer", entered + 0.125, entered + 0.25, 0),
                ]
    graph = graph_of(tmp_path, rows)
    moments = (graph.resource == Resource.MEETING) & (graph.step >= 0)
    steps, inferred = 4, int(moments.sum()) - 4
    assert inferred == steps
    assert graph.gap_ns[graph.resource == Resource.COMPUTE_STREAM].max() <= 21_000_000
    work = graph.work_ns.copy()
    # Rank 3 is as fast as it can be: then rank 2 waits for rank 1 where all meet, and for nobody in its stage.
    work[(graph.rank == 3) & (graph.operation == graph.operations.index("backward-compute"))] = SECOND
    updates = (graph.rank == 2) & (graph.step == 0) & (graph.operation == graph.operations.index("optimizer"))
    ended = graph.replay(work - graph.gap_ns).end_ns[updates]
    expected = 3.0 if only_stage is None else 1.25
    assert (ended - graph.begin_ns.min()) / SECOND == pytest.approx(expected + 0.25, rel=1e-3)


def test_ranks_that_enter_at_different_moments_have_not_met(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, two_stages({(1, 0): 2.0, (2, 1): 3.0}))
    assert int(((graph.resource == Resource.MEETING) & (graph.step >= 0)).sum()) == 3  # begins of steps


def test_messages_without_their_micro_batch_are_refused(tmp_path: Path) -> None:
    rows = [row for row in two_stages({}) if row[:4] != (1, 2, 1, "forward-compute")]
    with pytest.raises(
        MissingDataError, match="in step 1 rank 6 receives 1 forward messages for 0 micro-batches"
    ) as caught:
        graph_of(tmp_path, rows)
    assert "interleaved" in (caught.value.hint or "")


def test_a_rank_that_computes_nothing_is_refused(tmp_path: Path) -> None:
    rows = [row for row in two_stages({}) if row[2] != 1 or row[3].endswith(("-send", "-recv"))]
    with pytest.raises(MissingDataError, match="in step 0 rank 4 receives 1 forward messages for 0 micro-batches"):
        graph_of(tmp_path, rows)


@pytest.mark.parametrize("name", ["AR", "SE"])
def test_corpus_the_replay_is_the_run(name: str) -> None:
    graph = build(load(corpus(f"straggler/trace-{name}.parquet")))
    published = {int(k): v for k, v in reference(f"straggler-{name}.json")["step_t_base"].items()}
    whole = Ideal(graph)
    expected = np.array([published[step] for step in whole.steps.tolist()]) * SECOND
    assert len(expected) == len(published)
    error = np.abs(whole.replayed_ns / expected - 1)
    assert (np.median(error) < 1e-4, error.max() < 1e-3) == (True, True)
    ranks = len(np.unique(graph.rank)) - 1
    assert graph.gap_ns.sum() < 0.01 * ranks * expected.sum()
    assert len(graph.plan.cut()) == 0
