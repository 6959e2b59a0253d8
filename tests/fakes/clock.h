// The time that a double lives in. SPDX-License-Identifier: Apache-2.0
//
// The end of a piece of work is its beginning plus its duration, and not the moment at which a thread happened to wake up.
#pragma once

#include <errno.h>
#include <time.h>

#include <cstdint>

namespace fake {

class Clock {
 public:
  std::int64_t now() const {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
  }

  // A worker's wait for the end of its work.
  void work_until(std::int64_t ns) const {
    if (ns <= now()) return;
    if (ns - now() < kTooShortToSleepNs) {
      while (now() < ns) {}
      return;
    }
    const timespec time = {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) == EINTR) {}
  }

 private:
  static constexpr std::int64_t kTooShortToSleepNs = 5'000;
};

}  // namespace fake
