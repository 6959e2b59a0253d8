// One-line messages on stderr: `stashtrace[rank pid] level: text`. SPDX-License-Identifier: Apache-2.0
//
// Only for problems a person must know of (or STASHTRACE_LOG=info|debug). An error is reported once in a process and
// the children that it forks, other lines at most kMostLines times, so a broken disk cannot flood a job's log.
//
// The process is not to notice: written is only to the file that was stderr when the library was loaded, whatever
// descriptor 2 is by then; no signal comes of it (SIGPIPE, SIGXFSZ), and nobody waits for a reader of a full pipe for
// longer than a thread waits for a full ring. No allocation, any thread. Not into the run directory: what is to be
// reported is mostly that it takes no files.
#pragma once

#include "core/config.h"

namespace stashtrace {

inline constexpr int kMostLines = 20;

// Call while the library is loaded.
void init_log(LogLevel level, const char* const* environment) noexcept;
bool log_enabled(LogLevel level) noexcept;

// `subject` (a path, a name) and an errno are appended when given: "text: subject: No space left on device".
void log_line(LogLevel level, const char* text, const char* subject = nullptr, long error_number = 0) noexcept;

}  // namespace stashtrace
