// Parsing of the environment. SPDX-License-Identifier: Apache-2.0
#include "core/config.h"

#include <cerrno>
#include <cstring>

#include "core/raw_syscall.h"
#include "schema/schema.h"

namespace stashtrace {

namespace {

template <std::size_t N>
bool copy(char (&to)[N], std::string_view from) noexcept {
  const bool fits = from.size() < N;
  const std::size_t bytes = fits ? from.size() : N - 1;
  if (bytes != 0) std::memcpy(to, from.data(), bytes);  // an empty text may have no address
  to[bytes] = '\0';
  return fits;
}

// False if it is not a plain decimal number in [low, high].
bool number(std::string_view text, std::int64_t low, std::int64_t high, std::int64_t& out) noexcept {
  if (text.empty() || text.size() > 18) return false;
  std::int64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    value = value * 10 + (c - '0');
  }
  if (value < low || value > high) return false;
  out = value;
  return true;
}

std::uint32_t collector_bits(std::string_view list) noexcept {
  std::uint32_t bits = 1;  // core is always on
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    const std::string_view name = list.substr(0, comma);
    for (const auto& collector : schema::kCollectors)
      if (collector.name == name) bits |= std::uint32_t{1} << collector.code;
    list = comma == list.npos ? std::string_view{} : list.substr(comma + 1);
  }
  return bits;
}

}  // namespace

std::string_view variable(const char* const* environment, std::string_view name) noexcept {
  if (environment == nullptr) return {};
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry(*environment);
    if (entry.size() > name.size() && entry[name.size()] == '=' && entry.starts_with(name))
      return entry.substr(name.size() + 1);
  }
  return {};
}

namespace {

// A launcher may record on a disk of its host, which its processes on other hosts, or in containers, do not have: they
// write into the run directory.
std::string_view directory_here(const char* const* environment) noexcept {
  const std::string_view dir = variable(environment, "STASHTRACE_DIR");
  const std::string_view shared = variable(environment, "STASHTRACE_RUN_DIR");
  // Values of the environment end with a zero.
  if (shared.empty() || raw::call(SYS_faccessat, AT_FDCWD, raw::address(dir.data()), F_OK) != -ENOENT) return dir;
  return shared;
}

}  // namespace

bool Config::collector_on(std::string_view name) const noexcept {
  for (const auto& collector : schema::kCollectors)
    if (collector.name == name) return (collectors >> collector.code & 1) != 0;
  return true;  // a collector without records, such as the template
}

void parse_config(Config& config, const char* const* environment) noexcept {
  const std::string_view dir = directory_here(environment);
  config.active = dir.starts_with('/') && copy(config.dir, dir);
  if (!config.active) return;
  copy(config.run_id, variable(environment, "STASHTRACE_RUN_ID"));
  new_file_mode = variable(environment, "STASHTRACE_SHARE") == "1" ? 0640 : 0600;
  copy(config.steps, variable(environment, "STASHTRACE_STEPS"));
  config.idle = variable(environment, "STASHTRACE_IDLE") == "1";
  config.followed = variable(environment, "STASHTRACE_FOLLOWED") == "1";
  copy(config.staged, variable(environment, "STASHTRACE_STAGED"));
  const std::string_view collectors = variable(environment, "STASHTRACE_COLLECTORS");
  if (!collectors.empty()) config.collectors = collector_bits(collectors);
  std::int64_t value = 0;
  if (number(variable(environment, "STASHTRACE_WAIT_THRESHOLD_NS"), 0, 3'600'000'000'000, value))
    config.wait_threshold_ns = value;
  if (number(variable(environment, "STASHTRACE_SAMPLE_MS"), 1, 3'600'000, value))
    config.sample_ms = static_cast<std::uint32_t>(value);
  if (number(variable(environment, "STASHTRACE_STACK_HZ"), 0, 1'000, value))
    config.stack_hz = static_cast<std::uint32_t>(value);
  if (number(variable(environment, "STASHTRACE_NVML_HZ"), 0, 1'000, value))
    config.nvml_hz = static_cast<std::uint32_t>(value);
  config.nvml_links = variable(environment, "STASHTRACE_NVML_LINKS") == "1";
  for (const char* name : {"STASHTRACE_LANE_BYTES", "STASHTRACE_RING_BYTES"})  // the first is its older name
    if (number(variable(environment, name), 1, 1 << 30, value))
      config.io_ring_bytes = static_cast<std::uint32_t>(value);
  if (number(variable(environment, "STASHTRACE_EVENT_BUDGET"), 0, 1'000'000'000, value)) config.event_budget = value;
  config.force_events = variable(environment, "STASHTRACE_FORCE_EVENTS") == "1";
  config.lookup_hook = variable(environment, "STASHTRACE_LOOKUP_HOOK") == "1";
  const std::string_view nccl_source = variable(environment, "STASHTRACE_NCCL_SOURCE");
  if (nccl_source == "plugin") config.nccl_source = NcclSource::plugin;
  if (nccl_source == "events") config.nccl_source = NcclSource::events;
  copy(config.nccl_chain, variable(environment, "STASHTRACE_NCCL_CHAIN"));
  const std::string_view drainer = variable(environment, "STASHTRACE_DRAINER");
  for (const auto mode : {DrainerMode::thread, DrainerMode::self, DrainerMode::off})
    if (drainer == name_of(mode)) config.drainer = mode;
  const std::string_view log = variable(environment, "STASHTRACE_LOG");
  for (const auto level : {LogLevel::info, LogLevel::debug})
    if (log == name_of(level)) config.log = level;
  const std::string_view kernels = variable(environment, "STASHTRACE_KERNELS");
  if (!kernels.empty() && kernels != "0") config.kernels = kernels == "graphs" ? KernelMode::graphs : KernelMode::nodes;
  const std::string_view kernels_steps = variable(environment, "STASHTRACE_KERNELS_STEPS");
  if (!kernels_steps.empty()) copy(config.kernels_steps, kernels_steps);
  for (const std::string_view name : {"CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID"})
    if (!variable(environment, name).empty()) copy(config.injected_profiler, name);
}

const char* name_of(DrainerMode mode) noexcept {
  switch (mode) {
    case DrainerMode::automatic: return "auto";
    case DrainerMode::thread: return "thread";
    case DrainerMode::self: return "self";
    case DrainerMode::off: return "off";
  }
  return "auto";
}

const char* name_of(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::error: return "error";
    case LogLevel::info: return "info";
    case LogLevel::debug: return "debug";
  }
  return "error";
}

}  // namespace stashtrace
