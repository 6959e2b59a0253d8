// How the columns of one segment are predicted and grouped, and the prediction itself. Internal to column_codec.
// SPDX-License-Identifier: Apache-2.0
//
// choose_plan measures candidates on a sample of rows, so no caller has to know the meaning of a record:
// the next begin from the last end, the next offset from the last one plus its bytes, groups by op_code
// are all found this way. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/column_codec.h"

namespace stashtrace::column_codec {

using Column = std::vector<std::uint64_t>;

inline constexpr std::uint64_t kMaxKey = 0xff;  // codes and flag bits are small; group_by stays cheap

// Rows ordered by the value of a key column, stably: group g is order[starts[g]] .. order[starts[g + 1] - 1].
// An empty order means the rows in their order.
struct Groups {
  std::vector<std::uint32_t> order;
  std::vector<std::size_t> starts;
};

struct ColumnPlan {
  std::uint8_t index = 0;
  Predictor predictor = Predictor::zero;
  Grouping grouping = Grouping::none;
  std::uint8_t other = kNoColumn;
};

struct Plan {
  std::uint8_t key = kNoColumn;
  std::vector<ColumnPlan> columns;  // in an order in which each needs only earlier ones
};

void one_group(std::size_t rows, Groups& out);
bool group_by(const Column& key, Groups& out);  // false if a value is above kMaxKey

// Learns from a sample of consecutive rows, loaded as columns.
Plan choose_plan(const std::vector<Column>& sample, std::span<const Field> fields);

inline constexpr std::size_t kSampleRows = 768;

// values - prediction, in the order of `groups`. `scratch` is room for a column, kept between calls.
void subtract_prediction(const std::vector<Column>& columns, const ColumnPlan& plan, const Groups& groups,
                         Column& residuals, Column& scratch);

// The inverse, in place: turns residuals in the order of `groups` into values in the order of rows.
void add_prediction(const std::vector<Column>& columns, const ColumnPlan& plan, const Groups& groups, Column& values,
                    Column& scratch);

}  // namespace stashtrace::column_codec
