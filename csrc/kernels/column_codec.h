// Codec 1 of the container: rows of fixed size <-> columns of bit-packed residuals. Exact.
// SPDX-License-Identifier: Apache-2.0
//
// Called by bind_codec.cpp (merge encodes, reader decodes). Pure functions: no state, no I/O, any thread.
//
//   payload  u32 row_count | u8 column_count | u8 key (index of the key column, 255 none) | u16 row_bytes
//            column, column, ...                    in an order in which each needs only earlier ones
//            batch of up to 8192 rows, ...          predictions restart in each, so it stays in the cache
//   column   u8 index | u8 size | u16 offset (in the row) | u8 predictor | u8 grouping | u8 other | u8 reserved
//   batch    for each column: u8 shift | stream     shift: zero bits at the low end of all residuals, left out
//   stream   block of up to 256 residuals, ...      a block never spans two groups
//   block    u8 head (bit 7: residuals are zigzag, else above a base; low 7 bits: width 0..64)
//            u8 exception_count | varint zigzag base, if bit 7 is clear | packed bits, little endian
//            exception, ...   = u8 position | varint of the bits above the width
//
// Predictor: what is subtracted from a value (mod 2^64; signed fields are sign-extended first).
// Grouping: the key column (a code such as op_code) splits the rows into groups. `packed` packs residuals
// group after group, so that each kind of call gets a separate width; `chained` also predicts within the
// group. Both are undone from the key column alone, which is stored ungrouped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stashtrace::column_codec {

enum class Predictor : std::uint8_t {
  zero = 0,      // the value itself
  previous = 1,  // the row before
  linear = 2,    // twice the row before, minus the one before that
  advanced = 3,  // the row before, plus `other` of the row before: next offset, next begin
  same_row = 4,  // `other` of the same row: end near begin
  context = 5,   // what followed the last three values at their last occurrence; for codes in a loop
};
enum class Grouping : std::uint8_t { none = 0, packed = 1, chained = 2 };

inline constexpr std::uint8_t kNoColumn = 255;
inline constexpr std::size_t kMaxColumns = 254;
inline constexpr std::size_t kBlockRows = 256;
inline constexpr std::size_t kBatchRows = 8192;

struct Field {
  std::uint16_t offset;
  std::uint8_t size;  // 1, 2, 4 or 8
  bool is_signed;
};

// Rows must be row_count * row_bytes long; fields must cover every byte of a row exactly once.
std::vector<std::uint8_t> encode(std::span<const std::uint8_t> rows, std::size_t row_bytes,
                                 std::span<const Field> fields);

// Fills out, which must be row_count * row_bytes long. False if the payload does not hold exactly that.
bool decode(std::span<const std::uint8_t> payload, std::size_t row_bytes, std::span<std::uint8_t> out);

}  // namespace stashtrace::column_codec
