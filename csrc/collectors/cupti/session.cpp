// Implementation of session.h. SPDX-License-Identifier: Apache-2.0
#include "collectors/cupti/session.h"

#include <stdlib.h>

#include "core/log.h"
#include "core/raw_syscall.h"
#include "core/string_table.h"
#include "core/text_buffer.h"
#include "runtime/capi.h"
#include "runtime/emit.h"

namespace stashtrace::cupti {

using abi::cupti::ActivityKind;

namespace {

// Only for the lock of the readings; if it fails, the next reading serves.
constexpr std::int64_t kReadingWaitNs = 1'000'000;
constexpr std::int64_t kAsideWaitNs = 500'000'000;
constexpr std::int64_t kExitWaitNs = 1'500'000'000;
// How long to wait, after the window, for work that was launched in it; what is not done then is given up.
constexpr std::int64_t kSettleNs = 1'000'000'000;

struct Kind {
  ActivityKind kind;
  bool needed;
};
// Graphs are resolved into their nodes unless the second list is asked for.
constexpr Kind kKinds[] = {
    {ActivityKind::concurrent_kernel, true}, {ActivityKind::memcpy, true},       {ActivityKind::memset, false},
    {ActivityKind::memcpy_peer, false},      {ActivityKind::runtime, false},     {ActivityKind::driver, false},
    {ActivityKind::synchronization, false},  {ActivityKind::graph_trace, false},
};
constexpr std::size_t kNodeKinds = std::size(kKinds) - 1;

constexpr std::uint16_t collector_code() noexcept {
  for (const auto& collector : schema::kCollectors)
    if (collector.name == "cupti") return collector.code;
  return 0;
}

void lose(const char* reason, std::uint64_t count, const char* detail, std::uint16_t severity) noexcept {
  report_loss(collector_code(), reason, count, detail, severity);
}

void subscribed(void*, std::uint32_t, std::uint32_t, const void*) noexcept {}  // no callback is ever enabled

void buffer_requested(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most_records) noexcept {
  *buffer = session().take_buffer();
  *bytes = *buffer != nullptr ? BufferPool::kBufferBytes : 0;
  *most_records = 0;
}

void buffer_completed(void*, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid_bytes) noexcept {
  session().buffer_done(buffer, valid_bytes);
}

// libcupti might call its exported names: the hooks must not take us for another profiler then.
constinit thread_local bool inside_cupti = false;
class Inside {
 public:
  Inside() noexcept : before_(inside_cupti) { inside_cupti = true; }
  ~Inside() { inside_cupti = before_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  bool before_;
};

void run_at_exit() noexcept { session().at_exit(); }

constinit Session g_session;

}  // namespace

Session& session() noexcept { return g_session; }

bool parse_steps(std::string_view text, StepRange& out) noexcept {
  const std::size_t colon = text.find(':');
  if (colon == text.npos) return false;
  std::uint64_t ends[2] = {0, ~std::uint64_t{0}};
  const std::string_view parts[2] = {text.substr(0, colon), text.substr(colon + 1)};
  for (int i = 0; i < 2; ++i) {
    if (parts[i].empty()) continue;
    if (parts[i].size() > 18) return false;
    ends[i] = 0;
    for (const char c : parts[i]) {
      if (c < '0' || c > '9') return false;
      ends[i] = ends[i] * 10 + static_cast<std::uint64_t>(c - '0');
    }
  }
  out = {ends[0], ends[1]};
  return ends[0] < ends[1];
}

void Session::configure(StepRange steps, bool whole_graphs) noexcept {
  steps_ = steps;
  whole_graphs_ = whole_graphs;
  state_.store(State::waiting, std::memory_order_release);
}

void Session::allow_requests(bool whole_graphs) noexcept {
  whole_graphs_ = whole_graphs;
  takes_requests_ = true;
}

Answer Session::ask(StepRange steps) noexcept {
  if (pid_ != 0 && pid_ != raw::getpid()) forget();
  if (!takes_requests_) return Answer::never;
  if (others_came_.load(std::memory_order_relaxed)) {
    refuse("another_profiler", "another profiler has used CUPTI in this process");
    return Answer::never;
  }
  if (!lock_.try_lock()) return Answer::later;
  const State now = state();
  const bool taken = now == State::off || now == State::done;
  if (taken) {
    steps_ = steps;
    clock_result_.store(abi::cupti::kSuccess, std::memory_order_relaxed);
    buffers_.begin_again();
    activities_.begin_again();
    state_.store(State::waiting, std::memory_order_release);
  }
  lock_.unlock();
  return taken ? Answer::taken : Answer::later;
}

void Session::refuse(const char* reason, const char* detail) noexcept {
  lose(reason, 0, detail, schema::codes::Severity::error);
}

bool Session::end_before(std::uint64_t number) noexcept {
  const State before = state();
  if (before != State::waiting && before != State::ready && before != State::open) return true;
  if (!lock_.try_lock()) return false;
  const Inside guard;
  if (state() == State::waiting) state_.store(State::done, std::memory_order_release);
  if (state() == State::ready && !activities_.window_has_begun()) finish();
  if (number < steps_.last) steps_.last = number;  // the next step() ends it
  lock_.unlock();
  return true;
}

void Session::forget() noexcept {
  takes_requests_ = false;
  state_.store(State::off, std::memory_order_release);
  lock_.reset();
}

void Session::step(std::uint64_t number, std::uint64_t tick_hz) noexcept {
  const State before = state();
  if (before == State::off || before == State::closing || before == State::done) return;
  if (before != State::waiting && pid_ != raw::getpid()) return forget();
  last_reported_.store(number, std::memory_order_relaxed);
  // Most calls end here, without the lock that a flush may hold for milliseconds.
  if (before == State::waiting && number + 1 < steps_.first) return;
  if (before == State::ready && number < steps_.first) return;
  if (before == State::open && number < steps_.last) return;
  mark_ends(before, number);
  // A flush holds the lock for milliseconds, and on a busy machine for longer: its tick does what is marked.
  if (!lock_.try_lock()) return;
  const Inside guard;
  tick_hz_ = tick_hz;
  if (state() == State::waiting) {
    if (number >= steps_.last) {
      state_.store(State::done, std::memory_order_release);
      lose("kernels_window_missed", 0, "the first step that was reported lies behind those of deep mode",
           schema::codes::Severity::error);
    } else if (prepare()) {
      mark_ends(State::ready, number);
    }
  }
  advance();
  lock_.unlock();
}

// The window is that of the steps, whoever holds the lock: its ends are read here and now.
void Session::mark_ends(State now, std::uint64_t number) noexcept {
  if (now != State::ready && now != State::open) return;
  const bool begins = number >= steps_.first && !activities_.window_has_begun();
  const bool ends = number >= steps_.last && !activities_.window_has_ended();
  if (!begins && !ends) return;
  const Inside guard;
  std::uint64_t device_ns = 0;
  const int result = cupti_.cuptiGetTimestamp(&device_ns);
  if (result != abi::cupti::kSuccess) {
    clock_result_.store(result, std::memory_order_relaxed);
    return;
  }
  if (begins) activities_.open_window(device_ns);
  if (ends) activities_.close_window(device_ns);
}

// Under lock_. Moves on to the states that the marks ask for.
void Session::advance() noexcept {
  if (const int result = clock_result_.exchange(abi::cupti::kSuccess, std::memory_order_relaxed);
      result != abi::cupti::kSuccess && state() == State::ready) {
    failed("cupti_failed", "cuptiGetTimestamp", result);
    return;
  }
  if (state() == State::ready && activities_.window_has_begun()) open();
  if (state() == State::open && activities_.window_has_ended()) begin_close();
}

// In the step before the window, which becomes slow: CUPTI attaches to the driver when the first kind is enabled.
bool Session::prepare() noexcept {
  pid_ = raw::getpid();
  Status found = find_library(cupti_, true);
  if (found) found = find_device(cupti_);
  if (!found) {
    lose(found.reason(), 0, found.detail(), schema::codes::Severity::error);
    log_line(LogLevel::error, "no kernels are recorded", found.detail());
    state_.store(State::done, std::memory_order_release);
    return false;
  }
  std::uint32_t version = 0;
  if (const int result = cupti_.cuptiGetVersion(&version)) return failed("cupti_failed", "cuptiGetVersion", result);
  char memory[24];
  TextBuffer digits(memory, sizeof memory);
  digits.add_unsigned(version);
  note("cupti_version", digits.text());
  if (!abi::cupti::known_version(version))
    return failed("cupti_version_unknown", "its records are not known to this stashtrace; cuptiGetVersion",
                  static_cast<int>(version));
  if (!buffers_.reserve()) return failed("no_memory", "mmap", 12);
  if (const int result = cupti_.cuptiSubscribe(&subscriber_, &subscribed, nullptr)) {
    subscriber_ = nullptr;
    if (result == abi::cupti::kMultipleSubscribers)
      return failed("another_profiler", "another profiler uses CUPTI in this process; cuptiSubscribe", result);
    return failed("cupti_failed", "cuptiSubscribe", result);
  }
  if (const int result = cupti_.cuptiActivityRegisterCallbacks(&buffer_requested, &buffer_completed))
    return failed("cupti_failed", "cuptiActivityRegisterCallbacks", result);
  // Thread ids as the kernel has them, not pthread_t; given back in finish(), since it holds for the process.
  if (cupti_.cuptiSetThreadIdType != nullptr) cupti_.cuptiSetThreadIdType(abi::cupti::kThreadIdSystem);
  if (!enable_all()) return false;
  if (!registered_at_exit_) registered_at_exit_ = ::atexit(&run_at_exit) == 0;
  drainer_ticks_ = stashtrace_start_drainer() != 0;
  activities_.set_tick_hz(tick_hz_);
  state_.store(State::ready, std::memory_order_release);
  return true;
}

bool Session::enable_all() noexcept {
  const std::size_t count = whole_graphs_ ? std::size(kKinds) : kNodeKinds;
  for (std::size_t i = 0; i < count; ++i) {
    const int result = cupti_.cuptiActivityEnable(kKinds[i].kind);
    if (result == abi::cupti::kSuccess) {
      enabled_ |= 1u << i;
      continue;
    }
    char memory[96];
    TextBuffer text(memory, sizeof memory - 1);
    text.add("cuptiActivityEnable of kind ").add(static_cast<std::int64_t>(kKinds[i].kind));
    if (kKinds[i].needed)
      return failed(result == abi::cupti::kInsufficientPrivileges ? "cupti_not_permitted" : "cupti_failed",
                    text.c_str(), result);
    text.add(" failed: these records are missing");
    lose("cupti_kind_missing", 0, text.c_str(), schema::codes::Severity::error);
  }
  return true;
}

void Session::disable_all() noexcept {
  for (std::size_t i = 0; i < std::size(kKinds); ++i)
    if (enabled_ >> i & 1) cupti_.cuptiActivityDisable(kKinds[i].kind);
  enabled_ = 0;
}

bool Session::read_clock(std::uint64_t& device_ns, std::int64_t wait_ns) noexcept {
  Reading best{};
  int result = abi::cupti::kUnknown;
  for (int i = 0; i < 3; ++i) {
    std::uint64_t shown = 0;
    const std::uint64_t before = now_ticks();
    const int got = cupti_.cuptiGetTimestamp(&shown);
    const std::uint64_t after = now_ticks();
    if (got != abi::cupti::kSuccess) continue;
    result = got;
    if (best.device_ns == 0 || after - before < best.after_ticks - best.before_ticks)
      best = {before, after, static_cast<std::int64_t>(shown)};
  }
  if (result != abi::cupti::kSuccess) return false;
  device_ns = static_cast<std::uint64_t>(best.device_ns);
  activities_.add_reading(best, wait_ns);
  return true;
}

void Session::open() noexcept {
  std::uint64_t now = 0;
  read_clock(now, kReadingWaitNs);
  state_.store(State::open, std::memory_order_release);
}

// Only reads the clock; the drainer does the rest.
void Session::begin_close() noexcept {
  std::uint64_t now = 0;
  if (read_clock(now, kReadingWaitNs) && !activities_.window_has_ended()) activities_.close_window(now);
  closing_since_ns_ = clock_ns(CLOCK_MONOTONIC);
  state_.store(State::closing, std::memory_order_release);
  if (!drainer_ticks_) finish();
}

void Session::tick() noexcept {
  const State now = state();
  if (now != State::ready && now != State::open && now != State::closing) return;
  if (!lock_.try_lock()) return;
  const Inside guard;
  if (pid_ == raw::getpid()) advance();
  if (pid_ == raw::getpid() && state() != State::done) {
    std::uint64_t device_ns = 0;
    if (state() != State::ready) read_clock(device_ns, kReadingWaitNs);
    if (state() == State::closing) disable_all();
    cupti_.cuptiActivityFlushAll(0);
    const bool settled = clock_ns(CLOCK_MONOTONIC) - closing_since_ns_ >= kSettleNs;
    if (state() == State::closing && (settled || leave_now_.load(std::memory_order_relaxed))) finish();
  }
  lock_.unlock();
}

// Under lock_. Gives everything back to CUPTI; the process does not use it again.
void Session::finish() noexcept {
  disable_all();
  const int result = cupti_.cuptiActivityFlushAll(abi::cupti::kFlushForced);
  if (result != abi::cupti::kSuccess)
    lose("cupti_flush_failed", 0, "what CUPTI still held at the end is missing", schema::codes::Severity::data_loss);
  give_back();
  buffers_.shrink();
  report();
  state_.store(State::done, std::memory_order_release);
}

void Session::give_back() noexcept {
  if (subscriber_ == nullptr) return;
  if (cupti_.cuptiSetThreadIdType != nullptr) cupti_.cuptiSetThreadIdType(abi::cupti::kThreadIdDefault);
  cupti_.cuptiUnsubscribe(subscriber_);
  subscriber_ = nullptr;
}

void Session::report() noexcept {
  const struct {
    std::uint64_t count;
    const char* reason;
    const char* detail;
  } losses[] = {
      {activities_.dropped(), "cupti_dropped", "CUPTI found no buffer for these records"},
      {activities_.incomplete(), "cupti_incomplete", "still running when the window was given up"},
      {activities_.unread_buffers(), "cupti_buffer_unread", "activity buffers that could not be read to their end"},
  };
  for (const auto& loss : losses)
    if (loss.count != 0) lose(loss.reason, loss.count, loss.detail, schema::codes::Severity::data_loss);
  if (buffers_.exhausted() != 0)
    lose("cupti_buffers_exhausted", buffers_.exhausted(), "times that all activity buffers were in use",
         schema::codes::Severity::info);
  if (!activities_.window_has_begun()) return;
  const std::uint64_t end =
      last_reported_.load(std::memory_order_relaxed) + 1;  // it may have been given up before its end
  char memory[72];
  TextBuffer text(memory, sizeof memory);
  text.add_unsigned(steps_.first).add(":").add_unsigned(end < steps_.last ? end : steps_.last).add(" ");
  text.add_unsigned(activities_.rows());
  note("kernels_window", text.text());
  TextBuffer count(memory, sizeof memory);
  note("kernels_windows_count", count.add_unsigned(++windows_count_).text());
}

void Session::step_aside(const char* who) noexcept {
  const State now = state();
  if (inside_cupti) return;
  if (now == State::off || now == State::done) return others_came_.store(true, std::memory_order_relaxed);
  if (now != State::waiting && pid_ != raw::getpid()) return forget();
  const bool held = lock_.lock_within(kAsideWaitNs);
  if (held && state() != State::waiting && state() != State::done) finish();
  state_.store(State::done, std::memory_order_release);
  others_came_.store(true, std::memory_order_relaxed);
  lose("another_profiler", 0, who, schema::codes::Severity::error);
  log_line(LogLevel::error, "kernels are no longer recorded, CUPTI is left to", who);
  if (held) lock_.unlock();
}

// Runs before the destructors of libraries: CUPTI still works. The drainer flushes while we wait for it: a flush
// that hangs costs the job a second and a half, not its exit.
void Session::at_exit() noexcept {
  const State now = state();
  if ((now != State::ready && now != State::open && now != State::closing) || pid_ != raw::getpid()) return;
  if (!lock_.lock_within(kAsideWaitNs)) return;
  advance();
  if (state() == State::open) begin_close();
  if (state() == State::ready) finish();
  leave_now_.store(true, std::memory_order_relaxed);
  lock_.unlock();
  constexpr std::int64_t kSlice = 2'000'000;
  for (std::int64_t waited = 0; waited < kExitWaitNs && state() == State::closing; waited += kSlice) {
    const timespec slice = {0, kSlice};
    raw::call(SYS_nanosleep, raw::address(&slice));
  }
  if (state() == State::closing && lock_.try_lock()) {
    finish();
    lock_.unlock();
  }
}

// The library's destructor: CUPTI may be gone, so it is not called any more.
void Session::stop() noexcept {
  const State before = state_.exchange(State::done, std::memory_order_acq_rel);
  if (before == State::waiting)
    lose("kernels_window_not_reached", 0, "the process ended before the steps of deep mode, or reported no steps",
         schema::codes::Severity::info);
  if (before == State::ready || before == State::open || before == State::closing)
    lose("cupti_not_flushed", 0, "the process ended before CUPTI gave its records back",
         schema::codes::Severity::data_loss);
}

void Session::buffer_done(std::uint8_t* buffer, std::size_t valid_bytes) noexcept {
  if (!buffers_.owns(buffer)) return;
  if (valid_bytes != 0 && state() != State::off) activities_.read_buffer(cupti_, buffer, valid_bytes);
  buffers_.give(buffer);
}

// Returns false. Disables what was enabled, and leaves CUPTI to others.
bool Session::failed(const char* reason, const char* call, int result) noexcept {
  char memory[192];
  TextBuffer text(memory, sizeof memory - 1);
  text.add(call).add(" gave ").add(std::int64_t{result});
  lose(reason, 0, text.c_str(), schema::codes::Severity::error);
  log_line(LogLevel::error, "no kernels are recorded", text.c_str());
  if (enabled_ != 0) {  // else CUPTI holds no buffer of ours
    disable_all();
    cupti_.cuptiActivityFlushAll(abi::cupti::kFlushForced);
  }
  give_back();
  state_.store(State::done, std::memory_order_release);
  return false;
}

void Session::note(const char* key, std::string_view value) noexcept {
  emit(schema::Metadata{now_ticks(), intern(key), intern(value)});
}

}  // namespace stashtrace::cupti
