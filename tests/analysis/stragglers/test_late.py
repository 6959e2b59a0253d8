"""late, late_ranks, pipeline on injected causes: the amount lands in the right cause, the worker and file are named."""

from __future__ import annotations

import numpy as np
import pytest
from builders import MS, TraceBuilder
from corpus import corpus

import stashtrace
from stashtrace.analysis.registry import analyze
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.schema.kinds import CollectiveOp, CollectiveSource, CopyDirection, DeviceWork, IoOp, WaitOp
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

RANKS, STEPS, LATE_RANK = 8, 6, 3
LATE_NS = 40 * MS


def job(kind: str, *, ranks: int = RANKS, late_steps: tuple[int, ...] = tuple(range(1, STEPS))) -> Trace:
    """Steps of batch wait 5 ms, forward 10, backward 20 with an all-reduce of 2; one rank loses 40 ms by ``kind``."""
    build = TraceBuilder()
    build.group(range(ranks), name="mesh_dp")
    start, queue = 0, dict[int, int]()
    for step in range(STEPS):
        calls: dict[int, int] = {}
        for number in range(ranks):
            rank, at = build.rank(number), start
            slow = LATE_NS if number == LATE_RANK and step in late_steps else 0
            fetch = slow if kind in ("fetch", "prep") else 0
            worker = rank.worker(step % 2)
            worker.fetch(step, at - 1 * MS, at + 4 * MS + fetch)
            worker.io(at, at + 1 * MS + (slow if kind == "fetch" else 0), path=f"/data/shard-{step:04d}", blocked=True)
            rank.batch_wait(step, at, at + 5 * MS + fetch, worker=step % 2)
            at += 5 * MS + fetch
            if kind == "checkpoint" and slow:
                rank.phase("checkpoint", at, at + slow)
                rank.io(at + MS, at + slow, op=IoOp.WRITE, path="/out/model.pt", blocked=True)
                at += slow
            long = slow if kind in ("compute", "gc", "compile", "cpu_contention") else 0
            queued = queue.get(number, 0)
            queue[number] = queued + (slow if kind == "cpu_contention" else 0)
            rank.phase("forward", at, at + 10 * MS + long, cpu=(at, at + 10 * MS), runqueue=(queued, queue[number]))
            if kind == "gc" and slow:
                rank.gc(at + 5 * MS, at + 5 * MS + slow)
            if kind == "compile" and slow:
                rank.compiles("Net.forward (net.py:8)", at + 5 * MS, at + 5 * MS + slow, before=step)
            at += 10 * MS + long
            if kind in ("sleep", "other") and slow:
                rank.wait(WaitOp.SLEEP if kind == "sleep" else WaitOp.POLL, at, at + slow)
                at += slow
            calls[number] = at + 18 * MS
            rank.phase("backward", at, start + 35 * MS + LATE_NS + 2 * MS)
        last = max(calls.values())
        build.meet(calls, last + 2 * MS)
        for number in calls:
            build.rank(number).phase("optimizer", start + 77 * MS, start + 80 * MS)
        start += 80 * MS
    return build.trace()


def costliest(trace: Trace) -> dict[str, object]:
    return next(iter(analyze(trace, "late").rows()))


#: Cause -> its name where it has one in each of these jobs. What all ranks do, as their waits for batches, is none.
CAUSE_NAMES = {
    "fetch": None,
    "prep": None,
    "compute": "forward",
    "gc": None,
    "compile": "torch.compile Net.forward (net.py:8)",
    "cpu_contention": None,
    "checkpoint": "/out/model.pt",
    "sleep": None,
    "other": None,
}


@pytest.mark.parametrize("kind", CAUSE_NAMES)
def test_the_injected_cause_is_named_with_its_amount(kind: str) -> None:
    row, name = costliest(job(kind)), CAUSE_NAMES[kind]
    assert (row["late_rank"], row["waiting_ranks"], row["cause_kind"]) == (LATE_RANK, "0-2,4-7", kind)
    assert row["cause_ns"] == pytest.approx(LATE_NS, rel=0.05)
    assert row["wait_ns"] == pytest.approx(LATE_NS, rel=0.05)
    assert row["total_wait_ns"] == pytest.approx(7 * LATE_NS, rel=0.05)
    assert (row["group_kind"], row["link"], row["method"]) == ("dp", "node00", "clock")
    if name is not None:
        assert row["cause_name"] == name
    if kind in ("compute", "compile"):
        assert row["named_ns"] == LATE_NS


def test_the_worker_and_the_file_are_named() -> None:
    trace = job("fetch", late_steps=(3,))
    row = costliest(trace)
    assert (row["cause_worker_id"], row["cause_name"], row["step"]) == (1, "/data/shard-0003", 3)
    assert row["named_ns"] == 41 * MS
    assert trace.processes["worker_id"][trace.processes["process_id"] == row["cause_process_id"]].tolist() == [1]


def test_a_rank_whose_time_was_not_recorded_has_no_cause() -> None:
    build = TraceBuilder()
    for step in range(3):
        start = step * 100 * MS
        for rank in range(2):
            build.rank(rank)
            if rank == 0:
                build.rank(0).phase("forward", start, start + 10 * MS).phase(
                    "optimizer", start + 60 * MS, start + 99 * MS
                )
        build.collective({0: (start + 10 * MS, start + 52 * MS), 1: (start + 50 * MS, start + 52 * MS)})
    found = analyze(build.trace(), "late")
    assert found["late_rank"].tolist() == [1, 1, 1]
    assert set(found["cause_kind"].tolist()) == {"unknown"}
    assert found["cause_ns"].tolist() == [-1, -1, -1]


@pytest.mark.parametrize(("error_ns", "late_by_ns"), [(0, 21 * MS), (30 * MS, 20 * MS)])
def test_a_window_begins_when_all_had_entered_though_some_left_later(error_ns: int, late_by_ns: int) -> None:
    """Rank 1 sleeps 20 ms a step. Rank 0 leaves each all-reduce 1 ms before rank 1 does and enters the next."""
    build = two_hosts(error_ns)
    late_at, level = [20 * MS + step * 22 * MS for step in range(6)], 0
    for step, at in enumerate(late_at):
        build.rank(1).wait(WaitOp.SLEEP, at - 20 * MS, at)
        keys = build.collective({0: (level, at + MS), 1: (at, at + 2 * MS)})
        for rank, (begin, end) in {0: (level, at + MS), 1: (at, at + 2 * MS)}.items():
            build.rank(rank).collective_wait(keys[rank], begin, end)
        for rank in range(2):
            build.rank(rank).step_mark(late_at[step] - 20 * MS)
        level = at + MS
    for rank in range(2):
        build.rank(rank).step_mark(late_at[-1] + 2 * MS)
    found = analyze(build.trace(), "late")
    assert len(found) == 6
    assert set(found["late_rank"].tolist()) == {1}
    assert set(found["cause_kind"].tolist()) == {"sleep"}
    assert set(found["cause_ns"].tolist()) == {20 * MS}
    # Since all were there: 2 ms of transfer, where rank 0 had 1, then the sleep. By lengths both transfers took 1 ms.
    assert set(found["late_by_ns"][found["step"] > 0].tolist()) == {late_by_ns}


def test_buckets_in_flight_together_have_one_cause_and_cost_their_wait_once() -> None:
    build = TraceBuilder()
    for step in range(2):
        start = step * 200 * MS
        for rank in range(2):
            slow = 50 * MS if rank == 1 else 0
            build.rank(rank).phase("forward", start, start + 10 * MS + slow)
            build.rank(rank).phase("backward", start + 10 * MS + slow, start + 90 * MS)
            build.rank(rank).phase("optimizer", start + 90 * MS, start + 95 * MS)
        for bucket in range(2):
            at = start + (15 + bucket) * MS
            build.collective({0: (at, start + 80 * MS + bucket), 1: (at + 50 * MS, start + 80 * MS + bucket)})
    found = analyze(build.trace(), "late")
    assert set(found["cause_kind"].tolist()) == {"compute"}
    assert (found["wait_ns"] == 50 * MS).all()
    # The second bucket was called 1 ms later and is waited for 1 ms longer.
    assert sorted(found["total_wait_ns"].tolist()) == [MS, MS, 50 * MS, 50 * MS]
    assert (found["cause_ns"] == 50 * MS).all()


def test_a_late_rank_that_waited_for_another_group_passes_the_blame_on() -> None:
    build = TraceBuilder()
    tensor = build.group([1, 2], group=7, name="mesh_tp")
    for step in range(2):
        start = step * 200 * MS
        for rank in range(3):
            own = build.rank(rank)
            slow = 60 * MS if rank == 2 else 0
            own.phase("forward", start, start + 10 * MS + slow)
            # Of the data parallel group {0, 1}, rank 1 is late because rank 2 of its other group was.
            own.phase("backward", start + 10 * MS + slow, start + 110 * MS)
            own.phase("optimizer", start + 110 * MS, start + 120 * MS)
        keys = build.collective(
            {1: (start + 12 * MS, start + 73 * MS), 2: (start + 72 * MS, start + 73 * MS)}, group=tensor
        )
        build.rank(1).collective_wait(keys[1], start + 12 * MS, start + 73 * MS)
        build.collective({0: (start + 14 * MS, start + 76 * MS), 1: (start + 75 * MS, start + 76 * MS)}, group=8)
    found = analyze(build.trace(), "late")
    second = found.take(found["communicator"] != "mesh_tp")
    assert set(second["late_rank"].tolist()) == {1}
    assert set(second["cause_kind"].tolist()) == {"straggler"}
    assert set(second["cause_name"].tolist()) == {"rank 2"}
    assert (second["cause_ns"] == 60 * MS).all()
    first = found.take(found["communicator"] == "mesh_tp")
    assert set(zip(first["late_rank"].tolist(), first["cause_kind"].tolist(), strict=True)) == {(2, "compute")}


def test_an_operation_that_one_rank_never_entered_names_it() -> None:
    build = TraceBuilder()
    build.group(range(3))
    build.collective(dict.fromkeys(range(3), (10 * MS, 12 * MS)))
    build.collective({0: (20 * MS, -1), 2: (30 * MS, -1)})
    trace = build.trace()
    row = costliest(trace)
    assert (row["late_rank"], row["waiting_ranks"], row["method"], row["excess_ns"]) == (1, "0,2", "hung", -1)
    reported = analyze(trace, "collectives")
    assert reported["last_rank"][reported["sequence"] == 1].tolist() == [1, 1]


def two_hosts(error_ns: int) -> TraceBuilder:
    """A rank on each, and how far the second one's clock may be off."""
    build = TraceBuilder(hosts=["node00", "node01"])
    for host, error in (("node00", 0), ("node01", error_ns)):
        build.clock(host, error, reference="node00")
    return build


def test_clocks_that_cannot_decide_name_nobody() -> None:
    build = two_hosts(2 * MS)
    build.collective({0: (10 * MS, 22 * MS), 1: (11 * MS, 22 * MS)})
    row = costliest(build.trace())
    assert (row["late_rank"], row["method"], row["cause_kind"]) == (-1, "unordered", "unknown")
    assert len(analyze(build.trace(), "late_ranks")) == 0


def test_the_transfer_is_held_against_the_best_of_the_run() -> None:
    build = TraceBuilder()
    for number in range(20):
        start = number * 100 * MS
        slow = 30 * MS if number == 11 else 0
        build.collective({0: (start, start + 12 * MS + slow), 1: (start + 2 * MS, start + 12 * MS + slow)})
    found = analyze(build.trace(), "late").sort_by("sequence")
    assert set(found["expected_by"].tolist()) == {"run"}
    assert (found["expected_ns"] == 10 * MS).all()
    assert found["excess_ns"][11] == 30 * MS
    assert found["excess_ns"].sum() == 30 * MS


def test_a_device_that_idles_after_the_call_skews_the_launch() -> None:
    build = TraceBuilder()
    for rank in range(2):
        rank_ = build.rank(rank)
        rank_.phase("forward", 0, 5 * MS).phase("optimizer", 80 * MS, 90 * MS)
        compute = rank_.gpu().stream("compute", compute=True)
        compute.kernel(0, (40 if rank else 10) * MS, "gemm")
    build.device_collective({0: (4 * MS, 5 * MS, 10 * MS, 50 * MS), 1: (4 * MS, 5 * MS, 46 * MS, 50 * MS)})
    row = costliest(build.trace())
    assert (row["late_rank"], row["launch_skew_ns"], row["wait_ns"]) == (1, 6 * MS, 30 * MS)


def test_the_same_rank_again_and_again_is_distinguished_from_chance() -> None:
    found = analyze(job("fetch"), "late_ranks")
    row = next(iter(found.rows()))
    assert (row["rank"], row["last_count"], row["steps_last_count"], row["share_ratio"]) == (LATE_RANK, 5, 5, 1.0)
    assert (row["cause_kind"], row["verdict"]) == ("fetch", "always")
    assert (row["first_step_index"], row["last_step_index"]) == (1, 5)
    assert row["chance_ratio"] == pytest.approx(8 * (1 / 8) ** 5)
    assert row["total_wait_ns"] == pytest.approx(5 * 7 * LATE_NS, rel=0.05)
    once = analyze(job("fetch", late_steps=(2,)), "late_ranks")
    assert once["verdict"].tolist() == ["once"]


def test_taking_turns_is_not_always_the_same() -> None:
    build, random = TraceBuilder(), np.random.default_rng(1)
    for number in range(200):
        start, slow = number * 100 * MS, int(random.integers(4))
        build.collective({r: (start + (20 * MS if r == slow else 0), start + 30 * MS) for r in range(4)})
    found = analyze(build.trace(), "late_ranks")
    assert found["steps_last_count"].sum() == 200
    assert set(found["verdict"].tolist()) == {"alternates"}


def test_bubbles_of_a_pipeline_are_what_a_stage_waits_for_its_neighbour() -> None:
    build = TraceBuilder()
    stages = build.group([0, 1], group=9, name="mesh_pp")
    for step in range(2):
        start = step * 100 * MS
        for rank in range(2):
            own = build.rank(rank)
            own.phase("forward", start + rank * 30 * MS, start + (30 + rank * 30) * MS)
            own.phase("optimizer", start + 90 * MS, start + 100 * MS)
        sent = {"op": CollectiveOp.SEND, "group": stages, "peer_rank": 1, "sequence": step}
        build.collective({0: (start + 30 * MS, start + 31 * MS)}, **sent)
        keys = build.collective(
            {1: (start + 2 * MS, start + 31 * MS)}, op=CollectiveOp.RECEIVE, group=stages, peer_rank=0, sequence=step
        )
        build.rank(1).collective_wait(keys[1], start + 2 * MS, start + 30 * MS)
    build.rank(1).batch_wait(0, 0, 1 * MS)
    found: Table = analyze(build.trace(), "pipeline")
    second = found.take((found["rank"] == 1) & (found["step"] == 1))
    assert (second["stage_index"].tolist(), second["from_rank"].tolist()) == ([1], [0])
    assert second["wait_ns"].tolist() == [28 * MS]
    assert second["bubble_ns"].tolist() == [28 * MS]
    assert second["transfer_ns"].tolist() == [MS]
    first = found.take((found["rank"] == 0) & (found["step"] == 1))
    assert (first["sends_count"].tolist(), first["bubble_ns"].tolist()) == ([1], [0])


def test_a_receive_posted_a_step_ahead_costs_the_step_in_which_the_stage_stood() -> None:
    """Stage 1 posts its receives 80 ms before each step; stage 0 sends 30 ms into it."""
    build = TraceBuilder()
    messages = build.group([0, 1], group=77, name="pp 0 to 1")
    for step in range(4):
        start = step * 100 * MS
        build.rank(0).phase("forward", start, start + 30 * MS).phase("optimizer", start + 60 * MS, start + 100 * MS)
        build.rank(1).phase("forward", start + 31 * MS, start + 50 * MS)
        build.rank(1).phase("optimizer", start + 60 * MS, start + 100 * MS)
        done = start + 31 * MS
        build.collective({0: (start + 30 * MS, done)}, op=CollectiveOp.SEND, peer_rank=1, group=messages, sequence=step)
        keys = build.collective(
            {1: (start - 80 * MS if step else 0, done)},
            op=CollectiveOp.RECEIVE,
            peer_rank=0,
            group=messages,
            sequence=step,
        )
        build.rank(1).collective_wait(keys[1], start, done)
    trace = build.trace()
    found = analyze(trace, "pipeline")
    stage = found.take((found["rank"] == 1) & (found["step"] > 0)).sort_by("step")
    assert stage["bubble_ns"].tolist() == [30 * MS] * 3
    assert stage["receives_count"].tolist() == [1] * 3
    # The last step posts nothing; before that a receive is pending all the time but while its data move.
    assert stage["wait_ns"].tolist() == [100 * MS, 100 * MS, 30 * MS]
    stalls = analyze(trace, "stalls")
    late = stalls.take((stalls["rank"] == 1) & (stalls["step"] > 0) & (stalls["kind"] == "straggler"))
    assert late.sort_by("step")["stall_ns"].tolist() == stage["bubble_ns"].tolist()


def test_messages_are_matched_by_number_where_one_side_was_recorded_later() -> None:
    """The recording of rank 0 begins after its first send; every receive is waited for 5 ms."""
    build = TraceBuilder()
    messages = build.group([0, 1], group=77, name="pp 0 to 1")
    for number in range(4):
        at = number * 100 * MS
        build.rank(0).phase("forward", at, at + 25 * MS).phase("optimizer", at + 60 * MS, at + 100 * MS)
        build.rank(1).phase("forward", at, at + 20 * MS).phase("optimizer", at + 60 * MS, at + 100 * MS)
        if number:
            build.collective(
                {0: (at + 25 * MS, at + 26 * MS)}, op=CollectiveOp.SEND, peer_rank=1, group=messages, sequence=number
            )
        build.collective(
            {1: (at + 20 * MS, at + 27 * MS)}, op=CollectiveOp.RECEIVE, peer_rank=0, group=messages, sequence=number
        )
    found = analyze(build.trace(), "collectives")
    received = found.take(found["op"] == "receive").sort_by("sequence")
    assert received["wait_ns"].tolist() == [0, 5 * MS, 5 * MS, 5 * MS]
    assert received["last_rank"].tolist() == [-1, 0, 0, 0]


def test_ranks_recorded_from_different_steps_on_are_compared_over_the_same_time() -> None:
    """Ranks 2 and 3 lack the first step; in the second, rank 2 computes 10 ms longer."""
    build = TraceBuilder()
    build.group(range(4))
    for step in range(3):
        start, calls = step * 100 * MS, {}
        for rank in range(4):
            slow = 10 * MS if (rank, step) == (2, 1) else 0
            if step or rank < 2:
                build.rank(rank).phase("forward", start, start + 20 * MS + slow)
                build.rank(rank).phase("optimizer", start + 50 * MS, start + 100 * MS)
                calls[rank] = start + 20 * MS + slow, start + 40 * MS
        build.collective(calls, sequence=step)
    row = costliest(build.trace())
    assert (row["late_rank"], row["cause_kind"], row["cause_ns"], row["late_by_ns"]) == (2, "compute", 10 * MS, 10 * MS)


def test_runs_without_the_data_are_refused_with_a_reason() -> None:
    with pytest.raises(MissingDataError, match="no collective"):
        analyze(TraceBuilder().trace(), "late")
    with pytest.raises(MissingDataError, match="no send or receive"):
        analyze(job("fetch"), "pipeline")
    with pytest.raises(UsageError, match="too few"):
        analyze(job("fetch"), "late", top=0)


def test_more_ranks_than_are_compared_give_the_same_cause() -> None:
    row = costliest(job("prep", ranks=40))
    assert (row["late_rank"], row["cause_kind"], row["cause_ns"]) == (LATE_RANK, "prep", LATE_NS)


def test_a_rank_that_began_its_step_later_is_not_blamed_for_what_it_did_since() -> None:
    """What kept it lies before the recording; a few microseconds more of something else do not explain it."""
    build = TraceBuilder()
    for rank in range(4):
        begin = 30 * MS if rank == 2 else 0
        more = 100_000 if rank == 2 else 0
        build.rank(rank).batch_wait(0, begin, begin + MS + more)
        build.rank(rank).phase("forward", begin + MS + more, begin + 10 * MS).phase("optimizer", 60 * MS, 70 * MS)
    build.collective({r: ((40 if r == 2 else 10) * MS, 50 * MS) for r in range(4)})
    row = costliest(build.trace())
    assert (row["late_rank"], row["cause_kind"], row["cause_ns"], row["late_by_ns"]) == (2, "before", 30 * MS, 30 * MS)
    assert row["cause_name"] == ""


def device_job(kind: str) -> Trace:
    """Three ranks of two kernels and an all-reduce on their devices; rank 2 loses 30 ms by ``kind`` in each step."""
    build = TraceBuilder()
    for step in range(3):
        start = step * 100 * MS
        times = {}
        for number in range(3):
            rank, slow = build.rank(number), 30 * MS if number == 2 else 0
            stalled = slow if kind == "launch" else 0
            rank.phase("forward", start, start + 4 * MS + stalled)
            compute = rank.gpu().stream("compute", compute=True)
            at = start + 2 * MS
            launched = (start + MS, start + MS + 1000)
            if kind == "h2d":
                compute.kernel(
                    at,
                    at + MS + slow,
                    "Memcpy HtoD",
                    launch=launched,
                    work=DeviceWork.COPY,
                    copy=CopyDirection.HOST_TO_DEVICE,
                )
                at += MS + slow
            compute.kernel(at, at + 5 * MS, "norm", launch=launched)
            at += 5 * MS + stalled
            more = slow if kind == "compute" else 0
            then = (start + 3 * MS + stalled, start + 3 * MS + stalled + 1000)
            compute.kernel(at, at + 20 * MS + more, "gemm", launch=then)
            at += 20 * MS + more
            rank.gpu().stream("nccl").kernel(
                at, start + 75 * MS, "ncclDevKernel_AllReduce", launch=then, work=DeviceWork.COMMUNICATION
            )
            times[number] = (start + 4 * MS + stalled, start + 4 * MS + stalled + 1000, at, start + 75 * MS)
            rank.phase("optimizer", start + 90 * MS, start + 95 * MS)
        build.device_collective(times, source=CollectiveSource.IMPORTED)
    return build.trace()


@pytest.mark.parametrize(("kind", "name"), [("compute", "gemm"), ("h2d", ""), ("launch", "")])
def test_what_kept_a_device_is_named(kind: str, name: str) -> None:
    found = analyze(device_job(kind), "late")
    assert (found["late_rank"] == 2).all()
    assert (found["wait_ns"] + found["launch_skew_ns"] == 30 * MS).all()
    assert set(found["cause_kind"].tolist()) == {kind}
    assert found["cause_ns"] == pytest.approx(30 * MS, rel=0.05)
    assert set(found["cause_name"].tolist()) == {name}


def test_clocks_too_far_apart_leave_the_lengths_to_decide() -> None:
    """Rank 1's host is 15 ms ahead and nobody knows by how much; it computes 40 ms longer."""
    build = two_hosts(20 * MS)
    for step in range(3):
        call, end = {}, {}
        for rank in range(2):
            start = step * 100 * MS + rank * 15 * MS
            slow = 40 * MS * rank
            build.rank(rank).phase("forward", start, start + 10 * MS + slow)
            build.rank(rank).phase("optimizer", start + 90 * MS, start + 99 * MS)
            call[rank], end[rank] = start + 10 * MS + slow, start + 55 * MS
        build.collective({rank: (call[rank], end[rank]) for rank in range(2)})
    found = analyze(build.trace(), "late")
    assert set(found["method"].tolist()) == {"duration"}
    assert (found["late_rank"] == 1).all()
    assert set(found["cause_kind"].tolist()) == {"compute"}
    assert (found["cause_ns"] == 40 * MS).all()
    assert (found["late_by_ns"] == 40 * MS).all()
    assert found["link"].tolist() == ["node00, node01"] * 3


def test_dlrm_on_eight_gpus_names_rank_7_and_admits_what_lies_before_the_step() -> None:
    trace = stashtrace.load(str(corpus("kineto/dlrm8_v100")))
    found = analyze(trace, "late").sort_by("sequence")
    assert len(found) == 8
    assert np.count_nonzero(found["late_rank"] == 7) == 5
    times = analyze(trace, "collectives")
    for sequence, wait, skew in zip(
        *(found[n].tolist() for n in ("sequence", "wait_ns", "launch_skew_ns")), strict=True
    ):
        assert wait + skew == times["wait_ns"][times["sequence"] == sequence].max()
    # Its step began late and the recording begins with it; afterwards its device waited for its host.
    assert found["cause_kind"][0] == "before"
    assert set(found["cause_kind"][1:].tolist()) == {"launch"}
    explained = found["cause_ns"][1:] / found["late_by_ns"][1:]
    assert (explained > 0.75).all()
    assert (explained < 1.25).all()
    recurring = analyze(trace, "late_ranks")
    assert (recurring["rank"][0], recurring["last_count"][0], recurring["verdict"][0]) == (7, 5, "once")
