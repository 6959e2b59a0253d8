// The function behind one of our hooks. SPDX-License-Identifier: Apache-2.0
//
// Callers: interpose.h (libc) and the cuda collector (libcudart). Their stubs are stored here first; each replaces itself by
// the function that they found. Any thread, also in a signal handler.
#pragma once

#include <atomic>

namespace stashtrace {

template <class F>
class Behind;
// Several threads may find it at the same time, while others call already: hence atomic. A call is a plain load and a
// jump; it orders nothing, since code is there before its address is known. The pointer is the only member
// of the object, as the assembler of syscall() expects.
template <class R, class... A>
class Behind<R(A...)> {
 public:
  using Function = R (*)(A...);
  constexpr explicit Behind(Function function) noexcept : function_(function) {}
  [[gnu::always_inline]] R operator()(A... arguments) const { return get()(arguments...); }
  [[gnu::always_inline]] Function get() const noexcept { return function_.load(std::memory_order_relaxed); }
  void set(Function function) noexcept { function_.store(function, std::memory_order_relaxed); }

 private:
  std::atomic<Function> function_;
  static_assert(sizeof(std::atomic<Function>) == sizeof(Function) && std::atomic<Function>::is_always_lock_free);
};

}  // namespace stashtrace
