// Choice and reading of the clocks. SPDX-License-Identifier: Apache-2.0
#include "core/clock.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <string_view>

#include "core/raw_syscall.h"

namespace stashtrace {

namespace clock_detail {
constinit bool counter_trusted = false;
}

namespace {

bool counter_is_invariant() noexcept {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & (1u << 8)) != 0;
#else
  return true;  // the architecture guarantees it for CNTVCT_EL0
#endif
}

// Linux falls back to one of these when it has seen the TSCs of two sockets drift apart.
bool kernel_gave_up_on_it() noexcept {
  char name[32];
  const int fd = raw::open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const long bytes = raw::read(fd, name, sizeof name);
  raw::close(fd);
  if (bytes <= 0) return false;
  const std::string_view source(name, static_cast<std::size_t>(bytes));
  return source.starts_with("hpet") || source.starts_with("acpi_pm") || source.find("jiffies") != source.npos;
}

}  // namespace

void init_clock() noexcept { clock_detail::counter_trusted = counter_is_invariant() && !kernel_gave_up_on_it(); }

const char* clock_name() noexcept {
#if defined(__x86_64__)
  constexpr const char* kCounter = "tsc";
#else
  constexpr const char* kCounter = "cntvct";
#endif
  return clock_detail::counter_trusted ? kCounter : "monotonic";
}

ClockReading read_clocks(int attempts) noexcept {
  ClockReading best{};
  best.bracket_ticks = ~std::uint32_t{0};
  for (int i = 0; i < attempts; ++i) {
    const std::uint64_t before = now_ticks();
    const std::int64_t first = clock_ns(CLOCK_MONOTONIC);
    const std::int64_t real = clock_ns(CLOCK_REALTIME);
    const std::int64_t second = clock_ns(CLOCK_MONOTONIC);
    const std::uint64_t after = now_ticks();
    const std::uint64_t bracket = after - before;
    if (i > 0 && bracket >= best.bracket_ticks) continue;
    best.ticks = before + bracket / 2;
    best.monotonic_ns = first + (second - first) / 2;  // both means belong to the moment of `real`
    best.realtime_ns = real;
    best.bracket_ticks = bracket < ~std::uint32_t{0} ? static_cast<std::uint32_t>(bracket) : ~std::uint32_t{0};
  }
  return best;
}

std::uint64_t estimate_tick_hz(const ClockReading& earlier) noexcept {
  if (!clock_detail::counter_trusted) return 1'000'000'000;
#if defined(__aarch64__)
  std::uint64_t hz;
  __asm__ volatile("mrs %0, cntfrq_el0" : "=r"(hz));
  if (hz != 0) return hz;
#endif
  constexpr std::int64_t kShortest = 100'000;
  ClockReading now = read_clocks();
  while (now.monotonic_ns - earlier.monotonic_ns < kShortest) now = read_clocks();
  const auto ns = static_cast<unsigned __int128>(now.monotonic_ns - earlier.monotonic_ns);
  return static_cast<std::uint64_t>(static_cast<unsigned __int128>(now.ticks - earlier.ticks) * 1'000'000'000 / ns);
}

}  // namespace stashtrace
