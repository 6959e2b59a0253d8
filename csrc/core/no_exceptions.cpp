// Keeps the exception half of libstdc++, or of libc++, out of the guest library. SPDX-License-Identifier: Apache-2.0
//
// string_view::substr() and friends name such a function for positions that are out of range, which ours never are.
// Without a definition here the linker would take the one in the archive, and with it the unwinder, locales and
// symbols of newer C libraries. It is hidden (hooks/exports.map), so calls of other libraries cannot reach it.
#include <version>

#ifdef _LIBCPP_VERSION  // libc++, which Clang may bring
#include <__verbose_abort>

_LIBCPP_BEGIN_NAMESPACE_STD
void __libcpp_verbose_abort(const char*, ...) noexcept { __builtin_trap(); }
_LIBCPP_END_NAMESPACE_STD
#else
#include <bits/functexcept.h>

namespace std {
void __throw_out_of_range_fmt(const char*, ...) { __builtin_trap(); }
}  // namespace std
#endif

extern "C" void __cxa_pure_virtual() { __builtin_trap(); }
