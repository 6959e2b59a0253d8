// Which addresses are mapped files, so that munmap, msync and madvise of them can name the file.
// SPDX-License-Identifier: Apache-2.0
//
// Callers: hooks_memory.cpp, any thread. A fixed, lock-free hash table by the address that mmap returned; a mapping
// that finds no place within 16 slots is forgotten (its munmap is then not recorded). Addresses inside a mapping
// are not found: a miss must stay cheap, since allocators unmap and advise anonymous memory all the time.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace stashtrace::posix_io {

class Mappings {
 public:
  void add(std::uintptr_t address, std::uint64_t word) noexcept {
    for (std::size_t i = 0; i < kProbes; ++i) {
      Slot& slot = at(address, i);
      std::uintptr_t empty = 0;
      if (slot.address.load(std::memory_order_relaxed) == address ||
          slot.address.compare_exchange_strong(empty, kBusy, std::memory_order_relaxed)) {
        slot.word.store(word, std::memory_order_relaxed);
        slot.address.store(address, std::memory_order_release);
        return;
      }
    }
  }
  // The word given to add, 0 if the address is not the begin of a mapped file.
  std::uint64_t find(std::uintptr_t address) noexcept {
    for (std::size_t i = 0; i < kProbes; ++i) {
      Slot& slot = at(address, i);
      if (slot.address.load(std::memory_order_acquire) == address) return slot.word.load(std::memory_order_relaxed);
    }
    return 0;
  }
  void remove(std::uintptr_t address) noexcept {
    for (std::size_t i = 0; i < kProbes; ++i) {
      std::uintptr_t expected = address;
      if (at(address, i).address.compare_exchange_strong(expected, 0, std::memory_order_relaxed)) return;
    }
  }
  // In a forked child: the parent's string ids mean nothing in the child's file.
  void forget_names() noexcept {
    for (Slot& slot : slots_) slot.word.fetch_and(~0xffffffffULL, std::memory_order_relaxed);
  }

 private:
  static constexpr std::size_t kSlots = 1024;
  static constexpr std::size_t kProbes = 16;
  static constexpr std::uintptr_t kBusy = 1;  // claimed, its word not stored yet

  struct Slot {
    std::atomic<std::uintptr_t> address{0};
    std::atomic<std::uint64_t> word{0};
  };
  Slot& at(std::uintptr_t address, std::size_t probe) noexcept {
    const std::uint64_t hash = (address >> 12) * 0x9e3779b97f4a7c15ULL;
    return slots_[((hash >> 54) + probe) % kSlots];
  }
  std::array<Slot, kSlots> slots_;
};

[[gnu::visibility("hidden")]] extern constinit Mappings mappings;

}  // namespace stashtrace::posix_io
