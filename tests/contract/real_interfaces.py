"""Where this machine has NVIDIA's headers and libraries, if it has."""

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

_HERE = [Path(folder) for folder in sys.path if folder.endswith("-packages")]
#: Each call of NCCL that is hooked or asked -> the release that has it first.
NCCL_CALLS = {
    name: int(first)
    for name, first in re.findall(
        r"NCCL_CALL\((nccl\w+),\s*(\d{5})", (ROOT / "csrc/abi/nccl_abi.h").read_text(encoding="utf-8")
    )
}


def compiler() -> str:
    """The C++ compiler; skips the test without one."""
    found = shutil.which("g++")
    if found is None:
        pytest.skip("no C++ compiler")
    return found


@functools.cache
def _sites() -> list[Path]:
    """Folders of packages: this Python's, and those of environments with large wheels (newest_wheels.py makes them)."""
    program = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    found = list(_HERE)
    for python in filter(None, os.environ.get("STASHTRACE_WHEELS_PYTHON", "").split(os.pathsep)):
        done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
        found.append(Path(done.stdout.strip()))
    return found


def _with_header(name: str, *, named: str = "") -> list[Path]:
    """Folders with a header: of CUDA_HOME, of toolkits, of wheels, and those that the variable `named` names."""
    roots = [Path(root) / "include" for root in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if root]
    roots += [path.parent for site in _sites() for path in sorted(site.glob(f"nvidia/*/include/{name}"))]
    roots += [Path(part) for part in os.environ.get(named, "").split(os.pathsep) if named and part]
    return [root for root in dict.fromkeys(roots) if (root / name).is_file()]


def cuda_headers() -> list[Path]:
    """Folders with cuda.h and the runtime's headers: CUDA_HOME, the usual place, wheels of CUDA."""
    # A runtime wheel without the compiler's headers next to it does not compile.
    return [root for root in _with_header("cuda.h") if (root / "crt/host_defines.h").is_file()]


def driver_headers() -> list[Path]:
    """Folders with cuda.h and cudaTypedefs.h, of CUDA 12 and 13: the runtime's wheels, the usual place."""
    return [root for root in _with_header("cudaTypedefs.h") if (root / "cuda.h").is_file()]


def cupti_headers() -> list[Path]:
    """Folders with CUPTI's headers: the usual place, its wheels, and those that STASHTRACE_CUPTI_INCLUDE names."""
    return _with_header("cupti_activity.h", named="STASHTRACE_CUPTI_INCLUDE")


def nvml_headers() -> list[Path]:
    """Folders with nvml.h: the usual place, its wheel, and those that STASHTRACE_NVML_INCLUDE names."""
    return _with_header("nvml.h", named="STASHTRACE_NVML_INCLUDE")


def cuda_runtimes() -> list[Path]:
    """libcudart.so.12 and .13 of the runtime's wheels."""
    return [
        path
        for major in (12, 13)
        for site in _sites()
        for path in sorted(site.glob(f"nvidia/*/lib/libcudart.so.{major}"))
    ]


def cupti_libraries() -> list[Path]:
    """libcupti.so.12 and .13 of CUPTI's wheels, and the one that STASHTRACE_CUPTI_LIBRARY names."""
    named = os.environ.get("STASHTRACE_CUPTI_LIBRARY")
    found = [path for site in _sites() for path in sorted(site.glob("nvidia/**/libcupti.so.1[23]"))]
    return [path for path in [*found, *([Path(named)] if named else [])] if path.is_file()]


def nccl_libraries() -> list[Path]:
    """libnccl.so.2 of NCCL's wheels, and the one that STASHTRACE_NCCL_LIBRARY names."""
    named = os.environ.get("STASHTRACE_NCCL_LIBRARY")
    found = [path for site in _sites() for path in sorted(site.glob("nvidia/**/libnccl.so.2"))]
    return [path for path in [*found, *([Path(named)] if named else [])] if path.is_file()]


def need_nccl() -> list[Path]:
    """The same; skips the test without any."""
    libraries = nccl_libraries()
    if not libraries:
        pytest.skip("no libnccl.so.2: a wheel here or of STASHTRACE_WHEELS_PYTHON, or STASHTRACE_NCCL_LIBRARY")
    return libraries


def nccl_version(library: Path) -> int:
    """Release of a libnccl, as it says it."""
    version = ctypes.c_int()
    assert ctypes.CDLL(str(library)).ncclGetVersion(ctypes.byref(version)) == 0
    return version.value


def nccl_headers() -> list[Path]:
    """Folders with nccl.h."""
    return [path.parent for site in _sites() for path in sorted(site.glob("nvidia/**/include/nccl.h"))]


@functools.cache
def devices_count() -> int:
    """Devices of the real driver, 0 without one. Asked in this process, so by no test that forks."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def need_device() -> None:
    """Skip a test that needs the real driver."""
    if devices_count() == 0:
        pytest.skip("no driver or no device on this machine")
