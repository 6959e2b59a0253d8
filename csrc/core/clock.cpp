// Choice and reading of the clocks. SPDX-License-Identifier: Apache-2.0
#include "core/clock.h"

#include <link.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstring>
#include <string_view>

#include "core/raw_syscall.h"

namespace stashtrace {

namespace clock_detail {
constinit bool counter_trusted = false;
constinit KernelClock kernel_clock = nullptr;
}  // namespace clock_detail

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

void init_clock() noexcept {
  clock_detail::kernel_clock = find_kernel_clock();
  clock_detail::counter_trusted = counter_is_invariant() && !kernel_gave_up_on_it();
}

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

namespace {

// Which loaded object holds an address.
struct Holder {
  std::uintptr_t address;
  const char* name;
  std::uintptr_t base;
};

int look_for_holder(dl_phdr_info* object, std::size_t, void* asked) noexcept {
  auto& holder = *static_cast<Holder*>(asked);
  for (unsigned i = 0; i < object->dlpi_phnum; ++i) {
    const std::uintptr_t begin = object->dlpi_addr + object->dlpi_phdr[i].p_vaddr;
    if (object->dlpi_phdr[i].p_type != PT_LOAD || holder.address < begin) continue;
    if (holder.address - begin >= object->dlpi_phdr[i].p_memsz) continue;
    holder.name = object->dlpi_name;
    holder.base = object->dlpi_addr;
    return 1;
  }
  return 0;
}

template <class Function>
Holder holder_of(Function* function) noexcept {
  Holder holder{reinterpret_cast<std::uintptr_t>(function), nullptr, 0};
  dl_iterate_phdr(&look_for_holder, &holder);
  return holder;
}

// The job's clock between two readings of the kernel's: the tightest of several.
struct JobReading {
  std::int64_t kernel_ns = 0, job_ns = 0, width_ns = -1;
};

JobReading read_both() noexcept {
  constexpr int kAttempts = 5;
  JobReading best;
  for (int i = 0; i < kAttempts; ++i) {
    timespec now{};
    const std::int64_t before = clock_ns(CLOCK_REALTIME);
    ::clock_gettime(CLOCK_REALTIME, &now);
    const std::int64_t width = clock_ns(CLOCK_REALTIME) - before;
    if (width < 0 || (best.width_ns >= 0 && width >= best.width_ns)) continue;
    best = {before + width / 2, static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec, width};
  }
  return best;
}

}  // namespace

void read_job_clock(JobClock& out) noexcept {
  constexpr std::int64_t kDistanceNs = 50'000;
  constexpr int kMostReadings = 100'000;  // as in estimate_tick_hz()
  const Holder answers = holder_of(&::clock_gettime);
  if (answers.name == nullptr || answers.base == holder_of(&::dl_iterate_phdr).base) return;
  const JobReading first = read_both();
  for (int i = 0; i < kMostReadings && clock_ns(CLOCK_REALTIME) - first.kernel_ns < kDistanceNs; ++i) continue;
  const JobReading second = read_both();
  const std::int64_t distance = second.kernel_ns - first.kernel_ns;
  if (first.width_ns < 0 || second.width_ns < 0 || distance <= 0) return;
  const char* const slash = std::strrchr(answers.name, '/');
  std::strncpy(out.answered_by, slash != nullptr ? slash + 1 : answers.name, sizeof out.answered_by - 1);
  const std::int64_t ahead = first.job_ns - first.kernel_ns;
  if (ahead > first.width_ns || ahead < -first.width_ns) out.ahead_ns = ahead;
  const std::int64_t gained = second.job_ns - first.job_ns - distance;
  if (gained > first.width_ns + second.width_ns || gained < -first.width_ns - second.width_ns)
    out.ns_per_s = static_cast<std::int64_t>(static_cast<__int128>(distance + gained) * 1'000'000'000 / distance);
}

std::uint64_t estimate_tick_hz(const ClockReading& earlier) noexcept {
  if (!clock_detail::counter_trusted) return 1'000'000'000;
#if defined(__aarch64__)
  std::uint64_t hz;
  __asm__ volatile("mrs %0, cntfrq_el0" : "=r"(hz));
  if (hz != 0) return hz;
#endif
  constexpr std::int64_t kShortest = 100'000;
  // A reading takes 300 ns or more, so the distance is reached long before this many. A clock that has not moved by
  // then stands still; any rate is as good as another then, and none is worth the job's time.
  constexpr int kMostReadings = 100'000;
  ClockReading now = read_clocks();
  for (int i = 0; i < kMostReadings && now.monotonic_ns - earlier.monotonic_ns < kShortest; ++i) now = read_clocks();
  if (now.monotonic_ns <= earlier.monotonic_ns) return 1'000'000'000;
  const auto ns = static_cast<unsigned __int128>(now.monotonic_ns - earlier.monotonic_ns);
  return static_cast<std::uint64_t>(static_cast<unsigned __int128>(now.ticks - earlier.ticks) * 1'000'000'000 / ns);
}

}  // namespace stashtrace
