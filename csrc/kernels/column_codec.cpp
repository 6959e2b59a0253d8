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
constexpr std::size_t kColumnHeaderBytes = 8;

using Rows = std::span<const std::uint8_t>;

template <typename T>
void load_as(const std::uint8_t* row, std::size_t row_bytes, Column& out) {
  for (std::uint64_t& value : out) {
    T raw;
    std::memcpy(&raw, row, sizeof raw);
    value = static_cast<std::uint64_t>(static_cast<std::int64_t>(raw));
    row += row_bytes;
  }
}

template <typename T>
void store_as(const Column& values, std::size_t row_bytes, std::uint8_t* row) {
  for (const std::uint64_t value : values) {
    const T raw = static_cast<T>(value);
    std::memcpy(row, &raw, sizeof raw);
    row += row_bytes;
  }
}

void load(Rows rows, std::size_t row_bytes, const Field& field, Column& out) {
  out.resize(rows.size() / row_bytes);
  const std::uint8_t* first = rows.data() + field.offset;
  switch (field.size) {
    case 1: return load_as<std::uint8_t>(first, row_bytes, out);
    case 2: return load_as<std::uint16_t>(first, row_bytes, out);
    case 4:
      if (field.is_signed) return load_as<std::int32_t>(first, row_bytes, out);
      return load_as<std::uint32_t>(first, row_bytes, out);
    default: return load_as<std::uint64_t>(first, row_bytes, out);
  }
}

void store(const Column& values, std::size_t row_bytes, const Field& field, std::uint8_t* rows) {
  std::uint8_t* const first = rows + field.offset;
  switch (field.size) {
    case 1: return store_as<std::uint8_t>(values, row_bytes, first);
    case 2: return store_as<std::uint16_t>(values, row_bytes, first);
    case 4: return store_as<std::uint32_t>(values, row_bytes, first);
    default: return store_as<std::uint64_t>(values, row_bytes, first);
  }
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

// Returns the cursor after the stream, nullptr if it is malformed.
const std::uint8_t* decode_stream(const std::uint8_t* cursor, const std::uint8_t* end, const Groups& groups,
                                  Column& out) {
  const std::span<std::uint64_t> all(out);
  for (std::size_t g = 0; g + 1 < groups.starts.size(); ++g)
    for (std::size_t at = groups.starts[g]; at < groups.starts[g + 1]; at += kBlockRows) {
      cursor = bit_blocks::decode_block(cursor, end, all.subspan(at, std::min(kBlockRows, groups.starts[g + 1] - at)));
      if (cursor == nullptr) return nullptr;
    }
  return cursor;
}

// Columns of one batch and the room to work on them, kept from batch to batch.
struct Workspace {
  std::vector<Column> columns;
  Groups whole, keyed;
  Column residuals, scratch;
};

void encode_batch(Rows rows, std::size_t row_bytes, std::span<const Field> fields, const Plan& plan, Workspace& work,
                  std::vector<std::uint8_t>& out) {
  const std::size_t count = rows.size() / row_bytes;
  for (std::size_t c = 0; c < fields.size(); ++c) load(rows, row_bytes, fields[c], work.columns[c]);
  one_group(count, work.whole);
  // A key that outgrows its range in this batch leaves the rows in one group; decoding does the same.
  if (plan.key == kNoColumn || !group_by(work.columns[plan.key], work.keyed)) one_group(count, work.keyed);
  work.residuals.resize(count);
  for (const ColumnPlan& column : plan.columns) {
    const Groups& groups = column.grouping == Grouping::none ? work.whole : work.keyed;
    subtract_prediction(work.columns, column, groups, work.residuals, work.scratch);
    const unsigned shift = shared_zero_bits(work.residuals);
    if (shift != 0)
      for (std::uint64_t& residual : work.residuals)
        residual = static_cast<std::uint64_t>(static_cast<std::int64_t>(residual) >> shift);
    put(static_cast<std::uint8_t>(shift), out);
    encode_stream(work.residuals, groups, out);
  }
}

const std::uint8_t* decode_batch(const std::uint8_t* cursor, const std::uint8_t* end, std::size_t row_bytes,
                                 std::size_t count, std::span<const Field> fields, const Plan& plan, Workspace& work,
                                 std::uint8_t* rows) {
  one_group(count, work.whole);
  one_group(count, work.keyed);
  for (const ColumnPlan& column : plan.columns) {
    if (cursor == end || *cursor > 63) return nullptr;
    const unsigned shift = *cursor++;
    const Groups& groups = column.grouping == Grouping::none ? work.whole : work.keyed;
    Column& values = work.columns[column.index];
    values.resize(count);
    cursor = decode_stream(cursor, end, groups, values);
    if (cursor == nullptr) return nullptr;
    if (shift != 0)
      for (std::uint64_t& value : values) value <<= shift;
    add_prediction(work.columns, column, groups, values, work.scratch);
    store(values, row_bytes, fields[column.index], rows);
    if (column.index == plan.key && !group_by(values, work.keyed)) one_group(count, work.keyed);
  }
  return cursor;
}

// Reads the description of the columns; false if it is invalid.
bool read_plan(const std::uint8_t* cursor, std::size_t row_bytes, std::vector<Field>& fields, Plan& plan) {
  const std::size_t column_count = fields.size();
  std::vector<bool> known(column_count, false);
  std::size_t covered_bytes = 0;
  for (std::size_t seen = 0; seen < column_count; ++seen, cursor += kColumnHeaderBytes) {
    const ColumnPlan column{.index = cursor[0],
                            .predictor = static_cast<Predictor>(cursor[4]),
                            .grouping = static_cast<Grouping>(cursor[5]),
                            .other = cursor[6]};
    const Field field{.offset = get<std::uint16_t>(cursor + 2), .size = cursor[1], .is_signed = false};
    const bool needs_other = column.predictor == Predictor::advanced || column.predictor == Predictor::same_row;
    if (column.index >= column_count || known[column.index] || cursor[4] > 5 || cursor[5] > 2 ||
        (field.size != 1 && field.size != 2 && field.size != 4 && field.size != 8) ||
        std::size_t{field.offset} + field.size > row_bytes ||
        (column.index == plan.key && column.grouping != Grouping::none) ||
        (column.grouping != Grouping::none && (plan.key >= column_count || !known[plan.key])) ||
        (needs_other && (column.other >= column_count || !known[column.other])))
      return false;
    known[column.index] = true;
    fields[column.index] = field;
    plan.columns.push_back(column);
    covered_bytes += field.size;
  }
  return covered_bytes == row_bytes;
}

}  // namespace

std::vector<std::uint8_t> encode(Rows rows, std::size_t row_bytes, std::span<const Field> fields) {
  const std::size_t count = rows.size() / row_bytes;
  Workspace work;
  work.columns.resize(fields.size());
  const std::size_t sampled = std::min(kSampleRows, count);
  const Rows sample = rows.subspan((count - sampled) / 2 * row_bytes, sampled * row_bytes);
  for (std::size_t c = 0; c < fields.size(); ++c) load(sample, row_bytes, fields[c], work.columns[c]);
  const Plan plan = choose_plan(work.columns, fields);

  std::vector<std::uint8_t> out;
  out.reserve(kHeaderBytes + rows.size() / 3);
  put(static_cast<std::uint32_t>(count), out);
  put(static_cast<std::uint8_t>(fields.size()), out);
  put(plan.key, out);
  put(static_cast<std::uint16_t>(row_bytes), out);
  for (const ColumnPlan& column : plan.columns) {
    put(column.index, out);
    put(fields[column.index].size, out);
    put(fields[column.index].offset, out);
    put(static_cast<std::uint8_t>(column.predictor), out);
    put(static_cast<std::uint8_t>(column.grouping), out);
    put(column.other, out);
    put(std::uint8_t{0}, out);
  }
  for (std::size_t at = 0; at < count; at += kBatchRows)
    encode_batch(rows.subspan(at * row_bytes, std::min(kBatchRows, count - at) * row_bytes), row_bytes, fields, plan,
                 work, out);
  return out;
}

bool decode(std::span<const std::uint8_t> payload, std::size_t row_bytes, std::span<std::uint8_t> out) {
  if (payload.size() < kHeaderBytes || row_bytes == 0) return false;
  const std::uint8_t* cursor = payload.data();
  const std::uint8_t* const end = cursor + payload.size();
  const std::size_t count = get<std::uint32_t>(cursor);
  const std::size_t column_count = cursor[4];
  Plan plan{.key = cursor[5], .columns = {}};
  if (get<std::uint16_t>(cursor + 6) != row_bytes || count * row_bytes != out.size() || column_count > kMaxColumns ||
      payload.size() < kHeaderBytes + column_count * kColumnHeaderBytes)
    return false;
  std::vector<Field> fields(column_count);
  if (!read_plan(cursor + kHeaderBytes, row_bytes, fields, plan)) return false;
  cursor += kHeaderBytes + column_count * kColumnHeaderBytes;
  Workspace work;
  work.columns.resize(column_count);
  for (std::size_t at = 0; at < count; at += kBatchRows) {
    cursor = decode_batch(cursor, end, row_bytes, std::min(kBatchRows, count - at), fields, plan, work,
                          out.data() + at * row_bytes);
    if (cursor == nullptr) return false;
  }
  return cursor == end;
}

}  // namespace stashtrace::column_codec
