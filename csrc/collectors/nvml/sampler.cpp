// Life of the sampler's thread. SPDX-License-Identifier: Apache-2.0
#include "collectors/nvml/sampler.h"

#include <sys/prctl.h>

#include <cstdlib>
#include <cstring>

#include "core/clock.h"
#include "core/raw_syscall.h"
#include "core/string_table.h"
#include "core/text_buffer.h"
#include "runtime/emit.h"
#include "runtime/own_thread.h"
#include "runtime/runtime.h"
#include "schema/schema.h"

namespace stashtrace::nvml {

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kClaimEvery = 2 * kSecond;    // devices of processes that ended meanwhile, contexts made later
constexpr std::int64_t kAskEvery = kSecond / 4;      // has the job initialised CUDA?
constexpr std::int64_t kOwnContexts = 10 * kSecond;  // no primary context for so long: it makes its own
constexpr std::int64_t kSteadyEvery = kSecond / 10;
constexpr std::int64_t kGpmEvery = kSecond / 5;  // NVML wants more than 100 ms between two samples
constexpr std::int64_t kForkWait = 100'000'000;
constexpr std::size_t kStackBytes = 1024 * 1024;

// Of the thread that forks: since glibc 2.36 the handlers of two threads that fork at the same time run in parallel.
constinit thread_local bool t_holds_calls = false;

}  // namespace

void Sampler::start_thread(Context& context, void (*at_exit)()) noexcept {
  std::uint32_t none = kNone;
  if (!state_.compare_exchange_strong(none, kRunning)) return;
  context_ = &context;
  at_exit_ = at_exit;
  if (start_detached(&Sampler::thread_main, this, kStackBytes)) return;
  state_.store(kStopped, std::memory_order_release);
  report_loss(kCollectorCode, "no_thread", 0, "no thread for the sampler of devices", schema::codes::Severity::error);
}

void* Sampler::thread_main(void* self) noexcept {
  static_cast<Sampler*>(self)->loop();
  return nullptr;
}

void Sampler::stop(std::int64_t wait_ns) noexcept {
  std::uint32_t running = kRunning;
  if (!state_.compare_exchange_strong(running, kStopping, std::memory_order_acq_rel)) return;
  raw::futex_wake(&state_, 1);
  constexpr std::int64_t kSlice = 10'000'000;
  for (std::int64_t waited = 0; waited < wait_ns && state_.load(std::memory_order_acquire) != kStopped;
       waited += kSlice)
    raw::futex_wait(&state_, kStopping, kSlice);
}

// A fork while the thread is inside NVML would leave NVML's locks taken for good in a child that uses NVML itself.
void Sampler::before_fork() noexcept {
  t_holds_calls = state_.load(std::memory_order_acquire) == kRunning && call_lock_.lock_within(kForkWait);
}
void Sampler::after_fork_in_parent() noexcept {
  if (t_holds_calls) call_lock_.unlock();
  t_holds_calls = false;
}
void Sampler::after_fork_in_child() noexcept {
  state_.store(kStopped, std::memory_order_relaxed);
  t_holds_calls = false;
  call_lock_.reset();
  ownership_.forget();
}

Status Sampler::open() noexcept {
  Status status = libraries_.open();
  if (status) status = libraries_.init();
  // Registered after the library was loaded, so it runs before what the library itself registered, and before its
  // destructors: our calls must not meet a library that is half taken down.
  if (status) std::atexit(at_exit_);
  return status;
}

void Sampler::loop() noexcept {
  static constexpr char kName[] = "stashtrace nvml";
  raw::call(SYS_prctl, PR_SET_NAME, raw::address(kName));
  detail::thread_state.known = true;
  write_thread_info(schema::codes::ThreadRole::tracer, kName, sizeof kName - 1);
  tick_hz_ = context_->tick_hz();
  call_lock_.lock();
  const Status status = open();
  call_lock_.unlock();
  if (!status) {
    report_loss(kCollectorCode, status.reason(), 0, status.detail(), schema::codes::Severity::info);
  } else {
    ownership_.open(context_->config().dir);
  }
  const std::int64_t period = kSecond / context_->config().nvml_hz;
  std::int64_t next = clock_ns(CLOCK_MONOTONIC);
  std::int64_t next_claim = next;
  while (status.is_ok() && running()) {
    std::int64_t now = clock_ns(CLOCK_MONOTONIC);
    if (recording()) {
      call_lock_.lock();
      if (now >= next_claim) {
        claim_devices(now);
        next_claim = now + (devices_count_ == 0 ? kAskEvery : kClaimEvery);
      }
      if (devices_count_ > 0) sample(now);
      call_lock_.unlock();
    }
    next += devices_count_ > 0 ? period : kAskEvery;
    now = clock_ns(CLOCK_MONOTONIC);
    if (next <= now) next = now + period;  // late: the samples in between are skipped
    raw::futex_wait(&state_, kRunning, next - now);
  }
  write_own_cost();
  state_.store(kStopped, std::memory_order_release);
  raw::futex_wake(&state_, 1);
}

void Sampler::claim_devices(std::int64_t now_ns) noexcept {
  char uuids[kMostDevices][kUuidTextBytes];
  const bool any = initialised_ns_ != 0 && devices_count_ == 0 && now_ns - initialised_ns_ > kOwnContexts;
  const int used = libraries_.used_devices(uuids, any);
  if (used < 0) return;
  if (initialised_ns_ == 0) initialised_ns_ = now_ns;
  const SampleContext context{libraries_.nvml(), tick_hz_, context_->config().nvml_links, reported_};
  for (int i = 0; i < used && devices_count_ < kMostDevices; ++i) {
    bool known = false;
    for (int at = 0; at < devices_count_; ++at) known = known || std::strcmp(devices_[at].uuid(), uuids[i]) == 0;
    for (int at = 0; at < refused_count_; ++at) known = known || std::strcmp(refused_[at], uuids[i]) == 0;
    if (known) continue;
    abi::NvmlDevice device = libraries_.handle_of(uuids[i]);
    if (device == nullptr) {
      std::memcpy(refused_[refused_count_++ % kMostDevices], uuids[i], kUuidTextBytes);
      report_loss(kCollectorCode, "device_unknown", 1, "NVML does not list a device that CUDA uses",
                  schema::codes::Severity::info);
      continue;
    }
    if (ownership_.claim(uuids[i])) devices_[devices_count_++].begin(device, uuids[i], context);
  }
  if (devices_count_ > 0 && !owns_ports_ && ownership_.claim("rdma")) {
    owns_ports_ = true;
    ports_.find("/sys/class/infiniband");
    for (unsigned port = 0; port < ports_.count(); ++port) {
      char memory[96];
      for (const bool transmit : {true, false}) {
        TextBuffer name(memory, sizeof memory);
        name.add(transmit ? "rdma_transmit_bytes_total." : "rdma_receive_bytes_total.").add(ports_.name(port));
        port_ids_[port][transmit ? 0 : 1] = intern(name.text());
      }
    }
  }
}

void Sampler::sample(std::int64_t now_ns) noexcept {
  constexpr std::int64_t kEvery[kPaces] = {0, kSteadyEvery, kSecond};
  unsigned paces = 0;
  for (int pace = 0; pace < kPaces; ++pace) {
    if (now_ns < next_ns_[pace]) continue;
    paces |= 1u << pace;
    next_ns_[pace] = now_ns + kEvery[pace] - kEvery[pace] / 50;  // or jitter would skip every other sample
  }
  const bool gpm = now_ns >= next_gpm_ns_;
  if (gpm) next_gpm_ns_ = now_ns + kGpmEvery;
  const SampleContext context{libraries_.nvml(), tick_hz_, context_->config().nvml_links, reported_};
  for (int i = 0; i < devices_count_ && running(); ++i) devices_[i].sample(context, paces, gpm);
  if (owns_ports_ && (paces >> static_cast<int>(Pace::steady) & 1) != 0) sample_rdma(tick_hz_);
  if ((paces >> static_cast<int>(Pace::slow) & 1) != 0) write_own_cost();
}

void Sampler::sample_rdma(std::uint64_t longest) noexcept {
  for (unsigned port = 0; port < ports_.count(); ++port) {
    std::uint64_t bytes[2];
    const std::uint64_t before = now_ticks();
    if (!ports_.read(port, bytes[0], bytes[1])) continue;
    const std::uint64_t ticks = before + (now_ticks() - before) / 2;
    for (int way = 0; way < 2; ++way) {
      Reading keep[2];
      const int count = port_series_[port][way].next({ticks, static_cast<double>(bytes[way])}, longest, keep);
      for (int i = 0; i < count; ++i)
        emit(schema::DeviceSample{keep[i].ticks, keep[i].value, 0, port_ids_[port][way], -1, 0});
    }
  }
}

void Sampler::write_own_cost() noexcept {
  if (devices_count_ == 0) return;
  const auto cpu_ns = static_cast<double>(clock_ns(CLOCK_THREAD_CPUTIME_ID));
  emit(schema::DeviceSample{now_ticks(), cpu_ns, 0, intern("nvml_sampler_cpu_ns_total"), -1, 0});
}

}  // namespace stashtrace::nvml
