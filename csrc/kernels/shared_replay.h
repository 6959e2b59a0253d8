// The replay of a graph whose nodes share the CPUs of their hosts. SPDX-License-Identifier: Apache-2.0
//
// Used by bind_graph.cpp for replay/. A node first waits for what is no work of a CPU, then works. While more nodes of a
// host work than it has CPUs, each of them gets the same part of one: processor sharing, as a fair scheduler does it.
//
//   [ waits        ][ works, cpus / n as fast while n > cpus work ]
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/graph.h"

namespace stashtrace::graph {

struct Sharing {
  Times busy_ns;                      // of each node, the part of its duration that is work of a CPU
  Ids host;                           // of each node, an index in `cpus`; -1: nobody shares its CPU
  std::span<const double> cpus;       // of each host, above 0
};

struct SharedReplay {
  std::vector<Ns> begin_ns;
  std::vector<Ns> end_ns;
  std::vector<std::int32_t> binding;  // as in Replay
};

// `order` is that of these edges. One event for each begin, wait and end: O(nodes log nodes).
SharedReplay replay_shared(const Order& order, const Edges& edges, Times release_ns, Times duration_ns, const Sharing& sharing);

}  // namespace stashtrace::graph
