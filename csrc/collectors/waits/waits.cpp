// The collector of blocking waits: only a threshold to set, the hooks do the rest. SPDX-License-Identifier: Apache-2.0
#include "collectors/waits/waits.h"

#include <limits>

#include "collectors/collector.h"
#include "hooks/interpose.h"

namespace stashtrace::waits {
namespace {

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

class Waits final : public Collector {
 public:
  Status start(Context& context) noexcept override {
    real::resolve_all();
    const auto hz = static_cast<unsigned __int128>(estimate_tick_hz(read_clocks(1)));
    const auto ns = static_cast<unsigned __int128>(context.config().wait_threshold_ns);
    threshold_ticks.store(static_cast<std::uint64_t>(ns * hz / 1'000'000'000), std::memory_order_relaxed);
    return Status::ok();
  }
  void stop() noexcept override { threshold_ticks.store(kNever, std::memory_order_relaxed); }
};

constinit Waits collector;

}  // namespace

constinit std::atomic<std::uint64_t> threshold_ticks = kNever;

void record_wait(std::uint16_t wait_code, const void* object, std::uint64_t begin) noexcept {
  const std::uint64_t end = now_ticks();
  if (end - begin < threshold_ticks.load(std::memory_order_relaxed)) return;
  emit(schema::ThreadWait{.begin_ticks = begin,
                          .end_ticks = end,
                          .object_hash = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(object)),
                          .wait_code = wait_code,
                          .reserved_flags = 0});
}

}  // namespace stashtrace::waits

namespace stashtrace::rooms {
Collector& waits() noexcept { return stashtrace::waits::collector; }
}  // namespace stashtrace::rooms
