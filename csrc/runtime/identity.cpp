// Implementation of identity.h. SPDX-License-Identifier: Apache-2.0
#include "runtime/identity.h"

#include <sys/utsname.h>

#include <string_view>

#include "core/raw_syscall.h"
#include "core/scrubbing.h"
#include "runtime/rank_variables.h"
#include "runtime/version.h"
#include "schema/schema.h"

namespace stashtrace {

namespace {

constexpr std::size_t kMostArgvBytes = 32 * 1024;  // of a command line that may have megabytes

// Content of a small file, without a final line end.
std::string_view small_file(const char* path, char* memory, std::size_t bytes) noexcept {
  const int fd = raw::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  std::size_t used = 0;
  while (used < bytes) {
    const long got = raw::read(fd, memory + used, bytes - used);
    if (got <= 0) break;
    used += static_cast<std::size_t>(got);
  }
  raw::close(fd);
  while (used > 0 && memory[used - 1] == '\n') --used;
  return {memory, used};
}

std::string_view link_target(const char* path, char* memory, std::size_t bytes) noexcept {
  const long got = raw::readlink(path, memory, bytes);
  return got > 0 ? std::string_view(memory, static_cast<std::size_t>(got)) : std::string_view{};
}

// Only what identifies ranks and launchers: launchers keep keys, tokens and names of people under their prefixes.
bool is_rank_variable(std::string_view name) noexcept {
  for (const std::string_view exact : kRankVariables)
    if (name == exact) return true;
  return false;
}

void write_argv(TextBuffer& out) noexcept {
  char memory[512];
  const int fd = raw::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  out.add("[");
  if (fd >= 0) {
    // Arguments end with a zero byte; one that crosses a read goes on in the next.
    char argument[4096];
    char scrubbed[4096 + 256];  // a value of one byte becomes longer
    ArgumentScrubber scrubber;
    std::size_t used = 0, total = 0;
    bool first = true;
    for (long got; total < kMostArgvBytes && (got = raw::read(fd, memory, sizeof memory)) > 0;) {
      for (long i = 0; i < got; ++i) {
        if (memory[i] != '\0') {
          if (used < sizeof argument) argument[used++] = memory[i];
          continue;
        }
        if (!first) out.add(", ");
        TextBuffer kept(scrubbed, sizeof scrubbed);
        scrubber.add({argument, used}, kept);
        out.quote(kept.text());
        total += used;
        used = 0;
        first = false;
      }
    }
    raw::close(fd);
  }
  out.add("]");
}

}  // namespace

void read_host(Identity& identity) noexcept {
  utsname names{};
  raw::call(SYS_uname, raw::address(&names));
  std::size_t i = 0;
  for (; i + 1 < sizeof identity.host && names.nodename[i] != '\0'; ++i)
    identity.host[i] = names.nodename[i] == '/' ? '_' : names.nodename[i];
  if (i == 0) identity.host[i++] = '_';
  identity.host[i] = '\0';
}

void write_field_table(TextBuffer& out) noexcept {
  out.add("{\"records\": [");
  for (std::size_t i = 0; i < schema::kRecords.size(); ++i) {
    const auto& record = schema::kRecords[i];
    if (i > 0) out.add(", ");
    out.add("{\"name\": ").quote(record.name).add(", \"id\": ").add(std::int64_t{record.id});
    out.add(", \"version\": ").add(std::int64_t{record.version}).add(", \"collector\": ").quote(record.collector);
    out.add(", \"row_bytes\": ").add(std::int64_t{record.row_bytes}).add(", \"fields\": [");
    for (std::size_t j = 0; j < record.field_count; ++j) {
      const auto& field = record.fields[j];
      if (j > 0) out.add(", ");
      out.add("{\"name\": ").quote(field.name).add(", \"type\": ").quote(schema::type_name(field.type));
      out.add(", \"offset\": ").add(std::int64_t{field.offset_bytes}).add("}");
    }
    out.add("]}");
  }
  out.add("]}");
}

void write_rank_variables(TextBuffer& out, const char* const* environment) noexcept {
  constexpr std::size_t kLongestValue = 1024;
  out.add("{");
  bool first = true;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry(*environment);
    const std::size_t equals = entry.find('=');
    if (equals == entry.npos || !is_rank_variable(entry.substr(0, equals))) continue;
    char memory[kLongestValue + 256];  // a value of one byte becomes longer
    TextBuffer kept(memory, sizeof memory);
    ArgumentScrubber().add(entry.substr(equals + 1).substr(0, kLongestValue), kept);  // an id may be an address
    const std::string_view value = kept.text();
    if (out.room() < 6 * (equals + value.size()) + 16) continue;  // 6: the longest escape of a byte
    if (!first) out.add(", ");
    out.quote(entry.substr(0, equals)).add(": ").quote(value);
    first = false;
  }
  out.add("}");
}

void write_metadata(TextBuffer& out, const Identity& identity, const Config& config, std::string_view rank_variables,
                    std::uint64_t tick_hz) noexcept {
  char memory[1024];
  out.add("{\"run_id\": ").quote(config.run_id);
  out.add(", \"host\": ").quote(identity.host);
  out.add(", \"boot_id\": ").quote(small_file("/proc/sys/kernel/random/boot_id", memory, sizeof memory));
  out.add(", \"netns\": ").quote(link_target("/proc/self/ns/net", memory, sizeof memory));
  out.add(", \"pidns\": ").quote(link_target("/proc/self/ns/pid", memory, sizeof memory));
  out.add(", \"pid\": ").add(std::int64_t{identity.pid}).add(", \"ppid\": ").add(std::int64_t{identity.ppid});
  out.add(", \"incarnation\": ").add(std::int64_t{identity.incarnation});
  out.add(", \"parent_incarnation\": ").add(std::int64_t{identity.parent_incarnation});
  out.add(", \"argv\": ");
  write_argv(out);
  out.add(", \"exe\": ").quote(link_target("/proc/self/exe", memory, sizeof memory));
  out.add(", \"env\": ").add(rank_variables);
  out.add(", \"clock\": ").quote(clock_name()).add(", \"tick_hz\": ").add_unsigned(tick_hz);
  out.add(", \"start_ticks\": ").add_unsigned(identity.start.ticks);
  out.add(", \"start_monotonic_ns\": ").add(identity.start.monotonic_ns);
  out.add(", \"start_realtime_ns\": ").add(identity.start.realtime_ns);
  if (identity.job_clock.ahead_ns != 0 || identity.job_clock.ns_per_s != JobClock{}.ns_per_s) {
    out.add(", \"job_clock_answered_by\": ").quote(identity.job_clock.answered_by);
    out.add(", \"job_clock_ahead_ns\": ").add(identity.job_clock.ahead_ns);
    out.add(", \"job_clock_ns_per_s\": ").add(identity.job_clock.ns_per_s);
  }
  out.add(", \"collectors\": [");
  bool first = true;
  for (const auto& collector : schema::kCollectors) {
    if (!config.collector_on(collector.name)) continue;
    if (!first) out.add(", ");
    out.quote(collector.name);
    first = false;
  }
  out.add("], \"version\": ").quote(kVersion).add("}");
}

}  // namespace stashtrace
