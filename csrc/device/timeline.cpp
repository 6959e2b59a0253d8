// Implementation of timeline.h on the job's threads. SPDX-License-Identifier: Apache-2.0
#include "device/timeline.h"

#include "core/clock.h"
#include "core/raw_syscall.h"
#include "device/driver.h"
#include "device/event_map.h"
#include "device/harvester.h"
#include "device/slots.h"
#include "device/streams.h"
#include "device/tails.h"
#include "runtime/emit.h"
#include "runtime/runtime.h"

namespace stashtrace::device {

namespace {

constexpr std::uint16_t kCaptured = 0xff;  // in place of an Awaited: the event was recorded during stream capture

constinit EventMap g_event_map{};
constinit thread_local int t_inside = 0;
constinit thread_local std::uint32_t t_tid = 0;

std::uint32_t own_tid() noexcept {
  if (t_tid == 0) t_tid = static_cast<std::uint32_t>(raw::gettid());
  return t_tid;
}

bool is_capturing(const StreamState& stream) noexcept {
  cuda::CaptureStatus status = cuda::kCaptureNone;
  const cuda::Context context = stream.context->context.load(std::memory_order_relaxed);
  const cuda::Result result = ask_in(context, [&] { return driver.stream_capturing(stream.handle, &status); });
  return result != cuda::kSuccess || status != cuda::kCaptureNone;
}

// All other times are read relative to steps; steps and the few events of batches are never left out. The host puts no
// work next to them.
bool is_always_timed(std::uint16_t kind) noexcept {
  return kind == bracket_code::step || kind == bracket_code::batch_wait || kind == bracket_code::mark;
}

// Returns the flags of a bracket that gets no events here and now, 0 if it may have them.
std::uint16_t reason_against_events(const StreamState& stream, std::uint16_t kind) noexcept {
  if (!settings.timing) return bracket_flag::untimed;
  if (is_capturing(stream)) return bracket_flag::untimed | bracket_flag::captured;
  if (!is_always_timed(kind) && !budget::step_is_timed()) return bracket_flag::untimed;
  return 0;
}

// Null if that failed; the flags then say so.
cuda::Event record_event(StreamState& stream, std::uint16_t& flags) noexcept {
  ContextState& context = *stream.context;
  cuda::Event event = take_event(context);
  cuda::Result result = cuda::kOutOfMemory;
  if (event != nullptr) {
    const cuda::Context current = context.context.load(std::memory_order_relaxed);
    result = ask_in(current, [&] { return driver.event_record(event, stream.handle); });
    count_result(result);
    if (is_gone(result)) {
      drop_events(context);
      event = nullptr;
    }
    if (result == cuda::kStreamDetached || result == cuda::kContextIsDestroyed) end_unseen(context);
  }
  if (result == cuda::kSuccess) return event;
  give_event(context, event);
  flags |= bracket_flag::untimed | bracket_flag::failed;
  counters.failed.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

// The first (`at` 0) or second event of a bracket, or what stands for it.
void record_moment(Slot& slot, unsigned at) noexcept {
  StreamState& stream = *slot.stream;
  schema::DeviceBracket& row = slot.row;
  cuda::Event& event = at == 0 ? slot.first : slot.second;
  if (!is_always_timed(row.bracket_code) || !tails::are_needed(stream)) {
    event = record_event(stream, row.bracket_flags);
    return;
  }
  const tails::Tail tail = tails::take(stream, row.bracket_code, at, row.bracket_id);
  event = tail.event;
  (at == 0 ? slot.first_as : slot.second_as) = tail.bracket_id;
  row.bracket_flags |= bracket_flag::behind_work;
  if (event != nullptr || tail.bracket_id != 0) return;
  row.bracket_flags |= bracket_flag::untimed;
  counters.legacy_refused.fetch_add(1, std::memory_order_relaxed);
}

// Hands a bracket that has all its events to the harvester; one without is written here.
void close_slot(std::uint32_t number) noexcept {
  Slot& slot = slot_at(number);
  if ((slot.row.bracket_flags & bracket_flag::untimed) == 0) {
    slot.stream->context->brackets.fetch_add(1, std::memory_order_relaxed);
    submit(number);
    start_harvester();
    return;
  }
  emit(slot.row);
  give_event(*slot.stream->context, slot.first);
  give_event(*slot.stream->context, slot.second);
  slot.stream->open.fetch_sub(1, std::memory_order_release);
  give_slot(number);
}

std::uint32_t open_slot(std::uint16_t kind, StreamState& stream, std::uint64_t correlation,
                        std::uint16_t flags) noexcept {
  const std::uint32_t number = take_slot();
  if (number == kNone) {
    counters.no_slot.fetch_add(1, std::memory_order_relaxed);
    return kNone;
  }
  Slot& slot = slot_at(number);
  stream.open.fetch_add(1, std::memory_order_relaxed);
  slot.stream = &stream;
  slot.first = slot.second = nullptr;
  slot.first_as = slot.second_as = 0;
  slot.awaited_mark = 0;
  slot.row = {.call_ticks = 0,
              .return_ticks = 0,
              .begin_device_ns = -1,
              .end_device_ns = -1,
              .awaited_device_ns = -1,
              .size_bytes = 0,
              .stream_key = stream.stream_key,
              .correlation_id = correlation,
              .bracket_id = new_bracket_id(),
              .tid = own_tid(),
              .device_index = stream.context->device,
              .bracket_code = kind,
              .awaited_code = awaited_code::nothing,
              .bracket_flags = flags,
              .copy_code = 0,
              .reserved_flags = 0};
  if ((flags & bracket_flag::untimed) == 0) slot.row.bracket_flags |= reason_against_events(stream, kind);
  slot.row.call_ticks = now_ticks();
  if ((slot.row.bracket_flags & bracket_flag::untimed) == 0) record_moment(slot, 0);
  return number;
}

Begin begin_on(StreamState& stream, std::uint16_t kind, std::uint64_t correlation, std::uint16_t flags) noexcept {
  const std::uint32_t number = open_slot(kind, stream, correlation, flags);
  if (number == kNone) return {};
  Slot& slot = slot_at(number);
  slot.open_id.store(slot.row.bracket_id, std::memory_order_release);
  return {slot.row.bracket_id, number};
}

// The slot of a bracket that is still open, null for one that was ended, cancelled or never begun.
Slot* claim(Begin begin) noexcept {
  if (begin.bracket_id == 0 || begin.slot == kNone || begin.slot > kMostSlots) return nullptr;
  Slot& slot = slot_at(begin.slot);
  std::uint32_t id = begin.bracket_id;
  return slot.open_id.compare_exchange_strong(id, 0, std::memory_order_acq_rel) ? &slot : nullptr;
}

std::uint32_t mark_on(StreamState& stream, std::uint16_t kind, std::uint64_t correlation,
                      std::uint16_t awaited) noexcept {
  const std::uint32_t number = open_slot(kind, stream, correlation, 0);
  if (number == kNone) return 0;
  Slot& slot = slot_at(number);
  slot.row.return_ticks = slot.row.call_ticks;
  slot.row.awaited_code = awaited;
  const std::uint32_t id = slot.row.bracket_id;
  const bool timed = (slot.row.bracket_flags & bracket_flag::untimed) == 0;
  if (timed) budget::spend(1);
  close_slot(number);
  return timed || kind != bracket_code::awaited ? id : 0;
}

}  // namespace

void use(stashtrace::Context& context) noexcept {
  settings.forced = context.config().force_events;
  settings.event_budget = context.config().event_budget;
  settings.context = &context;
  on_thread_end(&forget_own_streams);
}

void stop() noexcept {
  if (access_state.load(std::memory_order_acquire) != Access::ready || !same_process()) return;
  stop_harvester();
  turn_off();
}

void forget_events_on(std::uint64_t stream_key) noexcept { g_event_map.forget_stream(stream_key); }

void after_fork() noexcept {
  if (access_state.load(std::memory_order_acquire) == Access::ready) turn_off();
}

Inside::Inside() noexcept { ++t_inside; }
Inside::~Inside() { --t_inside; }
bool Inside::already() noexcept { return t_inside != 0; }

bool available() noexcept { return ready(false) && current_device() >= 0; }
bool timing_allowed() noexcept { return ready() && settings.timing; }

bool capturing(Stream stream) noexcept {
  if (!ready()) return false;
  const StreamState* state = find_stream(stream);
  return state != nullptr && is_capturing(*state);
}

std::uint64_t stream_key(Stream stream) noexcept {
  const StreamState* state = ready() ? find_stream(stream) : nullptr;
  return state != nullptr ? state->stream_key : 0;
}

std::int32_t device_index(Stream stream) noexcept {
  const StreamState* state = ready() ? find_stream(stream) : nullptr;
  return state != nullptr ? state->context->device : -1;
}

std::int32_t current_device() noexcept {
  cuda::Context current = nullptr;
  cuda::Device device = -1;
  if (!ready(false) || driver.context_current(&current) != cuda::kSuccess || current == nullptr) return -1;
  return driver.context_device(&device) == cuda::kSuccess ? device : -1;
}

Begin bracket_begin(std::uint16_t kind, Stream stream, std::uint64_t correlation, std::uint16_t flags) noexcept {
  if (!recording() || !ready()) return {};
  StreamState* state = find_stream(stream);
  if (state == nullptr) return {.stream_unknown = true};
  if (kind == bracket_code::batch_wait) set_carries_compute(*state);
  return begin_on(*state, kind, correlation, flags);
}

void bracket_end(Begin begin, const BracketExtra& extra) noexcept {
  Slot* slot = claim(begin);
  if (slot == nullptr) return;
  schema::DeviceBracket& row = slot->row;
  row.return_ticks = now_ticks();
  if (extra.call_ticks != 0) row.call_ticks = extra.call_ticks;
  row.size_bytes = extra.size_bytes;
  row.copy_code = extra.copy_code;
  row.awaited_code = extra.awaited;
  row.bracket_flags |= extra.flags;
  if (extra.awaited_bracket != 0) row.correlation_id = extra.awaited_bracket;
  if (extra.has_correlation) row.correlation_id = extra.correlation;
  const bool begun = slot->first != nullptr || slot->first_as != 0;
  if (begun && has_ended(*slot->stream)) {
    slot->first = nullptr;
    slot->first_as = 0;
    row.bracket_flags |= bracket_flag::untimed;
    counters.context_ended.fetch_add(1, std::memory_order_relaxed);
  }
  if (slot->first != nullptr || slot->first_as != 0) {
    // A capture began meanwhile: the first event is of no use without a second.
    if (!ready() || is_capturing(*slot->stream)) row.bracket_flags |= bracket_flag::untimed;
    if ((row.bracket_flags & bracket_flag::untimed) == 0) {
      record_moment(*slot, 1);
      budget::spend(2);
    }
  }
  close_slot(begin.slot);
}

bool bracket_launched(Begin begin, std::uint16_t awaited, BracketExtra extra) noexcept {
  if (begin.bracket_id == 0) return true;
  StreamState& stream = *slot_at(begin.slot).stream;  // the caller's own until bracket_end()
  std::uint64_t as_launched = LastWork{0, awaited, 0, false}.packed();
  const bool alone = stream.last.compare_exchange_strong(
      as_launched, LastWork{begin.bracket_id, awaited, 0, false}.packed(), std::memory_order_relaxed);
  // Between the call and now, others may have given blocking streams work that the launch does not join.
  const bool timed = alone && !tails::are_needed(stream);
  if (!timed) extra.flags |= bracket_flag::untimed | bracket_flag::late_launch;
  bracket_end(begin, extra);
  return timed;
}

void bracket_cancel(Begin begin) noexcept {
  Slot* slot = claim(begin);
  if (slot == nullptr) return;
  give_event(*slot->stream->context, slot->first);
  slot->stream->open.fetch_sub(1, std::memory_order_release);
  give_slot(begin.slot);
}

std::uint32_t mark(std::uint16_t kind, Stream stream, std::uint64_t correlation) noexcept {
  if (!recording() || !ready()) return 0;
  StreamState* state = find_stream(stream);
  if (state == nullptr) return 0;
  if (kind == bracket_code::step) set_carries_compute(*state);
  const std::uint32_t id = mark_on(*state, kind, correlation, awaited_code::nothing);
  if (kind == bracket_code::step) budget::step_ends(correlation);
  return id;
}

void note_work(Stream stream, std::uint16_t awaited, std::uint32_t bracket_id, std::uint16_t copy_code) noexcept {
  if (!ready()) return;
  StreamState* state = find_known_stream(stream);
  if (state == nullptr) state = find_stream(stream);
  if (state == nullptr) return;
  state->last.store(LastWork{bracket_id, awaited, copy_code, false}.packed(), std::memory_order_relaxed);
  if (tails::are_needed(*state)) tails::note_work(*state, bracket_id);
}

// A bracket at the tail of a side stream is its own end mark; for anything else our own event goes in front of the
// job's, so that it is done before any wait for the job's event ends.
bool note_event_record(void* event, Stream stream, bool afterwards) noexcept {
  if (!recording() || !ready()) return true;
  StreamState* state = find_stream(stream);
  if (state == nullptr) return false;
  if (is_capturing(*state)) {
    g_event_map.set(event, {0, 0, kCaptured, state->stream_key, 0});
    return true;
  }
  LastWork last = LastWork::of(state->last.load(std::memory_order_relaxed));
  const bool compute = state->carries_compute.load(std::memory_order_relaxed);
  if (last.awaited == awaited_code::nothing && compute) last = {0, awaited_code::compute, 0, false};
  if (last.awaited == awaited_code::nothing) {
    g_event_map.set(event, {0, 0, awaited_code::nothing, state->stream_key, 0});
    return true;
  }
  std::uint32_t mark_id = last.bracket_id;
  if (mark_id == 0 || last.by_wait || compute)
    mark_id = afterwards ? 0 : mark_on(*state, bracket_code::awaited, last.bracket_id, last.awaited);
  g_event_map.set(event, {mark_id, last.bracket_id, last.awaited, state->stream_key, last.copy_code});
  return true;
}

void note_event_gone(void* event) noexcept {
  if (ready(false)) g_event_map.forget(event);
}

Wait wait_begin(Stream stream, void* event, std::uint16_t flags) noexcept {
  if (!recording() || !ready()) return {};
  StreamState* state = find_stream(stream);
  EventMeaning meaning;
  if (state == nullptr) return {.begin = {.stream_unknown = true}};
  if (is_capturing(*state)) return {};
  const bool known = g_event_map.get(event, meaning);
  if (meaning.awaited == kCaptured) return {};                      // the wait takes this stream into the capture
  if (known && meaning.stream_key == state->stream_key) return {};  // of its own stream: nothing to wait for
  if (meaning.awaited == awaited_code::nothing && !state->carries_compute.load(std::memory_order_relaxed)) return {};
  Wait wait{begin_on(*state, bracket_code::stream_wait, 0, flags), meaning.awaited, meaning.work_id, meaning.copy_code};
  if (wait.begin.bracket_id != 0) slot_at(wait.begin.slot).awaited_mark = meaning.mark_id;
  return wait;
}

void wait_end(const Wait& wait, Stream stream, bool succeeded, std::uint64_t call_ticks) noexcept {
  if (!succeeded) return bracket_cancel(wait.begin);
  bracket_end(wait.begin, {.copy_code = wait.copy_code,
                           .awaited = wait.awaited,
                           .awaited_bracket = wait.awaited_bracket,
                           .call_ticks = call_ticks});
  if (!ready()) return;
  StreamState* state = find_known_stream(stream);
  if (state != nullptr && tails::are_needed(*state)) tails::note_work(*state, wait.begin.bracket_id);
  if (wait.awaited != awaited_code::nothing && state != nullptr &&
      !state->carries_compute.load(std::memory_order_relaxed))
    state->last.store(LastWork{wait.awaited_bracket, wait.awaited, wait.copy_code, true}.packed(),
                      std::memory_order_relaxed);
}

void note_stream_created(Stream stream, const void* maker) noexcept {
  if (!ready()) return;
  forget_stream(stream);
  if (const StreamState* state = find_stream(stream)) note_maker(*state, maker);
}

void note_execution_context(Stream stream, void* handle) noexcept {
  if (!ready()) return;
  if (const StreamState* state = find_stream(stream))
    state->context->execution_context.store(handle, std::memory_order_relaxed);
}

void note_stream_gone(Stream stream) noexcept {
  if (ready(false)) forget_stream(stream);
}

}  // namespace stashtrace::device
