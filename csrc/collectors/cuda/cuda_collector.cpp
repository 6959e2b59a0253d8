// The collector of CUDA calls: on and off; the hooks do the rest. SPDX-License-Identifier: Apache-2.0
#include "collectors/cuda/cuda_collector.h"

#include <atomic>

#include "collectors/cuda/calls.h"

namespace stashtrace::cuda {

namespace {

constinit stashtrace::Context* g_context = nullptr;
constinit std::atomic<std::uint64_t> g_slow_ticks{0};  // 0: not computed yet

class Cuda final : public Collector {
 public:
  // The probes' brackets also work without preload, so nothing is refused here; the docs say what is then not seen.
  Status start(stashtrace::Context& context) noexcept override {
    g_context = &context;
    device::use(context);
    cuda_is_on = true;
    return Status::ok();
  }
  void stop() noexcept override {
    cuda_is_on = false;
    device::stop();
  }
  // If the parent had not used CUDA, the child may, and is recorded; otherwise the driver is left alone.
  void after_fork() noexcept override { device::after_fork(); }
};

constinit Cuda g_collector;

}  // namespace

bool lookup_hook_is_on() noexcept { return cuda_is_on && g_context->config().lookup_hook; }

bool is_slow(std::uint64_t ticks) noexcept {
  std::uint64_t slow = g_slow_ticks.load(std::memory_order_relaxed);
  if (slow == 0) {
    const auto ns = static_cast<unsigned __int128>(g_context->config().wait_threshold_ns);
    slow = static_cast<std::uint64_t>(ns * g_context->tick_hz() / 1'000'000'000) + 1;
    g_slow_ticks.store(slow, std::memory_order_relaxed);
  }
  return ticks > slow;
}

}  // namespace stashtrace::cuda

namespace stashtrace::collectors {
Collector& cuda() noexcept { return stashtrace::cuda::g_collector; }
}  // namespace stashtrace::collectors
