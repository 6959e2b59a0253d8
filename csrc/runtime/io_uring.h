// Notes that the process uses io_uring, whose reads and writes no hook sees. SPDX-License-Identifier: Apache-2.0
//
// Callers: the hook of syscall() (hooks/hooks_uring.cpp) and the sampler of /proc, which finds rings that liburing makes
// by system calls of its own. Any thread; the first call of a process records the fact.
#pragma once

namespace stashtrace {

void note_io_uring() noexcept;

}  // namespace stashtrace
