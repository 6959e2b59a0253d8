// The thread that reads small files of /proc for collectors, in a separate descriptor table.
// SPDX-License-Identifier: Apache-2.0
//
// A file opened in the process's table takes the lowest free number while it is open, and the program's next open() gets
// another one than without us. So this thread leaves the table and starts with an empty one. The drainer cannot: on its
// ticks, device libraries open files and threads are started, which must stay in the process's table.
//
// Caller: Runtime. Runs only while the drainer does, and only where a collector asked (Context::add_file_listener).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "collectors/collector.h"
#include "runtime/own_thread.h"

namespace stashtrace {

class FileSampler {
 public:
  static constexpr std::size_t kMostListeners = 4;

  bool add_listener(TickListener& listener) noexcept;
  bool start(std::int64_t period_ns) noexcept;  // call at a safe point; does nothing without listeners
  void stop(std::int64_t wait_ns) noexcept { thread_.stop(wait_ns); }
  void wake() noexcept { thread_.wake(); }  // recording begins: ticks may be due that were put off
  void reset_after_fork() noexcept;
  bool has_own_table() const noexcept { return has_own_table_; }  // on its own thread
  std::int64_t cpu_ns() const noexcept { return cpu_ns_.load(std::memory_order_relaxed); }

 private:
  void loop() noexcept;

  OwnThread thread_;
  std::atomic<std::int64_t> cpu_ns_{0};
  std::int64_t period_ns_ = 0;
  bool has_own_table_ = false;
  TickListener* listeners_[kMostListeners] = {};
  std::size_t listener_count_ = 0;
};

}  // namespace stashtrace
