// Prediction of columns and its inverse, and the grouping of rows. See column_plan.h.
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "kernels/column_plan.h"

namespace stashtrace::column_codec {
namespace {

// What followed a context of three values at its last occurrence. Small enough for the first-level cache.
class ContextTable {
 public:
  std::uint64_t predict() const { return table_[slot()]; }
  void learn(std::uint64_t value) {
    table_[slot()] = value;
    third_ = second_;
    second_ = first_;
    first_ = value;
  }

 private:
  std::size_t slot() const {
    return static_cast<std::size_t>(
        (first_ * 0x9e3779b97f4a7c15ULL + second_ * 0xc2b2ae3d27d4eb4fULL + third_ * 0x165667b19e3779f9ULL) >> 54);
  }
  std::array<std::uint64_t, 1024> table_{};
  std::uint64_t first_ = 0, second_ = 0, third_ = 0;
};

// Walks [begin, end) of an order, passes the prediction to `step`, which returns the value.
template <typename At, typename Step>
void walk(const ColumnPlan& plan, const Column* other, std::size_t begin, std::size_t end, At at, Step step) {
  switch (plan.predictor) {
    case Predictor::zero:
      for (std::size_t k = begin; k < end; ++k) step(k, 0);
      break;
    case Predictor::previous:
      for (std::uint64_t last = 0; begin < end; ++begin) last = step(begin, last);
      break;
    case Predictor::linear: {
      std::uint64_t last = 0, slope = 0;
      for (std::size_t k = begin; k < end; ++k) {
        const std::uint64_t value = step(k, last + slope);
        slope = k == begin ? 0 : value - last;
        last = value;
      }
      break;
    }
    case Predictor::advanced: {
      std::uint64_t expected = 0;
      for (std::size_t k = begin; k < end; ++k) expected = step(k, expected) + (*other)[at(k)];
      break;
    }
    case Predictor::same_row:
      for (std::size_t k = begin; k < end; ++k) step(k, (*other)[at(k)]);
      break;
    case Predictor::context: {
      ContextTable table;
      for (std::size_t k = begin; k < end; ++k) table.learn(step(k, table.predict()));
      break;
    }
  }
}

const Column* other_of(const std::vector<Column>& columns, const ColumnPlan& plan) {
  return plan.other == kNoColumn ? nullptr : &columns[plan.other];
}

bool walks_in_groups(const ColumnPlan& plan, const Groups& groups) {
  return plan.grouping == Grouping::chained && !groups.order.empty();
}

}  // namespace

void one_group(std::size_t rows, Groups& out) {
  out.order.clear();
  out.starts.assign({0, rows});
}

bool group_by(const Column& key, Groups& out) {
  std::array<std::uint32_t, kMaxKey + 2> next{};
  for (const std::uint64_t value : key) {
    if (value > kMaxKey) return false;
    ++next[value + 1];
  }
  out.starts.clear();
  for (std::size_t value = 0; value <= kMaxKey; ++value) {
    if (next[value + 1] != 0) out.starts.push_back(next[value]);
    next[value + 1] += next[value];
  }
  out.starts.push_back(key.size());
  out.order.resize(key.size());
  for (std::size_t row = 0; row < key.size(); ++row) out.order[next[key[row]]++] = static_cast<std::uint32_t>(row);
  return true;
}

void subtract_prediction(const std::vector<Column>& columns, const ColumnPlan& plan, const Groups& groups,
                         Column& residuals, Column& scratch) {
  const Column& values = columns[plan.index];
  const Column* const other = other_of(columns, plan);
  if (walks_in_groups(plan, groups)) {
    const auto at = [&](std::size_t k) { return groups.order[k]; };
    for (std::size_t g = 0; g + 1 < groups.starts.size(); ++g)
      walk(plan, other, groups.starts[g], groups.starts[g + 1], at, [&](std::size_t k, std::uint64_t prediction) {
        const std::uint64_t value = values[groups.order[k]];
        residuals[k] = value - prediction;
        return value;
      });
    return;
  }
  const auto at = [](std::size_t k) { return k; };
  const auto subtract = [&](Column& into) {
    walk(plan, other, 0, values.size(), at, [&](std::size_t k, std::uint64_t prediction) {
      into[k] = values[k] - prediction;
      return values[k];
    });
  };
  if (groups.order.empty()) {
    subtract(residuals);
    return;
  }
  scratch.resize(values.size());
  subtract(scratch);
  for (std::size_t k = 0; k < scratch.size(); ++k) residuals[k] = scratch[groups.order[k]];
}

void add_prediction(const std::vector<Column>& columns, const ColumnPlan& plan, const Groups& groups, Column& values,
                    Column& scratch) {
  const Column* const other = other_of(columns, plan);
  if (walks_in_groups(plan, groups)) {
    scratch.resize(values.size());
    const auto at = [&](std::size_t k) { return groups.order[k]; };
    for (std::size_t g = 0; g + 1 < groups.starts.size(); ++g)
      walk(plan, other, groups.starts[g], groups.starts[g + 1], at,
           [&](std::size_t k, std::uint64_t prediction) { return scratch[groups.order[k]] = values[k] + prediction; });
    values.swap(scratch);
    return;
  }
  if (!groups.order.empty()) {
    scratch.resize(values.size());
    for (std::size_t k = 0; k < scratch.size(); ++k) scratch[groups.order[k]] = values[k];
    values.swap(scratch);
  }
  walk(
      plan, other, 0, values.size(), [](std::size_t k) { return k; },
      [&](std::size_t k, std::uint64_t prediction) { return values[k] += prediction; });
}

}  // namespace stashtrace::column_codec
