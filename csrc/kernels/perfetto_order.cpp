// Merging of slice batches by time, and lanes for slices that overlap. SPDX-License-Identifier: Apache-2.0
//
// Pure functions on borrowed columns; called by the encoder and by bind_perfetto.cpp.
#include "kernels/perfetto_order.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace stashtrace::perfetto {
namespace {

bool precedes(std::int64_t begin_a, std::int64_t end_a, std::int64_t begin_b, std::int64_t end_b) {
  return begin_a != begin_b ? begin_a < begin_b : end_a > end_b;
}

}  // namespace

WriteOrder::WriteOrder(std::span<const SliceBatch> batches, Ties ties) : batches_(batches), ties_(ties) {
  for (std::size_t b = 0; b < batches.size(); ++b) {
    const SliceBatch& batch = batches[b];
    for (std::size_t row = 0; row < batch.count;) {
      const std::size_t first = row++;
      while (row < batch.count &&
             !precedes(batch.begin_ns[row], batch.end_ns[row], batch.begin_ns[row - 1], batch.end_ns[row - 1])) {
        ++row;
      }
      heads_.push_back({batch.begin_ns[first], batch.end_ns[first], b, first, row});
    }
  }
  for (std::size_t i = heads_.size() / 2; i-- > 0;) sift_down(i);
}

bool WriteOrder::before(const Head& a, const Head& b) const {
  if (a.begin_ns != b.begin_ns) [[likely]]
    return a.begin_ns < b.begin_ns;
  if (ties_ == Ties::kBatchFirst && a.batch != b.batch) return a.batch < b.batch;
  if (a.end_ns != b.end_ns) return a.end_ns > b.end_ns;
  return std::pair(a.batch, a.row) < std::pair(b.batch, b.row);
}

void WriteOrder::advance() {
  Head& head = heads_[0];
  if (++head.row < head.run_end) {
    const SliceBatch& batch = batches_[head.batch];
    head.begin_ns = batch.begin_ns[head.row];
    head.end_ns = batch.end_ns[head.row];
  } else {
    head = heads_.back();
    heads_.pop_back();
    if (heads_.empty()) return;
  }
  sift_down(0);
}

void WriteOrder::sift_down(std::size_t at) {
  const std::size_t count = heads_.size();
  const Head moving = heads_[at];
  for (std::size_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
    if (child + 1 < count && before(heads_[child + 1], heads_[child])) ++child;
    if (!before(heads_[child], moving)) break;
    heads_[at] = heads_[child];
    at = child;
  }
  heads_[at] = moving;
}

std::vector<std::int32_t> assign_lanes(std::span<const std::int64_t> track, std::span<const std::int64_t> begin_ns,
                                       std::span<const std::int64_t> end_ns, bool nest) {
  const std::size_t count = track.size();
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto less = [&](std::size_t a, std::size_t b) {
    if (track[a] != track[b]) return track[a] < track[b];
    return precedes(begin_ns[a], end_ns[a], begin_ns[b], end_ns[b]);
  };
  if (!std::is_sorted(order.begin(), order.end(), less)) std::stable_sort(order.begin(), order.end(), less);

  std::vector<std::int32_t> lanes(count);
  std::vector<std::vector<std::int64_t>> open;  // per lane: ends of open slices, innermost last
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t row = order[i];
    if (i == 0 || track[order[i - 1]] != track[row]) open.clear();
    std::size_t lane = 0;
    for (; lane < open.size(); ++lane) {
      std::vector<std::int64_t>& ends = open[lane];
      while (!ends.empty() && ends.back() <= begin_ns[row]) ends.pop_back();
      if (ends.empty() || (nest && ends.back() >= end_ns[row])) break;
    }
    if (lane == open.size()) open.emplace_back();
    open[lane].push_back(end_ns[row]);
    lanes[row] = static_cast<std::int32_t>(lane);
  }
  return lanes;
}

}  // namespace stashtrace::perfetto
