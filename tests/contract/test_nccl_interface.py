"""What we write down of NCCL is what its releases have: symbols of the library, numbers, signatures of the header."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from contract.real_interfaces import NCCL_CALLS, compiler, nccl_headers, nccl_version, need_nccl
from device import ROOT, build


def exported(library: Path) -> set[str]:
    """Defined functions of a library's dynamic table."""
    tool = shutil.which("nm")
    if tool is None:
        pytest.skip("no nm on this machine")
    lines = subprocess.run([tool, "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    return {line.split()[-1].partition("@")[0] for line in lines.stdout.splitlines()}


def test_the_double_has_every_call_with_its_twin() -> None:
    symbols = exported(build() / "fakes/nccl/libnccl.so.2")
    assert {name for name in NCCL_CALLS if not {name, f"p{name}"} <= symbols} == set()


def test_a_real_library_has_the_calls_of_its_release() -> None:
    for path in need_nccl():
        symbols, own = exported(path), nccl_version(path)
        assert own >= 20000
        wanted = {name for name, first in NCCL_CALLS.items() if first <= own}
        assert {name for name in NCCL_CALLS if name in symbols} == wanted, path
        assert {name for name in NCCL_CALLS if f"p{name}" in symbols} == wanted, path


# Two signatures are equal if each parameter has the same size and is a pointer, a number or a structure in both.
CHECK = """
#include <cstddef>
#include <cstdint>
#include <type_traits>
struct CUstream_st;
struct CUevent_st;
typedef CUstream_st* cudaStream_t;
typedef CUevent_st* cudaEvent_t;  // ncclCollConfig_t, 2.32
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
    folders, command = nccl_headers(), [compiler(), "-std=c++20", "-w", "-fsyntax-only"]
    if not folders:
        pytest.skip("no nccl.h: a wheel of NCCL here or in the environment of STASHTRACE_WHEELS_PYTHON")
    source = tmp_path / "check.cpp"
    for include in folders:
        text = (include / "nccl.h").read_text(encoding="utf-8")
        # CUDA's headers are not needed for what is asked: half types and streams stand in signatures by name alone.
        text = re.sub(r"#include\s*[<\"]cuda\w*\.h[>\"]", "", text)
        (tmp_path / "nccl_of_the_wheel.h").write_text(text, encoding="utf-8")
        checks = [
            f"#if {first} <= NCCL_VERSION_CODE\n"
            f'static_assert(Alike<decltype(::{name}), own::function::{name}>::value, "{name}");\n#endif'
            for name, first in NCCL_CALLS.items()
        ]
        source.write_text(CHECK + "\n".join(checks), encoding="utf-8")
        folders_of_it = ["-I", str(ROOT / "csrc"), "-I", str(tmp_path)]
        done = subprocess.run([*command, *folders_of_it, str(source)], capture_output=True, text=True)
        assert done.returncode == 0, f"{include}\n{done.stderr}"
