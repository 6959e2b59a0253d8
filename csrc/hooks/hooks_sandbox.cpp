// Hooks of calls by which a process forbids itself system calls or the time stamp counter: recording ends first.
// SPDX-License-Identifier: Apache-2.0
//
// A filter may kill at the first call that it does not know, and its author did not list ours. What was recorded is
// written first. A filter that the process inherited (a container's) is not seen here, and recording goes on.
#include "hooks/sandbox.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include <atomic>

#include "core/filter_verdict.h"
#include "core/user_memory.h"
#include "hooks/interpose.h"
#include "runtime/runtime.h"

namespace real = stashtrace::real;

namespace {

constinit std::atomic<bool> forbidden = false;
constinit std::atomic<bool> killing = false;

void seal(bool kills) noexcept {
  using namespace stashtrace::detail;
  ChildFilter& child = thread_state.child_filter;
  const char* reason = kills ? "sandboxed_with_children" : "sandboxed";
  const bool in_child = child != kNoFilter || (!stashtrace::sandboxed() && !stashtrace::runtime().seal(reason));
  if (in_child) {
    if (child != kKillingFilter) child = kills ? kKillingFilter : kFilter;
    return;
  }
  if (kills) killing.store(true, std::memory_order_relaxed);
  forbidden.store(true, std::memory_order_release);
}

// Programs ask for a filter without giving one, to learn whether the kernel has filters: that is refused. A second
// filter cannot be read without system calls, which the first may forbid.
void before_filter(unsigned long address) noexcept {
  if (address == 0) return;
  if (stashtrace::sandboxed()) return seal(true);
  const auto* program = reinterpret_cast<const sock_fprog*>(address);
  if (!stashtrace::all_readable(program, sizeof *program)) return;
  const bool known =
      program->len <= BPF_MAXINSNS && stashtrace::all_readable(program->filter, program->len * sizeof(sock_filter));
  seal(!known || stashtrace::filter_kills(program->filter, program->len));
}

void before_prctl(int option, unsigned long argument, unsigned long program) noexcept {
  if (option == PR_SET_SECCOMP && argument == SECCOMP_MODE_FILTER) before_filter(program);
  if (option == PR_SET_SECCOMP && argument == SECCOMP_MODE_STRICT) seal(false);  // then nothing can be executed
  if (option == PR_SET_TSC && argument == PR_TSC_SIGSEGV) seal(false);
}

}  // namespace

namespace stashtrace {
bool sandboxed() noexcept {
  return forbidden.load(std::memory_order_acquire) || detail::thread_state.child_filter != detail::kNoFilter;
}
bool sandbox_kills() noexcept {
  return killing.load(std::memory_order_relaxed) || detail::thread_state.child_filter == detail::kKillingFilter;
}
detail::ChildFilter leave_child_filter() noexcept {
  const detail::ChildFilter filter = detail::thread_state.child_filter;
  detail::thread_state.child_filter = detail::kNoFilter;
  return filter;
}
void put_child_filter_back(detail::ChildFilter filter) noexcept { detail::thread_state.child_filter = filter; }
}  // namespace stashtrace

STASHTRACE_HOOK(int, prctl, int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d) {
  before_prctl(option, a, b);
  return real::prctl(option, a, b, c, d);
}

// The same by number: syscall(SYS_prctl, ...) and syscall(SYS_seccomp, ...), from the assembler of collectors/waits.
extern "C" __attribute__((visibility("hidden"), used)) long stashtrace_sandbox_hook(long number, long a, long b, long c,
                                                                                    long d, long e, long f) {
  if (number == SYS_prctl)
    before_prctl(static_cast<int>(a), static_cast<unsigned long>(b), static_cast<unsigned long>(c));
  else if (a == SECCOMP_SET_MODE_FILTER) before_filter(static_cast<unsigned long>(c));
  else if (a == SECCOMP_SET_MODE_STRICT) seal(false);
  return real::syscall(number, a, b, c, d, e, f);
}
