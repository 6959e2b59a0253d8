// The POSIX I/O collector: starts and stops the hooks, writes the rows that the inline path does not.
// SPDX-License-Identifier: Apache-2.0
//
// Started by Runtime. Hooks run on any thread of the traced process, before and after the collector is on; see
// traced.h for the hot half.
#include "collectors/posix_io/finish_open.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>

#include <string_view>

#include "collectors/collector.h"
#include "collectors/posix_io/mappings.h"
#include "collectors/posix_io/paths.h"
#include "collectors/posix_io/staged.h"
#include "collectors/posix_io/traced.h"
#include "core/raw_syscall.h"
#include "hooks/interpose.h"
#include "stacks/stacks.h"

namespace stashtrace::posix_io {

namespace {

constinit std::atomic<int> own_pid = 0;
// A list of copies that could not be used, kept until it is reported: the constructor may not emit.
constinit std::atomic<const char*> broken_list = nullptr;

void report_broken_list() noexcept {
  const char* path = broken_list.exchange(nullptr, std::memory_order_relaxed);
  if (path == nullptr) return;
  for (const auto& collector : schema::kCollectors)
    if (collector.name == "posix_io")
      report_loss(collector.code, "no_staged_list", 0, path, schema::codes::Severity::error);
}

// errno of the user's call, put back at the end of the scope.
class KeepErrno {
 public:
  KeepErrno() noexcept : saved_(errno) {}
  ~KeepErrno() { errno = saved_; }
  KeepErrno(const KeepErrno&) = delete;
  KeepErrno& operator=(const KeepErrno&) = delete;
  std::int64_t negative() const noexcept { return -saved_; }

 private:
  int saved_;
};

// True if a call with this result has read its (first) path. ENOENT, the only common failure (a search along a list of
// folders), comes from looking the name up; with two names it may be the second. The filter of scandir runs after its
// path was read, and may have freed it.
bool has_read_path(std::uint16_t op_code, std::int64_t result) noexcept {
  if (op_code == op::readdir) return false;
  return result >= 0 || (result == -ENOENT && op_code != op::rename);
}

std::uint64_t word_of(const PathName& name) noexcept { return kNamed | (name.ours ? kOurs : 0) | name.id; }

// Registers what an open made, and records it; extra is IoFlag bits and kAppend.
void finish_named_open(int fd, const PathName& name, std::uint64_t extra, std::int64_t position, std::uint16_t op_code,
                       std::uint64_t begin, std::uint64_t end, std::int64_t error) noexcept {
  const std::uint64_t word = word_of(name) | extra;
  if (fd >= 0) fd_table.set(fd, word & ~flag_bits(flag::stdio), position);
  if (broken_list.load(std::memory_order_relaxed) != nullptr) [[unlikely]]
    report_broken_list();
  if (!name.ours && recording()) record(op_code, word, -1, begin, end, error);
}

}  // namespace

void record(const Finished& call) noexcept {
  const KeepErrno keep;
  const std::uint64_t duration = call.end_ticks - call.begin_ticks;
  std::uint16_t flags = flags_of(call.word);
  if (duration > hot.slow_ticks) {
    flags |= flags_of_slow_call(call.begin_ticks, call.result_bytes);
    stacks::note_call(call.begin_ticks, call.end_ticks, schema::codes::StackCause::io);
  }
  if (duration <= UINT32_MAX && call.result_bytes == static_cast<std::int32_t>(call.result_bytes)) {
    emit(schema::IoOp{.begin_ticks = call.begin_ticks,
                      .offset_bytes = call.offset_bytes,
                      .duration_ticks = static_cast<std::uint32_t>(duration),
                      .result_bytes = static_cast<std::int32_t>(call.result_bytes),
                      .path_id = path_of(call.word),
                      .op_code = call.op_code,
                      .io_flags = flags});
  } else {
    emit(schema::IoOpLong{.begin_ticks = call.begin_ticks,
                          .end_ticks = call.end_ticks,
                          .offset_bytes = call.offset_bytes,
                          .result_bytes = call.result_bytes,
                          .path_id = path_of(call.word),
                          .op_code = call.op_code,
                          .io_flags = flags});
  }
}

ssize_t record_and_return(std::uint64_t begin_ticks, std::uint64_t end_ticks, std::int64_t offset_bytes, ssize_t result,
                          std::uint64_t word, std::uint16_t op_code) noexcept {
  record({begin_ticks, end_ticks, offset_bytes, or_errno(result), word, op_code});
  return result;
}

void record_named(std::uint16_t op_code, int dirfd, const char* path, std::uint64_t begin_ticks,
                  std::uint64_t end_ticks, std::int64_t result) noexcept {
  const KeepErrno keep;
  const PathName name = path_name(dirfd, path, has_read_path(op_code, result));
  if (!name.ours) record(op_code, word_of(name), -1, begin_ticks, end_ticks, result);
}

void finish_open(int fd, int dirfd, const char* path, int open_flags, bool staged, std::uint64_t begin_ticks,
                 std::uint64_t end_ticks) noexcept {
  const KeepErrno keep;
  const std::int64_t error = fd >= 0 ? 0 : keep.negative();
  if (fd < 0 && !recording()) return;
  const PathName name = path_name(dirfd, path, has_read_path(op::open, error));
  const bool append = (open_flags & O_APPEND) != 0;
  const std::uint64_t extra = (append ? kAppend : 0) | ((open_flags & O_DIRECT) != 0 ? flag_bits(flag::direct) : 0) |
                              (staged ? flag_bits(flag::staged) : 0);
  finish_named_open(fd, name, extra, append ? kUnknownPosition : 0, op::open, begin_ticks, end_ticks, error);
}

void finish_fopen(bool failed, int fd, const char* path, bool staged, std::uint64_t begin_ticks,
                  std::uint64_t end_ticks) noexcept {
  const KeepErrno keep;
  const std::int64_t error = failed ? keep.negative() : 0;
  if (failed && !recording()) return;
  const PathName name = path_name(AT_FDCWD, path, has_read_path(op::fopen, error));
  const std::uint64_t extra = flag_bits(flag::stdio) | (staged ? flag_bits(flag::staged) : 0);
  finish_named_open(fd, name, extra, kUnknownPosition, op::fopen, begin_ticks, end_ticks, error);
}

void finish_opendir(int fd, const char* path, std::uint64_t begin_ticks, std::uint64_t end_ticks) noexcept {
  const KeepErrno keep;
  const std::int64_t error = fd >= 0 ? 0 : keep.negative();
  if (fd < 0 && !recording()) return;
  const PathName name = path_name(AT_FDCWD, path, has_read_path(op::open, error));
  finish_named_open(fd, name, 0, kUnknownPosition, op::readdir, begin_ticks, end_ticks, error);
}

bool in_own_process() noexcept { return own_pid.load(std::memory_order_relaxed) == raw::getpid(); }

namespace {

constinit Context* runtime_context = nullptr;

// The positions that the parent knew cannot be trusted, and its string ids are only in the parent's file.
void start_over_in_child() noexcept {
  own_pid.store(raw::getpid(), std::memory_order_relaxed);
  fd_table.forget_all();
  mappings.forget_names();
  PathBuffer::after_fork();
  evidence = {};  // the child's thread counts from zero
}

// The interpreter's reads of our package are not the job's I/O.
void exclude_own_package() noexcept {
  Dl_info info{};
  if (dladdr(&runtime_context, &info) == 0 || info.dli_fname == nullptr) return;
  std::string_view folder(info.dli_fname);
  folder = folder.substr(0, folder.rfind('/'));
  if (folder.ends_with("/stashtrace")) exclude_folder(folder);
}

class PosixIo final : public Collector {
 public:
  Status start(Context& context) noexcept override {
    if (!real::in_front()) return Status::failed("not_preloaded", "without LD_PRELOAD no I/O call is seen");
    real::resolve_all();
    runtime_context = &context;
    exclude_own_package();
    exclude_folder(context.config().dir);
    if (context.config().staged[0] != '\0' && !open_staged_list(context.config().staged))
      broken_list.store(context.config().staged, std::memory_order_relaxed);
    own_pid.store(raw::getpid(), std::memory_order_relaxed);
    pthread_atfork(nullptr, [] { fd_table.forget_positions(); }, [] { start_over_in_child(); });
    hot.enabled.store(true, std::memory_order_relaxed);
    return Status::ok();
  }
  void stop() noexcept override { hot.enabled.store(false, std::memory_order_relaxed); }
  // Reads and seeks of the pause were not followed.
  void before_recording() noexcept override { fd_table.forget_positions(); }
  // Runs at the child's first row, long after the handler above, unless the fork was a raw system call.
  void after_fork() noexcept override {
    if (!in_own_process()) start_over_in_child();
  }
};

constinit PosixIo posix_io;

}  // namespace

void learn_tick_rate() noexcept {
  if (runtime_context != nullptr) set_tick_rate(runtime_context->tick_hz());
}

}  // namespace stashtrace::posix_io

namespace stashtrace::collectors {
Collector& posix_io() noexcept { return stashtrace::posix_io::posix_io; }
}  // namespace stashtrace::collectors
