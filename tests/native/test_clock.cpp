// Paired readings agree with each other, and the rate they give is the counter's. SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include "check.h"
#include "core/clock.h"

using namespace stashtrace;

int main() {
#if defined(__x86_64__)
  constexpr std::string_view kCounter = "tsc";
#else
  constexpr std::string_view kCounter = "cntvct";
#endif
  CHECK_EQUAL(std::string_view(clock_name()), clock_detail::counter_trusted ? kCounter : "monotonic");
  const ClockReading first = read_clocks();
  usleep(50'000);
  const ClockReading second = read_clocks();
  CHECK(second.ticks > first.ticks);
  CHECK(second.monotonic_ns - first.monotonic_ns >= 50'000'000);
  const std::uint64_t hz = estimate_tick_hz(first);
  const double by_ticks = static_cast<double>(second.ticks - first.ticks) / static_cast<double>(hz) * 1e9;
  const double by_clock = static_cast<double>(second.monotonic_ns - first.monotonic_ns);
  CHECK(by_ticks / by_clock > 0.999 && by_ticks / by_clock < 1.001);
  CHECK(first.bracket_ticks > 0 && first.bracket_ticks < hz);
  const std::uint64_t soon = estimate_tick_hz(read_clocks());  // waits until the distance is worth something
  CHECK(static_cast<double>(soon) / static_cast<double>(hz) > 0.95 && static_cast<double>(soon) / static_cast<double>(hz) < 1.05);
  return result();
}
