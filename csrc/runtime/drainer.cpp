// Implementation of drainer.h. SPDX-License-Identifier: Apache-2.0
#include "runtime/drainer.h"

#include <linux/prctl.h>
#include <pthread.h>

#include <cerrno>

#include "core/clock.h"
#include "core/log.h"
#include "core/raw_syscall.h"
#include "core/ring.h"
#include "runtime/runtime.h"

namespace stashtrace {

namespace {

constexpr std::int64_t kRetryNs = 1'000'000'000;
constexpr std::size_t kStackBytes = 256 * 1024;

bool is_free(container::LaneHeader* lane) noexcept {
  return std::atomic_ref(lane->state).load(std::memory_order_relaxed) == ring::kFree;
}

}  // namespace

bool Drainer::drain_locked(container::LaneHeader* lane) noexcept {
  const ring::Batch batch = ring::pending(lane);
  if (batch.count == 0) return true;
  const Status status = writer_.append(*lane, batch);
  if (!status) {
    blocked_until_ns_.store(clock_ns(CLOCK_MONOTONIC) + kRetryNs, std::memory_order_relaxed);
    log_line(LogLevel::error, "cannot write records", writer_.file().path(), status.error_number());
    return false;
  }
  ring::consume(lane, batch.first + batch.count);
  return true;
}

bool Drainer::drain(container::LaneHeader* lane, std::int64_t wait_ns) noexcept {
  const std::int64_t begin = clock_ns(CLOCK_MONOTONIC);
  if (begin < blocked_until_ns_.load(std::memory_order_relaxed)) return false;
  if (!lock_.lock_within(wait_ns)) return false;
  const bool done = drain_locked(lane);
  lock_.unlock();
  self_drain_ns_.fetch_add(clock_ns(CLOCK_MONOTONIC) - begin, std::memory_order_relaxed);
  return done;
}

bool Drainer::drain_all(bool only_full, std::int64_t wait_ns) noexcept {
  bool done = true;
  for (std::size_t i = 0; i < lanes_.count(); ++i) {
    container::LaneHeader* lane = lanes_.at(i);
    const ring::Batch batch = ring::pending(lane);
    const bool due = !only_full || is_free(lane) || batch.count * 4 > lane->row_mask;
    if (batch.count == 0 || !due) continue;
    if (!lock_.lock_within(wait_ns)) return false;
    done = drain_locked(lane);
    lock_.unlock();
    if (!done) break;
  }
  return done;
}

bool Drainer::everything_written() const noexcept {
  for (std::size_t i = 0; i < lanes_.count(); ++i) {
    container::LaneHeader* lane = lanes_.at(i);
    if (!ring::is_intact(lane) || ring::pending(lane).count != 0 || ring::dropped(lane) != 0) return false;
  }
  return true;
}

void Drainer::wake() noexcept {
  wakes_.fetch_add(1, std::memory_order_release);
  if (sleeping_.load(std::memory_order_acquire)) raw::futex_wake(&wakes_, 1);
}

bool Drainer::add_listener(TickListener& listener) noexcept {
  if (listener_count_ == kMostListeners) return false;
  listeners_[listener_count_++] = &listener;
  return true;
}

bool Drainer::start_thread(std::int64_t period_ns) noexcept {
  std::uint32_t none = kNone;
  if (!state_.compare_exchange_strong(none, kRunning, std::memory_order_acq_rel)) return none == kRunning;
  const int saved_errno = errno;
  period_ns_ = period_ns;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_t thread;
  int error;
  {
    const raw::SignalsBlocked inherited_by_the_thread;
    error = pthread_create(&thread, &attributes, &Drainer::thread_main, this);
  }
  pthread_attr_destroy(&attributes);
  if (error != 0) state_.store(kRefused, std::memory_order_release);  // producers drain themselves from now on
  errno = saved_errno;
  return error == 0;
}

void* Drainer::thread_main(void* self) noexcept {
  static_cast<Drainer*>(self)->loop();
  return nullptr;
}

void Drainer::loop() noexcept {
  raw::call(SYS_prctl, PR_SET_NAME, raw::address("stashtrace"));
  thread_id_.store(raw::gettid(), std::memory_order_relaxed);
  runtime().drainer_thread_begins();
  std::int64_t next_tick = clock_ns(CLOCK_MONOTONIC);
  while (state_.load(std::memory_order_acquire) == kRunning) {
    const std::uint32_t seen = wakes_.load(std::memory_order_acquire);
    const std::int64_t now = clock_ns(CLOCK_MONOTONIC);
    if (now >= next_tick) {
      next_tick = now + period_ns_;
      for (std::size_t i = 0; i < listener_count_; ++i) listeners_[i]->tick(now_ticks());
      runtime().drainer_thread_ticks();
    }
    if (now >= blocked_until_ns_.load(std::memory_order_relaxed)) drain_all(true, kRetryNs);
    thread_cpu_ns_.store(clock_ns(CLOCK_THREAD_CPUTIME_ID), std::memory_order_relaxed);
    const std::int64_t left = next_tick - clock_ns(CLOCK_MONOTONIC);
    if (left <= 0) continue;
    sleeping_.store(true, std::memory_order_release);
    raw::futex_wait(&wakes_, seen, left);
    sleeping_.store(false, std::memory_order_relaxed);
  }
  state_.store(kStopped, std::memory_order_release);
  raw::futex_wake(&state_, 1);
}

void Drainer::stop_thread(std::int64_t wait_ns) noexcept {
  std::uint32_t running = kRunning;
  if (!state_.compare_exchange_strong(running, kStopping, std::memory_order_acq_rel)) return;
  wake();
  constexpr std::int64_t kSlice = 10'000'000;
  for (std::int64_t waited = 0; waited < wait_ns; waited += kSlice) {
    if (state_.load(std::memory_order_acquire) == kStopped) break;
    raw::futex_wait(&state_, kStopping, kSlice);
  }
  const int thread = thread_id_.load(std::memory_order_relaxed);
  if (state_.load(std::memory_order_acquire) == kStopped) raw::wait_until_gone(raw::getpid(), thread, wait_ns);
}

void Drainer::reset_after_fork() noexcept {
  lock_.reset();
  state_.store(kNone, std::memory_order_relaxed);
  sleeping_.store(false, std::memory_order_relaxed);
  blocked_until_ns_.store(0, std::memory_order_relaxed);
  thread_cpu_ns_.store(0, std::memory_order_relaxed);
  self_drain_ns_.store(0, std::memory_order_relaxed);
}

}  // namespace stashtrace
