// The time that a double lives in. SPDX-License-Identifier: Apache-2.0
//
// FAKE_CLOCK=real (default): CLOCK_MONOTONIC, and work takes as long as it says. FAKE_CLOCK=virtual: a counter of the
// process that moves only when somebody waits, so that a program of hours ends at once and its times are exact; only
// for programs that do not measure time themselves. Both are computed: the end of a piece of work is its beginning
// plus its duration, and not the moment at which a thread happened to wake up.
#pragma once

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <cstring>

namespace fake {

class Clock {
 public:
  bool is_virtual() const { return virtual_; }

  std::int64_t now() const {
    if (virtual_) return virtual_ns_.load();
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
  }

  // A worker's wait for the end of its work. Virtual work is over as soon as it is begun.
  void work_until(std::int64_t ns) const {
    if (virtual_ || ns <= now()) return;
    if (ns - now() < kTooShortToSleepNs) {
      while (now() < ns) {}
      return;
    }
    const timespec time = {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) == EINTR) {}
  }

  // The host has waited for something that happened at `ns`, or polled for it.
  void host_reached(std::int64_t ns) {
    if (!virtual_) return;
    std::int64_t seen = virtual_ns_.load();
    while (seen < ns && !virtual_ns_.compare_exchange_weak(seen, ns)) {}
  }

 private:
  static constexpr std::int64_t kTooShortToSleepNs = 5'000;
  const bool virtual_ = getenv("FAKE_CLOCK") != nullptr && strcmp(getenv("FAKE_CLOCK"), "virtual") == 0;
  std::atomic<std::int64_t> virtual_ns_{1'000'000'000};
};

}  // namespace fake
