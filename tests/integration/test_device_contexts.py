"""Device times do not depend on which of the driver's calls need a current context: cuda.h leaves some open.

The double reads each call in both ways (tests/fakes/cuda_objects.h). The harvester has no context, and a
thread of the job has none before the runtime's first call on it returns.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from device import calls, run_ranks
from traced import TracedRun

from stashtrace.schema.kinds import Awaited, Bracket, BracketFlag, DeviceCall

READINGS = list(itertools.product(["needed", "free"], repeat=3))
PROGRAM = """
copy h2d 1MB stream=1; kernel 1ms stream=1; wait stream=0 for=1; sync stream=1; step
copy d2h 1MB stream=2 pinned; sync device; step
"""
#: Each thread's first call of CUDA is one with brackets of ours; a stream that the job made is used.
FIRST_CALLS = "copy h2d 1KB stream=1; sync stream=1; repeat 60 { thread { copy h2d 64KB stream=1 } }; sync stream=1"

#: Threads that use the default stream before a context is current on them: a copy, a wait, a graph.
FIRST_DEFAULT = """
copy h2d 1KB stream=1; record event=5 stream=1; kernel 1ms; sync device
thread { copy h2d 2KB; copy h2d 3KB }
thread { wait_event event=5; copy h2d 4KB stream=1; wait_event event=5 }
capture stream=1 { kernel 1ms stream=1 }
thread { launch }
"""


def script(elapsed: str, record: str, query: str) -> str:
    return f"""
context.cuEventElapsedTime {elapsed}
context.cuEventRecord {record}
context.cuEventQuery {query}
"""


def brackets(run: TracedRun) -> list[dict[str, Any]]:
    return list(run.trace.device_brackets.rows())


def reasons(run: TracedRun) -> set[str]:
    trace = run.trace
    return {trace.text(row["name_code"]) for row in trace.losses.rows()}


@pytest.mark.parametrize(("elapsed", "record", "query"), READINGS)
def test_every_bracket_is_timed(tmp_path: Path, elapsed: str, record: str, query: str) -> None:
    run = run_ranks(1, PROGRAM, tmp_path, script(elapsed, record, query), collectors=("cuda",))
    assert run.results()[0]["errors"] == {}
    rows = brackets(run)
    assert len(rows) >= 4
    assert [row for row in rows if row["end_ns"] < row["begin_ns"] or row["begin_ns"] <= 0] == []
    assert "events_failed" not in reasons(run)


#: Events are read while a stream capture is open, which forbids that to threads in another mode than the relaxed one.
DURING_CAPTURE = """
kernel 1ms stream=1; copy h2d 1MB stream=2; sync stream=2; copy h2d 60MB stream=2
capture stream=1 { kernel 1ms stream=1; sleep 120ms }
launch stream=1; sync device; step
"""
BUSES = "rate.h2d.pinned 1GB"


@pytest.mark.parametrize("reading", ["needed", "free"])
def test_a_capture_is_not_broken_by_the_thread_that_reads_events(tmp_path: Path, reading: str) -> None:
    text = f"{BUSES}\ncontext.cuThreadExchangeStreamCaptureMode {reading}\n"
    run = run_ranks(1, DURING_CAPTURE, tmp_path, text, collectors=("cuda",))
    assert run.results()[0]["errors"] == {}
    copies = [row for row in brackets(run) if row["bracket_code"] == Bracket.COPY]
    assert [row["bracket_flags"] & BracketFlag.UNTIMED for row in copies] == [0, 0]
    assert reasons(run) & {"events_failed", "driver_errors", "capture_mode_refused"} == set()


def test_without_the_relaxed_capture_mode_no_event_is_asked(tmp_path: Path) -> None:
    text = f"{BUSES}\nfail cuThreadExchangeStreamCaptureMode 1\n"
    run = run_ranks(1, DURING_CAPTURE, tmp_path, text, collectors=("cuda",))
    assert run.results()[0]["errors"] == {}
    rows = brackets(run)
    assert len([row for row in rows if row["bracket_code"] == Bracket.COPY]) == 2
    assert all(row["bracket_flags"] & BracketFlag.UNTIMED for row in rows)
    assert "capture_mode_refused" in reasons(run)
    assert "cuEventQuery" not in calls(tmp_path, "cuda")


@pytest.mark.parametrize(("delay", "kept"), [("20ms", True), ("300s", False)])
def test_the_end_waits_for_the_times_and_counts_what_it_does_not_wait_for(
    tmp_path: Path, delay: str, kept: bool
) -> None:
    run = run_ranks(1, PROGRAM, tmp_path, f"delay cuEventQuery {delay}", collectors=("cuda",))
    lost = {reason: count for _, reason, count in run.losses()}
    assert len(brackets(run)) + lost.get("harvester_late", 0) >= 4
    assert (len(brackets(run)) > 0, "harvester_late" in lost) == (kept, not kept)


@pytest.mark.parametrize("reading", ["needed", "free"])
@pytest.mark.parametrize("capturing", ["needed", "free"])
def test_first_calls_of_threads_are_timed_and_lose_no_events(tmp_path: Path, reading: str, capturing: str) -> None:
    text = script(reading, reading, reading) + f"context.cuStreamIsCapturing {capturing}\n"
    text += f"context.cuStreamGetId {capturing}\n"
    run = run_ranks(1, FIRST_CALLS, tmp_path, text, collectors=("cuda",))
    assert run.results()[0]["errors"] == {}
    rows = brackets(run)
    assert len(rows) == 61
    assert [row["bracket_flags"] for row in rows if row["end_ns"] < row["begin_ns"] or row["begin_ns"] <= 0] == []
    assert reasons(run) & {"events_failed", "driver_errors"} == set()
    assert calls(tmp_path, "cuda")["cuEventRecord"] >= 2 * len(rows)


@pytest.mark.parametrize("reading", ["needed", "free"])
@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_host_memory_of_a_first_call_is_distinguished_from_pageable(
    tmp_path: Path, reading: str, direction: str
) -> None:
    threads = [f"thread {{ copy {direction} {words} stream=1 }}" for words in ("1KB", "2KB pageable")]
    program = "; ".join(["sync stream=1", *threads])
    text = f"context.cuPointerGetAttributes {reading}"
    run = run_ranks(1, program, tmp_path, text, collectors=("cuda",))
    assert run.results()[0]["errors"] == {}
    memory = BracketFlag.PINNED | BracketFlag.PAGEABLE
    found = {row["size_bytes"]: row["bracket_flags"] & memory for row in brackets(run)}
    assert found == {1000: BracketFlag.PINNED, 2000: BracketFlag.PAGEABLE}
    made = list(run.trace.device_calls.rows())
    assert [row["size_bytes"] for row in made if row["call_code"] == DeviceCall.COPY] == [2000]


@pytest.mark.parametrize("reading", ["needed", "free"])
def test_a_first_call_on_a_default_stream_is_recorded(tmp_path: Path, reading: str) -> None:
    run = run_ranks(1, FIRST_DEFAULT, tmp_path, script(reading, reading, reading), collectors=("cuda",))
    assert run.results()[0]["errors"] == {}
    rows = brackets(run)
    copies = [row for row in rows if row["bracket_code"] == Bracket.COPY]
    assert sorted(row["size_bytes"] for row in copies) == [1000, 2000, 3000, 4000]
    first = {row["size_bytes"]: row for row in copies}
    # Whose stream it is shows only after the call, so it has host times alone; the thread's next one has its events.
    assert first[2000]["bracket_flags"] & BracketFlag.UNTIMED
    assert first[2000]["bracket_flags"] & BracketFlag.PINNED
    assert first[2000]["call_ns"] < first[2000]["return_ns"]
    assert first[3000]["bracket_flags"] & BracketFlag.UNTIMED == 0
    assert first[2000]["track_id"] == first[3000]["track_id"] != first[1000]["track_id"]
    waits = [row for row in rows if row["bracket_code"] == Bracket.STREAM_WAIT]
    assert [row["awaited_code"] for row in waits] == [Awaited.COPY] * 2
    assert [row["bracket_flags"] & BracketFlag.UNTIMED for row in waits] == [BracketFlag.UNTIMED, 0]
    graphs = [row for row in rows if row["bracket_code"] == Bracket.GRAPH]
    assert [row["bracket_flags"] & BracketFlag.UNTIMED for row in graphs] == [BracketFlag.UNTIMED]
    assert reasons(run) & {"events_failed", "driver_errors"} == set()


def test_an_event_of_a_first_call_is_known(tmp_path: Path) -> None:
    program = "record event=6 stream=1; copy h2d 6KB; thread { record event=6 }; wait_event event=6 stream=2"
    run = run_ranks(1, program, tmp_path, collectors=("cuda",))
    assert run.results()[0]["errors"] == {}
    copies = [row for row in brackets(run) if row["bracket_code"] == Bracket.COPY]
    waits = [row for row in brackets(run) if row["bracket_code"] == Bracket.STREAM_WAIT]
    assert [(row["awaited_code"], row["correlation_id"]) for row in waits] == [(Awaited.COPY, copies[0]["bracket_id"])]
    assert waits[0]["awaited_ns"] == copies[0]["end_ns"]


def test_a_first_call_that_fails_leaves_no_bracket(tmp_path: Path) -> None:
    program = "sync stream=1; thread { copy h2d 1KB }; thread { copy h2d 2KB }"
    run = run_ranks(1, program, tmp_path, "fail cuMemcpyAsync 700 first 1", collectors=("cuda",))
    assert run.results()[0]["errors"] == {"cudaMemcpyAsync 700": 1}
    assert [row["size_bytes"] for row in brackets(run)] == [2000]


def test_a_context_that_cannot_be_pushed_leaves_brackets_without_times(tmp_path: Path) -> None:
    # The harvester alone pushes here: once to set its anchor, then to ask for events.
    program = "repeat 20 { copy h2d 64KB stream=1 }; sync stream=1; repeat 20 { copy h2d 64KB stream=1 }; sync stream=1"
    run = run_ranks(1, program, tmp_path, "fail cuCtxPushCurrent_v2 201 after 1", collectors=("cuda",))
    assert run.results()[0]["errors"] == {}
    rows = brackets(run)
    assert len(rows) == 40
    assert [row for row in rows if row["begin_ns"] >= 0 or not row["bracket_flags"] & BracketFlag.UNTIMED] == []
    failed = sum(bool(row["bracket_flags"] & BracketFlag.FAILED) for row in rows)
    assert failed > 0
    losses = [row for row in run.trace.losses.rows() if run.trace.text(row["name_code"]) == "events_failed"]
    assert sum(row["lost_count"] for row in losses) == failed
