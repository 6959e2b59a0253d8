// How long a producer whose ring is full waits for the drain. SPDX-License-Identifier: Apache-2.0
//
// It waits because a busy machine may give the drainer no processor for tens of ms; rows need not be lost to that.
// It waits for 50 ms at most, since the job's thread is blocked meanwhile; a training step that is late by that much
// can be noticed but does no harm. After a wait without effect (the disk of the run directory hangs) the next one is
// allowed after a second, then after two, four, ... up to a minute: waits of ranks at different moments add up, as each
// keeps all others waiting in their collectives. So a hang of eight seconds costs a thread 0.2 s, one of an hour 3.3 s.
// Rings that are full meanwhile drop rows and count them; when the disk is back no thread has to wait.
//
// This does not bound a thread that drains its own ring (in a process without a thread of ours): it is blocked for as
// long as its own write takes. docs/concepts/overhead.md has measurements of both.
//
// Caller: Runtime::make_room(), on any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace stashtrace {

class FullWait {
 public:
  static constexpr std::int64_t kLongestNs = 50'000'000;
  static constexpr std::int64_t kFirstPauseNs = 1'000'000'000;
  static constexpr std::int64_t kLongestPauseNs = 60'000'000'000;

  std::int64_t allowed_ns(std::int64_t now_ns) const noexcept {
    return now_ns < until_ns_.load(std::memory_order_relaxed) ? 0 : kLongestNs;
  }
  // Call after an allowed wait without effect. Threads that waited at the same time count as one.
  void was_in_vain(std::int64_t now_ns) noexcept {
    std::int64_t until_ns = until_ns_.load(std::memory_order_relaxed);
    if (now_ns < until_ns) return;
    const std::int64_t pause_ns = pause_ns_.load(std::memory_order_relaxed);
    if (!until_ns_.compare_exchange_strong(until_ns, now_ns + pause_ns, std::memory_order_relaxed)) return;
    pause_ns_.store(pause_ns * 2 < kLongestPauseNs ? pause_ns * 2 : kLongestPauseNs, std::memory_order_relaxed);
  }
  void was_worth_it() noexcept { pause_ns_.store(kFirstPauseNs, std::memory_order_relaxed); }
  void reset() noexcept {  // in a forked child
    until_ns_.store(0, std::memory_order_relaxed);
    was_worth_it();
  }

 private:
  std::atomic<std::int64_t> until_ns_{0};
  std::atomic<std::int64_t> pause_ns_{kFirstPauseNs};
};

}  // namespace stashtrace
