"""Our numbers and layouts of CUDA are those of NVIDIA's headers, where a machine has them."""

from __future__ import annotations

import re
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
SAME(kNotPermitted, CUDA_ERROR_NOT_PERMITTED);
#if CUDA_VERSION >= 13050
SAME(kStreamDetached, CUDA_ERROR_STREAM_DETACHED); SAME(kStreamDetached, cudaErrorStreamDetached);
#endif
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
SAME(kMemoryHost, CU_MEMORYTYPE_HOST); SAME(kMemoryUnified, CU_MEMORYTYPE_UNIFIED);
#define PLACE(ours, theirs, member, name) \
  static_assert(offsetof(own::ours, member) == offsetof(theirs, name) && \
                sizeof(own::ours{}.member) == sizeof(theirs{}.name), #ours " " #name)
static_assert(sizeof(own::Extent) == sizeof(cudaExtent) && sizeof(own::PitchedPointer) == sizeof(cudaPitchedPtr));
PLACE(PitchedPointer, cudaPitchedPtr, pitch, pitch); PLACE(PitchedPointer, cudaPitchedPtr, y_size, ysize);
static_assert(sizeof(own::BoxCopy) == sizeof(cudaMemcpy3DParms));
#define BOX(member, name) PLACE(BoxCopy, cudaMemcpy3DParms, member, name)
BOX(from_array, srcArray); BOX(from, srcPtr); BOX(to_array, dstArray); BOX(to, dstPtr); BOX(extent, extent);
BOX(kind, kind);
static_assert(sizeof(own::PeerBoxCopy) == sizeof(cudaMemcpy3DPeerParms));
#define PEER(member, name) PLACE(PeerBoxCopy, cudaMemcpy3DPeerParms, member, name)
PEER(from_array, srcArray); PEER(from, srcPtr); PEER(from_device, srcDevice); PEER(to_array, dstArray);
PEER(to, dstPtr); PEER(to_device, dstDevice); PEER(extent, extent);
#define SIDES(ours, theirs, member, name) \\
  PLACE(ours, theirs, from.member, src##name); PLACE(ours, theirs, to.member, dst##name)
static_assert(sizeof(own::DriverRectangleCopy) == sizeof(CUDA_MEMCPY2D_v2));
#define FLAT(member, name) SIDES(DriverRectangleCopy, CUDA_MEMCPY2D_v2, member, name)
FLAT(x_bytes, XInBytes); FLAT(y, Y); FLAT(memory, MemoryType); FLAT(host, Host); FLAT(device, Device);
FLAT(array, Array); FLAT(pitch, Pitch);
PLACE(DriverRectangleCopy, CUDA_MEMCPY2D_v2, width_bytes, WidthInBytes);
PLACE(DriverRectangleCopy, CUDA_MEMCPY2D_v2, height, Height);
#define DEEP(theirs) \\
  static_assert(sizeof(own::DriverBoxCopy) == sizeof(theirs)); \\
  SIDES(DriverBoxCopy, theirs, x_bytes, XInBytes); SIDES(DriverBoxCopy, theirs, y, Y); \\
  SIDES(DriverBoxCopy, theirs, z, Z); SIDES(DriverBoxCopy, theirs, level, LOD); \\
  SIDES(DriverBoxCopy, theirs, memory, MemoryType); SIDES(DriverBoxCopy, theirs, host, Host); \\
  SIDES(DriverBoxCopy, theirs, device, Device); SIDES(DriverBoxCopy, theirs, array, Array); \\
  SIDES(DriverBoxCopy, theirs, pitch, Pitch); SIDES(DriverBoxCopy, theirs, height, Height); \\
  PLACE(DriverBoxCopy, theirs, width_bytes, WidthInBytes); PLACE(DriverBoxCopy, theirs, depth, Depth)
DEEP(CUDA_MEMCPY3D_v2); DEEP(CUDA_MEMCPY3D_PEER_v1);
SIDES(DriverBoxCopy, CUDA_MEMCPY3D_PEER_v1, context, Context);
"""


#: The double's numbers, which are written down apart from ours.
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
#if CUDA_VERSION >= 13050
SAME(CUDA_ERROR_STREAM_DETACHED, kStreamDetached);
#endif
SAME(CU_STREAM_NON_BLOCKING, kStreamNonBlocking); SAME(CU_EVENT_DISABLE_TIMING, kEventDisableTiming);
SAME(CU_EVENT_RECORD_EXTERNAL, kRecordExternal); SAME(CU_STREAM_CAPTURE_MODE_RELAXED, kCaptureRelaxed);
"""


#: Functions of libcudart as its header declares them: what registers and the stack hold is compared.
RUNTIME = """
#include <cuda_runtime_api.h>
#include <type_traits>
#include "abi/cuda_abi.h"
namespace own { using namespace stashtrace::cuda; }
template <std::size_t> struct Bytes;
template <class T> struct Plain { using type = T; };
template <class T> struct Plain<T*> { using type = void*; };
template <class T> requires std::is_enum_v<T> struct Plain<T> { using type = int; };
template <class T> requires std::is_class_v<T> struct Plain<T> { using type = Bytes<sizeof(T)>; };
template <class F> struct Call;
template <class R, class... A> struct Call<R (*)(A...)> {
  using type = typename Plain<R>::type (*)(typename Plain<A>::type...);
};
#define SAME(name, ...) \
  static_assert(std::is_same_v<Call<decltype(&::name)>::type, Call<own::Result (*)(__VA_ARGS__)>::type>, #name);
"""


def need_headers() -> list[Path]:
    folders = cuda_headers()
    if not folders or shutil.which("g++") is None:
        pytest.skip("no CUDA headers (nvidia-cuda-runtime and nvidia-cuda-crt, or CUDA_HOME), or no compiler")
    return folders


def compile_with(include: Path, check: str, tmp_path: Path, *options: str) -> None:
    source = tmp_path / "check.cpp"
    source.write_text(check, encoding="utf-8")
    own = ("-I", str(ROOT / "csrc"), "-I", str(ROOT / "tests/fakes"), *options)
    command = ["g++", "-std=c++20", "-w", "-fsyntax-only", *own, "-isystem", str(include), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{include}\n{done.stderr[-4000:]}"


@pytest.mark.parametrize("check", [CHECK, DOUBLE], ids=["ours", "double"])
def test_numbers_and_layouts(check: str, tmp_path: Path) -> None:
    for include in need_headers():
        compile_with(include, check, tmp_path)


@pytest.mark.parametrize("per_thread", [False, True], ids=["plain", "per thread"])
def test_the_runtimes_functions_are_those_of_the_header(per_thread: bool, tmp_path: Path) -> None:
    text = (ROOT / "csrc/collectors/cuda/runtime_calls.def").read_text(encoding="utf-8")
    listed = re.findall(r"^CUDART\((\w+)((?:, *[^()]*)?)\)$", text, re.MULTILINE)
    assert len(listed) == len(re.findall(r"^CUDART\(", text, re.MULTILINE))
    # A header declares either the plain names or those for per-thread default streams, and none of the compiler's.
    chosen = [
        (name, rest.lstrip(", "))
        for name, rest in listed
        if not name.startswith("__") and name.endswith(("_ptds", "_ptsz")) == per_thread
    ]
    assert len(chosen) > 25
    options = ("-DCUDA_API_PER_THREAD_DEFAULT_STREAM",) if per_thread else ()
    unknown = {name for name, _ in chosen}
    for include in need_headers():
        header = (include / "cuda_runtime_api.h").read_text(encoding="utf-8", errors="replace")
        here = [(name, rest) for name, rest in chosen if re.search(rf"\b{name.rsplit('_pt')[0]}\(", header)]
        unknown -= {name for name, _ in here}
        lines = [f"namespace own {{ SAME({name}{', ' * bool(rest)}{rest}) }}" for name, rest in here]
        compile_with(include, RUNTIME + "\n".join(lines), tmp_path, *options)
    came_with_13_1 = {
        f"cuda{name}" for name in ("ExecutionCtxDestroy", "ExecutionCtxStreamCreate", "LaunchHostFunc_v2")
    }
    assert unknown <= came_with_13_1 | {"cudaLaunchHostFunc_v2_ptsz"}
