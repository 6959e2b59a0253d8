// Implementation of driver.h. SPDX-License-Identifier: Apache-2.0
#include "device/driver.h"

#include <unistd.h>

#include "abi/dynlib.h"
#include "core/config.h"
#include "device/timeline.h"
#include "runtime/emit.h"
#include "runtime/runtime.h"

namespace stashtrace::device {

constinit Settings settings{nullptr, 0, false, true};
constinit cuda::Driver driver{};
constinit std::atomic<Access> access_state{Access::unknown};
constinit std::uint32_t owner_generation = 0;

namespace {

constexpr int kMostErrorsInARow = 64;
constexpr const char* kNames[] = {"libcuda.so.1", "libcuda.so"};
constinit std::atomic<int> g_errors_in_a_row{0};
constinit std::atomic<unsigned long long> g_absent_at{
    0};  // libraries_added() when the driver was last looked for and not found

std::uint16_t cuda_collector() noexcept {
  for (const auto& collector : schema::kCollectors)
    if (collector.name == "cuda") return collector.code;
  return 0;
}

// Returns the name of a required function that is missing, null if all are there.
const char* fill_table(const Dynlib& library) noexcept {
  const char* missing = nullptr;
#define CUDA_DRIVER(member, symbol_name, ...) \
  if (!library.find(driver.member, symbol_name)) missing = symbol_name;
#define CUDA_DRIVER_OPTIONAL(member, symbol_name, ...) library.find(driver.member, symbol_name);
#include "abi/cuda_driver.def"
#undef CUDA_DRIVER_OPTIONAL
#undef CUDA_DRIVER
  return missing;
}

// Read when CUDA is used, not when the process begins: many scripts set it in their first lines.
void decide_timing() noexcept {
  const bool one_queue = variable(environ, "CUDA_DEVICE_MAX_CONNECTIONS") == "1";
  settings.timing = !one_queue || settings.forced;
  if (!settings.timing)
    report(
        "timing_events_off", 0,
        "CUDA_DEVICE_MAX_CONNECTIONS=1: timing events can serialise the job, so copies, waits and steps have host times "
        "only, and collectives at most those of NCCL's profiler plugin. STASHTRACE_FORCE_EVENTS=1 records them",
        schema::codes::Severity::info);
  else if (one_queue)
    report("timing_events_forced", 0, "CUDA_DEVICE_MAX_CONNECTIONS=1: timing events may have slowed the job",
           schema::codes::Severity::info);
}

}  // namespace

bool same_process() noexcept { return owner_generation == runtime().generation(); }

bool resolve_driver(bool may_load) noexcept {
  if (settings.context == nullptr || !recording()) return false;
  const unsigned long long added = libraries_added();
  if (!may_load && added == g_absent_at.load(std::memory_order_relaxed)) return false;
  Access unknown = Access::unknown;
  if (!access_state.compare_exchange_strong(unknown, Access::resolving, std::memory_order_acq_rel))
    return unknown == Access::ready;  // while another thread resolves, this call goes unrecorded
  const Inside ours;                  // the look-up hook must not answer with our functions
  const Dynlib library = may_load ? Dynlib::load(kNames, 2) : Dynlib::loaded(kNames, 2);
  if (!library) {
    if (may_load)
      report("no_driver", 0, "libcuda.so.1 was not found: nothing of devices is recorded",
             schema::codes::Severity::info);
    g_absent_at.store(added, std::memory_order_relaxed);
    access_state.store(may_load ? Access::off : Access::unknown, std::memory_order_release);
    return false;
  }
  if (const char* missing = fill_table(library)) {
    report("driver_too_old", 0, missing, schema::codes::Severity::error);
    access_state.store(Access::off, std::memory_order_release);
    return false;
  }
  decide_timing();
  owner_generation = runtime().generation();
  access_state.store(Access::ready, std::memory_order_release);
  return true;
}

void stop_timing() noexcept {
  if (settings.timing.exchange(false, std::memory_order_relaxed))
    report(
        "capture_mode_refused", 1,
        "the driver refuses the relaxed capture mode, without which reading events would break stream captures of the "
        "job: from here on there are no device times",
        schema::codes::Severity::error);
}

void turn_off() noexcept { access_state.store(Access::off, std::memory_order_release); }

void count_result(cuda::Result result) noexcept {
  if (result == cuda::kSuccess) {
    if (g_errors_in_a_row.load(std::memory_order_relaxed) != 0) g_errors_in_a_row.store(0, std::memory_order_relaxed);
    return;
  }
  if (g_errors_in_a_row.fetch_add(1, std::memory_order_relaxed) + 1 != kMostErrorsInARow) return;
  turn_off();
  report("driver_errors", kMostErrorsInARow, "too many calls failed in a row: nothing more of devices is recorded",
         schema::codes::Severity::error);
}

void report(const char* reason, std::uint64_t count, const char* detail, std::uint16_t severity) noexcept {
  report_loss(cuda_collector(), reason, count, detail, severity);
}

}  // namespace stashtrace::device
