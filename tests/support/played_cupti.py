"""A program on a device that is played: doubles of libcupti and of the part of a driver that is asked before it.

The program says to the double of libcupti what runs (`PRELUDE`), in times of the double's clock.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from forked_commands import ROOT

FAKES = ROOT / "tests/fakes"
#: The part of a driver that is asked before CUPTI is touched; variables say what it answers.
DRIVER = """
#include <cstdlib>
static int setting(const char* name, int usual) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : usual;
}
extern "C" int cuDriverGetVersion(int* version) { *version = setting("FAKE_DRIVER_VERSION", 13000); return 0; }
extern "C" int cuDeviceGetCount(int* count) {
  *count = setting("FAKE_DEVICES", 1);
  return setting("FAKE_DEVICES_ERROR", 0);
}
"""

#: In front of each script: how a program of the tests launches work. Times are the double's clock.
PRELUDE = """
import ctypes, json, os, threading, time
from stashtrace import _native
KERNEL, COPY, PEER, MEMSET, SYNC, GRAPH, RUNTIME = 10, 1, 22, 2, 38, 51, 5
cuda = ctypes.CDLL("libcuda.so.1")
cupti = ctypes.CDLL("libcupti.so.13")
cupti.fake_cupti_now.restype = ctypes.c_int64
I, U, S = ctypes.c_int64, ctypes.c_uint32, ctypes.c_char_p
cupti.fake_cupti_work.argtypes = (U, U, U, U, I, I, S, ctypes.c_uint64, U, ctypes.c_uint64)
cupti.fake_cupti_call.argtypes = (U, U, U, I, I)
names, correlation = {}, [0]
def launch(name="f", kind=KERNEL, duration_us=50, device=0, stream=7, delay_us=10, size=0, detail=0, node=0):
    correlation[0] += 1
    now = cupti.fake_cupti_now()
    cupti.fake_cupti_call(RUNTIME, threading.get_native_id(), correlation[0], now, now + 4000)
    begin = now + delay_us * 1000
    kept = names.setdefault(name, name.encode())
    end = begin + duration_us * 1000
    cupti.fake_cupti_work(kind, device, stream, correlation[0], begin, end, kept, size, detail, node)
def steps(count, first=0, sleep=0.004):
    for step in range(first, first + count):
        _native.kernels_step(step)
        launch(f"step{step}")
        time.sleep(sleep)
def settle():
    for _ in range(400):
        if cupti.fake_cupti_state() == 0: return
        time.sleep(0.01)
"""


def build_libraries(folder: Path) -> Path:
    """Build both into a folder, which then belongs on LD_LIBRARY_PATH; skips the test without a compiler."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler to build the double of libcupti")
    command = [
        compiler,
        "-std=c++20",
        "-O1",
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
        f"-I{ROOT / 'csrc'}",
        str(FAKES / "fake_cupti.cpp"),
        "-Wl,-soname,libcupti.so.13",
        "-pthread",
        "-o",
        str(folder / "libcupti.so.13"),
    ]
    source = folder / "driver.cpp"
    source.write_text(DRIVER, encoding="utf-8")
    driver = [
        compiler,
        "-shared",
        "-fPIC",
        str(source),
        "-Wl,-soname,libcuda.so.1",
        "-o",
        str(folder / "libcuda.so.1"),
    ]
    for made in (command, driver):
        done = subprocess.run(made, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return folder
