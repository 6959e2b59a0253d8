// Works of torch.distributed whose end the recorder writes (hooks/hooks_gloo.cpp). SPDX-License-Identifier: Apache-2.0
//
// A Work in Python is an instance of pybind11, which keeps the address of the C++ object in one of its first words. Which
// one is learned from a Work whose address the hook knows: no header of pybind11 is needed, and no word is followed as a
// pointer that is not one.
#include <atomic>

#include "hooks/gloo_works.h"
#include "python/arguments.h"
#include "python/functions.h"

namespace stashtrace::python {

namespace {

// An instance has at least its header (two words, four without a GIL), the address, its holder, weak references and flags.
constexpr std::size_t kMostWords = 6;
constinit std::atomic<std::size_t> g_address_word{0};  // 0: not learned

const void* word_of(const Object* work, std::size_t index) noexcept {
  return reinterpret_cast<const void* const*>(work)[index];
}

const void* address_of(const Object* work) noexcept {
  const std::size_t index = g_address_word.load(std::memory_order_relaxed);
  return index == 0 ? nullptr : word_of(work, index);
}

bool learn_address(const Object* work, const void* address) noexcept {
  for (std::size_t i = 1; i < kMostWords; ++i) {
    if (word_of(work, i) != address) continue;
    g_address_word.store(i, std::memory_order_relaxed);
    return true;
  }
  return false;
}

}  // namespace

STASHTRACE_FUNCTION(learn_work) {
  (void)self;
  if (!expect("learn_work", count, 1)) return nullptr;
  const void* const running = gloo::running_work();
  const bool learned = running != nullptr && (address_of(given[0]) == running || learn_address(given[0], running));
  if (learned) gloo::learn_from_callback();
  return api().PyBool_FromLong(learned);
}

STASHTRACE_FUNCTION(follow_work) {
  (void)self;
  gloo::Collective collective{};
  if (!expect("follow_work", count, 4) || !to_number(given[1], collective.id) ||
      !to_number(given[2], collective.call_ticks) || !to_number(given[3], collective.return_ticks))
    return nullptr;
  const void* const work = address_of(given[0]);
  const bool followed = work != nullptr && gloo::follow(work, collective);
  return api().PyLong_FromUnsignedLongLong(followed ? reinterpret_cast<std::uintptr_t>(work) : 0);
}

STASHTRACE_FUNCTION(work_address) {
  (void)self;
  if (!expect("work_address", count, 1)) return nullptr;
  return api().PyLong_FromUnsignedLongLong(reinterpret_cast<std::uintptr_t>(address_of(given[0])));
}

STASHTRACE_FUNCTION(works_in_flight) {
  (void)self, (void)given;
  return expect("works_in_flight", count, 0) ? api().PyLong_FromUnsignedLongLong(gloo::in_flight_count()) : nullptr;
}

STASHTRACE_FUNCTION(forget_works) {
  (void)self, (void)given;
  if (!expect("forget_works", count, 0)) return nullptr;
  gloo::forget();
  return none();
}

}  // namespace stashtrace::python
