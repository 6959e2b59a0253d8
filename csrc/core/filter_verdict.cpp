// Implementation of filter_verdict.h. SPDX-License-Identifier: Apache-2.0
#include "core/filter_verdict.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

#include <cstdint>
#include <cstring>

namespace stashtrace {

namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kArch = AUDIT_ARCH_X86_64;
#else
constexpr std::uint32_t kArch = AUDIT_ARCH_AARCH64;
#endif
constexpr int kMostCalls = 512;  // more than Linux has

std::uint32_t calculate(unsigned operation, std::uint32_t a, std::uint32_t b) noexcept {
  switch (operation) {
    case BPF_ADD: return a + b;
    case BPF_SUB: return a - b;
    case BPF_MUL: return a * b;
    case BPF_DIV: return b != 0 ? a / b : 0;
    case BPF_AND: return a & b;
    case BPF_OR: return a | b;
    case BPF_XOR: return a ^ b;
    case BPF_LSH: return b < 32 ? a << b : 0;
    case BPF_RSH: return b < 32 ? a >> b : 0;
    default: return 0 - a;  // BPF_NEG
  }
}

bool holds(unsigned condition, std::uint32_t a, std::uint32_t b) noexcept {
  switch (condition) {
    case BPF_JEQ: return a == b;
    case BPF_JGT: return a > b;
    case BPF_JGE: return a >= b;
    default: return (a & b) != 0;  // BPF_JSET
  }
}

// Returns the filter's answer for one call. Jumps only lead forward, so it ends.
std::uint32_t verdict(const sock_filter* program, unsigned length, const seccomp_data& call) noexcept {
  std::uint32_t a = 0, x = 0, memory[BPF_MEMWORDS] = {};
  for (std::uint64_t at = 0; at < length; ++at) {
    const sock_filter& step = program[at];
    const std::uint32_t operand = BPF_SRC(step.code) == BPF_X ? x : step.k;
    switch (BPF_CLASS(step.code)) {
      case BPF_LD:
        if (BPF_MODE(step.code) == BPF_IMM) a = step.k;
        else if (BPF_MODE(step.code) == BPF_LEN) a = sizeof call;
        else if (BPF_MODE(step.code) == BPF_MEM) a = memory[step.k % BPF_MEMWORDS];
        else if (BPF_MODE(step.code) != BPF_ABS || step.k > sizeof call - sizeof a) return SECCOMP_RET_KILL_PROCESS;
        else std::memcpy(&a, reinterpret_cast<const char*>(&call) + step.k, sizeof a);
        break;
      case BPF_LDX:
        if (BPF_MODE(step.code) == BPF_IMM) x = step.k;
        else if (BPF_MODE(step.code) == BPF_LEN) x = sizeof call;
        else x = memory[step.k % BPF_MEMWORDS];
        break;
      case BPF_ST: memory[step.k % BPF_MEMWORDS] = a; break;
      case BPF_STX: memory[step.k % BPF_MEMWORDS] = x; break;
      case BPF_ALU: a = calculate(BPF_OP(step.code), a, operand); break;
      case BPF_JMP:
        if (BPF_OP(step.code) == BPF_JA) at += step.k;
        else at += holds(BPF_OP(step.code), a, operand) ? step.jt : step.jf;
        break;
      case BPF_RET: return BPF_RVAL(step.code) == BPF_A ? a : step.k;
      default: (BPF_MISCOP(step.code) == BPF_TAX ? x : a) = BPF_MISCOP(step.code) == BPF_TAX ? a : x; break;
    }
  }
  return SECCOMP_RET_KILL_PROCESS;
}

bool kills(std::uint32_t answer) noexcept {
  const std::uint32_t action = answer & SECCOMP_RET_ACTION_FULL;
  return action == SECCOMP_RET_KILL_PROCESS || action == SECCOMP_RET_KILL_THREAD || action == SECCOMP_RET_TRAP;
}

}  // namespace

bool filter_kills(const sock_filter* program, unsigned length) noexcept {
  for (int number = 0; number < kMostCalls; ++number) {
    seccomp_data call{};
    call.nr = number;
    call.arch = kArch;
    if (kills(verdict(program, length, call))) return true;
    std::memset(call.args, 0xff, sizeof call.args);
    if (kills(verdict(program, length, call))) return true;
  }
  return false;
}

}  // namespace stashtrace
