"""Where this machine has NVIDIA's own headers and libraries, if it has."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import functools
import os
import sysconfig
from pathlib import Path

import pytest

_SITE = Path(sysconfig.get_paths()["purelib"])


def cuda_headers() -> list[Path]:
    """Folders with cuda.h and the runtime's headers: CUDA_HOME, wheels of CUDA, the usual place."""
    roots = [Path(root) / "include" for root in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if root]
    roots += sorted(p.parent for p in _SITE.glob("nvidia/*/include/cuda.h"))
    # A runtime wheel without the compiler's headers beside it does not compile.
    return [root for root in roots if (root / "cuda.h").is_file() and (root / "crt/host_defines.h").is_file()]


def nccl_libraries() -> list[Path]:
    """libnccl.so.2 of NCCL's wheels, and the one that STASHTRACE_NCCL_LIBRARY names."""
    named = os.environ.get("STASHTRACE_NCCL_LIBRARY")
    found = sorted(_SITE.glob("nvidia/**/libnccl.so.2")) + ([Path(named)] if named else [])
    return [path for path in found if path.is_file()]


def nccl_headers() -> list[Path]:
    """Folders with nccl.h."""
    return sorted(path.parent for path in _SITE.glob("nvidia/**/include/nccl.h"))


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
