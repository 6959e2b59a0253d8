// Implementation of runtimes.h. SPDX-License-Identifier: Apache-2.0
#include "collectors/cuda/runtimes.h"

#include <atomic>
#include <cstdint>

#include "abi/dynlib.h"

namespace stashtrace::cuda {

namespace {

// A function that every runtime has and that is not hooked, so that a look-up never finds us.
constexpr const char* kProbe = "cudaRuntimeGetVersion";

void* find_in(unsigned runtime, const char* name) noexcept {
  if (runtime == kNextInScope) return find_behind_hook(kRuntimes, kKnownRuntimes, name);
  return find_versioned_behind_hook(kRuntimes[runtime], name);
}

// What rt::name points to at first: finds its target and stores it for later calls.
template <auto& Slot, unsigned Runtime, class Name, class... A>
struct Stub {
  static Result missing(A...) { return kSymbolNotFound; }
  static Result call(A... arguments) {
    void* found = find_in(Runtime, Name::text);
    auto& slot = Slot.of[Runtime];
    slot.set(found != nullptr ? reinterpret_cast<Result (*)(A...)>(found) : &missing);
    return slot(arguments...);
  }
};

// Callers by address: which runtime, in the upper 16 bits, which user addresses leave free. Direct-mapped; two callers
// that share a place are looked up again in turn.
constexpr std::size_t kPlaces = 4096;
constinit std::atomic<std::uint64_t> g_callers[kPlaces]{};

unsigned find_runtime(const void* caller) noexcept {
  const void* object = object_of_unversioned(caller, kProbe);
  for (unsigned i = 0; object != nullptr && i < kKnownRuntimes; ++i)
    if (object == object_of(Dynlib::loaded(kRuntimes + i, 1).symbol(kProbe))) return i;
  return kNextInScope;
}

}  // namespace

namespace rt {
#define CUDART(name, ...)                                                                  \
  namespace {                                                                              \
  struct Name_##name {                                                                     \
    static constexpr const char* text = #name;                                             \
  };                                                                                       \
  template <unsigned Runtime, class F>                                                     \
  struct StubOf_##name;                                                                    \
  template <unsigned Runtime, class... A>                                                  \
  struct StubOf_##name<Runtime, Result(A...)> : Stub<name, Runtime, Name_##name, A...> {}; \
  }                                                                                        \
  constinit PerRuntime<Result(__VA_ARGS__)> name{                                          \
      {Behind<Result(__VA_ARGS__)>(&StubOf_##name<0, Result(__VA_ARGS__)>::call),          \
       Behind<Result(__VA_ARGS__)>(&StubOf_##name<1, Result(__VA_ARGS__)>::call),          \
       Behind<Result(__VA_ARGS__)>(&StubOf_##name<2, Result(__VA_ARGS__)>::call),          \
       Behind<Result(__VA_ARGS__)>(&StubOf_##name<kNextInScope, Result(__VA_ARGS__)>::call)}};
#include "collectors/cuda/runtime_calls.def"
#undef CUDART
}  // namespace rt

int version_of(unsigned runtime) noexcept {
  int version = 0;
  if (void* found = find_in(runtime, kProbe)) reinterpret_cast<Result (*)(int*)>(found)(&version);
  return version;
}

unsigned runtime_of(const void* caller) noexcept {
  const auto address = reinterpret_cast<std::uint64_t>(caller);
  auto& place = g_callers[(address * 0x9E3779B97F4A7C15ULL) >> 52];
  const std::uint64_t known = place.load(std::memory_order_relaxed);
  if ((known & 0xffff'ffff'ffff) == address) [[likely]]
    return static_cast<unsigned>(known >> 48);
  const unsigned runtime = find_runtime(caller);
  place.store(address | std::uint64_t{runtime} << 48, std::memory_order_relaxed);
  return runtime;
}

}  // namespace stashtrace::cuda
