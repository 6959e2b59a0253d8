// Contexts that the job destroys: keeping the harvester out of them. SPDX-License-Identifier: Apache-2.0
//
// On the job's threads, around the call. The thread asks, the harvester answers when it has written what is done and is
// out of the context, through one word of its entry. Without a harvester the thread answers itself: no other is inside.
#include "core/clock.h"
#include "core/raw_syscall.h"
#include "device/driver.h"
#include "device/harvester.h"
#include "device/streams.h"
#include "device/timeline.h"

namespace stashtrace::device {

namespace {

static_assert(kMostContexts <= 32);

// Longest wait for the harvester: it is in a call of CUDA then, which would delay the job's call as well.
constexpr std::int64_t kHoldNs = 2'000'000'000;
constexpr std::int64_t kLookNs = 10'000'000;

void wait_until_held(ContextState& context) noexcept {
  const std::int64_t until = clock_ns(CLOCK_MONOTONIC) + kHoldNs;
  while (context.life.load(std::memory_order_acquire) == kAsked && harvester_runs() &&
         clock_ns(CLOCK_MONOTONIC) < until) {
    wake_harvester();
    raw::futex_wait(&context.life, kAsked, kLookNs);
  }
  context.life.store(kHeld, std::memory_order_release);
}

template <class Which>
std::uint32_t hold(Which which) noexcept {
  std::uint32_t held = 0;
  if (access_state.load(std::memory_order_acquire) != Access::ready || !same_process()) return held;
  for (std::size_t i = 0; ContextState* context = context_at(i); ++i) {
    std::uint32_t live = kLive;
    if (which(*context) && context->life.compare_exchange_strong(live, kAsked, std::memory_order_acq_rel))
      held |= 1U << i;
  }
  for (std::size_t i = 0; i < kMostContexts; ++i)
    if ((held >> i & 1) != 0) wait_until_held(*context_at(i));
  return held;
}

template <class Does>
void for_each(std::uint32_t held, Does does) noexcept {
  for (std::size_t i = 0; i < kMostContexts; ++i)
    if ((held >> i & 1) != 0) does(*context_at(i));
}

void end(ContextState& context) noexcept {
  end_context(context, &forget_events_on);
  if (harvester_runs()) return wake_harvester();
  lose_anchor(context);
  if (!has_open_brackets(context)) free_context(context);
}

void keep(ContextState& context) noexcept { context.life.store(kLive, std::memory_order_release); }

void end_if_inactive(ContextState& context) noexcept {
  if (driver.primary_state == nullptr || !is_primary_active(context.device)) end(context);
  else keep(context);
}

std::uint32_t hold_handle(cuda::Context handle) noexcept {
  return hold([=](const ContextState& state) { return state.context.load(std::memory_order_relaxed) == handle; });
}

std::uint32_t hold_device(std::int32_t device) noexcept {
  return hold([=](const ContextState& state) { return state.device == device && !state.not_primary; });
}

std::int32_t device_of(cuda::Context context) noexcept {
  cuda::Device device = -1;
  const CurrentContext current(context);
  return current && driver.context_device(&device) == cuda::kSuccess ? device : -1;
}

}  // namespace

void end_unseen(ContextState& context) noexcept {
  std::uint32_t live = kLive;
  if (context.life.compare_exchange_strong(live, kHeld, std::memory_order_acq_rel)) end(context);
}

EndingContexts EndingContexts::with_handle(void* context) noexcept { return EndingContexts(hold_handle(context), 0); }

EndingContexts EndingContexts::of_device(int device) noexcept { return EndingContexts(hold_device(device), 0); }

EndingContexts EndingContexts::of_current_device() noexcept {
  if (const std::int32_t device = current_device(); device >= 0) return of_device(device);
  return EndingContexts(0, hold([](const ContextState& state) { return !state.not_primary; }));
}

EndingContexts EndingContexts::of_green_context(void* green) noexcept {
  cuda::Context context = nullptr;
  if (access_state.load(std::memory_order_acquire) != Access::ready || !same_process() ||
      driver.context_of_green == nullptr || driver.context_of_green(&context, green) != cuda::kSuccess)
    return EndingContexts(0, 0);
  const std::int32_t device = device_of(context);
  const std::uint32_t held = hold_handle(context);
  return EndingContexts(held, device < 0 ? 0 : hold_device(device));
}

// Of one that was never seen, the device is not known either; the runtime holds the primary context itself.
EndingContexts EndingContexts::of_execution_context(void* handle) noexcept {
  std::int32_t device = -1;
  const std::uint32_t held = hold([&](const ContextState& state) {
    const bool found = handle != nullptr && state.execution_context.load(std::memory_order_relaxed) == handle;
    if (found) device = state.device;
    return found;
  });
  return EndingContexts(held, device < 0 ? 0 : hold_device(device));
}

void EndingContexts::ended() const noexcept {
  for_each(held_, end);
  for_each(perhaps_, end_if_inactive);
}

void EndingContexts::ended_if_inactive() const noexcept { for_each(held_ | perhaps_, end_if_inactive); }

void EndingContexts::kept() const noexcept { for_each(held_ | perhaps_, keep); }

}  // namespace stashtrace::device
