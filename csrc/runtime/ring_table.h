// All rings of the process: which thread has which, and which may be taken over. SPDX-License-Identifier: Apache-2.0
//
// Callers: Runtime (acquire, under its files lock, signals blocked), Drainer (reads). Rings are never unmapped while
// the process lives, so the drainer walks the table without a lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/ring_file.h"

namespace stashtrace {

class Drainer;

class RingTable {
 public:
  static constexpr std::size_t kMostRings = 4096;
  // Number of rings of one record type to make before an ended thread's rows are drained to take over its ring.
  static constexpr std::size_t kMakeFirst = 4;

  // Returns a ring for the calling thread; the drainer empties rings whose owner has ended. Null: no room for another.
  container::RingHeader* acquire(RingFile& file, Drainer& drainer, std::size_t index, std::uint32_t ring_bytes, int pid,
                                 std::uint32_t tid) noexcept;
  static void release(container::RingHeader* ring) noexcept;  // its thread ends

  std::size_t count() const noexcept { return count_.load(std::memory_order_acquire); }
  container::RingHeader* at(std::size_t i) const noexcept { return rings_[i]; }
  container::RingHeader* const* all() const noexcept { return rings_; }
  void forget() noexcept;  // in a forked child: releases the parent's rings

 private:
  container::RingHeader* take_over(container::RingHeader* ring, std::uint32_t tid) noexcept;

  container::RingHeader* rings_[kMostRings] = {};
  std::atomic<std::size_t> count_{0};
};

}  // namespace stashtrace
