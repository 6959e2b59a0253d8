// How long the calling thread ran, and was runnable but not running, by its schedstat. SPDX-License-Identifier: Apache-2.0
//
// Caller: stashtrace_stamp(), a few times per training step. Opening the file in /proc costs 7-10 us, reading an open
// one 1-2 us, so each thread that asks keeps its file open, checked by inode before each use, and reads it again only
// after it was off the CPU.
#pragma once

#include <cstdint>

namespace stashtrace {

// Cumulative. CPU time is at most 20 us ahead (the thread is assumed to run that long after a reading), never goes
// back; run-queue time is at most 10 us behind, -1 if the kernel does not report it.
struct ThreadTimes {
  std::int64_t cpu_ns, runqueue_ns;
};
ThreadTimes thread_times(std::uint64_t ticks) noexcept;  // ticks: read just now

void close_thread_clock() noexcept;  // the calling thread ends

}  // namespace stashtrace
