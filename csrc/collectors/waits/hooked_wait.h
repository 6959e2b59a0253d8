// The shape of a hooked wait. SPDX-License-Identifier: Apache-2.0
//
// Callers: hooks.cpp. Unless the thread is watched (probes turn that on for the step thread) a hook is one test of
// thread-local storage and a jump, because mutexes and condition variables are everywhere. errno is never touched.
// Not noexcept: a cancelled thread unwinds through a wait.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/clock.h"
#include "runtime/emit.h"
#include "schema/schema.h"

namespace stashtrace::waits {

namespace code = schema::codes::WaitOp;

// True if `caller` of a wait on a condition or a mutex lies in the code of the Python interpreter: that waits on none but
// its GIL's, which is one of each (its locks are semaphores). stashtrace_interpreter_code sets where that code is.
bool from_interpreter(const void* caller) noexcept;

// May another thread of the process end it? Of a wait for the GIL the holder is known.
constexpr bool may_end_by_a_thread(std::uint16_t wait_code) noexcept {
  return wait_code != code::sleep && wait_code != code::gil;
}

// Did something end it, and not its time limit? Of children, which no thread ends: false.
template <class Result>
bool was_ended(std::uint16_t wait_code, Result result) noexcept {
  return wait_code == code::poll ? result > 0 : may_end_by_a_thread(wait_code) && result == 0;
}

// Writes the row if the wait was longer than STASHTRACE_WAIT_THRESHOLD_NS.
void record_wait(std::uint16_t wait_code, const void* object, std::uint64_t begin, bool ended) noexcept;

// Apart from the unwatched path, which then needs no stack frame. Call captures by value, so that nothing is spilled.
template <class Call>
[[gnu::noinline, gnu::cold]] auto watched_wait(std::uint16_t wait_code, const void* object, Call call) {
  if (!recording()) return call();
  const std::uint64_t begin = now_ticks();
  std::atomic<std::uint64_t>* const since = may_end_by_a_thread(wait_code) ? detail::thread_state.waits_since : nullptr;
  if (since != nullptr) since->store(begin, std::memory_order_relaxed);
  const auto result = call();
  if (since != nullptr) since->store(0, std::memory_order_relaxed);
  record_wait(wait_code, object, begin, was_ended(wait_code, result));
  return result;
}

template <class Call>
[[gnu::always_inline]] inline auto waiting(std::uint16_t wait_code, const void* object, Call call) {
  if (!watches_waits() || paused()) [[likely]]
    return call();
  return watched_wait(wait_code, object, call);
}

// The same on a condition variable.
template <class Call>
[[gnu::noinline, gnu::cold]] int watched_condition(const void* condition, const void* caller, Call call) {
  return watched_wait(from_interpreter(caller) ? code::gil : code::cond_wait, condition, call);
}

template <class Call>
[[gnu::always_inline]] inline int waiting_on(const void* condition, const void* caller, Call call) {
  if (!watches_waits() || paused()) [[likely]]
    return call();
  return watched_condition(condition, caller, call);
}

}  // namespace stashtrace::waits
