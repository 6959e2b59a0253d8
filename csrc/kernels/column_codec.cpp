// Columnar codec: what is common to both directions, and decoding. The choice of predictors is in column_plan.cpp.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/column_codec.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/bit_blocks.h"
#include "kernels/column_plan.h"

namespace stashtrace::column_codec {
namespace {

constexpr std::size_t kHeaderBytes = 8;
constexpr std::size_t kColumnHeaderBytes = 12;

template <typename T>
void load_column(const std::uint8_t* row, std::size_t row_bytes, Column& out) {
  for (std::uint64_t& value : out) {
    T raw;
    std::memcpy(&raw, row, sizeof raw);
    value = static_cast<std::uint64_t>(static_cast<std::int64_t>(raw));
    row += row_bytes;
  }
}

template <typename T>
void store_column(const Column& values, std::size_t row_bytes, std::uint8_t* row) {
  for (const std::uint64_t value : values) {
    const T raw = static_cast<T>(value);
    std::memcpy(row, &raw, sizeof raw);
    row += row_bytes;
  }
}

Column load(std::span<const std::uint8_t> rows, std::size_t row_bytes, const Field& field) {
  Column out(rows.size() / row_bytes);
  const std::uint8_t* first = rows.data() + field.offset;
  switch (field.size) {
    case 1: load_column<std::uint8_t>(first, row_bytes, out); break;
    case 2: load_column<std::uint16_t>(first, row_bytes, out); break;
    case 4:
      if (field.is_signed) load_column<std::int32_t>(first, row_bytes, out);
      else load_column<std::uint32_t>(first, row_bytes, out);
      break;
    default: load_column<std::uint64_t>(first, row_bytes, out);
  }
  return out;
}

template <typename T>
void put(T value, std::vector<std::uint8_t>& out) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof value);
}

template <typename T>
T get(const std::uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Zero bits at the low end that all residuals share: offsets of whole pages have twelve.
unsigned shared_zero_bits(const Column& residuals) {
  std::uint64_t any = 0;
  for (const std::uint64_t residual : residuals) any |= residual;
  return any == 0 ? 0 : static_cast<unsigned>(std::countr_zero(any));
}

// The streams of one column, group by group.
void encode_stream(const Column& residuals, const Groups& groups, std::vector<std::uint8_t>& out) {
  const std::span<const std::uint64_t> all(residuals);
  for (std::size_t g = 0; g + 1 < groups.starts.size(); ++g)
    for (std::size_t at = groups.starts[g]; at < groups.starts[g + 1]; at += kBlockRows)
      bit_blocks::encode_block(all.subspan(at, std::min(kBlockRows, groups.starts[g + 1] - at)), out);
}

bool decode_stream(const std::uint8_t* cursor, const std::uint8_t* end, const Groups& groups, Column& out) {
  const std::span<std::uint64_t> all(out);
  for (std::size_t g = 0; g + 1 < groups.starts.size(); ++g)
    for (std::size_t at = groups.starts[g]; at < groups.starts[g + 1]; at += kBlockRows) {
      cursor = bit_blocks::decode_block(cursor, end, all.subspan(at, std::min(kBlockRows, groups.starts[g + 1] - at)));
      if (cursor == nullptr) return false;
    }
  return cursor == end;
}

}  // namespace

std::vector<std::uint8_t> encode(std::span<const std::uint8_t> rows, std::size_t row_bytes,
                                 std::span<const Field> fields) {
  const std::size_t count = rows.size() / row_bytes;
  std::vector<Column> columns;
  columns.reserve(fields.size());
  for (const Field& field : fields) columns.push_back(load(rows, row_bytes, field));

  const Plan plan = choose_plan(columns, fields);
  const Groups whole = one_group(count);
  const Groups keyed = plan.key == kNoColumn ? whole : group_by(columns[plan.key]);

  std::vector<std::uint8_t> out;
  out.reserve(kHeaderBytes + rows.size() / 3);
  put(static_cast<std::uint32_t>(count), out);
  put(static_cast<std::uint8_t>(fields.size()), out);
  put(plan.key, out);
  put(static_cast<std::uint16_t>(row_bytes), out);
  Column residuals(count);
  for (const ColumnPlan& column : plan.columns) {
    put(column.index, out);
    put(fields[column.index].size, out);
    put(fields[column.index].offset, out);
    put(static_cast<std::uint8_t>(column.predictor), out);
    put(static_cast<std::uint8_t>(column.grouping), out);
    put(column.other, out);
    const Groups& groups = column.grouping == Grouping::none ? whole : keyed;
    subtract_prediction(columns, column, groups, residuals);
    const unsigned shift = shared_zero_bits(residuals);
    for (std::uint64_t& residual : residuals)
      residual = static_cast<std::uint64_t>(static_cast<std::int64_t>(residual) >> shift);
    put(static_cast<std::uint8_t>(shift), out);
    const std::size_t length_at = out.size();
    put(std::uint32_t{0}, out);
    encode_stream(residuals, groups, out);
    const auto length = static_cast<std::uint32_t>(out.size() - length_at - 4);
    std::memcpy(out.data() + length_at, &length, 4);
  }
  return out;
}

bool decode(std::span<const std::uint8_t> payload, std::size_t row_bytes, std::span<std::uint8_t> out) {
  if (payload.size() < kHeaderBytes || row_bytes == 0) return false;
  const std::uint8_t* cursor = payload.data();
  const std::uint8_t* const end = cursor + payload.size();
  const std::size_t count = get<std::uint32_t>(cursor);
  const std::size_t column_count = cursor[4];
  const std::uint8_t key = cursor[5];
  if (get<std::uint16_t>(cursor + 6) != row_bytes || count * row_bytes != out.size() || column_count > kMaxColumns)
    return false;
  cursor += kHeaderBytes;

  std::vector<Column> columns(column_count);
  const Groups whole = one_group(count);
  Groups keyed;
  std::size_t covered_bytes = 0;
  for (std::size_t seen = 0; seen < column_count; ++seen) {
    if (static_cast<std::size_t>(end - cursor) < kColumnHeaderBytes) return false;
    ColumnPlan column{.index = cursor[0],
                      .predictor = static_cast<Predictor>(cursor[4]),
                      .grouping = static_cast<Grouping>(cursor[5]),
                      .other = cursor[6]};
    const std::uint8_t size = cursor[1];
    const std::size_t offset = get<std::uint16_t>(cursor + 2);
    const unsigned shift = cursor[7];
    const std::size_t length = get<std::uint32_t>(cursor + 8);
    cursor += kColumnHeaderBytes;
    const bool needs_other = column.predictor == Predictor::advanced || column.predictor == Predictor::same_row;
    if (column.index >= column_count || !columns[column.index].empty() || cursor[-8] > 5 || cursor[-7] > 2 || shift > 63 ||
        (size != 1 && size != 2 && size != 4 && size != 8) || offset + size > row_bytes ||
        static_cast<std::size_t>(end - cursor) < length || (column.grouping != Grouping::none && keyed.starts.empty()) ||
        (needs_other && (column.other >= column_count || columns[column.other].size() != count)))
      return false;
    const Groups& groups = column.grouping == Grouping::none ? whole : keyed;
    Column values(count);
    if (!decode_stream(cursor, cursor + length, groups, values)) return false;
    cursor += length;
    for (std::uint64_t& value : values) value <<= shift;
    add_prediction(columns, column, groups, values);
    std::uint8_t* const first = out.data() + offset;
    switch (size) {
      case 1: store_column<std::uint8_t>(values, row_bytes, first); break;
      case 2: store_column<std::uint16_t>(values, row_bytes, first); break;
      case 4: store_column<std::uint32_t>(values, row_bytes, first); break;
      default: store_column<std::uint64_t>(values, row_bytes, first);
    }
    if (column.index == key) {
      if (size > 2 || std::any_of(values.begin(), values.end(), [](std::uint64_t v) { return v > kMaxKey; })) return false;
      keyed = group_by(values);
    }
    columns[column.index] = std::move(values);
    covered_bytes += size;
  }
  return cursor == end && covered_bytes == row_bytes;
}

}  // namespace stashtrace::column_codec
