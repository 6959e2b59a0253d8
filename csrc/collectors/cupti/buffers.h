// The fixed pool of activity buffers. SPDX-License-Identifier: Apache-2.0
//
// CUPTI asks for buffers on the job's threads and gives them back on its own, so take and give are one atomic each:
// no lock, no allocation. An empty pool answers null; CUPTI then drops records and counts them.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/raw_syscall.h"

namespace stashtrace::cupti {

class BufferPool {
 public:
  static constexpr std::size_t kBufferBytes = std::size_t{4} << 20;  // about 19,000 kernels
  static constexpr std::size_t kCount = 16;

  // Reserves addresses; memory comes with the first touch. Idempotent.
  bool reserve() noexcept {
    if (memory_ == nullptr)
      memory_ = static_cast<std::uint8_t*>(raw::mmap(nullptr, kBufferBytes * kCount, PROT_READ | PROT_WRITE,
                                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    return memory_ != nullptr;
  }

  std::uint8_t* take() noexcept {
    std::uint32_t free = free_.load(std::memory_order_relaxed);
    while (free != 0) {
      const int index = __builtin_ctz(free);
      if (free_.compare_exchange_weak(free, free & ~(1u << index), std::memory_order_acquire))
        return memory_ + static_cast<std::size_t>(index) * kBufferBytes;
    }
    exhausted_.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }

  void give(std::uint8_t* buffer) noexcept {
    if (!owns(buffer)) return;
    const std::size_t index = static_cast<std::size_t>(buffer - memory_) / kBufferBytes;
    free_.fetch_or(1u << index, std::memory_order_release);
  }

  bool owns(const std::uint8_t* buffer) const noexcept {
    return memory_ != nullptr && buffer >= memory_ && buffer < memory_ + kBufferBytes * kCount;
  }
  bool all_back() const noexcept { return free_.load(std::memory_order_acquire) == kAll; }
  std::uint64_t exhausted() const noexcept { return exhausted_.load(std::memory_order_relaxed); }

  void begin_again() noexcept { exhausted_.store(0, std::memory_order_relaxed); }

  // After the last buffer came back: returns touched memory to the system, keeps the addresses.
  void shrink() noexcept {
    if (memory_ != nullptr && all_back()) raw::madvise(memory_, kBufferBytes * kCount, MADV_DONTNEED);
  }

 private:
  static constexpr std::uint32_t kAll = (1u << kCount) - 1;

  std::uint8_t* memory_ = nullptr;
  std::atomic<std::uint32_t> free_{kAll};
  std::atomic<std::uint64_t> exhausted_{0};
};

}  // namespace stashtrace::cupti
