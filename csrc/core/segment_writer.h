// The .stash file: header once, then segments, by raw system calls. SPDX-License-Identifier: Apache-2.0
//
// Callers: the Drainer (append, under its lock, signals blocked) and Runtime (create). A segment that could not be
// written whole is cut off again, so the file always ends with a whole one unless the process died in between. Each
// append opens the file on a separate thread (core/apart.h): the process has no descriptor that could be redirected.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/pinned_file.h"
#include "core/ring.h"
#include "core/status.h"

namespace stashtrace {

class SegmentWriter {
 public:
  // Creates the file at file().path() and writes header, field table and metadata. Must run apart.
  Status create(std::string_view field_table, std::string_view metadata) noexcept;
  // Appends one segment for each of `due`, in their order; `written` counts those that are in the file. The file is
  // opened once for all, since opening it costs more than writing the rows of a small process.
  struct Due {
    container::RingHeader* ring;
    ring::Batch batch;
  };
  Status append(const Due* due, std::size_t count, std::size_t& written) noexcept;
  std::uint64_t written_bytes() const noexcept { return end_bytes_.load(std::memory_order_relaxed); }
  std::uint64_t segments_count() const noexcept { return segments_count_.load(std::memory_order_relaxed); }
  void forget() noexcept;  // in a forked child
  PinnedFile& file() noexcept { return file_; }

 private:
  int append_to(int fd, const Due& due) noexcept;

  PinnedFile file_;
  std::atomic<std::uint64_t> end_bytes_{0};  // both written under the drainer's lock, read by statistics
  std::atomic<std::uint64_t> segments_count_{0};
};

}  // namespace stashtrace
