// Implementation of capi.h: each function is a short call into the runtime. SPDX-License-Identifier: Apache-2.0
#include "runtime/capi.h"

#include "core/raw_syscall.h"
#include "core/string_table.h"
#include "device/timeline.h"
#include "runtime/emit.h"
#include "runtime/runtime.h"
#include "runtime/thread_clock.h"
#include "runtime/version.h"

namespace {

using namespace stashtrace;

// Rows that others need for their meaning are also kept outside STASHTRACE_STEPS: the recorder's own, process groups
// and step marks (instants). Frequent rows are not.
constexpr bool kept_while_paused(std::size_t index) noexcept {
  const auto& record = schema::kRecords[index];
  return record.collector == "core" || record.name == "instant" || record.name == "group" ||
         record.name == "group_count" || record.name == "group_peer";
}

int index_of(std::uint32_t record_id) noexcept {
  for (std::size_t i = 0; i < schema::kRecords.size(); ++i)
    if (schema::kRecords[i].id == record_id) return static_cast<int>(i);
  return -1;
}

}  // namespace

extern "C" {

const char* stashtrace_version() noexcept { return kVersion; }
int stashtrace_active() noexcept { return runtime().active(); }
int stashtrace_recording() noexcept { return recording(); }
void stashtrace_set_recording(int on) noexcept { runtime().set_recording(on != 0); }
uint64_t stashtrace_now_ticks() noexcept { return now_ticks(); }
uint64_t stashtrace_tick_hz() noexcept { return runtime().tick_hz(); }
const char* stashtrace_clock_name() noexcept { return clock_name(); }

void stashtrace_stamp(stashtrace_stamp_t* out) noexcept {
  if (runtime().gave_up()) {  // sealed: no system call
    *out = {now_ticks(), -1, -1};
    return;
  }
  const ThreadTimes times = thread_times(now_ticks());
  out->cpu_ns = times.cpu_ns;
  out->runqueue_ns = times.runqueue_ns;
  out->ticks = now_ticks();
}

void stashtrace_usage(int64_t* major_faults_count, int64_t* block_inputs_count) noexcept {
  struct rusage usage{};
  raw::getrusage(RUSAGE_THREAD, &usage);
  *major_faults_count = usage.ru_majflt;
  *block_inputs_count = usage.ru_inblock;
}

uint32_t stashtrace_intern(const char* text, size_t bytes) noexcept { return intern({text, bytes}); }

int stashtrace_emit(uint32_t record_id, const void* row, size_t bytes) noexcept {
  const int index = index_of(record_id);
  if (index < 0 || schema::kRecords[static_cast<std::size_t>(index)].row_bytes != bytes) return -1;
  if (!recording() && !kept_while_paused(static_cast<std::size_t>(index))) return 0;
  return emit_bytes(static_cast<std::size_t>(index), row);
}

void stashtrace_set_thread_role(uint32_t role, const char* name, size_t bytes) noexcept {
  write_thread_info(static_cast<std::uint16_t>(role), name, bytes);
}

void stashtrace_watch_waits(int on) noexcept { detail::thread_state.watches_waits = on != 0; }
int stashtrace_start_drainer() noexcept { return runtime().start_drainer(); }
int stashtrace_flush() noexcept { return runtime().flush(); }
void stashtrace_seal(const char* reason) noexcept { runtime().seal(reason); }

void stashtrace_report_loss(uint32_t collector_code, const char* reason, uint64_t count, const char* detail,
                            uint32_t severity) noexcept {
  report_loss(static_cast<std::uint16_t>(collector_code), reason, count, detail, static_cast<std::uint16_t>(severity));
}

void stashtrace_report_no_probes(const char* detail) noexcept {
  constexpr std::uint16_t core = 0;
  report_loss(core, "probes_not_loaded", 0, detail, schema::codes::Severity::error);
}

void stashtrace_stats(stashtrace_stats_t* out) noexcept {
  const RuntimeStats stats = runtime().stats();
  *out = {stats.rows_count,    stats.written_rows_count, stats.dropped_rows_count, stats.rings_count,
          stats.ring_bytes,    stats.written_bytes,      stats.segments_count,     stats.drainer_cpu_ns,
          stats.self_drain_ns, stats.incarnation,        stats.drainer_running};
}

void stashtrace_config(stashtrace_config_t* out) noexcept {
  const Config& config = runtime().config();
  *out = {config.dir,          config.run_id,     config.steps,     name_of(config.drainer),
          name_of(config.log), config.collectors, config.sample_ms, config.wait_threshold_ns};
}

const char* stashtrace_stash_path() noexcept { return runtime().stash_path(); }

int stashtrace_device_active() noexcept { return recording() && device::available(); }

uint64_t stashtrace_device_bracket_begin(uint32_t kind, uint64_t stream, uint64_t correlation) noexcept {
  if (!device::available()) return 0;
  const device::Inside inside;
  const device::Begin begin =
      device::bracket_begin(static_cast<std::uint16_t>(kind), reinterpret_cast<device::Stream>(stream), correlation, 0);
  return std::uint64_t{begin.bracket_id} << 32 | begin.slot;
}

void stashtrace_device_bracket_end(uint64_t token, uint64_t correlation) noexcept {
  const device::Inside inside;
  device::bracket_end({static_cast<std::uint32_t>(token >> 32), static_cast<std::uint32_t>(token)},
                      {.has_correlation = true, .correlation = correlation});
}

void stashtrace_device_mark(uint32_t kind, uint64_t stream, uint64_t correlation) noexcept {
  if (!device::available()) return;
  const device::Inside inside;
  device::mark(static_cast<std::uint16_t>(kind), reinterpret_cast<device::Stream>(stream), correlation);
}

}  // extern "C"
