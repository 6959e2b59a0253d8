// What is known of code objects, by their address. SPDX-License-Identifier: Apache-2.0
//
// A code object may be freed and another one be made in its place, even with its name, file and lines at the same
// addresses. What is kept of an address holds only while these are the same, and their bytes too. Lock-free, any
// thread: a slot is copied and compared, and written by whoever finds no other writer there.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "stacks/layout.h"

namespace stashtrace::stacks {

// What identifies a code object.
struct CodeIdentity {
  Address address, file, name, lines;
  std::uint64_t texts_mark, lines_mark;  // hashes of name and file, and of the begin of the table of lines
  std::int32_t first_line;
  std::uint16_t file_bytes, name_bytes;  // with their heads

  bool operator==(const CodeIdentity&) const noexcept = default;
};

struct Code {
  CodeIdentity identity;
  std::uint32_t name_id, path_id;    // string ids; above kStringSlots: no lasting one was left
  std::uint32_t generation, unused;  // of the process, in which they were written
};

class CodeTable {
 public:
  // What was kept last of this address, if it was in this generation; the caller compares the identity.
  std::optional<Code> find(Address address, std::uint32_t generation) const noexcept {
    const Slot& slot = slots_[place(address)];
    const std::uint32_t version = slot.version.load(std::memory_order_acquire);
    if ((version & 1) != 0) return {};
    std::uint64_t words[kWords];
    for (std::size_t i = 0; i < kWords; ++i) words[i] = slot.words[i].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (slot.version.load(std::memory_order_relaxed) != version) return {};
    Code code;
    std::memcpy(&code, words, sizeof code);
    if (code.identity.address != address || code.generation != generation) return {};
    return code;
  }

  void keep(const Code& code) noexcept {
    Slot& slot = slots_[place(code.identity.address)];
    std::uint32_t version = slot.version.load(std::memory_order_relaxed);
    if ((version & 1) != 0) return;
    writers_.fetch_add(1, std::memory_order_relaxed);
    if (!slot.version.compare_exchange_strong(version, version + 1, std::memory_order_acquire)) {
      writers_.fetch_sub(1, std::memory_order_relaxed);
      return;
    }
    std::atomic_thread_fence(std::memory_order_release);
    std::uint64_t words[kWords];
    std::memcpy(words, &code, sizeof code);
    for (std::size_t i = 0; i < kWords; ++i) slot.words[i].store(words[i], std::memory_order_relaxed);
    slot.version.store(version + 2, std::memory_order_release);
    writers_.fetch_sub(1, std::memory_order_release);
  }

  // In a forked child: a thread of the parent may have been writing.
  void reset_after_fork() noexcept {
    if (writers_.exchange(0, std::memory_order_acquire) == 0) return;  // most of the table was never touched
    for (Slot& slot : slots_) {
      if ((slot.version.load(std::memory_order_relaxed) & 1) == 0) continue;
      slot.words[0].store(0, std::memory_order_relaxed);
      slot.version.fetch_add(1, std::memory_order_relaxed);
    }
  }

 private:
  static constexpr std::size_t kSlots = 8192, kWords = sizeof(Code) / 8;
  static_assert(sizeof(Code) % 8 == 0 && std::has_single_bit(kSlots));
  struct Slot {
    std::atomic<std::uint32_t> version;  // odd while it is written
    std::atomic<std::uint64_t> words[kWords];
  };

  static std::size_t place(Address address) noexcept {
    return static_cast<std::size_t>((std::uint64_t{address} >> 4) * 0x9e3779b97f4a7c15 >> 51) % kSlots;
  }

  Slot slots_[kSlots];
  std::atomic<std::uint32_t> writers_;
};

}  // namespace stashtrace::stacks
