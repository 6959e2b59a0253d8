"""Asks a real driver what its doubles cannot answer, in about twenty seconds. Prints one JSON object.

    python3 benchmarks/gpu/driver_probe.py [--limit-s 45]

What each section settles:

    no_context    what a thread without a current context may ask: result codes of each call
    ns            cost of each question that the recorder asks per call, nanoseconds, the best of five loops
    globaltimer   whether the driver compiles our PTX, its step, the widths of anchors, idle and next to a full device
    look_up       which forms of a function ``cuGetProcAddress`` gives for which CUDA version
    nvml          fields and calls of NVML: result, value, cost

Each section stands for itself: one that fails leaves its error under its name. Where a call never returns, what was
found until then is printed at the limit. Standard library only; needs libcuda.so.1, and libnvidia-ml.so.1 for the last
section. The exit code is 0 when every section was answered, else 1.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import ctypes
import functools
import itertools
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import Any

SUCCESS, NOT_READY = 0, 600
NON_BLOCKING = 1
HOST_ALLOC_MAPPED = 2
#: Work that fills every multiprocessor: ten waves of two blocks each, each block of some cycles.
WAVES, SPIN_CYCLES = 10, 200_000_000
TIMER_WAIT_S = 2.0
HEAD = ".version 6.0\n.target sm_50\n.address_size 64\n"
TIMER_PTX = (
    HEAD
    + """.visible .entry timer(.param .u64 to) {
 .reg .u64 %a, %t; ld.param.u64 %a, [to]; cvta.to.global.u64 %a, %a;
 mov.u64 %t, %globaltimer; st.volatile.global.u64 [%a], %t; membar.sys; ret; }
"""
)
SPIN_PTX = (
    HEAD
    + """.visible .entry spin(.param .u64 cycles) {
 .reg .u64 %n, %t, %u; .reg .pred %p; ld.param.u64 %n, [cycles]; mov.u64 %t, %clock64;
L: mov.u64 %u, %clock64; sub.u64 %u, %u, %t; setp.lt.u64 %p, %u, %n; @%p bra L; ret; }
"""
)
#: NVML field -> scope: energy, power, clocks, throttling and traffic as `collectors/nvml` and its page name them.
EVERY_SCOPE = 0xFFFFFFFF
FIELDS = (
    (138, EVERY_SCOPE),
    (139, EVERY_SCOPE),
    (138, 0),
    (197, 0),
    (198, 0),
    (202, 0),
    (83, 0),
    (82, 0),
    (74, 0),
    (3, 0),
    (94, 0),
    (38, EVERY_SCOPE),
)
LOOKED_UP = (
    ("cuNothing", 13000),
    ("cuStreamWaitEvent", 3020),
    ("cuEventRecord", 2000),
    ("cuCtxSynchronize", 2000),
    ("cuCtxSynchronize", 13000),
    ("cuMemAlloc", 3020),
)


class FieldValue(ctypes.Structure):
    """nvmlFieldValue_t."""

    _fields_ = [
        ("id", c_uint),
        ("scope", c_uint),
        ("timestamp_us", c_int64),
        ("latency_us", c_int64),
        ("type", c_int),
        ("result", c_int),
        ("value", c_ulonglong),
    ]


class CallFailedError(Exception):
    """A call that the rest of a section needs gave an error."""


def require(name: str, result: int) -> None:
    """Raise CallFailedError unless the call succeeded."""
    if result != SUCCESS:
        raise CallFailedError(f"{name}: {result}")


class Probe:
    """The driver with a context on device 0, a stream and events that are recorded on it."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found
        self.driver = ctypes.CDLL("libcuda.so.1")
        require("cuInit", self.driver.cuInit(0))
        version = c_int()
        require("cuDriverGetVersion", self.driver.cuDriverGetVersion(byref(version)))
        found["driver"] = version.value
        self.context = c_void_p()
        require("cuDevicePrimaryCtxRetain", self.driver.cuDevicePrimaryCtxRetain(byref(self.context), 0))
        require("cuCtxSetCurrent", self.driver.cuCtxSetCurrent(self.context))
        self.stream = self.new_stream(0)
        self.first, self.second, self.other = self.new_event(), self.new_event(), self.new_event()
        require("cuEventRecord", self.driver.cuEventRecord(self.first, self.stream))
        time.sleep(0.01)
        require("cuEventRecord", self.driver.cuEventRecord(self.second, self.stream))
        require("cuStreamSynchronize", self.driver.cuStreamSynchronize(self.stream))

    def new_event(self) -> c_void_p:
        event = c_void_p()
        require("cuEventCreate", self.driver.cuEventCreate(byref(event), 0))
        return event

    def new_stream(self, priority: int) -> c_void_p:
        stream = c_void_p()
        require(
            "cuStreamCreateWithPriority", self.driver.cuStreamCreateWithPriority(byref(stream), NON_BLOCKING, priority)
        )
        return stream

    def no_context(self) -> dict[str, Any]:
        """Result codes on a thread that has no context: the harvester's, and a job thread's at its first call."""
        found: dict[str, Any] = {}
        thread = threading.Thread(target=self._ask_bare, args=(found,))
        thread.start()
        thread.join()
        milliseconds = c_float()
        backwards = self.driver.cuEventElapsedTime(byref(milliseconds), self.second, self.first)
        self.found["elapsed_backwards"] = [backwards, milliseconds.value]
        return found

    def _ask_bare(self, found: dict[str, Any]) -> None:
        driver, current, milliseconds = self.driver, c_void_p(), c_float()
        driver.cuCtxGetCurrent(byref(current))
        found["current_is_null"] = not current.value
        found["cuEventQuery"] = driver.cuEventQuery(self.first)
        for name in ("cuEventElapsedTime", "cuEventElapsedTime_v2"):
            if hasattr(driver, name):
                result = getattr(driver, name)(byref(milliseconds), self.first, self.second)
                found[name] = [result, milliseconds.value]
        status, number, context, flags = c_int(-1), c_ulonglong(), c_void_p(), c_uint()
        found["cuStreamIsCapturing"] = [driver.cuStreamIsCapturing(self.stream, byref(status)), status.value]
        found["cuStreamGetId"] = driver.cuStreamGetId(self.stream, byref(number))
        found["cuStreamGetCtx"] = driver.cuStreamGetCtx(self.stream, byref(context))
        found["cuStreamGetFlags"] = driver.cuStreamGetFlags(self.stream, byref(flags))
        found["cuEventRecord"] = driver.cuEventRecord(self.other, self.stream)
        found["cuStreamSynchronize"] = driver.cuStreamSynchronize(self.stream)
        kind = c_uint(9)
        which, into = (c_int * 1)(2), (c_void_p * 1)(ctypes.addressof(kind))
        pointer = c_ulonglong(ctypes.addressof(kind))
        found["cuPointerGetAttributes"] = driver.cuPointerGetAttributes(1, which, into, pointer)

    def ns(self) -> dict[str, int]:
        """Nanoseconds of each question; ``ctypes_itself`` is what the loop costs with a call that does nothing."""
        driver, version, status = self.driver, c_int(), c_int()
        number, context, milliseconds = c_ulonglong(), c_void_p(), c_float()
        costs = {
            "ctypes_itself": cost_ns(lambda: driver.cuDriverGetVersion(byref(version))),
            "cuCtxGetCurrent": cost_ns(lambda: driver.cuCtxGetCurrent(byref(context))),
            "cuStreamIsCapturing": cost_ns(lambda: driver.cuStreamIsCapturing(self.stream, byref(status))),
            "cuStreamGetId": cost_ns(lambda: driver.cuStreamGetId(self.stream, byref(number))),
            "cuEventRecord": cost_ns(lambda: driver.cuEventRecord(self.other, self.stream)),
            "cuEventQuery": cost_ns(lambda: driver.cuEventQuery(self.first)),
            "cuEventElapsedTime": cost_ns(
                lambda: driver.cuEventElapsedTime(byref(milliseconds), self.first, self.second)
            ),
        }
        require("cuStreamSynchronize", driver.cuStreamSynchronize(self.stream))
        return costs

    def kernel(self, ptx: str, name: str) -> c_void_p:
        module, function = c_void_p(), c_void_p()
        require(f"cuModuleLoadData({name})", self.driver.cuModuleLoadData(byref(module), ptx.encode()))
        require("cuModuleGetFunction", self.driver.cuModuleGetFunction(byref(function), module, name.encode()))
        return function

    def globaltimer(self) -> dict[str, Any]:
        """PTX compiler, step of the timer, width of an anchor by timer and by event; then next to a full device."""
        driver, found = self.driver, {}
        begin = time.perf_counter()
        timer = self.kernel(TIMER_PTX, "timer")
        found["module_ms"] = round(1e3 * (time.perf_counter() - begin), 1)
        spin = self.kernel(SPIN_PTX, "spin")
        host, device = c_void_p(), c_ulonglong()
        require("cuMemHostAlloc", driver.cuMemHostAlloc(byref(host), c_size_t(8), HOST_ALLOC_MAPPED))
        require("cuMemHostGetDevicePointer_v2", driver.cuMemHostGetDevicePointer_v2(byref(device), host, 0))
        word = ctypes.cast(host, ctypes.POINTER(c_ulonglong))
        arguments = (c_void_p * 1)(ctypes.addressof(device))
        least, greatest = c_int(), c_int()
        require("cuCtxGetStreamPriorityRange", driver.cuCtxGetStreamPriorityRange(byref(least), byref(greatest)))
        stream = self.new_stream(greatest.value)

        def read_timer() -> tuple[int, int]:
            """Value of the timer, and nanoseconds that it took; raises CallFailedError where it does not come."""
            word[0] = 0
            begin_ns = time.perf_counter_ns()
            require("cuLaunchKernel", driver.cuLaunchKernel(timer, 1, 1, 1, 1, 1, 1, 0, stream, arguments, None))
            while word[0] == 0:
                if time.perf_counter_ns() - begin_ns > TIMER_WAIT_S * 1e9:
                    raise CallFailedError(f"the timer did not come within {TIMER_WAIT_S} s")
            return word[0], time.perf_counter_ns() - begin_ns

        def event_width_ns() -> int:
            event, begin_ns = self.new_event(), time.perf_counter_ns()
            require("cuEventRecord", driver.cuEventRecord(event, stream))
            while (result := driver.cuEventQuery(event)) == NOT_READY:
                pass
            require("cuEventQuery", result)
            return time.perf_counter_ns() - begin_ns

        read_timer()
        stamps = [read_timer()[0] for _ in range(300)]
        found["step_ns"] = functools.reduce(math.gcd, [b - a for a, b in itertools.pairwise(stamps)])
        found["idle"] = {
            "timer_us": sorted(read_timer()[1] // 1000 for _ in range(9)),
            "event_us": sorted(event_width_ns() // 1000 for _ in range(9)),
        }
        multiprocessors = c_int()
        require("cuDeviceGetAttribute", driver.cuDeviceGetAttribute(byref(multiprocessors), 16, 0))
        cycles = c_ulonglong(SPIN_CYCLES)
        full = (c_void_p * 1)(ctypes.addressof(cycles))
        blocks = multiprocessors.value * 2 * WAVES
        require("cuLaunchKernel", driver.cuLaunchKernel(spin, blocks, 1, 1, 1024, 1, 1, 0, self.stream, full, None))
        time.sleep(0.05)
        found["full_device"] = {"event_us": sorted(event_width_ns() // 1000 for _ in range(5))}
        try:
            found["full_device"]["timer_us"] = read_timer()[1] // 1000
        finally:
            require("cuCtxSynchronize", driver.cuCtxSynchronize())
        return found

    def look_up(self) -> dict[str, Any]:
        """Result, status and whether there is a function, per name and CUDA version; and one name with two forms."""
        function, status = c_void_p(), c_int(-1)

        def look(name: str, version: int) -> list[Any]:
            function.value = None
            ask = self.driver.cuGetProcAddress_v2
            result = ask(c_char_p(name.encode()), byref(function), version, c_ulonglong(0), byref(status))
            return [result, status.value, bool(function.value)]

        found: dict[str, Any] = {f"{name}@{version}": look(name, version) for name, version in LOOKED_UP}
        look("cuCtxSynchronize", 2000)
        old = function.value
        look("cuCtxSynchronize", 13000)
        found["cuCtxSynchronize_has_two_forms"] = old != function.value
        return found


def cost_ns(call: Callable[[], Any], count: int = 2000) -> int:
    """Nanoseconds per call, the best of five loops."""
    best = math.inf
    for _ in range(5):
        begin = time.perf_counter_ns()
        for _ in range(count):
            call()
        best = min(best, (time.perf_counter_ns() - begin) / count)
    return round(best)


def nvml() -> dict[str, Any]:
    """Each field and call: what it answers, and what it costs in wall and CPU time."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    device = c_void_p()
    require("nvmlInitWithFlags", library.nvmlInitWithFlags(0))
    require("nvmlDeviceGetHandleByIndex_v2", library.nvmlDeviceGetHandleByIndex_v2(0, byref(device)))

    def field(number: int, scope: int) -> dict[str, int]:
        value = FieldValue(number, scope)
        wall_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        library.nvmlDeviceGetFieldValues(device, 1, byref(value))
        return {
            "result": value.result,
            "type": value.type,
            "value": value.value,
            "wall_us": (time.perf_counter_ns() - wall_ns) // 1000,
            "cpu_us": (time.thread_time_ns() - cpu_ns) // 1000,
            "latency_us": value.latency_us,
            "age_us": time.time_ns() // 1000 - value.timestamp_us,
        }

    def timed(name: str, *arguments: Any) -> dict[str, Any]:
        call, count = getattr(library, name, None), 20
        if call is None:
            return {"missing": True}
        wall_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        results = [call(device, *arguments) for _ in range(count)]
        return {
            "result": results[0],
            "wall_us": (time.perf_counter_ns() - wall_ns) // (1000 * count),
            "cpu_us": (time.thread_time_ns() - cpu_ns) // (1000 * count),
        }

    number, words = c_uint(), (c_ulonglong * 3)()
    return {
        "fields": {f"{number}/{scope}": field(number, scope) for number, scope in FIELDS},
        "calls": {
            "power": timed("nvmlDeviceGetPowerUsage", byref(number)),
            "sm_clock": timed("nvmlDeviceGetClockInfo", 1, byref(number)),
            "temperature": timed("nvmlDeviceGetTemperature", 0, byref(number)),
            "memory": timed("nvmlDeviceGetMemoryInfo", words),
            "busy": timed("nvmlDeviceGetUtilizationRates", words),
            "reasons": timed("nvmlDeviceGetCurrentClocksEventReasons", words),
        },
    }


def ask(found: dict[str, Any], errors: dict[str, str]) -> None:
    """Fill `found`, section by section; `errors` says which could not be answered."""
    sections: dict[str, Callable[[], dict[str, Any]]] = {"nvml": nvml}
    try:
        probe = Probe(found)
        sections = {
            "no_context": probe.no_context,
            "ns": probe.ns,
            "globaltimer": probe.globaltimer,
            "look_up": probe.look_up,
            **sections,
        }
    except (OSError, AttributeError, CallFailedError) as error:
        errors["driver"] = str(error)
    for name, section in sections.items():
        found["asking"] = name
        try:
            found[name] = section()
        except (OSError, AttributeError, CallFailedError) as error:
            errors[name] = str(error)
    del found["asking"]


def main() -> int:
    """Ask everything on a separate thread, print what is known when it ends or the limit is reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit-s", type=float, default=45, help="seconds after which what is known is printed (45)")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    errors: dict[str, str] = {}
    thread = threading.Thread(target=ask, args=(found, errors), daemon=True)
    thread.start()
    thread.join(options.limit_s)
    if thread.is_alive():
        errors[str(found.get("asking", "driver"))] = f"no answer within {options.limit_s:g} s"
    print(json.dumps({**found, "errors": errors}, indent=1), flush=True)
    sys.stdout.flush()
    os._exit(1 if errors else 0)  # a call that never returns would hold the interpreter's end


if __name__ == "__main__":
    sys.exit(main())
