// Where the loader, fork and exit reach the recorder. SPDX-License-Identifier: Apache-2.0
//
// The constructor runs in every process of a traced job, also in `ls`: it reads the environment and the clocks and
// makes one page of memory. Hooks may be called before it; they then see a process that is not traced.
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "runtime/emit.h"
#include "runtime/runtime.h"

namespace stashtrace {

namespace {

// glibc keeps values of the first 32 keys in the thread itself and allocates for the others. We may be inside a call
// of malloc, so with a later key a thread's end is only noticed when another thread needs its rings.
constexpr pthread_key_t kKeysWithoutAllocation = 32;

constinit bool g_has_key = false;
constinit pthread_key_t g_key = 0;
constinit std::atomic<void (*)() noexcept> g_thread_end_listener{nullptr};

void at_thread_end(void*) noexcept {
  const std::uint32_t state = detail::state_page.word.load(std::memory_order_relaxed);
  if (state == detail::kForked || state == detail::kInert) return;
  if (auto* listener = g_thread_end_listener.load(std::memory_order_acquire)) listener();
  runtime().thread_ends();
}

void at_fork_in_child() noexcept {
  if (detail::state_page.word.load(std::memory_order_relaxed) == detail::kInert) return;
  detail::state_page.word.store(detail::kForked, std::memory_order_relaxed);  // where the kernel does not wipe the page
  detail::revive();
  runtime().forked_by_libc();
}

__attribute__((constructor)) void at_load() noexcept {
  runtime().start(environ);
  if (!runtime().active()) return;
  pthread_atfork(nullptr, nullptr, &at_fork_in_child);
  at_quick_exit([] { runtime().leave(); });  // registered first, so it runs last
  g_has_key = pthread_key_create(&g_key, &at_thread_end) == 0;
}

__attribute__((destructor)) void at_exit() noexcept { runtime().finish(); }

}  // namespace

bool watch_thread_end() noexcept {
  return g_has_key && g_key < kKeysWithoutAllocation && pthread_setspecific(g_key, &g_key) == 0;
}

void on_thread_end(void (*listener)() noexcept) noexcept {
  g_thread_end_listener.store(listener, std::memory_order_release);
}

}  // namespace stashtrace
