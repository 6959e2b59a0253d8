// Whether the thread was put to sleep inside a call. SPDX-License-Identifier: Apache-2.0
//
// A long call is not evidence: it may have copied much, or been preempted. The kernel's counts of the thread
// (getrusage RUSAGE_THREAD: voluntary switches, involuntary switches, block inputs) are, if they are compared with a
// baseline from just before. One reading costs about 460 ns, so it is not taken around every call:
//
//   before a call  when the baseline is older than 1 ms, when the last calls were slow, or when the call may copy
//                  64 KiB or more (its length alone will explain nothing)
//   after a call   only when it took longer than 20 us; this reading is also the next baseline
//
// Callers: the inline hooks of traced.h, on the thread itself. Signal handlers may interrupt; at worst a baseline is
// a little newer than it claims.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace stashtrace::posix_io {

inline constexpr std::size_t kLargeBytes = 64 * 1024;

struct Evidence {
  std::uint64_t due_ticks = 0;  // the next call that begins after this takes a baseline; 0: each one does
  std::uint64_t baseline_ticks = 0;
  std::int64_t voluntary_count = 0;
  std::int64_t involuntary_count = 0;
  std::int64_t block_input_count = 0;
  int armed_calls = 0;  // calls left that take a baseline because one was slow recently
};

[[gnu::visibility("hidden")]] extern constinit thread_local Evidence evidence;

// What every traced call reads of the collector, in one cache line.
struct alignas(64) Hot {
  std::atomic<bool> enabled{false};
  std::uint64_t slow_ticks = 50'000;  // longer calls are examined; set once at the start
};
[[gnu::visibility("hidden")]] extern constinit Hot hot;

// Until a rate is given, 20 us and 1 ms are those of a counter at 2.5 GHz.
void set_tick_rate(std::uint64_t ticks_per_s) noexcept;
// Called once, by the first call that takes a baseline; asks the runtime for the rate.
void learn_tick_rate() noexcept;

// Takes a baseline and returns the ticks after it, at which the call now begins.
std::uint64_t take_baseline() noexcept;

// IoFlag bits of a slow call: sampled, and blocked and block_input where the counts say so.
std::uint16_t flags_of_slow_call(std::uint64_t begin_ticks, std::int64_t result) noexcept;

}  // namespace stashtrace::posix_io
