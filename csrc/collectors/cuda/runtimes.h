// The versions of libcudart that calls are handed on to: one entry of ours for each. SPDX-License-Identifier: Apache-2.0
//
// A process may hold several runtimes (torch for CUDA 13, another library for 12), each with its kernels and state, so a
// hook must go on to the one that its caller is bound to. The loader knows which: callers refer to `cudaMalloc` of version
// `libcudart.so.12`. So each hook is exported once per version, and the loader binds each caller to the entry of its
// own; the call itself decides nothing. A runtime of a version without entries bypasses us. Callers without any version
// (linked against a stub, or found by dlsym) use the default entry: their address decides, runtime_of(). Any thread.
#pragma once

#include <cstddef>

#include "abi/cuda_abi.h"
#include "hooks/behind.h"

namespace stashtrace::cuda {

#pragma GCC visibility push(hidden)

// In the order of the entries below; the last stands for whatever follows us in the global scope.
inline constexpr const char* kRuntimes[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"};
inline constexpr unsigned kKnownRuntimes = sizeof kRuntimes / sizeof kRuntimes[0];
inline constexpr unsigned kNextInScope = kKnownRuntimes;

// rt::name.of[runtime]: the function of that runtime, found when it is first called.
template <class F>
struct PerRuntime {
  using Function = typename Behind<F>::Function;
  Behind<F> of[kKnownRuntimes + 1];
};

namespace rt {
#define CUDART(name, ...) extern PerRuntime<Result(__VA_ARGS__)> name;
#include "collectors/cuda/runtime_calls.def"
#undef CUDART
}  // namespace rt

// Returns the runtime that an unversioned call from this address would have reached without us. Cached by address: no
// lock after the first call from a place.
unsigned runtime_of(const void* caller) noexcept;

// Returns the CUDA version of a runtime, 0 where there is none: 13000 of 13.0.
int version_of(unsigned runtime) noexcept;

#pragma GCC visibility pop

}  // namespace stashtrace::cuda

#define STASHTRACE_CUDART_LIST(...) __VA_OPT__(, ) __VA_ARGS__

// The version nodes are those of exports.map; "@@" marks the default.
#define STASHTRACE_CUDART_ENTRY(tag, runtime, version, name, parameters, arguments)            \
  extern "C" __attribute__((visibility("default"))) Result cudart_##tag##_##name parameters;   \
  extern "C" Result cudart_##tag##_##name parameters {                                         \
    return body_##name(__builtin_return_address(0), runtime STASHTRACE_CUDART_LIST arguments); \
  }                                                                                            \
  __asm__(".symver cudart_" #tag "_" #name ", " #name version);

// Defines the hook of one function of libcudart: its parameters, their names, and what to do, with `call` for the real call,
// `runtime` for the libcudart that it goes to, and `caller` for an address in the code that calls.
#define STASHTRACE_CUDART_HOOK(name, parameters, arguments, ...)                                                 \
  namespace {                                                                                                    \
  Result body_##name([[maybe_unused]] const void* caller, unsigned runtime STASHTRACE_CUDART_LIST parameters) {  \
    const auto real = rt::name.of[runtime].get();                                                                \
    const auto call = [=] { return real arguments; };                                                            \
    return __VA_ARGS__;                                                                                          \
  }                                                                                                              \
  }                                                                                                              \
  STASHTRACE_CUDART_ENTRY(13, 0, "@libcudart.so.13", name, parameters, arguments)                                \
  STASHTRACE_CUDART_ENTRY(12, 1, "@libcudart.so.12", name, parameters, arguments)                                \
  STASHTRACE_CUDART_ENTRY(11, 2, "@libcudart.so.11.0", name, parameters, arguments)                              \
  STASHTRACE_CUDART_ENTRY(any, runtime_of(__builtin_return_address(0)), "@@STASHTRACE_CUDART", name, parameters, \
                          arguments)
