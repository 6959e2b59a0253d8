// The collector of blocking waits: a threshold; the hooks do the rest. SPDX-License-Identifier: Apache-2.0
#include "collectors/waits/hooked_wait.h"

#include <limits>

#include "collectors/collector.h"
#include "hooks/interpose.h"
#include "runtime/capi.h"
#include "stacks/stacks.h"

namespace stashtrace::waits {
namespace {

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

constinit Context* runtime_context = nullptr;
constinit std::atomic<std::uint64_t> threshold_ticks = 0;  // 0: not computed yet; kNever: the collector is off
constinit std::atomic<const void*> interpreter_begin = nullptr, interpreter_end = nullptr;

std::uint64_t learn_threshold() noexcept {
  if (runtime_context == nullptr) return kNever;
  const auto ns = static_cast<unsigned __int128>(runtime_context->config().wait_threshold_ns);
  const auto ticks = static_cast<std::uint64_t>(ns * runtime_context->tick_hz() / 1'000'000'000);
  threshold_ticks.store(ticks == 0 ? 1 : ticks, std::memory_order_relaxed);
  return ticks;
}

class Waits final : public Collector {
 public:
  Status start(Context& context) noexcept override {
    if (!real::in_front()) return Status::failed("not_preloaded", "without LD_PRELOAD no wait is seen");
    real::resolve_all();
    runtime_context = &context;
    return Status::ok();
  }
  void stop() noexcept override { threshold_ticks.store(kNever, std::memory_order_relaxed); }
};

constinit Waits collector;

}  // namespace

bool from_interpreter(const void* caller) noexcept {
  const void* end = interpreter_end.load(std::memory_order_acquire);  // stored last
  return caller < end && caller >= interpreter_begin.load(std::memory_order_relaxed);
}

void record_wait(std::uint16_t wait_code, const void* object, std::uint64_t begin, bool ended) noexcept {
  const std::uint64_t end = now_ticks();
  std::uint64_t threshold = threshold_ticks.load(std::memory_order_relaxed);
  if (threshold == 0) threshold = learn_threshold();
  if (end - begin < threshold) return;
  // First of all, since others take the GIL meanwhile.
  const bool is_long = end - begin >= stacks::long_call_ticks.load(std::memory_order_relaxed);
  const std::uint32_t gil_tid = is_long && ended ? stacks::last_gil_holder() : 0;
  stacks::note_call(begin, end, schema::codes::StackCause::wait);
  emit(schema::ThreadWait{.begin_ticks = begin,
                          .end_ticks = end,
                          .object_hash = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(object)),
                          .wait_code = wait_code,
                          .gil_holder_hash = static_cast<std::uint16_t>(gil_tid)});
}

}  // namespace stashtrace::waits

void stashtrace_interpreter_code(const void* begin, const void* end) noexcept {
  stashtrace::waits::interpreter_begin.store(begin, std::memory_order_relaxed);
  stashtrace::waits::interpreter_end.store(end, std::memory_order_release);
}

namespace stashtrace::collectors {
Collector& waits() noexcept { return stashtrace::waits::collector; }
}  // namespace stashtrace::collectors
