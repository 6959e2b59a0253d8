// The replay of a graph whose nodes share CPUs and links. SPDX-License-Identifier: Apache-2.0
//
// Used by bind_graph.cpp for replay/. A node first waits for what it does not share, then works on a CPU of its host or
// over its links. While more nodes of a host work than it has CPUs, each of them gets the same share of one: processor
// sharing, as in a fair scheduler. Links are shared as in shared_links.h.
//
//   [ waits        ][ works, cpus / n as fast while n > cpus work ]
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/graph.h"
#include "kernels/shared_links.h"

namespace stashtrace::graph {

struct Sharing {
  Times busy_ns;                 // of each node, the part of its duration that is work on a CPU or over its links
  Ids host;                      // of each node, an index in `cpus`; -1: it does not share its CPU
  std::span<const double> cpus;  // of each host, above 0
  Links links;                   // of nodes without a host
};

struct SharedReplay {
  std::vector<Ns> begin_ns;
  std::vector<Ns> end_ns;
  std::vector<std::int32_t> binding;  // as in Replay
};

// `order` must be that of these edges. One event for each begin, wait and end: O(nodes log nodes); for
// links, as many events as they have users at the same time.
SharedReplay replay_shared(const Order& order, const Edges& edges, Times release_ns, Times duration_ns,
                           const Sharing& sharing);

}  // namespace stashtrace::graph
