// The thread that samples devices and RDMA ports, and when it may run. SPDX-License-Identifier: Apache-2.0
//
//     drainer's tick: libcuda loaded? -> thread: load NVML -> CUDA initialised? -> claim devices -> sample, sleep, ...
//
// Callers: nvml.cpp (start, stop), the thread itself. The thread is never in a forked child, holds call_lock_ around
// everything that may hold a lock of a foreign library, and ends before that library's destructors run.
#pragma once

#include <atomic>
#include <cstdint>

#include "collectors/collector.h"
#include "collectors/nvml/device_sampler.h"
#include "collectors/nvml/libraries.h"
#include "collectors/nvml/ownership.h"
#include "collectors/nvml/rdma_ports.h"
#include "core/futex_lock.h"

namespace stashtrace::nvml {

class Sampler {
 public:
  // At a safe point, once per process: pthread_create allocates. `at_exit` must call stop().
  void start_thread(Context& context, void (*at_exit)()) noexcept;
  bool idle() const noexcept { return state_.load(std::memory_order_acquire) == kNone; }
  // Returns when the thread is done, or after `wait_ns` if NVML blocks it; the thread then writes nothing more.
  void stop(std::int64_t wait_ns) noexcept;

  void before_fork() noexcept;
  void after_fork_in_parent() noexcept;
  void after_fork_in_child() noexcept;

 private:
  enum State : std::uint32_t { kNone, kRunning, kStopping, kStopped };

  static void* thread_main(void* self) noexcept;
  bool running() const noexcept { return state_.load(std::memory_order_acquire) == kRunning; }
  void loop() noexcept;
  Status open() noexcept;
  void claim_devices(std::int64_t now_ns) noexcept;
  void sample(std::int64_t now_ns) noexcept;
  void sample_rdma(std::uint64_t longest) noexcept;
  void write_own_cost() noexcept;

  Context* context_ = nullptr;
  void (*at_exit_)() = nullptr;
  std::atomic<std::uint32_t> state_{kNone};
  FutexLock call_lock_;  // if free, the thread is in no call of NVML, CUDA or the loader
  Libraries libraries_;
  Ownership ownership_;
  Reported reported_{};
  std::uint64_t tick_hz_ = 0;
  std::int64_t initialised_ns_ = 0;  // when the job's CUDA was first seen to be initialised
  int devices_count_ = 0;
  int refused_count_ = 0;
  DeviceSampler devices_[kMostDevices];
  char refused_[kMostDevices][kUuidTextBytes] = {};  // NVML does not know them
  bool owns_ports_ = false;
  RdmaPorts ports_;
  std::uint32_t port_ids_[RdmaPorts::kMostPorts][2] = {};
  Series port_series_[RdmaPorts::kMostPorts][2];
  std::int64_t next_ns_[kPaces] = {};
  std::int64_t next_gpm_ns_ = 0;
};

}  // namespace stashtrace::nvml
