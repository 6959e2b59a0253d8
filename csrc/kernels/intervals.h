// Set algebra on time: sorted columns of half-open intervals [begin, end), int64 nanoseconds.
// SPDX-License-Identifier: Apache-2.0
//
// Called by bindings/bind_intervals.cpp with the GIL released, for analysis/. Pure functions: no I/O, no state,
// any thread. A *set* is sorted, disjoint, and has no empty interval; Set makes one of any columns, and copies
// them only if they are not a set already. All functions are linear in their input (after that).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stashtrace::intervals {

using Column = std::span<const std::int64_t>;

struct Intervals {
  std::vector<std::int64_t> begin;
  std::vector<std::int64_t> end;

  void push(std::int64_t from, std::int64_t to) {
    begin.push_back(from);
    end.push_back(to);
  }
  // Appends [from, to); grows the last interval when they touch. `from` never lies before the last begin.
  void push_merged(std::int64_t from, std::int64_t to) {
    if (!end.empty() && from <= end.back()) {
      if (to > end.back()) end.back() = to;
    } else {
      push(from, to);
    }
  }
  [[nodiscard]] std::size_t size() const { return begin.size(); }
};

// View of a set: of the given columns if they are sorted and disjoint, else of a united copy.
class Set {
 public:
  Set(Column begin, Column end);
  Set(const Set&) = delete;
  Set& operator=(const Set&) = delete;
  Set(Set&&) = default;  // a moved vector keeps its storage, so the views stay valid
  Set& operator=(Set&&) = default;

  [[nodiscard]] std::int64_t begin(std::size_t i) const { return begin_[i]; }
  [[nodiscard]] std::int64_t end(std::size_t i) const { return end_[i]; }
  [[nodiscard]] std::size_t size() const { return begin_.size(); }

 private:
  Intervals own_;
  Column begin_;
  Column end_;
};

// One piece per pair of overlapping intervals, with the row of each side.
struct Pieces : Intervals {
  std::vector<std::int64_t> left;
  std::vector<std::int64_t> right;
};

// The timeline cut into pieces, each with the first layer that covers it. Gaps between the layers are left out.
struct Painted : Intervals {
  std::vector<std::int64_t> layer;
};

bool is_sorted_and_disjoint(Column begin, Column end);

Intervals unite(Column begin, Column end);
Intervals intersect(const Set& a, const Set& b);
Intervals subtract(const Set& a, const Set& b);
Intervals complement(const Set& a, std::int64_t from, std::int64_t to);

// Returns the length of `a` inside each query window; windows may overlap and come in any order.
std::vector<std::int64_t> coverage(const Set& a, Column query_begin, Column query_end);

// Returns the row of the interval that holds each point, or -1; if both sides ascend, they are read in one pass.
std::vector<std::int64_t> locate(Column begin, Column end, Column points);

// Both sides must be sorted and disjoint; touching intervals stay apart.
Pieces join(Column begin_a, Column end_a, Column begin_b, Column end_b);

Painted paint(const std::vector<Set>& layers);

// Returns windows x (layers + 1), row major: ns of each window that went to each layer, the rest in the last column.
// Windows must be sorted and disjoint.
std::vector<std::int64_t> attribute(const std::vector<Set>& layers, Column window_begin, Column window_end);

}  // namespace stashtrace::intervals
