// Orders, replays and slack of random graphs beside their definitions, cycles and any numbers. SPDX-License-Identifier: Apache-2.0
//
// What they mean is tested in tests/analysis/graph/; here the sanitizers watch the arithmetic.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "kernels/graph.h"

namespace {

using namespace stashtrace;

struct Drawn {
  std::vector<std::int32_t> source, target;
  std::vector<std::int64_t> begin, duration, lag, release;
  std::vector<std::int8_t> certainty;
  std::size_t nodes = 0;

  [[nodiscard]] graph::Edges edges() const { return {nodes, source, target, lag}; }
};

Drawn drawn(std::mt19937_64& random, std::size_t nodes, std::size_t count, bool cycles) {
  Drawn out;
  out.nodes = nodes;
  for (std::size_t n = 0; n < nodes; ++n) {
    out.begin.push_back(static_cast<std::int64_t>(10 * n + random() % 10));
    out.duration.push_back(static_cast<std::int64_t>(random() % 40));
    out.release.push_back(static_cast<std::int64_t>(random() % 20));
  }
  for (std::size_t e = 0; e < count; ++e) {
    auto a = static_cast<std::int32_t>(random() % nodes), b = static_cast<std::int32_t>(random() % nodes);
    if (!cycles && a > b) std::swap(a, b);
    if (a == b && !cycles) continue;
    out.source.push_back(a);
    out.target.push_back(b);
    out.lag.push_back(static_cast<std::int64_t>(random() % 5));
    out.certainty.push_back(static_cast<std::int8_t>(-static_cast<int>(random() % 6)));
  }
  return out;
}

void sources_come_first(bool cycles) {
  std::mt19937_64 random(cycles ? 3 : 11);
  for (int round = 0; round < 200; ++round) {
    const Drawn given = drawn(random, 1 + random() % 40, random() % 120, cycles);
    const graph::Order order = graph::order(given.edges(), given.begin, given.certainty);
    std::vector<std::size_t> place(given.nodes, given.nodes);
    for (std::size_t i = 0; i < order.nodes.size(); ++i) place[static_cast<std::size_t>(order.nodes[i])] = i;
    CHECK_EQUAL(order.nodes.size(), given.nodes);
    CHECK(std::count(place.begin(), place.end(), given.nodes) == 0);
    if (!cycles) CHECK(order.cut.empty());
    CHECK_EQUAL(order.edges.size() + order.cut.size(), given.source.size());
    const graph::Replay replayed = graph::replay(order, given.edges(), given.release, given.duration);
    std::vector<std::int64_t> begin = given.release;
    for (const std::int32_t e : order.edges) {
      const auto a = static_cast<std::size_t>(given.source[static_cast<std::size_t>(e)]);
      const auto b = static_cast<std::size_t>(given.target[static_cast<std::size_t>(e)]);
      CHECK(place[a] < place[b]);
      begin[b] = std::max(begin[b], replayed.begin_ns[a] + given.duration[a] + given.lag[static_cast<std::size_t>(e)]);
    }
    CHECK(begin == replayed.begin_ns);
  }
}

// A node that ends later by its slack moves no sink; by one more, it does.
void slack_is_what_a_node_has_to_spare() {
  std::mt19937_64 random(5);
  for (int round = 0; round < 60; ++round) {
    Drawn given = drawn(random, 2 + random() % 15, random() % 40, false);
    const graph::Order order = graph::order(given.edges(), given.begin, given.certainty);
    const graph::Replay replayed = graph::replay(order, given.edges(), given.release, given.duration);
    const std::vector<std::int32_t> sinks = {static_cast<std::int32_t>(given.nodes - 1)};
    const auto found = graph::slack(order, given.edges(), replayed, given.duration, sinks, -1);
    const auto end = [&] {
      return graph::replay(order, given.edges(), given.release, given.duration).begin_ns.back() + given.duration.back();
    };
    const std::int64_t before = end();
    for (std::size_t n = 0; n < given.nodes; ++n) {
      if (found[n] < 0) continue;
      given.duration[n] += found[n];
      CHECK_EQUAL(end(), before);
      given.duration[n] += 1;
      CHECK_EQUAL(end(), before + 1);
      given.duration[n] -= found[n] + 1;
    }
  }
}

void numbers_of_damaged_files() {
  constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kHighest = std::numeric_limits<std::int64_t>::max();
  Drawn given;
  given.nodes = 3;
  given.source = {0, 1};
  given.target = {1, 2};
  given.certainty = {0, 0};
  for (const std::int64_t any : {kLowest, std::int64_t{-1}, std::int64_t{0}, kHighest}) {
    given.begin = given.release = given.duration = {any, kHighest, kLowest};
    given.lag = {any, kHighest};
    const graph::Order order = graph::order(given.edges(), given.begin, given.certainty);
    const graph::Replay replayed = graph::replay(order, given.edges(), given.release, given.duration);
    const std::vector<std::int32_t> sinks = {2};
    CHECK_EQUAL(graph::slack(order, given.edges(), replayed, given.duration, sinks, -1).size(), given.nodes);
  }
}

}  // namespace

int main() {
  sources_come_first(false);
  sources_come_first(true);
  slack_is_what_a_node_has_to_spare();
  numbers_of_damaged_files();
  return result();
}
