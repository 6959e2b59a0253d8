// Work that uses links and is slower while other work uses one of them. SPDX-License-Identifier: Apache-2.0
//
// Used by shared_replay.cpp, and by bind_graph.cpp for replay/. A link serves its users equally: with n users each gets
// 1/n of it. A user of several links at once, as a collective uses a port of each member, is as slow as its most
// crowded link makes it; no other user takes what it leaves of its other links.
//
//   link 0   [ a           ]  a alone, then 1/2 each, then b alone
//                [ b             ]
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/graph.h"

namespace stashtrace::graph {

// The links of each node, each once: `ids[first[n] .. first[n + 1])`, below `count`. Empty `first`: no node has any.
struct Links {
  std::size_t count = 0;
  Ids first;
  Ids ids;

  [[nodiscard]] Ids of(std::int32_t node) const noexcept;
};

// Which nodes use which links now, and how much work each has got: a nanosecond of use alone is one of work.
class LinkUse {
 public:
  LinkUse(const Links& links, std::size_t nodes);

  // A node begins to use its links. `changed` lists the nodes, also this one, that are slower or faster from then on.
  void enter(std::int32_t node, double now);
  // A node is done with its links.
  void leave(std::int32_t node, double now);

  [[nodiscard]] const std::vector<std::int32_t>& changed() const noexcept { return changed_; }
  // For a node that uses its links: work so far, at its last change or its end; and users of its most crowded link.
  [[nodiscard]] double got(std::int32_t node) const noexcept;
  [[nodiscard]] double crowd(std::int32_t node) const noexcept;

 private:
  struct Use {
    double got = 0, at = 0;
    std::size_t crowd = 1;
  };

  Use& use(std::int32_t node) noexcept;
  void settle(std::int32_t node, double now, std::size_t crowd);

  Links links_;
  std::vector<std::int32_t> slot_;                // of each node that uses links
  std::vector<Use> uses_;                         // by slot
  std::vector<std::vector<std::int32_t>> users_;  // of each link, now
  std::vector<std::int32_t> changed_;
};

// How long each node's use of its links, measured from `begin_ns` to `end_ns`, would have taken alone: its length
// for nodes without links, 0 for nodes that end before they begin.
std::vector<Ns> alone(const Links& links, Times begin_ns, Times end_ns);

}  // namespace stashtrace::graph
