// A bounded queue for many threads on both sides. SPDX-License-Identifier: Apache-2.0
//
// Callers: event pool, free brackets, brackets on their way to the harvester. No lock, no allocation; reports full and
// empty. Cells are numbered relative to their place: zeroed memory is an empty queue, untouched pages stay untouched.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace stashtrace::device {

template <class T, std::size_t kCapacity>
class BoundedQueue {
  static_assert((kCapacity & (kCapacity - 1)) == 0);

 public:
  bool push(T value) noexcept {
    std::uint64_t at = std::atomic_ref(tail_).load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells_[at & kMask];
      const std::uint64_t turn = std::atomic_ref(cell.turn).load(std::memory_order_acquire) + (at & kMask);
      if (turn == at) {
        if (!std::atomic_ref(tail_).compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) continue;
        cell.value = value;
        std::atomic_ref(cell.turn).store(at + 1 - (at & kMask), std::memory_order_release);
        return true;
      }
      if (turn < at) return false;
      at = std::atomic_ref(tail_).load(std::memory_order_relaxed);
    }
  }

  bool pop(T& value) noexcept {
    std::uint64_t at = std::atomic_ref(head_).load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells_[at & kMask];
      const std::uint64_t turn = std::atomic_ref(cell.turn).load(std::memory_order_acquire) + (at & kMask);
      if (turn == at + 1) {
        if (!std::atomic_ref(head_).compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) continue;
        value = cell.value;
        std::atomic_ref(cell.turn).store(at + kCapacity - (at & kMask), std::memory_order_release);
        return true;
      }
      if (turn < at + 1) return false;
      at = std::atomic_ref(head_).load(std::memory_order_relaxed);
    }
  }

  // Number of values ever pushed.
  std::uint64_t pushed() noexcept { return std::atomic_ref(tail_).load(std::memory_order_relaxed); }

 private:
  static constexpr std::uint64_t kMask = kCapacity - 1;
  struct Cell {
    std::uint64_t turn;  // plain words with atomic_ref: the compiler sees zeros, not a million constructors
    T value;
  };
  alignas(64) std::uint64_t tail_;
  alignas(64) std::uint64_t head_;
  alignas(64) Cell cells_[kCapacity];
};

}  // namespace stashtrace::device
