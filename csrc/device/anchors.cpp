// Pairs of device time and ticks: bracketed readings of the event clock and of %globaltimer. SPDX-License-Identifier: Apache-2.0
//
// On the harvester's thread, except prepare_globaltimer(). An event's time is only known relative to another event, as
// a float of ms: half a microsecond at 4 s. So each reading makes a new reference, whose time is chained to the last.
#include "core/clock.h"
#include "core/raw_syscall.h"
#include "device/driver.h"
#include "device/harvester.h"
#include "device/timeline.h"
#include "runtime/emit.h"

namespace stashtrace::device {

namespace {

constexpr std::int64_t kPeriodNs = 2'000'000'000;
constexpr std::int64_t kRetryNs = 100'000'000;
constexpr std::int64_t kTryNs = 5'000'000;  // longest spin of one reading; a full device is tried again later
constexpr int kTries = 6;

constexpr char kTimerModule[] = R"(.version 6.0
.target sm_50
.address_size 64
.visible .entry stashtrace_globaltimer(.param .u64 to)
{
  .reg .u64 %a, %t;
  ld.param.u64 %a, [to];
  cvta.to.global.u64 %a, %a;
  mov.u64 %t, %globaltimer;
  st.volatile.global.u64 [%a], %t;
  membar.sys;
  ret;
}
)";

void write_reading(const ContextState& context, std::uint16_t clock, std::uint64_t before, std::uint64_t after,
                   std::int64_t device_ns) noexcept {
  emit(schema::DeviceClockReading{.before_ticks = before,
                                  .after_ticks = after,
                                  .device_ns = device_ns,
                                  .device_index = context.device,
                                  .clock_code = clock,
                                  .reserved_flags = 0});
}

bool make_private_stream(ContextState& context) noexcept {
  if (context.private_stream != nullptr) return true;
  int least = 0, greatest = 0;
  if (driver.context_priorities != nullptr) driver.context_priorities(&least, &greatest);
  const cuda::Result result = driver.stream_create(&context.private_stream, cuda::kStreamNonBlocking, greatest);
  count_result(result);
  if (result != cuda::kSuccess) context.private_stream = nullptr;
  return result == cuda::kSuccess;
}

struct Reading {
  cuda::Event event = nullptr;
  std::uint64_t before = 0, after = 0;
  std::int64_t host_ns = 0;
};

// False: the driver refused, or the device did not reach it in time.
bool read_event(ContextState& context, Reading& reading) noexcept {
  reading.event = take_event(context);
  if (reading.event == nullptr) return false;
  const std::int64_t until = clock_ns(CLOCK_MONOTONIC) + kTryNs;
  reading.before = now_ticks();
  cuda::Result result = driver.event_record(reading.event, context.private_stream);
  if (result == cuda::kSuccess) do
      result = driver.event_query(reading.event);
    while (result == cuda::kNotReady && clock_ns(CLOCK_MONOTONIC) < until);
  reading.after = now_ticks();
  reading.host_ns = clock_ns(CLOCK_MONOTONIC);
  if (result == cuda::kSuccess) return true;
  if (result == cuda::kNotReady) {
    give_event(context, reading.event);
    return false;
  }
  count_result(result);
  lose_anchor(context);
  return false;
}

bool read_clock(ContextState& context) noexcept {
  Reading best;
  for (int i = 0; i < kTries; ++i) {
    Reading reading;
    if (!read_event(context, reading)) break;
    if (best.event != nullptr && reading.after - reading.before >= best.after - best.before) {
      give_event(context, reading.event);
      continue;
    }
    give_event(context, best.event);
    best = reading;
  }
  if (best.event == nullptr) return false;
  std::int64_t device_ns = best.host_ns;  // the first is a host time, so that contexts of a device agree
  if (context.anchor != nullptr) {
    device_ns = event_ns(context, best.event);
    give_event(context, context.anchor);
  }
  context.anchor = best.event;
  context.anchor_ns = device_ns != 0 ? device_ns : best.host_ns;
  context.anchored_at_ns = best.host_ns;
  write_reading(context, schema::codes::DeviceClock::event, best.before, best.after, context.anchor_ns);
  return true;
}

bool launch_timer(ContextState& context, cuda::Function kernel, cuda::Stream stream) noexcept {
  void* arguments[] = {&context.timer_device};
  *context.timer_host = 0;
  return driver.launch_kernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr) == cuda::kSuccess;
}

bool timer_arrives(const ContextState& context, std::int64_t limit_ns) noexcept {
  const std::int64_t until = clock_ns(CLOCK_MONOTONIC) + limit_ns;
  while (*context.timer_host == 0)
    if (clock_ns(CLOCK_MONOTONIC) >= until) return false;
  return true;
}

// False: the device had no room in time. The kernel is still to run, and no other is launched before it.
bool read_globaltimer(ContextState& context, cuda::Function kernel, cuda::Stream stream) noexcept {
  if (context.timer_in_flight && *context.timer_host == 0) return false;
  std::uint64_t before = 0, after = 0, value = 0;
  for (int i = 0; i < kTries; ++i) {
    const std::uint64_t begin = now_ticks();
    if (!launch_timer(context, kernel, stream)) break;
    context.timer_in_flight = !timer_arrives(context, kTryNs);
    const std::uint64_t end = now_ticks();
    if (context.timer_in_flight) break;
    if (value != 0 && end - begin >= after - before) continue;
    before = begin;
    after = end;
    value = *context.timer_host;
  }
  if (value == 0) return false;
  write_reading(context, schema::codes::DeviceClock::globaltimer, before, after, static_cast<std::int64_t>(value));
  return true;
}

}  // namespace

std::int64_t event_ns(const ContextState& context, cuda::Event event) noexcept {
  float ms = 0;
  double sign = 1;
  cuda::Result result = driver.event_elapsed(&ms, context.anchor, event);
  if (result != cuda::kSuccess) {  // a driver may give no negative time for an event before the first anchor
    sign = -1;
    result = driver.event_elapsed(&ms, event, context.anchor);
  }
  count_result(result);
  if (result != cuda::kSuccess) return 0;
  return context.anchor_ns + rounded_ns(sign * static_cast<double>(ms));
}

void lose_anchor(ContextState& context) noexcept {
  context.anchor = nullptr;
  context.private_stream = nullptr;
  context.anchored_at_ns = 0;
  context.retry_at_ns = 0;
  context.timer_kernel.store(nullptr, std::memory_order_release);
}

// Without brackets since the last reading a context is left alone, so that an idle device may sleep; NCCL's stamps come
// without brackets. Where events are not allowed, %globaltimer is read when communicators are made and at the end.
bool keep_anchored(ContextState& context, std::int64_t now_ns, bool last_chance) noexcept {
  const cuda::Function kernel = context.timer_kernel.load(std::memory_order_acquire);
  const bool wanted = kernel != nullptr || context.brackets.load(std::memory_order_relaxed) != 0;
  const bool due = last_chance || (settings.timing && now_ns >= context.retry_at_ns &&
                                   (context.timer_missed || now_ns - context.anchored_at_ns >= kPeriodNs));
  if (!wanted || !due) return context.anchor != nullptr;
  const CurrentContext current(context.context.load(std::memory_order_relaxed));
  context.brackets.store(0, std::memory_order_relaxed);
  context.retry_at_ns = 0;
  if (current && !stays_out_of_captures()) {
    stop_timing();
    return false;
  }
  if (!current || !make_private_stream(context) || (settings.timing && !read_clock(context))) {
    context.brackets.fetch_add(1, std::memory_order_relaxed);
    context.retry_at_ns = now_ns + kRetryNs;
  } else if (kernel != nullptr) {
    context.timer_missed = !read_globaltimer(context, kernel, context.private_stream);
    if (context.timer_missed) context.retry_at_ns = now_ns + kRetryNs;  // two seconds on, a short job has ended
  }
  return context.anchor != nullptr;
}

void prepare_globaltimer() noexcept {
  if (!ready() || driver.module_load == nullptr || driver.module_function == nullptr ||
      driver.launch_kernel == nullptr || driver.host_alloc == nullptr || driver.host_device_pointer == nullptr)
    return;
  cuda::Context current = nullptr;
  if (driver.context_current(&current) != cuda::kSuccess || current == nullptr) return;
  ContextState* context = find_context(current);
  if (context == nullptr || context->timer_kernel.load(std::memory_order_acquire) != nullptr ||
      context->timer_tried.exchange(true, std::memory_order_relaxed))
    return;
  const RelaxedCapture relaxed;
  if (!relaxed) return stop_timing();
  cuda::Module module = nullptr;
  cuda::Function kernel = nullptr;
  cuda::Stream stream = nullptr;
  void* memory = nullptr;
  const bool loaded = driver.module_load(&module, kTimerModule) == cuda::kSuccess &&
                      driver.module_function(&kernel, module, "stashtrace_globaltimer") == cuda::kSuccess &&
                      driver.host_alloc(&memory, sizeof(std::uint64_t), cuda::kHostAllocDeviceMap) == cuda::kSuccess &&
                      driver.host_device_pointer(&context->timer_device, memory, 0) == cuda::kSuccess &&
                      driver.stream_create(&stream, cuda::kStreamNonBlocking, 0) == cuda::kSuccess;
  if (!loaded) {
    report("no_globaltimer", 0,
           "the kernel that reads %globaltimer was refused: device stamps of NCCL cannot be placed",
           schema::codes::Severity::info);
    return;
  }
  context->timer_host = static_cast<std::uint64_t*>(memory);
  // The first launch loads the code where modules load lazily; afterwards nothing is loaded while NCCL's kernels run.
  if (launch_timer(*context, kernel, stream)) {
    context->timer_in_flight = !timer_arrives(*context, 4 * kTryNs);
    context->timer_missed = !read_globaltimer(*context, kernel, stream);
  }
  context->timer_kernel.store(kernel, std::memory_order_release);
  start_harvester();
}

}  // namespace stashtrace::device
