"""Our numbers and layouts of CUDA are those of NVIDIA's headers, where a machine has them."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CHECK = """
#include <cuda.h>
#include <driver_types.h>
#include "abi/cuda_abi.h"
namespace own = stashtrace::cuda;
#define SAME(ours, theirs) static_assert(static_cast<long long>(own::ours) == static_cast<long long>(theirs), #ours)
SAME(kSuccess, CUDA_SUCCESS); SAME(kInvalidValue, CUDA_ERROR_INVALID_VALUE);
SAME(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY); SAME(kOutOfMemory, cudaErrorMemoryAllocation);
SAME(kNotInitialized, CUDA_ERROR_NOT_INITIALIZED); SAME(kDeinitialized, CUDA_ERROR_DEINITIALIZED);
SAME(kNoDevice, CUDA_ERROR_NO_DEVICE); SAME(kInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
SAME(kSymbolNotFound, cudaErrorSharedObjectSymbolNotFound); SAME(kInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
SAME(kNotReady, CUDA_ERROR_NOT_READY); SAME(kContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
SAME(kNotSupported, CUDA_ERROR_NOT_SUPPORTED); SAME(kCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME(kCaptureInvalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
SAME(kCaptureIsolation, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
SAME(kCaptureImplicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT); SAME(kCapturedEvent, CUDA_ERROR_CAPTURED_EVENT);
SAME(kStreamDefault, CU_STREAM_DEFAULT); SAME(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
SAME(kEventDefault, CU_EVENT_DEFAULT); SAME(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
SAME(kEventRecordExternal, CU_EVENT_RECORD_EXTERNAL);
SAME(kCaptureNone, CU_STREAM_CAPTURE_STATUS_NONE); SAME(kCaptureActive, CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME(kCaptureBroken, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
SAME(kCaptureGlobal, CU_STREAM_CAPTURE_MODE_GLOBAL); SAME(kCaptureThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME(kCaptureRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(kHostToHost, cudaMemcpyHostToHost); SAME(kHostToDevice, cudaMemcpyHostToDevice);
SAME(kDeviceToHost, cudaMemcpyDeviceToHost); SAME(kDeviceToDevice, cudaMemcpyDeviceToDevice);
SAME(kDefaultKind, cudaMemcpyDefault);
SAME(kPointerMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE); SAME(kPointerIsManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME(kPointerDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(kMemoryHost, CU_MEMORYTYPE_HOST); SAME(kMemoryDevice, CU_MEMORYTYPE_DEVICE);
SAME(kMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(kCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(kCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(kHostAllocPortable, CU_MEMHOSTALLOC_PORTABLE); SAME(kHostAllocDeviceMap, CU_MEMHOSTALLOC_DEVICEMAP);
SAME(kLookUpPerThread, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
static_assert(own::kLegacyStream == 1 && own::kPerThreadStream == 2);
static_assert(sizeof(own::Uuid) == sizeof(CUuuid));
static_assert(sizeof(own::LaunchConfig) == sizeof(cudaLaunchConfig_t));
static_assert(offsetof(own::LaunchConfig, stream) == offsetof(cudaLaunchConfig_t, stream));
static_assert(offsetof(own::LaunchConfig, attributes_count) == offsetof(cudaLaunchConfig_t, numAttrs));
"""


def headers() -> Path | None:
    """Folder with cuda.h, of CUDA_HOME or of the usual place."""
    for root in (os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        if root and (Path(root) / "include/cuda.h").is_file():
            return Path(root) / "include"
    return None


def test_numbers_and_layouts(tmp_path: Path) -> None:
    include, compiler = headers(), shutil.which("g++")
    if include is None or compiler is None:
        pytest.skip("no cuda.h on this machine (CUDA_HOME), or no compiler")
    source = tmp_path / "check.cpp"
    source.write_text(CHECK, encoding="utf-8")
    command = [compiler, "-std=c++20", "-fsyntax-only", "-I", str(ROOT / "csrc"), "-I", str(include), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
