// Fixed pools for events of the plugin: handles without allocation. SPDX-License-Identifier: Apache-2.0
//
// Caller: the plugin, on the job's, NCCL's proxy and profiler threads at once. Lock-free. A handle is a number, not a
// pointer: generation, index, kind. Freed slots are reused in the order in which they were freed, so what a handle
// named can still be read for thousands of events after its end, which late children of an event need.
//
//   handle  [ generation : 40 | index : 20 | kind : 4 ]
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/raw_syscall.h"

namespace stashtrace::nccl {

template <class T, std::uint32_t kSlots, unsigned kKind>
class Slab {
  static_assert((kSlots & (kSlots - 1)) == 0 && kSlots <= 1u << 20 && kKind > 0 && kKind < 16);

 public:
  // Call once, before any other call. False without memory: every take() then fails.
  bool prepare() noexcept {
    if (slots_ != nullptr) return true;
    void* memory = raw::mmap(nullptr, sizeof(Slot) * kSlots + sizeof(Cell) * kCells, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == nullptr) return false;
    cells_ = reinterpret_cast<Cell*>(static_cast<char*>(memory) + sizeof(Slot) * kSlots);
    for (std::uint32_t i = 0; i < kSlots; ++i) {
      cells_[i].index = i;
      cells_[i].turn.store(1, std::memory_order_relaxed);
    }
    tail_.store(kSlots, std::memory_order_relaxed);
    slots_ = static_cast<Slot*>(memory);
    return true;
  }

  // The next prepare() starts from scratch; the old memory is left.
  void forget() noexcept {
    slots_ = nullptr;
    cells_ = nullptr;
    head_.store(0, std::memory_order_relaxed);
    tail_.store(0, std::memory_order_relaxed);
  }

  // A zeroed value and its handle; null if all are in use. each() skips it until show(): a sweep must not see a value
  // that is half filled, whose times would look very old.
  T* take(void*& handle) noexcept {
    std::uint32_t index = 0;
    if (slots_ == nullptr || !pop(index)) return nullptr;
    Slot& slot = slots_[index];
    const std::uint64_t generation = (slot.life.load(std::memory_order_relaxed) >> 1) + 1;
    slot.value.reset();
    slot.shown.store(false, std::memory_order_relaxed);
    slot.life.store(generation << 1 | kInUse, std::memory_order_release);
    handle = handle_of(generation, index);
    return &slot.value;
  }

  void show(const void* handle) noexcept {
    if (slots_ != nullptr)
      slots_[reinterpret_cast<std::uint64_t>(handle) >> 4 & 0xfffff].shown.store(true, std::memory_order_release);
  }

  // What the handle names, in use or freed but not reused; null for a stale handle, another kind, or null.
  T* find(const void* handle) noexcept {
    const auto word = reinterpret_cast<std::uint64_t>(handle);
    const std::uint64_t index = word >> 4 & 0xfffff;
    if (slots_ == nullptr || (word & 15) != kKind || index >= kSlots) return nullptr;
    Slot& slot = slots_[index];
    return slot.life.load(std::memory_order_acquire) >> 1 == word >> 24 ? &slot.value : nullptr;
  }

  // True for the one caller that ended it; the value stays readable. Generation and use change as one word: a late
  // caller must not end a new use of the slot.
  bool give_back(const void* handle) noexcept {
    const auto word = reinterpret_cast<std::uint64_t>(handle);
    const std::uint64_t index = word >> 4 & 0xfffff;
    std::uint64_t in_use = word >> 24 << 1 | kInUse;
    if (find(handle) == nullptr ||
        !slots_[index].life.compare_exchange_strong(in_use, in_use & ~kInUse, std::memory_order_acq_rel))
      return false;
    push(static_cast<std::uint32_t>(index));
    return true;
  }

  // Calls visit(handle, value) for each slot in use that is shown: for sweeps and the end.
  template <class Visit>
  void each(Visit visit) noexcept {
    Slot* const slots = slots_;
    for (std::uint32_t i = 0; slots != nullptr && i < kSlots; ++i) {
      const std::uint64_t life = slots[i].life.load(std::memory_order_acquire);
      if ((life & kInUse) != 0 && slots[i].shown.load(std::memory_order_acquire))
        visit(handle_of(life >> 1, i), slots[i].value);
    }
  }

  static constexpr unsigned kind() noexcept { return kKind; }

 private:
  static constexpr std::uint64_t kInUse = 1;
  struct Slot {
    std::atomic<std::uint64_t> life;  // [ generation : 63 | in use : 1 ]
    std::atomic<bool> shown;
    T value;
  };
  // The queue of free slots: a bounded ring; each cell knows whose turn it is, counted from its place. With twice
  // as many cells as slots a freed slot finds its cell empty, unless a thread stopped while it emptied that cell and
  // all slots went round meanwhile. With as many cells, the next to free one would wait for any thread stopped there.
  static constexpr std::uint64_t kCells = 2 * kSlots;
  struct Cell {
    std::atomic<std::uint64_t> turn;
    std::uint32_t index;
  };

  static void* handle_of(std::uint64_t generation, std::uint32_t index) noexcept {
    return reinterpret_cast<void*>(generation << 24 | std::uint64_t{index} << 4 | kKind);
  }

  bool pop(std::uint32_t& index) noexcept {
    std::uint64_t at = head_.load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells_[at % kCells];
      const std::uint64_t round = at - at % kCells;
      const auto ahead = static_cast<std::int64_t>(cell.turn.load(std::memory_order_acquire) - (round + 1));
      if (ahead < 0) return false;
      if (ahead > 0) {
        at = head_.load(std::memory_order_relaxed);
      } else if (head_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) {
        index = cell.index;
        cell.turn.store(round + kCells, std::memory_order_release);
        return true;
      }
    }
  }
  void push(std::uint32_t index) noexcept {
    std::uint64_t at = tail_.load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells_[at % kCells];
      const std::uint64_t round = at - at % kCells;
      const auto ahead = static_cast<std::int64_t>(cell.turn.load(std::memory_order_acquire) - round);
      if (ahead != 0) {  // another producer was faster; it cannot be full
        if (ahead < 0) raw::sched_yield();
        at = tail_.load(std::memory_order_relaxed);
      } else if (tail_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) {
        cell.index = index;
        cell.turn.store(round + 1, std::memory_order_release);
        return;
      }
    }
  }

  Slot* slots_ = nullptr;
  Cell* cells_ = nullptr;
  std::atomic<std::uint64_t> head_{0};
  std::atomic<std::uint64_t> tail_{0};
};

}  // namespace stashtrace::nccl
