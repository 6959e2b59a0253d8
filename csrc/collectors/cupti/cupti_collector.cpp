// The collector of deep mode: every kernel and copy, for a window of steps. SPDX-License-Identifier: Apache-2.0
//
// Off unless STASHTRACE_KERNELS is set, or the launcher's side may ask for steps while the job runs. Nothing of CUPTI is
// touched here: session.h does that at a step boundary. Called by Runtime (start, stop), by the drainer (tick) and by the
// probes through runtime/capi.h.
#include "collectors/collector.h"
#include "collectors/cupti/session.h"
#include "runtime/capi.h"

namespace stashtrace::cupti {
namespace {

constinit Context* runtime_context = nullptr;
constinit bool other_is_injected = false;
constexpr const char* kInjected = "another profiler is injected into this process by its environment";

class Cupti final : public Collector, public TickListener {
 public:
  Status start(Context& context) noexcept override {
    const Config& config = context.config();
    if (config.kernels == KernelMode::off && !config.followed) return Status::ok();
    other_is_injected = config.injected_profiler[0] != '\0';
    if (other_is_injected)
      return config.kernels == KernelMode::off ? Status::ok() : Status::failed("another_profiler", kInjected);
    StepRange steps{};
    if (!parse_steps(config.kernels_steps, steps))
      return Status::failed("kernels_steps_unreadable", "STASHTRACE_KERNELS_STEPS is not a range A:B");
    if (!context.add_tick_listener(*this)) return Status::failed("too_many_samplers");
    runtime_context = &context;
    if (config.followed) session().allow_requests(config.kernels == KernelMode::graphs);
    if (config.kernels != KernelMode::off) session().configure(steps, config.kernels == KernelMode::graphs);
    return Status::ok();
  }
  void stop() noexcept override { session().stop(); }
  void after_fork() noexcept override { session().forget(); }
  void tick(std::uint64_t) noexcept override { session().tick(); }
};

constinit Cupti collector;

}  // namespace
}  // namespace stashtrace::cupti

extern "C" {

void stashtrace_kernels_step(uint64_t step) noexcept {
  using namespace stashtrace;
  if (cupti::runtime_context != nullptr) cupti::session().step(step, cupti::runtime_context->tick_hz());
}

uint32_t stashtrace_kernels_window(uint64_t first, uint64_t end) noexcept {
  using namespace stashtrace::cupti;
  if (other_is_injected) session().refuse("another_profiler", kInjected);
  if (runtime_context == nullptr || first >= end) return 2;
  switch (session().ask({first, end})) {
    case Answer::taken: return 1;
    case Answer::later: return 0;
    case Answer::never: break;
  }
  return 2;
}

uint32_t stashtrace_kernels_end(uint64_t step) noexcept {
  return stashtrace::cupti::session().end_before(step) ? 1 : 0;
}

void stashtrace_kernels_step_aside(const char* who) noexcept { stashtrace::cupti::session().step_aside(who); }

}  // extern "C"

namespace stashtrace::collectors {
Collector& cupti() noexcept { return stashtrace::cupti::collector; }
}  // namespace stashtrace::collectors
