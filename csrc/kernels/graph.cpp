// Implementation of graph.h. SPDX-License-Identifier: Apache-2.0
#include "kernels/graph.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

namespace stashtrace::graph {
namespace {

// Sums and differences of damaged times wrap instead of being undefined.
Ns plus(Ns a, Ns b) noexcept { return static_cast<Ns>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b)); }
Ns minus(Ns a, Ns b) noexcept { return static_cast<Ns>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b)); }

std::size_t at(std::int32_t id) noexcept { return static_cast<std::size_t>(id); }

// Edges by one of their ends: `first[n] .. first[n + 1]` of `rows` are those of node n, in their input order.
struct Grouped {
  std::vector<std::int32_t> first, rows;

  Grouped(std::size_t nodes, Ids ends, const std::vector<bool>* skipped = nullptr) : first(nodes + 1, 0) {
    for (std::size_t e = 0; e < ends.size(); ++e)
      if (skipped == nullptr || !(*skipped)[e]) ++first[at(ends[e]) + 1];
    for (std::size_t n = 0; n < nodes; ++n) first[n + 1] += first[n];
    rows.resize(at(first[nodes]));
    std::vector<std::int32_t> next(first.begin(), first.end() - 1);
    for (std::size_t e = 0; e < ends.size(); ++e)
      if (skipped == nullptr || !(*skipped)[e]) rows[at(next[at(ends[e])]++)] = static_cast<std::int32_t>(e);
  }
};

}  // namespace

Order order(const Edges& edges, Times begin_ns, std::span<const std::int8_t> certainty) {
  using Ready = std::pair<Ns, std::int32_t>;
  const Grouped out(edges.nodes, edges.source);
  std::vector<std::int32_t> missing(edges.nodes, 0);
  for (const std::int32_t target : edges.target) ++missing[at(target)];
  std::vector<bool> skipped(edges.source.size(), false), done(edges.nodes, false);
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
  for (std::size_t n = 0; n < edges.nodes; ++n)
    if (missing[n] == 0) ready.emplace(begin_ns[n], static_cast<std::int32_t>(n));

  // Made when the first cycle is found: nodes by begin, and the edges into each.
  std::vector<Ready> waiting;
  std::size_t next_waiting = 0;
  std::vector<std::int32_t> in_first, in_rows;

  Order found;
  found.nodes.reserve(edges.nodes);
  while (found.nodes.size() < edges.nodes) {
    if (ready.empty()) {
      if (waiting.empty()) {
        const Grouped in(edges.nodes, edges.target);
        in_first = in.first;
        in_rows = in.rows;
        for (std::size_t n = 0; n < edges.nodes; ++n) waiting.emplace_back(begin_ns[n], static_cast<std::int32_t>(n));
        std::sort(waiting.begin(), waiting.end());
      }
      while (done[at(waiting[next_waiting].second)]) ++next_waiting;
      const std::size_t node = at(waiting[next_waiting].second);
      std::int32_t least = -1;
      for (std::int32_t i = in_first[node]; i < in_first[node + 1]; ++i) {
        const std::int32_t e = in_rows[at(i)];
        if (skipped[at(e)] || done[at(edges.source[at(e)])]) continue;
        if (least < 0 || certainty[at(e)] < certainty[at(least)]) least = e;
      }
      skipped[at(least)] = true;
      found.cut.push_back(least);
      if (--missing[node] == 0) ready.emplace(begin_ns[node], static_cast<std::int32_t>(node));
      continue;
    }
    const std::int32_t node = ready.top().second;
    ready.pop();
    done[at(node)] = true;
    found.nodes.push_back(node);
    for (std::int32_t i = out.first[at(node)]; i < out.first[at(node) + 1]; ++i) {
      const std::int32_t e = out.rows[at(i)], target = edges.target[at(e)];
      if (!skipped[at(e)] && --missing[at(target)] == 0) ready.emplace(begin_ns[at(target)], target);
    }
  }
  Grouped in(edges.nodes, edges.target, &skipped);
  found.first = std::move(in.first);
  found.edges = std::move(in.rows);
  return found;
}

Replay replay(const Order& order, const Edges& edges, Times release_ns, Times duration_ns) {
  Replay found{std::vector<Ns>(edges.nodes), std::vector<std::int32_t>(edges.nodes, -1)};
  for (const std::int32_t node : order.nodes) {
    Ns begin = release_ns[at(node)];
    std::int32_t binding = -1;
    for (std::int32_t i = order.first[at(node)]; i < order.first[at(node) + 1]; ++i) {
      const std::int32_t e = order.edges[at(i)];
      const std::size_t source = at(edges.source[at(e)]);
      const Ns allowed = plus(plus(found.begin_ns[source], duration_ns[source]), edges.lag_ns[at(e)]);
      if (binding < 0 ? allowed >= begin : allowed > begin) {
        begin = allowed;
        binding = e;
      }
    }
    found.begin_ns[at(node)] = begin;
    found.binding[at(node)] = binding;
  }
  return found;
}

std::vector<Ns> slack(const Order& order, const Edges& edges, const Replay& replayed, Times duration_ns, Ids sinks,
                      Ns none) {
  std::vector<Ns> found(edges.nodes, none);
  for (const std::int32_t sink : sinks) found[at(sink)] = 0;
  for (auto node = order.nodes.rbegin(); node != order.nodes.rend(); ++node) {
    if (found[at(*node)] == none) continue;
    for (std::int32_t i = order.first[at(*node)]; i < order.first[at(*node) + 1]; ++i) {
      const std::int32_t e = order.edges[at(i)];
      const std::size_t source = at(edges.source[at(e)]);
      const Ns allowed = plus(plus(replayed.begin_ns[source], duration_ns[source]), edges.lag_ns[at(e)]);
      const Ns spare = plus(found[at(*node)], minus(replayed.begin_ns[at(*node)], allowed));
      if (found[source] == none || spare < found[source]) found[source] = spare;
    }
  }
  return found;
}

}  // namespace stashtrace::graph
