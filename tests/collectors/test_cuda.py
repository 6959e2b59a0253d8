"""The cuda collector on the doubles of CUDA: what is timed, what is left alone; a failing driver harms nobody."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from collectors.recorded import NATIVE, Recording, plain_environment, record
from device import build

from stashtrace.record.environment import LIBRARY_PATH, LOOKUP_LIBRARY, preload_path
from stashtrace.schema.kinds import Awaited, Bracket, BracketFlag, CopyDirection, DeviceCall, StreamFlag

ROOT = Path(__file__).resolve().parents[2]
FAKES = ROOT / "tests/fakes"
MEGA = 1_000_000
#: Rates of the doubles: a millisecond for each megabyte between host and device.
MACHINE = ("rate.h2d.pinned 1GB", "rate.h2d.pageable 1GB", "rate.d2h.pinned 1GB", "rate.d2h.pageable 1GB")


@functools.cache
def machine() -> Path:
    """Folder with the doubles of libcuda and libcudart and the program of scenes."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = Path(tempfile.mkdtemp(prefix="stashtrace-cuda-"))
    common = [compiler, "-std=c++20", "-O1", "-w", "-fPIC", "-I", ROOT / "csrc", "-I", FAKES, "-pthread"]
    if "STASHTRACE_TEST_LIBRARY" in os.environ:  # a sanitizer's run: its compiler makes the doubles too
        _compile_doubles(common, folder)
    else:
        for name in ("cuda/libcuda.so.1", "cudart/libcudart.so.13"):
            (folder / Path(name).name).symlink_to(build() / "fakes" / name)
    subprocess.run(
        [*common, "-o", folder / "scenes", NATIVE / "cuda_scenes.cpp", folder / "libcudart.so.13", "-ldl"], check=True
    )
    return folder


def _compile_doubles(common: Sequence[str | Path], folder: Path) -> None:
    runtime = sorted(FAKES.glob("fake_cudart*.cpp"))
    driver = [path for path in sorted(FAKES.glob("fake_cuda*.cpp")) if path not in runtime]
    version = f"-Wl,--version-script={FAKES / 'cudart_13.map'}"
    whole = folder / "whole_driver.cpp"  # as one file: most of the time of many is their headers
    whole.write_text("".join(f'#include "{path}"\n' for path in driver), encoding="utf-8")
    for name, sources, extra in (
        ("libcuda.so.1", [whole], []),
        ("libcudart.so.13", runtime, ["-DFAKE_CUDART_MAJOR=13", version]),
    ):
        subprocess.run(
            [*common, "-O0", "-shared", f"-Wl,-soname,{name}", *extra, "-o", folder / name, *sources], check=True
        )


def play(
    scenes: str,
    folder: Path,
    *,
    script: Sequence[str] = (),
    exit_code: int | None = 0,
    traced: bool = True,
    program: Path | None = None,
    lookup_hook: bool = False,
    **env: str,
) -> Recording:
    """Run scenes of a program on a machine that `script` describes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "script").write_text("\n".join((*MACHINE, *script)) + "\n", encoding="utf-8")
    calls = folder / "calls"
    calls.mkdir()
    variables = {"LD_LIBRARY_PATH": str(machine()), "FAKE_SCRIPT": str(folder / "script"), "FAKE_CALLS": str(calls)}
    command = [program or machine() / "scenes", *scenes.split()]
    if traced:
        return record(
            command,
            folder / "run",
            collectors=["cuda"],
            env=variables | env,
            exit_code=exit_code,
            lookup_hook=lookup_hook,
        )
    done = subprocess.run(command, env=plain_environment(variables | env), capture_output=True, text=True, timeout=180)
    return Recording(folder / "run", done.stdout, done.stderr, done.returncode)


def brackets(recording: Recording, kind: Bracket) -> list[dict[str, Any]]:
    rows = [row for row in recording.trace.device_brackets.rows() if row["bracket_code"] == kind]
    return sorted(rows, key=lambda row: row["bracket_id"])


def calls(recording: Recording) -> Counter[DeviceCall]:
    return Counter(DeviceCall(row["call_code"]) for row in recording.trace.device_calls.rows())


def losses(recording: Recording) -> dict[str, int]:
    trace = recording.trace
    return {trace.text(row["name_code"]): row["lost_count"] for row in trace.losses.rows()}


def is_timed(row: dict[str, Any]) -> bool:
    return not row["bracket_flags"] & BracketFlag.UNTIMED


def test_copies_have_bytes_direction_memory_and_rate(tmp_path: Path) -> None:
    run = play("copies", tmp_path)
    rows = brackets(run, Bracket.COPY)
    found = [(CopyDirection(r["copy_code"]), r["size_bytes"] // MEGA, r["bracket_flags"]) for r in rows]
    pinned, pageable = BracketFlag.PINNED, BracketFlag.PAGEABLE
    to, back = CopyDirection.HOST_TO_DEVICE, CopyDirection.DEVICE_TO_HOST
    assert found == [
        (to, 20, pinned),
        (to, 8, pageable),
        (back, 10, pinned),
        (CopyDirection.DEVICE_TO_DEVICE, 30, 0),
        (to, 4, pinned),
        (back, 1, pageable),
    ]
    for row in (rows[0], rows[2]):  # 1 GB/s, and what the host needs between its events
        host_ns = row["return_ns"] - row["call_ns"]
        assert row["size_bytes"] - 1000 <= row["end_ns"] - row["begin_ns"] <= row["size_bytes"] + host_ns + MEGA
    assert all(row["call_ns"] <= row["return_ns"] for row in rows)
    assert rows[0]["begin_ns"] >= rows[0]["call_ns"] - MEGA
    assert calls(run)[DeviceCall.COPY] == 2  # the pageable ones
    assert calls(run)[DeviceCall.STREAM_SYNCHRONIZE] == 1
    assert calls(run)[DeviceCall.DEVICE_SYNCHRONIZE] == 1
    assert calls(run)[DeviceCall.ALLOCATE] == 2
    assert calls(run)[DeviceCall.ALLOCATE_HOST] == 1
    assert len(run.trace.devices) == 1
    assert len(run.trace.device_clocks) == 1
    assert run.trace.device_clocks["error_ns"][0] < MEGA


def test_copies_to_and_from_symbols(tmp_path: Path) -> None:
    run = play("symbols", tmp_path)
    assert run.stdout == "symbols 0 0 0 0\ndone\n"
    found = [
        (CopyDirection(r["copy_code"]), r["size_bytes"] // MEGA, r["bracket_flags"])
        for r in brackets(run, Bracket.COPY)
    ]
    to, back = CopyDirection.HOST_TO_DEVICE, CopyDirection.DEVICE_TO_HOST
    pinned, pageable = BracketFlag.PINNED, BracketFlag.PAGEABLE
    assert found == [(to, 1, pageable), (to, 2, pinned), (back, 3, pageable)]


def test_a_reset_device_is_recorded_afresh(tmp_path: Path) -> None:
    bare = play("reset", tmp_path / "bare", traced=False)
    run = play("reset", tmp_path / "traced")
    assert run.stdout == bare.stdout
    assert driver_calls(tmp_path / "traced")["use_of_a_dead_handle"] == 0
    done, lost, again = brackets(run, Bracket.COPY)
    assert is_timed(done), "what was done before the reset is kept"
    assert not is_timed(lost)
    assert is_timed(again)
    assert losses(run)["context_ended"] == 1


def test_a_wait_knows_what_it_waits_for(tmp_path: Path) -> None:
    run = play("waits nap", tmp_path)
    copy = brackets(run, Bracket.COPY)[0]
    waits = brackets(run, Bracket.STREAM_WAIT)
    assert [Awaited(w["awaited_code"]) for w in waits] == [Awaited.COPY, Awaited.COPY, Awaited.COPY, Awaited.COMPUTE]
    direct, relay, third, compute = waits
    assert direct["correlation_id"] == relay["correlation_id"] == third["correlation_id"] == copy["bracket_id"]
    assert direct["awaited_ns"] == copy["end_ns"]
    assert third["awaited_ns"] >= copy["end_ns"] - 1000  # events tick by half a microsecond
    assert [w["copy_code"] for w in waits] == [*[CopyDirection.HOST_TO_DEVICE] * 3, 0]
    # 10 ms of copy during 1 ms of compute: 9 ms are exposed. Both take what the script says, but begin when the host
    # came to ask for them, so they are held against its stamps.
    step = brackets(run, Bracket.STEP)[0]
    error_ns = 2 * max(row["error_ns"] for row in run.trace.device_clocks.rows()) + 1000
    host_ns = copy["return_ns"] - copy["call_ns"]
    assert 10 * MEGA - 1000 <= copy["end_ns"] - copy["begin_ns"] <= 10 * MEGA + host_ns + 1000
    assert copy["begin_ns"] == pytest.approx(copy["call_ns"], abs=host_ns + error_ns)
    latest_ns = max(copy["call_ns"] + MEGA, direct["return_ns"])
    assert step["begin_ns"] + MEGA - 1000 <= direct["begin_ns"] <= latest_ns + error_ns
    assert direct["end_ns"] >= direct["awaited_ns"] - 1000
    assert compute["awaited_ns"] >= direct["end_ns"] + MEGA
    flags = {row["stream_flags"] & StreamFlag.CARRIES_COMPUTE for row in run.trace.streams.rows()}
    assert flags == {0, StreamFlag.CARRIES_COMPUTE}


def test_a_wait_knows_where_the_copy_went_and_that_memory_was_set(tmp_path: Path) -> None:
    run = play("side_work nap", tmp_path)
    inside, after_memset = brackets(run, Bracket.STREAM_WAIT)
    assert (inside["awaited_code"], inside["copy_code"]) == (Awaited.COPY, CopyDirection.DEVICE_TO_DEVICE)
    assert (after_memset["awaited_code"], after_memset["copy_code"]) == (Awaited.COMPUTE, 0)


def test_a_reused_stream_handle_is_another_stream(tmp_path: Path) -> None:
    run = play("reuse", tmp_path)
    assert len({row["track_id"] for row in brackets(run, Bracket.COPY)}) == 5


def test_nothing_is_recorded_into_a_capture(tmp_path: Path) -> None:
    run = play("capture", tmp_path)
    assert "capture 0 0" in run.stdout
    copy = brackets(run, Bracket.COPY)[0]
    assert copy["bracket_flags"] & BracketFlag.CAPTURED
    assert not is_timed(copy)
    assert copy["begin_ns"] == -1
    assert brackets(run, Bracket.STREAM_WAIT) == []
    graphs = brackets(run, Bracket.GRAPH)
    assert len(graphs) == 2
    assert graphs[0]["correlation_id"] == graphs[1]["correlation_id"] != 0
    assert all(is_timed(g) and g["end_ns"] - g["begin_ns"] > 2 * MEGA for g in graphs)
    assert calls(run)[DeviceCall.GRAPH_LAUNCH] == 2


def test_copies_on_the_legacy_stream_are_timed_next_to_blocking_streams(tmp_path: Path) -> None:
    run = play("blocking", tmp_path)
    assert [is_timed(row) for row in brackets(run, Bracket.COPY)] == [True, True, True]
    assert "legacy_stream_untimed" not in losses(run)


def test_one_hardware_queue_gets_no_event(tmp_path: Path) -> None:
    run = play("copies waits", tmp_path / "off", CUDA_DEVICE_MAX_CONNECTIONS="1")
    assert not any(is_timed(row) for row in run.trace.device_brackets.rows())
    assert len(run.trace.device_clocks) == 0
    assert "timing_events_off" in losses(run)
    assert driver_calls(tmp_path / "off")["cuEventElapsedTime"] == 0
    forced = play("copies", tmp_path / "on", CUDA_DEVICE_MAX_CONNECTIONS="1", STASHTRACE_FORCE_EVENTS="1")
    assert all(is_timed(row) for row in brackets(forced, Bracket.COPY))
    assert "timing_events_forced" in losses(forced)


def driver_calls(folder: Path) -> Counter[str]:
    """Calls of the driver's double, over all processes."""
    count: Counter[str] = Counter()
    for path in (folder / "calls").glob("*.txt"):
        for line in path.read_text(encoding="utf-8").splitlines():
            name, number = line.split()
            count[name] += int(number)
    return count


def test_above_its_budget_it_leaves_out_whole_steps(tmp_path: Path) -> None:
    run = play("steps", tmp_path, STASHTRACE_EVENT_BUDGET="500")
    steps = sorted(row["call_ns"] for row in brackets(run, Bracket.STEP))
    assert len(steps) == 64
    assert all(is_timed(row) for row in brackets(run, Bracket.STEP))
    copies = brackets(run, Bracket.COPY)
    by_step: dict[int, set[bool]] = {}
    for row in copies:
        by_step.setdefault(sum(at < row["call_ns"] for at in steps), set()).add(is_timed(row))
    assert all(len(kinds) == 1 for kinds in by_step.values()), "a step is timed whole or not at all"
    assert 0 < sum(kinds == {True} for kinds in by_step.values()) < 48
    assert losses(run)["event_budget"] > 0


def test_a_burst_below_the_budget_of_a_second_is_timed(tmp_path: Path) -> None:
    # 6,400 events in a fifth of a second: a host that runs ahead of its device.
    run = play("steps", tmp_path)
    assert all(is_timed(row) for row in brackets(run, Bracket.COPY))
    assert "event_budget" not in losses(run)


def test_the_child_of_a_fork_touches_no_driver(tmp_path: Path) -> None:
    run = play("fork", tmp_path)
    assert "child 0" in run.stdout
    # Only the recorder asks this. The child starts with its parent's counts, and adds none.
    texts = [path.read_text(encoding="utf-8") for path in (tmp_path / "calls").glob("cuda-*.txt")]
    lines = [line.split() for text in texts for line in text.splitlines()]
    asked = [int(number) for name, number in lines if name == "cuStreamIsCapturing"]
    assert len(asked) == 2, "parent and child"
    assert asked[0] == asked[1] > 0
    pids = {row["pid"] for row in run.trace.processes.rows()}
    processes = {row["process_id"] for row in run.trace.device_brackets.rows()}
    assert len(processes) == 1, f"brackets of {len(processes)} of {len(pids)} processes"


def test_work_in_flight_at_exit_is_not_waited_for(tmp_path: Path) -> None:
    bare = play("in_flight", tmp_path / "bare", traced=False)
    begin = time.monotonic()
    run = play("in_flight nap", tmp_path / "traced", exit_code=bare.exit_code)
    assert time.monotonic() - begin < 40, "the work takes a minute"
    (copy,) = brackets(run, Bracket.COPY)
    assert not is_timed(copy)
    assert copy["begin_ns"] == copy["end_ns"] == -1


def test_allocator_retries_are_seen(tmp_path: Path) -> None:
    run = play("copies free", tmp_path, script=["fail cudaMalloc 2 at 1"])
    seen = calls(run)
    assert seen[DeviceCall.ALLOCATE_RETRY] == 1
    assert seen[DeviceCall.FREE] == 1
    allocated = [row for row in run.trace.device_calls.rows() if row["call_code"] == DeviceCall.ALLOCATE]
    assert sorted(row["status_code"] for row in allocated) == [0, 2]


def test_the_row_of_a_retry_holds_no_code_of_the_job(tmp_path: Path) -> None:
    run = play("second_try", tmp_path, script=["fail cudaMalloc 2 at 3", "delay cudaMalloc 2ms"])
    rows = [row for row in run.trace.device_calls.rows() if row["size_bytes"] == 3 * MEGA]
    failed, again = sorted(rows, key=lambda row: row["begin_ns"])
    assert (failed["call_code"], again["call_code"]) == (DeviceCall.ALLOCATE, DeviceCall.ALLOCATE_RETRY)
    assert again["begin_ns"] - failed["end_ns"] > 200 * MEGA  # what the job did in between is in neither
    assert 2 * MEGA <= again["end_ns"] - again["begin_ns"] < 200 * MEGA


def test_a_smaller_allocation_is_no_retry(tmp_path: Path) -> None:
    run = play("smaller_try", tmp_path, script=["fail cudaMalloc 2 at 3"])
    sizes = (MEGA, 2 * MEGA, 3 * MEGA)
    found = [row["call_code"] for row in run.trace.device_calls.rows() if row["size_bytes"] in sizes]
    assert found == [DeviceCall.ALLOCATE] * 3


def test_slow_launches_are_seen(tmp_path: Path) -> None:
    run = play("waits", tmp_path, script=["delay cudaLaunchKernel 2ms"])
    assert calls(run)[DeviceCall.LAUNCH] == 2


def test_probes_put_brackets(tmp_path: Path) -> None:
    run = play("probes nap", tmp_path)
    (wait,) = brackets(run, Bracket.BATCH_WAIT)
    assert wait["correlation_id"] == 42
    assert 4.5 * MEGA < wait["end_ns"] - wait["begin_ns"] < wait["return_ns"] - wait["call_ns"] + MEGA
    (step,) = brackets(run, Bracket.STEP)
    assert step["correlation_id"] == 7
    assert step["begin_ns"] == step["end_ns"] >= wait["end_ns"]


def test_many_threads(tmp_path: Path) -> None:
    run = play("threads", tmp_path)
    copies = brackets(run, Bracket.COPY)
    assert len(copies) == 1200
    assert len({row["bracket_id"] for row in copies}) == 1200
    assert all(is_timed(row) for row in copies)


#: Every call that the recorder makes for itself.
OWN_CALLS = (
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxGetDevice",
    "cuStreamGetCtx",
    "cuStreamGetFlags",
    "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode",
    "cuEventElapsedTime",
    "cuStreamGetPriority",
    "cuStreamGetId",
    "cuDeviceGetName",
    "cuDeviceGetUuid_v2",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetPCIBusId",
    "cuPointerGetAttributes",
    "cuCtxGetStreamPriorityRange",
    "cuDriverGetVersion",
)


@pytest.mark.parametrize("name", OWN_CALLS)
def test_a_call_that_fails_harms_nobody(tmp_path: Path, name: str) -> None:
    script = [f"fail {name} 1"]
    bare = play("copies waits", tmp_path / "bare", script=script, traced=False)
    run = play("copies waits", tmp_path / "traced", script=script)
    assert run.stdout == bare.stdout
    assert run.exit_code == bare.exit_code
    assert len(run.trace.device_calls) > 0


@pytest.mark.parametrize("name", ["cuEventRecord", "cuEventCreate", "cuEventQuery", "cuStreamCreateWithPriority"])
@pytest.mark.parametrize("code", [1, 4, 400, 709])
def test_events_that_fail_leave_untimed_brackets(tmp_path: Path, name: str, code: int) -> None:
    run = play("copies waits", tmp_path, script=[f"fail {name} {code} every 2"])
    assert run.stdout == "done\n"
    rows = list(run.trace.device_brackets.rows())
    assert rows
    assert all(row["end_ns"] >= row["begin_ns"] for row in rows if is_timed(row))


def test_a_broken_driver_turns_the_collector_off(tmp_path: Path) -> None:
    run = play("threads", tmp_path, script=["fail cuEventRecord 999"])
    assert run.stdout == "done\n"
    assert "driver_errors" in losses(run)


def test_without_a_driver_it_says_so_once(tmp_path: Path) -> None:
    folder = tmp_path / "libraries"
    folder.mkdir()
    shutil.copy(machine() / "libcudart.so.13", folder)
    run = play("copies copies", tmp_path / "run", LD_LIBRARY_PATH=str(folder))
    trace = run.trace
    reasons = [trace.text(row["name_code"]) for row in trace.losses.rows()]
    assert reasons.count("no_driver") == 1
    assert len(trace.device_brackets) == 0


def test_the_lookup_hook_sees_calls_that_pass_no_import_table(tmp_path: Path) -> None:
    """A program that asks the driver for its functions, as static runtimes do."""
    script = tmp_path / "static_runtime.py"
    script.write_text(STATIC_RUNTIME, encoding="utf-8")
    env = {"LD_LIBRARY_PATH": str(machine())}
    python = [shutil.which("python3") or "python3", str(script)]
    off = record(python, tmp_path / "off", collectors=["cuda"], env=env)
    on = record(python, tmp_path / "on", collectors=["cuda"], env=env, lookup_hook=True)
    assert off.stdout == on.stdout == "0 0 0 0 0\n"
    assert list(off.directory.glob("*.stash")) == [], "nothing was seen"
    assert calls(on)[DeviceCall.STREAM_SYNCHRONIZE] == 1
    (copy,) = brackets(on, Bracket.COPY)
    assert copy["size_bytes"] == 1_000_000
    assert copy["copy_code"] == CopyDirection.HOST_TO_DEVICE
    # Launches, by both calls, decide what the other stream's waits are for.
    waits = brackets(on, Bracket.STREAM_WAIT)
    assert [Awaited(w["awaited_code"]) for w in waits] == [Awaited.COMPUTE] * 3


STATIC_RUNTIME = """
import ctypes as c
libc = c.CDLL(None)
libc.dlopen.restype = libc.dlsym.restype = c.c_void_p
libc.dlsym.argtypes = (c.c_void_p, c.c_char_p)
driver = libc.dlopen(b"libcuda.so.1", 2)
LOOK_UP = c.CFUNCTYPE(c.c_int, c.c_char_p, c.POINTER(c.c_void_p), c.c_int, c.c_uint64, c.POINTER(c.c_int))
look_up = LOOK_UP(libc.dlsym(driver, b"cuGetProcAddress_v2"))
def function(name, *types):
    found, status = c.c_void_p(), c.c_int()
    assert look_up(name.encode(), c.byref(found), 12000, 0, c.byref(status)) == 0 and found.value
    return c.CFUNCTYPE(c.c_int, *types)(found.value)
function("cuInit", c.c_uint)(0)
context, pointer, stream = c.c_void_p(), c.c_uint64(), c.c_void_p()
function("cuDevicePrimaryCtxRetain", c.c_void_p, c.c_int)(c.addressof(context), 0)
function("cuCtxSetCurrent", c.c_void_p)(context)
function("cuMemAlloc", c.c_void_p, c.c_size_t)(c.addressof(pointer), 1 << 21)
made = function("cuStreamCreate", c.c_void_p, c.c_uint)(c.addressof(stream), 1)
host = c.create_string_buffer(1 << 21)
copied = function("cuMemcpyHtoDAsync", c.c_uint64, c.c_void_p, c.c_size_t, c.c_void_p)(pointer, host, 1000000, stream)
module, kernel, event, other = (c.c_void_p() for _ in range(4))
function("cuModuleLoadData", c.c_void_p, c.c_char_p)(c.addressof(module), b".visible .entry work()")
function("cuModuleGetFunction", c.c_void_p, c.c_void_p, c.c_char_p)(c.addressof(kernel), module, b"work")
function("cuEventCreate", c.c_void_p, c.c_uint)(c.addressof(event), 2)
function("cuStreamCreate", c.c_void_p, c.c_uint)(c.addressof(other), 1)
sizes = (c.c_uint,) * 7
launch = function("cuLaunchKernel", c.c_void_p, *sizes, *(c.c_void_p,) * 3)
launch_ex = function("cuLaunchKernelEx", *(c.c_void_p,) * 4)
record = function("cuEventRecord", c.c_void_p, c.c_void_p)
wait = function("cuStreamWaitEvent", c.c_void_p, c.c_void_p, c.c_uint)
class Config(c.Structure):
    _fields_ = [("sizes", c.c_uint * 7), ("stream", c.c_void_p), ("attributes", c.c_void_p), ("count", c.c_uint)]
config = Config((1,) * 6 + (0,), other, None, 0)
first = launch(kernel, *(1,) * 6, 0, other, None, None)
record(event, other), wait(stream, event, 0)
record(event, stream), wait(other, event, 0)
second = launch_ex(c.addressof(config), kernel, None, None)
record(event, other), wait(stream, event, 0)
print(made, copied, first, second, function("cuStreamSynchronize", c.c_void_p)(stream))
"""


def test_a_program_without_cuda_runs_under_both_libraries() -> None:
    libraries = (LIBRARY_PATH, LIBRARY_PATH.with_name(LOOKUP_LIBRARY))
    env = plain_environment() | {"LD_PRELOAD": ":".join(map(preload_path, libraries))}
    program = "import ctypes, socket, json; print(ctypes.CDLL(None).getpid() > 0)"
    done = subprocess.run(["python3", "-c", program], env=os.environ | env, capture_output=True, text=True, timeout=180)
    assert done.stdout == "True\n", done.stderr


ASKS_EARLY = """
import ctypes, json
from stashtrace import _native

told = [_native.device_active() for _ in range(3)]
ctypes.CDLL("libm.so.6")  # another library: looked for again, in vain
told.append(_native.device_active())
driver = ctypes.CDLL("libcuda.so.1")
told.append(_native.device_active())  # there, and no context yet
context = ctypes.c_void_p()
failed = [driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), driver.cuCtxSetCurrent(context)]
told.append(_native.device_active())
print(json.dumps({"told": told, "failed": failed}))
"""


def test_a_driver_that_is_loaded_after_probes_have_asked_for_it_is_found(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("\n".join(MACHINE) + "\n", encoding="utf-8")
    (tmp_path / "job.py").write_text(ASKS_EARLY, encoding="utf-8")
    variables = {"LD_LIBRARY_PATH": str(machine()), "FAKE_SCRIPT": str(tmp_path / "script")}
    done = record([sys.executable, tmp_path / "job.py"], tmp_path / "run", collectors=["cuda"], env=variables)
    said = json.loads(done.stdout)
    assert said["failed"] == [0, 0, 0]
    assert said["told"] == [False] * 5 + [True]
