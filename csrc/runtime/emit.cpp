// Slow paths of recording: first ring of a thread, a full ring, the recorder's rows. SPDX-License-Identifier: Apache-2.0
#include "runtime/emit.h"

#include <linux/prctl.h>
#include <pthread.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <string_view>

#include "core/large_stack.h"
#include "core/log.h"
#include "core/mapped_files.h"
#include "core/raw_syscall.h"
#include "core/string_table.h"
#include "core/text_buffer.h"
#include "runtime/io_uring.h"
#include "runtime/runtime.h"

namespace stashtrace {

namespace {
constexpr std::int64_t kNoRingRetryNs = 1'000'000'000;
constexpr std::int64_t kSyncPeriodNs = 1'000'000'000;

struct LossCause {
  const char* reason;
  const char* what;
};

// Why rows were lost: what the run directory answered, or else the given cause.
LossCause loss_cause(int error, const char* reason, const char* what) noexcept {
  if (error == 0) return {reason, what};
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) return {"no_space", "found no space in the run directory"};
  return {"not_written", "could not be written to the run directory"};
}

std::uint16_t collector_code_of(const schema::RecordDesc& record) noexcept {
  for (const auto& collector : schema::kCollectors)
    if (collector.name == record.collector) return collector.code;
  return 0;
}

// Id of the writing thread, which owns its rings. A child that shares its parent's memory (vfork) writes to the rings
// of its parent's thread, but the kernel would return the child's id, which is free once the child has ended. libc
// knows the thread's id and leaves it in a mutex that it holds.
std::uint32_t writing_thread() noexcept {
  if (runtime().in_own_process()) return static_cast<std::uint32_t>(raw::gettid());
  pthread_mutex_t mutex = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
  if (pthread_mutex_trylock(&mutex) != 0) return 0;
  const int owner = mutex.__data.__owner;
  pthread_mutex_unlock(&mutex);
  return static_cast<std::uint32_t>(owner);
}
}  // namespace

namespace detail {

bool revive() noexcept {
  std::uint32_t forked = kForked;
  // Not in a child of a sealed process: it may have inherited the filter that forbids system calls, and makes none.
  // Signals are blocked, since a handler that records would wait here for the thread that it interrupted.
  const bool may_call = !runtime().gave_up();
  const raw::SignalMask before = may_call ? raw::signal_mask(SIG_SETMASK, ~raw::SignalMask{0}) : 0;
  if (state_page.word.compare_exchange_strong(forked, kReviving, std::memory_order_acq_rel)) {
    if (may_call) runtime().forked();
    state_page.word.store(runtime().state_after_fork(), std::memory_order_release);
  }
  if (may_call) raw::signal_mask(SIG_SETMASK, before);
  while (state_page.word.load(std::memory_order_acquire) == kReviving) raw::sched_yield();
  return state_page.word.load(std::memory_order_relaxed) == kRecording;
}

bool emit_slowly(std::size_t index, const void* row) noexcept {
  // Who was sent here by the mark that the end of recording left sees the state that was stored before it.
  std::atomic_thread_fence(std::memory_order_acquire);
  const std::uint32_t state = state_page.word.load(std::memory_order_acquire);
  if (state == kForked || state == kReviving) revive();
  if (state_page.word.load(std::memory_order_relaxed) == kInert) return false;
  if (thread_state.child_filter != kNoFilter) return runtime().lose_row();
  container::RingHeader* ring = thread_state.rings[index];
  if (ring == nullptr && (ring = runtime().first_ring(index)) == nullptr) return false;
  if (ring::must_look_up(ring) && !runtime().make_room(ring)) return false;
  const std::size_t bytes = schema::kRecords[index].row_bytes;
  ring::put(ring, bytes, [row, bytes](std::byte* to) { std::memcpy(to, row, bytes); });
  return true;
}

}  // namespace detail

bool emit_bytes(std::size_t index, const void* row) noexcept {
  container::RingHeader* ring = detail::thread_state.rings[index];
  if (ring == nullptr || detail::state_page.word.load(std::memory_order_relaxed) == detail::kForked ||
      ring::must_look_up(ring))
    return detail::emit_slowly(index, row);
  const std::size_t bytes = ring->row_bytes;
  ring::put(ring, bytes, [row, bytes](std::byte* to) { std::memcpy(to, row, bytes); });
  return true;
}

std::uint32_t Runtime::state_after_fork() const noexcept {
  if (gave_up_) return detail::kInert;
  return wanted_.load(std::memory_order_relaxed) ? detail::kRecording : detail::kPaused;
}

bool Runtime::refused_lately() const noexcept {
  const std::int64_t until_ns = no_ring_until_ns_.load(std::memory_order_relaxed);
  return until_ns != 0 && clock_ns(CLOCK_MONOTONIC) < until_ns;
}

void Runtime::refuse_for_a_while(const char* text) noexcept {
  no_ring_until_ns_.store(clock_ns(CLOCK_MONOTONIC) + kNoRingRetryNs, std::memory_order_relaxed);
  log_line(LogLevel::info, text, ring_file_.file().path());
}

container::RingHeader* Runtime::first_ring(std::size_t index) noexcept {
  if (refused_lately()) {
    ring_file_.count_lost_row();
    return nullptr;
  }
  container::RingHeader* ring = on_large_stack([this, index]() noexcept {
    container::RingHeader* taken = take_ring(index);
    if (taken != nullptr) greet();
    return taken;
  });
  if (ring != nullptr && config_.drainer == DrainerMode::thread) start_drainer_if_possible();
  return ring;
}

container::RingHeader* Runtime::take_ring(std::size_t index) noexcept {
  const raw::SignalsBlocked quiet;
  if (!files_lock_.lock_within(kFilesWaitNs)) {
    ring_file_.count_lost_row();
    refuse_for_a_while("the files are being opened by a thread that does not come to an end");
    return nullptr;
  }
  auto& thread = detail::thread_state;
  container::RingHeader*& ring = thread.rings[index];
  if (ring == nullptr && open_files()) {
    if (thread.tid == 0) thread.tid = writing_thread();
    const auto& record = schema::kRecords[index];
    const bool own_size = config_.io_ring_bytes != 0 && record.id == schema::IoOp::kId;
    const std::uint32_t ring_bytes = own_size ? config_.io_ring_bytes : record.ring_bytes;
    ring = rings_.acquire(ring_file_, drainer_, index, ring_bytes, identity_.pid, thread.tid);
    if (ring == nullptr) {
      ring_file_.count_lost_row();
      refuse_for_a_while("no room for another ring");
    }
  }
  container::RingHeader* taken = ring;
  files_lock_.unlock();
  return taken;
}

// Not in a signal handler, as far as a mask shows: pthread_create allocates.
void Runtime::start_drainer_if_possible() noexcept {
  if (drainer_.running() || raw::current_signal_mask() != 0) return;
  on_large_stack([this]() noexcept { start_drainer(); });
}

bool Runtime::give_space(container::RingHeader* ring) noexcept {
  if (refused_lately()) return false;
  const raw::SignalsBlocked quiet;
  if (ring_file_.give_space(ring)) return true;
  refuse_for_a_while("no room for the rest of a ring");
  return false;
}

bool Runtime::make_room(container::RingHeader* ring) noexcept {
  ring::LookUp look = ring::look_up(ring);
  if (look.wants_space && give_space(ring)) look = ring::look_up(ring);
  if (look.gone || look.wants_space) {
    ring_file_.count_lost_row();
    return false;
  }
  if (!look.wants_drain) return look.room;
  // A process of one thread may do what others may not (unshare(CLONE_NEWUSER), fork without a warning of Python), so
  // its own thread drains. With several threads, each would wait for the one that drains, and drop rows on a busy
  // machine: our thread drains for them.
  const bool wants_thread =
      config_.drainer == DrainerMode::thread || (config_.drainer == DrainerMode::automatic && raw::threads_count() > 1);
  if (wants_thread) start_drainer_if_possible();
  if (drainer_.running()) {
    drainer_.wake();
    if (look.room) return true;
  }
  if (config_.drainer != DrainerMode::off) {
    {
      const raw::SignalsBlocked quiet;
      const std::int64_t wait_ns = look.room ? 0 : full_wait_.allowed_ns(clock_ns(CLOCK_MONOTONIC));
      if (drainer_.drain(ring, wait_ns)) full_wait_.was_worth_it();
      else if (wait_ns > 0) full_wait_.was_in_vain(clock_ns(CLOCK_MONOTONIC));
    }
    sync_clocks(false);
    look = ring::look_up(ring);
  }
  if (!look.room && !look.gone) std::atomic_ref(ring->dropped).fetch_add(1, std::memory_order_relaxed);
  return look.room;
}

void Runtime::greet() noexcept {
  if (!greeted_.exchange(true, std::memory_order_acq_rel)) {
    sync_clocks(true);
    const CollectorList list = collector_list();
    for (std::size_t i = 0; i < list.count; ++i) {
      CollectorEntry& entry = list.entries[i];
      if (entry.started && generation() > 1) entry.collector().after_fork();
      if (!entry.status.is_ok()) {
        std::uint16_t code = 0;
        for (const auto& collector : schema::kCollectors)
          if (collector.name == entry.name) code = collector.code;
        report_loss(code, entry.status.reason(), 0, entry.status.detail(), schema::codes::Severity::error);
      }
    }
  }
  if (!detail::thread_state.known) {
    detail::thread_state.known = true;
    watch_thread_end();
    write_thread_info(schema::codes::ThreadRole::unknown, nullptr, 0);
  }
}

void Runtime::sync_clocks(bool at_once) noexcept {
  const std::int64_t now = clock_ns(CLOCK_MONOTONIC);
  std::int64_t due = next_sync_ns_.load(std::memory_order_relaxed);
  if (!at_once && now < due) return;
  if (!next_sync_ns_.compare_exchange_strong(due, now + kSyncPeriodNs, std::memory_order_relaxed) && !at_once) return;
  const ClockReading reading = read_clocks();
  emit(schema::ClockSync{reading.ticks, reading.monotonic_ns, reading.realtime_ns, reading.bracket_ticks, 0});
}

// Rows reported in a loss row are subtracted from the ring's counter, so that a reader may add the two. On a full disk
// even the loss row may find no place; the counters then stay for the reader of the ring.
void Runtime::report_drops() noexcept {
  std::uint64_t any = ring_file_.lost_rows();
  for (std::size_t i = 0; i < rings_.count(); ++i) any += ring::dropped(rings_.at(i));
  if (reporting_.exchange(true, std::memory_order_acquire)) return;
  const bool all_reported = any == 0 || write_drops();
  // The cause lasts until a write succeeds: rows go on being lost between two attempts.
  if (all_reported && !drainer_.failing() && !refused_lately()) ring_file_.forget_errors();
  reporting_.store(false, std::memory_order_release);
}

// False if not all of them could be reported.
bool Runtime::write_drops() noexcept {
  const LossCause full = loss_cause(ring_file_.write_error(), "lane_full", "came faster than they could be written");
  bool all_reported = true;
  for (std::size_t record = 0; record < schema::kRecords.size(); ++record) {
    std::uint64_t dropped = 0;
    for (std::size_t i = 0; i < rings_.count(); ++i)
      if (rings_.at(i)->record_id == schema::kRecords[record].id) dropped += ring::dropped(rings_.at(i));
    if (dropped == 0) continue;
    char memory[128];
    TextBuffer detail(memory, sizeof memory);
    detail.add(schema::kRecords[record].name).add(" rows ").add(full.what);
    if (!report_loss(collector_code_of(schema::kRecords[record]), full.reason, dropped, detail.c_str(),
                     schema::codes::Severity::data_loss)) {
      all_reported = false;
      continue;
    }
    reported_drops_.fetch_add(dropped, std::memory_order_relaxed);
    for (std::size_t i = 0; i < rings_.count() && dropped > 0; ++i) {
      container::RingHeader* ring = rings_.at(i);
      if (ring->record_id != schema::kRecords[record].id) continue;
      const std::uint64_t here = ring::dropped(ring);
      const std::uint64_t reported = here < dropped ? here : dropped;
      if (reported != 0) std::atomic_ref(ring->dropped).fetch_sub(reported, std::memory_order_relaxed);
      dropped -= reported;
    }
  }
  const std::uint64_t lost = ring_file_.lost_rows();
  if (lost != 0) {
    const LossCause none =
        loss_cause(ring_file_.grow_error(), "no_lane", "of threads that found no room in the ring file");
    char memory[128];
    TextBuffer detail(memory, sizeof memory);
    detail.add("rows ").add(none.what);
    if (!report_loss(0, none.reason, lost, detail.c_str(), schema::codes::Severity::data_loss)) return false;
    reported_drops_.fetch_add(lost, std::memory_order_relaxed);
    ring_file_.forget_lost_rows(lost);
  }
  return all_reported;
}

namespace {

struct Usage {
  std::int64_t cpu_ns = -1, storage_read_bytes = -1;
};
[[gnu::noinline]] Usage usage_of(int who) noexcept {
  constexpr std::int64_t kBlockBytes = 512;
  struct rusage usage{};
  if (raw::getrusage(who, &usage) != 0) return {};
  return {(std::int64_t{usage.ru_utime.tv_sec} + usage.ru_stime.tv_sec) * 1'000'000'000 +
              (std::int64_t{usage.ru_utime.tv_usec} + usage.ru_stime.tv_usec) * 1'000,
          std::int64_t{usage.ru_inblock} * kBlockBytes};
}

// Bytes of the files that the loader has mapped, by calls that no hook sees: all parts of those that hold code. -1: unknown.
// Notes a ring of io_uring that is found among the mappings.
std::int64_t loaded_bytes() noexcept {
  std::int64_t total = 0, of_file = 0;
  std::uint64_t file = 0;
  bool holds_code = false;
  bool has_ring = false;
  const bool known = visit_mapped_files([&](const MappedFile& mapping) {
    if (mapping.path == kUringMapping) {
      has_ring = true;
      return true;
    }
    const std::uint64_t this_file = std::hash<std::string_view>{}(mapping.path);
    if (this_file != file) {
      total += holds_code ? of_file : 0;
      file = this_file;
      of_file = 0;
      holds_code = false;
    }
    if (mapping.readable) of_file += static_cast<std::int64_t>(mapping.end - mapping.begin);
    holds_code |= mapping.executable;
    return true;
  });
  if (has_ring) note_ring_mapped();
  return known ? total + (holds_code ? of_file : 0) : -1;
}

}  // namespace

// A summary compares the cost with these CPU times, since most processes have no thread that samples them. Time of
// children that were waited for is kept apart; rows of a vfork child are ours, its CPU time is not. What was read from
// storage is compared with the recorded calls and with what the loader has mapped.
void Runtime::write_own_cost() noexcept {
  const Usage own = usage_of(RUSAGE_SELF);
  const struct {
    const char* key;
    std::int64_t value;
  } costs[] = {{"drainer_cpu_ns", drainer_.thread_cpu_ns() + file_sampler_.cpu_ns()},
               {"self_drain_ns", drainer_.self_drain_ns()},
               {"cpu_ns", own.cpu_ns},
               {"children_cpu_ns", usage_of(RUSAGE_CHILDREN).cpu_ns},
               {"storage_read_bytes", own.storage_read_bytes},
               {"loaded_bytes", loaded_bytes()}};
  for (const auto& cost : costs) {
    if (cost.value < 0) continue;  // unknown
    char memory[24];
    TextBuffer digits(memory, sizeof memory);
    digits.add(cost.value);
    emit(schema::Metadata{now_ticks(), intern(cost.key), intern(digits.text())});
  }
}

void Runtime::drainer_thread_begins() noexcept {
  static constexpr char kName[] = "stashtrace drainer";
  detail::thread_state.known = true;
  write_thread_info(schema::codes::ThreadRole::tracer, kName, sizeof kName - 1);
}

void Runtime::drainer_thread_ticks() noexcept {
  if (!opened_) return;
  sync_clocks(false);
  report_drops();
}

void write_thread_info(std::uint16_t role, const char* name, std::size_t name_bytes) noexcept {
  char comm[16] = {};
  if (name == nullptr) {
    raw::call(SYS_prctl, PR_GET_NAME, raw::address(comm));
    name = comm;
    name_bytes = ::strnlen(comm, sizeof comm);
  }
  emit(schema::ThreadInfo{now_ticks(), writing_thread(), intern({name, name_bytes}), role, 0, 0});
}

bool report_loss(std::uint16_t collector_code, const char* reason, std::uint64_t count, const char* detail,
                 std::uint16_t severity) noexcept {
  return emit(schema::Loss{now_ticks(), count, intern(reason), intern(detail), collector_code, severity, 0});
}

}  // namespace stashtrace
