// All lanes of the process: which thread has which, and which may be taken over. SPDX-License-Identifier: Apache-2.0
//
// Callers: Runtime (acquire, under its files lock, signals blocked), Drainer (reads). Lanes are never unmapped while
// the process lives, so the drainer walks the table without a lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/ring_file.h"

namespace stashtrace {

class Drainer;

class LaneTable {
 public:
  static constexpr std::size_t kMostLanes = 4096;
  // Number of lanes of one record type to make before an ended thread's rows are drained to take over its lane.
  static constexpr std::size_t kMakeFirst = 4;

  // Returns a lane for the calling thread; the drainer empties lanes whose owner has ended. Null: no room for another.
  container::LaneHeader* acquire(RingFile& file, Drainer& drainer, std::size_t index, std::uint32_t lane_bytes, int pid,
                                 std::uint32_t tid) noexcept;
  static void release(container::LaneHeader* lane) noexcept;  // its thread ends

  std::size_t count() const noexcept { return count_.load(std::memory_order_acquire); }
  container::LaneHeader* at(std::size_t i) const noexcept { return lanes_[i]; }
  container::LaneHeader* const* all() const noexcept { return lanes_; }
  void forget() noexcept;  // in a forked child: releases the parent's lanes

 private:
  container::LaneHeader* take_over(container::LaneHeader* lane, std::uint32_t tid) noexcept;

  container::LaneHeader* lanes_[kMostLanes] = {};
  std::atomic<std::size_t> count_{0};
};

}  // namespace stashtrace
