// emit<Record>(row) and ScopedRecord<Record>: the only two ways to record. SPDX-License-Identifier: Apache-2.0
//
// Callers: hooks, collectors, capi.cpp. noexcept, no lock, no allocation and no system call but for the first row
// of a type on a thread and once per quarter of a ring; safe in signal handlers. In a process that is not traced
// both do nothing. A hook asks recording() first, so that it takes no time stamps for nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/clock.h"
#include "core/pages.h"
#include "core/ring.h"
#include "schema/schema.h"

namespace stashtrace {

#pragma GCC visibility push(hidden)
namespace detail {

// Lies in a separate page, which the kernel empties in a forked child (MADV_WIPEONFORK), so that a child made by a
// raw system call, which runs no atfork handler, reads kForked before it can touch its parent's rings.
enum ProcessState : std::uint32_t { kForked = 0, kRecording = 1, kPaused = 2, kInert = 3, kReviving = 4 };
struct alignas(kLargestPageBytes) StatePage {
  std::atomic<std::uint32_t> word;
};
extern constinit StatePage state_page;

// A vfork child shares its parent's memory and thread state; a filter of system calls that it installs is its own.
enum ChildFilter : std::uint8_t { kNoFilter, kFilter, kKillingFilter };
struct ThreadState {
  container::RingHeader* rings[schema::kRecords.size()];
  std::uint32_t tid;
  bool known;          // its thread_info row is written
  bool watches_waits;  // set by the probes for the step thread
  // Where the sampler of stacks sees that this thread waits; null if it is not sampled.
  std::atomic<std::uint64_t>* waits_since;
  ChildFilter child_filter;  // of a vfork child that has not ended yet: no system call may be made
};
extern constinit thread_local ThreadState thread_state;

bool revive() noexcept;  // first use in a forked child

// Handles all but the plain case: first row of a type on a thread, a forked child, a mark of the ring. Returns false if
// the row was not recorded; it is then counted. `row` has the size in schema::kRecords.
bool emit_slowly(std::size_t index, const void* row) noexcept;

}  // namespace detail
#pragma GCC visibility pop

// Should hooks record now? One load; false in a process that is not traced and outside STASHTRACE_STEPS. Acquire, which
// x86-64 has for nothing: who sees kRecording sees what the collectors had prepared before, also when we are attached.
inline bool recording() noexcept {
  const std::uint32_t state = detail::state_page.word.load(std::memory_order_acquire);
  if (state == detail::kRecording) [[likely]]
    return true;
  return state == detail::kForked && detail::revive();
}

// The same in one test, for the plain path of a hot hook: also false in a forked child, which recording() revives.
inline bool recording_already() noexcept {
  return detail::state_page.word.load(std::memory_order_acquire) == detail::kRecording;
}

// An idle run, or outside STASHTRACE_STEPS: hooks leave by this test before they look at anything else. The flag lies in
// a separate page, which nothing writes meanwhile.
inline bool paused() noexcept { return detail::state_page.word.load(std::memory_order_relaxed) == detail::kPaused; }

// Is this thread one whose blocking waits are recorded? (stashtrace._native.watch_waits)
inline bool watches_waits() noexcept { return detail::thread_state.watches_waits; }

// False when the row could not be kept; the loss is already counted.
template <class R>
inline bool emit(const R& row) noexcept {
  constexpr std::size_t index = schema::record_index<R>();
  container::RingHeader* ring = detail::thread_state.rings[index];
  if (ring == nullptr || detail::state_page.word.load(std::memory_order_relaxed) == detail::kForked ||
      ring::must_look_up(ring)) [[unlikely]]
    return detail::emit_slowly(index, &row);
  ring::put(ring, sizeof(R), [&row](std::byte* to) { std::memcpy(to, &row, sizeof(R)); });
  return true;
}

// The plain half of emit(), for the hottest hook, which has just checked recording_already(). Returns false if it did
// nothing and emit() must be called. The row is passed as 64-bit words, by value, so that it goes from registers to the
// ring: a row built on the stack by narrow stores and copied by wide loads waits for its own stores, about 4 ns.
template <class R, class... Words>
[[gnu::always_inline]] inline bool emit_if_plain(Words... words) noexcept {
  static_assert(sizeof...(Words) * 8 == sizeof(R) && (std::is_same_v<Words, std::uint64_t> && ...));
  container::RingHeader* ring = detail::thread_state.rings[schema::record_index<R>()];
  if (ring == nullptr || ring::must_look_up(ring)) [[unlikely]]
    return false;
  ring::put(ring, sizeof(R), [=](std::byte* to) {
    std::size_t at = 0;
    ((std::memcpy(to + at, &words, 8), at += 8), ...);
  });
  return true;
}

// emit() for a row given as bytes and a record given by its place in schema::kRecords.
bool emit_bytes(std::size_t index, const void* row) noexcept;

// Reports that a collector could not record something; false if the report failed too. Not for hot paths: it
// interns two texts.
bool report_loss(std::uint16_t collector_code, const char* reason, std::uint64_t count, const char* detail,
                 std::uint16_t severity) noexcept;

// A record with begin_ticks and end_ticks around a scope; the rest of `row` is filled in meanwhile.
template <class R>
class ScopedRecord {
 public:
  ScopedRecord() noexcept : on_(recording()) {
    if (on_) row.begin_ticks = now_ticks();
  }
  ~ScopedRecord() {
    if (!on_) return;
    row.end_ticks = now_ticks();
    emit(row);
  }
  ScopedRecord(const ScopedRecord&) = delete;
  ScopedRecord& operator=(const ScopedRecord&) = delete;

  R row{};

 private:
  const bool on_;
};

}  // namespace stashtrace
