"""Devices that stand idle: for a late host, for a host in a blocking copy, or for other reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analysis.table_text import stall_text
from builders import MS, US, TraceBuilder
from device_rows import StreamBuilder
from importers.kineto_files import device, launch, step, write
from summary.scenes import Verdict, verdicts

import stashtrace
from stashtrace.analysis.graph.build import build as graph_of
from stashtrace.analysis.stalls.budget import stalls
from stashtrace.replay.whatif import what_if
from stashtrace.schema.kinds import CopyDirection, DeviceCall, DeviceWork
from stashtrace.schema.trace import Trace

STEPS, STEP = 6, 100 * MS


def ranks_device(build: TraceBuilder) -> StreamBuilder:
    rank = build.rank(0).lives(0, STEPS * STEP + 10 * MS)
    compute = rank.gpu(0).stream("compute", compute=True)
    for at in range(STEPS):
        rank.phase("forward", at * STEP, at * STEP + 1 * MS)
        rank.phase("optimizer", at * STEP + 98 * MS, (at + 1) * STEP)
        compute.step(at * STEP, at)
    compute.step(STEPS * STEP, STEPS)
    return compute


def line_and_verdict(build: TraceBuilder) -> tuple[str, Verdict]:
    trace = build.trace()
    return stall_text(trace).splitlines()[1], verdicts(trace)[0]


def test_work_that_is_launched_late_waits_for_its_host() -> None:
    build = TraceBuilder()
    compute = ranks_device(build)
    for at in range(0, STEPS * STEP, STEP):
        compute.kernel(at, at + 60 * MS, launch=(at - MS, at - MS + 5 * US) if at else None)
        compute.kernel(at + 80 * MS, at + STEP, launch=(at + 80 * MS - 15 * US, at + 80 * MS - 10 * US))
    line, verdict = line_and_verdict(build)
    assert line == "0 1: compute 80, launch 20"
    assert verdict.text == "the device of rank 0 waits 20.0 ms a step (20 %) for its host to launch work"


def test_work_that_was_launched_long_before_does_not() -> None:
    build = TraceBuilder()
    compute = ranks_device(build)
    for at in range(0, STEPS * STEP, STEP):
        compute.kernel(at, at + 60 * MS, launch=(at, at + 5 * US))
        compute.kernel(at + 80 * MS, at + STEP, launch=(at + 1 * MS, at + 1 * MS + 5 * US))
    line, verdict = line_and_verdict(build)
    assert line == "0 1: compute 80, other 20"
    assert verdict.text == (
        "the device of rank 0 stands idle for 20.0 ms a step (20 %) although the next work had been launched"
    )


def test_pauses_between_short_works_are_called_that() -> None:
    build = TraceBuilder()
    compute = ranks_device(build)
    for at in range(0, STEPS * STEP, STEP):
        for n in range(1000):
            compute.kernel(at + 100 * n * US, at + (100 * n + 90) * US, launch=(at, at + 5 * US))
    line, verdict = line_and_verdict(build)
    assert line == "0 1: compute 90, launch 10"
    assert verdict.text == (
        "the device of rank 0 pauses for 10.0 ms a step (10 %) between works that were launched already: short kernels,"
        " not a late host"
    )


def test_a_host_in_a_blocking_copy_is_named() -> None:
    """The device is idle from 60 ms on; from 62 to 80 ms its host copies from pageable memory."""
    build = TraceBuilder()
    compute = ranks_device(build)
    for at in range(0, STEPS * STEP, STEP):
        compute.kernel(at, at + 60 * MS, launch=(at, at + 5 * US))
        compute.gpu.call(DeviceCall.COPY, at + 62 * MS, at + 80 * MS)
        compute.kernel(
            at + 79 * MS,
            at + 80 * MS,
            "Memcpy HtoD",
            work=DeviceWork.COPY,
            copy=CopyDirection.HOST_TO_DEVICE,
            launch=(at + 62 * MS, at + 80 * MS),
        )
        compute.kernel(at + 80 * MS, at + STEP, launch=(at + 80 * MS - 4 * US, at + 80 * MS - 1 * US))
    line, verdict = line_and_verdict(build)
    assert line == "0 1: compute 80, h2d 1, sync 17, launch 2"
    assert "while the host is inside copy" in verdict.text


def _recorded(path: Path, first_us: int) -> Trace:
    """Two steps of 1,000 us; the device works from 600 us on, in the first step from ``first_us`` on."""
    events: list[dict[str, Any]] = [step(1, 0, 1000), step(2, 1000, 1000)]
    for n, since in enumerate((first_us, 600)):
        events += [
            launch(n + 1, 1000 * n + since - 10, 5),
            device("gemm", 1000 * n + since, 1000 - since, correlation=n + 1),
        ]
    return stashtrace.load(write(path, events))


def test_idle_time_before_the_first_recorded_work_is_unknown(tmp_path: Path) -> None:
    trace = _recorded(tmp_path / "rank0.json", 600)
    table = stalls(trace, warmup=True)
    of_first, of_second = (table.take((table["step"] == n) & (table["stall_ns"] > 0)) for n in (1, 2))
    assert dict(zip(of_first["kind"].tolist(), of_first["stall_ns"].tolist(), strict=True)) == {
        "compute": 400_000,
        "other": 600_000,
    }
    assert of_first["low_ns"][of_first["kind"] == "other"].tolist() == [0]
    assert dict(zip(of_second["kind"].tolist(), of_second["stall_ns"].tolist(), strict=True)) == {
        "compute": 400_000,
        "launch": 600_000,
    }


def test_a_recording_that_is_mostly_head_says_so(tmp_path: Path) -> None:
    events = [step(1, 0, 1000), launch(1, 790), device("gemm", 800, 200, correlation=1)]
    texts = [verdict.text for verdict in verdicts(stashtrace.load(write(tmp_path / "rank0.json", events)))]
    assert texts[0] == "the device of rank 0 has no work in the recording for 800 us a step (80 %) at its begin"
    assert not any("launch work" in text for text in texts)


def test_a_blocking_copy_is_a_cause_in_the_graph() -> None:
    """Work launched at 60.5 ms begins at 80 ms, when the blocking copy of the host ends: no time is without a cause."""
    build = TraceBuilder()
    compute = ranks_device(build)
    for at in range(0, STEPS * STEP, STEP):
        compute.kernel(at, at + 60 * MS, launch=(at, at + 5 * US))
        compute.gpu.call(DeviceCall.COPY, at + 61 * MS, at + 80 * MS)
        compute.kernel(at + 80 * MS - 10 * US, at + STEP, launch=(at + 60 * MS + 500 * US, at + 60 * MS + 505 * US))
    trace = build.trace()
    assert stall_text(trace).splitlines()[1] == "0 1: compute 80.01, sync 18.99, launch 1"
    known = what_if(graph_of(trace), [])
    assert known.is_reliable
    assert known.gap_ratio < 0.01
