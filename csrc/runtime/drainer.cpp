// Implementation of drainer.h. SPDX-License-Identifier: Apache-2.0
#include "runtime/drainer.h"

#include <linux/prctl.h>

#include <cerrno>

#include "core/apart.h"
#include "core/clock.h"
#include "core/large_stack.h"
#include "core/log.h"
#include "core/raw_syscall.h"
#include "core/ring.h"
#include "runtime/runtime.h"

namespace stashtrace {

namespace {

constexpr std::int64_t kRetryNs = 1'000'000'000;
constexpr std::size_t kMostAtOnce = 8;  // rings; a thread that waits for one of them waits for all

bool is_free(container::RingHeader* ring) noexcept {
  return std::atomic_ref(ring->state).load(std::memory_order_relaxed) == ring::kFree;
}

}  // namespace

bool Drainer::drain_locked(container::RingHeader* const* rings, std::size_t count, LogLevel level) noexcept {
  SegmentWriter::Due due[kMostAtOnce];
  std::size_t due_count = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const ring::Batch batch = ring::pending(rings[i]);
    if (batch.count == 0) continue;
    due[due_count++] = {rings[i], batch};
  }
  if (due_count == 0) return true;
  std::size_t written = 0;
  const Status status = writer_.append(due, due_count, written);
  for (std::size_t i = 0; i < written; ++i) ring::consume(due[i].ring, due[i].batch.first + due[i].batch.count);
  failing_.store(!status, std::memory_order_relaxed);
  if (status) return true;
  runtime().note_write_error(status.error_number());
  blocked_until_ns_.store(clock_ns(CLOCK_MONOTONIC) + kRetryNs, std::memory_order_relaxed);
  if (status.error_number() == EINVAL && has_left_namespace()) level = LogLevel::info;
  log_line(level, "cannot write records", writer_.file().path(), status.error_number());
  return false;
}

bool Drainer::drain(container::RingHeader* ring, std::int64_t wait_ns) noexcept {
  const std::int64_t begin = clock_ns(CLOCK_MONOTONIC);
  if (begin < blocked_until_ns_.load(std::memory_order_relaxed)) return false;
  if (!lock_.lock_within(wait_ns)) return false;
  const bool done = on_large_stack([&]() noexcept { return drain_locked(&ring, 1, LogLevel::error); });
  lock_.unlock();
  self_drain_ns_.fetch_add(clock_ns(CLOCK_MONOTONIC) - begin, std::memory_order_relaxed);
  return done;
}

bool Drainer::drain_all(bool only_full, std::int64_t wait_ns, LogLevel level) noexcept {
  bool done = true;
  for (std::size_t i = 0; i < rings_.count() && done;) {
    container::RingHeader* due[kMostAtOnce];
    std::size_t count = 0;
    for (; i < rings_.count() && count < kMostAtOnce; ++i) {
      container::RingHeader* ring = rings_.at(i);
      const ring::Batch batch = ring::pending(ring);
      if (batch.count != 0 && (!only_full || is_free(ring) || batch.count * 4 > ring->row_mask)) due[count++] = ring;
    }
    if (count == 0) continue;
    if (!lock_.lock_within(wait_ns)) return false;
    done = on_large_stack([&]() noexcept { return drain_locked(due, count, level); });
    lock_.unlock();
  }
  return done;
}

bool Drainer::everything_written() const noexcept {
  for (std::size_t i = 0; i < rings_.count(); ++i) {
    container::RingHeader* ring = rings_.at(i);
    if (!ring::is_intact(ring) || ring::pending(ring).count != 0 || ring::dropped(ring) != 0) return false;
  }
  return true;
}

bool Drainer::add_listener(TickListener& listener) noexcept {
  if (listener_count_ == kMostListeners) return false;
  listeners_[listener_count_++] = &listener;
  return true;
}

bool Drainer::start_thread(std::int64_t period_ns) noexcept {
  if (!thread_.running()) period_ns_ = period_ns;
  return thread_.start([](void* self) { static_cast<Drainer*>(self)->loop(); }, this);
}

void Drainer::loop() noexcept {
  raw::call(SYS_prctl, PR_SET_NAME, raw::address("stashtrace"));
  runtime().drainer_thread_begins();
  std::int64_t next_tick = clock_ns(CLOCK_MONOTONIC);
  while (thread_.running()) {
    const std::uint32_t seen = thread_.wakes_seen();
    const std::int64_t now = clock_ns(CLOCK_MONOTONIC);
    if (now >= next_tick) {
      next_tick = now + runtime().tick_period_ns(period_ns_);
      for (std::size_t i = 0; i < listener_count_; ++i) listeners_[i]->tick(now_ticks());
      runtime().drainer_thread_ticks();
    }
    if (now >= blocked_until_ns_.load(std::memory_order_relaxed)) drain_all(true, kRetryNs);
    thread_cpu_ns_.store(clock_ns(CLOCK_THREAD_CPUTIME_ID), std::memory_order_relaxed);
    const std::int64_t left = next_tick - clock_ns(CLOCK_MONOTONIC);
    if (left > 0) thread_.sleep(seen, left);
  }
}

void Drainer::reset_after_fork() noexcept {
  lock_.reset();
  thread_.reset_after_fork();
  blocked_until_ns_.store(0, std::memory_order_relaxed);
  failing_.store(false, std::memory_order_relaxed);
  thread_cpu_ns_.store(0, std::memory_order_relaxed);
  self_drain_ns_.store(0, std::memory_order_relaxed);
}

}  // namespace stashtrace
