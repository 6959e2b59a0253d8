// Who this process is, and the JSON texts at the head of its .stash file. SPDX-License-Identifier: Apache-2.0
//
// Callers: Runtime, when it creates the files (first record of a process). Reads /proc by raw calls; no state but
// what it is given.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/clock.h"
#include "core/config.h"
#include "core/text_buffer.h"

namespace stashtrace {

struct Identity {
  int pid = 0;
  int ppid = 0;                 // of a forked child: its nearest ancestor that recorded
  int incarnation = 0;          // number in the file name: exec and reused pids make new ones
  int parent_incarnation = -1;  // of a forked child: of the ancestor whose string ids it keeps
  char host[65] = {};
  ClockReading start{};  // library loaded, or forked
  JobClock job_clock{};  // when the library was loaded
};

void read_host(Identity& identity) noexcept;

// {"records": [...]} from schema::kRecords; container.h describes it.
void write_field_table(TextBuffer& out) noexcept;

// Writes the variables that identify ranks as a JSON object. Variables that do not fit are left out.
void write_rank_variables(TextBuffer& out, const char* const* environment) noexcept;

// Writes the rest of the header, see container.h.
void write_metadata(TextBuffer& out, const Identity& identity, const Config& config, std::string_view rank_variables,
                    std::uint64_t tick_hz) noexcept;

}  // namespace stashtrace
