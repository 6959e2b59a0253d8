// The runtime double's table of driver entry points. SPDX-License-Identifier: Apache-2.0
//
// Found as the real runtime finds them: dlopen of libcuda.so.1, one dlsym of cuGetProcAddress_v2, then that. So none of
// the runtime's own driver calls pass a symbol that could be interposed, but a hook of cuGetProcAddress sees the look-ups.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

namespace fake {

using Address = unsigned long long;

// name of the table's member, name to look up, parameters
#define FAKE_DRIVER_CALLS(X)                                                                          \
  X(cuInit, unsigned)                                                                                 \
  X(cuDriverGetVersion, int*)                                                                         \
  X(cuDeviceGetCount, int*)                                                                           \
  X(cuDeviceGetName, char*, int, int)                                                                 \
  X(cuDeviceGetUuid, unsigned char*, int)                                                             \
  X(cuDeviceTotalMem, std::size_t*, int)                                                              \
  X(cuDeviceGetAttribute, int*, int, int)                                                             \
  X(cuDeviceGetPCIBusId, char*, int, int)                                                             \
  X(cuDevicePrimaryCtxRetain, void**, int)                                                            \
  X(cuCtxSetCurrent, void*)                                                                           \
  X(cuCtxGetCurrent, void**)                                                                          \
  X(cuCtxGetDevice, int*)                                                                             \
  X(cuCtxSynchronize)                                                                                 \
  X(cuCtxGetStreamPriorityRange, int*, int*)                                                          \
  X(cuCtxEnablePeerAccess, void*, unsigned)                                                           \
  X(cuStreamCreateWithPriority, void**, unsigned, int)                                                \
  X(cuStreamDestroy, void*)                                                                           \
  X(cuStreamQuery, void*)                                                                             \
  X(cuStreamSynchronize, void*)                                                                       \
  X(cuStreamWaitEvent, void*, void*, unsigned)                                                        \
  X(cuStreamGetPriority, void*, int*)                                                                 \
  X(cuStreamGetFlags, void*, unsigned*)                                                               \
  X(cuStreamGetId, void*, unsigned long long*)                                                        \
  X(cuStreamBeginCapture, void*, int)                                                                 \
  X(cuStreamEndCapture, void*, void**)                                                                \
  X(cuStreamIsCapturing, void*, int*)                                                                 \
  X(cuStreamAddCallback, void*, void (*)(void*, int, void*), void*, unsigned)                         \
  X(cuThreadExchangeStreamCaptureMode, int*)                                                          \
  X(cuLaunchHostFunc, void*, void (*)(void*), void*)                                                  \
  X(cuEventCreate, void**, unsigned)                                                                  \
  X(cuEventDestroy, void*)                                                                            \
  X(cuEventRecord, void*, void*)                                                                      \
  X(cuEventRecordWithFlags, void*, void*, unsigned)                                                   \
  X(cuEventQuery, void*)                                                                              \
  X(cuEventSynchronize, void*)                                                                        \
  X(cuEventElapsedTime, float*, void*, void*)                                                         \
  X(cuMemGetInfo, std::size_t*, std::size_t*)                                                         \
  X(cuMemAlloc, Address*, std::size_t)                                                                \
  X(cuMemAllocManaged, Address*, std::size_t, unsigned)                                               \
  X(cuMemFree, Address)                                                                               \
  X(cuMemAllocAsync, Address*, std::size_t, void*)                                                    \
  X(cuMemFreeAsync, Address, void*)                                                                   \
  X(cuMemHostAlloc, void**, std::size_t, unsigned)                                                    \
  X(cuMemFreeHost, void*)                                                                             \
  X(cuMemHostRegister, void*, std::size_t, unsigned)                                                  \
  X(cuMemHostUnregister, void*)                                                                       \
  X(cuPointerGetAttributes, unsigned, const int*, void**, Address)                                    \
  X(cuMemcpy, Address, Address, std::size_t)                                                          \
  X(cuMemcpyAsync, Address, Address, std::size_t, void*)                                              \
  X(cuMemsetD8, Address, unsigned char, std::size_t)                                                  \
  X(cuMemsetD8Async, Address, unsigned char, std::size_t, void*)                                      \
  X(cuModuleLoadData, void**, const void*)                                                            \
  X(cuModuleGetFunction, void**, void*, const char*)                                                  \
  X(cuLaunchKernel, void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**) \
  X(cuGraphInstantiateWithFlags, void**, void*, unsigned long long)                                   \
  X(cuGraphLaunch, void*, void*)                                                                      \
  X(cuGraphGetNodes, void*, void**, std::size_t*)                                                     \
  X(cuGraphDestroy, void*)                                                                            \
  X(cuGraphExecDestroy, void*)

struct DriverTable {
#define FAKE_MEMBER(name, ...) int (*name)(__VA_ARGS__) = nullptr;
  FAKE_DRIVER_CALLS(FAKE_MEMBER)
#undef FAKE_MEMBER
  int (*look_up)(const char*, void**, int, std::uint64_t, int*) = nullptr;
  bool complete = false;

  explicit DriverTable(int version) {
    void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) return;
    look_up = reinterpret_cast<decltype(look_up)>(dlsym(library, "cuGetProcAddress_v2"));
    if (look_up == nullptr) return;
    complete = true;
#define FAKE_FIND(name, ...)                                                                                 \
  complete = look_up(#name, reinterpret_cast<void**>(&name), version, 0, nullptr) == 0 && complete;
    FAKE_DRIVER_CALLS(FAKE_FIND)
#undef FAKE_FIND
  }
};

}  // namespace fake
