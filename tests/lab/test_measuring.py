"""The loop, the points made of its stamps, the plan, the processes, the disk."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stashtrace.calibration.file import Calibration, Points
from stashtrace.cli.commands.calibrate import calibration_lines
from stashtrace.errors import CaptureError, MissingDataError, UsageError
from stashtrace.lab.calibrate import measure as link_ranks
from stashtrace.lab.calibrate.calibrate_worker import measure, sizes_between
from stashtrace.lab.calibrate.engines import DiskReads
from stashtrace.lab.calibrate.measure import (
    COLLECTIVES,
    COPIES,
    READS,
    CalibrationRequest,
    calibrate,
    fit_launches,
    plan,
    points_of,
    pooled,
    run_ranks,
    transfer_times,
    untraced,
)
from stashtrace.lab.machine import Used

GLOO = {"library": "torch", "backends": ["gloo"], "devices": [], "torch": "2.99"}
GPUS = {
    "library": "torch",
    "backends": ["gloo", "nccl"],
    "devices": ["A", "A"],
    "peers": [1],
    "free_bytes": [8 << 30] * 2,
}
ROOM = 8 << 30


class Steps:
    """An engine whose operations take a second of its clock."""

    timing = "host"

    def __init__(self) -> None:
        self.now = 0.0
        self.done: list[tuple[str, int]] = []

    def clock(self) -> float:
        return self.now

    def prepare(self, op: str, size_bytes: int) -> None:
        if op == "odd":
            raise NotImplementedError

    def timed(self, op: str, size_bytes: int) -> tuple[int, int]:
        self.now += 1
        self.done.append((op, size_bytes))
        return int(self.now * 1e9), int(self.now * 1e9) + size_bytes

    def barrier(self) -> None:
        self.done.append(("barrier", 0))

    def agree(self, wish: bool) -> bool:
        return wish


def test_rounds_go_on_until_the_time_is_up() -> None:
    engine = Steps()
    found = measure(engine, ("a", "odd"), (8, 1 << 20), 100.0, clock=engine.clock)
    assert found.left_out == {"odd": "NotImplementedError"}
    # A round is four small messages and a large one; it is finished once it was begun.
    assert 100 <= engine.now <= 105
    assert len(found.stamps["a"][8]) == 4 * found.rounds_count == 4 * len(found.stamps["a"][1 << 20])
    assert all(engine.done[i - 1][0] == "barrier" for i, (op, _) in enumerate(engine.done) if op == "a" and i > 0)


@pytest.mark.parametrize(("low", "high", "unit"), [(1, 1 << 20, 1), (1024, 1 << 25, 12), (1000, 1001, 1), (8, 8, 4)])
def test_sizes_are_ascending_and_fit(low: int, high: int, unit: int) -> None:
    sizes = sizes_between(low, high, unit_bytes=unit)
    assert sizes == sorted(set(sizes))
    assert all(s % unit == 0 and 0 < s <= high for s in sizes)


def test_waiting_for_the_last_rank_is_no_transfer() -> None:
    early, late = [(0, 1_000)], [(900, 1_010)]
    assert transfer_times("host", [early, late]).tolist() == [105.0]
    assert transfer_times("device", [[(0, 1_000)], [(0, 110)]]).tolist() == [110.0]


def test_points_need_the_same_from_all_ranks() -> None:
    points = points_of("host", [{"8": [(0, 10)] * 3, "4": [(0, 5)] * 2}, {"8": [(0, 10)] * 3, "4": [(0, 5)] * 2}])
    assert (points.sizes_bytes, points.median_ns, points.repetitions_count) == ((4, 8), (5.0, 10.0), (2, 3))
    with pytest.raises(CaptureError, match="did not measure the same number of messages of 8 bytes"):
        points_of("host", [{"8": [(0, 10)] * 3}, {"8": [(0, 10)] * 2}])


def launch(alpha: float, beta: float) -> Points:
    sizes = tuple(1 << n for n in range(10, 20))
    times = tuple(alpha + beta * s for s in sizes)
    return Points(sizes, times, times, times, (9,) * len(sizes))


def test_what_differs_between_starts_is_part_of_the_error() -> None:
    equal = [launch(1e5, 1.0)] * 3
    assert fit_launches(equal).alpha_error_ns < 1
    fit = fit_launches([launch(0.9e5, 1.0), launch(1e5, 1.1), launch(1.1e5, 0.9)])
    assert fit.alpha_error_ns == pytest.approx(1e4 / math.sqrt(3), rel=0.01)
    assert fit.pieces[0].beta_error_ns_per_byte == pytest.approx(0.1 / math.sqrt(3), rel=0.01)
    assert fit.alpha_ns == pytest.approx(1e5, rel=0.02)
    assert pooled(equal).repetitions_count[0] == 27


def test_plans() -> None:
    (gloo,) = plan(CalibrationRequest(), GLOO, ROOM)
    assert (gloo.kind, gloo.backend, gloo.ranks, gloo.ops) == ("collective", "gloo", 2, COLLECTIVES)
    assert gloo.seconds == pytest.approx(10)
    assert all(s % 8 == 0 for s in gloo.sizes_bytes)
    copies, nccl = plan(CalibrationRequest(disk=None), GPUS, ROOM)
    assert (copies.backend, copies.ops, copies.ranks) == ("cuda", (*COPIES, "p2p_0_1"), 1)
    assert (nccl.backend, nccl.ranks, nccl.ops) == ("nccl", 2, COLLECTIVES)
    one_gpu = plan(CalibrationRequest(disk="x"), {**GPUS, "devices": ["A"], "peers": []}, ROOM)
    assert [(j.backend, j.ops) for j in one_gpu] == [("cuda", COPIES), ("posix", READS)]
    assert [j.backend for j in plan(CalibrationRequest(backend="disk", disk="x"), {}, ROOM)] == ["posix"]
    three = plan(CalibrationRequest(ranks=3, sizes_bytes=(1, 4096)), GLOO, ROOM)[0]
    assert all(s % 12 == 0 for s in three.sizes_bytes)


def test_sizes_by_default_fit_into_memory() -> None:
    assert plan(CalibrationRequest(), GLOO, 64 << 20)[0].sizes_bytes[-1] < 4 << 20


@pytest.mark.parametrize(
    ("request_", "facts", "words"),
    [
        (CalibrationRequest(backend="nccl"), GLOO, "--backend nccl needs a GPU: torch sees none"),
        (CalibrationRequest(backend="cuda"), {**GLOO, "complaint": "no driver"}, "needs a GPU: no driver"),
        (CalibrationRequest(backend="nccl"), {**GPUS, "backends": ["gloo"]}, "built without NCCL"),
        (
            CalibrationRequest(backend="gloo"),
            {"library": "cupy", "backends": ["nccl"], "devices": ["A"]},
            "gloo comes with torch",
        ),
        (CalibrationRequest(), {"library": "", "backends": [], "devices": []}, "nothing to measure with"),
        (CalibrationRequest(backend="disk"), GLOO, "does not say which disk"),
        (CalibrationRequest(ranks=1), GLOO, "two ranks or more"),
        (CalibrationRequest(backend="nccl", ranks=3), GPUS, "3 ranks need 3 GPUs, this machine has 2"),
        (CalibrationRequest(seconds=0), GLOO, "measuring takes time"),
        (CalibrationRequest(sizes_bytes=(10, 4)), GLOO, "is not a range"),
        (CalibrationRequest(sizes_bytes=(1024, 2048)), GLOO, "holds 2 sizes, a fit needs three"),
        (CalibrationRequest(sizes_bytes=(1024, 64 << 30)), GLOO, "more than half of the free memory"),
    ],
)
def test_what_cannot_be_measured_is_said(request_: CalibrationRequest, facts: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as error:
        plan(request_, facts, ROOM)
    assert error.value.hint


def answers(task: dict[str, Any], ranks: int, seconds: float, **_: object) -> list[dict[str, Any]]:
    stamps = {
        op: {str(s): [(0, 1000 + s)] * 5 for s in task["sizes_bytes"]} for op in task["ops"] if op != "all_to_all"
    }
    return [{"timing": "host", "stamps": stamps, "left_out": {"all_to_all": "RuntimeError: no"}}] * ranks


def test_from_answers_to_a_calibration() -> None:
    shares: list[float] = []
    found = calibrate(
        CalibrationRequest(),
        facts=GLOO,
        runner=answers,
        version="9",
        command="c",
        on_progress=lambda s, _: shares.append(s),
    )
    assert [link.op for link in found.links] == [op for op in COLLECTIVES if op != "all_to_all"]
    assert found.links[0].fit.alpha_ns == pytest.approx(1000, rel=1e-3)
    assert found.links[0].fit.bandwidth_bytes_per_s == pytest.approx(1e9, rel=1e-3)
    assert found.left_out == {"gloo all_to_all": "RuntimeError: no"}
    assert (found.versions["stashtrace"], found.versions["torch"], found.command) == ("9", "2.99", "c")
    assert found.machine["cores_count"] > 0


SECOND = 10**9


def used(*, others: float = 0.0, queue_s: float = 0.0, others_mb: int = 0, own_mb: int = 0) -> dict[str, int]:
    """What one of two processes has used in 10 s in which it ran on one CPU, and other programs on ``others``."""
    return {
        "clock_ns": 10 * SECOND,
        "machine_cpu_ns": round((2 + others) * 10 * SECOND),
        "stolen_ns": 0,
        "own_cpu_ns": 10 * SECOND,
        "own_queue_ns": round(queue_s * SECOND),
        "machine_disk_bytes": (others_mb + own_mb) * 10**6,
        "own_disk_bytes": own_mb * 10**6,
    }


def calibrated(starts: list[dict[str, int] | None], request: CalibrationRequest) -> tuple[Calibration, list[str]]:
    """Calibrate with workers that used one of these in each start, in this order; what was said of the progress."""
    left, tasks = iter(starts), list[str]()

    def runner(task: dict[str, Any], ranks: int, seconds: float, **calls: Callable[[float], None]) -> list[Any]:
        calls["on_wait"](1.0)
        one = next(left)
        return [{**answer, "used": one} for answer in answers(task, ranks, seconds)]

    found = calibrate(request, facts=GLOO, runner=runner, on_progress=lambda _, what: tasks.append(what))
    assert next(left, "none left") == "none left"
    return found, tasks


def test_a_start_that_other_programs_disturbed_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others that take a CPU matter where the workers wait for one meanwhile; a start is made at most twice."""
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    quiet, busy = used(), used(others=1.0, queue_s=5, others_mb=30)
    found, tasks = calibrated([quiet, busy, used(others=0.2), busy, busy], CalibrationRequest())
    assert tasks == [
        "gloo, 2 ranks: 5 operations, start 1 of 3",
        "gloo, 2 ranks: 5 operations, start 2 of 3",
        "gloo, 2 ranks: start 2 of 3 again, since other programs used 1.0 of 4 CPUs",
        "gloo, 2 ranks: 5 operations, start 3 of 3",
        "gloo, 2 ranks: start 3 of 3 again, since other programs used 1.0 of 4 CPUs",
    ]
    assert found.others == {
        "gloo, 2 ranks": "other programs used 0.0 to 1.0 of 4 CPUs and moved 0 B/s to 3.00 MB/s from and to disks;"
        " starts 2,3 were made again for that; start 3 was disturbed again: times may be longer than on an idle machine"
    }
    assert "\n  gloo, 2 ranks, meanwhile: other programs used" in "\n".join(calibration_lines(found))


def test_other_programs_that_kept_no_worker_from_a_cpu_did_no_harm() -> None:
    found, tasks = calibrated([used(others=1.0, queue_s=0.1, others_mb=30)], CalibrationRequest(launches=1))
    assert len(tasks) == 1
    assert "again" not in found.others["gloo, 2 ranks"]


def test_traffic_of_others_disturbs_reads_of_a_disk() -> None:
    request = CalibrationRequest(backend="disk", disk=".", launches=1)
    found, tasks = calibrated([used(others_mb=30, own_mb=100), used(others_mb=1, own_mb=100)], request)
    assert tasks[1] == (
        "posix: start 1 of 1 again, since other programs moved 3.00 MB/s from and to disks,"
        " and the measurement 10.0 MB/s"
    )
    assert "start 1 was made again" in found.others["posix"]


def test_a_process_that_computes_counts_its_time() -> None:
    before = Used.now()
    while time.process_time_ns() < before.own_cpu_ns + SECOND // 20:
        pass
    after = Used.now()
    grown = after.since(before)
    assert grown["own_cpu_ns"] >= SECOND // 20
    # The machine counts in ticks of 10 ms.
    assert grown["machine_cpu_ns"] >= grown["own_cpu_ns"] - SECOND // 50
    assert min(grown.values()) >= 0


def test_nothing_worked() -> None:
    def nothing(task: dict[str, Any], ranks: int, seconds: float, **_: object) -> list[dict[str, Any]]:
        return [{"timing": "host", "stamps": {}, "left_out": {"all_reduce": "RuntimeError: no"}}] * ranks

    with pytest.raises(MissingDataError, match="gloo all_reduce: RuntimeError: no"):
        calibrate(CalibrationRequest(), facts=GLOO, runner=nothing)


def test_ranks_that_disagree() -> None:
    def uneven(task: dict[str, Any], ranks: int, seconds: float, **_: object) -> list[dict[str, Any]]:
        first, second = answers(task, ranks, seconds)
        return [first, {**second, "stamps": {}}]

    with pytest.raises(CaptureError, match="failed on some ranks"):
        calibrate(CalibrationRequest(), facts=GLOO, runner=uneven)


def test_a_worker_that_fails_is_quoted() -> None:
    with pytest.raises(CaptureError, match=r"worker 0 of 1 failed .exit code 1.: KeyError: 'backend'"):
        run_ranks({"what": "measure"}, 1, 1.0)


def test_a_worker_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(link_ranks, "_SLACK_S", 0.0)
    with pytest.raises(CaptureError, match="workers 0 of 1 did not end within 0 s"):
        run_ranks({"what": "probe"}, 1, 0.1)


def test_workers_are_not_traced() -> None:
    ours = "/x/libstashtrace.so"
    kept = untraced({"LD_PRELOAD": ours, "NCCL_PROFILER_PLUGIN": ours, "STASHTRACE_DIR": "d", "HOME": "h"})
    assert "LD_PRELOAD" not in kept
    assert "NCCL_PROFILER_PLUGIN" not in kept
    assert "STASHTRACE_DIR" not in kept
    assert kept["HOME"] == "h"
    assert untraced({"LD_PRELOAD": "/x/other.so"})["LD_PRELOAD"] == "/x/other.so"


def test_reads_of_a_disk(tmp_path: Path) -> None:
    engine = DiskReads(str(tmp_path), 1 << 20)
    try:
        assert list(tmp_path.iterdir()) == [], "nothing can be left behind"
        found = measure(engine, READS, (4096, 65536, 1 << 20), 0.3)
        assert found.left_out == {}
        assert all(end > begin for sizes in found.stamps.values() for stamps in sizes.values() for begin, end in stamps)
        with pytest.raises(ValueError, match="no such read"):
            engine.prepare("write", 4096)
    finally:
        engine.close()


def test_reads_from_memory_are_not_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = DiskReads(str(tmp_path), 1 << 16)
    monkeypatch.setattr(engine, "_is_cached", lambda at: True)
    engine.timed("random_read", 4096)
    with pytest.raises(MissingDataError, match="100 % of the reads came from the page cache"):
        engine.check()
    engine.close()
