// NCCL's functions, behind our hooks. SPDX-License-Identifier: Apache-2.0
//
// Callers: hooks and the registry of communicators. Found at first use, in a libnccl that is already loaded, in
// any scope: torch loads it where RTLD_NEXT does not look. We load nothing. Any thread.
#pragma once

#include "abi/nccl_abi.h"

namespace stashtrace::nccl {

enum class Name : unsigned {
#define STASHTRACE_NCCL_NAME(name, first, ...) name,
  STASHTRACE_NCCL_CALLS(STASHTRACE_NCCL_NAME) STASHTRACE_NCCL_QUERIES(STASHTRACE_NCCL_NAME)
#undef STASHTRACE_NCCL_NAME
      count
};
inline constexpr unsigned kNamesCount = static_cast<unsigned>(Name::count);

#define STASHTRACE_NCCL_ONE(name, first, ...) +1
inline constexpr unsigned kHookedCount = 0 STASHTRACE_NCCL_CALLS(STASHTRACE_NCCL_ONE);
#undef STASHTRACE_NCCL_ONE

struct FunctionDesc {
  const char* name;
  const char* own_name;  // pnccl...: never interposed
};
const FunctionDesc& describe(Name name) noexcept;

void* find_function(Name name) noexcept;  // null if this libnccl does not have it, or none is loaded

// True if `real`, which the program has looked up, is of the library that find_function() takes the function from; where
// none is known (a static NCCL), it is that from now on.
bool is_of_this_nccl(Name name, void* real) noexcept;

// Null if absent. An absent function is looked for again at its next use: libnccl may come later.
template <class F>
F* real_function(Name name) noexcept {
  return reinterpret_cast<F*>(find_function(name));
}
#define STASHTRACE_NCCL_REAL(name) \
  (::stashtrace::nccl::real_function<::stashtrace::nccl::function::name>(::stashtrace::nccl::Name::name))

int nccl_version() noexcept;  // 22809, 0 if unknown

}  // namespace stashtrace::nccl
