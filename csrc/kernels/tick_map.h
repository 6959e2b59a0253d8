// Ticks -> ns by a piecewise linear map. SPDX-License-Identifier: Apache-2.0
//
// Called by bind_clock.cpp for loading/clocks/host_clock.py: twice per recorded call, so it is a plain loop. A result is
// an integer anchor plus a rounded product of the distance to it; rows come nearly in order, so the
// piece of the row before is tried first. Pure, any thread.
#pragma once

#include <cstdint>
#include <span>

namespace stashtrace::tick_map {

// anchor_ticks ascending, at least two, anchor_ns as long; out as long as ticks. The outer pieces also
// hold beyond the anchors.
void map_ticks(std::span<const std::uint64_t> ticks, std::span<const std::int64_t> anchor_ticks,
               std::span<const std::int64_t> anchor_ns, std::span<std::int64_t> out);

}  // namespace stashtrace::tick_map
