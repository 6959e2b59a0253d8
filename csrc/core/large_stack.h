// Runs a piece of work on a separate stack. SPDX-License-Identifier: Apache-2.0
//
// Hooks also run on alternate signal stacks, of 8 KiB and less, and on small stacks of threads and coroutines. What
// opens files, makes rings or writes rows needs more than a hook may take there. Same thread, unlike core/apart.h: its id
// and its signal mask are the caller's. Signals are blocked meanwhile, so no handler runs on the other stack and nothing
// that looks at the thread from outside finds it there.
//
// Callers: slow paths of the recorder and of the hooks of exec. No lock, no allocation by the C library, errno untouched,
// safe in signal handlers and in vfork children. Costs four system calls and the pages that the work touches, about 3 us.
#pragma once

#include <type_traits>

namespace stashtrace {

// Calls work(argument); on the caller's stack if no memory can be had. The work must return: no longjmp, no end of thread.
void run_on_large_stack(void (*work)(void*), void* argument) noexcept;

template <class Work>
[[gnu::always_inline]] inline auto on_large_stack(Work work) noexcept {
  using Result = std::invoke_result_t<Work&>;
  if constexpr (std::is_void_v<Result>) {
    run_on_large_stack([](void* self) { (*static_cast<Work*>(self))(); }, &work);
  } else {
    struct {
      Work* work;
      Result result;
    } call{&work, {}};
    run_on_large_stack(
        [](void* self) {
          auto* called = static_cast<decltype(call)*>(self);
          called->result = (*called->work)();
        },
        &call);
    return call.result;
  }
}

}  // namespace stashtrace
