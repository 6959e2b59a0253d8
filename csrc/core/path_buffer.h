// A buffer for a path that is not on the stack: hooks also run on alternate signal stacks of 8 KiB. SPDX-License-Identifier: Apache-2.0
//
// Callers: hooks that put paths together or read links, any thread, signal handlers too. No lock, no allocation by the C
// library. A few buffers serve all threads, since each is held for a microsecond: one is claimed by one atomic exchange, and a
// handler that interrupts its owner takes another. If all are taken, two system calls give one of its own. A buffer whose
// owner left by longjmp stays taken.
#pragma once

#include <cstddef>

namespace stashtrace {

class PathBuffer {
 public:
  static constexpr std::size_t kBytes = 4096;  // PATH_MAX, the longest that the kernel takes

  PathBuffer() noexcept;
  ~PathBuffer();
  PathBuffer(const PathBuffer&) = delete;
  PathBuffer& operator=(const PathBuffer&) = delete;

  // Null if there is no memory: what it was for is then left out.
  char* text() noexcept { return text_; }

  // In a forked child: gives back the buffers of threads that are not there.
  static void after_fork() noexcept;

 private:
  char* text_;
  bool own_;  // not one of the few
};

}  // namespace stashtrace
