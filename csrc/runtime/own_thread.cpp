// Implementation of own_thread.h. SPDX-License-Identifier: Apache-2.0
#include "runtime/own_thread.h"

#include <pthread.h>

#include <cerrno>
#include <cstddef>

#include "core/raw_syscall.h"

namespace stashtrace {

namespace {
constexpr std::size_t kStackBytes = 256 * 1024;
}  // namespace

bool start_detached(void* (*main)(void*), void* argument, std::size_t stack_bytes) noexcept {
  const int saved_errno = errno;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, stack_bytes);
  pthread_t thread;
  int error;
  {
    const raw::SignalsBlocked inherited_by_the_thread;
    error = pthread_create(&thread, &attributes, main, argument);
  }
  pthread_attr_destroy(&attributes);
  errno = saved_errno;
  return error == 0;
}

bool OwnThread::start(void (*body)(void*), void* argument) noexcept {
  std::uint32_t none = kNone;
  if (!state_.compare_exchange_strong(none, kRunning, std::memory_order_acq_rel)) return none == kRunning;
  body_ = body;
  argument_ = argument;
  const bool started = start_detached(&OwnThread::main, this, kStackBytes);
  if (!started) state_.store(kRefused, std::memory_order_release);
  return started;
}

void* OwnThread::main(void* self) noexcept {
  auto& thread = *static_cast<OwnThread*>(self);
  thread.thread_id_.store(raw::gettid(), std::memory_order_relaxed);
  thread.body_(thread.argument_);
  thread.state_.store(kStopped, std::memory_order_release);
  raw::futex_wake(&thread.state_, 1);
  return nullptr;
}

void OwnThread::wake() noexcept {
  // Each side stores its own word before it looks at the other's: with less than this order both might miss the other.
  wakes_.fetch_add(1, std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_seq_cst)) raw::futex_wake(&wakes_, 1);
}

void OwnThread::sleep(std::uint32_t seen, std::int64_t limit_ns) noexcept {
  sleeping_.store(true, std::memory_order_seq_cst);
  raw::futex_wait(&wakes_, seen, limit_ns);
  sleeping_.store(false, std::memory_order_relaxed);
}

void OwnThread::stop(std::int64_t wait_ns) noexcept {
  std::uint32_t running = kRunning;
  if (!state_.compare_exchange_strong(running, kStopping, std::memory_order_acq_rel)) return;
  wake();
  constexpr std::int64_t kSlice = 10'000'000;
  for (std::int64_t waited = 0; waited < wait_ns; waited += kSlice) {
    if (state_.load(std::memory_order_acquire) == kStopped) break;
    raw::futex_wait(&state_, kStopping, kSlice);
  }
  if (state_.load(std::memory_order_acquire) == kStopped)
    raw::wait_until_gone(raw::getpid(), thread_id_.load(std::memory_order_relaxed), wait_ns);
}

void OwnThread::reset_after_fork() noexcept {
  state_.store(kNone, std::memory_order_relaxed);
  sleeping_.store(false, std::memory_order_relaxed);
}

}  // namespace stashtrace
