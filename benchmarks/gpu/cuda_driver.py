"""libcuda by ctypes: a context on device 0, and a kernel that writes down when it began and ended.

No torch, no CuPy, no compiler: the kernel is PTX text, which the driver compiles. Used by gpu_questions.py and
gpu_jobs.py. Standard library only.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import Any

#: ``stamped(to, ns)`` runs for `ns` nanoseconds of %globaltimer. Its first thread stores the begin and the end in two
#: words at `to`, unless that is 0. sm_50 is what every device that drivers of CUDA 12 know can run.
STAMPED_PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry stamped(.param .u64 to, .param .u64 ns) {
  .reg .u64 %address, %length, %begin, %now;
  .reg .pred %more, %skip;
  .reg .b32 %thread, %block;
  ld.param.u64 %address, [to];
  ld.param.u64 %length, [ns];
  mov.u64 %begin, %globaltimer;
spin:
  mov.u64 %now, %globaltimer;
  sub.u64 %now, %now, %begin;
  setp.lt.u64 %more, %now, %length;
  @%more bra spin;
  mov.u32 %thread, %tid.x;
  mov.u32 %block, %ctaid.x;
  or.b32 %thread, %thread, %block;
  setp.ne.u32 %skip, %thread, 0;
  @%skip bra done;
  setp.eq.u64 %skip, %address, 0;
  @%skip bra done;
  mov.u64 %now, %globaltimer;
  st.volatile.global.u64 [%address], %begin;
  st.volatile.global.u64 [%address+8], %now;
  membar.sys;
done:
  ret;
}
"""
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING
HOST_ALLOC_MAPPED = 2  # CU_MEMHOSTALLOC_DEVICEMAP
CAPTURE_GLOBAL, CAPTURE_RELAXED = 0, 2  # CU_STREAM_CAPTURE_MODE_*


class CallFailedError(Exception):
    """A call of the driver or of NCCL that the rest needs gave an error."""


class Stamps:
    """Two words of memory that host and device share, into which a kernel stores its begin and end (ns)."""

    def __init__(self, host: c_void_p, device: int) -> None:
        self.address = device
        self._words = ctypes.cast(host, ctypes.POINTER(c_ulonglong))

    def read(self) -> tuple[int, int]:
        return self._words[0], self._words[1]

    def duration_ns(self) -> int:
        return self._words[1] - self._words[0]


class Driver:
    """The driver with the primary context of device 0 current on this thread, and the stamped kernel loaded."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.require("cuInit", 0)
        self.context = c_void_p()
        self.require("cuDevicePrimaryCtxRetain", byref(self.context), 0)
        self.require("cuCtxSetCurrent", self.context)
        module, self.stamped = c_void_p(), c_void_p()
        self.require("cuModuleLoadData", byref(module), STAMPED_PTX)
        self.require("cuModuleGetFunction", byref(self.stamped), module, b"stamped")

    def call(self, name: str, *arguments: Any) -> int:
        """Call a function of the driver; its result code."""
        result: int = getattr(self.library, name)(*arguments)
        return result

    def require(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver and raise CallFailedError unless it succeeds."""
        if result := self.call(name, *arguments):
            raise CallFailedError(f"{name}: {result}")

    def new_stream(self, flags: int = NON_BLOCKING, priority: int = 0) -> c_void_p:
        stream = c_void_p()
        self.require("cuStreamCreateWithPriority", byref(stream), flags, priority)
        return stream

    def new_event(self, flags: int = 0) -> c_void_p:
        event = c_void_p()
        self.require("cuEventCreate", byref(event), flags)
        return event

    def new_stamps(self) -> Stamps:
        host, device = c_void_p(), c_ulonglong()
        self.require("cuMemHostAlloc", byref(host), c_size_t(16), HOST_ALLOC_MAPPED)
        self.require("cuMemHostGetDevicePointer_v2", byref(device), host, 0)
        return Stamps(host, device.value)

    def launch(self, stream: c_void_p, duration_ns: int, stamps: Stamps | None = None) -> int:
        """Launch the stamped kernel with one thread; the result code."""
        to, length = c_ulonglong(stamps.address if stamps else 0), c_ulonglong(duration_ns)
        arguments = (c_void_p * 2)(ctypes.addressof(to), ctypes.addressof(length))
        return self.call("cuLaunchKernel", self.stamped, 1, 1, 1, 1, 1, 1, 0, stream, arguments, None)

    def end_capture(self, stream: c_void_p) -> tuple[int, c_void_p]:
        graph = c_void_p()
        return self.call("cuStreamEndCapture", stream, byref(graph)), graph

    def instantiate(self, graph: c_void_p) -> c_void_p:
        executable = c_void_p()
        self.require("cuGraphInstantiateWithFlags", byref(executable), graph, c_ulonglong(0))
        return executable

    def elapsed_us(self, first: c_void_p, second: c_void_p) -> float:
        milliseconds = c_float()
        self.require("cuEventElapsedTime", byref(milliseconds), first, second)
        return milliseconds.value * 1e3

    def capture_status(self, stream: c_void_p) -> list[int]:
        """Result code and CUstreamCaptureStatus."""
        status = c_int(-1)
        return [self.call("cuStreamIsCapturing", stream, byref(status)), status.value]

    def exchange_capture_mode(self, mode: int) -> list[int]:
        """Result code and the mode that this thread had before."""
        exchanged = c_int(mode)
        return [self.call("cuThreadExchangeStreamCaptureMode", byref(exchanged)), exchanged.value]

    def pointer_kind(self, pointer: int) -> list[int]:
        """Result code and CUmemorytype of an address, asked as the recorder asks it."""
        kind = c_uint(9)
        which, into = (c_int * 1)(2), (c_void_p * 1)(ctypes.addressof(kind))
        return [self.call("cuPointerGetAttributes", 1, which, into, c_ulonglong(pointer)), kind.value]
