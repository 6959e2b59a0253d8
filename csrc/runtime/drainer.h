// Moves rows from rings to the .stash file: in one background thread, or in the producer itself.
// SPDX-License-Identifier: Apache-2.0
//
// Callers: Runtime. Draining takes one lock, with signals blocked; nothing is emitted while it is held. The
// thread exists only in processes that record much (or that asked for it); it also calls the samplers,
// except those that read files (runtime/file_sampler.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "collectors/collector.h"
#include "core/config.h"
#include "core/futex_lock.h"
#include "core/segment_writer.h"
#include "runtime/own_thread.h"
#include "runtime/ring_table.h"

namespace stashtrace {

class Drainer {
 public:
  static constexpr std::size_t kMostListeners = 8;

  constexpr Drainer(RingTable& rings, SegmentWriter& writer) noexcept : rings_(rings), writer_(writer) {}

  // Drains one ring in the calling thread, which has signals blocked. False if another thread holds the lock for longer
  // than `wait_ns`, or nothing could be written.
  bool drain(container::RingHeader* ring, std::int64_t wait_ns) noexcept;
  // Drains every ring with rows; `only_full` leaves those below a quarter in the ring, where they are safe. Failures
  // are logged at `level`.
  bool drain_all(bool only_full, std::int64_t wait_ns, LogLevel level = LogLevel::error) noexcept;
  bool everything_written() const noexcept;
  bool failing() const noexcept { return failing_.load(std::memory_order_relaxed); }  // so did the last write

  // `period_ns` between ticks. Must be called at a safe point: pthread_create allocates.
  bool start_thread(std::int64_t period_ns) noexcept;
  void stop_thread(std::int64_t wait_ns) noexcept { thread_.stop(wait_ns); }
  bool running() const noexcept { return thread_.running(); }
  void wake() noexcept { thread_.wake(); }
  bool add_listener(TickListener& listener) noexcept;
  void reset_after_fork() noexcept;

  std::int64_t thread_cpu_ns() const noexcept { return thread_cpu_ns_.load(std::memory_order_relaxed); }
  std::int64_t self_drain_ns() const noexcept { return self_drain_ns_.load(std::memory_order_relaxed); }

 private:
  void loop() noexcept;
  bool drain_locked(container::RingHeader* const* rings, std::size_t count, LogLevel level) noexcept;

  RingTable& rings_;
  SegmentWriter& writer_;
  FutexLock lock_;
  OwnThread thread_;
  std::atomic<std::int64_t> blocked_until_ns_{0};  // after a failed write: no attempt before this time
  std::atomic<bool> failing_{false};
  std::atomic<std::int64_t> thread_cpu_ns_{0};
  std::atomic<std::int64_t> self_drain_ns_{0};
  std::int64_t period_ns_ = 0;
  TickListener* listeners_[kMostListeners] = {};
  std::size_t listener_count_ = 0;
};

}  // namespace stashtrace
