"""Waits end at the rank whose work made them, however many ranks pass them on, and the parts of a wait add up to it."""

from __future__ import annotations

import numpy as np
import pytest
from builders import MS, TraceBuilder
from wait_chains import (
    Job,
    data_parallel,
    noisy,
    none,
    on,
    pipeline_of,
    through_a_message,
    through_a_server,
    two_barriers,
)

from stashtrace.analysis.registry import analyze
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.stragglers.follow_waits import roots_of, waits_of
from stashtrace.analysis.stragglers.pipeline_stages import stages_of
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.trace import Trace


def by_root(trace: Trace) -> dict[tuple[int, int], float]:
    """(rank, root) -> ms a step."""
    out: dict[tuple[int, int], float] = {}
    table = analyze(trace, "straggler_roots")
    steps = len(np.unique(analyze(trace, "steps").take(~analyze(trace, "steps")["warmup"].astype(bool))["step"]))
    for row in table.rows():
        key = (row["rank"], row["root_rank"])
        out[key] = out.get(key, 0.0) + row["stall_ns"] / MS / steps
    # The message itself takes a tenth of a millisecond.
    return {key: ms for key, ms in out.items() if ms > 0.2}


def test_a_wait_goes_through_a_message_and_a_group_to_the_rank_that_reads() -> None:
    trace = through_a_message(on(0, 30))
    found = by_root(trace)
    assert {root for _, root in found} == {0}
    # Rank 1 works for as long as all others between the message and the collective.
    assert found == pytest.approx({(1, 0): 29, (2, 0): 29, (3, 0): 29}, abs=0.2)
    table = analyze(trace, "straggler_roots")
    kinds = table.take(table["stall_ns"] > MS)["cause_kind"]
    assert set(kinds.tolist()) == {"fetch"}
    # Ranks 2 and 3 never waited for rank 0 itself.
    assert table["direct_ns"][(table["root_rank"] == 0) & (table["rank"] != 1)].sum() == 0


def test_what_a_rank_in_between_does_longer_itself_stays_with_it() -> None:
    """Rank 0 reads for 30 ms, and rank 1 works 12 ms longer than ranks 2 and 3 behind the message."""
    job = Job(4)
    job.build.group([0, 1], group=0xBEEF, name="pair")
    job.build.group([1, 2, 3], group=0xCAFE, name="rest")
    for step in range(20):
        for rank in range(4):
            job.load(rank, step, 30 if rank == 0 else 0)
            job.compute(rank, 10)
        job.send(0, 1, group=0xBEEF)
        for rank in range(4):
            job.compute(rank, 22 if rank == 1 else 10, "backward")
        job.meet([1, 2, 3], group=0xCAFE)
        job.meet(range(4), group=0xFADE)
        for rank in range(4):
            job.update(rank)
    found = by_root(job.trace())
    for rank in (2, 3):
        assert found[rank, 0] == pytest.approx(30, abs=0.3)
        assert found[rank, 1] == pytest.approx(12, abs=0.3)
    assert found[1, 0] == pytest.approx(30, abs=0.3)
    # Rank 0 itself waits until rank 1 and the others have met.
    assert found[0, 1] == pytest.approx(13, abs=0.3)


def test_a_wait_goes_through_a_rank_that_has_no_steps() -> None:
    """What rank 0 waits for rank 1 stands for the training of rank 1: that of rank 2 is no reason to be late."""
    trace = through_a_server(on(2, 15))
    assert by_root(trace) == pytest.approx({(1, 2): 15}, abs=0.5)
    table = analyze(trace, "straggler_roots")
    rows = table.take((table["stall_ns"] > MS) & (table["root_rank"] == 2))
    assert set(rows["cause_kind"].tolist()) == {"sleep"}
    # Rank 0 also waits outside any step.
    assert set(table["rank"].tolist()) == {1}
    assert 0 in analyze(trace, "straggler_roots", warmup=True)["rank"]


def test_a_rank_without_steps_passes_nothing_on_where_nobody_is_late() -> None:
    assert by_root(through_a_server(none)) == {}


@pytest.mark.parametrize("seed", range(3))
def test_the_parts_of_all_waits_add_up_to_them(seed: int) -> None:
    extra = noisy(seed, 8)
    for trace in (data_parallel(extra, ranks=4), pipeline_of(3, 4, noisy(seed, 2)), through_a_message(extra)):
        found = roots_of(trace)
        parts = np.bincount(found.source, weights=found.part_ns, minlength=len(found.waits))
        assert parts == pytest.approx(found.waits.length.astype(float), abs=1)
        assert found.kinds_ns().sum(axis=1) == pytest.approx(found.part_ns)
        stalls, roots = analyze(trace, "stalls"), analyze(trace, "straggler_roots")
        expected = {
            (r["rank"], r["step"]): r["stall_ns"] for r in stalls.rows() if r["kind"] == "straggler" and r["stall_ns"]
        }
        for column in ("stall_ns", "direct_ns"):
            sums: dict[tuple[int, int], int] = {}
            for row in roots.rows():
                sums[row["rank"], row["step"]] = sums.get((row["rank"], row["step"]), 0) + row[column]
            assert sums == expected


def test_a_wait_knows_its_operation_and_when_both_were_level() -> None:
    trace = two_barriers(on(1, 20))
    waits, _ = waits_of(trace)
    table = TraceIndex(trace).trace.collectives
    longest = waits.take(waits.length >= 15 * MS)
    assert len(longest) == 20
    assert set(table["op_code"][longest.row].tolist()) == {CollectiveOp.BARRIER}
    # Both had entered the all-reduce a millisecond before the barrier.
    assert (longest.begin - longest.level).tolist() == [MS] * 20


def test_ranks_that_wait_for_each_other_at_once_pass_nothing_on() -> None:
    """Clocks with an error can make it seem so."""
    job = Job(2)
    for _ in range(6):
        for rank in range(2):
            job.compute(rank, 10 + 5 * rank)
        job.meet([0, 1], group=0xCAFE)
        for rank in range(2):
            job.update(rank)
    found = roots_of(job.trace())
    assert set(found.root_rank.tolist()) == {1}


def test_no_wait_has_no_root() -> None:
    build = TraceBuilder()
    for step in range(3):
        build.rank(0).phase("forward", step * 10 * MS, step * 10 * MS + 5 * MS)
        build.rank(0).phase("optimizer", step * 10 * MS + 5 * MS, step * 10 * MS + 9 * MS)
    assert len(roots_of(build.trace()).waits) == 0
    assert len(analyze(build.trace(), "straggler_roots")) == 0


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 1), (2, 4), (4, 8)])
def test_stages_are_found_by_their_messages(stages: int, microbatches: int) -> None:
    trace = pipeline_of(stages, microbatches, none)
    found = stages_of(trace, analyze(trace, "steps"))
    assert (found.of_rank, found.microbatches) == ({rank: rank for rank in range(stages)}, microbatches)
    assert found.bubble_ratio == (stages - 1) / microbatches


def test_data_that_are_handed_on_make_no_pipeline() -> None:
    trace = through_a_message(on(0, 30))
    assert stages_of(trace, analyze(trace, "steps")) is None
    assert stages_of(data_parallel(none), analyze(data_parallel(none), "steps")) is None
