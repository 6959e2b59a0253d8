// Reading the process's memory, which other threads change meanwhile. SPDX-License-Identifier: Apache-2.0
//
// Plain loads of another thread's frames fault within seconds: a frame's memory may be given back to the system. The
// kernel reads for us and answers EFAULT. A thread's own frames do not change while it looks at them.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "stacks/layout.h"

namespace stashtrace::stacks {

// A piece of memory to be copied.
struct Piece {
  Address from;
  void* to;
  std::size_t bytes;
};

// Of the calling thread's objects, where they are known to be whole.
class PlainMemory {
 public:
  bool read(Address from, void* to, std::size_t bytes) noexcept {
    if (from < kFirstPage) return false;
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
    return true;
  }
  bool read_now(Address from, void* to, std::size_t bytes) noexcept { return read(from, to, bytes); }

 private:
  static constexpr Address kFirstPage = 4096;
};

// Of the calling thread's objects, where an address may be wrong: this build of Python is not known yet, or a signal
// handler has interrupted the interpreter. Asks the kernel first, without a descriptor: one system call a page.
class CheckedMemory {
 public:
  bool read(Address from, void* to, std::size_t bytes) noexcept;
  bool read_now(Address from, void* to, std::size_t bytes) noexcept { return read(from, to, bytes); }
};

// Of any thread's objects. One caller at a time.
//
// Cheapest is a write to our memory that has a descriptor: the kernel copies each piece from where we say, 0.05 us
// apiece, and stops at one that is gone. process_vm_readv costs 0.45 us a piece.
class GuardedMemory {
 public:
  // Chooses how to read, by reading something; false if the kernel lets us read in no way. `may_open`: descriptors may be
  // kept open, since the thread has a separate table. A size limit of files holds for the copy, too, so signals must
  // be blocked.
  bool start(bool may_open) noexcept;
  void stop() noexcept;
  bool read(Address from, void* to, std::size_t bytes) noexcept;
  // Copies pieces in their order, with one system call where it can. Returns how many it copied whole: all before the
  // first that cannot be read.
  std::size_t read(const Piece* pieces, std::size_t count) noexcept;

 private:
  enum class Way : std::uint8_t { none, copy, call, file };

  bool works(Way way) noexcept;
  bool make_copy() noexcept;
  bool start_without_copy() noexcept;
  bool has_copy() noexcept;  // the whole of it can be written
  std::size_t read_at_once(const Piece* pieces, std::size_t count) noexcept;

  Way way_ = Way::none;
  bool may_open_ = false;
  int fd_ = -1;
  int pid_ = 0;
  std::byte* copy_ = nullptr;
};

// What was copied at once, to be read piece by piece; what was not is read from the process when it is asked for.
class PrefetchedMemory {
 public:
  bool start(bool may_open) noexcept { return guarded_.start(may_open); }
  void stop() noexcept { guarded_.stop(); }
  void forget() noexcept { count_ = planned_ = others_ = used_bytes_ = cursor_ = 0; }
  // Plans to copy a piece; pieces for which there is no room (false) are read when they are asked for.
  bool plan(Address from, std::size_t bytes) noexcept;
  // Copies what was planned, in this order; false if a piece is gone.
  bool fetch() noexcept;
  bool read(Address from, void* to, std::size_t bytes) noexcept;
  // Since it last forgot them all.
  std::size_t others_read() const noexcept { return others_; }  // by themselves, later than what was planned
  std::size_t pieces_read() const noexcept { return planned_ + others_; }
  std::size_t pieces_planned() const noexcept { return planned_; }
  // A hash of some of the pieces: where they are and what they hold, but for `skipped` bytes at the begin of each.
  std::uint64_t hash_of_pieces(std::size_t begin, std::size_t end, std::size_t skipped,
                               std::uint64_t seed) const noexcept;
  // What is there now, whatever was copied before.
  bool read_now(Address from, void* to, std::size_t bytes) noexcept { return guarded_.read(from, to, bytes); }

 private:
  static constexpr std::size_t kMostPieces = 512, kRoomBytes = 192 * 1024;

  GuardedMemory guarded_;
  std::size_t count_ = 0, planned_ = 0, others_ = 0, used_bytes_ = 0;
  std::size_t cursor_ = 0;  // pieces are read in the order in which they were planned
  Piece pieces_[kMostPieces] = {};
  alignas(8) std::byte room_[kRoomBytes] = {};
};

}  // namespace stashtrace::stacks
