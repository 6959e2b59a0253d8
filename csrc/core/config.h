// Every STASHTRACE_* variable, parsed once. SPDX-License-Identifier: Apache-2.0
//
// Called by the library constructor; afterwards read-only, from any thread. The table of the variables for
// users is docs/reference/environment.md; the launcher's half is stashtrace/record/options.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace stashtrace {

enum class DrainerMode : std::uint8_t { automatic, thread, self, off };
enum class NcclSource : std::uint8_t { automatic, plugin, events };
enum class LogLevel : std::uint8_t { error, info, debug };
enum class KernelMode : std::uint8_t { off, nodes, graphs };  // graphs: one row per graph launch, not per node

// Access rights of files that we create; with STASHTRACE_SHARE the group has access too. Set once, by parse_config.
inline constinit int new_file_mode = 0600;

struct Config {
  static constexpr std::size_t kDirBytes = 3072;  // PATH_MAX minus room for our file names
  static constexpr std::size_t kRunIdBytes = 80;
  static constexpr std::size_t kStepsBytes = 64;
  static constexpr std::size_t kChainBytes = 512;

  bool active = false;                             // STASHTRACE_DIR is set and usable as a path
  char dir[kDirBytes] = {};                        // STASHTRACE_DIR
  char run_id[kRunIdBytes] = {};                   // STASHTRACE_RUN_ID
  char steps[kStepsBytes] = {};                    // STASHTRACE_STEPS, checked by the launcher, used by the probes
  bool idle = false;                               // STASHTRACE_IDLE: nothing is recorded until the probes say so
  bool followed = false;                           // STASHTRACE_FOLLOWED: the launcher's side may ask for deep mode
  char staged[kDirBytes] = {};                     // STASHTRACE_STAGED: list of files whose copies are opened instead
  std::uint32_t collectors = ~std::uint32_t{0};    // STASHTRACE_COLLECTORS: bit = code of records.def
  std::int64_t wait_threshold_ns = 20'000;         // STASHTRACE_WAIT_THRESHOLD_NS
  std::uint32_t sample_ms = 100;                   // STASHTRACE_SAMPLE_MS
  std::uint32_t stack_hz = 50;                     // STASHTRACE_STACK_HZ, 0: no samples of Python stacks
  std::uint32_t nvml_hz = 10;                      // STASHTRACE_NVML_HZ, 0: no sampling of devices
  bool nvml_links = false;                         // STASHTRACE_NVML_LINKS
  std::uint32_t io_ring_bytes = 0;                 // STASHTRACE_RING_BYTES, 0: as records.def says
  bool force_events = false;                       // STASHTRACE_FORCE_EVENTS
  bool lookup_hook = false;                        // STASHTRACE_LOOKUP_HOOK
  std::int64_t event_budget = 10'000;              // STASHTRACE_EVENT_BUDGET: events per second, 0: no limit
  NcclSource nccl_source = NcclSource::automatic;  // STASHTRACE_NCCL_SOURCE
  char nccl_chain[kChainBytes] = {};             // STASHTRACE_NCCL_CHAIN: the value of NCCL_PROFILER_PLUGIN before ours
  DrainerMode drainer = DrainerMode::automatic;  // STASHTRACE_DRAINER
  LogLevel log = LogLevel::error;                // STASHTRACE_LOG

  KernelMode kernels = KernelMode::off;       // STASHTRACE_KERNELS
  char kernels_steps[kStepsBytes] = "10:13";  // STASHTRACE_KERNELS_STEPS
  char injected_profiler[32] = {};            // the variable that injected another CUPTI user into the process

  bool collector_on(std::string_view name) const noexcept;
};

// Reads an environment in the form of `environ`. A setting with an invalid value keeps its default.
void parse_config(Config& config, const char* const* environment) noexcept;

// Returns the value of a variable in an environment block, empty if it is not there.
std::string_view variable(const char* const* environment, std::string_view name) noexcept;

const char* name_of(DrainerMode mode) noexcept;
const char* name_of(LogLevel level) noexcept;

}  // namespace stashtrace
