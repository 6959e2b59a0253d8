// Implementation of apart.h. SPDX-License-Identifier: Apache-2.0
#include "core/apart.h"

#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

#include "core/raw_syscall.h"

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

namespace stashtrace {

namespace {

constexpr std::size_t kStackBytes = 64 * 1024;
constexpr std::size_t kTopBytes = 16;  // a stack begins inside its mapping: valgrind looks up what is there
constexpr std::int64_t kLongestEndNs = 100'000'000;  // a debugger may keep an ended thread
constexpr unsigned kUnshare = 2;                     // CLOSE_RANGE_UNSHARE
constexpr unsigned kMostInherited = 64;

// Lies at the low end of the thread's stack.
struct Thread {
  void (*work)(void*);
  void* argument;
  unsigned kept;        // descriptors below this stay
  bool shares_table;    // the process's descriptor table, until it leaves it
  int refused;          // leaving the table failed: the work was not done
  std::uint32_t alive;  // cleared and woken by the kernel when the thread ends
};

// True for kernels before 5.9 and filters without close_range: the thread starts with a copy of the whole table.
constinit std::atomic<bool> g_copies_table{false};

int leave_table(unsigned kept) noexcept { return static_cast<int>(raw::call(SYS_close_range, kept, ~0u, kUnshare)); }

// ThreadSanitizer sees neither these raw mappings nor the thread: it would report a race on an address that is reused.
#define STASHTRACE_UNSEEN_MEMORY [[gnu::no_sanitize("thread")]]

// Called before and after such memory is used. ThreadSanitizer sees this order, for what the work keeps on that stack.
constinit std::atomic<unsigned> g_uses{0};
[[gnu::noinline]] void order_uses() noexcept { g_uses.fetch_add(1, std::memory_order_acq_rel); }

STASHTRACE_UNSEEN_MEMORY void thread_main(void* memory) noexcept {
  auto* self = static_cast<Thread*>(memory);
  if (self->shares_table) {
    self->refused = leave_table(self->kept);
    if (self->refused < 0) return;
  } else {  // room below the limit on descriptors
    for (unsigned fd = self->kept; fd < kMostInherited; ++fd) raw::close(static_cast<int>(fd));
  }
  self->work(self->argument);
  std::atomic_thread_fence(std::memory_order_release);  // the kernel clears `alive` by a plain store
}

// Clones a thread that calls thread_main(memory) on `stack_top` and ends. Returns its id, or minus errno.
long start(unsigned long flags, void* stack_top, std::uint32_t* alive, void* memory) noexcept {
#if defined(__x86_64__)
  long result;
  register long r10 __asm__("r10") = raw::address(alive);
  register long r8 __asm__("r8") = 0;
  register void (*r12)(void*) __asm__("r12") = &thread_main;
  register void* r13 __asm__("r13") = memory;
  __asm__ volatile(
      "syscall\n\t"
      "testq %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "xorl %%ebp, %%ebp\n\t"
      "movq %%r13, %%rdi\n\t"
      "call *%%r12\n\t"
      "xorl %%edi, %%edi\n\t"
      "movl %[exit], %%eax\n\t"
      "syscall\n\t"
      "hlt\n"
      "1:"
      : "=a"(result)
      : "0"(static_cast<long>(SYS_clone)), "D"(flags), "S"(stack_top), "d"(0L), "r"(r10), "r"(r8), "r"(r12),
        "r"(r13), [exit] "i"(SYS_exit)
      : "rcx", "r11", "memory", "cc");
  return result;
#elif defined(__aarch64__)
  register long x8 __asm__("x8") = SYS_clone;
  register long x0 __asm__("x0") = static_cast<long>(flags);
  register void* x1 __asm__("x1") = stack_top;
  register long x2 __asm__("x2") = 0;
  register long x3 __asm__("x3") = 0;
  register std::uint32_t* x4 __asm__("x4") = alive;
  register void (*x20)(void*) __asm__("x20") = &thread_main;
  register void* x21 __asm__("x21") = memory;
  __asm__ volatile(
      "svc 0\n\t"
      "cbnz x0, 1f\n\t"
      "mov x29, xzr\n\t"
      "mov x0, x21\n\t"
      "blr x20\n\t"
      "mov x0, xzr\n\t"
      "mov x8, %[exit]\n\t"
      "svc 0\n\t"
      "brk 1\n"
      "1:"
      : "+r"(x0)
      : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x20), "r"(x21), [exit] "i"(SYS_exit)
      : "memory", "cc");
  return x0;
#endif
}

}  // namespace

bool has_left_namespace() noexcept {
  char own[64], of_children[64];
  const long bytes = raw::readlink("/proc/self/ns/pid", own, sizeof own);
  return bytes > 0 && (raw::readlink("/proc/self/ns/pid_for_children", of_children, sizeof of_children) != bytes ||
                       std::memcmp(own, of_children, static_cast<std::size_t>(bytes)) != 0);
}

bool leave_descriptor_table() noexcept { return leave_table(0) == 0; }

STASHTRACE_UNSEEN_MEMORY int run_apart(void (*work)(void*), void* argument, unsigned kept) noexcept {
  void* memory = raw::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == nullptr) return -ENOMEM;
  order_uses();
  const raw::SignalsBlocked inherited_by_the_thread;
  int error = 0;
  for (;;) {
    const bool copies = g_copies_table.load(std::memory_order_relaxed);
    auto* thread = new (memory) Thread{work, argument, kept, !copies, 0, 1};
    // No CLONE_SETTLS: thread-local data is the caller's. CLONE_THREAD: nothing has to wait for it, and no SIGCHLD
    // is sent.
    unsigned long flags = CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;
    if (!copies) flags |= CLONE_FILES;
    const long id = start(flags, static_cast<char*>(memory) + kStackBytes - kTopBytes, &thread->alive, thread);
    if (id < 0) {
      error = static_cast<int>(id);
      break;
    }
    const std::atomic_ref alive(thread->alive);
    while (alive.load(std::memory_order_acquire) != 0) raw::futex_wait_shared(&thread->alive, 1);
    raw::wait_until_gone(raw::getpid(), static_cast<int>(id), kLongestEndNs);
    if (thread->refused == 0) break;
    g_copies_table.store(true, std::memory_order_relaxed);
  }
  order_uses();
  raw::munmap(memory, kStackBytes);
  return error;
}

}  // namespace stashtrace
