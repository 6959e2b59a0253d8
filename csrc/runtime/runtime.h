// The recorder of this process: its files, its rings, its collectors. SPDX-License-Identifier: Apache-2.0
//
// Callers: entry.cpp (start, finish, fork), hooks (seal), emit.cpp (slow paths), capi.cpp. One object for ever, without
// constructor or destructor, since hooks may be called before the first and after the last. Files and rings are
// made at the first record: a process that records nothing leaves nothing. Two locks: files_lock_ (files, rings), then
// the drainer's, which is only tried.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "collectors/collector.h"
#include "core/config.h"
#include "core/futex_lock.h"
#include "core/ring_file.h"
#include "core/segment_writer.h"
#include "runtime/drainer.h"
#include "runtime/file_sampler.h"
#include "runtime/full_wait.h"
#include "runtime/identity.h"
#include "runtime/ring_table.h"

namespace stashtrace {

struct RuntimeStats {
  std::uint64_t rows_count, written_rows_count, dropped_rows_count, rings_count, ring_bytes, written_bytes,
      segments_count;
  std::int64_t drainer_cpu_ns, self_drain_ns;
  std::int32_t incarnation;  // -1: no file yet
  bool drainer_running;
};

class Runtime final : public Context {
 public:
  constexpr Runtime() noexcept : drainer_(rings_, writer_) {}

  // entry.cpp
  void start(const char* const* environment) noexcept;
  void finish() noexcept;
  // Ends recording in a process that goes on, before a seccomp filter that the process installs makes our system calls
  // deadly: every row is written, the thread has ended, the ring is removed if nothing is left in it, and
  // from then on we make no system call. `reason` is snake_case text with static lifetime; it becomes a loss row.
  // Blocks for as long as writing takes. A forked child of a sealed process stays silent. In a vfork child it does
  // nothing and returns false, since the recorder is its parent's.
  bool seal(const char* reason) noexcept;
  // Like finish(), for a process that ends at once (_exit, quick_exit): writes what is committed, removes the ring if
  // nothing is left in it. Safe in signal handlers: it waits for no thread, and for a lock 0.2 s at most.
  // Does nothing in a vfork child.
  void leave() noexcept;
  // For a call that replaces the program. begin_exec() writes what is committed, removes the ring, as at an end, and
  // returns a number for exec_failed(), which puts the ring back: recording goes on as if nothing had been called.
  // Returns 0, with nothing removed, if rows could be lost in between or later: not the recorder's process (vfork),
  // other threads, unwritable rows. Rows of signal handlers in between are kept, unless the process is killed
  // before exec_failed() or the call succeeds. Both are safe in signal handlers and in forked children, and keep errno.
  std::uint32_t begin_exec() noexcept;
  void exec_failed(std::uint32_t number) noexcept;
  void note_write_error(int error_number) noexcept { ring_file_.note_write_error(error_number); }  // of the drainer
  bool has_files() const noexcept { return opened_ && owns_files(); }
  void forked() noexcept;       // in the child, before anything else of ours
  void thread_ends() noexcept;  // of the calling thread

  // emit.cpp
  container::RingHeader* first_ring(std::size_t index) noexcept;  // of this thread; null: its row is lost and counted
  bool make_room(container::RingHeader* ring) noexcept;
  bool lose_row() noexcept {  // counts it; returns false
    ring_file_.count_lost_row();
    return false;
  }
  std::uint32_t state_after_fork() const noexcept;
  // False in a child that shares its parent's memory without being a thread of it (vfork, clone(CLONE_VM)): a thread
  // started there would belong to the child, keep it from ending, and be missing in the parent when it has ended.
  bool in_own_process() const noexcept;
  // Also false in a child made by a raw system call: libc does not know of it, and a main thread that ends by the exit
  // system call, as clone() does for its function, would leave our thread behind.
  bool may_start_threads() const noexcept { return in_own_process() && known_to_libc_.load(std::memory_order_relaxed); }
  void forked_by_libc() noexcept { known_to_libc_.store(true, std::memory_order_relaxed); }  // after forked()
  bool gave_up() const noexcept { return gave_up_.load(std::memory_order_relaxed); }
  std::uint32_t generation() const noexcept { return generation_.load(std::memory_order_relaxed); }

  // drainer.cpp
  void drainer_thread_begins() noexcept;
  void drainer_thread_ticks() noexcept;

  // capi.cpp
  void set_recording(bool on) noexcept;
  // Time between two ticks of a thread that ticks each period_ns while something is recorded: longer while idle.
  std::int64_t tick_period_ns(std::int64_t period_ns) const noexcept;
  bool start_drainer() noexcept;
  bool flush() noexcept;
  RuntimeStats stats() noexcept;
  std::uint64_t tick_hz() noexcept override;
  const char* stash_path() noexcept { return opened_ ? writer_.file().path() : ""; }
  bool active() const noexcept { return config_.active; }

  const Config& config() const noexcept override { return config_; }
  bool add_tick_listener(TickListener& listener) noexcept override { return drainer_.add_listener(listener); }
  bool add_file_listener(TickListener& listener) noexcept override { return file_sampler_.add_listener(listener); }
  bool file_listeners_may_keep_open() const noexcept override { return file_sampler_.has_own_table(); }

 private:
  void start_collectors() noexcept;
  void end(const char* reason) noexcept;  // null: the process ends
  bool owns_files() const noexcept;       // false: given up, a vfork child, or a forked child that has not recorded
  bool begin_end() noexcept;              // false: nothing to end, or another thread is ending it
  void close_files() noexcept;            // nothing is recorded any more
  bool nothing_left() const noexcept;     // the ring has no row, and no count that is not in a loss row
  bool open_files() noexcept;             // under files_lock_
  bool create_files() noexcept;
  Status create_files_apart(std::uint64_t tick_hz) noexcept;
  container::RingHeader* take_ring(std::size_t index) noexcept;
  void greet() noexcept;  // rows that open a file or a thread, after take_ring()
  void start_drainer_if_possible() noexcept;
  bool give_space(container::RingHeader* ring) noexcept;
  bool refused_lately() const noexcept;  // the disk had no space for a ring
  void refuse_for_a_while(const char* text) noexcept;
  bool give_up(LogLevel level, const char* text, const char* subject, int error_number) noexcept;  // false
  void report_drops() noexcept;
  bool write_drops() noexcept;
  void sync_clocks(bool at_once) noexcept;
  void write_own_cost() noexcept;

  Config config_;
  ClockReading epoch_{};  // when the library was loaded, in a forked child its ancestor's: long enough ago for the rate
  Identity identity_;
  char rank_variables_[16 * 1024] = {};  // JSON object, copied at start: setproctitle() overwrites the originals
  // Limit, since the thread that held the lock may be gone: a vfork child that was killed in the middle.
  static constexpr std::int64_t kFilesWaitNs = 5'000'000'000;
  FutexLock files_lock_;
  RingFile ring_file_;
  SegmentWriter writer_;
  RingTable rings_;
  Drainer drainer_;
  FileSampler file_sampler_;
  std::atomic<bool> opened_{false};   // the files of this incarnation exist
  std::atomic<bool> gave_up_{false};  // the directory takes no files, or the process is over
  std::atomic<bool> known_to_libc_{true};
  std::atomic<bool> ending_{false};  // one thread writes what is left
  std::atomic<bool> greeted_{false};
  std::atomic<std::uint32_t> generation_{1};
  std::atomic<bool> wanted_{true};  // recording is on; a fork does not wipe this
  std::atomic<std::int64_t> no_ring_until_ns_{0};
  FullWait full_wait_;
  std::atomic<std::int64_t> next_sync_ns_{0};
  std::atomic<bool> reporting_{false};            // one thread at a time writes loss rows of drops
  std::atomic<std::uint64_t> reported_drops_{0};  // dropped rows that are in loss rows already
};

Runtime& runtime() noexcept;

// Records the thread's name and role; also the first row of each thread.
void write_thread_info(std::uint16_t role, const char* name, std::size_t name_bytes) noexcept;

// Asks for a call of thread_ends() when the calling thread ends; false if that is not possible.
bool watch_thread_end() noexcept;
// Sets the listener to call, before thread_ends(), on a watched thread that ends; one listener, set while collectors start.
// A forked child inherits it.
void on_thread_end(void (*listener)() noexcept) noexcept;

// The collectors that were compiled in, by the folders below csrc/collectors (CMakeLists.txt).
struct CollectorEntry {
  const char* name;
  Collector& (*collector)() noexcept;
  Status status;
  bool started;
};
struct CollectorList {
  CollectorEntry* entries;
  std::size_t count;
};
CollectorList collector_list() noexcept;

}  // namespace stashtrace
