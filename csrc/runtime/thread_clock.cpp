// Implementation of thread_clock.h. SPDX-License-Identifier: Apache-2.0
#include "runtime/thread_clock.h"

#include "core/clock.h"
#include "core/pinned_file.h"
#include "core/raw_syscall.h"
#include "runtime/runtime.h"

namespace stashtrace {

namespace {

constexpr char kPath[] = "/proc/thread-self/schedstat";

struct ThreadClock {
  int fd;  // high number, valid if generation is the process's
  std::uint32_t
      generation;  // 0: none yet; in a forked child the parent's, and the file then describes the parent's thread
  dev_t device;
  ino_t inode;
  // The last reading of the run queue, and when it was made.
  std::uint64_t read_ticks;
  std::int64_t read_cpu_ns, value_ns;
  // The last reading of the CPU clock, and the largest value given since.
  std::uint64_t cpu_ticks;
  std::int64_t cpu_ns, reported_cpu_ns;
  double ns_per_tick;
};
constinit thread_local ThreadClock thread_clock{};

// A thread cannot have been runnable without running for longer than it was off the CPU. While that is next to
// nothing since the last reading, the last reading still holds, which saves the system calls of another one.
constexpr double kLongestOffCpuNs = 5'000;
// Beyond this the error of the tick rate would matter.
constexpr double kOldestReadingNs = 5'000'000;

// The CPU clock costs a system call, and the ends of a phase and the begins of the next lie next to each other. Within
// this time after a reading the thread is assumed to have run all the time.
constexpr double kTakenToRunNs = 20'000;

bool still_holds(const ThreadClock& clock, std::uint64_t ticks, std::int64_t cpu_ns) noexcept {
  const double passed_ns = static_cast<double>(ticks - clock.read_ticks) * clock.ns_per_tick;
  return clock.value_ns >= 0 && passed_ns < kOldestReadingNs &&
         passed_ns - static_cast<double>(cpu_ns - clock.read_cpu_ns) < kLongestOffCpuNs;
}

bool is_ours(const ThreadClock& clock) noexcept {
  struct stat info;
  return raw::fstat(clock.fd, &info) == 0 && info.st_dev == clock.device && info.st_ino == clock.inode;
}

std::int64_t read_runqueue(int fd) noexcept {
  char text[96];
  const long bytes = raw::pread(fd, text, sizeof text, 0);  // "run_ns wait_ns slices"
  long at = 0;
  while (at < bytes && text[at] != ' ') ++at;
  if (++at >= bytes) return -1;
  std::int64_t value = 0;
  for (; at < bytes && text[at] >= '0' && text[at] <= '9'; ++at) value = value * 10 + (text[at] - '0');
  return value;
}

// Cumulative ns of the run queue, -1 if the kernel does not report it. Read again only after the thread was off the CPU.
std::int64_t runqueue_ns(std::uint64_t ticks, std::int64_t cpu_ns) noexcept {
  ThreadClock& clock = thread_clock;
  const std::uint32_t generation = runtime().generation();
  if (clock.generation != 0 && clock.generation == generation && still_holds(clock, ticks, cpu_ns))
    return clock.value_ns;
  if (clock.generation != 0 && is_ours(clock)) {
    if (clock.generation == generation) {
      clock.read_ticks = ticks;
      clock.read_cpu_ns = cpu_ns;
      return clock.value_ns = read_runqueue(clock.fd);
    }
    raw::close(clock.fd);
  }
  clock = {};
  const int fd = raw::open(kPath, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  const std::int64_t value = read_runqueue(fd);
  struct stat info;
  if (raw::fstat(fd, &info) == 0 && watch_thread_end()) {
    const int high = move_high(fd);
    if (high < 0) return value;  // opened again each time
    clock = {.fd = high,
             .generation = generation,
             .device = info.st_dev,
             .inode = info.st_ino,
             .read_ticks = ticks,
             .read_cpu_ns = cpu_ns,
             .value_ns = value,
             .cpu_ticks = 0,
             .cpu_ns = 0,
             .reported_cpu_ns = 0,
             .ns_per_tick = 1e9 / static_cast<double>(runtime().tick_hz())};
  } else {
    raw::close(fd);  // it would not be closed when the thread ends
  }
  return value;
}

}  // namespace

ThreadTimes thread_times(std::uint64_t ticks) noexcept {
  ThreadClock& clock = thread_clock;
  const bool known = clock.generation != 0 && clock.generation == runtime().generation();
  if (known) {
    const double passed_ns = static_cast<double>(ticks - clock.cpu_ticks) * clock.ns_per_tick;
    if (passed_ns < kTakenToRunNs) {
      const std::int64_t cpu_ns = clock.cpu_ns + static_cast<std::int64_t>(passed_ns);
      if (cpu_ns > clock.reported_cpu_ns) clock.reported_cpu_ns = cpu_ns;
      return {clock.reported_cpu_ns, clock.value_ns};
    }
  }
  const std::int64_t cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
  const std::int64_t waited_ns = runqueue_ns(ticks, cpu_ns);
  if (clock.generation == 0) return {cpu_ns, waited_ns};
  clock.cpu_ticks = ticks;
  clock.cpu_ns = cpu_ns;
  // The thread may have been off the CPU where it was assumed to run; returned values never go back.
  if (!known || cpu_ns > clock.reported_cpu_ns) clock.reported_cpu_ns = cpu_ns;
  return {clock.reported_cpu_ns, waited_ns};
}

void close_thread_clock() noexcept {
  if (thread_clock.generation == runtime().generation() && is_ours(thread_clock)) raw::close(thread_clock.fd);
  thread_clock = {};
}

}  // namespace stashtrace
