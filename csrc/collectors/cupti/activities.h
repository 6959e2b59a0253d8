// Activity buffers -> `kernel` rows. SPDX-License-Identifier: Apache-2.0
//
// Called with a full or flushed buffer, on CUPTI's thread or on the one that flushes. Each buffer is read twice: first
// the calls, then the work that they launched, so that a kernel finds its launch wherever the two lie in the buffer.
// One lock; no thread of the job holds it for longer than a few stores.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "abi/cupti_abi.h"
#include "collectors/cupti/library.h"
#include "collectors/cupti/readings.h"
#include "core/futex_lock.h"

namespace stashtrace::cupti {

// True for the names of NCCL's kernels: ncclKernel_..., ncclDevKernel_..., ncclSymkDevKernel_...
bool is_nccl_kernel(std::string_view mangled_name) noexcept;

class Activities {
 public:
  void set_tick_hz(std::uint64_t hz) noexcept { readings_.set_tick_hz(hz); }

  // Before a further window. Buffers of the last one may still come: their rows lie outside.
  void begin_again() noexcept;
  // Rows are kept for work that touches [begin, end) of the CUPTI clock; end 0: still open.
  void open_window(std::uint64_t begin_ns) noexcept { begin_ns_.store(begin_ns, std::memory_order_relaxed); }
  void close_window(std::uint64_t end_ns) noexcept { end_ns_.store(end_ns, std::memory_order_relaxed); }
  bool window_has_begun() const noexcept { return begin_ns_.load(std::memory_order_relaxed) != 0; }
  bool window_has_ended() const noexcept { return end_ns_.load(std::memory_order_relaxed) != 0; }

  // Not added if other threads hold the lock for longer than `wait_ns`; the next tick brings another one.
  void add_reading(const Reading& reading, std::int64_t wait_ns) noexcept;

  void read_buffer(const Library& cupti, std::uint8_t* buffer, std::size_t valid_bytes) noexcept;

  std::uint64_t rows() const noexcept { return rows_.load(std::memory_order_relaxed); }
  std::uint64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }
  std::uint64_t incomplete() const noexcept { return incomplete_.load(std::memory_order_relaxed); }
  std::uint64_t unread_buffers() const noexcept { return unread_buffers_.load(std::memory_order_relaxed); }

 private:
  struct Call {
    std::uint64_t begin_ns, end_ns;
    std::uint32_t correlation_id, tid;
  };
  struct Work;                                    // common to all kinds of records
  static constexpr std::size_t kCalls = 1 << 16;  // of launches in flight; newer ones replace old ones
  static constexpr std::size_t kContexts = 64;

  bool reserve() noexcept;
  void keep_call(const abi::cupti::ActivityApi& call) noexcept;
  void keep_work(const abi::cupti::Activity* record) noexcept;
  void write(const Work& work) noexcept;
  void learn_context(std::uint32_t context_id, std::uint32_t device_id) noexcept;
  std::int32_t device_of(std::uint32_t context_id) const noexcept;

  FutexLock lock_;
  Readings readings_;
  Call* calls_ = nullptr;                           // by correlation id; kCalls of them
  std::int32_t device_of_context_[kContexts] = {};  // device + 1, 0 if not seen
  std::atomic<std::uint64_t> begin_ns_{0}, end_ns_{0};
  std::atomic<std::uint64_t> rows_{0}, dropped_{0}, incomplete_{0}, unread_buffers_{0};
};

}  // namespace stashtrace::cupti
