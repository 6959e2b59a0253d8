// A graph of work: an order without cycles, the replay along it, and how late each node may end. SPDX-License-Identifier: Apache-2.0
//
// Used by bind_graph.cpp for analysis/graph/ and replay/. A node begins when its release has come and each of its edges
// is done: the end of the edge's source plus the edge's lag. Times are nanoseconds; sums of damaged times wrap.
//
//   [ source ]---lag--->[ target          ]        begin = max(release, source's end + lag, ...)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stashtrace::graph {

using Ns = std::int64_t;
using Ids = std::span<const std::int32_t>;
using Times = std::span<const Ns>;

// Edges in any order; columns of equal length, ids below `nodes`.
struct Edges {
  std::size_t nodes = 0;
  Ids source;
  Ids target;
  Times lag_ns;
};

struct Order {
  std::vector<std::int32_t> nodes;  // each node once, sources before targets
  std::vector<std::int32_t> cut;    // edges in a cycle that were left out
  std::vector<std::int32_t> first;  // nodes + 1: where the kept edges of each target begin in `edges`
  std::vector<std::int32_t> edges;  // kept edges by target
};

// Of the nodes that may come next, takes the one with the smallest begin. If only cycles are left, drops the least
// certain edge into the remaining node with the smallest begin; of equally certain ones, the first.
Order order(const Edges& edges, Times begin_ns, std::span<const std::int8_t> certainty);

struct Replay {
  std::vector<Ns> begin_ns;
  std::vector<std::int32_t> binding;  // the edge that was done last before each node began, -1: its release was last
};

// `order` must be that of these edges.
Replay replay(const Order& order, const Edges& edges, Times release_ns, Times duration_ns);

// Returns by how much each node can end later before one of `sinks` ends later than it did: latest end minus end. Nodes
// that no sink waits for have the slack `none`.
std::vector<Ns> slack(const Order& order, const Edges& edges, const Replay& replayed, Times duration_ns, Ids sinks,
                      Ns none);

}  // namespace stashtrace::graph
