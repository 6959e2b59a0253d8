// The .ring file: where rings live while a process runs. SPDX-License-Identifier: Apache-2.0
//
// Callers: RingTable, under its lock and with signals blocked. Space is allocated before it is mapped, since a
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
  static constexpr std::uint64_t kMostBytes = std::uint64_t{256} << 20;  // all rings of a process
  // Space that a ring's rows get when it is made. Most processes are small, and rings of killed processes stay.
  static constexpr std::uint64_t kFirstSpaceBytes = 64 * 1024;

  // Creates the file at file().path(). Must run apart (core/apart.h).
  Status create(std::uint32_t pid) noexcept;
  // Returns a new ring; null if there is no space or the process has reached kMostBytes.
  container::RingHeader* add_ring(std::uint16_t record_id, std::uint32_t row_bytes, std::uint32_t ring_bytes,
                                  std::uint32_t ring_id, std::uint32_t tid) noexcept;
  // Allocates space for the rest of a ring, called by its thread; false if the disk has none.
  bool give_space(container::RingHeader* ring) noexcept;
  void count_lost_row() noexcept;
  std::uint64_t lost_rows() const noexcept;
  void forget_lost_rows(std::uint64_t reported) noexcept;  // they are in a loss row now
  // What kept the run directory from taking more (errno, 0 for nothing): the cause of rows that are lost until it takes more.
  void note_write_error(int error_number) noexcept;
  int grow_error() const noexcept;
  int write_error() const noexcept;
  void forget_errors() noexcept;
  std::uint64_t used_bytes() const noexcept { return used_bytes_.load(std::memory_order_relaxed); }
  void remove() noexcept;
  // Makes the removed file again with the content of its rings and maps the rings to it at their old addresses. No
  // other thread may use them meanwhile. After a failure the rings have no file; old and new rows can still be written.
  Status put_back(container::RingHeader* const* rings, std::size_t count) noexcept;
  // In a forked child: releases the parent's file. Its pages are replaced, not unmapped, so that a stale
  // pointer on the stack of a signal handler that forked still points at memory.
  void forget() noexcept;
  PinnedFile& file() noexcept { return file_; }

 private:
  bool is_intact() const noexcept;
  void note_growth(int error) noexcept;  // 0, or minus errno
  // Maps a new part of the file and gives space to its first bytes; null on failure.
  void* map(std::uint64_t offset, std::uint64_t space_bytes, std::uint64_t bytes) noexcept;

  PinnedFile file_;
  container::RingFileHeader* header_ = nullptr;
  bool without_file_ = false;
  std::atomic<std::uint64_t> used_bytes_{0};  // written only by add_ring, read by statistics
};

// Replaces a shared mapping that a forked child inherited by anonymous memory.
void replace_mapping(void* start, std::size_t bytes) noexcept;

}  // namespace stashtrace
