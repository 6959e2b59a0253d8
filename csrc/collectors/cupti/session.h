// A use of CUPTI: from the step before a window to the last flush after it. SPDX-License-Identifier: Apache-2.0
//
//   waiting -> ready -> open -> closing -> done      (any of them -> done when a call fails or another profiler comes)
//      ^-------------------------------------'       when another window is asked for
//
// Callers: the step thread (step), the drainer (tick), a starter of another profiler (step_aside), exit. One lock; the
// step thread does not wait for it: it marks where the window begins and ends, and the next holder of the lock does the
// rest. CUPTI's callbacks never take it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "collectors/cupti/activities.h"
#include "collectors/cupti/buffers.h"
#include "collectors/cupti/library.h"
#include "core/futex_lock.h"

namespace stashtrace::cupti {

struct StepRange {
  std::uint64_t first, last;  // [first, last)
};

enum class Answer { taken, later, never };

// Parses "A:B"; false if the text is something else, or empty.
bool parse_steps(std::string_view text, StepRange& out) noexcept;

class Session {
 public:
  void configure(StepRange steps, bool whole_graphs) noexcept;
  void allow_requests(bool whole_graphs) noexcept;
  // On the step thread. A further window; later: a flush goes on, or the last window is not given back yet.
  Answer ask(StepRange steps) noexcept;
  void refuse(const char* reason, const char* detail) noexcept;
  // On the step thread: the window ends with the step before `number`. False: a flush goes on, ask again.
  bool end_before(std::uint64_t number) noexcept;
  void step(std::uint64_t number, std::uint64_t tick_hz) noexcept;
  void tick() noexcept;
  // Gives CUPTI back before another profiler takes it.
  void step_aside(const char* who) noexcept;
  void at_exit() noexcept;
  void stop() noexcept;
  void forget() noexcept;  // in a forked child: CUPTI of the parent is not ours

  // From CUPTI's callbacks.
  std::uint8_t* take_buffer() noexcept { return buffers_.take(); }
  void buffer_done(std::uint8_t* buffer, std::size_t valid_bytes) noexcept;

 private:
  enum class State : std::uint32_t { off, waiting, ready, open, closing, done };

  State state() const noexcept { return state_.load(std::memory_order_acquire); }
  bool prepare() noexcept;
  bool enable_all() noexcept;
  void disable_all() noexcept;
  void mark_ends(State now, std::uint64_t number) noexcept;
  void advance() noexcept;
  void open() noexcept;
  void begin_close() noexcept;
  void finish() noexcept;
  void give_back() noexcept;
  void report() noexcept;
  bool read_clock(std::uint64_t& device_ns, std::int64_t wait_ns) noexcept;
  bool failed(const char* reason, const char* call, int result) noexcept;
  void note(const char* key, std::string_view value) noexcept;

  std::atomic<State> state_{State::off};
  FutexLock lock_;
  StepRange steps_{};
  bool whole_graphs_ = false;
  bool takes_requests_ = false;
  bool registered_at_exit_ = false;
  bool drainer_ticks_ = false;  // another thread may flush for the step thread
  std::int32_t pid_ = 0;
  std::uint32_t enabled_ = 0;  // bit = place in the list of kinds
  std::int64_t closing_since_ns_ = 0;
  std::uint64_t tick_hz_ = 0;
  std::uint64_t windows_count_ = 0;
  std::atomic<bool> leave_now_{false};
  std::atomic<bool> others_came_{false};         // another profiler was here while we were not
  std::atomic<std::uint64_t> last_reported_{0};  // the last step that was reported
  std::atomic<int> clock_result_{0};             // of the last failed reading for an end of the window
  abi::cupti::Subscriber subscriber_ = nullptr;
  Library cupti_{};
  BufferPool buffers_;
  Activities activities_;
};

Session& session() noexcept;

}  // namespace stashtrace::cupti
