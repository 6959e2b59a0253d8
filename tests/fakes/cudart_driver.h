// The runtime double's table of driver entry points. SPDX-License-Identifier: Apache-2.0
//
// Found as the real runtime finds them: dlopen of libcuda.so.1, one dlsym of cuGetProcAddress_v2, then that. So none of
// the runtime's own driver calls pass a symbol that could be interposed, but a hook of cuGetProcAddress sees the look-ups.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

#include "abi/cuda_abi.h"

namespace fake {

using Address = unsigned long long;
using Rectangle = stashtrace::cuda::DriverRectangleCopy;
using Box = stashtrace::cuda::DriverBoxCopy;

// name, the CUDA version that it is looked up for (as the real runtime asks, by signature and not by its own version), parameters
#define FAKE_DRIVER_CALLS(X) \
  X(cuInit, 2000, unsigned) \
  X(cuDriverGetVersion, 2020, int*) \
  X(cuDeviceGetCount, 2000, int*) \
  X(cuDeviceGetName, 2000, char*, int, int) \
  X(cuDeviceGetUuid, 11040, unsigned char*, int) \
  X(cuDeviceTotalMem, 3020, std::size_t*, int) \
  X(cuDeviceGetAttribute, 2000, int*, int, int) \
  X(cuDeviceGetPCIBusId, 4010, char*, int, int) \
  X(cuDevicePrimaryCtxRetain, 7000, void**, int) \
  X(cuDevicePrimaryCtxReset, 7000, int) \
  X(cuCtxSetCurrent, 4000, void*) \
  X(cuCtxGetCurrent, 4000, void**) \
  X(cuCtxGetDevice, 2000, int*) \
  X(cuCtxSynchronize, 2000) \
  X(cuCtxGetStreamPriorityRange, 5050, int*, int*) \
  X(cuCtxEnablePeerAccess, 4000, void*, unsigned) \
  X(cuDevResourceGenerateDesc, 12040, void**, const void*, unsigned) \
  X(cuGreenCtxCreate, 12040, void**, void*, int, unsigned) \
  X(cuGreenCtxDestroy, 12040, void*) \
  X(cuGreenCtxStreamCreate, 12050, void**, void*, unsigned, int) \
  X(cuStreamCreateWithPriority, 5050, void**, unsigned, int) \
  X(cuStreamDestroy, 4000, void*) \
  X(cuStreamQuery, 2000, void*) \
  X(cuStreamSynchronize, 2000, void*) \
  X(cuStreamWaitEvent, 3020, void*, void*, unsigned) \
  X(cuStreamGetPriority, 5050, void*, int*) \
  X(cuStreamGetFlags, 5050, void*, unsigned*) \
  X(cuStreamGetId, 12000, void*, unsigned long long*) \
  X(cuStreamBeginCapture, 10010, void*, int) \
  X(cuStreamEndCapture, 10000, void*, void**) \
  X(cuStreamIsCapturing, 10000, void*, int*) \
  X(cuStreamAddCallback, 5000, void*, void (*)(void*, int, void*), void*, unsigned) \
  X(cuThreadExchangeStreamCaptureMode, 10010, int*) \
  X(cuLaunchHostFunc, 10000, void*, void (*)(void*), void*) \
  X(cuEventCreate, 2000, void**, unsigned) \
  X(cuEventDestroy, 4000, void*) \
  X(cuEventRecord, 2000, void*, void*) \
  X(cuEventRecordWithFlags, 11010, void*, void*, unsigned) \
  X(cuEventQuery, 2000, void*) \
  X(cuEventSynchronize, 2000, void*) \
  X(cuEventElapsedTime, 2000, float*, void*, void*) \
  X(cuMemGetInfo, 3020, std::size_t*, std::size_t*) \
  X(cuMemAlloc, 3020, Address*, std::size_t) \
  X(cuMemAllocManaged, 6000, Address*, std::size_t, unsigned) \
  X(cuMemAllocPitch, 3020, Address*, std::size_t*, std::size_t, std::size_t, unsigned) \
  X(cuMemFree, 3020, Address) \
  X(cuMemAllocAsync, 11020, Address*, std::size_t, void*) \
  X(cuMemFreeAsync, 11020, Address, void*) \
  X(cuMemHostAlloc, 2020, void**, std::size_t, unsigned) \
  X(cuMemFreeHost, 2000, void*) \
  X(cuMemHostRegister, 6050, void*, std::size_t, unsigned) \
  X(cuMemHostUnregister, 4000, void*) \
  X(cuPointerGetAttributes, 7000, unsigned, const int*, void**, Address) \
  X(cuMemcpy, 4000, Address, Address, std::size_t) \
  X(cuMemcpyAsync, 4000, Address, Address, std::size_t, void*) \
  X(cuMemcpy2DUnaligned, 3020, const Rectangle*) \
  X(cuMemcpy2DAsync, 3020, const Rectangle*, void*) \
  X(cuMemcpy3D, 3020, const Box*) \
  X(cuMemcpy3DAsync, 3020, const Box*, void*) \
  X(cuMemcpyPeer, 4000, Address, void*, Address, void*, std::size_t) \
  X(cuMemcpyPeerAsync, 4000, Address, void*, Address, void*, std::size_t, void*) \
  X(cuMemcpy3DPeer, 4000, const Box*) \
  X(cuMemcpy3DPeerAsync, 4000, const Box*, void*) \
  X(cuMemsetD2D8, 3020, Address, std::size_t, unsigned char, std::size_t, std::size_t) \
  X(cuMemsetD2D8Async, 3020, Address, std::size_t, unsigned char, std::size_t, std::size_t, void*) \
  X(cuMemsetD8, 3020, Address, unsigned char, std::size_t) \
  X(cuMemsetD8Async, 3020, Address, unsigned char, std::size_t, void*) \
  X(cuModuleLoadData, 2000, void**, const void*) \
  X(cuModuleGetFunction, 2000, void**, void*, const char*) \
  X(cuLaunchKernel, 4000, void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**) \
  X(cuLaunchCooperativeKernel, 9000, void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**) \
  X(cuGraphInstantiateWithFlags, 11040, void**, void*, unsigned long long) \
  X(cuGraphLaunch, 10000, void*, void*) \
  X(cuGraphGetNodes, 10000, void*, void**, std::size_t*) \
  X(cuGraphDestroy, 10000, void*) \
  X(cuGraphExecDestroy, 10000, void*)

struct DriverTable {
#define FAKE_MEMBER(name, version, ...) int (*name)(__VA_ARGS__) = nullptr;
  FAKE_DRIVER_CALLS(FAKE_MEMBER)
#undef FAKE_MEMBER
  int (*look_up)(const char*, void**, int, std::uint64_t, int*) = nullptr;
  bool complete = false;

  DriverTable() {
    void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) return;
    look_up = reinterpret_cast<decltype(look_up)>(dlsym(library, "cuGetProcAddress_v2"));
    if (look_up == nullptr) return;
    complete = true;
#define FAKE_FIND(name, version, ...) \
  complete = look_up(#name, reinterpret_cast<void**>(&name), version, 0, nullptr) == 0 && complete;
    FAKE_DRIVER_CALLS(FAKE_FIND)
#undef FAKE_FIND
  }
};

inline const DriverTable& driver() {
  static const DriverTable* const table = new DriverTable();
  return *table;
}

}  // namespace fake
