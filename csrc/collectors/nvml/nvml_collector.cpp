// Counters of devices, sampled by a separate thread. SPDX-License-Identifier: Apache-2.0
//
// Callers: Runtime (start, stop) and the drainer (tick), which looks for a loaded driver and starts the thread in
// sampler.cpp. A process that never loads libcuda pays one look at a counter of the loader per tick.
#include <pthread.h>

#include <atomic>

#include "collectors/collector.h"
#include "collectors/nvml/libraries.h"
#include "collectors/nvml/sampler.h"
#include "core/raw_syscall.h"
#include "runtime/emit.h"

namespace stashtrace::nvml {
namespace {

constexpr std::int64_t kExitWaitNs = 200'000'000;

constinit Sampler g_sampler;

void stop_sampler() noexcept { g_sampler.stop(kExitWaitNs); }
void before_fork() noexcept { g_sampler.before_fork(); }
void after_fork_in_parent() noexcept { g_sampler.after_fork_in_parent(); }
void after_fork_in_child() noexcept { g_sampler.after_fork_in_child(); }

class Nvml final : public Collector, public TickListener {
 public:
  Status start(Context& context) noexcept override {
    if (context.config().nvml_hz == 0) return Status::ok();
    context_ = &context;
    pid_ = raw::getpid();
    if (!context.add_tick_listener(*this))
      return Status::failed("no_tick_listener_left", "device counters are missing");
    on_.store(true, std::memory_order_release);
    return Status::ok();
  }
  void stop() noexcept override {
    on_.store(false, std::memory_order_release);
    stop_sampler();
  }

  void tick(std::uint64_t) noexcept override {
    if (!on_.load(std::memory_order_acquire) || !g_sampler.idle() || !recording()) return;
    // A forked child: its parent may have used CUDA, and then neither CUDA nor NVML works here.
    if (raw::getpid() != pid_ || !driver_is_loaded()) return;
    pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child);
    g_sampler.start_thread(*context_, &stop_sampler);
  }

 private:
  std::atomic<bool> on_{false};
  Context* context_ = nullptr;
  int pid_ = 0;
};

constinit Nvml g_collector;

}  // namespace
}  // namespace stashtrace::nvml

namespace stashtrace::collectors {
Collector& nvml() noexcept { return stashtrace::nvml::g_collector; }
}  // namespace stashtrace::collectors
