// Descriptor table: what we know about each file descriptor. SPDX-License-Identifier: Apache-2.0
//
// The hooks of open, close, dup and similar calls write it, every hook that takes a descriptor reads it; any
// thread, signal handlers too. Lock-free; memory comes in chunks straight from the kernel when a descriptor of a
// new thousand is first seen, never from malloc. One entry per descriptor: numbers are not folded onto each other.
//
//   word:  generation (12 bits) | state (4) | IoFlag bits (16) | path_id (32)
//
// An entry of a descriptor that no hook saw being made (inherited, raw system call, accepted inside libc) is
// empty; identify() fills it at the first use with one fstat. The generation changes at each close, so that a slow
// identify() cannot write over what a later open of the same number has stored.
// A vfork child shares this memory: what it closes is emptied here too, and identified again when next used.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

#include "schema/schema.h"

namespace stashtrace::posix_io {

// Bits of an entry's word above the 16 IoFlag bits.
inline constexpr std::uint64_t kKnown = 1ULL << 48;   // the kind of file is in the flags
inline constexpr std::uint64_t kNamed = 1ULL << 49;   // path_id is right (0: it has no name)
inline constexpr std::uint64_t kOurs = 1ULL << 50;    // a file of the tracer: never recorded
inline constexpr std::uint64_t kAppend = 1ULL << 51;  // O_APPEND: writes do not happen at the position
inline constexpr std::uint64_t kGenerationUnit = 1ULL << 52;
inline constexpr std::uint64_t kGenerationMask = ~(kGenerationUnit - 1);

// A position is unknown while negative; adding to an unknown one keeps it so.
inline constexpr std::int64_t kUnknownPosition = std::numeric_limits<std::int64_t>::min() / 2;
// That of a socket whose connect did not wait, until the program asks how it ended.
inline constexpr std::int64_t kConnecting = kUnknownPosition + 1;

constexpr std::uint64_t flag_bits(std::uint16_t io_flags) { return static_cast<std::uint64_t>(io_flags) << 32; }
constexpr std::uint16_t flags_of(std::uint64_t word) { return static_cast<std::uint16_t>(word >> 32); }
constexpr std::uint32_t path_of(std::uint64_t word) { return static_cast<std::uint32_t>(word); }

struct FdEntry {
  std::atomic<std::uint64_t> word{0};
  std::atomic<std::int64_t> position{kUnknownPosition};

  // Position before `bytes` were moved, -1 if unknown. One locked add, so that threads sharing a descriptor
  // never lose an advance.
  std::int64_t advance(std::int64_t bytes) noexcept {
    const std::int64_t now = position.load(std::memory_order_relaxed);
    if (now < 0) return -1;
    if (bytes <= 0) return now;
    const std::int64_t before = position.fetch_add(bytes, std::memory_order_relaxed);
    return before < 0 ? -1 : before;
  }
};

class FdTable {
 public:
  static constexpr int kChunkEntries = 1024;
  static constexpr int kChunks = 1024;  // descriptors up to 2^20 - 1, the usual fs.nr_open

  // Never fails: a descriptor out of range (negative, too high, no memory) gets an entry without knowledge.
  FdEntry& at(int fd) noexcept {
    const unsigned index = static_cast<unsigned>(fd);
    if (index < kChunkEntries) [[likely]]
      return first_[index];
    return beyond(index);
  }

  // The same for the hot path: one beyond the first chunk gets the entry without knowledge, and at() on the slow path.
  FdEntry& near(int fd) noexcept {
    const unsigned index = static_cast<unsigned>(fd);
    return index < kChunkEntries ? first_[index] : unreachable_;
  }

  bool holds(const FdEntry& entry) const noexcept { return &entry != &unreachable_; }

  // A hook made this descriptor: bits is kNamed, kKnown, kOurs, kAppend, flags and path as far as known.
  void set(int fd, std::uint64_t bits, std::int64_t position) noexcept;
  // Forgets a descriptor and returns what was known.
  std::uint64_t clear(int fd) noexcept;
  void clear_range(unsigned first, unsigned last) noexcept;
  // `to` is now the same open file as `from`: they share a position, so neither can be tracked.
  void copy(int from, int to) noexcept;
  // After fork parent and child share every open file, and reads of a pause are not followed: no position can be trusted
  // until the next lseek.
  void forget_positions() noexcept;
  // In the child, whose file holds none of the parent's names: every descriptor is identified again when used.
  void forget_all() noexcept { clear_range(0, ~0U); }

 private:
  FdEntry& beyond(unsigned index) noexcept;
  void note(int fd) noexcept;

  FdEntry first_[kChunkEntries];
  std::atomic<FdEntry*> chunks_[kChunks] = {};
  std::atomic<int> highest_{-1};
  FdEntry unreachable_;
};

[[gnu::visibility("hidden")]] extern constinit FdTable fd_table;

// Learns what the descriptor is (fstat, and readlink, fstatfs, getpeername where needed) and stores it.
// Returns the completed word; on a closed descriptor the word as it was.
std::uint64_t identify(int fd, FdEntry& entry, std::uint64_t word) noexcept;
// Same from a stat that the user's fstat has just fetched, which saves ours.
std::uint64_t identify_from(int fd, FdEntry& entry, std::uint64_t word, std::uint32_t mode,
                            std::uint64_t device) noexcept;

// The word of a descriptor about to be used.
inline std::uint64_t word_for_use(int fd, FdEntry& entry) noexcept {
  const std::uint64_t word = entry.word.load(std::memory_order_relaxed);
  if ((word & kKnown) == 0) [[unlikely]]
    return identify(fd, entry, word);
  return word;
}

}  // namespace stashtrace::posix_io
