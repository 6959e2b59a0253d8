// Implementation of log.h. SPDX-License-Identifier: Apache-2.0
#include "core/log.h"

#include <atomic>
#include <cerrno>
#include <cstring>

#include "core/raw_syscall.h"
#include "core/text_buffer.h"

namespace stashtrace {

namespace {

constinit LogLevel g_level = LogLevel::error;
constinit char g_rank[12] = "-";
constinit std::atomic<int> g_lines[3]{};

// strerror() may load message catalogues; these are the errors that we meet.
const char* error_text(int number) noexcept {
  switch (number) {
    case EACCES: return "Permission denied";
    case EAGAIN: return "Resource temporarily unavailable";
    case EDQUOT: return "Disk quota exceeded";
    case EEXIST: return "File exists";
    case EFBIG: return "File too large";
    case EINVAL: return "Invalid argument";
    case EIO: return "Input/output error";
    case EMFILE: return "Too many open files";
    case ENOENT: return "No such file or directory";
    case ENOMEM: return "Cannot allocate memory";
    case ENOSPC: return "No space left on device";
    case ENOTDIR: return "Not a directory";
    case EPERM: return "Operation not permitted";
    case EROFS: return "Read-only file system";
    default: return nullptr;
  }
}

}  // namespace

void init_log(LogLevel level, const char* const* environment) noexcept {
  g_level = level;
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    const std::string_view rank = variable(environment, name);
    if (rank.empty() || rank.size() >= sizeof g_rank) continue;
    std::memcpy(g_rank, rank.data(), rank.size());
    g_rank[rank.size()] = '\0';
    return;
  }
}

bool log_enabled(LogLevel level) noexcept { return level <= g_level; }

void log_line(LogLevel level, const char* text, const char* subject, long error_number) noexcept {
  if (!log_enabled(level)) return;
  if (g_lines[static_cast<int>(level)].fetch_add(1, std::memory_order_relaxed) >= kMostLines) return;
  char memory[512];
  TextBuffer line(memory, sizeof memory - 1);
  line.add("stashtrace[").add(g_rank).add(" ").add(std::int64_t{raw::getpid()}).add("] ").add(name_of(level));
  line.add(": ").add(text);
  if (subject != nullptr) line.add(": ").add(subject);
  if (error_number != 0) {
    const int number = static_cast<int>(error_number < 0 ? -error_number : error_number);
    const char* words = error_text(number);
    if (words != nullptr) line.add(": ").add(words);
    else line.add(": error ").add(std::int64_t{number});
  }
  const std::size_t bytes = line.text().size();
  memory[bytes] = '\n';
  raw::write(2, memory, bytes + 1);
}

}  // namespace stashtrace
