// Readings of cuptiGetTimestamp, each with our ticks. SPDX-License-Identifier: Apache-2.0
//
// CUPTI has one clock for all devices of a process, so one reading serves all; its rows are written per device as soon
// as that device has a row in `kernel`. Also maps CUPTI's times of host calls to ticks. Used under the parser's lock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/emit.h"

namespace stashtrace::cupti {

struct Reading {
  std::uint64_t before_ticks, after_ticks;
  std::int64_t device_ns;
};

class Readings {
 public:
  static constexpr std::int32_t kMostDevices = 64;

  void set_tick_hz(std::uint64_t hz) noexcept { hz_ = hz; }

  void begin_again() noexcept { count_ = 0; }

  void add(const Reading& reading) noexcept {
    if (count_ == kMost) {  // every other one: the span stays, the grid gets coarser
      for (std::size_t i = 0; i < kMost / 2; ++i) kept_[i] = kept_[2 * i];
      count_ = kMost / 2;
    }
    kept_[count_++] = reading;
    for (std::int32_t device = 0; device < kMostDevices; ++device)
      if (known_ >> device & 1) write(reading, device);
  }

  // A device has its first row: earlier readings belong to it as well.
  void see(std::int32_t device) noexcept {
    if (device < 0 || device >= kMostDevices || (known_ >> device & 1) != 0) return;
    known_ |= std::uint64_t{1} << device;
    for (std::size_t i = 0; i < count_; ++i) write(kept_[i], device);
  }

  // 0 if nothing was read. Uses the nearest reading: both clocks run at one rate to some parts per million.
  std::uint64_t to_ticks(std::int64_t device_ns) const noexcept {
    if (count_ == 0 || hz_ == 0) return 0;
    std::size_t at = count_ - 1;
    while (at > 0 && kept_[at].device_ns > device_ns) --at;
    if (at + 1 < count_ && kept_[at + 1].device_ns - device_ns < device_ns - kept_[at].device_ns) ++at;
    const Reading& near = kept_[at];
    const std::uint64_t middle = near.before_ticks + (near.after_ticks - near.before_ticks) / 2;
    const auto distance =
        static_cast<__int128>(device_ns - near.device_ns) * static_cast<std::int64_t>(hz_) / 1'000'000'000;
    return middle + static_cast<std::uint64_t>(static_cast<std::int64_t>(distance));
  }

 private:
  static constexpr std::size_t kMost = 256;

  static void write(const Reading& reading, std::int32_t device) noexcept {
    emit(schema::DeviceClockReading{reading.before_ticks, reading.after_ticks, reading.device_ns, device,
                                    schema::codes::DeviceClock::cupti, 0});
  }

  Reading kept_[kMost] = {};
  std::size_t count_ = 0;
  std::uint64_t hz_ = 0;
  std::uint64_t known_ = 0;  // bit = device that has rows
};

}  // namespace stashtrace::cupti
