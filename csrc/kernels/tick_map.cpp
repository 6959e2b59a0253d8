// See tick_map.h. SPDX-License-Identifier: Apache-2.0
#include "kernels/tick_map.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace stashtrace::tick_map {

namespace {

// Ticks of a damaged file can have any value: differences and sums wrap as for unsigned numbers.
std::int64_t wrapped(std::uint64_t value) { return static_cast<std::int64_t>(value); }

std::int64_t difference(std::int64_t a, std::int64_t b) {
  return wrapped(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}

std::int64_t sum(std::int64_t a, std::int64_t b) {
  return wrapped(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

}  // namespace

void map_ticks(std::span<const std::uint64_t> ticks, std::span<const std::int64_t> anchor_ticks,
               std::span<const std::int64_t> anchor_ns, std::span<std::int64_t> out) {
  const std::size_t pieces = anchor_ticks.size() - 1;
  std::vector<double> slopes(pieces);
  for (std::size_t i = 0; i < pieces; ++i)
    slopes[i] = static_cast<double>(difference(anchor_ns[i + 1], anchor_ns[i])) /
                static_cast<double>(difference(anchor_ticks[i + 1], anchor_ticks[i]));
  std::size_t piece = 0;
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    const auto tick = static_cast<std::int64_t>(ticks[i]);
    const bool above = piece + 1 == pieces || tick < anchor_ticks[piece + 1];
    const bool below = piece == 0 || tick >= anchor_ticks[piece];
    if (!(above && below)) {
      const auto next = std::upper_bound(anchor_ticks.begin() + 1, anchor_ticks.end() - 1, tick);
      piece = static_cast<std::size_t>(next - anchor_ticks.begin()) - 1;
    }
    const double since = static_cast<double>(difference(tick, anchor_ticks[piece])) * slopes[piece];
    out[i] = sum(anchor_ns[piece], std::llrint(since));
  }
}

}  // namespace stashtrace::tick_map
