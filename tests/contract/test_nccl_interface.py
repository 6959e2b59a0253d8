"""What we write down of NCCL is what its releases have: symbols of the library, signatures of the header."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from contract.real_interfaces import cuda_headers, nccl_headers, nccl_libraries
from device import ROOT, build

CALLS = {
    name: int(first)
    for name, first in re.findall(
        r"NCCL_CALL\((nccl\w+),\s*(\d{5})", (ROOT / "csrc/abi/nccl_abi.h").read_text(encoding="utf-8")
    )
}


def exported(library: Path) -> set[str]:
    """Defined functions of a library's dynamic table."""
    tool = shutil.which("nm")
    if tool is None:
        pytest.skip("no nm on this machine")
    lines = subprocess.run([tool, "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    return {line.split()[-1].partition("@")[0] for line in lines.stdout.splitlines()}


def test_the_double_has_every_call_with_its_twin() -> None:
    symbols = exported(build() / "fakes/nccl/libnccl.so.2")
    assert {name for name in CALLS if not {name, f"p{name}"} <= symbols} == set()


def test_a_real_library_has_the_calls_of_its_release() -> None:
    libraries = nccl_libraries()
    if not libraries:
        pytest.skip("no libnccl.so.2 (a wheel of NCCL, or STASHTRACE_NCCL_LIBRARY)")
    for path in libraries:
        library, version = ctypes.CDLL(str(path)), ctypes.c_int()
        assert library.ncclGetVersion(ctypes.byref(version)) == 0
        symbols = exported(path)
        for name, first in CALLS.items():
            assert (name in symbols) == (first <= version.value), (name, path, version.value)
            assert (f"p{name}" in symbols) == (first <= version.value), (name, path, version.value)


def test_signatures_are_those_of_the_real_header(tmp_path: Path) -> None:
    folders = nccl_headers()
    compiler = shutil.which("g++")
    if not folders or compiler is None:
        pytest.skip("no nccl.h (a wheel of NCCL), or no compiler")
    # Handles and enumerations differ in type, not in how they are passed: compare sizes, and pointers with pointers.
    source = tmp_path / "check.cpp"
    source.write_text(
        """
#include <nccl.h>
#include <type_traits>
#include "abi/nccl_abi.h"
namespace own = stashtrace::nccl;
template <class A, class B> constexpr bool kAlike =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> && std::is_class_v<A> == std::is_class_v<B>;
template <class Ours, class Theirs> struct Same : std::false_type {};
template <class R, class... A, class S, class... B> struct Same<R(A...), S(B...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(A) != sizeof...(B)) return false;
    else return (kAlike<A, B> && ...) && sizeof(R) == sizeof(S);
  }();
};
"""
        + "".join(
            f"#if {first} <= NCCL_VERSION_CODE\nusing REAL_{name} = decltype(::{name});\n"
            f'static_assert(Same<own::function::{name}, REAL_{name}>::value, "{name}");\n#endif\n'
            for name, first in CALLS.items()
        )
        + """
static_assert(offsetof(own::Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(own::kInProgress == ncclInProgress && own::kNoColor == NCCL_SPLIT_NOCOLOR);
static_assert(own::bytes_of(ncclBfloat16) == 2 && own::bytes_of(ncclFloat64) == 8);
""",
        encoding="utf-8",
    )
    cuda = [flag for include in cuda_headers() for flag in ("-isystem", str(include))]
    for include in folders:
        command = [compiler, "-std=c++20", "-w", "-fsyntax-only", "-I", str(ROOT / "csrc"), "-isystem", str(include)]
        done = subprocess.run([*command, *cuda, str(source)], capture_output=True, text=True)
        assert done.returncode == 0, f"{include}\n{done.stderr}"
