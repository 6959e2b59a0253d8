// Samples the stacks of watched threads. SPDX-License-Identifier: Apache-2.0
//
// On the thread that reads small files of /proc, which such a process has anyway. Nothing is asked of the sampled
// thread: no signal, no lock, no stop. stacks/ reads; this decides when.
#include <algorithm>

#include "collectors/collector.h"
#include "collectors/python_stacks/standing_wait.h"
#include "core/clock.h"
#include "runtime/emit.h"
#include "stacks/stacks.h"

namespace stashtrace::python_stacks {
namespace {

namespace flag = schema::codes::StackFlag;

constinit stacks::Sampler sampler;

class PythonStacks final : public Collector, public TickListener {
 public:
  Status start(Context& context) noexcept override {
    const std::uint32_t hz = context.config().stack_hz;
    if (hz == 0) return Status::ok();
    period_ns_ = 1'000'000'000 / hz;
    context_ = &context;
    if (!context.add_file_listener(*this)) return Status::failed("no_listener", "no place for another sampler");
    return Status::ok();
  }
  void stop() noexcept override {
    if (state_ == State::on) sampler.stop();
    state_ = State::off;
  }
  void after_fork() noexcept override {
    if (state_ != State::off) state_ = State::fresh;
  }

  // At random within a period, lest the samples keep step with the steps of the job.
  std::int64_t delay_ns(std::int64_t) noexcept override {
    random_ ^= random_ << 13, random_ ^= random_ >> 7, random_ ^= random_ << 17;
    return period_ns_ / 2 + static_cast<std::int64_t>(random_ % static_cast<std::uint64_t>(period_ns_));
  }

  void tick(std::uint64_t now) noexcept override {
    if (!recording() || !stacks::enabled()) return;
    stacks::Watched threads[stacks::kMostWatched];
    const std::size_t count = stacks::watched_threads(threads);
    if (count == 0 || !begin(now)) return;
    const bool around = looks_around(threads, count);
    stacks::Address holder = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const bool blocked = around && (threads[i].waits || waits_for_lock(threads[i]) == Waits::yes);
      const auto flags = static_cast<std::uint16_t>((around ? flag::around : 0) | (blocked ? flag::blocked : 0));
      const stacks::Address seen = sample(threads[i], flags);
      if (seen != 0) holder = seen;
    }
    if (around) return;  // the holder is among the others
    // Who keeps the watched threads from running: a thread of autograd with hooks, one of the user's.
    stacks::Watched other;
    const auto is_other = [&other](const stacks::Watched& thread) noexcept {
      return thread.state == other.state || thread.tid == other.tid;  // the same tid: in another interpreter
    };
    if (holder != 0 && sampler.find_thread(holder, other) && std::none_of(threads, threads + count, is_other))
      sample(other, 0, true);
  }

 private:
  static Waits waits_for_lock(const stacks::Watched& thread) noexcept {
    return standing_wait(thread.tid, [](std::uint64_t futex) noexcept { return !stacks::is_of_gil(futex); });
  }

  // Which threads run, or are in a call, while a watched one waits for another. Once after that also while none waits:
  // what runs all the time ends no wait. True if all of them were looked at.
  bool looks_around(const stacks::Watched* threads, std::size_t count) noexcept {
    const bool waits = std::any_of(threads, threads + count, [](const auto& thread) noexcept { return thread.waits; });
    if (!waits && !compare_) return false;
    compare_ = false;
    stacks::Sampler::Others& others = others_;
    sampler.find_others(threads[0].state, others);
    std::size_t sampled = 0;
    bool left_out = others.too_many;
    for (std::size_t i = 0; i < others.count; ++i) {
      stacks::Watched& other = others.threads[i];
      if (std::any_of(threads, threads + count, [&](const auto& one) noexcept { return one.state == other.state; }))
        continue;
      const Waits other_waits = waits_for_lock(other);
      if (other_waits == Waits::unknown) others.all = false;  // it has ended, or the system does not say
      if (other_waits == Waits::yes) continue;
      if (other_waits == Waits::unknown || sampled == stacks::kMostOthersSampled) {
        left_out = left_out || other_waits == Waits::no || waits_for_lock(threads[0]) == Waits::unknown;
        continue;
      }
      other.place = static_cast<std::uint32_t>(stacks::kMostWatched + sampled++);
      sample(other, flag::around);
    }
    compare_ = waits && sampled != 0;
    if (left_out) count_left_out();
    return others.all && !left_out;
  }

  // Said at the 1st, 10th, 100th, ... time.
  void count_left_out() noexcept {
    if (++left_out_ != left_out_due_) return;
    report_loss(stacks::kCollectorCode, "stacks_of_others_not_sampled", left_out_ - left_out_ / 10,
                "while a step waited, its process had more other threads than are looked at in one go, or they could "
                "not be looked at: what they ran is not known",
                schema::codes::Severity::info);
    left_out_due_ *= 10;
  }

  // Returns the state of the thread that holds the GIL meanwhile.
  static stacks::Address sample(const stacks::Watched& thread, std::uint16_t flags,
                                bool only_with_gil = false) noexcept {
    const std::uint64_t at = now_ticks();
    const stacks::Look look = sampler.look(thread);
    if (look.runs_python && (!only_with_gil || look.gil_holder == thread.state))
      emit(schema::StackSample{.ticks = at,
                               .tid = thread.tid,
                               .stack_id = look.stack_id,
                               .sample_flags = static_cast<std::uint16_t>(look.flags | flags),
                               .reserved_flags = 0,
                               .reserved_padding = 0});
    return look.gil_holder;
  }

  enum class State : std::uint8_t { fresh, on, off };

  bool begin(std::uint64_t now) noexcept {
    if (state_ != State::fresh) return state_ == State::on;
    random_ ^= now;
    state_ = sampler.start(context_->file_listeners_may_keep_open()) ? State::on : State::off;
    if (state_ == State::off)
      report_loss(stacks::kCollectorCode, "stacks_not_readable", 0,
                  "the system does not let a process read its own memory by process_vm_readv or /proc/self/mem: no "
                  "Python stacks are sampled",
                  schema::codes::Severity::error);
    return state_ == State::on;
  }

  Context* context_ = nullptr;
  std::int64_t period_ns_ = 0;
  std::uint64_t random_ = 0x9e3779b97f4a7c15;
  State state_ = State::fresh;
  bool compare_ = false;
  std::uint64_t left_out_ = 0, left_out_due_ = 1;
  stacks::Sampler::Others others_ = {};
};

constinit PythonStacks collector;

}  // namespace
}  // namespace stashtrace::python_stacks

namespace stashtrace::collectors {
Collector& python_stacks() noexcept { return stashtrace::python_stacks::collector; }
}  // namespace stashtrace::collectors
