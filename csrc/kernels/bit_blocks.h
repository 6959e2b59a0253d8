// Streams of 64-bit residuals as bit-packed blocks with exceptions. The lower half of column_codec.
// SPDX-License-Identifier: Apache-2.0
//
// Called by column_codec.cpp only. A block picks, from a histogram of bit widths, the width at which
// packed bits plus exceptions take least room, once for residuals above their minimum and once for
// zigzag; an outlier in 256 then costs its own bytes and not 256 wider slots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stashtrace::bit_blocks {

// Returns the bits that encode() would take for these residuals, without writing them.
std::size_t cost_bits(std::span<const std::uint64_t> residuals);

// Appends one block; 1 to 256 residuals.
void encode_block(std::span<const std::uint64_t> residuals, std::vector<std::uint8_t>& out);

// Reads one block of out.size() residuals from [cursor, end). Returns the cursor after it, nullptr if malformed.
const std::uint8_t* decode_block(const std::uint8_t* cursor, const std::uint8_t* end, std::span<std::uint64_t> out);

}  // namespace stashtrace::bit_blocks
