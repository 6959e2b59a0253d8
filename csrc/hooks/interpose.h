// real::fn: the function behind ours, for every hooked function.
// SPDX-License-Identifier: Apache-2.0
//
// Callers: hooks of the collectors only. Each real::fn starts at a stub that finds the next
// definition (dlsym RTLD_NEXT) when first called, so a hook works before any constructor ran, in a
// library's own start-up code too. resolve_all() is called once by a traced process, since dlsym takes locks
// and the first call might be inside a signal handler.
// A function that this libc does not have becomes one that fails with ENOSYS.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>

#include "hooks/behind.h"

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "hooks know the calling conventions of x86-64 and aarch64: variadic functions take arguments as others do"
#endif
static_assert(sizeof(off_t) == 8 && sizeof(struct stat) == sizeof(struct stat64),
              "one declaration stands for the plain and the 64-bit variant of a function");

namespace stashtrace::real {

// Without this each call would look the pointer up in the global offset table: -fvisibility=hidden does not cover
// declarations.
#pragma GCC visibility push(hidden)
#define REAL(Result, name, system_call, ...) extern Behind<Result(__VA_ARGS__)> name;
#include "hooks/real_functions.def"
#undef REAL
#pragma GCC visibility pop

// True if the library is in front of libc. False if only stashtrace._native loaded it, in a process whose LD_PRELOAD
// was removed.
bool in_front() noexcept;

// Finds every function now. Idempotent; never fails.
void resolve_all() noexcept;

}  // namespace stashtrace::real

// Defines an exported function under its C name without meeting the header's own declaration of it, whose
// attributes (noexcept, nonnull, redirects) would let the compiler drop what a transparent wrapper needs.
// Not noexcept: a cancelled thread unwinds through us.
#define STASHTRACE_HOOK(Result, name, ...)                                                          \
  extern "C" __attribute__((visibility("default"))) Result hook_##name(__VA_ARGS__) __asm__(#name); \
  extern "C" Result hook_##name(__VA_ARGS__)
