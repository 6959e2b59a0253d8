// Implementation of slots.h, and the event budget. SPDX-License-Identifier: Apache-2.0
#include "device/slots.h"

#include <algorithm>

#include "core/clock.h"
#include "device/driver.h"

namespace stashtrace::device {

constinit Counters counters{};

namespace {

constinit Slot g_slots[kMostSlots]{};
constinit BoundedQueue<std::uint32_t, kMostSlots> g_free{};
constinit BoundedQueue<std::uint32_t, kMostSlots> g_submitted{};
constinit std::atomic<std::uint32_t> g_untouched{0};
constinit std::atomic<std::uint32_t> g_last_id{0};

}  // namespace

Slot& slot_at(std::uint32_t number) noexcept { return g_slots[number - 1]; }

std::uint32_t take_slot() noexcept {
  std::uint32_t number = kNone;
  if (g_free.pop(number)) return number;
  std::uint32_t used = g_untouched.load(std::memory_order_relaxed);
  while (used < kMostSlots)
    if (g_untouched.compare_exchange_weak(used, used + 1, std::memory_order_relaxed)) return used + 1;
  return kNone;
}

void give_slot(std::uint32_t number) noexcept { g_free.push(number); }
void submit(std::uint32_t number) noexcept { g_submitted.push(number); }

std::uint32_t next_submitted() noexcept {
  std::uint32_t number = kNone;
  return g_submitted.pop(number) ? number : kNone;
}

std::uint64_t submitted_count() noexcept { return g_submitted.pushed(); }

std::uint32_t new_bracket_id() noexcept {
  const std::uint32_t id = g_last_id.fetch_add(1, std::memory_order_relaxed) + 1;
  return id != 0 ? id : g_last_id.fetch_add(1, std::memory_order_relaxed) + 1;
}

namespace budget {
namespace {

constexpr std::uint32_t kMostStride = 1024;
constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kStepsAreGone = 5 * kSecond;

constinit std::atomic<std::uint64_t> g_spent{0};
constinit std::atomic<std::int64_t> g_began_ns{0};
constinit std::atomic<std::int64_t> g_last_step_ns{0};
constinit std::atomic<bool> g_timed{true};
constinit std::uint64_t g_seconds = 0;  // used by the harvester only
constinit std::int64_t g_last_second_ns = 0;
constinit std::atomic<std::uint32_t> g_periods{0};  // since the rate was last computed

void begin_count(std::int64_t now) noexcept {
  g_spent.store(0, std::memory_order_relaxed);
  g_began_ns.store(now, std::memory_order_relaxed);
  g_periods.store(0, std::memory_order_relaxed);
}

// Strides are powers of two, so that what one rank leaves out includes what a rank with fewer events leaves out. The
// rate covers at least a second and a whole stride: a host that runs ahead of its device enqueues steps in bursts, and
// the device sets its pace afterwards.
void look_at_rate(std::int64_t now) noexcept {
  const std::int64_t began = g_began_ns.load(std::memory_order_relaxed);
  if (began == 0) begin_count(now);
  if (began == 0 || now <= began || settings.event_budget <= 0) return;
  std::uint32_t stride = counters.stride.load(std::memory_order_relaxed);
  if (stride == 0) stride = 1;
  const std::int64_t limit = settings.event_budget;
  const auto spent = static_cast<std::int64_t>(g_spent.load(std::memory_order_relaxed));
  const bool whole = now - began >= kSecond && g_periods.load(std::memory_order_relaxed) >= stride;
  if (!whole && spent <= limit) return;
  const double rate = static_cast<double>(spent) * 1e9 / static_cast<double>(std::max(now - began, kSecond));
  const auto most = static_cast<double>(limit);
  double thinned = rate;
  for (; stride < kMostStride && thinned > most; thinned /= 2) stride *= 2;
  for (; whole && stride > 1 && thinned * 2 < 0.7 * most; thinned *= 2)
    stride /= 2;  // 0.7: no flutter around the limit
  counters.stride.store(stride, std::memory_order_relaxed);
  begin_count(now);
}

void next_period(std::uint64_t number, std::int64_t now) noexcept {
  g_periods.fetch_add(1, std::memory_order_relaxed);
  look_at_rate(now);
  const std::uint32_t stride = std::max(counters.stride.load(std::memory_order_relaxed), 1U);
  const bool timed = (number & (stride - 1)) == 0;
  if (!timed) counters.thinned_steps.fetch_add(1, std::memory_order_relaxed);
  g_timed.store(timed, std::memory_order_relaxed);
}

}  // namespace

void spend(std::uint32_t events) noexcept { g_spent.fetch_add(events, std::memory_order_relaxed); }
bool step_is_timed() noexcept { return g_timed.load(std::memory_order_relaxed); }

void step_ends(std::uint64_t number) noexcept {
  const std::int64_t now = clock_ns(CLOCK_MONOTONIC);
  g_last_step_ns.store(now, std::memory_order_relaxed);
  next_period(number + 1, now);
}

void second_ends() noexcept {
  const std::int64_t now = clock_ns(CLOCK_MONOTONIC);
  if (now - g_last_step_ns.load(std::memory_order_relaxed) < kStepsAreGone) return;
  if (now - g_last_second_ns < kSecond) return;
  g_last_second_ns = now;
  next_period(++g_seconds, now);
}

}  // namespace budget
}  // namespace stashtrace::device
