// The .ring file: where lanes live while a process runs. SPDX-License-Identifier: Apache-2.0
//
// Callers: LaneTable, under its lock and with signals blocked. Space is allocated before it is mapped, since a
// store to a page that a full disk cannot hold would kill the user's process (SIGBUS).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/pinned_file.h"
#include "core/status.h"
#include "schema/container.h"

namespace stashtrace {

class RingFile {
 public:
  static constexpr std::uint64_t kMostBytes = std::uint64_t{256} << 20;  // of lanes, per process
  // Of a lane's rows that get space when it is made. Most processes are small, and the rings of those that are killed stay.
  static constexpr std::uint64_t kFirstSpaceBytes = 64 * 1024;

  // Creates the file at file().path(). To be called apart (core/apart.h).
  Status create(std::uint32_t pid) noexcept;
  // A new lane, or null: no space, or the process has its share.
  container::LaneHeader* add_lane(std::uint16_t record_id, std::uint32_t row_bytes, std::uint32_t lane_bytes,
                                  std::uint32_t lane_id, std::uint32_t tid) noexcept;
  // Space for the rest of a lane, asked for by its thread; false: the disk has none.
  bool give_space(container::LaneHeader* lane) noexcept;
  void count_lost_row() noexcept;
  std::uint64_t lost_rows() const noexcept;
  void forget_lost_rows(std::uint64_t told) noexcept;  // they are in a loss row now
  std::uint64_t used_bytes() const noexcept { return used_bytes_.load(std::memory_order_relaxed); }
  void remove() noexcept;
  // Makes the removed file again, with all that its lanes hold, and maps them onto it where they lie. No thread but the
  // caller's may use them meanwhile. After a failure lanes have no file: what they hold, and new ones, can still be written.
  Status put_back(container::LaneHeader* const* lanes, std::size_t count) noexcept;
  // In a forked child: the parent's file is let go. Its pages are replaced, not unmapped, so that a stale
  // pointer on the stack of a signal handler that forked still points at memory.
  void forget() noexcept;
  PinnedFile& file() noexcept { return file_; }

 private:
  bool is_intact() const noexcept;
  // A new part of the file, of which the first bytes get space; null on failure.
  void* map(std::uint64_t offset, std::uint64_t space_bytes, std::uint64_t bytes) noexcept;

  PinnedFile file_;
  container::RingHeader* header_ = nullptr;
  bool without_file_ = false;
  std::atomic<std::uint64_t> used_bytes_{0};  // written by add_lane alone, read by statistics
};

// Puts anonymous memory in the place of a shared mapping that a forked child inherited.
void replace_mapping(void* start, std::size_t bytes) noexcept;

}  // namespace stashtrace
