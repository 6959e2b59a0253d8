"""Where threads were, by the newest of the stacks that the recorder sampled: no other program is asked."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from builders import MS, S, TraceBuilder
from stack_rows import FORKED, sample, stack_of

from stashtrace.analysis.findings.ending.hang_table import hang
from stashtrace.loading.peeks import frames_of, newest_stack, with_own_stack
from stashtrace.record.peek.model import Peek, ThreadPeek
from stashtrace.record.peek.proc import STACK_NOT_READ
from stashtrace.schema.kinds import StackFlag, TrackKind

MAIN, WAIT = "main /jobs/train.py:23", "fetch /jobs/train.py:41"


def tid_of(build: TraceBuilder, rank: int) -> int:
    tracks = build.trace().tracks
    return int(tracks["native_id"][tracks["track_id"] == build.rank(rank).track_id][0])


def test_the_newest_readable_sample_counts() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    sample(rank, 1 * S, stack_of(rank, MAIN, WAIT))
    sample(rank, 2 * S, stack_of(rank, MAIN))
    sample(rank, 3 * S, 0)
    trace, tid = build.trace(), tid_of(build, 0)
    assert newest_stack(trace, rank.process_id, tid) == ("main at /jobs/train.py:23",)
    assert newest_stack(trace, rank.process_id, tid, since_ns=2 * S + 1) == ()
    assert newest_stack(trace, rank.process_id, tid + 1) == ()
    assert frames_of(trace, rank.process_id, 10**6) == ()


def test_a_look_without_a_stack_takes_the_own_one_and_says_nothing_of_another_program() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    sample(rank, S, stack_of(rank, MAIN, WAIT))
    peek = Peek(
        4711, S, S, "S", ThreadPeek(tid_of(build, 0), "MainThread", "S"), unseen=(f"{STACK_NOT_READ}: why", "x")
    )
    found = with_own_stack(build.trace(), rank.process_id, peek)
    assert found.thread is not None
    assert found.thread.place == "fetch at /jobs/train.py:41"
    assert found.unseen == ("x",)
    nothing = with_own_stack(TraceBuilder().trace(), 0, peek)
    assert nothing.unseen == (f"{STACK_NOT_READ}: why; none was recorded", "x")
    read = Peek(4711, S, S, "S", ThreadPeek(1, "MainThread", frames=("read at /jobs/a.py:1",)))
    assert with_own_stack(build.trace(), rank.process_id, read) is read


@pytest.mark.parametrize(("flags", "held"), [(int(StackFlag.HOLDS_GIL), True), (0, False)])
def test_the_thread_that_holds_the_gil_is_named_by_its_samples(flags: int, held: bool) -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    other = build.track(rank.process_id, 77, "Thread-1 (compress)")
    for number in range(10):
        sample(rank, S + 20 * number * MS, stack_of(rank, MAIN))
        sample(rank, S + 20 * number * MS + 1, stack_of(rank, "compress /jobs/data.py:7"), track_id=other, flags=flags)
    peek = Peek(4711, S, S, "S", ThreadPeek(tid_of(build, 0), "MainThread", "S"))
    holder = with_own_stack(build.trace(), rank.process_id, peek).holder
    assert (holder is not None) is held
    if holder is not None:
        assert (holder.tid, holder.name, holder.place) == (77, "Thread-1 (compress)", "compress at /jobs/data.py:7")
    # Both have it by turns: nobody is kept from running.
    sample(rank, S + 200 * MS, stack_of(rank, MAIN), flags=StackFlag.HOLDS_GIL)
    assert with_own_stack(build.trace(), rank.process_id, peek).holder is None


def test_a_worker_is_where_its_loop_makes_batches_and_not_where_it_was_forked() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    idle, busy = stack_of(rank, *FORKED[:4]), stack_of(rank, *FORKED, "Pipe.__getitem__ /jobs/data.py:9")
    trace = build.trace()
    assert ThreadPeek(1, "", frames=frames_of(trace, rank.process_id, idle)).own_place == ""
    place = ThreadPeek(1, "", frames=frames_of(trace, rank.process_id, busy)).own_place
    assert place == "Pipe.__getitem__ at /jobs/data.py:9"


def test_a_job_that_was_killed_while_it_stood_still_is_named_by_line() -> None:
    build = TraceBuilder()
    build.group(range(2))
    for step in range(3):
        build.collective(dict.fromkeys(range(2), (step * 10 * MS, step * 10 * MS + MS)))
    build.collective({0: (40 * MS, -1, -1)})
    late = build.rank(1)
    late.phase("forward", 30 * MS, 35 * MS)
    for second in range(1, 30):
        sample(late, second * S, stack_of(late, MAIN, WAIT))
    track = build.track(late.process_id, tid_of(build, 1), "thread_run_ns_total", kind=TrackKind.COUNTER, unit="ns")
    for second in range(1, 31):
        build.add("counters", ts_ns=second * S, track_id=track, value=5e9)
    build.counter(0, "process_user_ns_total", {30 * S: 1.0})
    (row,) = hang(build.trace()).rows()
    assert row["rank"] == 1
    assert row["place"] == "fetch at /jobs/train.py:41"
