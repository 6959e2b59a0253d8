// syscall(SYS_io_uring_setup, ...): what such a ring reads and writes is not seen. SPDX-License-Identifier: Apache-2.0
//
// From the assembler of collectors/waits. liburing asks the kernel by inlined system calls where it can; the sampler of
// /proc finds those rings among the descriptors.
#include <cerrno>

#include "hooks/interpose.h"
#include "hooks/sandbox.h"
#include "runtime/io_uring.h"

extern "C" __attribute__((visibility("hidden"), used)) long stashtrace_uring_hook(long number, long a, long b, long c,
                                                                                  long d, long e, long f) {
  const void* const code = __builtin_return_address(0);  // the assembler jumps here: of who called syscall()
  const long result = stashtrace::real::syscall(number, a, b, c, d, e, f);
  if (result < 0 || stashtrace::sandboxed()) return result;
  const int saved_errno = errno;
  stashtrace::note_ring(static_cast<int>(result), code);
  errno = saved_errno;
  return result;
}
