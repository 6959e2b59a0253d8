// dlsym, in front of libc's: the whole of libstashtrace_lookup.so. SPDX-License-Identifier: Apache-2.0
//
// A separate library, preloaded only with `--lookup-hook`, because every program calls dlsym and nothing may
// change for programs that did not ask. It looks at the name; one of CUDA's driver or of NCCL may get a function of ours,
// by libstashtrace.so. All others leave by a jump with registers and stack unchanged: RTLD_NEXT
// looks at the return address.
#include <dlfcn.h>

#include <initializer_list>

extern "C" {

void* stashtrace_lookup(const char* name, void* real) noexcept;       // runtime/capi.h
void* stashtrace_lookup_nccl(const char* name, void* real) noexcept;  // the same

using Dlsym = void* (*)(void*, const char*);

// Since 2.34 dlsym is in libc.so.6; before, it was in libdl.so.2 under the first version of the architecture.
#if defined(__x86_64__)
constexpr const char* kFirstVersion = "GLIBC_2.2.5";
#elif defined(__aarch64__)
constexpr const char* kFirstVersion = "GLIBC_2.17";
#else
#error "the look-up hook knows the calling conventions of x86-64 and aarch64"
#endif

// The assembler below reads both under these names.
__attribute__((visibility("hidden"))) Dlsym stashtrace_lookup_real = nullptr;

// What to answer in place of dlsym, null: let dlsym answer.
__attribute__((visibility("hidden"), used)) void* stashtrace_lookup_answer(void* handle, const char* name) {
  if (stashtrace_lookup_real == nullptr) {
    for (const char* version : {"GLIBC_2.34", kFirstVersion})
      if (stashtrace_lookup_real == nullptr)
        stashtrace_lookup_real = reinterpret_cast<Dlsym>(dlvsym(RTLD_NEXT, "dlsym", version));
  }
  // RTLD_NEXT means next behind the caller, which would be us here.
  if (name == nullptr || handle == RTLD_NEXT) return nullptr;
  const bool of_driver = name[0] == 'c' && name[1] == 'u';
  const bool of_nccl = name[0] == 'n' && name[1] == 'c' && name[2] == 'c' && name[3] == 'l';
  if (!of_driver && !of_nccl) return nullptr;
  void* real = stashtrace_lookup_real(handle, name);
  asm volatile("" : "+r"(real));
  if (real == nullptr) return nullptr;
  return of_driver ? stashtrace_lookup(name, real) : stashtrace_lookup_nccl(name, real);
}

}  // extern "C"

#if defined(__x86_64__)
__asm__(R"(
  .text
  .globl dlsym
  .type dlsym, @function
dlsym:
  .cfi_startproc
  endbr64
  pushq %rdi
  .cfi_adjust_cfa_offset 8
  pushq %rsi
  .cfi_adjust_cfa_offset 8
  subq $8, %rsp
  .cfi_adjust_cfa_offset 8
  call stashtrace_lookup_answer
  addq $8, %rsp
  .cfi_adjust_cfa_offset -8
  popq %rsi
  .cfi_adjust_cfa_offset -8
  popq %rdi
  .cfi_adjust_cfa_offset -8
  testq %rax, %rax
  jnz 1f
  movq stashtrace_lookup_real(%rip), %rax
  jmp *%rax
1:
  ret
  .cfi_endproc
  .size dlsym, . - dlsym
)");
#else
// The frame keeps both arguments and the caller's return address; "hint 34" is bti c, a landing pad for indirect calls.
__asm__(R"(
  .text
  .balign 4
  .globl dlsym
  .type dlsym, %function
dlsym:
  .cfi_startproc
  hint 34
  stp x29, x30, [sp, -32]!
  .cfi_def_cfa_offset 32
  .cfi_offset 29, -32
  .cfi_offset 30, -24
  mov x29, sp
  stp x0, x1, [sp, 16]
  bl stashtrace_lookup_answer
  mov x16, x0
  ldp x0, x1, [sp, 16]
  ldp x29, x30, [sp], 32
  .cfi_restore 30
  .cfi_restore 29
  .cfi_def_cfa_offset 0
  cbnz x16, 1f
  adrp x16, stashtrace_lookup_real
  ldr x16, [x16, :lo12:stashtrace_lookup_real]
  br x16
1:
  mov x0, x16
  ret
  .cfi_endproc
  .size dlsym, . - dlsym
)");
#endif
