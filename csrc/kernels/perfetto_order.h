// Order in which slices are written. SPDX-License-Identifier: Apache-2.0
//
// Called by perfetto_encoder.cpp. Pure functions on borrowed columns.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/perfetto_encoder.h"

namespace stashtrace::perfetto {

inline constexpr int kRowBits = 40;       // an entry is batch << kRowBits | row
inline constexpr std::uint64_t kRowMask = (std::uint64_t{1} << kRowBits) - 1;

// Entries of all batches by (begin, -end), or by (begin, batch, -end); equal ones in the order given. Empty when that
// is the order in which they stand already, which spares 8 bytes per slice.
std::vector<std::uint64_t> write_order(std::span<const SliceBatch> batches, Ties ties);

}  // namespace stashtrace::perfetto
