// Chooses key, predictors and grouping of a segment's columns on a sample of its rows. See column_plan.h.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/column_plan.h"

#include <algorithm>

#include "kernels/bit_blocks.h"

namespace stashtrace::column_codec {
namespace {

constexpr std::size_t kMaxSampleKeys = 48;
constexpr std::size_t kColumnBits = 8 * 12;  // a plan must save more than its header

struct Candidate {
  ColumnPlan plan;
  std::size_t bits = 0;
};

// The candidates of one column, cheapest first.
using Candidates = std::vector<Candidate>;

class Chooser {
 public:
  Chooser(const std::vector<Column>& sample, std::span<const Field> fields) : sample_(sample), fields_(fields) {
    residuals_.resize(sample_.front().size());
  }

  // Costs of every column without a key, then for each key what its groups would save.
  Plan choose() {
    std::vector<Candidates> best(fields_.size());
    for (std::size_t c = 0; c < fields_.size(); ++c) best[c] = ungrouped(static_cast<std::uint8_t>(c));
    std::uint8_t best_key = kNoColumn;
    std::size_t best_bits = total(best);
    std::vector<Candidates> chosen = best;
    for (std::size_t k = 0; k < fields_.size(); ++k) {
      if (!may_be_key(k)) continue;
      Groups groups;
      if (!group_by(sample_[k], groups)) continue;
      std::vector<Candidates> keyed = best;
      for (std::size_t c = 0; c < fields_.size(); ++c)
        if (c != k) add_grouped(static_cast<std::uint8_t>(c), groups, keyed[c]);
      std::erase_if(keyed[k], [](const Candidate& one) { return one.plan.other != kNoColumn; });
      if (const std::size_t bits = total(keyed) + kColumnBits; bits < best_bits) {
        best_bits = bits;
        best_key = static_cast<std::uint8_t>(k);
        chosen = std::move(keyed);
      }
    }
    return ordered(best_key, chosen);
  }

 private:
  bool may_be_key(std::size_t column) const {
    if (fields_[column].size > 2) return false;
    Column values = sample_[column];
    std::sort(values.begin(), values.end());
    const auto distinct = std::unique(values.begin(), values.end()) - values.begin();
    return distinct > 1 && static_cast<std::size_t>(distinct) <= kMaxSampleKeys;
  }

  std::size_t cost(const ColumnPlan& plan, const Groups& groups) {
    subtract_prediction(sample_, plan, groups, residuals_, scratch_);
    const std::span<const std::uint64_t> all(residuals_);
    std::size_t bits = 0;
    for (std::size_t g = 0; g + 1 < groups.starts.size(); ++g) {
      // The start of a group costs the same in a group of a hundred times the size: leave it out of the sample.
      const std::size_t begin = groups.starts[g], rows = groups.starts[g + 1] - begin;
      const std::size_t skip = std::min<std::size_t>(rows, 2);
      bits += bit_blocks::cost_bits(all.subspan(begin + skip, rows - skip));
    }
    return bits;
  }

  void try_plan(const ColumnPlan& plan, const Groups& groups, Candidates& into) {
    into.push_back({plan, cost(plan, groups)});
  }

  Candidates ungrouped(std::uint8_t c) {
    Candidates found;
    Groups whole;
    one_group(residuals_.size(), whole);
    for (const Predictor predictor : {Predictor::zero, Predictor::previous, Predictor::linear, Predictor::context})
      try_plan({c, predictor, Grouping::none, kNoColumn}, whole, found);
    for (std::uint8_t other = 0; fields_[c].size >= 4 && other < fields_.size(); ++other) {
      if (other == c || fields_[other].size < 4) continue;
      try_plan({c, Predictor::advanced, Grouping::none, other}, whole, found);
      try_plan({c, Predictor::same_row, Grouping::none, other}, whole, found);
    }
    sort(found);
    return found;
  }

  void add_grouped(std::uint8_t c, const Groups& groups, Candidates& found) {
    const ColumnPlan best = found.front().plan;
    for (const Predictor predictor : {Predictor::zero, Predictor::previous})
      try_plan({c, predictor, Grouping::packed, kNoColumn}, groups, found);
    if (best.predictor != Predictor::zero && best.predictor != Predictor::previous)
      try_plan({c, best.predictor, Grouping::packed, best.other}, groups, found);
    for (const Predictor predictor : {Predictor::previous, Predictor::linear, Predictor::context})
      try_plan({c, predictor, Grouping::chained, kNoColumn}, groups, found);
    for (std::uint8_t other = 0; fields_[c].size >= 4 && other < fields_.size(); ++other)
      if (other != c && fields_[other].size >= 4)
        try_plan({c, Predictor::advanced, Grouping::chained, other}, groups, found);
    sort(found);
  }

  // Ties go to the plan that is cheapest to undo.
  static void sort(Candidates& found) {
    std::stable_sort(found.begin(), found.end(),
                     [](const Candidate& a, const Candidate& b) { return a.bits < b.bits; });
  }

  static std::size_t total(const std::vector<Candidates>& columns) {
    std::size_t bits = 0;
    for (const Candidates& one : columns) bits += one.front().bits;
    return bits;
  }

  // One plan per column, without cycles of dependencies; columns that gain most from their dependency choose first.
  Plan ordered(std::uint8_t key, const std::vector<Candidates>& columns) const {
    std::vector<std::uint8_t> turn(columns.size());
    std::vector<std::size_t> gain(columns.size());
    for (std::size_t c = 0; c < columns.size(); ++c) {
      turn[c] = static_cast<std::uint8_t>(c);
      const auto alone = std::find_if(columns[c].begin(), columns[c].end(),
                                      [](const Candidate& one) { return one.plan.other == kNoColumn; });
      gain[c] = alone->bits - columns[c].front().bits;
    }
    std::stable_sort(turn.begin(), turn.end(), [&](std::uint8_t a, std::uint8_t b) { return gain[a] > gain[b]; });
    std::vector<ColumnPlan> picked(columns.size());
    for (std::size_t c = 0; c < picked.size(); ++c) picked[c].index = static_cast<std::uint8_t>(c);
    for (const std::uint8_t c : turn) {
      for (const Candidate& one : columns[c]) {
        if (one.plan.other != kNoColumn && depends_on(picked, one.plan.other, c)) continue;
        picked[c] = one.plan;
        break;
      }
    }
    Plan plan{.key = key, .columns = {}};
    std::vector<bool> done(columns.size(), false);
    if (key != kNoColumn) {
      plan.columns.push_back(picked[key]);
      done[key] = true;
    }
    while (plan.columns.size() < columns.size())
      for (std::size_t c = 0; c < columns.size(); ++c)
        if (!done[c] && (picked[c].other == kNoColumn || done[picked[c].other])) {
          plan.columns.push_back(picked[c]);
          done[c] = true;
        }
    return plan;
  }

  static bool depends_on(const std::vector<ColumnPlan>& picked, std::uint8_t from, std::uint8_t target) {
    for (std::uint8_t at = from; at != kNoColumn; at = picked[at].other)
      if (at == target) return true;
    return false;
  }

  const std::vector<Column>& sample_;
  std::span<const Field> fields_;
  Column residuals_;
  Column scratch_;
};

}  // namespace

Plan choose_plan(const std::vector<Column>& sample, std::span<const Field> fields) {
  if (sample.empty() || sample.front().size() < 16) {  // nothing to learn from
    Plan plan;
    for (std::size_t c = 0; c < fields.size(); ++c)
      plan.columns.push_back({static_cast<std::uint8_t>(c), Predictor::previous, Grouping::none, kNoColumn});
    return plan;
  }
  return Chooser(sample, fields).choose();
}

}  // namespace stashtrace::column_codec
