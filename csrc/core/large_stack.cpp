// Implementation of large_stack.h. SPDX-License-Identifier: Apache-2.0
#include "core/large_stack.h"

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/raw_syscall.h"

// void stashtrace_on_stack(void (*work)(void*), void* argument, void* top): the frame pointer leads an unwinder back.
extern "C" __attribute__((visibility("hidden"))) void stashtrace_on_stack(void (*work)(void*), void* argument,
                                                                          void* top) noexcept;
#if defined(__x86_64__)
__asm__(R"(
  .text
  .type stashtrace_on_stack, @function
stashtrace_on_stack:
  .cfi_startproc
  pushq %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  movq %rsp, %rbp
  .cfi_def_cfa_register %rbp
  movq %rdx, %rsp
  movq %rdi, %rax
  movq %rsi, %rdi
  callq *%rax
  movq %rbp, %rsp
  popq %rbp
  .cfi_def_cfa %rsp, 8
  ret
  .cfi_endproc
  .size stashtrace_on_stack, . - stashtrace_on_stack
)");
#elif defined(__aarch64__)
__asm__(R"(
  .text
  .balign 4
  .type stashtrace_on_stack, %function
stashtrace_on_stack:
  .cfi_startproc
  stp x29, x30, [sp, -16]!
  .cfi_def_cfa_offset 16
  .cfi_offset x29, -16
  .cfi_offset x30, -8
  mov x29, sp
  .cfi_def_cfa_register x29
  mov sp, x2
  mov x9, x0
  mov x0, x1
  blr x9
  mov sp, x29
  .cfi_def_cfa_register sp
  ldp x29, x30, [sp], 16
  .cfi_restore x29
  .cfi_restore x30
  .cfi_def_cfa_offset 0
  ret
  .cfi_endproc
  .size stashtrace_on_stack, . - stashtrace_on_stack
)");
#endif

namespace stashtrace {

namespace {

constexpr std::size_t kStackBytes = 128 * 1024;
constexpr std::size_t kTopBytes = 16;  // a stack begins inside its mapping: valgrind looks up what is there

// Declares memory a stack to valgrind, where we run under it: else it takes the step onto it for one that frees all
// between the two stacks, and reports what the job does there. The instructions are those of VALGRIND_STACK_REGISTER, and
// do nothing anywhere else. Returns what is to be said at the end of the stack.
std::uint64_t valgrind_request(std::uint64_t number, std::uint64_t first, std::uint64_t second) noexcept {
  const std::uint64_t request[6] = {number, first, second, 0, 0, 0};
#if defined(__x86_64__)
  std::uint64_t result = 0;
  __asm__ volatile("rolq $3, %%rdi; rolq $13, %%rdi; rolq $61, %%rdi; rolq $51, %%rdi; xchgq %%rbx, %%rbx"
                   : "+d"(result)
                   : "a"(request)
                   : "cc", "memory");
#elif defined(__aarch64__)
  register std::uint64_t result __asm__("x3") = 0;
  register const std::uint64_t* asked __asm__("x4") = request;
  __asm__ volatile("ror x12, x12, #3; ror x12, x12, #13; ror x12, x12, #51; ror x12, x12, #61; orr x10, x10, x10"
                   : "+r"(result)
                   : "r"(asked)
                   : "cc", "memory");
#endif
  return result;
}
constexpr std::uint64_t kRegisterStack = 0x1501, kForgetStack = 0x1502;

// ThreadSanitizer does not see this memory come and go: it would report a race on an address that is used again.
constinit std::atomic<unsigned> g_uses{0};
void order_uses() noexcept { g_uses.fetch_add(1, std::memory_order_acq_rel); }

}  // namespace

void run_on_large_stack(void (*work)(void*), void* argument) noexcept {
  const raw::SignalsBlocked quiet;
  void* memory =
      raw::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == nullptr) return work(argument);
  order_uses();
  char* const begin = static_cast<char*>(memory);
  const std::uint64_t known = valgrind_request(kRegisterStack, reinterpret_cast<std::uintptr_t>(begin),
                                               reinterpret_cast<std::uintptr_t>(begin + kStackBytes - 1));
  stashtrace_on_stack(work, argument, begin + kStackBytes - kTopBytes);
  valgrind_request(kForgetStack, known, 0);
  order_uses();
  raw::munmap(memory, kStackBytes);
}

}  // namespace stashtrace
