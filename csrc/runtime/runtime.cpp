// Life of the recorder: start, files, fork, end. SPDX-License-Identifier: Apache-2.0
#include "runtime/runtime.h"

#include <sys/mman.h>

#include <cerrno>
#include <new>

#include "core/apart.h"
#include "core/log.h"
#include "core/raw_syscall.h"
#include "core/text_buffer.h"
#include "runtime/emit.h"
#include "runtime/thread_clock.h"
#include "stacks/stacks.h"

namespace stashtrace {

namespace detail {
constinit StatePage state_page{kInert};
constinit thread_local ThreadState thread_state{};
}  // namespace detail

namespace {
constinit Runtime g_runtime;
constexpr std::int64_t kExitWaitNs = 2'000'000'000;
constexpr std::int64_t kLeaveWaitNs = 200'000'000;
constexpr std::size_t kHeaderTextBytes = 512 * 1024;
constexpr int kMostIncarnations = 100'000;

// Replaces state_page by a page that forked children find empty; in one step, since other threads may read it.
bool wipe_state_on_fork() noexcept {
  constexpr std::size_t kBytes = sizeof detail::state_page;
  void* page = raw::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == nullptr) return false;
  raw::madvise(page, kBytes, MADV_WIPEONFORK);  // Linux 4.14; before, only pthread_atfork reports a fork
  new (page) detail::StatePage{detail::kPaused};
  return raw::mremap_onto(page, kBytes, &detail::state_page) == 0;
}
}  // namespace

Runtime& runtime() noexcept { return g_runtime; }

void Runtime::start(const char* const* environment) noexcept {
  init_clock();
  epoch_ = identity_.start = read_clocks();
  parse_config(config_, environment);
  if (!config_.active) return;
  init_log(config_.log, environment);
  TextBuffer ranks(rank_variables_, sizeof rank_variables_ - 1);
  write_rank_variables(ranks, environment);
  ranks.c_str();
  read_host(identity_);
  read_job_clock(identity_.job_clock);
  identity_.pid = raw::getpid();
  identity_.ppid = raw::getppid();
  if (!wipe_state_on_fork()) return;
  start_collectors();
  wanted_.store(!config_.idle, std::memory_order_relaxed);
  if (!config_.idle) detail::state_page.word.store(detail::kRecording, std::memory_order_release);
}

void Runtime::start_collectors() noexcept {
  const CollectorList list = collector_list();
  for (std::size_t i = 0; i < list.count; ++i) {
    CollectorEntry& entry = list.entries[i];
    const bool on_request = config_.followed && entry.name == std::string_view("cupti");
    if (!config_.collector_on(entry.name) && !on_request) continue;
    entry.status = entry.collector().start(*this);
    entry.started = entry.status.is_ok();
  }
}

bool Runtime::give_up(LogLevel level, const char* text, const char* subject, int error_number) noexcept {
  gave_up_ = true;
  detail::state_page.word.store(detail::kInert, std::memory_order_release);
  log_line(level, text, subject, error_number);
  return false;
}

bool Runtime::create_files() noexcept {
  const std::uint64_t hz = tick_hz();  // may wait: not on the other thread
  Status status;
  const int refused = apart([this, hz, &status]() noexcept { status = create_files_apart(hz); });
  if (refused < 0) {
    const LogLevel level = has_left_namespace() ? LogLevel::info : LogLevel::error;
    return give_up(level, "recording is off", "cannot start a thread to write files", refused);
  }
  if (!status) return give_up(LogLevel::error, "recording is off, cannot write", config_.dir, status.error_number());
  log_line(LogLevel::debug, "recording to", writer_.file().path());
  return true;
}

Status Runtime::create_files_apart(std::uint64_t hz) noexcept {
  char* memory = static_cast<char*>(
      raw::mmap(nullptr, kHeaderTextBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (memory == nullptr) return Status::failed("no_memory", "", ENOMEM);
  TextBuffer table(memory, kHeaderTextBytes / 2);
  write_field_table(table);
  Status status = Status::failed("stash_not_created", "", EEXIST);
  for (int n = 0; n < kMostIncarnations && status.error_number() == EEXIST; ++n) {
    identity_.incarnation = n;
    char* const paths[] = {writer_.file().path(), ring_file_.file().path()};
    const char* const suffixes[] = {".stash", ".ring"};
    for (int i = 0; i < 2; ++i) {
      TextBuffer path(paths[i], PinnedFile::kPathBytes - 1);
      path.add(config_.dir).add("/").add(identity_.host).add(".").add(std::int64_t{identity_.pid});
      path.add(".").add(std::int64_t{n}).add(suffixes[i]);
      path.c_str();
    }
    TextBuffer metadata(memory + kHeaderTextBytes / 2, kHeaderTextBytes / 2);
    write_metadata(metadata, identity_, config_, rank_variables_, hz);
    status = writer_.create(table.text(), metadata.text());
    if (!status) continue;
    status = ring_file_.create(static_cast<std::uint32_t>(identity_.pid));
    if (!status) writer_.file().remove();
  }
  raw::munmap(memory, kHeaderTextBytes);
  return status;
}

bool Runtime::open_files() noexcept {
  if (opened_) return true;
  if (gave_up_) return false;
  opened_ = create_files();
  return opened_;
}

void Runtime::forked() noexcept {
  detail::thread_state = {};
  if (opened_) {
    identity_.ppid = identity_.pid;
    identity_.parent_incarnation = identity_.incarnation;
    // At once, not at the first record: a child that never records must not hold its parent's files.
    rings_.forget();
    ring_file_.forget();
    writer_.forget();
  } else if (identity_.parent_incarnation < 0) {
    identity_.ppid = raw::getppid();
  }
  identity_.pid = raw::getpid();
  known_to_libc_.store(false, std::memory_order_relaxed);
  identity_.start = read_clocks(2);
  opened_ = false;
  greeted_.store(false, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_relaxed);
  no_ring_until_ns_.store(0, std::memory_order_relaxed);
  full_wait_.reset();
  next_sync_ns_.store(0, std::memory_order_relaxed);
  reporting_.store(false, std::memory_order_relaxed);
  reported_drops_.store(0, std::memory_order_relaxed);
  files_lock_.reset();
  stacks::reset_after_fork();
  drainer_.reset_after_fork();
  file_sampler_.reset_after_fork();
}

void Runtime::thread_ends() noexcept {
  close_thread_clock();
  stacks::forget_own_thread();
  for (auto& ring : detail::thread_state.rings) {
    if (ring != nullptr) RingTable::release(ring);
    ring = nullptr;
  }
  detail::thread_state.known = false;
}

void Runtime::finish() noexcept { end(nullptr); }

bool Runtime::seal(const char* reason) noexcept {
  if (!config_.active) return true;
  if (detail::state_page.word.load(std::memory_order_acquire) == detail::kForked) detail::revive();
  if (!in_own_process()) return false;
  end(reason);
  return true;
}

bool Runtime::owns_files() const noexcept {
  const std::uint32_t state = detail::state_page.word.load(std::memory_order_acquire);
  return (state == detail::kRecording || state == detail::kPaused) && in_own_process();
}

bool Runtime::begin_end() noexcept {
  if (!owns_files()) return false;
  if (ending_.exchange(true, std::memory_order_acq_rel)) return false;
  wanted_.store(false, std::memory_order_relaxed);
  detail::state_page.word.store(detail::kPaused, std::memory_order_release);
  return true;
}

void Runtime::close_files() noexcept {
  gave_up_ = true;
  detail::state_page.word.store(detail::kInert, std::memory_order_release);
  // From here on, a row that was not checked by recording() takes the slow path too, which refuses it: it must not see
  // the mark before the state.
  for (std::size_t i = 0; i < rings_.count(); ++i)
    if (ring::is_intact(rings_.at(i))) std::atomic_ref(rings_.at(i)->mark).store(0, std::memory_order_release);
  if (opened_ && nothing_left()) ring_file_.remove();
}

bool Runtime::nothing_left() const noexcept { return drainer_.everything_written() && ring_file_.lost_rows() == 0; }

void Runtime::leave() noexcept {
  if (!config_.active || !begin_end()) return;
  if (!opened_) return;
  {
    const raw::SignalsBlocked quiet;
    drainer_.drain_all(false, kLeaveWaitNs);
  }
  close_files();
}

std::uint32_t Runtime::begin_exec() noexcept {
  if (!has_files() || raw::threads_count() != 1) return 0;
  const raw::SignalsBlocked quiet;
  // The lock is free, unless the call comes from the handler of a fault in the middle of our work.
  if (!files_lock_.try_lock()) return 0;
  // A process that has left the run directory's reach (chroot, setuid) keeps its rows in the ring: no error.
  const bool done = drainer_.drain_all(false, 0, LogLevel::info) && nothing_left();
  if (done) ring_file_.remove();
  files_lock_.unlock();
  return done ? generation() : 0;
}

void Runtime::exec_failed(std::uint32_t number) noexcept {
  // A handler may have ended recording meanwhile, or have made a child that returns here.
  if (number != generation() || !owns_files()) return;
  Status status;
  {
    const raw::SignalsBlocked quiet;
    if (files_lock_.lock_within(kFilesWaitNs)) {
      status = ring_file_.put_back(rings_.all(), rings_.count());
      files_lock_.unlock();
    } else {
      status = Status::failed("ring_lost_at_exec", "another thread does not come to an end with the files");
    }
  }
  if (!status) seal("ring_lost_at_exec");
}

void Runtime::end(const char* reason) noexcept {
  if (!config_.active) return;
  if (!begin_end()) return;
  file_sampler_.stop(kExitWaitNs);
  drainer_.stop_thread(kExitWaitNs);
  const CollectorList list = collector_list();
  for (std::size_t i = 0; i < list.count; ++i)
    if (list.entries[i].started) list.entries[i].collector().stop();
  if (reason != nullptr)
    report_loss(0, reason, 0, "the process goes on, but nothing of it is recorded from here on",
                schema::codes::Severity::info);
  if (opened_) {
    write_own_cost();
    sync_clocks(true);
    flush();
  }
  close_files();
}

bool Runtime::in_own_process() const noexcept { return raw::getpid() == identity_.pid; }

void Runtime::set_recording(bool on) noexcept {
  wanted_.store(on, std::memory_order_relaxed);
  std::uint32_t state = detail::state_page.word.load(std::memory_order_relaxed);
  if (state == detail::kForked) detail::revive();
  if (on && paused()) {
    const CollectorList list = collector_list();
    for (std::size_t i = 0; i < list.count; ++i)
      if (list.entries[i].started) list.entries[i].collector().before_recording();
  }
  state = on ? detail::kPaused : detail::kRecording;
  detail::state_page.word.compare_exchange_strong(state, on ? detail::kRecording : detail::kPaused);
  if (on && !gave_up()) file_sampler_.wake();
}

std::int64_t Runtime::tick_period_ns(std::int64_t period_ns) const noexcept {
  constexpr std::int64_t kIdleNs = 1'000'000'000;  // clocks are read as often as while recording
  const bool idle = config_.idle && !wanted_.load(std::memory_order_relaxed);
  return idle && period_ns < kIdleNs ? kIdleNs : period_ns;
}

bool Runtime::start_drainer() noexcept {
  if (detail::state_page.word.load(std::memory_order_relaxed) == detail::kForked) detail::revive();
  const bool may = config_.drainer == DrainerMode::automatic || config_.drainer == DrainerMode::thread;
  if (!may || !config_.active || gave_up_ || detail::state_page.word.load() == detail::kInert) return false;
  if (!may_start_threads()) return false;
  const std::int64_t period_ns = std::int64_t{config_.sample_ms} * 1'000'000;
  if (!drainer_.start_thread(period_ns)) return false;
  file_sampler_.start(period_ns);  // here, since a thread that the sampler starts would not share the process's table
  return true;
}

bool Runtime::flush() noexcept {
  if (!opened_) return true;
  report_drops();
  const raw::SignalsBlocked quiet;
  return drainer_.drain_all(false, kExitWaitNs);
}

std::uint64_t Runtime::tick_hz() noexcept { return estimate_tick_hz(epoch_); }

RuntimeStats Runtime::stats() noexcept {
  RuntimeStats out{};
  out.incarnation = opened_ ? identity_.incarnation : -1;
  out.drainer_running = drainer_.running();
  if (!opened_) return out;
  for (std::size_t i = 0; i < rings_.count(); ++i) {
    container::RingHeader* ring = rings_.at(i);
    if (!ring::is_intact(ring)) continue;
    out.rows_count += ring::relaxed(ring->committed);
    out.written_rows_count += ring::relaxed(ring->consumed);
    out.dropped_rows_count += ring::relaxed(ring->dropped);
  }
  out.dropped_rows_count += reported_drops_.load(std::memory_order_relaxed);
  out.rings_count = rings_.count();
  out.ring_bytes = ring_file_.used_bytes();
  out.written_bytes = writer_.written_bytes();
  out.segments_count = writer_.segments_count();
  out.drainer_cpu_ns = drainer_.thread_cpu_ns() + file_sampler_.cpu_ns();
  out.self_drain_ns = drainer_.self_drain_ns();
  return out;
}

}  // namespace stashtrace
