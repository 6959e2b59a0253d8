// Hooks of blocking calls. SPDX-License-Identifier: Apache-2.0
#include <cerrno>

#include "collectors/waits/hooked_wait.h"
#include "hooks/interpose.h"

using namespace stashtrace::waits;
namespace real = stashtrace::real;

STASHTRACE_HOOK(int, pthread_cond_wait, pthread_cond_t* condition, pthread_mutex_t* mutex) {
  return waiting_on(condition, __builtin_return_address(0), [=] { return real::pthread_cond_wait(condition, mutex); });
}
STASHTRACE_HOOK(int, pthread_cond_timedwait, pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* until) {
  return waiting_on(condition, __builtin_return_address(0),
                    [=] { return real::pthread_cond_timedwait(condition, mutex, until); });
}
STASHTRACE_HOOK(int, pthread_cond_clockwait, pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                const timespec* until) {
  return waiting_on(condition, __builtin_return_address(0),
                    [=] { return real::pthread_cond_clockwait(condition, mutex, clock, until); });
}

namespace {

// A free mutex costs one trylock and no clock. Every result but EBUSY is pthread_mutex_lock's own (EOWNERDEAD of a
// robust mutex means: locked); EBUSY goes on to the real call, which also finds EDEADLK.
[[gnu::noinline, gnu::cold]] int watched_lock(pthread_mutex_t* mutex, const void* caller) {
  const int tried = pthread_mutex_trylock(mutex);
  if (tried != EBUSY) return tried;
  const std::uint16_t kind = from_interpreter(caller) ? code::gil : code::mutex_lock;
  return watched_wait(kind, mutex, [=] { return real::pthread_mutex_lock(mutex); });
}

}  // namespace

STASHTRACE_HOOK(int, pthread_mutex_lock, pthread_mutex_t* mutex) {
  if (!stashtrace::watches_waits() || stashtrace::paused()) [[likely]]
    return real::pthread_mutex_lock(mutex);
  return watched_lock(mutex, __builtin_return_address(0));
}

STASHTRACE_HOOK(int, sem_wait, sem_t* semaphore) {
  return waiting(code::semaphore, semaphore, [=] { return real::sem_wait(semaphore); });
}
STASHTRACE_HOOK(int, sem_timedwait, sem_t* semaphore, const timespec* until) {
  return waiting(code::semaphore, semaphore, [=] { return real::sem_timedwait(semaphore, until); });
}
STASHTRACE_HOOK(int, sem_clockwait, sem_t* semaphore, clockid_t clock, const timespec* until) {
  return waiting(code::semaphore, semaphore, [=] { return real::sem_clockwait(semaphore, clock, until); });
}

STASHTRACE_HOOK(int, poll, pollfd* descriptors, nfds_t count, int timeout_ms) {
  return waiting(code::poll, descriptors, [=] { return real::poll(descriptors, count, timeout_ms); });
}
STASHTRACE_HOOK(int, ppoll, pollfd* descriptors, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  return waiting(code::poll, descriptors, [=] { return real::ppoll(descriptors, count, timeout, mask); });
}
STASHTRACE_HOOK(int, select, int count, fd_set* reading, fd_set* writing, fd_set* failing, timeval* timeout) {
  return waiting(code::poll, reading, [=] { return real::select(count, reading, writing, failing, timeout); });
}
STASHTRACE_HOOK(int, pselect, int count, fd_set* reading, fd_set* writing, fd_set* failing, const timespec* timeout,
                const sigset_t* mask) {
  return waiting(code::poll, reading, [=] { return real::pselect(count, reading, writing, failing, timeout, mask); });
}
STASHTRACE_HOOK(int, epoll_wait, int fd, epoll_event* events, int room, int timeout_ms) {
  return waiting(code::poll, events, [=] { return real::epoll_wait(fd, events, room, timeout_ms); });
}
STASHTRACE_HOOK(int, epoll_pwait, int fd, epoll_event* events, int room, int timeout_ms, const sigset_t* mask) {
  return waiting(code::poll, events, [=] { return real::epoll_pwait(fd, events, room, timeout_ms, mask); });
}
STASHTRACE_HOOK(int, epoll_pwait2, int fd, epoll_event* events, int room, const timespec* timeout,
                const sigset_t* mask) {
  return waiting(code::poll, events, [=] { return real::epoll_pwait2(fd, events, room, timeout, mask); });
}

STASHTRACE_HOOK(int, nanosleep, const timespec* length, timespec* rest) {
  return waiting(code::sleep, nullptr, [=] { return real::nanosleep(length, rest); });
}
STASHTRACE_HOOK(int, clock_nanosleep, clockid_t clock, int flags, const timespec* length, timespec* rest) {
  return waiting(code::sleep, nullptr, [=] { return real::clock_nanosleep(clock, flags, length, rest); });
}
STASHTRACE_HOOK(int, usleep, useconds_t length) {
  return waiting(code::sleep, nullptr, [=] { return real::usleep(length); });
}
STASHTRACE_HOOK(unsigned int, sleep, unsigned int seconds) {
  return waiting(code::sleep, nullptr, [=] { return real::sleep(seconds); });
}

STASHTRACE_HOOK(int, pthread_join, pthread_t thread, void** value) {
  return waiting(code::join, nullptr, [=] { return real::pthread_join(thread, value); });
}
STASHTRACE_HOOK(pid_t, wait, int* status) {
  return waiting(code::join, nullptr, [=] { return real::wait(status); });
}
STASHTRACE_HOOK(pid_t, wait3, int* status, int options, rusage* usage) {
  return waiting(code::join, nullptr, [=] { return real::wait3(status, options, usage); });
}
STASHTRACE_HOOK(pid_t, wait4, pid_t pid, int* status, int options, rusage* usage) {
  return waiting(code::join, nullptr, [=] { return real::wait4(pid, status, options, usage); });
}
STASHTRACE_HOOK(pid_t, waitpid, pid_t pid, int* status, int options) {
  return waiting(code::join, nullptr, [=] { return real::waitpid(pid, status, options); });
}
STASHTRACE_HOOK(int, waitid, idtype_t kind, id_t id, siginfo_t* info, int options) {
  return waiting(code::join, nullptr, [=] { return real::waitid(kind, id, info, options); });
}

// syscall(SYS_futex, ...): std::atomic::wait, std::latch and others of libstdc++. All other calls leave by a jump with
// registers and stack unchanged, so that even vfork by number, which returns twice on the caller's frame, works.
extern "C" __attribute__((visibility("hidden"), used)) long stashtrace_futex_hook(long number, long word, long action,
                                                                                  long value, long timeout, long word2,
                                                                                  long value3) {
  const auto call = [=] { return real::syscall(number, word, action, value, timeout, word2, value3); };
  constexpr long kCommand = 0x7f;  // without FUTEX_PRIVATE_FLAG and FUTEX_CLOCK_REALTIME
  constexpr long kWait = 0, kLockPi = 6, kWaitBitset = 9;
  const long command = action & kCommand;
  if (command != kWait && command != kWaitBitset && command != kLockPi) return call();
  return waiting(code::futex, reinterpret_cast<const void*>(word), call);
}

namespace stashtrace::waits {
// The assembler below reads the pointer under this name; it is the only member of the object.
extern decltype(&real::syscall) const real_syscall_slot __asm__("stashtrace_real_syscall_slot")
    __attribute__((visibility("hidden")));
[[gnu::used]] constinit decltype(&real::syscall) const real_syscall_slot = &real::syscall;
}  // namespace stashtrace::waits

#if defined(__x86_64__)
__asm__(R"(
  .text
  .globl syscall
  .type syscall, @function
syscall:
  .cfi_startproc
  endbr64
  cmpq $202, %rdi
  je stashtrace_futex_hook
  cmpq $157, %rdi
  je stashtrace_sandbox_hook
  cmpq $317, %rdi
  je stashtrace_sandbox_hook
  cmpq $425, %rdi
  je stashtrace_uring_hook
  movq stashtrace_real_syscall_slot(%rip), %rax
  jmp *(%rax)
  .cfi_endproc
  .size syscall, . - syscall
)");
static_assert(SYS_futex == 202 && SYS_prctl == 157 && SYS_seccomp == 317);
#ifdef SYS_io_uring_setup
static_assert(SYS_io_uring_setup == 425);
#endif
#elif defined(__aarch64__)
// x16 and x17 are free at the entry of a function; "hint 34" is bti c, a landing pad for indirect calls.
__asm__(R"(
  .text
  .balign 4
  .globl syscall
  .type syscall, %function
syscall:
  .cfi_startproc
  hint 34
  cmp x0, 98
  b.eq 1f
  cmp x0, 167
  b.eq 2f
  cmp x0, 277
  b.eq 2f
  cmp x0, 425
  b.eq 3f
  adrp x16, stashtrace_real_syscall_slot
  ldr x16, [x16, :lo12:stashtrace_real_syscall_slot]
  ldr x16, [x16]
  br x16
1:
  b stashtrace_futex_hook
2:
  b stashtrace_sandbox_hook
3:
  b stashtrace_uring_hook
  .cfi_endproc
  .size syscall, . - syscall
)");
static_assert(SYS_futex == 98 && SYS_prctl == 167 && SYS_seccomp == 277);
#endif
