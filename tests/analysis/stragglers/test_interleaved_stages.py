"""Stages of ranks that hold several each: who holds which, how many micro-batches, and what the bubble is."""

from __future__ import annotations

import numpy as np
import pytest
from interleaved import BACKWARD_MS, FORWARD_MS, breadth_first, interleaved
from wait_chains import MS, Job, none, pipeline_of

from stashtrace.analysis.registry import analyze
from stashtrace.analysis.stragglers.pipeline_stages import Stages, stages_of
from stashtrace.schema.trace import Trace


def found(trace: Trace) -> Stages | None:
    return stages_of(trace, analyze(trace, "steps"))


@pytest.mark.parametrize("order", ["one forward one backward", "breadth first"])
@pytest.mark.parametrize(
    ("ranks", "chunks", "microbatches"), [(2, 2, 2), (2, 2, 4), (2, 3, 8), (3, 3, 6), (4, 2, 8), (8, 2, 8)]
)
def test_ranks_with_several_stages_are_found(ranks: int, chunks: int, microbatches: int, order: str) -> None:
    orders = {"order": breadth_first} if order == "breadth first" else {}
    stages = found(interleaved(ranks, chunks, microbatches, steps=8, **orders))  # type: ignore[arg-type]
    assert dict(stages.of_rank) == {rank: rank for rank in range(ranks)}
    assert (stages.each, stages.microbatches) == (chunks, microbatches)
    assert stages.numbers(1) == list(range(1, ranks * chunks, ranks))
    assert stages.bubble_ratio == pytest.approx((ranks - 1) / (microbatches * chunks))


@pytest.mark.parametrize(("ranks", "chunks", "microbatches"), [(3, 2, 6), (4, 2, 8), (4, 4, 8)])
def test_the_ring_of_their_messages_says_it_where_no_computation_was_recorded(
    ranks: int, chunks: int, microbatches: int
) -> None:
    stages = found(interleaved(ranks, chunks, microbatches, phases=False))
    assert (len(stages.of_rank), stages.each, stages.microbatches) == (ranks, chunks, microbatches)


@pytest.mark.parametrize("order", ["one forward one backward", "breadth first"])
def test_two_ranks_do_not_say_how_many_stages_they_hold(order: str) -> None:
    """Their messages say only that they hold several: then the bubble has a least length."""
    orders = {"order": breadth_first} if order == "breadth first" else {}
    stages = found(interleaved(2, 2, 4, phases=False, **orders))  # type: ignore[arg-type]
    assert (stages.each, stages.microbatches, stages.numbers(1)) == (0, 0, [])
    assert stages.bubble_ratio == pytest.approx(1 / 8)
    more = found(interleaved(2, 3, 4, phases=False, **orders))  # type: ignore[arg-type]
    assert more.bubble_ratio < 1 / 12


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (2, 12), (4, 8)])
def test_a_stage_a_rank_is_no_ring(ranks: int, microbatches: int) -> None:
    for trace in (
        interleaved(ranks, 1, microbatches),
        interleaved(ranks, 1, microbatches, phases=False),
        pipeline_of(ranks, microbatches),
    ):
        stages = found(trace)
        assert (stages.each, stages.microbatches) == (1, microbatches)


def test_pipelines_side_by_side_are_one_kind() -> None:
    stages = found(interleaved(3, 2, 6, replicas=2))
    assert [stages.ranks(place) for place in range(3)] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("both_ways", [False, True])
def test_a_ring_in_which_all_send_as_often_is_no_pipeline(both_ways: bool) -> None:
    """An exchange with the neighbours has no first rank and no stages."""
    job = Job(4)
    for low, high in ((0, 1), (1, 2), (2, 3), (0, 3)):
        job.build.group([low, high], group=0x100 + 8 * low + high, name=f"ranks {low} {high}")
    for _ in range(8):
        for rank in range(4):
            job.compute(rank, 10)
        for rank in range(4):
            for target in ((rank + 1) % 4, (rank - 1) % 4)[: 1 + both_ways]:
                job.send(rank, target, group=0x100 + 8 * min(rank, target) + max(rank, target))
        for rank in range(4):
            job.update(rank)
    assert found(job.trace()) is None


@pytest.mark.parametrize("missing", [0, 3])
@pytest.mark.parametrize("chunks", [1, 2])
def test_a_rank_without_a_record_has_its_place(chunks: int, missing: int) -> None:
    trace = interleaved(4, chunks, 8)
    tables = {name: getattr(trace, name) for name in ("phases", "collectives", "collective_waits", "processes")}
    gone = tables["processes"]["process_id"][tables["processes"]["rank"] == missing]
    kept = {name: table.take(~np.isin(table["process_id"], gone)) for name, table in tables.items()}
    stages = found(trace.replace(**kept))
    assert dict(stages.of_rank) == {rank: rank for rank in range(4)}
    assert (stages.each, stages.microbatches) == (chunks, 8)


def test_a_server_that_answers_one_worker_is_no_stage() -> None:
    """It sends back what it received, and computes no backward."""
    job = Job(2)
    job.build.group([0, 1], group=0x101, name="pair")
    for _ in range(8):
        job.compute(1, 10)
        job.compute(1, 20, "backward")
        job.send(1, 0, group=0x101)
        job.compute(0, 5)
        job.send(0, 1, group=0x101)
        for rank in range(2):
            job.update(rank)
    assert found(job.trace()) is None


def test_a_message_in_two_parts_is_one_micro_batch() -> None:
    """Values and masks, say: each computation is behind two messages."""
    job = Job(2)
    job.build.group([0, 1], group=0x101, name="pair")
    for _ in range(8):
        for sender, phase in ((0, "forward"), (1, "backward")):
            for _ in range(4):
                job.compute(sender, 5, phase)
                for _ in range(2):
                    job.send(sender, 1 - sender, group=0x101)
                job.compute(1 - sender, 5, phase)
        for rank in range(2):
            job.update(rank)
    stages = found(job.trace())
    assert (stages.each, stages.microbatches) == (1, 4)


@pytest.mark.parametrize(("ranks", "chunks", "microbatches"), [(2, 2, 4), (4, 2, 8), (3, 4, 6)])
def test_the_bubble_is_what_ranks_of_such_a_pipeline_wait(ranks: int, chunks: int, microbatches: int) -> None:
    trace = interleaved(ranks, chunks, microbatches, none)
    stages = found(trace)
    assert stages is not None
    work_ms = chunks * microbatches * (FORWARD_MS + BACKWARD_MS)
    budget = analyze(trace, "pipeline")
    counted = budget["step"] > 3
    waited = budget["bubble_ns"][counted].sum() / len(set(budget["step"][counted].tolist())) / ranks / MS
    assert waited == pytest.approx(stages.bubble_ratio * work_ms, rel=0.15)
