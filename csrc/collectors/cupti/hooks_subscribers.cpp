// Notices that another tool wants CUPTI, and gives it up first. SPDX-License-Identifier: Apache-2.0
//
// Kineto (torch.profiler) calls both of these through the PLT when it starts. A second subscriber gets error 39, and
// other buffer callbacks would get our buffers, so we stop before the call is passed on. On any thread; while we
// have not begun, a call costs one load. Newer names (..._v2) are not exported: a name that a libcupti does not have
// would mislead programs that probe for it.
#include <iterator>

#include "abi/cupti_abi.h"
#include "abi/dynlib.h"
#include "collectors/cupti/session.h"
#include "hooks/interpose.h"

namespace stashtrace::cupti {
namespace {

// Looked up each time: these are called once or twice in a process's life. Null in a process without libcupti.
template <class Function>
Function* real_call(const char* name) noexcept {
  constexpr const char* kLibraries[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
  return reinterpret_cast<Function*>(find_behind_hook(kLibraries, std::size(kLibraries), name));
}

}  // namespace
}  // namespace stashtrace::cupti

STASHTRACE_HOOK(int, cuptiSubscribe, stashtrace::abi::cupti::Subscriber* subscriber,
                stashtrace::abi::cupti::Callback callback, void* user) {
  stashtrace::cupti::session().step_aside("a profiler that called cuptiSubscribe");
  using Real = int(stashtrace::abi::cupti::Subscriber*, stashtrace::abi::cupti::Callback, void*);
  const auto real = stashtrace::cupti::real_call<Real>("cuptiSubscribe");
  return real != nullptr ? real(subscriber, callback, user) : stashtrace::abi::cupti::kUnknown;
}

STASHTRACE_HOOK(int, cuptiActivityRegisterCallbacks, stashtrace::abi::cupti::BufferRequested requested,
                stashtrace::abi::cupti::BufferCompleted completed) {
  stashtrace::cupti::session().step_aside("a profiler that called cuptiActivityRegisterCallbacks");
  using Real = int(stashtrace::abi::cupti::BufferRequested, stashtrace::abi::cupti::BufferCompleted);
  const auto real = stashtrace::cupti::real_call<Real>("cuptiActivityRegisterCallbacks");
  return real != nullptr ? real(requested, completed) : stashtrace::abi::cupti::kUnknown;
}
