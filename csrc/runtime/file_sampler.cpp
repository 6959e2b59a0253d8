// Implementation of file_sampler.h. SPDX-License-Identifier: Apache-2.0
#include "runtime/file_sampler.h"

#include <linux/prctl.h>

#include <algorithm>
#include <limits>

#include "core/apart.h"
#include "core/clock.h"
#include "core/raw_syscall.h"
#include "runtime/emit.h"
#include "runtime/runtime.h"

namespace stashtrace {

namespace {

constexpr std::int64_t kEarlyPart = 8;  // of its delay

}  // namespace

bool FileSampler::add_listener(TickListener& listener) noexcept {
  if (listener_count_ == kMostListeners) return false;
  listeners_[listener_count_++] = &listener;
  return true;
}

bool FileSampler::start(std::int64_t period_ns) noexcept {
  if (listener_count_ == 0) return true;
  period_ns_ = period_ns;
  return thread_.start([](void* self) { static_cast<FileSampler*>(self)->loop(); }, this);
}

void FileSampler::loop() noexcept {
  static constexpr char kName[] = "stashtrace proc";
  raw::call(SYS_prctl, PR_SET_NAME, raw::address(kName));
  has_own_table_ = leave_descriptor_table();  // else files are open for some microseconds in the process's table
  detail::thread_state.known = true;
  write_thread_info(schema::codes::ThreadRole::tracer, kName, sizeof kName - 1);
  std::int64_t last_ns[kMostListeners] = {}, delay_ns[kMostListeners] = {};
  while (thread_.running()) {
    const std::uint32_t seen = thread_.wakes_seen();
    std::int64_t next_ns = std::numeric_limits<std::int64_t>::max();
    for (std::size_t i = 0; i < listener_count_; ++i) {
      const std::int64_t now = clock_ns(CLOCK_MONOTONIC);
      // Asked again each time, since a pause may have ended meanwhile.
      const std::int64_t due_ns = last_ns[i] + runtime().tick_period_ns(delay_ns[i]);
      // To wake up costs the time of a tick of some listeners: one that is due soon has its turn now.
      if (now >= due_ns - delay_ns[i] / kEarlyPart) {
        last_ns[i] = std::max(now, due_ns);
        delay_ns[i] = listeners_[i]->delay_ns(period_ns_);
        listeners_[i]->tick(now_ticks());
        cpu_ns_.store(clock_ns(CLOCK_THREAD_CPUTIME_ID), std::memory_order_relaxed);
      }
      next_ns = std::min(next_ns, last_ns[i] + runtime().tick_period_ns(delay_ns[i]));
    }
    const std::int64_t left = next_ns - clock_ns(CLOCK_MONOTONIC);
    if (left > 0) thread_.sleep(seen, left);
  }
}

void FileSampler::reset_after_fork() noexcept {
  thread_.reset_after_fork();
  cpu_ns_.store(0, std::memory_order_relaxed);
}

}  // namespace stashtrace
