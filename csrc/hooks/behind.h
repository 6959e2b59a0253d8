// The function that one of our hooks stands in front of. SPDX-License-Identifier: Apache-2.0
//
// Callers: interpose.h (libc) and the cuda room (libcudart), whose stubs put themselves in first and the function they
// found in their own place. Any thread, also in a signal handler.
#pragma once

#include <atomic>

namespace stashtrace {

template <class F>
class Behind;
// Threads that call it first at once may each find it, while others call already: hence atomic. A call is a plain load and a
// jump; nothing is ordered by it, since code is there before its address is known. The pointer is all there is
// in the object, as the assembler of syscall() expects.
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
