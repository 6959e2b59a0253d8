// See call_sums.h. SPDX-License-Identifier: Apache-2.0
#include "kernels/call_sums.h"

#include <algorithm>

namespace stashtrace::call_sums {
namespace {

std::int64_t difference(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}

std::int64_t sum(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

// Begin of the bin that holds a moment; both count from the origin and may lie before it.
std::uint64_t bin_begin(std::int64_t moment, std::int64_t width) {
  const std::int64_t past = moment % width;
  return static_cast<std::uint64_t>(difference(moment, past < 0 ? past + width : past));
}

}  // namespace

void Summing::add(std::int64_t track, const Calls& calls) {
  const std::size_t count = calls.begin_ns.size();
  if (count == 0) return;
  bool opens = sums_.empty() || sums_.back().track != track;  // true if the next call begins a sum
  if (opens) covered_ns_ = calls.begin_ns[0];
  // The current sum is kept outside the vector: for all the compiler knows, the columns might be the vector's memory.
  Sum here = opens ? Sum{} : sums_.back();
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t begin = calls.begin_ns[i], end = calls.end_ns[i];
    const std::int64_t since_origin = difference(begin, origin_ns_), length = difference(end, begin);
    if (!opens && static_cast<std::uint64_t>(since_origin) - bin_begin_ >= static_cast<std::uint64_t>(width_ns_)) {
      sums_.back() = here;
      opens = true;
    }
    if (opens) {
      bin_begin_ = bin_begin(since_origin, width_ns_);
      here = {.track = track, .begin_ns = begin, .end_ns = end};
      sums_.push_back(here);
    }
    if (opens || length > longest_ns_) {
      longest_ns_ = length;
      here.path_code = calls.path_code[i];
    }
    opens = false;
    here.end_ns = std::max(here.end_ns, end);
    ++here.calls_count;
    here.bytes = sum(here.bytes, std::max(calls.result_bytes[i], std::int64_t{0}));
    here.busy_ns = sum(here.busy_ns, std::max(difference(end, std::max(begin, covered_ns_)), std::int64_t{0}));
    covered_ns_ = std::max(covered_ns_, end);
    here.blocked_count += (calls.io_flags[i] & blocked_flags_) != 0 ? 1 : 0;
  }
  sums_.back() = here;
}

}  // namespace stashtrace::call_sums
