"""Copies of rows, planes and between devices, memsets of rows, and functions that a stream runs on the host."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from collectors.recorded import Recording, plain_environment, record
from collectors.test_cuda import MEGA, brackets, calls, is_timed, play
from device import fake_environment

from stashtrace.schema.kinds import Awaited, Bracket, BracketFlag, CopyDirection, DeviceCall

TO, BACK = CopyDirection.HOST_TO_DEVICE, CopyDirection.DEVICE_TO_HOST
PINNED, PAGEABLE = BracketFlag.PINNED, BracketFlag.PAGEABLE
KILO = 1_000


def both(scene: str, folder: Path, *script: str) -> Recording:
    """The scene traced, after it was played untraced with the same words."""
    bare = play(scene, folder / "bare", script=script, traced=False)
    run = play(f"{scene} nap", folder / "traced", script=script)
    assert run.stdout == bare.stdout
    return run


def copies(run: Recording) -> list[tuple[CopyDirection, int, int]]:
    return [(CopyDirection(r["copy_code"]), r["size_bytes"], r["bracket_flags"]) for r in brackets(run, Bracket.COPY)]


def test_copies_of_rows_and_planes(tmp_path: Path) -> None:
    run = both("shapes", tmp_path)
    assert run.stdout == "shapes 0 0 1 0 0 1 1 1 1\ndone\n"
    assert copies(run) == [(TO, 100 * KILO, PAGEABLE), (BACK, 100 * KILO, PINNED)] * 2
    assert all(is_timed(row) for row in brackets(run, Bracket.COPY))
    # The two that return when all is moved, and a third that was refused.
    assert calls(run)[DeviceCall.COPY] == 3
    refused = [row for row in run.trace.device_calls.rows() if row["status_code"] != 0]
    assert [(DeviceCall(row["call_code"]), row["status_code"]) for row in refused] == [(DeviceCall.COPY, 1)]


def test_copies_between_devices(tmp_path: Path) -> None:
    run = both("peers", tmp_path, "devices 2")
    assert run.stdout == "peers 0 0 0 0 0 101\ndone\n"
    peer, inside = CopyDirection.PEER, CopyDirection.DEVICE_TO_DEVICE
    sizes = [(peer, 2), (inside, 3), (peer, 4), (peer, 1), (peer, 1)]
    assert copies(run) == [(direction, size * MEGA, 0) for direction, size in sizes]
    assert calls(run)[DeviceCall.COPY] == 0, "none of them holds the host"


def test_memsets_of_rows_and_planes_are_compute(tmp_path: Path) -> None:
    run = both("memsets", tmp_path)
    assert run.stdout == "memsets 0 0 0 0\ndone\n"
    awaited = [(row["awaited_code"], row["copy_code"]) for row in brackets(run, Bracket.STREAM_WAIT)]
    assert awaited == [(Awaited.COMPUTE, 0)] * 2


def test_cooperative_kernels_are_compute_and_managed_memory_is_allocated(tmp_path: Path) -> None:
    run = both("cooperative", tmp_path)
    assert run.stdout == "cooperative 0 0 0\ndone\n"
    (wait,) = brackets(run, Bracket.STREAM_WAIT)
    assert wait["awaited_code"] == Awaited.COMPUTE, "not the copy before it"
    allocated = [row for row in run.trace.device_calls.rows() if row["call_code"] == DeviceCall.ALLOCATE]
    assert [row["size_bytes"] for row in allocated][-2:] == [7 * KILO, 9 * KILO]


def test_giving_registered_memory_back_is_a_call(tmp_path: Path) -> None:
    run = both("host_memory", tmp_path)
    assert run.stdout == "host_memory 0 0 713\ndone\n"
    freed = [row["status_code"] for row in run.trace.device_calls.rows() if row["call_code"] == DeviceCall.FREE]
    assert freed == [0, 713]


def test_a_host_function_holds_its_stream(tmp_path: Path) -> None:
    run = both("host_functions", tmp_path)
    assert run.stdout == "host_functions 0 0 0 0 0 1 1 5\ndone\n"
    rows = brackets(run, Bracket.HOST_FUNCTION)
    assert len(rows) == 5, "those that were refused are none"
    assert all(is_timed(row) and row["end_ns"] - row["begin_ns"] >= 5 * MEGA - KILO for row in rows)
    assert all(row["call_ns"] <= row["return_ns"] for row in rows)
    computing, other, own = rows[0]["track_id"], rows[3]["track_id"], rows[4]["track_id"]
    assert [row["track_id"] for row in rows] == [computing] * 3 + [other, own]
    assert len({computing, other, own}) == 3
    (wait,) = brackets(run, Bracket.STREAM_WAIT)
    assert (wait["awaited_code"], wait["correlation_id"]) == (Awaited.HOST_FUNCTION, rows[3]["bracket_id"])
    assert wait["awaited_ns"] == rows[3]["end_ns"]


def test_a_captured_host_function_is_left_alone(tmp_path: Path) -> None:
    run = both("captured_function", tmp_path)
    assert run.stdout == "captured_function 0 0 2 900 901\ndone\n"
    (row,) = brackets(run, Bracket.HOST_FUNCTION)
    assert row["bracket_flags"] & BracketFlag.CAPTURED
    assert not is_timed(row)


@pytest.mark.parametrize("events", ["off", "forced"])
def test_one_hardware_queue_gets_no_event_around_a_host_function(tmp_path: Path, events: str) -> None:
    force = {"STASHTRACE_FORCE_EVENTS": "1"} if events == "forced" else {}
    run = play("host_functions nap", tmp_path, CUDA_DEVICE_MAX_CONNECTIONS="1", **force)
    rows = brackets(run, Bracket.HOST_FUNCTION)
    assert [is_timed(row) for row in rows] == [events == "forced"] * 5
    assert all(row["return_ns"] >= row["call_ns"] for row in rows), "when it was enqueued is known all the same"


#: The same by the driver, for programs that look its functions up: Rectangle is CUDA_MEMCPY2D, Box CUDA_MEMCPY3D.
LOOKED_UP = """
import ctypes as c
driver, libc = c.CDLL("libcuda.so.1"), c.CDLL(None)
libc.dlopen.restype = libc.dlsym.restype = c.c_void_p
libc.dlsym.argtypes = (c.c_void_p, c.c_char_p)
P, Q, Z, U = c.c_void_p, c.c_ulonglong, c.c_size_t, c.c_uint
LOOK_UP = c.CFUNCTYPE(c.c_int, c.c_char_p, c.POINTER(P), c.c_int, c.c_uint64, P)
look_up = LOOK_UP(libc.dlsym(libc.dlopen(b"libcuda.so.1", 2), b"cuGetProcAddress_v2"))
def function(name, version, *types, flags=0):
    found = P()
    assert look_up(name.encode(), c.byref(found), version, flags, None) == 0, name
    return c.CFUNCTYPE(c.c_int, *types)(found.value)
HOST, DEVICE, ARRAY, UNIFIED = 1, 2, 3, 4
class Side(c.Structure):
    _fields_ = [("x", Z), ("y", Z), ("memory", U), ("host", P), ("device", Q), ("array", P), ("pitch", Z)]
class Rectangle(c.Structure):
    _fields_ = [("source", Side), ("target", Side), ("width", Z), ("height", Z)]
class BoxSide(c.Structure):
    _fields_ = [("x", Z), ("y", Z), ("z", Z), ("level", Z), ("memory", U), ("host", P), ("device", Q), ("array", P),
                ("context", P), ("pitch", Z), ("height", Z)]
class Box(c.Structure):
    _fields_ = [("source", BoxSide), ("target", BoxSide), ("width", Z), ("height", Z), ("depth", Z)]
contexts, memory, stream = [P(), P()], [Q(), Q()], P()
said = [driver.cuInit(0)]
for device in (1, 0):
    driver.cuDevicePrimaryCtxRetain(c.byref(contexts[device]), device)
    driver.cuCtxSetCurrent(contexts[device])
    driver.cuMemAlloc_v2(c.byref(memory[device]), Z(8_000_000))
driver.cuStreamCreateWithPriority(c.byref(stream), 1, 0)
here, there = memory[0].value, memory[1].value
host_alloc, register = function("cuMemHostAlloc", 2020, P, Z, U), function("cuMemHostRegister", 6050, P, Z, U)
unregister, free = function("cuMemHostUnregister", 4000, P), function("cuMemFreeHost", 2000, P)
pinned, pageable = P(), c.create_string_buffer(1_000_000)
said += [host_alloc(c.addressof(pinned), 1_000_000, 0), register(pageable, 1_000_000, 0), unregister(pageable),
         unregister(pageable)]

def flat(memory, address):
    place = "host" if memory == HOST else "array" if memory == ARRAY else "device"
    return Side(memory=memory, pitch=2000, **{place: address})
to = Rectangle(flat(HOST, c.addressof(pageable)), flat(DEVICE, here), 1000, 100)
back = Rectangle(flat(DEVICE, here), flat(HOST, pinned.value), 1000, 200)
any = Rectangle(flat(UNIFIED, here), flat(UNIFIED, here + 4_000_000), 1000, 300)
refused = Rectangle(flat(ARRAY, here), flat(DEVICE, here), 1000, 100)
pointer = c.POINTER(Rectangle)
said += [function("cuMemcpy2D", 3020, pointer)(to), function("cuMemcpy2DAsync", 3020, pointer, P)(back, stream),
         function("cuMemcpy2DUnaligned", 3020, pointer)(any), function("cuMemcpy2DUnaligned", 3020, pointer)(refused),
         function("cuMemcpy2D", 3020, pointer)(None)]
def side(memory, context=None):
    return BoxSide(memory=DEVICE, device=memory, pitch=1000, height=10, context=context)
inside = Box(side(here), side(here + 4_000_000), 1000, 10, 40)
across = Box(side(here, contexts[0]), side(there, contexts[1]), 1000, 10, 50)
pointer = c.POINTER(Box)
said += [function("cuMemcpy3D", 3020, pointer)(inside), function("cuMemcpy3DAsync", 3020, pointer, P)(inside, stream),
         function("cuMemcpy3DPeer", 4000, pointer)(across),
         function("cuMemcpy3DPeerAsync", 4000, pointer, P)(across, stream),
         function("cuMemcpyPeer", 4000, Q, P, Q, P, Z)(there, contexts[1], here, contexts[0], 600_000),
         function("cuMemcpyPeerAsync", 4000, Q, P, Q, P, Z, P)(there, contexts[1], here, contexts[0], 700_000, stream),
         function("cuMemcpy", 4000, Q, Q, Z)(here, pinned.value, 800_000),
         # A thread's own stream is one that the legacy stream waits for, which is timed no more from here on.
         function("cuMemcpy2DAsync", 7000, c.POINTER(Rectangle), P, flags=2)(any, None)]
pitch, made = Z(), Q()
said += [function("cuMemAllocManaged", 6000, c.POINTER(Q), Z, U)(made, 5000, 1),
         function("cuMemAllocPitch", 3020, c.POINTER(Q), c.POINTER(Z), Z, Z, U)(made, pitch, 100, 60, 4)]
said += [function("cuMemsetD2D8", 3020, Q, Z, c.c_ubyte, Z, Z)(here, 2000, 1, 1000, 100),
         function("cuMemsetD2D8Async", 3020, Q, Z, c.c_ubyte, Z, Z, P)(here, 2000, 1, 1000, 100, stream),
         function("cuMemsetD8", 3020, Q, c.c_ubyte, Z)(here, 1, 1000),
         function("cuMemsetD32", 3020, Q, U, Z)(here, 1, 1000)]

called = []
HOST_FUNCTION, CALLBACK = c.CFUNCTYPE(None, P), c.CFUNCTYPE(None, P, c.c_int, P)
count = HOST_FUNCTION(lambda data: called.append(data))
callback = CALLBACK(lambda stream, result, data: called.append(data + result))
said += [function("cuLaunchHostFunc", 10000, P, HOST_FUNCTION, P)(stream, count, 1),
         function("cuLaunchHostFunc", 13010, P, HOST_FUNCTION, P, U)(stream, count, 2, 0),
         function("cuLaunchHostFunc", 13010, P, HOST_FUNCTION, P, U)(stream, count, 3, 9),
         function("cuStreamAddCallback", 5000, P, CALLBACK, P, U)(stream, callback, 4, 0),
         function("cuLaunchHostFunc", 10000, P, HOST_FUNCTION, P, flags=2)(None, count, 5)]
driver.cuCtxSynchronize()
print(*said, free(pinned), sorted(called))
import time; time.sleep(0.1)
"""


def test_calls_of_the_driver(tmp_path: Path) -> None:
    script = tmp_path / "looked_up.py"
    script.write_text(LOOKED_UP, encoding="utf-8")
    command = [sys.executable, script]
    bare_env = plain_environment(fake_environment(tmp_path / "bare", "devices 2\ndriver 13010"))
    bare = subprocess.run(command, env=bare_env, capture_output=True, text=True, check=False, timeout=180)
    assert bare.returncode == 0, bare.stderr
    doubles = fake_environment(tmp_path / "doubles", "devices 2\ndriver 13010")
    run = record(command, tmp_path / "run", collectors=["cuda"], lookup_hook=True, env=doubles)
    assert run.stdout == bare.stdout == "0 0 0 0 713 0 0 0 1 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 0 0 0 [1, 2, 4, 5]\n"
    inside, peer = CopyDirection.DEVICE_TO_DEVICE, CopyDirection.PEER
    assert copies(run) == [
        (TO, 100 * KILO, PAGEABLE),
        (BACK, 200 * KILO, PINNED),
        (inside, 300 * KILO, 0),
        (inside, 400 * KILO, 0),
        (inside, 400 * KILO, 0),
        (peer, 500 * KILO, 0),
        (peer, 500 * KILO, 0),
        (peer, 600 * KILO, 0),
        (peer, 700 * KILO, 0),
        (TO, 800 * KILO, PINNED),
        (inside, 300 * KILO, 0),
    ]
    assert all(is_timed(row) for row in brackets(run, Bracket.COPY))
    held = brackets(run, Bracket.HOST_FUNCTION)
    assert [is_timed(row) for row in held] == [True] * 4
    assert len({row["track_id"] for row in held}) == 2, "the last is on the thread's stream"
    assert calls(run)[DeviceCall.ALLOCATE_HOST] == 2
    allocated = [row for row in run.trace.device_calls.rows() if row["call_code"] == DeviceCall.ALLOCATE]
    assert [row["size_bytes"] for row in allocated][-2:] == [5 * KILO, 6 * KILO]
    freed = [row["status_code"] for row in run.trace.device_calls.rows() if row["call_code"] == DeviceCall.FREE]
    assert freed == [0, 713, 0]
