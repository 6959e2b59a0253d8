// The part of CUDA's driver and runtime interface that we call or stand in front of. SPDX-License-Identifier: Apache-2.0
//
// Our own words for a foreign ABI of CUDA 12 and 13: no NVIDIA header is included anywhere. Enumerations are int as in
// C, handles are pointers, a runtime handle is the driver's (cudaStream_t == CUstream, cudaEvent_t == CUevent).
// tests/contract compares numbers with the real headers where it finds some. Used by csrc/device, collectors, tests/fakes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stashtrace::cuda {

using Result = int;  // CUresult, cudaError_t
using Device = int;  // CUdevice
using Context = void*;
using GreenContext = void*;      // CUgreenCtx: has a CUcontext that stands for it
using ExecutionContext = void*;  // cudaExecutionContext_t: opaque, none of the driver's handles
using Stream = void*;
using Event = void*;
using Module = void*;
using Function = void*;
using Graph = void*;
using GraphExec = void*;
using DevicePointer = unsigned long long;

using HostFunction = void (*)(void*);                    // CUhostFn, cudaHostFn_t
using StreamCallback = void (*)(Stream, Result, void*);  // CUstreamCallback, cudaStreamCallback_t

struct Uuid {
  unsigned char bytes[16];
};
static_assert(sizeof(Uuid) == 16);

// CUresult; cudaError_t has the same numbers for these.
inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotInitialized = 3;
inline constexpr Result kDeinitialized = 4;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidDevice = 101;
inline constexpr Result kInvalidContext = 201;
inline constexpr Result kSymbolNotFound = 302;  // shared object symbol not found
inline constexpr Result kInvalidHandle = 400;
inline constexpr Result kNotReady = 600;
inline constexpr Result kContextIsDestroyed = 709;
inline constexpr Result kNotPermitted = 800;
inline constexpr Result kNotSupported = 801;
inline constexpr Result kCaptureUnsupported = 900;
inline constexpr Result kCaptureInvalidated = 901;
inline constexpr Result kCaptureIsolation = 905;
inline constexpr Result kCaptureImplicit = 906;  // the legacy stream while a blocking stream captures
inline constexpr Result kCapturedEvent = 907;
inline constexpr Result kStreamDetached = 917;  // its green context was destroyed

// Handles that stand for default streams.
inline constexpr std::uintptr_t kLegacyStream = 1;
inline constexpr std::uintptr_t kPerThreadStream = 2;

inline constexpr unsigned kStreamDefault = 0;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDefault = 0;  // with timing
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kEventRecordExternal = 1;

enum CaptureStatus : int { kCaptureNone = 0, kCaptureActive = 1, kCaptureBroken = 2 };
enum CaptureMode : int { kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2 };
enum MemcpyKind : int { kHostToHost = 0, kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3, kDefaultKind = 4 };

inline constexpr int kPointerMemoryType = 2;  // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
inline constexpr int kPointerIsManaged = 8;
inline constexpr int kPointerDeviceOrdinal = 9;
inline constexpr unsigned kMemoryHost = 1;
inline constexpr unsigned kMemoryDevice = 2;
inline constexpr unsigned kMemoryUnified = 4;

inline constexpr int kMultiprocessorCount = 16;  // CU_DEVICE_ATTRIBUTE_*
inline constexpr int kCapabilityMajor = 75;
inline constexpr int kCapabilityMinor = 76;
inline constexpr unsigned kHostAllocPortable = 1;
inline constexpr unsigned kHostAllocDeviceMap = 2;

inline constexpr std::uint64_t kLookUpLegacy = 1;     // cuGetProcAddress: CU_GET_PROC_ADDRESS_LEGACY_STREAM
inline constexpr std::uint64_t kLookUpPerThread = 2;  // CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM

// The first CUDA version that is newer than all headers compared with ours: signatures may differ from there on.
inline constexpr int kKnownUntil = 13060;

struct Dim3 {
  unsigned x, y, z;
};
static_assert(sizeof(Dim3) == 12);

// cudaLaunchConfig_t
struct LaunchConfig {
  Dim3 grid, block;
  std::size_t shared_bytes;
  Stream stream;
  void* attributes;
  unsigned attributes_count;
};
static_assert(sizeof(LaunchConfig) == 56 && offsetof(LaunchConfig, stream) == 32);

// CUlaunchConfig
struct DriverLaunchConfig {
  Dim3 grid, block;
  unsigned shared_bytes;
  Stream stream;
  void* attributes;
  unsigned attributes_count;
};
static_assert(sizeof(DriverLaunchConfig) == 56 && offsetof(DriverLaunchConfig, stream) == 32);

// cudaExtent, cudaPos and cudaPitchedPtr
struct Extent {
  std::size_t width, height, depth;  // bytes, rows and planes, unless a CUDA array takes part: then its elements
};
struct Position {
  std::size_t x, y, z;
};
struct PitchedPointer {
  void* pointer;
  std::size_t pitch, x_size, y_size;
};

// cudaMemcpy3DParms
struct BoxCopy {
  void* from_array;
  Position from_position;
  PitchedPointer from;
  void* to_array;
  Position to_position;
  PitchedPointer to;
  Extent extent;
  int kind;  // MemcpyKind
};
static_assert(sizeof(BoxCopy) == 160 && offsetof(BoxCopy, extent) == 128);

// cudaMemcpy3DPeerParms
struct PeerBoxCopy {
  void* from_array;
  Position from_position;
  PitchedPointer from;
  int from_device;
  void* to_array;
  Position to_position;
  PitchedPointer to;
  int to_device;
  Extent extent;
};
static_assert(sizeof(PeerBoxCopy) == 168 && offsetof(PeerBoxCopy, extent) == 144);

// CUDA_MEMCPY2D_v2
struct DriverRectangleCopy {
  struct Side {
    std::size_t x_bytes, y;
    unsigned memory;  // kMemoryHost, ...
    const void* host;
    DevicePointer device;
    void* array;
    std::size_t pitch;
  };
  Side from, to;
  std::size_t width_bytes, height;
};
static_assert(sizeof(DriverRectangleCopy) == 128 && offsetof(DriverRectangleCopy, width_bytes) == 112);

// CUDA_MEMCPY3D_v2 and CUDA_MEMCPY3D_PEER_v1, of which the first has no contexts
struct DriverBoxCopy {
  struct Side {
    std::size_t x_bytes, y, z, level;
    unsigned memory;
    const void* host;
    DevicePointer device;
    void* array;
    Context context;
    std::size_t pitch, height;
  };
  Side from, to;
  std::size_t width_bytes, height, depth;
};
static_assert(sizeof(DriverBoxCopy) == 200 && offsetof(DriverBoxCopy, width_bytes) == 176);

// One pointer per function of cuda_driver.def, null where the driver has none of this name.
struct Driver {
#define CUDA_DRIVER(member, symbol, ...) Result (*member)(__VA_ARGS__) = nullptr;
#define CUDA_DRIVER_OPTIONAL CUDA_DRIVER
#include "abi/cuda_driver.def"
#undef CUDA_DRIVER_OPTIONAL
#undef CUDA_DRIVER
};

}  // namespace stashtrace::cuda
