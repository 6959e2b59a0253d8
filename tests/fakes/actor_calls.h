// What the actor calls, declared as a program sees it. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi/cuda_abi.h"
#include "abi/nccl_abi.h"

extern "C" {
int cudaGetDeviceCount(int*);
int cudaSetDevice(int);
int cudaDeviceSynchronize();
int cudaGetLastError();
int cudaStreamCreateWithFlags(void**, unsigned);
int cudaStreamDestroy(void*);
int cudaStreamSynchronize(void*);
int cudaStreamQuery(void*);
int cudaStreamWaitEvent(void*, void*, unsigned);
int cudaStreamBeginCapture(void*, int);
int cudaStreamEndCapture(void*, void**);
int cudaEventCreateWithFlags(void**, unsigned);
int cudaEventRecord(void*, void*);
int cudaEventQuery(void*);
int cudaEventSynchronize(void*);
int cudaEventElapsedTime(float*, void*, void*);
int cudaMalloc(void**, std::size_t);
int cudaFree(void*);
int cudaHostAlloc(void**, std::size_t, unsigned);
int cudaMemcpy(void*, const void*, std::size_t, int);
int cudaMemcpyAsync(void*, const void*, std::size_t, int, void*);
int cudaMemsetAsync(void*, int, std::size_t, void*);
int cudaGraphInstantiate(void**, void*, unsigned long long);
int cudaGraphLaunch(void*, void*);
int cudaLaunchKernelExC(const stashtrace::cuda::LaunchConfig*, const void*, void**);
int __cudaLaunchKernel(const void*, stashtrace::cuda::Dim3, stashtrace::cuda::Dim3, void**, std::size_t, void*);

#ifndef ACTOR_LOOKS_NCCL_UP
#define ACTOR_DECLARE(name, first, ...) stashtrace::nccl::Result name(__VA_ARGS__);
namespace stashtrace::nccl {
STASHTRACE_NCCL_CALLS(ACTOR_DECLARE)
STASHTRACE_NCCL_QUERIES(ACTOR_DECLARE)
}
#undef ACTOR_DECLARE
#endif
}

#ifdef ACTOR_LOOKS_NCCL_UP
// As JAX and ctypes do it: by dlsym of a handle, so that no import table names NCCL.
#include <dlfcn.h>

template <class Signature>
struct LookedUp {
  const char* name;
  template <class... Arguments>
  stashtrace::nccl::Result operator()(Arguments... arguments) const {
    static void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    auto* function = reinterpret_cast<Signature*>(dlsym(library, name));
    return function == nullptr ? stashtrace::nccl::kInternalError : function(arguments...);
  }
};
#define ACTOR_DECLARE(name, first, ...) \
  inline constexpr LookedUp<stashtrace::nccl::Result(__VA_ARGS__)> name{#name};
namespace stashtrace::nccl {
STASHTRACE_NCCL_CALLS(ACTOR_DECLARE)
STASHTRACE_NCCL_QUERIES(ACTOR_DECLARE)
}
#undef ACTOR_DECLARE
#endif
