// One-line messages on stderr: `stashtrace[rank pid] level: text`. SPDX-License-Identifier: Apache-2.0
//
// Only for problems a person must know of (or STASHTRACE_LOG=info|debug). At most kMostLines per process and
// level, so a broken disk cannot flood a job's log. Raw write, no allocation, any thread.
#pragma once

#include "core/config.h"

namespace stashtrace {

inline constexpr int kMostLines = 20;

void init_log(LogLevel level, const char* const* environment) noexcept;
bool log_enabled(LogLevel level) noexcept;

// `subject` (a path, a name) and an errno are appended when given: "text: subject: No space left on device".
void log_line(LogLevel level, const char* text, const char* subject = nullptr, long error_number = 0) noexcept;

}  // namespace stashtrace
