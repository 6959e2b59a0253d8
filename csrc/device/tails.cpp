// Implementation of tails.h. SPDX-License-Identifier: Apache-2.0
#include "device/tails.h"

#include "device/driver.h"
#include "device/slots.h"
#include "schema/schema.h"

namespace stashtrace::device::tails {

namespace {

namespace bracket_code = schema::codes::Bracket;

enum Moment : unsigned { kStep, kBatchBegin, kBatchEnd, kMark };
static_assert(kMark + 1 == kTailMoments);

Moment moment_of(std::uint16_t kind, unsigned at) noexcept {
  if (kind == bracket_code::batch_wait) return at == 0 ? kBatchBegin : kBatchEnd;
  return kind == bracket_code::step ? kStep : kMark;
}

void put_back(StreamState& stream, cuda::Event event) noexcept {
  give_event(*stream.context, stream.tail.exchange(event, std::memory_order_acq_rel));
}

// How much work came before the soonest mark, plus one; 0 before the first step.
std::uint32_t soonest(const StreamState& stream) noexcept {
  if (stream.works_before[kStep].load(std::memory_order_relaxed) == 0) return 0;
  std::uint32_t least = 0;
  for (const auto& works : stream.works_before) {
    const std::uint32_t one = works.load(std::memory_order_relaxed);
    if (one != 0 && (least == 0 || one < least)) least = one;
  }
  return least;
}

// Falls at once and rises by an eighth: a mark that comes sooner than before has no event, and costs a step its time.
void learn(std::atomic<std::uint32_t>& before, std::uint32_t works) noexcept {
  const std::uint32_t known = before.load(std::memory_order_relaxed);
  const bool less = known == 0 || works + 1 <= known;
  before.store(less ? works + 1 : known + (works + 1 - known) / 8, std::memory_order_relaxed);
}

}  // namespace

bool are_needed(const StreamState& stream) noexcept {
  return is_legacy(stream) && !settings.forced && blocking_stream_exists(stream);
}

void note_work(StreamState& stream, std::uint32_t bracket_id) noexcept {
  if (!settings.timing || has_ended(stream)) return;
  const std::uint32_t works = stream.works_since.fetch_add(1, std::memory_order_relaxed) + 1;
  const bool has_event = bracket_id != 0 && budget::step_is_timed();
  stream.tail_bracket.store(has_event ? bracket_id : 0, std::memory_order_relaxed);
  if (has_event || works + 1 < soonest(stream)) return put_back(stream, nullptr);
  ContextState& context = *stream.context;
  cuda::Event event = stream.tail.exchange(nullptr, std::memory_order_acq_rel);
  if (event == nullptr) event = take_event(context);
  if (event == nullptr) return;
  // The job's work was accepted just now, so no stream that this one joins is being captured.
  const cuda::Context own = context.context.load(std::memory_order_relaxed);
  const cuda::Result result = ask_in(own, [&] { return driver.event_record(event, stream.handle); });
  count_result(result);
  budget::spend(1);
  if (result == cuda::kSuccess) put_back(stream, event);
  else give_event(context, event);
}

Tail take(StreamState& stream, std::uint16_t kind, unsigned at, std::uint32_t own) noexcept {
  if (const std::uint32_t works = stream.works_since.exchange(0, std::memory_order_relaxed); works != 0)
    learn(stream.works_before[moment_of(kind, at)], works);
  if (has_ended(stream)) return {};
  const cuda::Event event = stream.tail.exchange(nullptr, std::memory_order_acq_rel);
  if (event != nullptr) stream.tail_bracket.store(own, std::memory_order_relaxed);
  return {event, event != nullptr ? 0 : stream.tail_bracket.load(std::memory_order_relaxed)};
}

}  // namespace stashtrace::device::tails
