// System calls that never pass through our hooks, never touch errno and are never cancellation points.
// SPDX-License-Identifier: Apache-2.0
//
// Callers: everything of ours that runs inside the traced process. A result below zero is minus errno.
// Only *at variants are used, since newer architectures have no others.
#pragma once

#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>

#include <cstddef>
#include <cstdint>

namespace stashtrace::raw {

#if defined(__x86_64__)
inline long call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) noexcept {
  long result;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
}
#elif defined(__aarch64__)
inline long call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) noexcept {
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  register long x5 __asm__("x5") = f;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
}
#else
#error "stashtrace records on x86-64 and aarch64 Linux"
#endif

inline long address(const void* pointer) noexcept { return reinterpret_cast<long>(pointer); }

inline int open(const char* path, int flags, unsigned mode = 0) noexcept {
  return static_cast<int>(call(SYS_openat, AT_FDCWD, address(path), flags, mode));
}
inline long read(int fd, void* buffer, std::size_t bytes) noexcept {
  return call(SYS_read, fd, address(buffer), static_cast<long>(bytes));
}
inline long write(int fd, const void* buffer, std::size_t bytes) noexcept {
  return call(SYS_write, fd, address(buffer), static_cast<long>(bytes));
}
inline long writev(int fd, const iovec* parts, int count) noexcept {
  return call(SYS_writev, fd, address(parts), count);
}
inline long pread(int fd, void* buffer, std::size_t bytes, std::int64_t offset) noexcept {
  return call(SYS_pread64, fd, address(buffer), static_cast<long>(bytes), offset);
}
inline long pwrite(int fd, const void* buffer, std::size_t bytes, std::int64_t offset) noexcept {
  return call(SYS_pwrite64, fd, address(buffer), static_cast<long>(bytes), offset);
}
inline long lseek(int fd, std::int64_t offset, int whence) noexcept { return call(SYS_lseek, fd, offset, whence); }
inline int close(int fd) noexcept { return static_cast<int>(call(SYS_close, fd)); }
inline int ftruncate(int fd, std::int64_t bytes) noexcept { return static_cast<int>(call(SYS_ftruncate, fd, bytes)); }
inline int fallocate(int fd, int mode, std::int64_t offset, std::int64_t bytes) noexcept {
  return static_cast<int>(call(SYS_fallocate, fd, mode, offset, bytes));
}
inline int fcntl(int fd, int command, long argument) noexcept {
  return static_cast<int>(call(SYS_fcntl, fd, command, argument));
}
inline long pwritev(int fd, const iovec* parts, int count, std::int64_t offset) noexcept {
  return call(SYS_pwritev, fd, address(parts), count, offset, 0);
}
inline int fstat(int fd, struct stat* out) noexcept { return static_cast<int>(call(SYS_fstat, fd, address(out))); }
inline int unlink(const char* path) noexcept {
  return static_cast<int>(call(SYS_unlinkat, AT_FDCWD, address(path), 0));
}
inline long readlink(const char* path, char* buffer, std::size_t bytes) noexcept {
  return call(SYS_readlinkat, AT_FDCWD, address(path), address(buffer), static_cast<long>(bytes));
}

// Number of threads of this process now, from the link count of its task folder; 0 if /proc does not show it.
inline int threads_count() noexcept {
  struct stat tasks{};
  if (call(SYS_newfstatat, AT_FDCWD, address("/proc/self/task"), address(&tasks), 0) != 0) return 0;
  return tasks.st_nlink > 2 ? static_cast<int>(tasks.st_nlink) - 2 : 0;
}

// Returns null on failure.
inline void* mmap(void* hint, std::size_t bytes, int protection, int flags, int fd, std::int64_t offset) noexcept {
  const long result = call(SYS_mmap, address(hint), static_cast<long>(bytes), protection, flags, fd, offset);
  return result < 0 && result > -4096 ? nullptr : reinterpret_cast<void*>(result);
}
// Moves a mapping over another one of the same size, in one step.
inline int mremap_onto(void* from, std::size_t bytes, void* to) noexcept {
  constexpr long kMayMoveFixed = 1 | 2;
  const long result =
      call(SYS_mremap, address(from), static_cast<long>(bytes), static_cast<long>(bytes), kMayMoveFixed, address(to));
  return result < 0 && result > -4096 ? static_cast<int>(result) : 0;
}
inline int munmap(void* start, std::size_t bytes) noexcept {
  return static_cast<int>(call(SYS_munmap, address(start), static_cast<long>(bytes)));
}
inline int madvise(void* start, std::size_t bytes, int advice) noexcept {
  return static_cast<int>(call(SYS_madvise, address(start), static_cast<long>(bytes), advice));
}

// Waits while *word == expected, at most timeout_ns (below zero: without limit).
inline int futex_wait(const void* word, std::uint32_t expected, std::int64_t timeout_ns) noexcept {
  const timespec limit{static_cast<time_t>(timeout_ns / 1'000'000'000), static_cast<long>(timeout_ns % 1'000'000'000)};
  return static_cast<int>(
      call(SYS_futex, address(word), FUTEX_WAIT_PRIVATE, expected, timeout_ns < 0 ? 0 : address(&limit)));
}
// Waits on a word that the kernel wakes when a thread ends; that wake-up does not use FUTEX_PRIVATE_FLAG.
inline int futex_wait_shared(const void* word, std::uint32_t expected) noexcept {
  return static_cast<int>(call(SYS_futex, address(word), FUTEX_WAIT, expected, 0));
}
inline int futex_wake(const void* word, int threads) noexcept {
  return static_cast<int>(call(SYS_futex, address(word), FUTEX_WAKE_PRIVATE, threads));
}

inline int getpid() noexcept { return static_cast<int>(call(SYS_getpid)); }
inline int getppid() noexcept { return static_cast<int>(call(SYS_getppid)); }
inline int gettid() noexcept { return static_cast<int>(call(SYS_gettid)); }
inline int tgkill(int pid, int tid, int signal) noexcept {
  return static_cast<int>(call(SYS_tgkill, pid, tid, signal));
}
inline void sched_yield() noexcept { call(SYS_sched_yield); }
// Waits until no thread of the process has this id. Then its last system calls are over and the kernel no longer counts
// it (unshare(CLONE_NEWUSER) checks). Sleeps between looks: the thread may have a lower priority than the caller.
inline void wait_until_gone(int pid, int tid, std::int64_t limit_ns) noexcept {
  constexpr int kYields = 50;
  constexpr std::int64_t kSlice = 50'000;
  const std::uint32_t never = 0;
  std::int64_t waited = 0;
  for (int look = 0; waited < limit_ns && tgkill(pid, tid, 0) == 0; ++look) {
    if (look < kYields) {
      sched_yield();
      continue;
    }
    futex_wait(&never, 0, kSlice);
    waited += kSlice;
  }
}
inline int getrusage(int who, struct rusage* out) noexcept {
  return static_cast<int>(call(SYS_getrusage, who, address(out)));
}

using SignalMask = std::uint64_t;  // the kernel's sigset: one bit per signal
inline SignalMask signal_mask(int how, SignalMask set) noexcept {
  SignalMask old = 0;
  call(SYS_rt_sigprocmask, how, address(&set), address(&old), sizeof set);
  return old;
}
inline SignalMask current_signal_mask() noexcept {
  SignalMask old = 0;
  call(SYS_rt_sigprocmask, SIG_BLOCK, 0, address(&old), sizeof old);
  return old;
}
inline SignalMask pending_signals() noexcept {
  SignalMask pending = 0;
  call(SYS_rt_sigpending, address(&pending), sizeof pending);
  return pending;
}
// Takes a pending signal of the thread without running its handler.
inline int consume_pending(int signal) noexcept {
  const SignalMask set = SignalMask{1} << (signal - 1);
  const timespec now{0, 0};
  return static_cast<int>(call(SYS_rt_sigtimedwait, address(&set), 0, address(&now), sizeof set));
}

// Blocks all signals during its lifetime. Used around every slow path, so that a handler that does I/O cannot meet
// a half-made ring, and a file size limit (SIGXFSZ) affects us and not the user's process.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept : old_(signal_mask(SIG_SETMASK, ~SignalMask{0})) {}
  ~SignalsBlocked() { signal_mask(SIG_SETMASK, old_); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  SignalMask before() const noexcept { return old_; }

 private:
  SignalMask old_;
};

}  // namespace stashtrace::raw
