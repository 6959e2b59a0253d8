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

  // Creates the file at file().path(). To be called apart (core/apart.h).
  Status create(std::uint32_t pid) noexcept;
  // A new lane, or null: no space, or the process has its share.
  container::LaneHeader* add_lane(std::uint16_t record_id, std::uint32_t row_bytes, std::uint32_t lane_bytes,
                                  std::uint32_t lane_id, std::uint32_t tid) noexcept;
  void count_lost_row() noexcept;
  std::uint64_t lost_rows() const noexcept;
  void forget_lost_rows(std::uint64_t told) noexcept;  // they are in a loss row now
  std::uint64_t used_bytes() const noexcept { return used_bytes_.load(std::memory_order_relaxed); }
  void remove() noexcept;
  // In a forked child: the parent's file is let go. Its pages are replaced, not unmapped, so that a stale
  // pointer on the stack of a signal handler that forked still points at memory.
  void forget() noexcept;
  PinnedFile& file() noexcept { return file_; }

 private:
  bool is_intact() const noexcept;
  void* map(std::uint64_t offset, std::uint64_t bytes) noexcept;  // new space of the file; null on failure
  int allocate(int fd, std::uint64_t offset, std::uint64_t bytes) noexcept;

  PinnedFile file_;
  container::RingHeader* header_ = nullptr;
  std::atomic<std::uint64_t> used_bytes_{0};  // written by add_lane alone, read by statistics
};

// Puts anonymous memory in the place of a shared mapping that a forked child inherited.
void replace_mapping(void* start, std::size_t bytes) noexcept;

}  // namespace stashtrace
