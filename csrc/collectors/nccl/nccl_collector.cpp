// The collector of NCCL: settings, what is counted, what happens at the first communicator. SPDX-License-Identifier: Apache-2.0
#include "collectors/nccl/nccl_collector.h"

#include <unistd.h>

#include <algorithm>

#include "collectors/collector.h"
#include "collectors/nccl/activation.h"
#include "collectors/nccl/calls.h"
#include "collectors/nccl/chain.h"
#include "collectors/nccl/functions.h"
#include "collectors/nccl/hazards.h"
#include "collectors/nccl/hooks.h"
#include "collectors/nccl/late_launches.h"
#include "collectors/nccl/plugin.h"
#include "core/raw_syscall.h"
#include "core/string_table.h"
#include "core/text_buffer.h"
#include "device/timeline.h"
#include "hooks/interpose.h"
#include "runtime/capi.h"
#include "runtime/emit.h"

namespace stashtrace::nccl {

constinit Settings settings;

namespace {

constinit std::atomic<std::uint64_t> g_counts[static_cast<unsigned>(Count::kCount)] = {};
constinit std::atomic<std::uint32_t> g_calls{0}, g_tasks{0}, g_batches{0};
constinit std::atomic<bool> g_reported_source{false};
constinit std::atomic<bool> g_prepared{false};
constinit Context* g_context = nullptr;
constinit std::atomic<int> g_pid{0};

// False in a child that recorded nothing: the pools then hold its parent's data.
bool is_own_process() noexcept { return g_pid.load(std::memory_order_relaxed) == raw::getpid(); }

struct LossText {
  const char* reason;
  const char* detail;
  std::uint16_t severity;
};
// In the order of Count.
constexpr LossText kLossOfCount[] = {
    {"plugin_pool_full", "more events of NCCL's plugin in flight than there are slots",
     schema::codes::Severity::data_loss},
    {"group_full", "operations of a group that was too large: they have no event and no time of return",
     schema::codes::Severity::data_loss},
    {"stamp_order", "channels whose stop was seen before their start, or not at all (NCCL before 2.31): untimed",
     schema::codes::Severity::info},
    {"untimed_operations", "operations that NCCL gave no device stamps for", schema::codes::Severity::info},
    {"late_events", "events of NCCL's plugin whose parent was no longer known", schema::codes::Severity::info},
    {"too_many_communicators", "communicators beyond what can be followed", schema::codes::Severity::data_loss},
    {"launch_unseen",
     "operations of non-blocking communicators have no device times: the program used their streams or the communicator "
     "before it asked ncclCommGetAsyncError whether they were launched",
     schema::codes::Severity::data_loss},
    {"proxy_for_other_process", "proxy operations on behalf of another process (PXN): their operation is not named",
     schema::codes::Severity::info},
};
static_assert(sizeof kLossOfCount / sizeof kLossOfCount[0] == static_cast<unsigned>(Count::kCount));

class Nccl final : public Collector, public TickListener {
 public:
  Status start(Context& context) noexcept override {
    g_context = &context;
    g_pid.store(raw::getpid(), std::memory_order_relaxed);
    settings.source = context.config().nccl_source;
    settings.chain = context.config().nccl_chain;
    settings.lookup_hook = context.config().lookup_hook;
    settings.attached.store(!real::in_front(), std::memory_order_relaxed);
    hazards::set_allgatherv_off(variable(environ, "NCCL_ALLGATHERV_ENABLE") == "0");
    device::use(context);
    // Without a place on the tick, only late-loaded libraries and long-lost events are missed.
    if (!context.add_tick_listener(*this)) return Status::failed("no_tick", "too many collectors sample");
    settings.on.store(true, std::memory_order_release);
    return Status::ok();
  }
  void stop() noexcept override {
    settings.on.store(false, std::memory_order_release);
    if (!is_own_process()) return;
    plugin::sweep(now_ticks(), true);
    lose_late_launches(nullptr);
    report_counts();
    device::stop();
  }
  void tick(std::uint64_t now) noexcept override {
    if (!is_on() || !is_own_process()) return;
    activation::publish_changes();
    plugin::heed_override();
    const bool attached = settings.attached.load(std::memory_order_relaxed);
    if (g_prepared.load(std::memory_order_relaxed) && imports_may_have_changed()) patch_imports(!attached);
    if (++ticks_ % 16 != 0) return;
    plugin::sweep(now, false);
    report_counts();
  }
  void after_fork() noexcept override { enter_process(); }

 private:
  unsigned ticks_ = 0;
};
constinit Nccl g_collector;

}  // namespace

void enter_process() noexcept {
  if (is_own_process()) return;
  g_pid.store(raw::getpid(), std::memory_order_relaxed);
  forget_comms();
  forget_groups();
  forget_late_launches();
  plugin::forget();
  chain::forget();
  activation::forget();
  forget_imports();
  device::after_fork();
  for (auto& lost : g_counts) lost.store(0, std::memory_order_relaxed);
  g_reported_source.store(false, std::memory_order_relaxed);
}

void count(Count what, std::uint64_t by) noexcept {
  g_counts[static_cast<unsigned>(what)].fetch_add(by, std::memory_order_relaxed);
}

void report_counts() noexcept {
  for (unsigned i = 0; i < static_cast<unsigned>(Count::kCount); ++i) {
    const std::uint64_t lost = g_counts[i].exchange(0, std::memory_order_relaxed);
    if (lost != 0)
      report_loss(kCollectorCode, kLossOfCount[i].reason, lost, kLossOfCount[i].detail, kLossOfCount[i].severity);
  }
}

namespace {
std::uint32_t next(std::atomic<std::uint32_t>& counter) noexcept {
  std::uint32_t id = 0;
  while (id == 0) id = counter.fetch_add(1, std::memory_order_relaxed) + 1;
  return id;
}

// Devices that have had a communicator; those beyond 63 share the last bit.
constinit std::atomic<std::uint64_t> g_devices{0};
std::uint64_t bit_of(std::int32_t device) noexcept { return std::uint64_t{1} << std::min(device, 63); }
bool had_communicator(std::int32_t device) noexcept {
  return (g_devices.load(std::memory_order_relaxed) & bit_of(device)) != 0;
}
}  // namespace
bool operation_seen() noexcept {
  return g_calls.load(std::memory_order_relaxed) != 0 || g_tasks.load(std::memory_order_relaxed) != 0;
}
void prepare_stamps(bool first) noexcept {
  const std::int32_t device = device::current_device();
  const bool first_there = device >= 0 && !had_communicator(device);
  if (device >= 0) note_communicator_on(device);
  if (first || first_there || !operation_seen()) device::prepare_globaltimer();
}

void note_communicator_on(std::int32_t device) noexcept {
  g_devices.fetch_or(device >= 0 ? bit_of(device) : ~std::uint64_t{0}, std::memory_order_relaxed);
}
std::uint32_t new_call_id() noexcept { return next(g_calls); }
std::uint32_t new_task_id() noexcept { return next(g_tasks); }
std::uint32_t new_batch_id() noexcept { return next(g_batches); }

std::uint64_t tick_hz() noexcept { return g_context != nullptr ? g_context->tick_hz() : 1'000'000'000; }

void write_fact(const char* key, const char* value) noexcept {
  emit(schema::Metadata{now_ticks(), intern(key), intern(value)});
}
void write_fact(const char* key, std::int64_t value) noexcept {
  char memory[24];
  TextBuffer digits(memory, sizeof memory);
  digits.add(value);
  emit(schema::Metadata{now_ticks(), intern(key), intern(digits.text())});
}

void report_source(bool hooked) noexcept {
  if (g_reported_source.exchange(true)) return;
  const bool stamps = plugin::loaded() && plugin::wants_stamps();
  const bool events = hooked && settings.source != NcclSource::plugin && device::timing_allowed();
  write_fact("nccl_source", stamps ? "plugin" : events ? "events" : "host");
  if (const int version = nccl_version(); version != 0) write_fact("nccl_version", version);
  if (!stamps && settings.source == NcclSource::plugin)
    report_loss(kCollectorCode, "no_device_stamps", 0,
                "NCCL did not load the profiler plugin, or its device stamps are off: operations have host times alone",
                schema::codes::Severity::error);
  if (!stamps && !hooked && settings.source != NcclSource::plugin)
    report_loss(
        kCollectorCode, "calls_not_hooked", 0,
        settings.lookup_hook
            ? "NCCL's functions were found in a way that no hook sees: operations have host times alone; hint: "
              "--nccl-source plugin"
            : "NCCL's functions were looked up by dlsym, past the hooks: operations have host times alone; hint: "
              "--lookup-hook, or --nccl-source plugin where NCCL is linked statically",
        schema::codes::Severity::error);
}

// Before the real call.
void before_communicator() noexcept {
  enter_process();
  if (hazards::stamps_are_needed()) prepare_stamps(false);
  reach_imports();
}

void reach_imports() noexcept {
  if (g_prepared.exchange(true)) return;
  patch_imports(!settings.attached.load(std::memory_order_relaxed));
  stashtrace_start_drainer();
}

}  // namespace stashtrace::nccl

namespace stashtrace::collectors {
Collector& nccl() noexcept { return stashtrace::nccl::g_collector; }
}  // namespace stashtrace::collectors

// For a process that was started without preload: stashtrace._native.attach_nccl(). Returns the number of import-table
// slots that lead to us now and did not before, -1 if the collector is off.
int stashtrace_attach_nccl() noexcept {
  using namespace stashtrace::nccl;
  if (!is_on()) return -1;
  const int changed = patch_imports(false);
  if (changed > 0) settings.attached.store(true, std::memory_order_relaxed);
  g_prepared.store(true, std::memory_order_relaxed);
  stashtrace_start_drainer();
  return changed;
}
