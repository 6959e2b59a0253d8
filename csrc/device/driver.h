// The driver's functions, and whether they may be called. SPDX-License-Identifier: Apache-2.0
//
// Callers: the other files of csrc/device, any thread. The driver is taken from the process where a runtime has loaded it,
// else loaded by name: at the first CUDA call of the job, never before. In a forked child, after stop() and after
// many errors ready() stays false and we do not call CUDA again.
#pragma once

#include <atomic>
#include <cstdint>

#include "abi/cuda_abi.h"
#include "collectors/collector.h"

namespace stashtrace::device {

#pragma GCC visibility push(hidden)

struct Settings {
  stashtrace::Context* context;  // of the runtime; null: no collector asked for devices
  std::int64_t event_budget;     // events per second
  bool forced;                   // STASHTRACE_FORCE_EVENTS
  std::atomic<bool> timing;      // events may be used at all
};
extern constinit Settings settings;
extern constinit cuda::Driver driver;

enum class Access : std::uint32_t { unknown, resolving, ready, off };
extern constinit std::atomic<Access> access_state;
extern constinit std::uint32_t owner_generation;  // of the process image that resolved the driver

// `may_load`: the job is in a call of CUDA, so a driver that is not loaded yet is loaded, and absence is final.
bool resolve_driver(bool may_load) noexcept;
bool same_process() noexcept;  // false in a forked child

inline bool ready(bool may_load = true) noexcept {
  const Access now = access_state.load(std::memory_order_acquire);
  if (now == Access::ready) [[likely]]
    return same_process();
  return now == Access::unknown && resolve_driver(may_load);
}
void turn_off() noexcept;

// The object, or the context with all its objects, is not there any more.
inline bool is_gone(cuda::Result result) noexcept {
  return result == cuda::kInvalidHandle || result == cuda::kInvalidContext || result == cuda::kContextIsDestroyed ||
         result == cuda::kStreamDetached;
}

// Counts errors of calls that should not fail; after many in a row everything is off and a loss row says so.
void count_result(cuda::Result result) noexcept;

void report(const char* reason, std::uint64_t count, const char* detail, std::uint16_t severity) noexcept;

// During its lifetime, calls that are unsafe during a global stream capture do not break that capture. False: the driver
// refuses that, so make no such call; it may do so on a thread without a context.
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept : relaxed_(driver.capture_mode(&mode_) == cuda::kSuccess) {}
  ~RelaxedCapture() {
    if (relaxed_) driver.capture_mode(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  explicit operator bool() const noexcept { return relaxed_; }

 private:
  cuda::CaptureMode mode_ = cuda::kCaptureRelaxed;
  bool relaxed_;
};

// The driver refuses the relaxed mode where a context is current: no event is made or asked from here on.
void stop_timing() noexcept;

// Makes a context current for a scope unless it is already.
class CurrentContext {
 public:
  explicit CurrentContext(cuda::Context context) noexcept {
    cuda::Context now = nullptr;
    if (driver.context_current(&now) == cuda::kSuccess && now == context) return;
    pushed_ = driver.context_push(context) == cuda::kSuccess;
    failed_ = !pushed_;
  }
  ~CurrentContext() {
    cuda::Context gone = nullptr;
    if (pushed_) driver.context_pop(&gone);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  explicit operator bool() const noexcept { return !failed_; }

 private:
  bool pushed_ = false;
  bool failed_ = false;
};

// Returns the driver's answer about an object of `context`. The driver may refuse a thread without a context
// (cuda.h: 201): it is asked again with that one current. So a final kInvalidContext means that the context is gone.
template <class Question>
cuda::Result ask_in(cuda::Context context, Question question) noexcept {
  const cuda::Result result = question();
  if (result != cuda::kInvalidContext) [[likely]]
    return result;
  cuda::Context now = nullptr;
  if (driver.context_current(&now) == cuda::kSuccess && now != nullptr) return result;
  const CurrentContext current(context);
  return current ? question() : cuda::kContextIsDestroyed;
}

#pragma GCC visibility pop

}  // namespace stashtrace::device
