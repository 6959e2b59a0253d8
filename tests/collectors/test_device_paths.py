"""Times of work that reaches a device by an unusual path: launched late, next to a blocking stream, by a handle.

The host runs ahead of the device in these programs, so the doubles compute every time: a busy machine changes none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device import calls, run_ranks
from traced import TracedRun

from stashtrace.analysis.links.bandwidth import bandwidth
from stashtrace.schema.kinds import Awaited, Bracket, BracketFlag, CopyDirection
from stashtrace.summary.summary_text import summary

SCRIPT = "nccl.bandwidth 10GB\nnccl.latency 10us\nrate.h2d.pinned 10GB"
MS = 1_000_000
#: Of 100 MB over 10 GB/s.
TRANSFER = 10 * MS + 10_000
#: As torch does it: a side stream, for which the compute stream waits by an event behind the collective.
STEP = "allreduce 100MB stream=2; wait stream=0 for=2; kernel 1ms; step"
AHEAD = "kernel 400ms stream=2; step;"


def play(program: str, folder: Path, **options: Any) -> TracedRun:
    run = run_ranks(1, program, folder / "job", SCRIPT, collectors=("cuda", "nccl"), **options)
    assert [result["errors"] for result in run.results()] == [{}]
    return run


def lengths(run: TracedRun, kind: Bracket) -> list[int]:
    """Lengths of the brackets of a kind, -1 of an untimed one."""
    rows = run.trace.device_brackets
    rows = rows.take(rows["bracket_code"] == kind)
    timed = (rows["begin_ns"] >= 0) & (rows["end_ns"] >= 0)
    return np.where(timed, rows["end_ns"] - rows["begin_ns"], -1).tolist()


def periods(run: TracedRun) -> list[int]:
    """Times between the marks of steps; all of them are timed."""
    rows = run.trace.device_brackets
    rows = rows.take(rows["bracket_code"] == Bracket.STEP).sort_by("call_ns")
    assert (rows["begin_ns"] >= 0).all()
    return np.diff(rows["begin_ns"]).tolist()


def reasons(run: TracedRun) -> set[str]:
    return {reason for _, reason, _ in run.losses()}


def texts(run: TracedRun, column: str) -> str:
    return " ".join(run.texts(run.trace.losses, column))


GROUP = STEP.replace("allreduce 100MB stream=2", "group { allreduce 50MB stream=2; allreduce 50MB stream=2 }")
PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "blocking": ("comm init new=0;" + AHEAD + f"repeat 5 {{ {STEP} }}", {}),
    "non-blocking": ("comm init new=0 nonblocking;" + AHEAD + f"repeat 5 {{ {STEP} }}", {}),
    "non-blocking group": ("comm init new=0 nonblocking;" + AHEAD + f"repeat 5 {{ {GROUP} }}", {}),
    "next to a blocking stream": (
        "comm init new=0; stream 9 blocking; kernel 1us;" + AHEAD + f"repeat 5 {{ {STEP} }}",
        {},
    ),
    "by a handle": (
        "comm init new=0;" + AHEAD + f"repeat 5 {{ {STEP} }}",
        {"actor": "handle_actor", "lookup_hook": True},
    ),
    "non-blocking by a handle": (
        "comm init new=0 nonblocking;" + AHEAD + f"repeat 5 {{ {STEP} }}",
        {"actor": "handle_actor", "lookup_hook": True},
    ),
}


@pytest.mark.parametrize("path", PATHS)
def test_each_path_to_the_device_has_the_same_times(path: str, tmp_path: Path) -> None:
    program, options = PATHS[path]
    run = play(program + "; sync device", tmp_path, **options)
    extra = 10_000 if "group" in path else 0  # a second latency
    assert lengths(run, Bracket.COLLECTIVE) == pytest.approx([TRANSFER + extra] * 5, rel=1e-3)
    # The first waits for what the host ran ahead of.
    assert lengths(run, Bracket.STREAM_WAIT)[1:] == pytest.approx([TRANSFER + extra - MS] * 4, rel=1e-3)
    assert periods(run)[1:] == pytest.approx([TRANSFER + extra] * 4, rel=1e-3)
    assert reasons(run) == set()
    operations = run.trace.collectives
    assert (operations["device_end_ns"] > operations["device_begin_ns"]).all()


def test_a_launch_that_nobody_asks_for_is_a_loss_and_ends_by_the_jobs_event(tmp_path: Path) -> None:
    step = STEP.replace("stream=2;", "stream=2 unasked; sleep 20ms;", 1)
    run = play(f"comm init new=0 nonblocking; kernel 900ms stream=2; repeat 5 {{ {step} }}; sync device", tmp_path)
    assert lengths(run, Bracket.COLLECTIVE) == [-1] * 5
    rows = run.trace.device_brackets
    flags = rows["bracket_flags"][rows["bracket_code"] == Bracket.COLLECTIVE]
    assert (flags & BracketFlag.LATE_LAUNCH != 0).all()
    waits = rows.take(rows["bracket_code"] == Bracket.STREAM_WAIT)
    assert waits["awaited_code"].tolist() == [Awaited.COLLECTIVE] * 5
    assert lengths(run, Bracket.STREAM_WAIT)[1:] == pytest.approx([TRANSFER - MS] * 4, rel=1e-3)
    assert waits["awaited_ns"].tolist() == pytest.approx(waits["end_ns"].tolist(), abs=1000)
    lost = {reason: count for collector, reason, count in run.losses() if collector == "nccl"}
    assert lost == {"launch_unseen": 5, "collectives_untimed": 5}


def test_work_behind_a_launch_that_was_not_seen_yet_is_no_part_of_it(tmp_path: Path) -> None:
    program = """
        comm init new=0 nonblocking; kernel 400ms stream=2
        allreduce 100MB stream=2 unasked; kernel 30ms stream=2; comm await comm=0; sync device
        """
    run = play(program, tmp_path)
    assert lengths(run, Bracket.COLLECTIVE) == [-1]
    assert "launch_unseen" in reasons(run)


LEGACY = "kernel 5ms; copy h2d 50MB pinned; batch_wait 1ms; kernel 1ms; kernel 30ms stream=9; step"


def test_the_legacy_stream_has_times_next_to_a_blocking_stream(tmp_path: Path) -> None:
    run = play(f"stream 9 blocking; kernel 600ms; step; repeat 8 {{ {LEGACY} }}; sync device", tmp_path)
    assert lengths(run, Bracket.COPY) == pytest.approx([5 * MS] * 8, rel=1e-3)
    assert lengths(run, Bracket.BATCH_WAIT) == [0] * 8
    # A step ends behind its kernel, although a blocking stream works on: only the next kernel waits for that.
    assert periods(run) == pytest.approx([11 * MS] + [41 * MS] * 7, rel=1e-3)
    assert reasons(run) == set()
    # Two around a copy, one of a batch, one of a step, and the anchors; not one behind each piece of work.
    assert calls(tmp_path / "job", "cuda")["cuEventRecord"] < 8 * 5 + 20


def test_no_event_of_ours_holds_a_blocking_stream_up(tmp_path: Path) -> None:
    """The kernel of the second blocking stream must not wait for that of the first."""
    program = """
        stream 8 blocking; stream 9 blocking; kernel 1ms; step; kernel 400ms; step; kernel 1ms; step
        record event=1; kernel 50ms stream=8; step; kernel 10ms stream=9; record event=2 stream=9; sync device
        elapsed from=1 to=2
        """
    assert play(program, tmp_path).results()[0]["results"] == [pytest.approx(10, abs=0.1)]


def test_what_the_legacy_stream_cannot_time_is_said_with_who_made_the_blocking_stream(tmp_path: Path) -> None:
    run = play("kernel 200ms; step; stream 9 blocking; step; kernel 1ms; step; sync device", tmp_path)
    said = texts(run, "advice_code")
    assert "legacy_stream_untimed" in texts(run, "name_code")
    assert "device_actor" in said
    assert "STASHTRACE_FORCE_EVENTS=1" in said
    forced = play(
        "kernel 200ms; step; stream 9 blocking; step; kernel 1ms; step; sync device",
        tmp_path / "forced",
        env={"STASHTRACE_FORCE_EVENTS": "1"},
    )
    assert periods(forced) == pytest.approx([0, MS], abs=2000)
    assert "legacy_stream_untimed" not in texts(forced, "name_code")


def test_a_blocking_stream_of_another_device_is_none_of_this_one(tmp_path: Path) -> None:
    program = "device 1; stream 9 blocking; device 0; kernel 200ms; step; kernel 1ms; step; sync device"
    run = run_ranks(1, program, tmp_path, "devices 2", collectors=("cuda",))
    rows = run.trace.device_brackets
    assert (rows["bracket_flags"] & BracketFlag.BEHIND_WORK == 0).all()
    assert periods(run) == pytest.approx([MS], rel=1e-3)


def test_copies_keep_their_direction_on_the_legacy_stream(tmp_path: Path) -> None:
    run = play(f"stream 9 blocking; kernel 100ms; repeat 3 {{ {LEGACY} }}; sync device", tmp_path)
    rows = run.trace.device_brackets
    assert set(rows["copy_code"][rows["bracket_code"] == Bracket.COPY].tolist()) == {CopyDirection.HOST_TO_DEVICE}


def test_nccl_by_a_handle_without_the_look_up_hook_says_so(tmp_path: Path) -> None:
    run = play("comm init new=0;" + AHEAD + f"repeat 2 {{ {STEP} }}; sync device", tmp_path, actor="handle_actor")
    assert run.facts()["nccl_source"] == "host"
    assert "--lookup-hook" in texts(run, "advice_code")
    assert "calls_not_hooked" in reasons(run)


def test_ranks_of_one_process_on_several_devices_keep_their_bytes_and_times(tmp_path: Path) -> None:
    both = "group { allreduce 100MB comm=0 stream=1; allreduce 50MB comm=1 stream=2 }"
    step = f"kernel 5ms; wait stream=1 for=0; {both}; wait stream=0 for=1; kernel 1ms; step"
    program = f"device 1; stream 2; device 0; comm all new=0; kernel 400ms; step; repeat 6 {{ {step} }}; sync device"
    run = run_ranks(1, program, tmp_path, f"devices 2\n{SCRIPT}", collectors=("cuda", "nccl"))
    assert [result["errors"] for result in run.results()] == [{}]
    trace = run.trace
    assert [(row["group_rank"], row["group_size"]) for row in trace.groups.rows()] == [(0, 2), (1, 2)]
    assert set(run.texts(trace.groups, "members_code")) == {"0,0"}
    operations = trace.collectives
    for nbytes in (100_000_000, 50_000_000):
        own = operations.take(operations["message_bytes"] == nbytes).sort_by("call_ns")
        assert own["sequence"].tolist() == list(range(6))
    first = operations.take(operations["message_bytes"] == 100_000_000)
    assert (first["device_end_ns"] - first["device_begin_ns"]).tolist() == pytest.approx([TRANSFER] * 6, rel=1e-3)
    by_size = {row["size_class_bytes"]: row for row in bandwidth(trace).rows()}
    assert {row["group_size"] for row in by_size.values()} == {2}
    # 2 (n - 1) / n of the bytes: with two ranks, all of them.
    assert by_size[1 << 26]["best_bus_bytes_per_s"] == pytest.approx(100e6 / TRANSFER * 1e9, rel=1e-2)
    assert " 0 B/s" not in summary(trace)
