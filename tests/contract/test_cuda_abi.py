"""Our numbers and layouts of CUDA are those of NVIDIA's headers, where a machine has them."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from contract.real_interfaces import cuda_headers

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
static_assert(sizeof(own::DriverLaunchConfig) == sizeof(CUlaunchConfig));
static_assert(offsetof(own::DriverLaunchConfig, shared_bytes) == offsetof(CUlaunchConfig, sharedMemBytes));
static_assert(offsetof(own::DriverLaunchConfig, stream) == offsetof(CUlaunchConfig, hStream));
static_assert(offsetof(own::DriverLaunchConfig, attributes_count) == offsetof(CUlaunchConfig, numAttrs));
"""


#: The double's own numbers, which are written down apart from ours.
DOUBLE = """
#include <cuda.h>
#include "cuda_objects.h"
#define SAME(theirs, number) static_assert(static_cast<int>(fake::number) == static_cast<int>(theirs), #number)
SAME(CUDA_ERROR_INVALID_DEVICE, kInvalidDevice); SAME(CUDA_ERROR_INVALID_IMAGE, kInvalidImage);
SAME(CUDA_ERROR_INVALID_CONTEXT, kInvalidContext); SAME(CUDA_ERROR_INVALID_HANDLE, kInvalidHandle);
SAME(CUDA_ERROR_NOT_FOUND, kNotFound); SAME(CUDA_ERROR_NOT_READY, kNotReady);
SAME(CUDA_ERROR_CONTEXT_IS_DESTROYED, kContextDestroyed); SAME(CUDA_ERROR_NO_DEVICE, kNoDevice);
SAME(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, kAlreadyRegistered);
SAME(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, kNotRegistered); SAME(CUDA_ERROR_NOT_SUPPORTED, kNotSupported);
SAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, kCaptureUnsupported);
SAME(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, kCaptureInvalidated);
SAME(CUDA_ERROR_STREAM_CAPTURE_MERGE, kCaptureMerge); SAME(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, kCaptureUnmatched);
SAME(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, kCaptureUnjoined);
SAME(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, kCaptureIsolation);
SAME(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, kCaptureImplicit); SAME(CUDA_ERROR_CAPTURED_EVENT, kCapturedEvent);
SAME(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, kCaptureWrongThread);
SAME(CU_STREAM_NON_BLOCKING, kStreamNonBlocking); SAME(CU_EVENT_DISABLE_TIMING, kEventDisableTiming);
SAME(CU_EVENT_RECORD_EXTERNAL, kRecordExternal); SAME(CU_STREAM_CAPTURE_MODE_RELAXED, kCaptureRelaxed);
"""


@pytest.mark.parametrize("check", [CHECK, DOUBLE], ids=["ours", "double"])
def test_numbers_and_layouts(check: str, tmp_path: Path) -> None:
    folders, compiler = cuda_headers(), shutil.which("g++")
    if not folders or compiler is None:
        pytest.skip("no CUDA headers (nvidia-cuda-runtime and nvidia-cuda-crt, or CUDA_HOME), or no compiler")
    source = tmp_path / "check.cpp"
    source.write_text(check, encoding="utf-8")
    own = ("-I", str(ROOT / "csrc"), "-I", str(ROOT / "tests/fakes"))
    for include in folders:
        command = [compiler, "-std=c++20", "-w", "-fsyntax-only", *own, "-isystem", str(include), str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"{include}\n{done.stderr}"
