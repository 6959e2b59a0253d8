// The self-resolving stubs behind real::fn. SPDX-License-Identifier: Apache-2.0
#include "hooks/interpose.h"

#include <dlfcn.h>

#include <cerrno>
#include <concepts>
#include <type_traits>

#include "core/raw_syscall.h"

namespace stashtrace::real {
namespace {

// Set while dlsym runs on this thread: functions that it calls must not call dlsym again.
constinit thread_local bool resolving = false;

struct Version {
  const char* name;
  const char* version;
};
// Functions of which libc has an incompatible older version on x86-64. dlsym alone gave that one in glibc before 2.36.
#if defined(__x86_64__)
constexpr const char* kConditions = "GLIBC_2.3.2";
#else
constexpr const char* kConditions = "GLIBC_2.17";
#endif
constexpr Version kVersions[] = {
    {"pthread_cond_broadcast", kConditions},
    {"pthread_cond_wait", kConditions},
    {"pthread_cond_timedwait", kConditions},
};

constexpr bool same_text(const char* a, const char* b) {
  while (*a != '\0' && *a == *b) ++a, ++b;
  return *a == *b;
}

// RTLD_NEXT looks at the return address, so dlsym must never become a tail call of another library's frame:
// the result passes through a register that the compiler cannot see behind.
__attribute__((noinline)) void* find_next(const char* name) {
  const int saved = errno;
  resolving = true;
  void* found = nullptr;
  for (const Version& wanted : kVersions)
    if (same_text(wanted.name, name)) found = dlvsym(RTLD_NEXT, name, wanted.version);
  if (found == nullptr) found = dlsym(RTLD_NEXT, name);
  asm volatile("" : "+r"(found));
  resolving = false;
  errno = saved;
  return found;
}

template <class R>
R failed(int error) {
  errno = error;
  if constexpr (std::is_pointer_v<R>) return nullptr;
  else if constexpr (!std::is_void_v<R>) return static_cast<R>(-1);
}

template <class R, class... A>
R missing(A...) {
  return failed<R>(ENOSYS);
}

// Functions that libc makes of other system calls where the architecture is younger than these calls.
namespace by_number {
using raw::address;
long open(const char* path, int flags, mode_t mode) {
  return raw::call(SYS_openat, AT_FDCWD, address(path), flags, static_cast<long>(mode));
}
long open_2(const char* path, int flags) { return open(path, flags, 0); }
long creat(const char* path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
long dup2(int from, int to) {
  if (from != to) return raw::call(SYS_dup3, from, to, 0);
  const long known = raw::call(SYS_fcntl, from, F_GETFD);
  return known < 0 ? known : to;
}
long pipe(int* ends) { return raw::call(SYS_pipe2, address(ends), 0); }
long stat(const char* path, struct ::stat* out) {
  return raw::call(SYS_newfstatat, AT_FDCWD, address(path), address(out), 0);
}
long lstat(const char* path, struct ::stat* out) {
  return raw::call(SYS_newfstatat, AT_FDCWD, address(path), address(out), AT_SYMLINK_NOFOLLOW);
}
long unlink(const char* path) { return raw::call(SYS_unlinkat, AT_FDCWD, address(path), 0); }
long rmdir(const char* path) { return raw::call(SYS_unlinkat, AT_FDCWD, address(path), AT_REMOVEDIR); }
long rename(const char* from, const char* to) {
  return raw::call(SYS_renameat, AT_FDCWD, address(from), AT_FDCWD, address(to));
}
long mkdir(const char* path, mode_t mode) {
  return raw::call(SYS_mkdirat, AT_FDCWD, address(path), static_cast<long>(mode));
}
long poll(pollfd* descriptors, nfds_t count, int timeout_ms) {
  timespec limit{timeout_ms / 1'000, timeout_ms % 1'000 * 1'000'000L};
  return raw::call(SYS_ppoll, address(descriptors), static_cast<long>(count), timeout_ms < 0 ? 0 : address(&limit));
}
long select(int count, fd_set* reading, fd_set* writing, fd_set* failing, timeval* timeout) {
  timespec left{};
  if (timeout != nullptr) left = {timeout->tv_sec, timeout->tv_usec * 1'000};
  const long result = raw::call(SYS_pselect6, count, address(reading), address(writing), address(failing),
                                timeout != nullptr ? address(&left) : 0);
  if (timeout != nullptr) *timeout = {left.tv_sec, left.tv_nsec / 1'000};
  return result;
}
long epoll_wait(int fd, epoll_event* events, int room, int timeout_ms) {
  return raw::call(SYS_epoll_pwait, fd, address(events), room, timeout_ms, 0, sizeof(raw::SignalMask));
}
}  // namespace by_number

template <class R, auto system_call, class... A>
R by_system_call(A... arguments) {
  long result;
  if constexpr (std::integral<decltype(system_call)>) result = raw::call(system_call, (long)arguments...);
  else result = system_call(arguments...);
  if (result < 0 && result >= -4095) {
    errno = static_cast<int>(-result);
    return (R)(-1L);
  }
  return (R)result;
}

using None = std::integral_constant<int, -1>;

// What real::fn points to at first. Slot is real::fn itself, name(...) says how to find its target.
template <auto& Slot, class Name, auto system_call, class R, class... A>
struct Stub {
  static void resolve() {
    void* found = find_next(Name::text);
    Slot.set(found != nullptr ? reinterpret_cast<R (*)(A...)>(found) : &missing<R, A...>);
  }
  static R call(A... arguments) {
    if (resolving) {
      if constexpr (std::is_same_v<std::integral_constant<decltype(system_call), system_call>, None>)
        return missing<R, A...>(arguments...);
      else return by_system_call<R, system_call, A...>(arguments...);
    }
    resolve();
    return Slot(arguments...);
  }
};

}  // namespace

#define REAL(Result, name, system_call, ...)                                        \
  namespace {                                                                       \
  struct Name_##name {                                                              \
    static constexpr const char* text = #name;                                      \
  };                                                                                \
  template <class F>                                                                \
  struct StubOf_##name;                                                             \
  template <class R, class... A>                                                    \
  struct StubOf_##name<R(A...)> : Stub<name, Name_##name, system_call, R, A...> {}; \
  using Of_##name = StubOf_##name<Result(__VA_ARGS__)>;                             \
  }                                                                                 \
  constinit decltype(name) name{&Of_##name::call};
#include "hooks/real_functions.def"
#undef REAL

// All objects search preloaded libraries; a library that an extension depends on is searched by that extension only.
// RTLD_DEFAULT would not do: it searches the caller's own scope as well.
bool in_front() noexcept {
  void* everybody = dlopen(nullptr, RTLD_LAZY);
  const bool found = everybody != nullptr && dlsym(everybody, "stashtrace_version") != nullptr;
  if (everybody != nullptr) dlclose(everybody);
  return found;
}

void resolve_all() noexcept {
#define REAL(Result, name, system_call, ...) \
  if (name.get() == &Of_##name::call) Of_##name::resolve();
#include "hooks/real_functions.def"
#undef REAL
}

}  // namespace stashtrace::real
