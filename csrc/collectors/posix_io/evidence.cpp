// SPDX-License-Identifier: Apache-2.0
#include "collectors/posix_io/evidence.h"

#include <sys/resource.h>
#include <sys/syscall.h>

#include "core/clock.h"
#include "core/raw_syscall.h"
#include "schema/schema.h"

namespace stashtrace::posix_io {

constinit thread_local Evidence evidence;
constinit Hot hot;

namespace {

constinit std::uint64_t refresh_ticks = 2'500'000;
constinit std::atomic<bool> rate_known = false;
constexpr int kArmedCalls = 16;

bool read_usage(rusage& usage) noexcept { return raw::call(SYS_getrusage, RUSAGE_THREAD, raw::address(&usage)) == 0; }

void store(Evidence& state, const rusage& usage, std::uint64_t ticks) noexcept {
  state.baseline_ticks = ticks;
  state.voluntary_count = usage.ru_nvcsw;
  state.involuntary_count = usage.ru_nivcsw;
  state.block_input_count = usage.ru_inblock;
}

}  // namespace

void set_tick_rate(std::uint64_t ticks_per_s) noexcept {
  hot.slow_ticks = ticks_per_s / 50'000;  // 20 us
  refresh_ticks = ticks_per_s / 1'000;    // 1 ms
}

std::uint64_t take_baseline() noexcept {
  if (!rate_known.exchange(true, std::memory_order_relaxed)) learn_tick_rate();
  Evidence& state = evidence;
  rusage usage;
  const bool good = read_usage(usage);
  const std::uint64_t ticks = now_ticks();
  if (good) store(state, usage, ticks);
  if (state.armed_calls > 0) --state.armed_calls;
  // Without a counter, now_ticks() is not what the plain path compares with: that path must not be taken.
  const bool at_once = state.armed_calls > 0 || !ticks_are_counter();
  state.due_ticks = at_once ? 0 : ticks + refresh_ticks;
  return ticks;
}

std::uint16_t flags_of_slow_call(std::uint64_t begin_ticks, std::int64_t result) noexcept {
  namespace flag = schema::codes::IoFlag;
  Evidence& state = evidence;
  rusage usage;
  if (!read_usage(usage)) return 0;
  const std::int64_t voluntary = usage.ru_nvcsw - state.voluntary_count;
  const std::int64_t involuntary = usage.ru_nivcsw - state.involuntary_count;
  const std::int64_t block_inputs = usage.ru_inblock - state.block_input_count;
  // Time between baseline and call in which the thread could have slept elsewhere. Falling asleep and waking up
  // takes longer than a few us, so a gap that small holds no sleep of any length.
  const std::uint64_t gap_ticks = begin_ticks - state.baseline_ticks;
  // Counts below the baseline are those of another task: a vfork child shares this memory.
  const bool have_baseline = state.baseline_ticks != 0 && voluntary >= 0 && involuntary >= 0;
  const bool exact = have_baseline && gap_ticks <= hot.slow_ticks;

  std::uint16_t flags = 0;
  if (have_baseline && voluntary == 0 && block_inputs == 0) {
    flags = flag::sampled;  // certain, whatever the gap is
  } else if (exact) {
    flags = flag::sampled | (voluntary > 0 ? flag::blocked : 0) | (block_inputs > 0 ? flag::block_input : 0);
  } else if (have_baseline && involuntary == 0 && voluntary > 0 && result < static_cast<std::int64_t>(kLargeBytes)) {
    // A stale baseline: the thread slept since, here or up to 1 ms earlier. Nothing else explains a call this long
    // (it was not preempted and moved little), so it slept here.
    flags = flag::sampled | flag::blocked | (block_inputs > 0 ? flag::block_input : 0);
  }
  store(state, usage, now_ticks());
  state.armed_calls = kArmedCalls;
  state.due_ticks = 0;
  return flags;
}

}  // namespace stashtrace::posix_io
