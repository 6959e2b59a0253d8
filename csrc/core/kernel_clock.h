// The kernel's clock_gettime(), which no library in front of libc can bend. SPDX-License-Identifier: Apache-2.0
//
// libfaketime and similar libraries replace clock_gettime() of libc; a recorder that calls it gets another time.
// The kernel maps the function that libc calls (the vDSO) into every process; it is looked up there by its name.
//
// Caller: clock.cpp, once per process. No lock, no allocation, no call of libc but getauxval().
#pragma once

#include <time.h>

namespace stashtrace {

using KernelClock = int (*)(clockid_t, timespec*);

// Null where the kernel maps none, or a tool hides it (valgrind): then only the system call is left.
KernelClock find_kernel_clock() noexcept;

}  // namespace stashtrace
