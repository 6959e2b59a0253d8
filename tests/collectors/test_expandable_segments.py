"""Memory that is created, mapped and opened piece by piece, as by expandable segments: calls, retries, names."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from collectors.recorded import NATIVE, Recording
from collectors.test_cuda import machine, play

from stashtrace.analysis.stalls.idle_calls import call_names
from stashtrace.schema.kinds import DeviceCall

PIECE = 2 << 20
MAP, UNMAP = DeviceCall.MAP_MEMORY, DeviceCall.UNMAP_MEMORY
#: The calls of the program in their order, with what each is about.
CALLS = [
    (MAP, PIECE),
    (MAP, PIECE),
    (MAP, PIECE),
    (MAP, PIECE),
    (MAP, 2 * PIECE),
    (DeviceCall.STREAM_SYNCHRONIZE, 0),
    (DeviceCall.STREAM_SYNCHRONIZE, 0),
    *[(UNMAP, PIECE), (UNMAP, 0)] * 2,
    (UNMAP, PIECE),
]


def segments(how: str, folder: Path, *, script: tuple[str, ...] = (), lookup_hook: bool = False) -> Recording:
    """The program traced, after it heard the same untraced."""
    program = machine() / "expandable_segments"
    if not program.exists():
        source = NATIVE / "expandable_segments.cpp"
        command = ["g++", "-std=c++20", "-O1", "-w", "-o", program, source, machine() / "libcudart.so.13", "-ldl"]
        subprocess.run(command, check=True)
    bare = play(how, folder / "bare", script=script, program=program, traced=False)
    run = play(how, folder / "traced", script=script, program=program, lookup_hook=lookup_hook)
    assert run.stdout == bare.stdout
    assert "no cu" not in run.stdout
    return run


def in_order(run: Recording) -> list[tuple[DeviceCall, int]]:
    """Codes and sizes without those of cudaMalloc, and of a memset that took long."""
    rows = sorted(run.trace.device_calls.rows(), key=lambda row: row["begin_ns"])
    seen = [(DeviceCall(row["call_code"]), row["size_bytes"]) for row in rows]
    return [row for row in seen if row[0] not in (DeviceCall.ALLOCATE, DeviceCall.LAUNCH)]


@pytest.mark.parametrize("how", ["ByVersion", "ByVersion_ptsz", "plain", "plain_ptsz", "dlsym"])
def test_each_call_is_a_row(how: str, tmp_path: Path) -> None:
    """Functions that a handle is asked for by dlsym, as older torch does, need the look-up hook."""
    run = segments(how, tmp_path, lookup_hook=how == "dlsym")
    assert in_order(run) == CALLS
    refused = [row["status_code"] for row in run.trace.device_calls.rows() if row["status_code"]]
    assert refused == [1], "the last call unmaps what is not mapped any more"


def test_a_handle_asked_by_dlsym_is_left_alone_without_the_hook(tmp_path: Path) -> None:
    assert {code for code, _ in in_order(segments("dlsym", tmp_path))} == {DeviceCall.STREAM_SYNCHRONIZE}


def test_a_piece_that_could_not_be_had_at_once_is_a_retry(tmp_path: Path) -> None:
    run = segments("ByVersion", tmp_path, script=("fail cuMemCreate 2 at 2",))
    assert in_order(run)[:3] == [(MAP, PIECE), (MAP, PIECE), (DeviceCall.ALLOCATE_RETRY, PIECE)]


def test_only_the_wait_in_front_of_giving_back_is_the_allocators(tmp_path: Path) -> None:
    run = segments("ByVersion", tmp_path)
    place, names = call_names(run.trace)
    order = np.argsort(run.trace.device_calls["begin_ns"])
    assert [names[at] for at in place[order].tolist() if "synchronize" in names[at]] == [
        "stream_synchronize",
        "stream_synchronize before unmap_memory",
    ]
