// Implementation of log.h. SPDX-License-Identifier: Apache-2.0
#include "core/log.h"

#include <poll.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "core/apart.h"
#include "core/raw_syscall.h"
#include "core/text_buffer.h"

namespace stashtrace {

namespace {

constinit LogLevel g_level = LogLevel::error;
constinit char g_rank[12] = "-";
constinit std::atomic<int> g_lines[3]{};

constexpr int kStderr = 2;
constexpr std::int64_t kLongestWriteNs = 50'000'000;  // runtime/full_wait.h says why so long
constinit bool g_has_stderr = false;
constinit dev_t g_device = 0;
constinit ino_t g_inode = 0;

// Errors that were reported; there are fewer kinds than places.
constexpr int kMostErrors = 8;
constinit std::atomic<const char*> g_errors[kMostErrors]{};

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

bool is_first(const char* text) noexcept {
  for (std::atomic<const char*>& reported : g_errors) {
    const char* known = nullptr;
    if (reported.compare_exchange_strong(known, text, std::memory_order_relaxed)) return true;
    if (known == text) return false;
  }
  return false;
}

struct Line {
  const char* text;
  std::size_t bytes;
  long result;
};

void write_if_stderr(void* given) noexcept {
  auto& line = *static_cast<Line*>(given);
  struct stat now;
  if (raw::fstat(kStderr, &now) != 0 || now.st_dev != g_device || now.st_ino != g_inode) return;
  pollfd room{kStderr, POLLOUT, 0};
  const timespec limit{0, kLongestWriteNs};
  const long ready = raw::call(SYS_ppoll, raw::address(&room), 1, raw::address(&limit), 0, sizeof(raw::SignalMask));
  if (ready != 1 || room.revents != POLLOUT) return;
  line.result = raw::write(kStderr, line.text, line.bytes);
}

// On a thread with a copy of the descriptor: no dup2() of another thread redirects it between the check and the write,
// and the signal of a refused write ends with that thread. Where no thread can be had, as close to that as possible.
void write_line(const char* text, std::size_t bytes) noexcept {
  if (!g_has_stderr) return;
  Line line{text, bytes, 0};
  if (run_apart(&write_if_stderr, &line, kStderr + 1) == 0) return;
  const raw::SignalsBlocked quiet;
  const raw::SignalMask before = raw::pending_signals();
  write_if_stderr(&line);
  const int signal = line.result == -EPIPE ? SIGPIPE : line.result == -EFBIG ? SIGXFSZ : 0;
  if (signal != 0 && (before >> (signal - 1) & 1) == 0) raw::consume_pending(signal);
}

}  // namespace

void init_log(LogLevel level, const char* const* environment) noexcept {
  g_level = level;
  struct stat now;
  g_has_stderr = raw::fstat(kStderr, &now) == 0;
  g_device = g_has_stderr ? now.st_dev : 0;
  g_inode = g_has_stderr ? now.st_ino : 0;
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
  if (level == LogLevel::error && !is_first(text)) return;
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
  write_line(memory, bytes + 1);
}

}  // namespace stashtrace
