// Life of a background thread of the recorder: started, woken, stopped, gone. SPDX-License-Identifier: Apache-2.0
//
// Callers: Drainer, FileSampler; collectors of devices also use start_detached(). The thread inherits its mask, with
// all signals blocked, and is never in a forked child.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace stashtrace {

// Starts a detached thread with all signals blocked; false if it was refused. Call at a safe point: pthread_create
// allocates. Keeps errno. For all our threads that last.
bool start_detached(void* (*main)(void*), void* argument, std::size_t stack_bytes) noexcept;

class OwnThread {
 public:
  // The thread calls body(argument), which returns soon after running() turned false. Call at a safe point: it calls
  // pthread_create, which allocates. True also if it runs already; false if it was refused or stopped before.
  bool start(void (*body)(void*), void* argument) noexcept;
  // Returns when the kernel has released the thread, or after about `wait_ns`.
  void stop(std::int64_t wait_ns) noexcept;
  bool running() const noexcept { return state_.load(std::memory_order_acquire) == kRunning; }
  void wake() noexcept;
  void reset_after_fork() noexcept;

  // To be called on the thread itself. A wake() after wakes_seen() ends the sleep at once.
  std::uint32_t wakes_seen() const noexcept { return wakes_.load(std::memory_order_acquire); }
  void sleep(std::uint32_t seen, std::int64_t limit_ns) noexcept;

 private:
  enum State : std::uint32_t { kNone, kRunning, kStopping, kStopped, kRefused };

  static void* main(void* self) noexcept;

  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  std::atomic<std::uint32_t> state_{kNone};
  std::atomic<std::int32_t> thread_id_{0};
  std::atomic<std::uint32_t> wakes_{0};
  std::atomic<bool> sleeping_{false};
};

}  // namespace stashtrace
