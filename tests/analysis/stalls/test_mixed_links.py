"""Groups that span hosts and share some: how much of a transfer is the network's, by runs, calibrations and neither.

Three ranks on two hosts; their all-reduce of 100 MB moves bytes for 40 ms.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from analysis.table_text import stall_text
from builders import MS, TraceBuilder

from stashtrace.analysis.registry import analyze
from stashtrace.calibration.file import Calibration, Link, Points, calibration_text, host_hash
from stashtrace.calibration.fit_link import Fit, Piece
from stashtrace.schema.kinds import BracketFlag, CopyDirection

MB = 1_000_000
ALL, INSIDE = 7, 9


def job(inside_ms: dict[int, float], *, backend: str = "nccl") -> TraceBuilder:
    """``inside_ms``: MB -> ms of all-reduces between the two ranks of one host, hidden behind the step before."""
    build = TraceBuilder(("a", "a", "b"))
    build.group(range(3), group=ALL, backend=backend)
    build.group(range(2), group=INSIDE, backend=backend)
    compute = {}
    for number in range(3):
        rank = build.rank(number).lives(0, 210 * MS)
        rank.phase("forward", 0, MS).phase("optimizer", 2 * MS, 4 * MS)
        rank.phase("forward", 4 * MS, 5 * MS).phase("optimizer", 6 * MS, 8 * MS)
        compute[number] = rank.gpu(0).stream("compute", compute=True)
        compute[number].step(0, 0, host_ns=0).step(100 * MS, 1, host_ns=4 * MS).step(200 * MS, 2, host_ns=8 * MS)
        compute[number].mark(99 * MS, host_ns=0).mark(199 * MS, host_ns=4 * MS)
    side = {r: s.gpu.stream("nccl") for r, s in compute.items()}
    for at, (size, length) in enumerate(inside_ms.items()):
        begin = (5 + 20 * at) * MS
        build.device_collective(
            dict.fromkeys((0, 1), (MS, 2 * MS, begin, begin + round(length * MS))),
            streams=side,
            group=INSIDE,
            sequence=at,
            message_bytes=size * MB,
        )
    whole = dict.fromkeys(range(3), (5 * MS, 6 * MS, 120 * MS, 160 * MS))
    build.device_collective(whole, streams=compute, group=ALL, message_bytes=100 * MB)
    return build


def second_step(build: TraceBuilder, path: str = "") -> str:
    lines = stall_text(build.trace(path)).splitlines()
    return next(line for line in lines if line.startswith("0 1:"))


@pytest.mark.parametrize("inside_ms", [{50: 5, 100: 10, 150: 15}, {100: 10}, {60: 6, 80: 8, 90: 9}])
def test_the_runs_transfers_inside_a_host_show_its_part(inside_ms: dict[int, float]) -> None:
    build = job(inside_ms)
    assert second_step(build) == "0 1: compute 60, network 30, interconnect 10"
    table = analyze(build.trace(), "hidden")
    assert table["estimated_ns"][table["step"] == 1].tolist() == [40 * MS] * 3


@pytest.mark.parametrize("inside_ms", [{}, {1: 1, 2: 2, 3: 3}, {50: 5, 20: 2}])
def test_without_like_sizes_nobody_knows(inside_ms: dict[int, float]) -> None:
    build = job(inside_ms)
    assert second_step(build) == "0 1: compute 60, network 40 [0..40], interconnect 0 [0..40]"
    assert not analyze(build.trace(), "hidden")["estimated_ns"].any()


@pytest.mark.parametrize(
    ("host", "cut"),
    [("a", "network 24 [23..25], interconnect 16 [15..17]"), ("elsewhere", "network 30, interconnect 10")],
)
def test_a_calibration_of_this_machine_comes_first(host: str, cut: str, tmp_path: Path) -> None:
    # 16 ms with a standard error of 0.5.
    piece = Piece(MB, 400 * MB, 0.0, 500_000.0, 0.16, 0.0, 0.0, 0.0, 3, 0)
    sizes, times = (MB, 100 * MB, 400 * MB), (0.16e6, 16e6, 64e6)
    link = Link("collective", "nccl", "all_reduce", 2, Fit((piece,)), Points(sizes, times, times, times, (9,) * 3))
    made = Calibration("2026-11-21", "", {"cpu": "x", "host_hash": host_hash(host)}, {}, (link,))
    (tmp_path / "calibration.toml").write_text(calibration_text(made))
    assert second_step(job({100: 10}), str(tmp_path)) == f"0 1: compute 60, {cut}"


def test_ranks_without_a_device_too() -> None:
    build = TraceBuilder(("a", "a", "b"))
    build.group(range(3), group=ALL, backend="gloo")
    build.group(range(2), group=INSIDE, backend="gloo")
    for number in range(3):
        build.rank(number).phase("forward", 0, 10 * MS).phase("backward", 10 * MS, 90 * MS)
        build.rank(number).phase("optimizer", 90 * MS, 100 * MS)
    build.meet(dict.fromkeys((0, 1), 20 * MS), 30 * MS, group=INSIDE, message_bytes=100 * MB)
    build.meet(dict.fromkeys(range(3), 40 * MS), 80 * MS, group=ALL, message_bytes=100 * MB)
    trace = build.trace()
    assert stall_text(trace).splitlines()[0] == "0 0: compute 50, network 30, interconnect 20"
    assert analyze(trace, "hidden")["estimated_ns"].tolist() == [40 * MS] * 3


def test_steps_that_the_event_budget_left_out_count_in_no_total() -> None:
    build = TraceBuilder()
    compute = {}
    for number in range(2):
        rank = build.rank(number)
        compute[number] = rank.gpu(0).stream("compute", compute=True)
        for step in range(8):
            rank.phase("forward", step * 100 * MS, (step * 100 + 50) * MS)
            rank.phase("optimizer", (step * 100 + 60) * MS, (step * 100 + 90) * MS)
            compute[number].step(step * 100 * MS, step, host_ns=step * 100 * MS)
            timed = number == 0 or step % 2 == 0  # rank 0 is within its budget
            at = (step * 100 + 10) * MS
            compute[number].bracket(
                4,
                at if timed else -1,
                at + 20 * MS if timed else -1,
                host=(at, at + MS),
                copy=CopyDirection.HOST_TO_DEVICE,
                flags=0 if timed else BracketFlag.UNTIMED,
            )
        compute[number].step(800 * MS, 8, host_ns=800 * MS)
    build.loss("event_budget", 4, collector="cuda", severity=0, process_id=build.rank(1).process_id)
    trace = build.trace()
    found = analyze(trace, "steps")
    assert found["thinned"].tolist() == [0, 1] * 8, "on both ranks: a collective needs all entries"
    for row in analyze(trace, "stalls", by="rank", warmup=True).rows():
        if row["kind"] == "h2d":
            assert (row["steps_count"], row["stall_ns"], row["share_ratio"]) == (4, 4 * 20 * MS, 0.2)
            assert row["low_ns"] == row["stall_ns"]
