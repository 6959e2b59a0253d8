"""Ranks with a device, watched by timing events: each rule of stalls.md 2.1 on a timeline of milliseconds."""

from __future__ import annotations

import itertools

import pytest
from analysis.table_text import expected, stall_text, step_text
from builders import MS, TraceBuilder
from device_rows import StreamBuilder

from stashtrace.analysis.registry import analyze
from stashtrace.analysis.stalls.budget import stalls
from stashtrace.schema.kinds import (
    Awaited,
    BatchPhase,
    Bracket,
    BracketFlag,
    CollectiveOp,
    CollectiveSource,
    CopyDirection,
    DeviceCall,
    WaitOp,
)


def rank_with_gpu(
    build: TraceBuilder, number: int = 0, *, steps_ms: tuple[int, ...] = (0, 100), loaded: bool = True
) -> StreamBuilder:
    """A rank whose host runs far ahead: one update per step within the first milliseconds, marks on the device."""
    rank = build.rank(number)
    rank.lives(0, (steps_ms[-1] + 10) * MS)
    compute = rank.gpu(0).stream("compute", compute=True)
    for at, (begin, end) in enumerate(itertools.pairwise(steps_ms)):
        rank.phase("forward", (at * 4) * MS, (at * 4 + 1) * MS).phase("optimizer", (at * 4 + 2) * MS, (at * 4 + 4) * MS)
        compute.step(begin * MS, at, host_ns=at * 4 * MS)
        if loaded:
            compute.mark((end - 1) * MS, host_ns=0)
    compute.step(steps_ms[-1] * MS, len(steps_ms) - 1, host_ns=(len(steps_ms) - 1) * 4 * MS)
    return compute


def test_steps_are_the_devices() -> None:
    build = TraceBuilder()
    rank_with_gpu(build, steps_ms=(3, 100, 190, 300))
    trace = build.trace()
    assert step_text(trace) == "0 0: 3-100 train\n0 1: 100-190 train\n0 2: 190-300 train"
    table = stalls(trace, warmup=True)
    assert set(table["method"][table["step"] >= 0]) == {"brackets"}
    assert set(table["method"][table["step"] < 0]) == {"host"}


def test_without_timed_marks_steps_are_the_hosts() -> None:
    build = TraceBuilder()
    rank = build.rank(0).phase("forward", 0, 4 * MS).phase("optimizer", 4 * MS, 8 * MS)
    compute = rank.gpu(0).stream("compute", compute=True)
    compute.bracket(Bracket.STEP, -1, -1, host=(0, 0), correlation=0)
    compute.bracket(Bracket.STEP, -1, -1, host=(8 * MS, 8 * MS), correlation=1)
    trace = build.trace()
    assert step_text(trace) == "0 0: 0-8 train"
    assert analyze(trace, "steps")["clock_code"].tolist() == [0]
    assert set(stalls(trace)["method"]) == {"host"}


def test_a_boundary_without_a_mark_keeps_the_hosts_lead() -> None:
    build = TraceBuilder()
    rank = build.rank(0).lives(0, 600 * MS)
    compute = rank.gpu(0).stream("compute", compute=True)
    for at in range(4):
        rank.phase("forward", at * 100 * MS, (at * 100 + 20) * MS)
        rank.phase("optimizer", (at * 100 + 50) * MS, (at * 100 + 100) * MS)
        if at != 2:
            compute.step((at * 100 + 30) * MS, at, host_ns=at * 100 * MS)
    compute.step(430 * MS, 4, host_ns=400 * MS)
    assert step_text(build.trace()).splitlines()[1:3] == ["0 1: 130-230 train", "0 2: 230-330 train"]


def test_of_the_marks_of_one_number_the_last_counts() -> None:
    build = TraceBuilder()
    rank = build.rank(0).lives(0, 300 * MS)
    compute = rank.gpu(0).stream("compute", compute=True)
    rank.phase("forward", 0, 10 * MS).phase("optimizer", 40 * MS, 50 * MS).phase("optimizer", 90 * MS, 100 * MS)
    compute.step(20 * MS, 0, host_ns=0)
    compute.step(80 * MS, 1, host_ns=50 * MS).step(150 * MS, 1, host_ns=100 * MS)
    assert step_text(build.trace()) == "0 0: 20-150 train"


def test_marks_alone_make_steps() -> None:
    build = TraceBuilder()
    rank = build.rank(0).lives(0, 300 * MS)
    compute = rank.gpu(0).stream("compute", compute=True)
    for at in range(4):
        compute.step((at * 50 + 20) * MS, at, host_ns=at * 10 * MS)
    assert step_text(build.trace()) == "0 0: 20-70 marked\n0 1: 70-120 marked\n0 2: 120-170 marked"


def test_batch_wait_is_exposed_only_while_the_stream_is_dry() -> None:
    build = TraceBuilder()
    compute = rank_with_gpu(build)
    rank = build.rank(0)
    # next() from 10 to 60; the device still works until 30. The worker reads from 20 to 40 and ends its batch at 55.
    compute.batch_wait(30 * MS, 61 * MS, batch=0, host=(10 * MS, 60 * MS))
    rank.batch_wait(0, 10 * MS, 60 * MS, worker=0)
    rank.worker(0).fetch(0, 5 * MS, 55 * MS).io(20 * MS, 40 * MS, blocked=True)
    # A wait that ends before the device has nothing left costs nothing.
    compute.batch_wait(80 * MS, 80 * MS, batch=1, host=(62 * MS, 70 * MS))
    assert stall_text(build.trace()) == "0 0: compute 70, fetch 10, prep 15, handoff 5"


def test_batch_wait_without_loader_records_is_data_of_any_kind() -> None:
    build = TraceBuilder()
    compute = rank_with_gpu(build)
    compute.batch_wait(30 * MS, 61 * MS, host=(10 * MS, 60 * MS))
    line = stall_text(build.trace())
    assert "prep 30 [0..30]" in line
    assert "fetch 0 [0..30]" in line
    assert "handoff 0 [0..30]" in line


def test_the_end_of_workers_is_hand_off_where_the_device_may_have_had_nothing_to_do() -> None:
    build = TraceBuilder()
    rank = build.rank(0).lives(0, 120 * MS)
    compute = rank.gpu(0).stream("compute", compute=True)
    rank.phase("forward", 0, 4 * MS).phase("forward", 70 * MS, 80 * MS).phase("optimizer", 80 * MS, 100 * MS)
    compute.step(0, 0, host_ns=0).step(100 * MS, 1, host_ns=100 * MS)
    # The job ends an iterator itself, outside next(): the host waits from 20 to 60.
    rank.batch(BatchPhase.WORKERS_END, -1, 20 * MS, 60 * MS)
    assert "handoff 40 [0..40]" in stall_text(build.trace())
    # By then the device had nothing left.
    compute.gpu.call(DeviceCall.STREAM_SYNCHRONIZE, 10 * MS, 15 * MS, stream=compute)
    compute.mark(70 * MS, host_ns=70 * MS)
    assert "handoff 40," in stall_text(build.trace()) + ","


def test_stream_wait_ends_with_the_awaited_work() -> None:
    build = TraceBuilder()
    compute = rank_with_gpu(build)
    side = compute.gpu.stream("copy")
    copy = side.bracket(Bracket.COPY, 10 * MS, 30 * MS, host=(8 * MS, 9 * MS), copy=CopyDirection.HOST_TO_DEVICE)
    # The copy ends at 30, the second event comes at 45: the rest is the host's submission gap.
    compute.wait(20 * MS, 45 * MS, awaited=Awaited.COPY, awaited_ns=30 * MS, awaited_id=copy, host=(4 * MS, 5 * MS))
    # The end of the awaited work is known by its bracket alone.
    other = side.bracket(Bracket.COPY, 50 * MS, 60 * MS, host=(8 * MS, 9 * MS), copy=CopyDirection.HOST_TO_DEVICE)
    compute.wait(55 * MS, 70 * MS, awaited=Awaited.COPY, awaited_id=other, host=(4 * MS, 5 * MS))
    # Nothing tracked, and compute on a side stream: no stall.
    compute.wait(70 * MS, 80 * MS, awaited=Awaited.NOTHING, awaited_ns=80 * MS, host=(4 * MS, 5 * MS))
    compute.wait(80 * MS, 90 * MS, awaited=Awaited.COMPUTE, awaited_ns=90 * MS, host=(4 * MS, 5 * MS))
    assert stall_text(build.trace()) == "0 0: compute 85, h2d 15"


def test_stream_wait_whose_work_has_no_end_is_bounded_by_the_host() -> None:
    build = TraceBuilder()
    compute = rank_with_gpu(build)
    # Submitted at 42 while the stream was dry since 40: from 40 to 42 it may have been the host.
    compute.wait(40 * MS, 50 * MS, awaited=Awaited.COPY, host=(40 * MS, 42 * MS), copy=CopyDirection.HOST_TO_DEVICE)
    assert "h2d 8 [8..10]" in stall_text(build.trace())


def test_a_wait_for_a_copy_inside_the_device_is_no_wait_for_the_host() -> None:
    build = TraceBuilder()
    compute = rank_with_gpu(build)
    # No row of the copy itself: the wait's row says where the copy went, or nobody knows.
    for begin, copy in ((10, CopyDirection.DEVICE_TO_DEVICE), (30, CopyDirection.PEER), (50, CopyDirection.UNKNOWN)):
        compute.wait(
            begin * MS,
            (begin + 6) * MS,
            awaited=Awaited.COPY,
            awaited_ns=(begin + 6) * MS,
            host=(4 * MS, 5 * MS),
            copy=copy,
        )
    compute.wait(70 * MS, 73 * MS, awaited=Awaited.COPY, awaited_ns=73 * MS, host=(4 * MS, 5 * MS))
    assert stall_text(build.trace()) == "0 0: compute 94 [85..94], interconnect 6, h2d 0 [0..9]"


def test_an_untimed_copy_inside_the_device_widens_nothing() -> None:
    build = TraceBuilder()
    compute = rank_with_gpu(build, steps_ms=(0, 100, 200))
    for copy, widened in ((CopyDirection.DEVICE_TO_DEVICE, False), (CopyDirection.HOST_TO_DEVICE, True)):
        compute.bracket(Bracket.COPY, -1, -1, host=(6 * MS, 7 * MS), flags=BracketFlag.UNTIMED, copy=copy)
        assert ("h2d 0 [0.." in stall_text(build.trace())) == widened


def test_copies_on_a_compute_stream_are_exposed_themselves() -> None:
    build = TraceBuilder()
    compute = rank_with_gpu(build)
    compute.copy(10 * MS, 22 * MS, host=(1 * MS, 2 * MS))
    compute.copy(30 * MS, 34 * MS, host=(1 * MS, 2 * MS), direction=CopyDirection.DEVICE_TO_HOST)
    compute.copy(40 * MS, 49 * MS, host=(1 * MS, 2 * MS), direction=CopyDirection.DEVICE_TO_DEVICE)
    compute.copy(60 * MS, 65 * MS, host=(1 * MS, 2 * MS), direction=CopyDirection.PEER)
    assert stall_text(build.trace()) == "0 0: compute 79, interconnect 5, h2d 16"


def two_ranks(hosts: tuple[str, ...] = ("a",), error_ns: int = 500) -> tuple[TraceBuilder, dict[int, StreamBuilder]]:
    build = TraceBuilder(hosts)
    streams = {}
    for number in (0, 1):
        build.rank(number).gpu(0, error_ns=error_ns)
        streams[number] = rank_with_gpu(build, number)
    return build, streams


def test_waiting_for_a_collective_is_straggler_then_link() -> None:
    build, compute = two_ranks()
    side = {r: s.gpu.stream("nccl") for r, s in compute.items()}
    build.device_collective(
        {0: (5 * MS, 6 * MS, 20 * MS, 60 * MS), 1: (5 * MS, 6 * MS, 45 * MS, 60 * MS)}, streams=side, bracket=True
    )
    for rank, begin in ((0, 30), (1, 50)):
        awaited = 1 + next(
            i
            for i, r in enumerate(build.rows["device_brackets"])
            if r["bracket_code"] == Bracket.COLLECTIVE and r["rank"] == rank
        )
        compute[rank].wait(
            begin * MS,
            62 * MS,
            awaited=Awaited.COLLECTIVE,
            awaited_ns=60 * MS,
            awaited_id=awaited,
            host=(7 * MS, 8 * MS),
        )
    assert stall_text(build.trace()) == expected(
        """
        0 0: compute 70, straggler 15 <1, interconnect 15
        1 0: compute 90, interconnect 10
        """
    )


def test_a_collective_on_the_compute_stream_is_exposed_itself() -> None:
    build, compute = two_ranks(("a", "b"))
    build.device_collective(
        {0: (5 * MS, 6 * MS, 20 * MS, 60 * MS), 1: (5 * MS, 6 * MS, 45 * MS, 60 * MS)}, streams=compute, bracket=True
    )
    assert stall_text(build.trace()) == expected(
        """
        0 0: compute 60, straggler 25 <1, network 15
        1 0: compute 85, network 15
        """
    )


def test_enter_is_the_return_of_the_call_if_the_event_came_before_it() -> None:
    build, compute = two_ranks()
    # Rank 1's call returns at 50, its before-event was reached at 40: it cannot have entered before 50.
    build.device_collective(
        {0: (5 * MS, 6 * MS, 20 * MS, 60 * MS), 1: (39 * MS, 50 * MS, 40 * MS, 60 * MS)}, streams=compute
    )
    assert "straggler 30 <1, interconnect 10" in stall_text(build.trace()).splitlines()[0]


def test_queued_behind_an_earlier_collective_the_earlier_one_decides() -> None:
    build, compute = two_ranks()
    side = {r: s.gpu.stream("nccl") for r, s in compute.items()}
    times = {0: (5 * MS, 6 * MS, 10 * MS, 40 * MS), 1: (5 * MS, 6 * MS, 30 * MS, 40 * MS)}
    build.device_collective(times, streams=side)
    build.device_collective(dict.fromkeys((0, 1), (6 * MS, 7 * MS, 40 * MS, 50 * MS)), streams=side, bracket=True)
    awaited = next(r["bracket_id"] for r in build.rows["device_brackets"] if r["bracket_code"] == Bracket.COLLECTIVE)
    compute[0].wait(
        20 * MS, 50 * MS, awaited=Awaited.COLLECTIVE, awaited_ns=50 * MS, awaited_id=awaited, host=(7 * MS, 8 * MS)
    )
    assert "straggler 10 <1, interconnect 20" in stall_text(build.trace()).splitlines()[0]
    # Of the 20, the earlier one's bytes moved in ten.
    assert analyze(build.trace(), "hidden")["queued_ns"].tolist() == [10 * MS, 0]


@pytest.mark.parametrize("side_waits", [True, False])
def test_before_it_enters_a_rank_waits_for_nobody(side_waits: bool) -> None:
    build, compute = two_ranks()
    side = {r: s.gpu.stream("nccl") for r, s in compute.items()}
    build.device_collective(dict.fromkeys((0, 1), (5 * MS, 6 * MS, 40 * MS, 60 * MS)), streams=side, bracket=True)
    awaited = next(r["bracket_id"] for r in build.rows["device_brackets"] if r["bracket_code"] == Bracket.COLLECTIVE)
    compute[0].wait(
        25 * MS, 60 * MS, awaited=Awaited.COLLECTIVE, awaited_ns=60 * MS, awaited_id=awaited, host=(7 * MS, 8 * MS)
    )
    if side_waits:
        side[0].wait(25 * MS, 40 * MS, awaited=Awaited.NOTHING, host=(3 * MS, 4 * MS))
    first = stall_text(build.trace()).splitlines()[0]
    if side_waits:  # for something that was not tracked: nobody knows
        assert "compute 80 [65..80]" in first
        assert "interconnect 20 [20..35]" in first
        assert "launch 0 [0..15]" in first
    else:  # the stream worked: the collective stood behind something that was no wait
        assert first == "0 0: compute 80, interconnect 20"


def test_rooted_and_point_to_point_wait_for_their_source_only() -> None:
    build, compute = two_ranks()
    build.device_collective(
        {0: (5 * MS, 6 * MS, 10 * MS, 20 * MS), 1: (5 * MS, 6 * MS, 15 * MS, 20 * MS)},
        streams=compute,
        op=CollectiveOp.BROADCAST,
        peer_rank=0,
    )
    build.device_collective(
        {0: (5 * MS, 6 * MS, 40 * MS, 50 * MS)}, streams=compute, op=CollectiveOp.SEND, peer_rank=1, sequence=1
    )
    build.device_collective(
        {1: (5 * MS, 6 * MS, 32 * MS, 50 * MS)}, streams=compute, op=CollectiveOp.RECEIVE, peer_rank=0, sequence=1
    )
    assert stall_text(build.trace()) == expected(
        """
        0 0: compute 80, interconnect 20
        1 0: compute 77, straggler 8 <0, interconnect 15
        """
    )


def test_clocks_that_err_too_much_leave_the_shortest_duration() -> None:
    build, compute = two_ranks(error_ns=20 * MS)
    # By these clocks rank 1 entered first, but it is rank 0 that took longer: rank 0 waited.
    build.device_collective(
        {0: (1 * MS, 2 * MS, 40 * MS, 80 * MS), 1: (1 * MS, 2 * MS, 30 * MS, 40 * MS)}, streams=compute
    )
    lines = stall_text(build.trace()).splitlines()
    assert "straggler 30 <1" in lines[0]
    assert "interconnect 10" in lines[0]
    assert "straggler" not in lines[1]
    assert "interconnect 10" in lines[1]


def test_proxies_say_how_long_bytes_were_between_hosts() -> None:
    build = TraceBuilder(("a", "a", "b"))
    compute = {}
    for number in range(3):
        compute[number] = rank_with_gpu(build, number)
    every = dict.fromkeys(range(3), (5 * MS, 6 * MS, 20 * MS, 60 * MS))
    build.device_collective(every, streams=compute, source=CollectiveSource.PLUGIN, network_ns=25 * MS)
    assert set(stall_text(build.trace()).splitlines()) == {
        f"{r} 0: compute 60, network 25, interconnect 15" for r in range(3)
    }


def test_a_group_across_hosts_without_proxies_is_estimated() -> None:
    build = TraceBuilder(("a", "a", "b"))
    compute = {}
    for number in range(3):
        compute[number] = rank_with_gpu(build, number)
    build.device_collective(dict.fromkeys(range(3), (5 * MS, 6 * MS, 20 * MS, 60 * MS)), streams=compute)
    assert stall_text(build.trace()).splitlines()[0] == ("0 0: compute 60, network 40 [0..40], interconnect 0 [0..40]")


@pytest.mark.parametrize("loaded", [True, False])
def test_several_compute_streams_must_all_wait(loaded: bool) -> None:
    build = TraceBuilder()
    first = rank_with_gpu(build)
    second = first.gpu.stream("second", compute=True)
    second.mark(2 * MS, host_ns=2 * MS).mark(98 * MS, host_ns=(1 if loaded else 98) * MS)
    first.copy(10 * MS, 30 * MS, host=(1 * MS, 2 * MS))
    second.copy(20 * MS, 50 * MS, host=(19 * MS, 20 * MS))
    # From 30 to 50 the first stream surely worked. From 10 to 20 the second may have, and did if it had work by then.
    assert stall_text(build.trace()) == (
        "0 0: compute 90, h2d 10" if loaded else "0 0: compute 90 [81..90], h2d 10 [10..19]"
    )


def test_a_device_that_reaches_events_at_once_may_be_starved() -> None:
    build = TraceBuilder()
    compute = rank_with_gpu(build, loaded=False)
    compute.mark(50 * MS, host_ns=50 * MS)  # empty at 50
    compute.mark(90 * MS, host_ns=60 * MS)  # loaded from 60 to 90
    trace = build.trace()
    assert stall_text(trace) == "0 0: compute 100 [96..100], launch 0 [0..4]"  # the step's mark was 96 ms ahead
    assert analyze(trace, "hidden")["host_paced_ns"].tolist()[0] == 4 * MS


def test_launch_is_a_bound_never_a_part_of_compute_in_silence() -> None:
    build = TraceBuilder()
    rank = build.rank(0).lives(0, 110 * MS)
    compute = rank.gpu(0).stream("compute", compute=True)
    rank.phase("forward", 0, 40 * MS).phase("optimizer", 60 * MS, 100 * MS)
    compute.step(0, 0).mark(30 * MS, host_ns=30 * MS).mark(70 * MS, host_ns=50 * MS).step(100 * MS, 1)
    trace = build.trace()
    assert stall_text(trace) == "0 0: compute 100 [20..100], launch 0 [0..80]"
    assert analyze(trace, "hidden")["host_paced_ns"].tolist() == [80 * MS]


def test_after_a_blocking_call_the_time_to_the_next_event_may_be_sync() -> None:
    build = TraceBuilder()
    rank = build.rank(0).lives(0, 110 * MS)
    compute = rank.gpu(0).stream("compute", compute=True)
    rank.phase("forward", 0, 10 * MS).phase("optimizer", 90 * MS, 100 * MS)
    compute.step(0, 0).mark(20 * MS, host_ns=5 * MS)
    compute.gpu.call(DeviceCall.STREAM_SYNCHRONIZE, 10 * MS, 40 * MS, stream=compute)
    compute.mark(60 * MS, host_ns=60 * MS).mark(99 * MS, host_ns=61 * MS).step(100 * MS, 1)
    # Busy: from 5 on behind the first mark, then inside the call; from 40 to 60 perhaps not.
    line = stall_text(build.trace())
    assert "sync 0 [0..20]" in line
    assert "compute 100 [73..100]" in line
    assert "launch 0 [0..7]" in line
    # A sleep right after the call is known to have launched nothing.
    rank.wait(WaitOp.SLEEP, 41 * MS, 58 * MS)
    assert "sync 17 [0..20]" in stall_text(build.trace())


def test_a_sleep_of_the_host_that_starves_the_device_is_other() -> None:
    build = TraceBuilder()
    rank = build.rank(0).lives(0, 110 * MS)
    compute = rank.gpu(0).stream("compute", compute=True)
    rank.phase("forward", 0, 10 * MS).phase("optimizer", 90 * MS, 100 * MS)
    compute.step(0, 0).mark(30 * MS, host_ns=1 * MS).mark(60 * MS, host_ns=60 * MS).mark(99 * MS, host_ns=61 * MS)
    compute.step(100 * MS, 1, host_ns=62 * MS)
    rank.wait(WaitOp.SLEEP, 20 * MS, 60 * MS)  # until 30 the device had work
    assert "other 30 [0..30]" in stall_text(build.trace())


def test_checkpoint_counts_while_the_device_is_not_known_to_work() -> None:
    build = TraceBuilder()
    rank = build.rank(0).lives(0, 110 * MS)
    compute = rank.gpu(0).stream("compute", compute=True)
    rank.phase("forward", 0, 5 * MS).phase("checkpoint", 10 * MS, 70 * MS).phase("optimizer", 90 * MS, 100 * MS)
    compute.step(0, 0).mark(30 * MS, host_ns=9 * MS)
    compute.gpu.call(DeviceCall.STREAM_SYNCHRONIZE, 12 * MS, 40 * MS, stream=compute)
    compute.mark(71 * MS, host_ns=71 * MS).mark(99 * MS, host_ns=72 * MS).step(100 * MS, 1, host_ns=73 * MS)
    assert "checkpoint 30," in stall_text(build.trace())


def test_graph_launches_are_shown_and_not_vouched_for() -> None:
    build = TraceBuilder()
    compute = rank_with_gpu(build)
    compute.graph(20 * MS, 70 * MS, host=(1 * MS, 2 * MS))
    trace = build.trace()
    assert stall_text(trace) == "0 0: compute 100 [50..100], other 0 [0..50]"
    assert analyze(trace, "hidden")["graph_opaque_ns"].tolist() == [50 * MS]


def test_a_function_on_the_host_holds_the_stream_up() -> None:
    build = TraceBuilder()
    compute = rank_with_gpu(build)
    compute.bracket(Bracket.HOST_FUNCTION, 20 * MS, 50 * MS, host=(1 * MS, 2 * MS))
    side = compute.gpu.stream("side")
    function = side.bracket(Bracket.HOST_FUNCTION, 55 * MS, 70 * MS, host=(2 * MS, 3 * MS))
    compute.wait(
        60 * MS, 71 * MS, awaited=Awaited.HOST_FUNCTION, awaited_ns=70 * MS, awaited_id=function, host=(3 * MS, 4 * MS)
    )
    trace = build.trace()
    assert stall_text(trace) == "0 0: compute 60, other 40"


def test_a_function_on_the_host_during_a_working_stream_costs_nothing() -> None:
    build = TraceBuilder()
    compute = rank_with_gpu(build)
    compute.gpu.stream("side").bracket(Bracket.HOST_FUNCTION, 20 * MS, 50 * MS, host=(1 * MS, 2 * MS))
    assert stall_text(build.trace()) == "0 0: compute 100"


def test_a_function_on_the_host_without_events_is_a_doubt() -> None:
    build = TraceBuilder()
    compute = rank_with_gpu(build, loaded=False)
    compute.mark(20 * MS, host_ns=0)
    compute.bracket(Bracket.HOST_FUNCTION, -1, -1, host=(1 * MS, 2 * MS))
    compute.mark(60 * MS, host_ns=3 * MS).mark(99 * MS, host_ns=3 * MS)
    assert stall_text(build.trace()) == "0 0: compute 100 [60..100], other 0 [0..40]"


def test_steps_without_events_say_so() -> None:
    build = TraceBuilder()
    compute = rank_with_gpu(build, steps_ms=(0, 100, 200))
    compute.bracket(Bracket.BATCH_WAIT, -1, -1, host=(6 * MS, 7 * MS), flags=BracketFlag.UNTIMED)
    second = stall_text(build.trace()).splitlines()[1]
    assert "prep 0 [0.." in second
    assert "fetch 0 [0.." in second


def test_untimed_collectives_are_counted() -> None:
    build, compute = two_ranks()
    build.device_collective({0: (1 * MS, 2 * MS, -1, -1), 1: (1 * MS, 2 * MS, -1, -1)}, streams=compute)
    build.device_collective(
        {0: (2 * MS, 3 * MS, 30 * MS, 40 * MS), 1: (2 * MS, 3 * MS, 30 * MS, 40 * MS)}, streams=compute
    )
    trace = build.trace()
    counted = analyze(trace, "hidden")
    assert counted["untimed_count"].tolist() == [1, 1]
    assert stall_text(trace).splitlines()[0] == "0 0: compute 90, interconnect 10"


def test_hidden_copies_and_collectives() -> None:
    build, compute = two_ranks()
    side = {r: s.gpu.stream("nccl") for r, s in compute.items()}
    compute[0].gpu.stream("copy").copy(10 * MS, 30 * MS, host=(1 * MS, 2 * MS))
    build.device_collective(dict.fromkeys((0, 1), (2 * MS, 3 * MS, 40 * MS, 70 * MS)), streams=side)
    row = next(analyze(build.trace(), "hidden").rows())
    assert (row["hidden_copy_ns"], row["hidden_communication_ns"]) == (20 * MS, 30 * MS)


@pytest.mark.parametrize("flag", [BracketFlag.CAPTURED, BracketFlag.FAILED])
def test_captured_and_failed_brackets_say_nothing(flag: BracketFlag) -> None:
    build = TraceBuilder()
    compute = rank_with_gpu(build)
    compute.bracket(Bracket.COPY, 10 * MS, 60 * MS, flags=flag, copy=CopyDirection.HOST_TO_DEVICE)
    assert stall_text(build.trace()) == "0 0: compute 100"
