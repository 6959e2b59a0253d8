// See tick_map.h. SPDX-License-Identifier: Apache-2.0
#include "kernels/tick_map.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace stashtrace::tick_map {

void map_ticks(std::span<const std::uint64_t> ticks, std::span<const std::int64_t> anchor_ticks,
               std::span<const std::int64_t> anchor_ns, std::span<std::int64_t> out) {
  const std::size_t pieces = anchor_ticks.size() - 1;
  std::vector<double> slopes(pieces);
  for (std::size_t i = 0; i < pieces; ++i)
    slopes[i] = static_cast<double>(anchor_ns[i + 1] - anchor_ns[i]) /
                static_cast<double>(anchor_ticks[i + 1] - anchor_ticks[i]);
  std::size_t piece = 0;
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    const auto tick = static_cast<std::int64_t>(ticks[i]);
    const bool above = piece + 1 == pieces || tick < anchor_ticks[piece + 1];
    const bool below = piece == 0 || tick >= anchor_ticks[piece];
    if (!(above && below)) {
      const auto next = std::upper_bound(anchor_ticks.begin() + 1, anchor_ticks.end() - 1, tick);
      piece = static_cast<std::size_t>(next - anchor_ticks.begin()) - 1;
    }
    out[i] = anchor_ns[piece] + std::llrint(static_cast<double>(tick - anchor_ticks[piece]) * slopes[piece]);
  }
}

}  // namespace stashtrace::tick_map
