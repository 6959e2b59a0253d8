// Which seccomp filters end those under them: by our reading, and by the kernel's. SPDX-License-Identifier: Apache-2.0
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <vector>

#include "check.h"
#include "core/filter_verdict.h"

using stashtrace::filter_kills;
using Filter = std::vector<sock_filter>;

namespace {

constexpr std::uint32_t kAllow = SECCOMP_RET_ALLOW, kKill = SECCOMP_RET_KILL_PROCESS;
constexpr std::uint32_t kNumber = offsetof(seccomp_data, nr), kArchitecture = offsetof(seccomp_data, arch);
#if defined(__x86_64__)
constexpr std::uint32_t kOurArchitecture = AUDIT_ARCH_X86_64;
#else
constexpr std::uint32_t kOurArchitecture = AUDIT_ARCH_AARCH64;
#endif
constexpr std::uint32_t kFirstArgument = offsetof(seccomp_data, args);

sock_filter load(std::uint32_t offset) { return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset); }
sock_filter answer(std::uint32_t action) { return BPF_STMT(BPF_RET | BPF_K, action); }
sock_filter jump(unsigned condition, std::uint32_t value, unsigned char if_so, unsigned char else_by) {
  return BPF_JUMP(static_cast<unsigned short>(BPF_JMP | condition | BPF_K), value, if_so, else_by);
}
sock_filter calculate(unsigned operation, std::uint32_t value) {
  return BPF_STMT(static_cast<unsigned short>(BPF_ALU | operation | BPF_K), value);
}

bool kills(const Filter& filter) { return filter_kills(filter.data(), static_cast<unsigned>(filter.size())); }

// qemu-user has no filters: there our reading alone is tested.
bool kernel_has_filters() { return prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 0; }

// Whether a child under the filter dies of getppid, as the kernel sees it.
bool kernel_kills(Filter filter) {
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) != 0) syscall(SYS_exit_group, 3);
    syscall(SYS_getppid);
    syscall(SYS_exit_group, 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(!WIFEXITED(status) || WEXITSTATUS(status) == 0);  // else the kernel refused the filter
  return WIFSIGNALED(status);
}

// Ends getppid alone, if `steps` leave in the accumulator what they are said to make of its number.
Filter after(std::vector<sock_filter> steps, std::uint32_t made) {
  Filter filter{load(kNumber), jump(BPF_JEQ, SYS_getppid, 1, 0), answer(kAllow)};
  filter.insert(filter.end(), steps.begin(), steps.end());
  filter.insert(filter.end(), {jump(BPF_JEQ, made, 0, 1), answer(kKill), answer(kAllow)});
  return filter;
}

void test_kinds_of_filters() {
  CHECK(!kills({answer(kAllow)}));
  CHECK(!kills({answer(SECCOMP_RET_ERRNO | 1)}));
  CHECK(!kills({answer(SECCOMP_RET_LOG)}));
  CHECK(kills({answer(kKill)}));
  CHECK(kills({answer(SECCOMP_RET_KILL_THREAD)}));
  CHECK(kills({answer(SECCOMP_RET_TRAP)}));
  CHECK(kills({load(kNumber), jump(BPF_JEQ, SYS_getpid, 0, 1), answer(kKill), answer(kAllow)}));
  // As libseccomp begins: another architecture, or another table of calls, kills; ours does not.
  CHECK(!kills({load(kArchitecture), jump(BPF_JEQ, kOurArchitecture, 1, 0), answer(kKill), load(kNumber),
                jump(BPF_JGE, 0x40000000, 0, 1), answer(kKill), answer(SECCOMP_RET_ERRNO | 1)}));
  // An argument of which some bit is set.
  CHECK(kills({load(kFirstArgument), jump(BPF_JSET, 0x7e020000, 0, 1), answer(kKill), answer(kAllow)}));
}

void test_instructions_as_the_kernel_runs_them() {
  constexpr std::uint32_t n = SYS_getppid;
  const sock_filter to_x = BPF_STMT(BPF_MISC | BPF_TAX, 0), from_x = BPF_STMT(BPF_MISC | BPF_TXA, 0);
  const std::vector<Filter> filters = {
      after({calculate(BPF_ADD, 7)}, n + 7), after({calculate(BPF_SUB, 200)}, n - 200), after({calculate(BPF_MUL, 3)}, 3 * n),
      after({calculate(BPF_DIV, 7)}, n / 7), after({calculate(BPF_AND, 0x6c)}, n & 0x6c),
      after({calculate(BPF_OR, 0x101)}, n | 0x101), after({calculate(BPF_XOR, 0x55)}, n ^ 0x55),
      after({calculate(BPF_LSH, 3)}, n << 3), after({calculate(BPF_RSH, 2)}, n >> 2),
      after({BPF_STMT(BPF_ALU | BPF_NEG, 0)}, 0 - n),
      after({to_x, calculate(BPF_ADD, 1), BPF_STMT(BPF_ALU | BPF_ADD | BPF_X, 0)}, 2 * n + 1),
      after({to_x, BPF_STMT(BPF_LD | BPF_IMM, 5), from_x}, n),
      after({BPF_STMT(BPF_ST, 3), BPF_STMT(BPF_LD | BPF_IMM, 5), BPF_STMT(BPF_LD | BPF_MEM, 3)}, n),
      after({BPF_STMT(BPF_LDX | BPF_IMM, 9), BPF_STMT(BPF_STX, 1), BPF_STMT(BPF_LD | BPF_MEM, 1)}, 9),
      after({BPF_STMT(BPF_ST, 1), BPF_STMT(BPF_LDX | BPF_MEM, 1), from_x}, n),
      after({BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0)}, sizeof(seccomp_data)),
      after({BPF_STMT(BPF_LDX | BPF_W | BPF_LEN, 0), from_x}, sizeof(seccomp_data)),
      after({BPF_STMT(BPF_JMP | BPF_JA, 1), calculate(BPF_ADD, 1)}, n),
      after({jump(BPF_JGT, n - 1, 0, 1), calculate(BPF_ADD, 1)}, n + 1),
      after({to_x, BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_X, 0, 0, 1), calculate(BPF_ADD, 1)}, n + 1),
  };
  const bool asked = kernel_has_filters();
  for (const Filter& filter : filters) {
    CHECK(!asked || kernel_kills(filter));
    CHECK(kills(filter));
    Filter other = filter;  // the same, and made to be something else: nobody dies
    other[other.size() - 3].k += 1;
    CHECK(!asked || !kernel_kills(other));
    CHECK(!kills(other));
  }
  const Filter by_accumulator = {load(kNumber), jump(BPF_JEQ, n, 0, 1), BPF_STMT(BPF_LD | BPF_IMM, kKill),
                                 jump(BPF_JEQ, kKill, 1, 0), BPF_STMT(BPF_LD | BPF_IMM, kAllow), BPF_STMT(BPF_RET | BPF_A, 0)};
  CHECK(!asked || kernel_kills(by_accumulator));
  CHECK(kills(by_accumulator));
}

void test_what_no_kernel_takes_counts_as_killing() {
  CHECK(kills({}));
  CHECK(kills({load(kNumber)}));                                            // no answer
  CHECK(kills({load(sizeof(seccomp_data))}));                               // behind the call
  CHECK(kills({BPF_STMT(BPF_JMP | BPF_JA, 0xffffffff), answer(kAllow)}));   // far behind the end
  CHECK(kills({BPF_STMT(BPF_LD | BPF_B | BPF_IND, 0), answer(kAllow)}));    // a packet's
}

}  // namespace

int main() {
  test_kinds_of_filters();
  test_instructions_as_the_kernel_runs_them();
  test_what_no_kernel_takes_counts_as_killing();
  return result();
}
