// dlsym, in front of libc's: the whole of libstashtrace_lookup.so. SPDX-License-Identifier: Apache-2.0
//
// A library of its own, preloaded only with `--lookup-hook`, because every program calls dlsym and nothing may
// change for programs that did not ask. It looks at the name; a name of CUDA's driver may get a function of ours, by
// stashtrace_lookup() of libstashtrace.so. All others leave by a jump with registers and stack unchanged: RTLD_NEXT
// looks at the return address.
#include <dlfcn.h>

#include <initializer_list>

#if !defined(__x86_64__)
#error "the look-up hook knows the x86-64 calling convention only"
#endif

extern "C" {

void* stashtrace_lookup(const char* name, void* real) noexcept;  // runtime/capi.h

using Dlsym = void* (*)(void*, const char*);

// The assembler below reads both under these names.
__attribute__((visibility("hidden"))) Dlsym stashtrace_lookup_real = nullptr;

// What to answer in place of dlsym, null: let dlsym answer.
__attribute__((visibility("hidden"), used)) void* stashtrace_lookup_answer(void* handle, const char* name) {
  if (stashtrace_lookup_real == nullptr) {
    for (const char* version : {"GLIBC_2.34", "GLIBC_2.2.5"})
      if (stashtrace_lookup_real == nullptr)
        stashtrace_lookup_real = reinterpret_cast<Dlsym>(dlvsym(RTLD_NEXT, "dlsym", version));
  }
  // RTLD_NEXT means next behind the caller, which would be us here.
  if (name == nullptr || name[0] != 'c' || name[1] != 'u' || handle == RTLD_NEXT) return nullptr;
  void* real = stashtrace_lookup_real(handle, name);
  asm volatile("" : "+r"(real));
  return real != nullptr ? stashtrace_lookup(name, real) : nullptr;
}

}  // extern "C"

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
