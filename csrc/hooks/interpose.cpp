// The self-resolving stubs behind real::fn. SPDX-License-Identifier: Apache-2.0
#include "hooks/interpose.h"

#include <dlfcn.h>

#include <cerrno>
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
// Functions of which libc has an incompatible older version. dlsym alone gave that one in glibc before 2.36.
constexpr Version kVersions[] = {
    {"pthread_cond_wait", "GLIBC_2.3.2"},
    {"pthread_cond_timedwait", "GLIBC_2.3.2"},
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

template <class R, long number, class... A>
R by_system_call(A... arguments) {
  const long result = raw::call(number, (long)arguments...);
  if (result < 0 && result >= -4095) {
    errno = static_cast<int>(-result);
    return (R)(-1L);
  }
  return (R)result;
}

// What real::fn points to at first. Slot is real::fn itself, name(...) says how to find its target.
template <auto& Slot, class Name, long number, class R, class... A>
struct Stub {
  static void resolve() {
    void* found = find_next(Name::text);
    Slot.set(found != nullptr ? reinterpret_cast<R (*)(A...)>(found) : &missing<R, A...>);
  }
  static R call(A... arguments) {
    if (resolving) {
      if constexpr (number >= 0) return by_system_call<R, number, A...>(arguments...);
      else return missing<R, A...>(arguments...);
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
