// What is kept of a row of readings: totals that do not wrap, and no row that repeats the one before.
// SPDX-License-Identifier: Apache-2.0
//
// Callers: device_sampler, rdma sampling in nvml.cpp. Pure arithmetic, one thread at a time.
#pragma once

#include <cstdint>

namespace stashtrace::nvml {

struct Reading {
  std::uint64_t ticks;
  double value;
};

// A counter of `bits` width -> a total that never falls, starting at its first value. A 64-bit counter that falls was
// reset (driver reloaded): the total stands still for this step and `falls` counts it.
class Unwrap {
 public:
  std::uint64_t next(std::uint64_t raw, unsigned bits) noexcept {
    if (!known_) {
      known_ = true;
      total_ = raw;
    } else if (bits < 64) {
      const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
      total_ += (raw - last_) & mask;
    } else if (raw >= last_) {
      total_ += raw - last_;
    } else {
      ++falls_;
    }
    last_ = raw;
    return total_;
  }
  std::uint32_t falls() const noexcept { return falls_; }

 private:
  std::uint64_t last_ = 0;
  std::uint64_t total_ = 0;
  std::uint32_t falls_ = 0;
  bool known_ = false;
};

// Leaves out readings that repeat the value before, except one every `longest_ticks`, and keeps the last of them
// before a change: interpolation between the kept readings restores the others.
class Series {
 public:
  // Returns how many of `keep` to write, in this order.
  int next(Reading now, std::uint64_t longest_ticks, Reading (&keep)[2]) noexcept {
    if (known_ && now.ticks <= last_.ticks) return 0;  // not refreshed since
    int count = 0;
    if (known_ && now.value == last_.value && now.ticks - written_ticks_ < longest_ticks) {
      skipped_ = true;
    } else {
      if (skipped_ && now.value != last_.value) keep[count++] = last_;
      keep[count++] = now;
      written_ticks_ = now.ticks;
      skipped_ = false;
    }
    known_ = true;
    last_ = now;
    return count;
  }

 private:
  Reading last_{};
  std::uint64_t written_ticks_ = 0;
  bool known_ = false;
  bool skipped_ = false;
};

}  // namespace stashtrace::nvml
