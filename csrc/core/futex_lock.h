// A lock for slow paths of guest code. SPDX-License-Identifier: Apache-2.0
//
// Calls nothing of glibc, so it passes no hook of ours or of others; may be reset in a forked child. Hold it only with
// signals blocked (raw::SignalsBlocked), else a signal handler on the same thread waits for its own thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/clock.h"
#include "core/raw_syscall.h"

namespace stashtrace {

class FutexLock {
 public:
  bool try_lock() noexcept {
    std::uint32_t free = 0;
    return word_.compare_exchange_strong(free, 1, std::memory_order_acquire, std::memory_order_relaxed);
  }
  void lock() noexcept {
    if (try_lock()) return;
    while (word_.exchange(2, std::memory_order_acquire) != 0) raw::futex_wait(&word_, 2, -1);
  }
  // Gives up after `limit_ns`. Used at exit, and where losing a row is better than blocking the thread.
  bool lock_within(std::int64_t limit_ns) noexcept {
    if (try_lock()) return true;
    if (limit_ns <= 0) return false;
    const std::int64_t until = clock_ns(CLOCK_MONOTONIC) + limit_ns;
    // Try once more after the last wait: it may have consumed the only wake-up of the unlock.
    while (word_.exchange(2, std::memory_order_acquire) != 0) {
      const std::int64_t left = until - clock_ns(CLOCK_MONOTONIC);
      if (left <= 0) return false;
      raw::futex_wait(&word_, 2, left);
    }
    return true;
  }
  void unlock() noexcept {
    if (word_.exchange(0, std::memory_order_release) == 2) raw::futex_wake(&word_, 1);
  }
  void reset() noexcept { word_.store(0, std::memory_order_relaxed); }

 private:
  std::atomic<std::uint32_t> word_{0};
};

}  // namespace stashtrace
