"""slowdown: pipelines and jobs whose slow-downs are plain arithmetic, and the published ones of two real jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import MS, trace_from_text
from corpus import corpus
from interleaved import interleaved
from pipeline_files import BACKWARD, FORWARD, load, step_s, two_stages, write
from wait_chains import none, on

import stashtrace
from stashtrace.analysis.graph import PipelineGraph, build
from stashtrace.analysis.graph.pipeline_graph import build_pipeline
from stashtrace.analysis.registry import analyze
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.replay import Ideal
from stashtrace.replay.slowdown import ranks_together
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

SECOND = 1_000_000_000
SLOW = {(1, 0): 2.0}
CELLS = [(replica, stage) for replica in range(4) for stage in (0, 1)]


def row_of(table: Table, cause: str, name: str = "") -> dict[str, Any]:
    (found,) = (row for row in table.rows() if (row["cause"], row["name"]) == (cause, name))
    return found


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Two stages of four replicas, of which (1, 0), that is rank 1, computes for twice as long."""
    path = write(tmp_path_factory.mktemp("slowdown") / "trace-X.parquet", two_stages(SLOW))
    return stashtrace.analyze(load(path), "slowdown")


MEASURED = ({c: FORWARD * SLOW.get(c, 1.0) for c in CELLS}, {c: BACKWARD * SLOW.get(c, 1.0) for c in CELLS})
#: One of eight takes twice as long: the mean of all is 9/8 of the usual.
IDEAL = tuple(dict.fromkeys(CELLS, seconds * 9 / 8) for seconds in (FORWARD, BACKWARD))


def mixed(kept: set[tuple[int, int]]) -> float:
    """Step in which these take as long as they did and all others the mean."""
    return step_s(*({c: (a if c in kept else b)[c] for c in CELLS} for a, b in zip(MEASURED, IDEAL, strict=True)))


def test_the_slowdown_of_a_pipeline(pipeline: Table) -> None:
    row = row_of(pipeline, "all")
    assert row["step_ns"] / SECOND == pytest.approx(step_s(*MEASURED), rel=1e-5)
    assert row["ideal_step_ns"] / SECOND == pytest.approx(step_s(*IDEAL), rel=1e-5)
    assert (step_s(*MEASURED), step_s(*IDEAL)) == (10.0, 7.75)
    assert row["slowdown_ratio"] == pytest.approx(10 / 7.75, rel=1e-5)
    assert row["recovered_ratio"] == 1.0


@pytest.mark.parametrize(
    ("cause", "name", "kept"),
    [
        ("rank", "1", {(1, 0)}),
        ("rank", "4", {(0, 1)}),
        ("slowest_ranks", "1", {(1, 0)}),
        ("stage", "0", {c for c in CELLS if c[1] == 0}),
        ("stage", "1", {c for c in CELLS if c[1] == 1}),
        ("replica", "1", {(1, 0), (1, 1)}),
        ("replica", "2", {(2, 0), (2, 1)}),
    ],
)
def test_what_a_cause_of_a_pipeline_contributes(
    pipeline: Table, cause: str, name: str, kept: set[tuple[int, int]]
) -> None:
    row = row_of(pipeline, cause, name)
    only, fixed = mixed(kept), mixed(set(CELLS) - kept)
    assert row["only_step_ns"] / SECOND == pytest.approx(only, rel=1e-5)
    assert row["fixed_step_ns"] / SECOND == pytest.approx(fixed, rel=1e-5)
    assert row["slowdown_ratio"] == pytest.approx(only / 7.75, rel=1e-5)
    assert row["recovered_ratio"] == pytest.approx((10 - fixed) / (10 - 7.75), abs=1e-4)


def test_the_operations_of_a_pipeline(pipeline: Table) -> None:
    names = {row["name"] for row in pipeline.rows() if row["cause"] == "operation"}
    assert names == {
        "forward-compute",
        "backward-compute",
        "forward-send-recv",
        "backward-send-recv",
        "grads-reduce-scatter",
        "optimizer",
    }
    forward = row_of(pipeline, "operation", "forward-compute")
    assert forward["only_step_ns"] / SECOND == pytest.approx(step_s(MEASURED[0], IDEAL[1]), rel=1e-5)
    assert forward["fixed_step_ns"] / SECOND == pytest.approx(step_s(IDEAL[0], MEASURED[1]), rel=1e-5)
    for name in ("optimizer", "grads-reduce-scatter", "forward-send-recv"):
        assert row_of(pipeline, "operation", name)["slowdown_ratio"] == pytest.approx(1, abs=1e-5)


def test_the_causes_that_recover_most_come_first(pipeline: Table) -> None:
    assert pipeline["cause"][:2].tolist() == ["all", "gap"]
    recovered = pipeline["recovered_ratio"][2:].tolist()
    assert recovered == sorted(recovered, reverse=True)
    assert row_of(pipeline, "rank", "1")["excess_ns"] / SECOND == pytest.approx(3 - 3 / 8, rel=1e-4)
    assert abs(row_of(pipeline, "gap")["excess_ns"]) < 1e-4 * SECOND


def test_with_the_median_a_slow_rank_is_left_out(tmp_path: Path) -> None:
    trace = load(write(tmp_path / "trace-X.parquet", two_stages(SLOW)))
    row = row_of(stashtrace.analyze(trace, "slowdown", center="median"), "all")
    assert row["slowdown_ratio"] == pytest.approx(10 / 7, rel=1e-5)
    with pytest.raises(UsageError, match="'mode'"):
        stashtrace.analyze(trace, "slowdown", center="mode")


def test_equal_ranks_lose_nothing(tmp_path: Path) -> None:
    table = stashtrace.analyze(load(write(tmp_path / "trace-X.parquet", two_stages({}))), "slowdown")
    assert row_of(table, "all")["slowdown_ratio"] == pytest.approx(1, abs=1e-5)
    assert set(table["recovered_ratio"].tolist()) == {-1.0}


def test_steps_without_a_length_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hole between two steps is taken from the second; where it is a gap, too, less than nothing may be left."""
    monkeypatch.setattr(Ideal, "step_ns", -5.0)
    with pytest.raises(MissingDataError, match="no length without their gaps"):
        stashtrace.analyze(trace_from_text("rank 0 phase : FFBBOFFBBOFFBBO"), "slowdown")


def four_ranks(steps: int = 8) -> str:
    """Before each collective rank 2 works for 6 ms and all others for 3; a transfer takes 2 ms."""
    lines = []
    for rank in range(4):
        works, flies = ("xxxxx..x", ".....##.") if rank == 2 else ("xx.....x", "..#####.")
        flight = "".join(flies.replace("#", str(step)) for step in range(steps))
        lines += [f"rank {rank} phase : {'FBBBBBBO' * steps}", f"rank {rank} cpu : {works * steps}"]
        lines += [f"rank {rank} coll : {flight}", f"rank {rank} block : {flight}"]
    return "\n".join(lines)


@pytest.mark.parametrize(("center", "shared_ms"), [("mean", (3 * 3 + 6) / 4), ("median", 3)])
def test_a_job_of_hosts_with_a_late_rank(center: str, shared_ms: float) -> None:
    """The optimizer of the last step has no collective behind it, and is not shared: that makes 1 % here."""
    table = stashtrace.analyze(trace_from_text(four_ranks()), "slowdown", center=center)
    ideal = shared_ms + 2
    row = row_of(table, "all")
    assert (row["step_ns"] / MS, row["ideal_step_ns"] / MS) == pytest.approx((8, ideal), rel=0.01)
    late, other = row_of(table, "rank", "2"), row_of(table, "rank", "0")
    assert late["slowdown_ratio"] == pytest.approx(8 / ideal, rel=0.01)
    assert late["fixed_step_ns"] / MS == pytest.approx(max(shared_ms, 3) + 2, rel=0.01)
    assert late["recovered_ratio"] == pytest.approx(1, abs=0.02)
    # Of the seven steps that count, not of all eight.
    assert late["excess_ns"] / MS == pytest.approx(6 - shared_ms, abs=0.1)
    assert (other["slowdown_ratio"], other["recovered_ratio"]) == pytest.approx((1, 0), abs=0.02)
    assert row_of(table, "operation", "compute")["recovered_ratio"] == pytest.approx(1, abs=0.02)
    assert row_of(table, "operation", "interconnect")["slowdown_ratio"] == pytest.approx(1, abs=0.02)
    assert row_of(table, "slowest_ranks", "2")["fixed_step_ns"] == late["fixed_step_ns"]


def test_workers_that_differ() -> None:
    """A batch takes 3 ms on rank 0 and 5 ms on rank 1, and sets the pace: 4 ms if both were equal."""
    trace = trace_from_text("""
        rank 0 loader   : 000..1..2..3..4..5..
        rank 0 worker 0 : 000111222333444555
        rank 0 phase    : ...FO.FO.FO.FO.FO.FO
        rank 0 cpu      : ...xx.xx.xx.xx.xx.xx
        rank 1 loader   : 00000..111..222..333..444..555..
        rank 1 worker 0 : 000001111122222333334444455555
        rank 1 phase    : .....FO...FO...FO...FO...FO...FO
        rank 1 cpu      : .....xx...xx...xx...xx...xx...xx
    """)
    table = stashtrace.analyze(trace, "slowdown")
    row = row_of(table, "all")
    assert (row["step_ns"] / MS, row["ideal_step_ns"] / MS) == pytest.approx((5, 4), rel=0.01)
    assert row_of(table, "operation", "prep")["recovered_ratio"] == pytest.approx(1, abs=0.02)
    assert row_of(table, "rank", "1")["recovered_ratio"] == pytest.approx(1, abs=0.02)
    assert row_of(table, "rank", "0")["recovered_ratio"] == pytest.approx(0, abs=0.02)


def test_a_run_that_ends_in_a_collective() -> None:
    """No work has a transfer behind it that others did not have too, and none is left after the last one."""
    lines = []
    for rank, works in ((0, "xx.."), (1, "xxx.")):
        flight = "".join(("..##" if rank == 0 else "...#").replace("#", str(step)) for step in range(4))
        lines += [f"rank {rank} phase : {'FBBO' * 3}FBBB", f"rank {rank} cpu : {works * 4}"]
        lines += [f"rank {rank} coll : {flight}", f"rank {rank} block : {flight}"]
    row = row_of(stashtrace.analyze(trace_from_text("\n".join(lines)), "slowdown"), "all")
    assert (row["step_ns"] / MS, row["ideal_step_ns"] / MS) == pytest.approx((4, 3.5), rel=0.05)


# The published jobs ------------------------------------------------------------------------------


class Job:
    """One of the published jobs, and what its authors found."""

    def __init__(self, name: str) -> None:
        self.result, self.last_stage, self.slowest = (
            json.loads(corpus(f"straggler/{kind}-{name}.json").read_text()) for kind in ("result", "ms", "mw")
        )
        self.trace = load(corpus(f"straggler/trace-{name}.parquet"))
        graph = build(self.trace)
        assert isinstance(graph, PipelineGraph)
        self.whole = Ideal(graph)
        self.table = stashtrace.analyze(self.trace, "slowdown")

    def steps(self, kind: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        own = {int(step): seconds for step, seconds in self.result[kind].items()}
        return np.array([own[step] for step in self.whole.steps.tolist()]) * SECOND


@pytest.fixture(scope="module", params=["AR", "SE"])
def published(request: pytest.FixtureRequest) -> Job:
    return Job(request.param)


def test_corpus_slowdown_of_the_job(published: Job) -> None:
    expected = published.result["blocking_slowdown"]
    assert row_of(published.table, "all")["slowdown_ratio"] == pytest.approx(expected, rel=0.005)


def test_corpus_steps_without_gaps_and_ideal_steps(published: Job) -> None:
    whole = published.whole
    for work, kind, rel in (
        (whole.graph.work_ns, "step_t_nodelay", 0.01),
        (whole.ideal_work_ns, "step_t_noblk", 0.003),
    ):
        assert whole.steps_ns(work) == pytest.approx(published.steps(kind), rel=rel)
    gaps = whole.replayed_ns.mean() / whole.step_ns
    assert gaps == pytest.approx(published.result["launch_slowdown"], abs=0.005)


def test_corpus_with_their_messages_their_figures_come_out(published: Job) -> None:
    """Messages that overlap whatever a rank computes are all that their graph and ours differ by."""
    whole = Ideal(build_pipeline(TraceIndex(published.trace), overlapped_messages=True))
    assert len(whole.graph.plan.cut()) == 0
    assert whole.slowdown_ratio == pytest.approx(published.result["blocking_slowdown"], rel=2e-4)
    assert whole.steps_ns(whole.ideal_work_ns) == pytest.approx(published.steps("step_t_noblk"), rel=1e-6)
    assert whole.steps_ns(whole.graph.work_ns) == pytest.approx(published.steps("step_t_nodelay"), rel=5e-4)


@pytest.mark.parametrize(("cause", "kind"), [("stage", "stage"), ("replica", "dp_rank")])
def test_corpus_slowdown_of_stages_and_replicas(published: Job, cause: str, kind: str) -> None:
    expected = published.result[f"blocking_decompose_by_{kind}"]
    found = {r["name"]: r["slowdown_ratio"] for r in published.table.rows() if r["cause"] == cause}
    assert found == pytest.approx(expected, rel=0.01)
    assert max(found, key=found.__getitem__) in sorted(expected, key=expected.__getitem__)[-3:]


def test_corpus_slowdown_of_operations(published: Job) -> None:
    expected = published.result["blocking_decompose_by_optype"]
    messages = {f"{direction}-send-recv": f"{direction}-pp-comm" for direction in ("forward", "backward")}
    found = {r["name"]: r["slowdown_ratio"] for r in published.table.rows() if r["cause"] == "operation"}
    assert {messages.get(name, name) for name in found} == set(expected) - {"gc"}
    for name, ratio in found.items():
        assert ratio == pytest.approx(expected[messages.get(name, name)], rel=0.005), name


def test_corpus_what_the_last_stage_contributes(published: Job) -> None:
    stages = {r["name"]: r["recovered_ratio"] for r in published.table.rows() if r["cause"] == "stage"}
    assert stages[max(stages, key=int)] == pytest.approx(published.last_stage["Ms"], abs=0.01)


def test_corpus_what_the_slowest_workers_contribute(published: Job) -> None:
    """The study estimates who they are by the smaller of the slow-downs of their stage and of their replica."""
    assert row_of(published.table, "slowest_ranks", _slowest(published))["recovered_ratio"] == pytest.approx(
        published.slowest["Mw"], abs=0.01
    )
    graph = published.whole.graph
    assert isinstance(graph, PipelineGraph)
    by_stage, by_replica = (published.result[f"blocking_decompose_by_{kind}"] for kind in ("stage", "dp_rank"))
    score = {
        rank: min(by_stage[str(stage)], by_replica[str(graph.replica_of[rank])])
        for rank, stage in graph.stage_of.items()
    }
    chosen = sorted(score, key=lambda rank: (-score[rank], rank))[: -(-len(score) * 3 // 100)]
    together = ranks_together(graph, sorted(chosen)).chosen
    whole = published.whole
    assert whole.recovered_ratio(whole.fixed_step_ns(together)) == pytest.approx(published.slowest["Mw"], abs=0.005)


def _slowest(job: Job) -> str:
    (found,) = (str(row["name"]) for row in job.table.rows() if row["cause"] == "slowest_ranks")
    return found


SHAPES = [(4, 1, 8), (2, 2, 4), (4, 2, 8)]


def by_cause(trace: Trace) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["cause"], row["name"]): row for row in analyze(trace, "slowdown").rows()}


@pytest.mark.parametrize("one_group", [False, True])
@pytest.mark.parametrize(("ranks", "chunks", "microbatches"), SHAPES)
def test_equal_stages_are_not_slowed_down_by_their_bubble(
    ranks: int, chunks: int, microbatches: int, one_group: bool
) -> None:
    """In one group the two sides of a message need not have one number."""
    found = by_cause(interleaved(ranks, chunks, microbatches, none, one_group=one_group))
    assert found["all", ""]["slowdown_ratio"] == pytest.approx(1.0, abs=0.01)
    assert all(row["slowdown_ratio"] < 1.01 for row in found.values())


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(("ranks", "chunks", "microbatches"), SHAPES)
def test_equal_ranks_share_the_work_of_the_slow_one(ranks: int, chunks: int, microbatches: int, replicas: int) -> None:
    shape, slow = (ranks, chunks, microbatches), ranks * replicas - 1
    even = by_cause(interleaved(*shape, lambda step, rank: 4.0 / ranks / replicas, replicas=replicas))
    for one_group in (False, True):
        found = by_cause(interleaved(*shape, on(slow, 4.0), replicas=replicas, one_group=one_group))
        whole = found["all", ""]
        assert whole["ideal_step_ns"] == pytest.approx(even["all", ""]["step_ns"], rel=0.02)
        assert whole["slowdown_ratio"] > 1.1
        ranked = [row for (cause, _), row in found.items() if cause == "rank"]
        assert max(ranked, key=lambda row: row["recovered_ratio"])["name"] == str(slow)
        assert found["rank", str(slow)]["recovered_ratio"] > 0.7
        assert found["rank", "0"]["slowdown_ratio"] < 1.05
