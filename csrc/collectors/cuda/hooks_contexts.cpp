// Hooks of the driver's calls that destroy contexts, for programs that link libcuda themselves. SPDX-License-Identifier: Apache-2.0
//
// The rest of the driver is only seen by look-up (hooks_driver.cpp). These calls matter without it too: handles of work
// in flight die with a context, also a runtime's. The driver's symbols have no versions; the signature is in the name.
#include <atomic>

#include "abi/dynlib.h"
#include "collectors/cuda/calls.h"

using namespace stashtrace::cuda;

namespace {

constexpr const char* kDriverNames[] = {"libcuda.so.1", "libcuda.so"};

template <class Argument>
using DriverCall = Result (*)(Argument);

template <class Argument>
Result call_driver(std::atomic<DriverCall<Argument>>& known, const char* name, Argument argument) noexcept {
  DriverCall<Argument> real = known.load(std::memory_order_relaxed);
  if (real == nullptr) {
    real = reinterpret_cast<DriverCall<Argument>>(stashtrace::find_behind_hook(kDriverNames, 2, name));
    if (real == nullptr) return kSymbolNotFound;
    known.store(real, std::memory_order_relaxed);
  }
  return real(argument);
}

}  // namespace

#define STASHTRACE_CONTEXT_HOOK(name, Argument, does)                               \
  extern "C" __attribute__((visibility("default"))) Result name(Argument which) {   \
    static constinit std::atomic<DriverCall<Argument>> known{nullptr};              \
    return does(which, [=] { return call_driver<Argument>(known, #name, which); }); \
  }

STASHTRACE_CONTEXT_HOOK(cuCtxDestroy, Context, destroying_context)
STASHTRACE_CONTEXT_HOOK(cuCtxDestroy_v2, Context, destroying_context)
STASHTRACE_CONTEXT_HOOK(cuGreenCtxDestroy, GreenContext, destroying_green_context)
STASHTRACE_CONTEXT_HOOK(cuDevicePrimaryCtxReset, Device, resetting_device)
STASHTRACE_CONTEXT_HOOK(cuDevicePrimaryCtxReset_v2, Device, resetting_device)
STASHTRACE_CONTEXT_HOOK(cuDevicePrimaryCtxRelease, Device, releasing_device)
STASHTRACE_CONTEXT_HOOK(cuDevicePrimaryCtxRelease_v2, Device, releasing_device)
