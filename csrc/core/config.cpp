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

template <class Choice>
void choose(Choice& to, std::string_view word) noexcept {
  const auto words = words_of(to);
  for (std::size_t at = 0; at < words.size(); ++at)
    if (word == words[at]) to = static_cast<Choice>(at);
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
  new_file_mode = variable(environment, "STASHTRACE_SHARE") == "1" ? 0640 : 0600;
  std::int64_t value = 0;
#define GIVEN(name) variable(environment, "STASHTRACE_" #name)
#define TEXT(field, bytes, name, initial) \
  if (const std::string_view text = GIVEN(name); !text.empty()) copy(config.field, text);
#define SWITCH(field, name) config.field = GIVEN(name) == "1";
#define NUMBER(type, field, name, initial, lowest, highest) \
  if (number(GIVEN(name), lowest, highest, value)) config.field = static_cast<type>(value);
#define CHOICE(Type, field, name, WORDS) choose(config.field, GIVEN(name));
#define OTHER(type, field, name, initial)
#include "core/settings.def"
  const std::string_view collectors = GIVEN(COLLECTORS);
  if (!collectors.empty()) config.collectors = collector_bits(collectors);
  if (number(GIVEN(RING_BYTES), 1, 1 << 30, value)) config.io_ring_bytes = static_cast<std::uint32_t>(value);
  const std::string_view kernels = GIVEN(KERNELS);
  if (!kernels.empty() && kernels != "0") config.kernels = kernels == "graphs" ? KernelMode::graphs : KernelMode::nodes;
#undef GIVEN
  for (const std::string_view name : {"CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID"})
    if (!variable(environment, name).empty()) copy(config.injected_profiler, name);
}

}  // namespace stashtrace
