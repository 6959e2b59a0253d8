// Merging of slice batches by time, and lanes for slices that overlap. SPDX-License-Identifier: Apache-2.0
//
// The input is nearly always a few sorted runs (one per thread and kind), so runs are found and merged: n log(runs)
// comparisons instead of n log n, and none at all when there is one run.
#include "kernels/perfetto_order.h"

#include <algorithm>
#include <numeric>

namespace stashtrace::perfetto {
namespace {

struct Key {
  std::int64_t begin_ns;
  std::int64_t end_ns;
  std::uint64_t batch = 0;                // 0 for all unless batches come first
};

bool before(const Key& a, const Key& b) {
  if (a.begin_ns != b.begin_ns) return a.begin_ns < b.begin_ns;
  if (a.batch != b.batch) return a.batch < b.batch;
  return a.end_ns > b.end_ns;
}

class Merger {
 public:
  Merger(std::span<const SliceBatch> batches, Ties ties) : batches_(batches), ties_(ties) {}

  std::vector<std::uint64_t> run() {
    fill();
    if (starts_.size() <= 2) return batches_.size() == 1 ? std::vector<std::uint64_t>{} : std::move(entries_);
    std::vector<std::uint64_t> other(entries_.size());
    while (starts_.size() > 2) {
      std::vector<std::size_t> merged{0};
      for (std::size_t i = 0; i + 1 < starts_.size(); i += 2) {
        const std::size_t low = starts_[i];
        const std::size_t middle = starts_[i + 1];
        const std::size_t high = i + 2 < starts_.size() ? starts_[i + 2] : middle;
        std::merge(at(low), at(middle), at(middle), at(high), other.begin() + static_cast<std::ptrdiff_t>(low),
                   [this](std::uint64_t a, std::uint64_t b) { return before(key(a), key(b)); });
        merged.push_back(high);
      }
      entries_.swap(other);
      starts_ = std::move(merged);
    }
    return std::move(entries_);
  }

 private:
  std::vector<std::uint64_t>::iterator at(std::size_t i) { return entries_.begin() + static_cast<std::ptrdiff_t>(i); }

  [[nodiscard]] Key key(std::uint64_t entry) const {
    const SliceBatch& batch = batches_[entry >> kRowBits];
    const std::uint64_t row = entry & kRowMask;
    return {batch.begin_ns[row], batch.end_ns[row], ties_ == Ties::kBatchFirst ? entry >> kRowBits : 0};
  }

  void fill() {
    std::size_t total = 0;
    for (const SliceBatch& batch : batches_) total += batch.count;
    entries_.reserve(total);
    Key last{};
    for (std::size_t b = 0; b < batches_.size(); ++b) {
      const SliceBatch& batch = batches_[b];
      for (std::size_t row = 0; row < batch.count; ++row) {
        const std::uint64_t entry = static_cast<std::uint64_t>(b) << kRowBits | row;
        const Key next = key(entry);
        if (entries_.empty() || before(next, last)) starts_.push_back(entries_.size());
        entries_.push_back(entry);
        last = next;
      }
    }
    starts_.push_back(total);
  }

  std::span<const SliceBatch> batches_;
  Ties ties_;
  std::vector<std::uint64_t> entries_;
  std::vector<std::size_t> starts_;       // first entry of each run, then the total
};

bool is_sorted(const SliceBatch& batch) {
  for (std::size_t row = 1; row < batch.count; ++row) {
    if (before({batch.begin_ns[row], batch.end_ns[row]}, {batch.begin_ns[row - 1], batch.end_ns[row - 1]})) return false;
  }
  return true;
}

}  // namespace

std::vector<std::uint64_t> write_order(std::span<const SliceBatch> batches, Ties ties) {
  if (batches.size() == 1 && is_sorted(batches[0])) return {};
  return Merger(batches, ties).run();
}

std::vector<std::int32_t> assign_lanes(std::span<const std::int64_t> track, std::span<const std::int64_t> begin_ns,
                                       std::span<const std::int64_t> end_ns, bool nest) {
  const std::size_t count = track.size();
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto less = [&](std::size_t a, std::size_t b) {
    if (track[a] != track[b]) return track[a] < track[b];
    return before({begin_ns[a], end_ns[a]}, {begin_ns[b], end_ns[b]});
  };
  if (!std::is_sorted(order.begin(), order.end(), less)) std::stable_sort(order.begin(), order.end(), less);

  std::vector<std::int32_t> lanes(count);
  std::vector<std::vector<std::int64_t>> open;   // per lane: ends of open slices, innermost last
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
