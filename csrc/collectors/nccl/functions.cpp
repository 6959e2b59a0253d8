// Implementation of functions.h. SPDX-License-Identifier: Apache-2.0
#include "collectors/nccl/functions.h"

#include <atomic>

#include "abi/dynlib.h"
#include "device/timeline.h"

namespace stashtrace::nccl {

namespace {

constexpr const char* kLibraries[] = {"libnccl.so.2", "libnccl.so"};

constexpr FunctionDesc kFunctions[] = {
#define STASHTRACE_NCCL_DESC(name, first, ...) {#name, "p" #name},
    STASHTRACE_NCCL_CALLS(STASHTRACE_NCCL_DESC) STASHTRACE_NCCL_QUERIES(STASHTRACE_NCCL_DESC)
#undef STASHTRACE_NCCL_DESC
};
static_assert(sizeof kFunctions / sizeof kFunctions[0] == kNamesCount);

constinit std::atomic<void*> g_found[kNamesCount] = {};
char g_absent;  // its address: the libnccl of this process does not have the function and will not get it
constinit std::atomic<int> g_version{0};

}  // namespace

const FunctionDesc& describe(Name name) noexcept { return kFunctions[static_cast<unsigned>(name)]; }

void* find_function(Name name) noexcept {
  std::atomic<void*>& slot = g_found[static_cast<unsigned>(name)];
  void* found = slot.load(std::memory_order_acquire);
  if (found != nullptr) [[likely]]
    return found != &g_absent ? found : nullptr;
  const FunctionDesc& wanted = describe(name);
  const device::Inside look_up_of_our_own;  // --lookup-hook shall not answer it
  constexpr std::size_t kCount = sizeof kLibraries / sizeof kLibraries[0];
  const Dynlib library = Dynlib::loaded(kLibraries, kCount);
  if (library) {
    found = library.symbol(wanted.own_name);
    if (found == nullptr) found = library.symbol(wanted.name);
  } else {
    found = find_behind_hook(kLibraries, kCount, wanted.name, wanted.own_name);
  }
  // Absence is stored too: the next pass over import tables then needs no loader lock, which a long dlopen holds.
  if (found != nullptr || library) slot.store(found != nullptr ? found : &g_absent, std::memory_order_release);
  return found;
}

bool is_of_this_nccl(Name name, void* real) noexcept {
  void* found = find_function(name);
  if (found == nullptr && g_found[static_cast<unsigned>(name)].compare_exchange_strong(found, real)) return true;
  return found != &g_absent && (found == real || object_of(found) == object_of(real));
}

int nccl_version() noexcept {
  int version = g_version.load(std::memory_order_relaxed);
  if (version != 0) return version;
  auto* ask = STASHTRACE_NCCL_REAL(ncclGetVersion);
  if (ask == nullptr || ask(&version) != kSuccess) return 0;
  g_version.store(version, std::memory_order_relaxed);
  return version;
}

}  // namespace stashtrace::nccl
