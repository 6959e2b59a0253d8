// Implementation of slots.h, and the event budget. SPDX-License-Identifier: Apache-2.0
#include "device/slots.h"

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
constinit std::uint64_t g_seconds = 0;

// Strides are powers of two, so that what one rank leaves out contains what another with fewer events leaves out.
void next_period(std::uint64_t number, std::int64_t now) noexcept {
  const std::int64_t began = g_began_ns.exchange(now, std::memory_order_relaxed);
  const std::uint64_t spent = g_spent.exchange(0, std::memory_order_relaxed);
  std::uint32_t stride = counters.stride.load(std::memory_order_relaxed);
  if (stride == 0) stride = 1;
  if (began != 0 && now > began && g_timed.load(std::memory_order_relaxed) && settings.event_budget > 0) {
    const double rate = static_cast<double>(spent) * 1e9 / static_cast<double>(now - began);
    const double limit = static_cast<double>(settings.event_budget);
    while (stride < kMostStride && rate / stride > limit) stride *= 2;
    while (stride > 1 && rate / (stride / 2) < 0.7 * limit) stride /= 2;  // 0.7: no flutter around the limit
    counters.stride.store(stride, std::memory_order_relaxed);
  }
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
  if (now - g_began_ns.load(std::memory_order_relaxed) < kSecond) return;
  next_period(++g_seconds, now);
}

}  // namespace budget
}  // namespace stashtrace::device
