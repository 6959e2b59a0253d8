// How long the calling thread was runnable but not running, by its schedstat. SPDX-License-Identifier: Apache-2.0
//
// Caller: stashtrace_stamp(), a few times per training step. Opening the file in /proc costs 7-10 us, reading an open
// one 1-2 us, so each thread that asks keeps its own open, checked by inode before each use, and reads it again only
// after it was off the CPU: the answer is at most 10 us behind.
#pragma once

#include <cstdint>

namespace stashtrace {

// Cumulative ns, -1 if the kernel does not tell. `ticks` and `cpu_ns` are the thread's clocks, read just now.
std::int64_t thread_runqueue_ns(std::uint64_t ticks, std::int64_t cpu_ns) noexcept;

void close_thread_clock() noexcept;  // the calling thread ends

}  // namespace stashtrace
