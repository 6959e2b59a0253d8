"""Callers of NCCL that preload does not reach, and processes without NCCL."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from device import fake_environment, run_ranks
from recorded import record
from test_nccl import SOURCE, built, facts, losses, rows

from stashtrace.record.environment import LIBRARY_PATH
from stashtrace.schema.kinds import CommEvent

CALLER = """
import ctypes, os, sys
scenes = ctypes.CDLL(sys.argv[1], mode=os.RTLD_DEEPBIND | int(sys.argv[2]))
scenes.main(2, (ctypes.c_char_p * 2)(b"scenes", b"calls"))
"""

#: A library that calls NCCL and keeps a pointer to one of its functions in read-only data.
DEEP = """
#include <dlfcn.h>
#include <cstdio>
#include "abi/nccl_abi.h"
using namespace stashtrace::nccl;
extern "C" { function::ncclCommInitRank ncclCommInitRank; function::ncclAllReduce ncclAllReduce; }
extern "C" int cudaSetDevice(int);
extern "C" int cudaDeviceSynchronize();
static function::ncclAllReduce* const kept[] = {&ncclAllReduce};
extern "C" int deep(int rank, int size) {
  UniqueId id = {};
  Comm comm = nullptr;
  id.bytes[7] = 42;
  cudaSetDevice(rank);
  int failed = ncclCommInitRank(&comm, size, id, rank) != 0;
  for (int i = 0; i < 3; ++i) failed += ncclAllReduce(nullptr, nullptr, 1000, 7, 0, comm, nullptr) != 0;
  auto* pointer = *const_cast<function::ncclAllReduce* const volatile*>(kept);
  failed += pointer(nullptr, nullptr, 2000, 7, 0, comm, nullptr) != 0;
  cudaDeviceSynchronize();
  return failed;
}
"""


def deep_library(folder: Path, *link: str) -> Path:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    fakes = fake_environment(folder / "link")["LD_LIBRARY_PATH"]
    source, library = folder / "deep.cpp", folder / "libdeep.so"
    source.write_text(DEEP, encoding="utf-8")
    libraries = [f"{fakes}/libnccl.so.2", f"{fakes}/libcudart.so.13"]
    command = [
        compiler,
        "-std=c++20",
        "-w",
        "-I",
        str(SOURCE),
        "-shared",
        "-fPIC",
        "-o",
        library,
        source,
        *libraries,
        *link,
    ]
    subprocess.run([str(c) for c in command], check=True)
    return library


@pytest.mark.parametrize("link", [("-Wl,-z,lazy",), ("-Wl,-z,relro,-z,now",)], ids=["lazy", "read-only"])
def test_deep_bound_caller_is_reached_through_the_plugin(link: tuple[str, ...], tmp_path: Path) -> None:
    library = deep_library(tmp_path, *link)
    text = f"""
import ctypes, os
assert ctypes.CDLL({str(library)!r}, mode=os.RTLD_DEEPBIND | os.RTLD_LAZY).deep(0, 1) == 0
"""
    env = fake_environment(tmp_path / "fakes", "devices 1") | {"NCCL_PROFILER_PLUGIN": str(LIBRARY_PATH)}
    recording = record([sys.executable, "-c", text], tmp_path / "run", collectors=("nccl", "cuda"), env=env)
    calls = rows(recording, "nccl_call")
    assert [c["message_bytes"] for c in sorted(calls, key=lambda c: c["sequence"])] == [4000] * 3 + [8000]
    assert len({c["group_hash"] for c in calls}) == 1
    known = [r for r in rows(recording, "nccl_comm") if r["event_code"] == CommEvent.PLUGIN_INIT]
    assert {r["group_hash"] for r in known} == {c["group_hash"] for c in calls}, "NCCL's name, the same on all ranks"
    assert "communicator_unknown" not in losses(recording)
    assert rows(recording, "nccl_task") == [], "NCCL copies for a single rank, and reports no task"


def test_preload_alone_does_not_reach_deep_bound_callers_and_harms_none(tmp_path: Path) -> None:
    scenes = str(built() / "libscenes.so")
    for flags in (1, 2):
        command = [sys.executable, "-c", CALLER, scenes, str(flags)]
        env = {"LD_LIBRARY_PATH": str(built())}
        recording = record(command, tmp_path / f"run{flags}", collectors=("nccl", "cuda"), env=env)
        bare = subprocess.run([built() / "scenes", "calls"], env=env, capture_output=True, text=True, check=True)
        assert recording.stdout == bare.stdout


def test_read_only_slots_stay_read_only(tmp_path: Path) -> None:
    library = deep_library(tmp_path, "-Wl,-z,relro,-z,now")
    text = f"""
import ctypes, os
deep = ctypes.CDLL({str(library)!r})
def protections():
    found = [line.split() for line in open("/proc/self/maps") if "libdeep.so" in line]
    return [(part[0], part[1]) for part in found]
before = protections()
assert any(mode == "r--p" for _, mode in before)
assert deep.deep(0, 1) == 0
print(before == protections())
"""
    env = fake_environment(tmp_path / "fakes", "devices 1")
    recording = record([sys.executable, "-c", text], tmp_path / "run", collectors=("nccl", "cuda"), env=env)
    assert recording.stdout.strip() == "True"
    assert len(rows(recording, "nccl_call")) == 4


def test_libraries_come_and_go_while_imports_are_patched(tmp_path: Path) -> None:
    """The passes on the recorder's tick must not wait for a dlopen that waits for them."""
    library = deep_library(tmp_path, "-Wl,-z,relro,-z,now")
    text = f"""
import ctypes, os, shutil, threading, time, _ctypes
deep = ctypes.CDLL({str(library)!r})
assert deep.deep(0, 1) == 0
def load(number):
    copy = {str(tmp_path)!r} + f"/libcopy{{number}}.so"
    shutil.copy({str(library)!r}, copy)
    end = time.monotonic() + 2
    while time.monotonic() < end:
        _ctypes.dlclose(_ctypes.dlopen(copy, os.RTLD_NOW))
threads = [threading.Thread(target=load, args=(n,)) for n in range(3)]
[t.start() for t in threads]
[t.join(20) for t in threads]
print(any(t.is_alive() for t in threads))
"""
    env = fake_environment(tmp_path / "fakes", "devices 1")
    recording = record(
        [sys.executable, "-c", text],
        tmp_path / "run",
        collectors=("nccl", "cuda"),
        env=env,
        sample_ms=10,
        timeout_s=180,
    )
    assert recording.stdout.strip() == "False"


@pytest.mark.parametrize("libraries", [("cuda", "cudart"), ()])
def test_no_libnccl_at_all(libraries: tuple[str, ...], tmp_path: Path) -> None:
    env = fake_environment(tmp_path / "fakes", libraries=libraries)
    text = """
import ctypes, subprocess
try:
    ctypes.CDLL("libnccl.so.2")
except OSError:
    print("none")
print(subprocess.run(["true"]).returncode)
"""
    recording = record([sys.executable, "-S", "-c", text], tmp_path / "run", collectors=("nccl", "cuda"), env=env)
    assert recording.stdout.split() == ["none", "0"]
    assert recording.stderr == ""
    assert not list(recording.directory.glob("*.stash")), "nothing was seen, so nothing is written"


def test_driver_is_absent(tmp_path: Path) -> None:
    """NCCL without a driver refuses to make a communicator; its answer must be the program's."""
    program = "allreduce 1MB stream=1"
    bare = run_ranks(1, program, tmp_path / "bare", libraries=("cudart", "nccl"), traced=False, check=False)
    run = run_ranks(1, program, tmp_path / "traced", libraries=("cudart", "nccl"), check=False)
    assert run.exit_codes == bare.exit_codes
    assert run.stdout == bare.stdout


def test_source_is_recorded_where_nothing_can_time(tmp_path: Path) -> None:
    env = {"LD_LIBRARY_PATH": str(built())}
    recording = record([built() / "scenes", "calls"], tmp_path / "run", collectors=("nccl", "cuda"), env=env)
    assert facts(recording)["nccl_source"] == "host"
