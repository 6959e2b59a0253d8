// The clock of all records: raw ticks, and what they are worth. SPDX-License-Identifier: Apache-2.0
//
// Ticks are the TSC (CNTVCT_EL0 on aarch64) where it runs at one rate on all cores, else CLOCK_MONOTONIC in ns.
// Conversion happens offline: clock_sync rows pair ticks with the kernel's clocks. Any thread, any time. The kernel is
// asked past libc, whose clock_gettime() others replace: the job may live in another time, the recorder does not.
#pragma once

#include <time.h>

#include <cstdint>

#include "core/kernel_clock.h"
#include "core/raw_syscall.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace stashtrace {

namespace clock_detail {
// Zero until init_clock() has seen that the counter may be trusted; written once, before any record.
[[gnu::visibility("hidden")]] extern constinit bool counter_trusted;
[[gnu::visibility("hidden")]] extern constinit KernelClock kernel_clock;  // likewise; null: by a system call
}  // namespace clock_detail

inline std::int64_t clock_ns(clockid_t id) noexcept {
  timespec now{};
  if (clock_detail::kernel_clock != nullptr) clock_detail::kernel_clock(id, &now);
  else raw::call(SYS_clock_gettime, id, raw::address(&now));
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// Hot paths ask ticks_are_counter() once and then read the counter without asking again.
inline bool ticks_are_counter() noexcept { return clock_detail::counter_trusted; }
inline std::uint64_t counter_ticks() noexcept {
#if defined(__x86_64__)
  return __rdtsc();
#else
  // aarch64 reads its counter early and in any order. Behind isb it is read when all before it is done, so the end of a
  // call that makes no system call is not before its begin. The vDSO of Linux reads it the same way.
  std::uint64_t value;
  __asm__ volatile("isb\n\tmrs %0, cntvct_el0" : "=r"(value) : : "memory");
  return value;
#endif
}

inline std::uint64_t now_ticks() noexcept {
  if (__builtin_expect(ticks_are_counter(), 1)) return counter_ticks();
  return static_cast<std::uint64_t>(clock_ns(CLOCK_MONOTONIC));
}

// Chooses the clock. Idempotent; every process of a host makes the same choice, since it depends on the host only.
void init_clock() noexcept;
const char* clock_name() noexcept;  // "tsc", "cntvct" or "monotonic"

struct ClockReading {
  std::uint64_t ticks;
  std::int64_t monotonic_ns;
  std::int64_t realtime_ns;
  std::uint32_t bracket_ticks;  // ticks between the two tick reads around it: its uncertainty
};

// Returns the tightest of `attempts` readings.
ClockReading read_clocks(int attempts = 5) noexcept;

// The wall clock that the job reads, where a library in front of libc answers clock_gettime().
struct JobClock {
  char answered_by[64] = {};              // name of that library; empty: libc answers, and the clock is the kernel's
  std::int64_t ahead_ns = 0;              // of the kernel's; 0: not by more than the reading took
  std::int64_t ns_per_s = 1'000'000'000;  // in one second of the kernel's, likewise
};

// Calls the job's clock_gettime(), which may lock and allocate: only while our library is loaded. Where nobody stands in
// front of libc it calls nothing; else it takes 50 us to see how fast that clock runs.
void read_job_clock(JobClock& out) noexcept;

// Returns ticks per second between an earlier reading and now; waits up to 100 us if that was too recent.
std::uint64_t estimate_tick_hz(const ClockReading& earlier) noexcept;

}  // namespace stashtrace
