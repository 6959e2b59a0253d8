// Sweeps over sorted interval columns. See intervals.h for the contract.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/intervals.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace stashtrace::intervals {

namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

bool is_sorted_column(Column column) { return std::is_sorted(column.begin(), column.end()); }

}  // namespace

bool is_sorted_and_disjoint(Column begin, Column end) {
  std::int64_t last = std::numeric_limits<std::int64_t>::min();
  bool fine = true;
  for (std::size_t i = 0; i < begin.size(); ++i) {
    fine &= (begin[i] >= last) & (end[i] > begin[i]);
    last = end[i];
  }
  return fine;
}

Intervals unite(Column begin, Column end) {
  Intervals out;
  if (is_sorted_column(begin)) {
    out.begin.reserve(begin.size());
    out.end.reserve(begin.size());
    for (std::size_t i = 0; i < begin.size(); ++i)
      if (end[i] > begin[i]) out.push_merged(begin[i], end[i]);
    return out;
  }
  std::vector<std::size_t> order(begin.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return begin[a] < begin[b]; });
  for (std::size_t i : order)
    if (end[i] > begin[i]) out.push_merged(begin[i], end[i]);
  return out;
}

Set::Set(Column begin, Column end) : begin_(begin), end_(end) {
  if (is_sorted_and_disjoint(begin, end)) return;
  own_ = unite(begin, end);
  begin_ = own_.begin;
  end_ = own_.end;
}

Intervals intersect(const Set& a, const Set& b) {
  Intervals out;
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    const std::int64_t from = std::max(a.begin(i), b.begin(j));
    const std::int64_t to = std::min(a.end(i), b.end(j));
    if (from < to) out.push_merged(from, to);
    if (a.end(i) < b.end(j)) ++i;
    else ++j;
  }
  return out;
}

Intervals subtract(const Set& a, const Set& b) {
  Intervals out;
  std::size_t j = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::int64_t from = a.begin(i);
    const std::int64_t to = a.end(i);
    while (j < b.size() && b.end(j) <= from) ++j;
    // b[j] may reach into the next interval of a, so another index walks on.
    for (std::size_t k = j; k < b.size() && b.begin(k) < to; ++k) {
      if (b.begin(k) > from) out.push_merged(from, b.begin(k));
      from = std::max(from, b.end(k));
      if (b.end(k) <= to) j = k;
    }
    if (from < to) out.push_merged(from, to);
  }
  return out;
}

Intervals complement(const Set& a, std::int64_t from, std::int64_t to) {
  Intervals out;
  for (std::size_t i = 0; i < a.size() && from < to; ++i) {
    if (a.end(i) <= from) continue;
    if (a.begin(i) >= to) break;
    if (a.begin(i) > from) out.push(from, a.begin(i));
    from = a.end(i);
  }
  if (from < to) out.push(from, to);
  return out;
}

std::vector<std::int64_t> coverage(const Set& a, Column query_begin, Column query_end) {
  // before(t) = length of `a` before t. Ascending queries move one index, others search.
  std::vector<std::int64_t> sums(a.size() + 1, 0);
  for (std::size_t i = 0; i < a.size(); ++i) sums[i + 1] = sums[i] + (a.end(i) - a.begin(i));
  const auto measure = [&](Column points, std::vector<std::int64_t>& out, std::int64_t sign) {
    std::size_t i = 0;  // intervals [0, i) begin at or before the point
    std::int64_t last = std::numeric_limits<std::int64_t>::min();
    for (std::size_t q = 0; q < points.size(); ++q) {
      const std::int64_t point = points[q];
      if (point < last) {
        std::size_t low = 0, high = i;
        while (low < high) {
          const std::size_t middle = (low + high) / 2;
          if (a.begin(middle) <= point) low = middle + 1;
          else high = middle;
        }
        i = low;
      }
      while (i < a.size() && a.begin(i) <= point) ++i;
      last = point;
      const std::int64_t inside = i == 0 ? 0 : sums[i] - std::max<std::int64_t>(0, a.end(i - 1) - point);
      out[q] += sign * inside;
    }
  };
  std::vector<std::int64_t> out(query_begin.size(), 0);
  measure(query_end, out, 1);
  measure(query_begin, out, -1);
  for (std::size_t q = 0; q < out.size(); ++q)
    if (query_end[q] <= query_begin[q]) out[q] = 0;
  return out;
}

std::vector<std::int64_t> locate(Column begin, Column end, Column points) {
  std::vector<std::int64_t> out(points.size());
  std::size_t i = 0;
  std::int64_t last = std::numeric_limits<std::int64_t>::min();
  for (std::size_t q = 0; q < points.size(); ++q) {
    const std::int64_t point = points[q];
    if (point < last)
      i = static_cast<std::size_t>(
          std::upper_bound(begin.begin(), begin.begin() + static_cast<std::ptrdiff_t>(i), point) - begin.begin());
    while (i < begin.size() && begin[i] <= point) ++i;
    last = point;
    out[q] = i > 0 && point < end[i - 1] ? static_cast<std::int64_t>(i - 1) : -1;
  }
  return out;
}

Pieces join(Column begin_a, Column end_a, Column begin_b, Column end_b) {
  Pieces out;
  std::size_t i = 0, j = 0;
  while (i < begin_a.size() && j < begin_b.size()) {
    const std::int64_t from = std::max(begin_a[i], begin_b[j]);
    const std::int64_t to = std::min(end_a[i], end_b[j]);
    if (from < to) {
      out.push(from, to);
      out.left.push_back(static_cast<std::int64_t>(i));
      out.right.push_back(static_cast<std::int64_t>(j));
    }
    if (end_a[i] < end_b[j]) ++i;
    else ++j;
  }
  return out;
}

Painted paint(const std::vector<Set>& layers) {
  // A cursor holds the first interval of its layer that ends after `now`; an exhausted one never begins.
  struct Cursor {
    std::int64_t begin;
    std::int64_t end;
    std::size_t next;
    const Set* layer;
    std::int64_t number;

    bool advance(std::int64_t now) {
      while (end <= now) {
        if (next == layer->size()) return false;
        begin = layer->begin(next);
        end = layer->end(next);
        ++next;
      }
      return true;
    }
  };
  constexpr std::int64_t kStart = std::numeric_limits<std::int64_t>::min();
  std::vector<Cursor> cursors;
  std::size_t total = 0;
  for (std::size_t k = 0; k < layers.size(); ++k) {
    total += layers[k].size();
    if (layers[k].size() > 0) cursors.push_back({kStart, kStart, 0, &layers[k], static_cast<std::int64_t>(k)});
  }
  Painted out;
  out.begin.reserve(total);  // more pieces than this only where layers cut each other
  out.end.reserve(total);
  out.layer.reserve(total);
  std::int64_t now = kStart;
  for (;;) {
    // The first layer that covers `now` holds until it ends or a layer above it begins.
    std::int64_t ruler = -1;
    std::int64_t until = kNever;
    for (std::size_t k = 0; k < cursors.size();) {
      Cursor& cursor = cursors[k];
      if (!cursor.advance(now)) {
        cursors.erase(cursors.begin() + static_cast<std::ptrdiff_t>(k));
        continue;
      }
      if (cursor.begin <= now) {
        ruler = cursor.number;
        until = std::min(until, cursor.end);
        break;
      }
      until = std::min(until, cursor.begin);
      ++k;
    }
    if (until == kNever) return out;
    if (ruler >= 0) {
      if (!out.layer.empty() && out.layer.back() == ruler && out.end.back() == now) {
        out.end.back() = until;
      } else {
        out.push(now, until);
        out.layer.push_back(ruler);
      }
    }
    now = until;
  }
}

std::vector<std::int64_t> attribute(const std::vector<Set>& layers, Column window_begin, Column window_end) {
  const std::size_t columns = layers.size() + 1;
  std::vector<std::int64_t> out(window_begin.size() * columns, 0);
  const Painted painted = paint(layers);
  std::size_t i = 0;
  for (std::size_t w = 0; w < window_begin.size(); ++w) {
    std::int64_t* row = out.data() + w * columns;
    std::int64_t rest = std::max<std::int64_t>(0, window_end[w] - window_begin[w]);
    while (i < painted.size() && painted.end[i] <= window_begin[w]) ++i;
    for (std::size_t k = i; k < painted.size() && painted.begin[k] < window_end[w]; ++k) {
      const std::int64_t length = std::min(painted.end[k], window_end[w]) - std::max(painted.begin[k], window_begin[w]);
      row[painted.layer[k]] += length;
      rest -= length;
    }
    row[columns - 1] = rest;
  }
  return out;
}

}  // namespace stashtrace::intervals
