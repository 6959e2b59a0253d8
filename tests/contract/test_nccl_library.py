"""Our words for NCCL against a real libnccl.so.2 of a wheel: names, numbers, layouts, and calls through the hooks.

The library is found in this environment or in that of ``STASHTRACE_WHEELS_PYTHON``; without a wheel the tests skip. No
GPU is needed: what is called answers without one.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from traced import ROOT

from stashtrace.format.reader import open_run
from stashtrace.launch.environment import traced_environment
from stashtrace.model.kinds import CollectiveOp, NcclFlag

FIND = """
import importlib.util
spec = importlib.util.find_spec("nvidia.nccl")
print(list(spec.submodule_search_locations)[0] if spec else "")
"""
HEADER = (ROOT / "csrc/abi/nccl_abi.h").read_text(encoding="utf-8")
FIRST = {name: int(number) for name, number in re.findall(r"NCCL_CALL\((nccl\w+),\s*(\d{5})", HEADER)}


@functools.cache
def wheel() -> Path:
    """Folder of the wheel: include, lib."""
    for python in (sys.executable, os.environ.get("STASHTRACE_WHEELS_PYTHON")):
        if not python:
            continue
        done = subprocess.run([python, "-c", FIND], capture_output=True, text=True)
        folder = Path(done.stdout.strip() or "/nowhere")
        if done.returncode == 0 and (folder / "lib/libnccl.so.2").is_file():
            return folder
    pytest.skip("no wheel of NCCL here or in the environment of STASHTRACE_WHEELS_PYTHON")


def compiler() -> str:
    found = shutil.which("g++")
    if found is None:
        pytest.skip("no C++ compiler")
    return found


def version() -> int:
    number = ctypes.c_int()
    library = ctypes.CDLL(str(wheel() / "lib/libnccl.so.2"))
    assert library.ncclGetVersion(ctypes.byref(number)) == 0
    return number.value


def test_every_name_has_its_release() -> None:
    library, own = ctypes.CDLL(str(wheel() / "lib/libnccl.so.2")), version()
    assert own >= 20000
    there = {name for name in FIRST if hasattr(library, name)}
    assert there == {name for name, first in FIRST.items() if first <= own}
    assert {name for name in there if not hasattr(library, "p" + name)} == set()


# Two signatures are alike if each parameter has the same size and is a pointer, a number or a structure in both.
CHECK = """
#include <cstddef>
#include <cstdint>
#include <type_traits>
struct CUstream_st;
typedef CUstream_st* cudaStream_t;
#include "nccl_of_the_wheel.h"
#include "abi/nccl_abi.h"
namespace own = stashtrace::nccl;
#define SAME(ours, theirs) static_assert(static_cast<long long>(own::ours) == static_cast<long long>(theirs), #ours)
SAME(kSuccess, ncclSuccess); SAME(kUnhandledCudaError, ncclUnhandledCudaError); SAME(kSystemError, ncclSystemError);
SAME(kInternalError, ncclInternalError); SAME(kInvalidArgument, ncclInvalidArgument);
SAME(kInvalidUsage, ncclInvalidUsage); SAME(kRemoteError, ncclRemoteError); SAME(kInProgress, ncclInProgress);
SAME(kNoColor, NCCL_SPLIT_NOCOLOR); SAME(kUndefinedInt, NCCL_CONFIG_UNDEF_INT);
SAME(kUniqueIdBytes, NCCL_UNIQUE_ID_BYTES);
static_assert(sizeof(own::UniqueId) == sizeof(ncclUniqueId) && sizeof(own::Config) <= sizeof(ncclConfig_t));
static_assert(offsetof(own::Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(own::Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(own::Config, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(own::Config, split_share) == offsetof(ncclConfig_t, splitShare));
#if NCCL_VERSION_CODE >= 22700
static_assert(offsetof(own::Config, traffic_class) == offsetof(ncclConfig_t, trafficClass));
static_assert(offsetof(own::Config, comm_name) == offsetof(ncclConfig_t, commName));
#endif
static_assert(own::bytes_of(ncclInt8) == 1 && own::bytes_of(ncclUint8) == 1 && own::bytes_of(ncclInt32) == 4);
static_assert(own::bytes_of(ncclUint32) == 4 && own::bytes_of(ncclInt64) == 8 && own::bytes_of(ncclUint64) == 8);
static_assert(own::bytes_of(ncclFloat16) == 2 && own::bytes_of(ncclFloat32) == 4 && own::bytes_of(ncclFloat64) == 8);
static_assert(own::bytes_of(ncclBfloat16) == 2 && own::bytes_of(ncclNumTypes) == 0);
template <class T>
constexpr int kind = std::is_pointer_v<T> ? 1 : std::is_enum_v<T> || std::is_integral_v<T> ? 2 : 3;
template <class A, class B>
struct Alike : std::false_type {};
template <class R, class... A, class S, class... B>
  requires(sizeof...(A) == sizeof...(B))
struct Alike<R(A...), S(B...)>
    : std::bool_constant<((sizeof(A) == sizeof(B) && kind<A> == kind<B>) && ... && (sizeof(R) == sizeof(S)))> {};
ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
bool magic_is_ours() { return config.magic == own::kConfigMagic; }
"""


def test_numbers_layouts_and_signatures(tmp_path: Path) -> None:
    text = (wheel() / "include/nccl.h").read_text(encoding="utf-8")
    # CUDA's headers are not needed for what is asked: half types and streams stand in signatures by name alone.
    text = re.sub(r"#include\s*[<\"]cuda\w*\.h[>\"]", "", text)
    (tmp_path / "nccl_of_the_wheel.h").write_text(text, encoding="utf-8")
    checks = [f'static_assert(Alike<decltype(::{name}), own::function::{name}>::value, "{name}");'
              for name, first in FIRST.items() if first <= version()]  # fmt: skip
    assert len(checks) > 20
    source = tmp_path / "check.cpp"
    source.write_text(CHECK + "\n".join(checks), encoding="utf-8")
    command = [compiler(), "-std=c++20", "-fsyntax-only", "-I", str(ROOT / "csrc"), "-I", str(tmp_path), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


PROGRAM = """
#include <cstdio>
#include "abi/nccl_abi.h"
using namespace stashtrace::nccl;
extern "C" {
function::ncclGetVersion ncclGetVersion; function::ncclGetUniqueId ncclGetUniqueId;
function::ncclAllReduce ncclAllReduce; function::ncclBcast ncclBcast; function::ncclGroupStart ncclGroupStart;
function::ncclGroupEnd ncclGroupEnd; function::ncclCommInitRank ncclCommInitRank;
function::ncclCommDestroy ncclCommDestroy;
}
int main() {
  int version = 0;
  UniqueId id = {};
  Comm comm = nullptr;
  std::printf("%d ", ncclGetVersion(&version));
  std::printf("%d ", version);
  std::printf("%d ", ncclGetUniqueId(&id));
  bool any = false;
  for (char byte : id.bytes) any = any || byte != 0;
  std::printf("%d ", any);
  std::printf("%d ", ncclGroupStart());
  std::printf("%d ", ncclGroupEnd());
  std::printf("%d ", ncclGroupEnd());  // one too many
  std::printf("%d ", ncclAllReduce(nullptr, nullptr, 10, 7, 0, nullptr, nullptr));
  std::printf("%d ", ncclBcast(nullptr, 20, 7, 0, nullptr, nullptr));
  std::printf("%d ", ncclCommInitRank(&comm, 0, id, 0));
  std::printf("%d\\n", ncclCommDestroy(comm));
  return 0;
}
"""


def test_real_library_behind_the_hooks(tmp_path: Path) -> None:
    source, program = tmp_path / "program.cpp", tmp_path / "program"
    source.write_text(PROGRAM, encoding="utf-8")
    library = wheel() / "lib"
    subprocess.run([compiler(), "-std=c++20", "-w", "-I", str(ROOT / "csrc"), "-o", str(program), str(source),
                    str(library / "libnccl.so.2"), f"-Wl,-rpath,{library}"], check=True)  # fmt: skip
    base = {k: v for k, v in os.environ.items() if not k.startswith(("STASHTRACE_", "NCCL_")) and k != "LD_PRELOAD"}
    # A unique id opens a socket: the loopback interface is everywhere.
    base |= {"NCCL_SOCKET_IFNAME": "lo"}
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    traced = traced_environment(base, run_dir=run_dir, run_id="1", collectors=("nccl", "cuda"))
    bare = subprocess.run([str(program)], env=base, capture_output=True, text=True, check=True, timeout=60)
    seen = subprocess.run([str(program)], env=traced, capture_output=True, text=True, check=True, timeout=60)
    assert seen.stdout == bare.stdout
    answers = [int(word) for word in seen.stdout.split()]
    assert answers[:6] == [0, version(), 0, 1, 0, 0]
    assert all(code in (4, 5) for code in answers[6:9]), "refused as NCCL refuses it"
    (process,) = open_run(run_dir).processes
    calls = process.load().records["nccl_call"].rows
    assert [(CollectiveOp(r["op_code"]).name, int(r["status_code"])) for r in calls] == [
        ("ALL_REDUCE", answers[7]), ("BROADCAST", answers[8]),
    ]  # fmt: skip
    assert all(r["nccl_flags"] & NcclFlag.FAILED for r in calls)
