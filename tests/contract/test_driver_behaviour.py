"""The double of CUDA's driver and the real one give the same answers: tests of the collectors rest on the double."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from contract.real_interfaces import need_device
from device import fake_environment

#: Asks a driver; prints what it answered. Runs in a separate process, with either library in front.
QUESTIONS = r"""
import ctypes, json, threading, time
cuda = ctypes.CDLL("libcuda.so.1")
P, I, U, F = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_float
Q, B = ctypes.c_ulonglong, ctypes.byref
said = {}
said["before_init"] = cuda.cuDeviceGetCount(B(I()))
said["init"] = cuda.cuInit(0)
said["without_context"] = cuda.cuEventCreate(B(P()), 0)
device, context = I(), P()
cuda.cuDeviceGet(B(device), 0)
said["no_such_device"] = cuda.cuDeviceGet(B(I()), 99)
cuda.cuDevicePrimaryCtxRetain(B(context), device)
current = P(); cuda.cuCtxGetCurrent(B(current))
said["none_current"] = current.value is None
cuda.cuCtxSetCurrent(context)

def stream(flags=1):
    made = P()
    assert cuda.cuStreamCreateWithPriority(B(made), flags, 0) == 0
    return made

def event(flags=0):
    made = P()
    assert cuda.cuEventCreate(B(made), flags) == 0
    return made

def status(of):
    found = I(-1)
    code = cuda.cuStreamIsCapturing(of, B(found))
    return [code, found.value if code == 0 else None]

def elapsed(a, b):
    ms = F(-1)
    return [cuda.cuEventElapsedTime(B(ms), a, b), ms.value]

s, fresh, untimed, first, second = stream(), event(), event(2), event(), event()
said["query_never_recorded"] = cuda.cuEventQuery(fresh)
said["elapsed_never_recorded"] = elapsed(fresh, fresh)[0]
for e in (untimed, first): cuda.cuEventRecord(e, s)
cuda.cuStreamSynchronize(s)
said["elapsed_untimed"] = elapsed(untimed, first)[0]
cuda.cuEventRecord(second, s); cuda.cuStreamSynchronize(s)
code, ms = elapsed(first, second)
said["elapsed"] = [code, ms >= 0]
said["elapsed_backwards"] = elapsed(second, first)[0]
found = P(); flags = U(7)
said["stream_context"] = [cuda.cuStreamGetCtx(s, B(found)), found.value == context.value]
said["legacy_context"] = [cuda.cuStreamGetCtx(P(1), B(found)), found.value == context.value]
said["stream_flags"] = [cuda.cuStreamGetFlags(s, B(flags)), flags.value]
said["ids_differ"] = len({(i := Q(), cuda.cuStreamGetId(one, B(i)), i.value)[2] for one in (s, stream())}) == 2

# memory
size = ctypes.c_size_t(1 << 20)
on_device, pinned, mapped = Q(), P(), Q()
cuda.cuMemAlloc_v2(B(on_device), size); cuda.cuMemHostAlloc(B(pinned), size, 2)
pageable = ctypes.create_string_buffer(1 << 16)
def memory(pointer):
    kind, managed, ordinal = U(9), U(9), I(-9)
    wanted = (I * 3)(2, 8, 9)
    into = (P * 3)(*(ctypes.cast(B(x), P) for x in (kind, managed, ordinal)))
    return [cuda.cuPointerGetAttributes(3, wanted, into, Q(pointer)), kind.value, managed.value, ordinal.value]
said["attributes"] = [memory(on_device.value), memory(pinned.value), memory(ctypes.addressof(pageable))]
said["attribute_unknown"] = cuda.cuPointerGetAttribute(B(U()), 2, Q(ctypes.addressof(pageable)))
said["unregister_unknown"] = cuda.cuMemHostUnregister(pageable)
text = b"moved through the device"
ctypes.memmove(pageable, text, len(text))
cuda.cuMemcpyHtoD_v2(on_device, pageable, ctypes.c_size_t(len(text)))
cuda.cuMemcpyDtoH_v2(pinned, on_device, ctypes.c_size_t(len(text)))
said["moved"] = ctypes.string_at(pinned, len(text)).decode()

# %globaltimer
ptx = b'''.version 7.0
.target sm_50
.address_size 64
.visible .entry timer(.param .u64 to) {
  .reg .u64 %a, %t;
  ld.param.u64 %a, [to];
  cvta.to.global.u64 %a, %a;
  mov.u64 %t, %globaltimer;
  st.global.u64 [%a], %t;
  ret;
}
'''
module, function = P(), P()
said["module"] = cuda.cuModuleLoadData(B(module), ptx)
said["function"] = cuda.cuModuleGetFunction(B(function), module, b"timer")
said["no_function"] = cuda.cuModuleGetFunction(B(P()), module, b"nothing")
said["mapped"] = cuda.cuMemHostGetDevicePointer_v2(B(mapped), pinned, 0)
arguments = (P * 1)(ctypes.cast(B(mapped), P))
stamps = []
for _ in range(2):
    said["launch"] = cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, s, arguments, None)
    cuda.cuStreamSynchronize(s); time.sleep(0.02)
    stamps.append(ctypes.cast(pinned, ctypes.POINTER(Q))[0])
said["timer_advances_ms"] = 15 < (stamps[1] - stamps[0]) / 1e6 < 1000

# capture
def begin(on, mode=0): return cuda.cuStreamBeginCapture_v2(on, mode)
def end(on):
    graph = P()
    return [cuda.cuStreamEndCapture(on, B(graph)), graph.value is not None]
said["not_capturing"] = status(s)
said["capture_legacy"] = begin(P(1))
said["begin"] = begin(s)
said["capturing"] = status(s)
cuda.cuEventRecord(fresh, s)
said["end"] = end(s)
said["captured_event"] = [cuda.cuEventQuery(fresh), elapsed(fresh, second)[0]]
begin(s); said["sync_in_capture"] = cuda.cuStreamSynchronize(s)
said["broken"] = status(s); said["end_broken"] = end(s)
def elsewhere(relaxed, out):
    cuda.cuCtxSetCurrent(context)
    if relaxed:
        mode = I(2); cuda.cuThreadExchangeStreamCaptureMode(B(mode)); out.append(mode.value)
    out.append(cuda.cuEventQuery(second))
for relaxed in (False, True):
    out = []; begin(s)
    thread = threading.Thread(target=elsewhere, args=(relaxed, out)); thread.start(); thread.join()
    said["other_thread_relaxed" if relaxed else "other_thread"] = [out, status(s), end(s)[0]]
begin(s, 1); out = []
thread = threading.Thread(target=elsewhere, args=(False, out)); thread.start(); thread.join()
said["thread_local"] = [out, end(s)[0]]
blocking = stream(0); begin(blocking)
said["legacy_beside_blocking"] = status(P(1)); said["blocking_itself"] = status(blocking)
said["legacy_record"] = cuda.cuEventRecord(second, P(1))
said["end_blocking"] = end(blocking)
other = stream(); begin(s); cuda.cuEventRecord(fresh, s); cuda.cuStreamWaitEvent(other, fresh, 0)
said["joined"] = status(other)
cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, other, arguments, None)
said["end_unjoined"] = end(s)

# copies of rows: CUDA_MEMCPY2D
class Side(ctypes.Structure):
    _fields_ = [("x", ctypes.c_size_t), ("y", ctypes.c_size_t), ("memory", U), ("host", P), ("device", Q), ("array", P),
                ("pitch", ctypes.c_size_t)]
class Rows(ctypes.Structure):
    _fields_ = [("source", Side), ("target", Side), ("width", ctypes.c_size_t), ("height", ctypes.c_size_t)]
host, rows = ctypes.addressof(pageable), b"".join(bytes([65 + i]) * 8 for i in range(4))
ctypes.memmove(pageable, rows, len(rows))
there, back = Side(memory=2, device=on_device.value, pitch=64), Side(memory=1, host=pinned.value, pitch=16)
said["rows"] = [cuda.cuMemcpy2D_v2(B(Rows(Side(memory=1, host=host, pitch=8), there, 8, 4))),
                cuda.cuMemcpy2D_v2(B(Rows(there, back, 8, 4))), ctypes.string_at(pinned.value + 48, 8).decode()]
said["rows_overlap"] = cuda.cuMemcpy2D_v2(B(Rows(Side(memory=1, host=host, pitch=4), there, 8, 4)))

# functions on the host
called = []
FUNCTION, CALLBACK = ctypes.CFUNCTYPE(None, P), ctypes.CFUNCTYPE(None, P, I, P)
function = FUNCTION(lambda data: called.append(1))
callback = CALLBACK(lambda stream, result, data: called.append(result))
said["host_function"] = [cuda.cuLaunchHostFunc(s, function, None), cuda.cuStreamAddCallback(s, callback, None, 0),
                         cuda.cuStreamSynchronize(s), called]
said["host_function_refused"] = [cuda.cuLaunchHostFunc(s, None, None), cuda.cuStreamAddCallback(s, callback, None, 1)]
begin(s); said["callback_in_capture"] = cuda.cuStreamAddCallback(s, callback, None, 0); said["end_callback"] = end(s)

# look-up
pointer, state = P(), I(-1)
said["look_up"] = [cuda.cuGetProcAddress_v2(b"cuEventRecord", B(pointer), 12000, Q(0), B(state)), state.value,
                   pointer.value is not None]
said["look_up_nothing"] = [cuda.cuGetProcAddress_v2(b"cuNothing", B(pointer), 12000, Q(0), B(state)), state.value]
print(json.dumps(said))
"""

#: What both must say. Numbers are CUresult; [code, value] where a call also gives a value.
EXPECTED: dict[str, Any] = {
    "before_init": 3,
    "init": 0,
    "without_context": 201,
    "no_such_device": 101,
    "none_current": True,
    "query_never_recorded": 0,
    "elapsed_never_recorded": 400,
    "elapsed_untimed": 400,
    "elapsed": [0, True],
    "elapsed_backwards": 0,
    "stream_context": [0, True],
    "legacy_context": [0, True],
    "stream_flags": [0, 1],
    "ids_differ": True,
    "attributes": [[0, 2, 0, 0], [0, 1, 0, 0], [0, 0, 0, -2]],
    "attribute_unknown": 1,
    "unregister_unknown": 713,
    "moved": "moved through the device",
    "module": 0,
    "function": 0,
    "no_function": 500,
    "mapped": 0,
    "launch": 0,
    "timer_advances_ms": True,
    "not_capturing": [0, 0],
    "capture_legacy": 900,
    "begin": 0,
    "capturing": [0, 1],
    "end": [0, True],
    "captured_event": [907, 907],
    "sync_in_capture": 900,
    "broken": [0, 2],
    "end_broken": [901, False],
    "other_thread": [[900], [0, 2], 901],
    "other_thread_relaxed": [[0, 0], [0, 1], 0],
    "thread_local": [[0], 0],
    "legacy_beside_blocking": [906, None],
    "blocking_itself": [0, 1],
    "legacy_record": 906,
    "end_blocking": [901, False],
    "joined": [0, 1],
    "end_unjoined": [904, False],
    "look_up": [0, 0, True],
    "look_up_nothing": [500, 1],
    "rows": [0, 0, "DDDDDDDD"],
    "rows_overlap": 1,
    "host_function": [0, 0, 0, [1, 0]],
    "host_function_refused": [1, 1],
    "callback_in_capture": 900,
    "end_callback": [901, False],
}


def answers(environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", QUESTIONS], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_the_double(tmp_path: Path) -> None:
    said = answers(os.environ | fake_environment(tmp_path))
    assert {k: v for k, v in said.items() if EXPECTED[k] != v} == {}
    assert said.keys() == EXPECTED.keys()


@pytest.mark.gpu
def test_the_real_driver() -> None:
    need_device()
    said = answers(dict(os.environ))
    assert {k: (EXPECTED[k], v) for k, v in said.items() if EXPECTED[k] != v} == {}
