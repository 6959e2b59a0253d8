"""A job that destroys a context and works on: no dead handle is used, every bracket is timed or counted."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

import pytest
from collectors.recorded import NATIVE, Recording
from collectors.test_cuda import FAKES, ROOT, brackets, driver_calls, is_timed, losses, machine, play

from stashtrace.schema.kinds import Bracket

CALLS = (
    "cuCtxDestroy",
    "cuCtxDestroy_v2",
    "cuDevicePrimaryCtxReset",
    "cuDevicePrimaryCtxReset_v2",
    "cuDevicePrimaryCtxRelease",
    "cuDevicePrimaryCtxRelease_v2",
    "cuGreenCtxDestroy",
)
DONE, IN_FLIGHT = 3, 2  # copies of the program in each place


@functools.cache
def program() -> Path:
    path = machine() / "context_scenes"
    libraries = (machine() / "libcudart.so.13", machine() / "libcuda.so.1")
    command = ["g++", "-std=c++20", "-O1", "-w", "-I", ROOT / "csrc", "-I", FAKES, "-pthread"]
    source = NATIVE / "context_scenes.cpp"
    subprocess.run([*command, "-o", path, source, *libraries, "-ldl"], check=True)
    return path


def lives(arguments: str, folder: Path, *script: str, lookup_hook: bool = False) -> Recording:
    run = play(arguments, folder, script=script, program=program(), lookup_hook=lookup_hook)
    assert run.stdout == "done\n"
    assert driver_calls(folder)["use_of_a_dead_handle"] == 0
    return run


def lost(run: Recording) -> dict[str, int]:
    """Losses of the recorder. Those of reading clocks on a busy machine are none of its."""
    clocks = {"no_run_json", "device_drift_unknown", "device_clock_readings_rejected"}
    return {reason: count for reason, count in losses(run).items() if reason not in clocks}


def check_halves(run: Recording) -> None:
    """Both halves have all their copies; what was in flight or open when the context ended is counted, nothing else."""
    rows = brackets(run, Bracket.COPY)
    assert [is_timed(row) for row in rows] == [True] * 2 * DONE + [False] * IN_FLIGHT + [True] * 2 * DONE
    assert [is_timed(row) for row in brackets(run, Bracket.BATCH_WAIT)] == [False]
    assert lost(run) == {"context_ended": IN_FLIGHT + 1}
    before, after = rows[: 2 * DONE], rows[-2 * DONE :]
    assert {row["track_id"] for row in before} & {row["track_id"] for row in after} == set()


@pytest.mark.parametrize("call", ["cudaDeviceReset", "cudaExecutionCtxDestroy", *CALLS])
def test_recording_starts_afresh(tmp_path: Path, call: str) -> None:
    check_halves(lives(call, tmp_path))


@pytest.mark.parametrize("call", CALLS)
def test_ends_are_seen_by_look_up(tmp_path: Path, call: str) -> None:
    check_halves(lives(f"{call} look-up", tmp_path, lookup_hook=True))


def test_a_context_that_is_still_in_use_loses_nothing(tmp_path: Path) -> None:
    run = lives("released_once_of_two", tmp_path)
    rows = brackets(run, Bracket.COPY)
    assert [is_timed(row) for row in rows] == [True] * (2 * DONE + 1)
    assert len({row["track_id"] for row in rows}) == 1
    assert lost(run) == {}


@pytest.mark.parametrize("call", ["cuGreenCtxDestroy", "cudaExecutionCtxDestroy"])
def test_streams_of_green_contexts_under_cuda_12(tmp_path: Path, call: str) -> None:
    """Their context is known from another function: cuStreamGetCtx refuses them until CUDA 13."""
    check_halves(lives(call, tmp_path, "driver 12080"))


def test_the_last_green_context_ends_the_primary_one(tmp_path: Path) -> None:
    run = lives("green_holds_primary", tmp_path)
    rows = brackets(run, Bracket.COPY)
    assert [is_timed(row) for row in rows] == [True] * 2 * DONE + [False] * IN_FLIGHT
    assert lost(run) == {"context_ended": IN_FLIGHT}


def test_a_detached_stream_is_gone(tmp_path: Path) -> None:
    run = play("green_unseen", tmp_path, program=program())
    assert run.stdout == "done\n"
    assert brackets(run, Bracket.BATCH_WAIT) == [], "the driver refuses all work on it"
    timed = [is_timed(row) for row in brackets(run, Bracket.COPY)]
    assert timed[DONE:] == [True] * DONE, "that of another context"
    # What the thread that reads events had not come to when the context was destroyed past the hooks is counted.
    assert sum(lost(run).values()) == timed.count(False)


def test_contexts_without_a_place_are_counted(tmp_path: Path) -> None:
    run = lives("many_contexts", tmp_path)
    assert len(brackets(run, Bracket.COPY)) == 32 * 2 * DONE
    assert lost(run) == {"too_many_contexts": 3}


def test_the_other_device_is_not_disturbed(tmp_path: Path) -> None:
    run = lives("two_devices", tmp_path, "devices 2")
    rows = brackets(run, Bracket.COPY)
    assert [row["device_index"] for row in rows].count(1) == 30 * DONE
    assert [row["device_index"] for row in rows].count(0) == 40 * DONE
    # On a busy machine the thread that reads events may be at a context that ends: what it has not read is counted.
    untimed = [row["device_index"] for row in rows if not is_timed(row)]
    assert untimed in ([], [0] * DONE, [0] * 2 * DONE)
    assert lost(run) == ({"context_ended": len(untimed)} if untimed else {})
