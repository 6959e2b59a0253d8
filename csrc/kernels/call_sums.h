// Sums of I/O calls per thread and time bin, for a timeline that cannot show each call. SPDX-License-Identifier: Apache-2.0
//
// Used by bind_perfetto.cpp for timeline/host_tracks.py. One pass over calls as they come from disk: a part may end
// anywhere, also within a bin, and only the sums are kept. A call belongs to the bin in which it begins.
//
//   calls   [----]    [-------------]   [--]      [---]
//              [-------]         [---------]
//   busy    ######################################       each nanosecond once, in the bin of the call that reaches it first
//   bins    |              |              |              |
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stashtrace::call_sums {

// Rows of one thread, ordered by begin; columns of equal length.
struct Calls {
  std::span<const std::int64_t> begin_ns;
  std::span<const std::int64_t> end_ns;
  std::span<const std::int64_t> result_bytes;
  std::span<const std::int32_t> path_code;
  std::span<const std::int16_t> io_flags;
};

// The calls of one thread in one bin.
struct Sum {
  std::int64_t track = 0;
  std::int64_t begin_ns = 0;  // of the first call
  std::int64_t end_ns = 0;    // latest of all calls
  std::int64_t calls_count = 0;
  std::int64_t bytes = 0;          // of calls that did not fail
  std::int64_t busy_ns = 0;        // time that the calls add to what earlier ones cover
  std::int64_t blocked_count = 0;  // calls with one of the flags
  std::int64_t path_code = 0;      // of the longest call, the first of equal ones
};

// Damaged files may hold any numbers: sums and differences wrap.
class Summing {
 public:
  // width_ns is at least 1.
  Summing(std::int64_t origin_ns, std::int64_t width_ns, std::int16_t blocked_flags)
      : origin_ns_(origin_ns), width_ns_(width_ns), blocked_flags_(blocked_flags) {}

  // Call it with the parts of a thread one after the other, in the order of time.
  void add(std::int64_t track, const Calls& calls);

  // One sum per thread and bin that holds calls, in the order in which the calls came.
  [[nodiscard]] std::span<const Sum> sums() const { return sums_; }

 private:
  std::int64_t origin_ns_;
  std::int64_t width_ns_;
  std::int16_t blocked_flags_;
  std::uint64_t bin_begin_ = 0;  // of the last sum, counted from the origin
  std::int64_t longest_ns_ = 0;  // longest call of the last sum
  std::int64_t covered_ns_ = 0;  // end of the time that the thread's calls cover
  std::vector<Sum> sums_;
};

}  // namespace stashtrace::call_sums
