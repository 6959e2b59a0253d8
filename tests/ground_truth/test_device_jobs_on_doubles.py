"""Larger jobs and rarer calls on played devices: each collective is there once, on all ranks, and is shown."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device import run_ranks
from measurements import Measurements
from trace_processor import TraceProcessor, require
from traced import TracedRun

from stashtrace.analysis.stalls.budget import stalls
from stashtrace.analysis.steps.steps import steps
from stashtrace.schema.kinds import Awaited, Bracket, BracketFlag, CollectiveOp
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_text import summary
from stashtrace.timeline.timeline import export_perfetto

#: Of the job whose amounts are compared, and of the one whose rows are counted.
RANKS, STEPS, EACH = 8, 25, 10
FEW_RANKS, FEW_STEPS = 4, 8
LATE_RANK = 5
_GRADIENTS = "wait stream=2 for=0; allreduce 4MB stream=2; wait stream=3 for=0; allgather 1MB stream=3;"
_STEP = f"""
    forward {{ kernel 2ms }}
    backward {{ kernel 2ms; rank {LATE_RANK} kernel 20ms; repeat {EACH} {{ {_GRADIENTS} kernel 100us }} }}
    optimizer {{ wait stream=0 for=2; wait stream=0 for=3; kernel 1ms }}
    step
"""


def run_steps(ranks: int, steps_count: int, folder: Path) -> TracedRun:
    """Two communicators, as of a job with parameters in shards; the second carries the all-gathers."""
    each = _STEP.replace("allgather 1MB stream=3", "allgather 1MB stream=3 comm=1")
    program = f"comm init new=1; meet; step; repeat {steps_count} {{ {each} }}"
    return run_ranks(ranks, program, folder, "nccl.bandwidth 20GB")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Measurements[TracedRun]:
    return Measurements(lambda folder: run_steps(RANKS, STEPS, folder), tmp_path_factory.mktemp("jobs"))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    return run_steps(FEW_RANKS, FEW_STEPS, tmp_path_factory.mktemp("job") / "few")


@pytest.mark.slow
def test_each_collective_is_there_once_on_each_rank(job: TracedRun) -> None:
    assert all(result["errors"] == {} for result in job.results())
    table = job.trace.collectives
    timed = (table["device_begin_ns"] > 0) & (table["device_end_ns"] > table["device_begin_ns"])
    # On a machine that others use too a stamp may be gone before it is read: it is counted then.
    assert {(collector, reason) for collector, reason, _ in job.losses()} <= {("nccl", "collectives_untimed")}
    assert (~timed).sum() == sum(count for _, _, count in job.losses())
    found = Counter(zip(table["rank"].tolist(), table["group_hash"].tolist(), strict=True))
    groups = {group for _, group in found}
    assert found == {(rank, group): FEW_STEPS * EACH for rank in range(FEW_RANKS) for group in groups}
    assert len(groups) == 2
    for group in groups:
        ops = set()
        for rank in range(FEW_RANKS):
            own = table.take((table["rank"] == rank) & (table["group_hash"] == group)).sort_by("call_ns")
            assert own["sequence"].tolist() == list(range(FEW_STEPS * EACH))
            ops |= set(own["op_code"].tolist())
        assert len(ops) == 1


@pytest.mark.slow
def test_kinds_sum_to_each_step(job: TracedRun) -> None:
    table, found = stalls(job.trace, warmup=True), steps(job.trace)
    assert Counter(found["rank"].tolist()) == dict.fromkeys(range(FEW_RANKS), FEW_STEPS)
    assert (found["matched_code"] == 1).all()
    total: Counter[tuple[int, int]] = Counter()
    for row in table.rows():
        total[row["rank"], row["step"]] += row["stall_ns"]
        assert row["low_ns"] <= row["stall_ns"] <= row["high_ns"]
    for row in found.rows():
        assert total[row["rank"], row["step"]] == row["end_ns"] - row["begin_ns"]


@pytest.mark.truth
@pytest.mark.slow
def test_late_rank_is_named(jobs: Measurements[TracedRun]) -> None:
    jobs.agree(late_rank_is_named)


def late_rank_is_named(job: TracedRun) -> None:
    table = stalls(job.trace, by="rank")
    late = {row["rank"]: row for row in table.rows() if row["kind"] == "straggler"}
    compute = {row["rank"]: row for row in table.rows() if row["kind"] == "compute"}
    for rank in set(range(RANKS)) - {LATE_RANK}:
        assert late[rank]["cause_rank"] == LATE_RANK
        # 20 ms, of which the kernels behind the first all-reduce hide one.
        assert late[rank]["stall_ns"] / late[rank]["steps_count"] == pytest.approx(19e6, rel=0.1)
    assert compute[LATE_RANK]["stall_ns"] > 2 * compute[0]["stall_ns"]
    text = " ".join(summary(job.trace).split())
    assert re.search(rf"rank {LATE_RANK} computes [\d.]+ ms a step longer than the others", text)


@pytest.mark.thorough
@pytest.mark.slow
def test_time_line_is_understood(job: TracedRun, tmp_path: Path) -> None:
    require()
    file = tmp_path / "job.pftrace"
    export_perfetto(job.trace, file)
    processor = TraceProcessor.of(file)
    assert processor.errors() == []
    assert processor.one("select count(*) from slice where dur < 0") == 0
    assert processor.one("select count(*) from slice where name glob '*all_reduce*'") >= FEW_RANKS * FEW_STEPS * EACH


def collectives(trace: Trace, rank: int = 0) -> list[dict[str, Any]]:
    table = trace.collectives
    return list(table.take(table["rank"] == rank).sort_by("call_ns").rows())


REPLAYS = """
    comm init new=0; allreduce 1MB stream=1; sync device
    capture stream=1 graph=1 { kernel 2ms stream=1; allreduce 10MB stream=1; kernel 1ms stream=1 }
    meet; step
    repeat 5 { wait stream=1 for=0; launch graph=1 stream=1; wait stream=0 for=1; kernel 1ms; step }
    """


def test_replays_of_a_graph(tmp_path: Path) -> None:
    run = run_ranks(2, REPLAYS, tmp_path, "nccl.bandwidth 10GB")
    assert [result["errors"] for result in run.results()] == [{}, {}]
    for rank in range(2):
        brackets = run.trace.device_brackets
        own = brackets.take(brackets["rank"] == rank)
        captured = own.take((own["bracket_flags"] & BracketFlag.CAPTURED) != 0)
        assert (captured["begin_ns"] == -1).all()
        awaited = own.take((own["bracket_code"] == Bracket.STREAM_WAIT) & (own["awaited_code"] == Awaited.GRAPH))
        assert len(awaited) == 5
    found = collectives(run.trace)
    assert found[0]["sequence"] == 0
    assert len({(row["group_hash"], row["sequence"], row["call_ns"]) for row in found}) == len(found)
    table = list(stalls(run.trace, by="rank", warmup=True).rows())
    assert {row["method"] for row in table} == {"brackets"}


@pytest.mark.truth
def test_replays_take_what_they_do(tmp_path: Path) -> None:
    runs = Measurements(lambda folder: run_ranks(2, REPLAYS, folder, "nccl.bandwidth 10GB"), tmp_path)
    runs.agree(replays_take_what_they_do)


def replays_take_what_they_do(run: TracedRun) -> None:
    brackets = run.trace.device_brackets
    for rank in range(2):
        launches = brackets.take((brackets["rank"] == rank) & (brackets["bracket_code"] == Bracket.GRAPH))
        assert len(launches) == 5
        assert np.median(launches["end_ns"] - launches["begin_ns"]) == pytest.approx(4e6, rel=0.1)


def test_group_of_messages_is_one_batch(tmp_path: Path) -> None:
    exchange = "group {{ send 10MB peer={0} stream=2; recv 10MB peer={0} stream=2 }}; sync device; step;"
    program = {rank: "step; allreduce 4KB stream=2; repeat 3 { " + exchange.format(1 - rank) + " }" for rank in (0, 1)}
    run = run_ranks(2, program, tmp_path, "nccl.bandwidth 10GB")
    assert [result["errors"] for result in run.results()] == [{}, {}]
    for rank in range(2):
        rows = collectives(run.trace, rank)
        assert [row["op_code"] for row in rows] == [
            CollectiveOp.ALL_REDUCE,
            *[CollectiveOp.SEND, CollectiveOp.RECEIVE] * 3,
        ]
        # The messages from one rank to another are a group of two: sender, receiver.
        assert [row["peer_rank"] for row in rows] == [-1, *[1, 0] * 3]
        assert len({row["group_hash"] for row in rows}) == 3
        assert all(row["device_end_ns"] > row["device_begin_ns"] > 0 for row in rows)
    details = run.trace.collective_details
    batches = Counter(details["batch_key"][details["batch_key"] != 0].tolist())
    assert set(batches.values()) <= {2, 4}
    assert sum(batches.values()) == 12


def test_communicators_of_a_split(tmp_path: Path) -> None:
    program = """
        allreduce 4KB stream=2
        rank 0 comm split new=1 color=0; rank 2 comm split new=1 color=0
        rank 1 comm split new=1 color=1; rank 3 comm split new=1 color=1
        step; repeat 4 { allreduce 1MB stream=3 comm=1; sync device; step }
        comm finalize comm=1; comm destroy comm=1
        """
    run = run_ranks(4, program, tmp_path)
    assert [result["errors"] for result in run.results()] == [{}] * 4
    trace = run.trace
    groups = {
        (row["rank"], row["group_hash"]): (trace.text(row["members_code"]), row["group_rank"], row["group_size"])
        for row in trace.groups.rows()
    }
    halves = {rank: [v for (r, _), v in groups.items() if r == rank and v[2] == 2] for rank in range(4)}
    assert halves == {0: [("0,2", 0, 2)], 1: [("1,3", 0, 2)], 2: [("0,2", 1, 2)], 3: [("1,3", 1, 2)]}
    for rank in range(4):
        rows = collectives(trace, rank)
        assert len(rows) == 5
        assert [row["sequence"] for row in rows] == [0, 0, 1, 2, 3]
        assert len({row["group_hash"] for row in rows}) == 2


def test_abort_with_work_in_flight(tmp_path: Path) -> None:
    first = "step; allreduce 4KB stream=2; sync device; step; "
    program = {
        0: first + "allreduce 1MB stream=2; sleep 100ms; comm abort; sync device; step",
        1: first + "sleep 200ms; step",
    }
    run = run_ranks(2, program, tmp_path)
    assert run.results()[0]["errors"] == {}
    rows = collectives(run.trace)
    assert [row["sequence"] for row in rows] == [0, 1]
    assert len(collectives(run.trace, 1)) == 1
    # It is over when it is aborted, which a host that sleeps 100 ms before it can only do later than that.
    waited = rows[1]["device_end_ns"] - rows[1]["device_begin_ns"]
    assert rows[1]["device_begin_ns"] == -1 or 80e6 < waited < 10e9
    assert len(stalls(run.trace, warmup=True)) > 0
