// Implementation of harvester.h. SPDX-License-Identifier: Apache-2.0
#include "device/harvester.h"

#include <linux/prctl.h>

#include <cerrno>
#include <cstdlib>

#include "core/clock.h"
#include "core/raw_syscall.h"
#include "core/string_table.h"
#include "core/text_buffer.h"
#include "device/driver.h"
#include "device/slots.h"
#include "device/timeline.h"
#include "runtime/emit.h"
#include "runtime/own_thread.h"
#include "runtime/runtime.h"

namespace stashtrace::device {

namespace {

enum State : std::uint32_t { kNotStarted, kRunning, kStopping, kStopped, kGivenUp, kRefused };

constexpr std::size_t kStackBytes = 256 * 1024;
constexpr std::int64_t kBusyNs = 5'000'000;  // between rounds while brackets are open
constexpr std::int64_t kQuietNs = 20'000'000;
constexpr std::int64_t kIdleNs = 100'000'000;  // after a second without any; slots last for longer
constexpr std::int64_t kIdleAfterNs = 1'000'000'000;
// Longest delay of the process's end: a driver may hang, and a busy machine may give the thread no processor for long.
constexpr std::int64_t kStopNs = 1'000'000'000;
constexpr std::uint32_t kMostRounds = 3;  // for which a wait is postponed until the end of the awaited work is known
constexpr std::size_t kEndsKept = 65536;

// When the bracket of an id ended, for waits that come later.
struct End {
  std::int64_t device_ns;
  std::uint32_t bracket_id;
  std::int32_t device;
};

constinit std::atomic<std::uint32_t> g_state{kNotStarted};
constinit End g_ends[kEndsKept]{};
constinit StreamState* g_listed[kMostStreams]{};
constinit std::size_t g_listed_count = 0;
constinit std::uint64_t g_open = 0;
constinit std::atomic<std::uint64_t> g_written{0};
constinit std::uint64_t g_reported_no_slot = 0, g_reported_failed = 0, g_reported_ended = 0;
constinit bool g_reported_thinned = false, g_reported_legacy = false;
constinit bool g_relaxed = false;  // the thread's capture mode

void accept_submitted() noexcept {
  for (std::uint32_t number = next_submitted(); number != kNone; number = next_submitted()) {
    Slot& slot = slot_at(number);
    StreamState& stream = *slot.stream;
    slot.next = kNone;
    slot.rounds = 0;
    if (stream.first == kNone) stream.first = number;
    else slot_at(stream.end).next = number;
    stream.end = number;
    ++g_open;
    if (stream.listed) continue;
    stream.listed = true;
    g_listed[g_listed_count++] = &stream;
  }
}

// False: postpone it, the end of the awaited work is not known yet.
bool find_awaited(Slot& slot, bool last_chance) noexcept {
  if (slot.awaited_mark == 0) return true;
  const End& end = g_ends[slot.awaited_mark % kEndsKept];
  if (end.bracket_id == slot.awaited_mark) {
    if (end.device == slot.row.device_index)
      slot.row.awaited_device_ns = end.device_ns;  // clocks differ between devices
    return true;
  }
  return last_chance || ++slot.rounds >= kMostRounds;
}

// When an earlier bracket of the stream ended; 0 if that is not known.
std::int64_t end_of(std::uint32_t bracket_id) noexcept {
  const End& end = g_ends[bracket_id % kEndsKept];
  return bracket_id != 0 && end.bracket_id == bracket_id ? end.device_ns : 0;
}

// 0: unknown.
std::int64_t second_ns(const Slot& slot, const ContextState& context, std::int64_t first_ns) noexcept {
  if (slot.second_as == slot.row.bracket_id) return first_ns;
  if (slot.second == nullptr) return slot.second_as != 0 ? end_of(slot.second_as) : first_ns;
  if (slot.first == nullptr) return event_ns(context, slot.second);
  float between_ms = 0;
  const bool good = driver.event_elapsed(&between_ms, slot.first, slot.second) == cuda::kSuccess && between_ms >= 0;
  return good ? first_ns + rounded_ns(static_cast<double>(between_ms)) : 0;
}

void fill_times(Slot& slot, const ContextState& context) noexcept {
  schema::DeviceBracket& row = slot.row;
  const std::int64_t begin = slot.first != nullptr ? event_ns(context, slot.first) : end_of(slot.first_as);
  const std::int64_t end = begin != 0 ? second_ns(slot, context, begin) : 0;
  if (end == 0) {
    const bool refused = slot.first != nullptr || slot.second != nullptr;  // else the bracket before had no times
    row.bracket_flags |= (refused ? bracket_flag::failed : 0) | bracket_flag::untimed;
    if (refused) counters.failed.fetch_add(1, std::memory_order_relaxed);
    else counters.legacy_refused.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  row.begin_device_ns = begin;
  row.end_device_ns = end;
  g_ends[row.bracket_id % kEndsKept] = {row.end_device_ns, row.bracket_id, row.device_index};
}

void finish(StreamState& stream, std::uint32_t number, bool events_are_good) noexcept {
  Slot& slot = slot_at(number);
  if (g_state.load(std::memory_order_acquire) != kGivenUp) {  // else it has been counted as lost
    emit(slot.row);
    g_written.fetch_add(1, std::memory_order_relaxed);
  }
  if (events_are_good) {
    give_event(*stream.context, slot.first);
    give_event(*stream.context, slot.second);
  }
  stream.first = slot.next;
  --g_open;
  give_slot(number);
  stream.open.fetch_sub(1, std::memory_order_release);
}

void fail(StreamState& stream, std::uint32_t number) noexcept {
  slot_at(number).row.bracket_flags |= bracket_flag::failed | bracket_flag::untimed;
  counters.failed.fetch_add(1, std::memory_order_relaxed);
  finish(stream, number, false);
}

// Events of a context that is gone cannot be asked any more.
void fail_all(StreamState& stream) noexcept {
  lose_anchor(*stream.context);
  drop_events(*stream.context);
  while (stream.first != kNone) fail(stream, stream.first);
}

// Events of one stream complete in order, so its turn ends at the first that is not done. The driver may refuse to say
// when, and whether, an event was done if no context is current; this thread has none.
void harvest(StreamState& stream, bool last_chance) noexcept {
  const CurrentContext current(stream.context->context.load(std::memory_order_relaxed));
  if (!current) return fail_all(stream);
  while (stream.first != kNone && stream.context->life.load(std::memory_order_acquire) <= kAsked) {
    const std::uint32_t number = stream.first;
    Slot& slot = slot_at(number);
    const cuda::Event last = slot.second != nullptr ? slot.second : slot.first;  // null: earlier brackets say it
    const cuda::Result result = last != nullptr ? driver.event_query(last) : cuda::kSuccess;
    if (result == cuda::kNotReady) return;
    count_result(result);
    if (result != cuda::kSuccess) {
      if (is_gone(result)) {
        lose_anchor(*stream.context);
        drop_events(*stream.context);
      }
      fail(stream, number);
      continue;
    }
    if (!find_awaited(slot, last_chance)) return;
    fill_times(slot, *stream.context);
    finish(stream, number, true);
  }
}

// Calls no driver function: the events are gone with their context.
void lose_brackets_of(const ContextState& context) noexcept {
  for (std::size_t i = 0; i < g_listed_count; ++i) {
    StreamState& stream = *g_listed[i];
    if (stream.context != &context) continue;
    while (stream.first != kNone) {
      slot_at(stream.first).row.bracket_flags |= bracket_flag::untimed;
      counters.context_ended.fetch_add(1, std::memory_order_relaxed);
      finish(stream, stream.first, false);
    }
  }
}

// A thread waits for the answer before it destroys the context: finished brackets are written while it can be asked.
void let_go(ContextState& context, std::int64_t now_ns) noexcept {
  if (ready() && keep_anchored(context, now_ns, true))
    for (std::uint32_t round = 0; round < kMostRounds; ++round)
      for (std::size_t i = 0; i < g_listed_count; ++i)
        if (g_listed[i]->context == &context) harvest(*g_listed[i], false);
  std::uint32_t asked = kAsked;
  context.life.compare_exchange_strong(asked, kHeld, std::memory_order_acq_rel);
  raw::futex_wake(&context.life, 1);
}

void answer_contexts(std::int64_t now_ns) noexcept {
  for (std::size_t i = 0; ContextState* context = context_at(i); ++i) {
    const std::uint32_t life = context->life.load(std::memory_order_acquire);
    if (life == kAsked) let_go(*context, now_ns);
    if (life != kEnded) continue;
    lose_brackets_of(*context);
    lose_anchor(*context);
    if (!has_open_brackets(*context)) free_context(*context);
  }
}

void harvest_all(std::int64_t now_ns, bool last_chance) noexcept {
  bool anchored[kMostContexts] = {};
  for (std::size_t i = 0; ContextState* context = context_at(i); ++i)
    anchored[i] =
        context->life.load(std::memory_order_acquire) == kLive && keep_anchored(*context, now_ns, last_chance);
  for (std::size_t i = 0; i < g_listed_count;) {
    StreamState& stream = *g_listed[i];
    const auto context = static_cast<std::size_t>(stream.context - context_at(0));
    if (anchored[context]) harvest(stream, last_chance);
    if (stream.first != kNone) {
      ++i;
      continue;
    }
    stream.listed = false;
    g_listed[i] = g_listed[--g_listed_count];
  }
}

// The device did not finish these: their rows have host times only. Their events stay with the driver.
void give_up_rest() noexcept {
  for (std::size_t i = 0; i < g_listed_count; ++i) {
    StreamState& stream = *g_listed[i];
    while (stream.first != kNone) {
      slot_at(stream.first).row.bracket_flags |= bracket_flag::untimed;
      finish(stream, stream.first, false);
    }
    stream.listed = false;
  }
  g_listed_count = 0;
}

void report_counters(bool last) noexcept {
  const std::uint64_t thinned = counters.thinned_steps.load(std::memory_order_relaxed);
  if (thinned != 0 && (last || !g_reported_thinned)) {
    char memory[160];
    TextBuffer text(memory, sizeof memory);
    text.add("more than ").add(settings.event_budget).add(" timing events a second (--event-budget): only one of ");
    text.add(std::int64_t{counters.stride.load(std::memory_order_relaxed)})
        .add(" steps has them; the count is of steps without");
    report("event_budget", last ? thinned : 0, text.c_str(), schema::codes::Severity::info);
    g_reported_thinned = true;
  }
  const std::uint64_t refused = counters.legacy_refused.load(std::memory_order_relaxed);
  if (refused != 0 && (last || !g_reported_legacy)) {
    char memory[1024];
    TextBuffer text(memory, sizeof memory);
    text.add(
        "steps and batch waits on the legacy default stream without device times: a blocking stream, which events there ");
    text.add("would join (")
        .add(maker())
        .add("), and no work just before them was seen. STASHTRACE_FORCE_EVENTS=1 records them");
    report("legacy_stream_untimed", last ? refused : 0, text.c_str(), schema::codes::Severity::info);
    g_reported_legacy = true;
  }
  const std::uint64_t no_slot = counters.no_slot.load(std::memory_order_relaxed);
  if (no_slot != g_reported_no_slot) {
    report("brackets_full", no_slot - g_reported_no_slot, "more brackets were open than there is room for",
           schema::codes::Severity::data_loss);
    g_reported_no_slot = no_slot;
  }
  const std::uint64_t ended = counters.context_ended.load(std::memory_order_relaxed);
  if (ended != g_reported_ended) {
    report("context_ended", ended - g_reported_ended,
           "the job destroyed a context or reset a device: brackets that were in flight there have no device times",
           schema::codes::Severity::data_loss);
    g_reported_ended = ended;
  }
  const std::uint64_t failed = counters.failed.load(std::memory_order_relaxed);
  if (failed == g_reported_failed) return;
  report("events_failed", failed - g_reported_failed,
         "timing events that the driver refused; these brackets have no device times",
         schema::codes::Severity::data_loss);
  g_reported_failed = failed;
}

void write_own_cost() noexcept {
  char memory[24];
  TextBuffer digits(memory, sizeof memory);
  digits.add(clock_ns(CLOCK_THREAD_CPUTIME_ID));
  emit(schema::Metadata{now_ticks(), intern("harvester_cpu_ns"), intern(digits.text())});
}

void* thread_main(void*) noexcept {
  static constexpr char kName[] = "stashtrace gpu";
  raw::call(SYS_prctl, PR_SET_NAME, raw::address(kName));
  detail::thread_state.known = true;
  write_thread_info(schema::codes::ThreadRole::tracer, kName, sizeof kName - 1);
  stays_out_of_captures();  // without a context yet: if that is refused, it is asked again with one
  std::int64_t last_work_ns = clock_ns(CLOCK_MONOTONIC), report_at_ns = 0;
  while (g_state.load(std::memory_order_acquire) == kRunning && ready()) {
    const std::int64_t now = clock_ns(CLOCK_MONOTONIC);
    accept_submitted();
    answer_contexts(now);
    harvest_all(now, false);
    if (!g_relaxed && !settings.timing) give_up_rest();  // since stop_timing()
    budget::second_ends();
    if (g_open != 0) last_work_ns = now;
    if (now >= report_at_ns) {
      report_counters(false);
      report_at_ns = now + kIdleAfterNs;
    }
    const std::int64_t pause = g_open != 0 ? kBusyNs : now - last_work_ns < kIdleAfterNs ? kQuietNs : kIdleNs;
    raw::futex_wait(&g_state, kRunning, pause);
  }
  accept_submitted();
  answer_contexts(clock_ns(CLOCK_MONOTONIC));
  if (ready()) harvest_all(clock_ns(CLOCK_MONOTONIC), true);
  give_up_rest();
  report_counters(true);
  write_own_cost();
  std::uint32_t stopping = kStopping;
  g_state.compare_exchange_strong(stopping, kStopped, std::memory_order_acq_rel);
  raw::futex_wake(&g_state, 1);
  return nullptr;
}

// Runs before the driver's exit handlers, which were registered earlier than ours.
void at_exit() noexcept { stop(); }

}  // namespace

bool stays_out_of_captures() noexcept {
  cuda::CaptureMode mode = cuda::kCaptureRelaxed;
  if (!g_relaxed) g_relaxed = driver.capture_mode(&mode) == cuda::kSuccess;
  return g_relaxed;
}

void start_harvester() noexcept {
  std::uint32_t none = kNotStarted;
  if (g_state.load(std::memory_order_relaxed) != kNotStarted || !runtime().may_start_threads() ||
      !g_state.compare_exchange_strong(none, kRunning, std::memory_order_acq_rel))
    return;
  if (!start_detached(&thread_main, nullptr, kStackBytes)) {
    g_state.store(kRefused, std::memory_order_release);
    turn_off();
    report("no_harvester", 0, "no thread could be made to read timing events: nothing of devices is recorded",
           schema::codes::Severity::error);
  } else {
    const int saved_errno = errno;
    std::atexit(&at_exit);
    errno = saved_errno;
    runtime().start_drainer();  // samples of the devices are taken on its tick
  }
}

bool harvester_runs() noexcept {
  const std::uint32_t state = g_state.load(std::memory_order_acquire);
  return state == kRunning || state == kStopping;
}

void wake_harvester() noexcept { raw::futex_wake(&g_state, 1); }

void stop_harvester() noexcept {
  std::uint32_t running = kRunning;
  if (!g_state.compare_exchange_strong(running, kStopping, std::memory_order_acq_rel) && running != kStopping) return;
  raw::futex_wake(&g_state, 1);
  const std::int64_t until = clock_ns(CLOCK_MONOTONIC) + kStopNs;
  for (std::int64_t now = until - kStopNs; now < until; now = clock_ns(CLOCK_MONOTONIC)) {
    if (g_state.load(std::memory_order_acquire) == kStopped) return;
    raw::futex_wait(&g_state, kStopping, until - now);
  }
  std::uint32_t stopping = kStopping;
  if (!g_state.compare_exchange_strong(stopping, kGivenUp, std::memory_order_acq_rel)) return;
  report("harvester_late", submitted_count() - g_written.load(std::memory_order_relaxed),
         "the process ended while the thread that reads timing events was in a call of the driver, or got no processor",
         schema::codes::Severity::data_loss);
}

}  // namespace stashtrace::device
