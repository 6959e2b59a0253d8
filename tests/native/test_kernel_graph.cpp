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
#include "kernels/shared_links.h"
#include "kernels/shared_replay.h"

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

// With a CPU for each node nobody waits for one; with fewer, a host is never done before its CPUs can have worked it off.
void cpus_are_shared() {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    const Drawn given = drawn(random, 1 + random() % 40, random() % 80, false);
    const graph::Order order = graph::order(given.edges(), given.begin, given.certainty);
    const graph::Replay alone = graph::replay(order, given.edges(), given.release, given.duration);
    std::vector<std::int64_t> busy;
    std::vector<std::int32_t> host;
    for (const std::int64_t duration : given.duration) {
      busy.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(duration + 1)));
      host.push_back(static_cast<std::int32_t>(random() % 3) - 1);
    }
    const std::vector<double> plenty = {64, 64}, few = {1, 1.5};
    const auto replay = [&](const std::vector<double>& cpus) {
      return graph::replay_shared(order, given.edges(), given.release, given.duration, {busy, host, cpus, {}});
    };
    const graph::SharedReplay free = replay(plenty), crowded = replay(few);
    CHECK(free.begin_ns == alone.begin_ns);
    std::vector<double> work(2, 0.0), first(2, 1e18), last(2, 0.0);
    for (std::size_t n = 0; n < given.nodes; ++n) {
      CHECK_EQUAL(free.end_ns[n], alone.begin_ns[n] + given.duration[n]);
      CHECK(crowded.end_ns[n] - crowded.begin_ns[n] >= given.duration[n] - 1);
      if (host[n] < 0 || busy[n] == 0) continue;
      const auto h = static_cast<std::size_t>(host[n]);
      work[h] += static_cast<double>(busy[n]);
      first[h] = std::min(first[h], static_cast<double>(crowded.begin_ns[n]));
      last[h] = std::max(last[h], static_cast<double>(crowded.end_ns[n]));
    }
    for (std::size_t h = 0; h < 2; ++h)
      if (work[h] > 0) CHECK(work[h] / few[h] <= last[h] - first[h] + 1);
  }
}

// Two nodes of 10 on one CPU, one of them after a wait of 4: 4 alone, then half each. The first has 6 left and is done at
// 16, the other one has 4 left then and is done at 20.
void two_on_one_cpu() {
  const std::vector<std::int32_t> none, host = {0, 0};
  const std::vector<std::int64_t> no_lag, release = {0, 0}, duration = {10, 14}, busy = {10, 10};
  const std::vector<double> cpus = {1};
  const graph::Edges edges{2, none, none, no_lag};
  const graph::Order order = graph::order(edges, release, {});
  const graph::SharedReplay found = graph::replay_shared(order, edges, release, duration, {busy, host, cpus, {}});
  CHECK((found.end_ns == std::vector<std::int64_t>{16, 20}));
  CHECK((found.binding == std::vector<std::int32_t>{-1, -1}));
}

// Nodes with links of their own are as if there were none. Where they share them, a link is never done before it can have
// moved all, nobody is quicker than alone, and from the times that come of it each length alone follows again.
void links_are_shared() {
  std::mt19937_64 random(13);
  for (int round = 0; round < 200; ++round) {
    const Drawn given = drawn(random, 1 + random() % 40, random() % 80, false);
    const graph::Order order = graph::order(given.edges(), given.begin, given.certainty);
    const graph::Replay alone = graph::replay(order, given.edges(), given.release, given.duration);
    const std::vector<std::int32_t> host(given.nodes, -1);
    const std::vector<double> no_cpus;
    std::vector<std::int32_t> first = {0}, ids, own_first = {0}, own_ids;
    for (std::size_t n = 0; n < given.nodes; ++n) {
      for (std::int32_t link = 0; link < 3; ++link)
        if (random() % 3 == 0) ids.push_back(link);
      first.push_back(static_cast<std::int32_t>(ids.size()));
      own_ids.push_back(static_cast<std::int32_t>(n));
      own_first.push_back(static_cast<std::int32_t>(n) + 1);
    }
    const graph::Links links{3, first, ids}, own{given.nodes, own_first, own_ids};
    const auto replay = [&](const graph::Links& used) {
      return graph::replay_shared(order, given.edges(), given.release, given.duration, {given.duration, host, no_cpus, used});
    };
    const graph::SharedReplay apart = replay(own), crowded = replay(links);
    CHECK(apart.begin_ns == alone.begin_ns);
    std::vector<double> work(3, 0.0), begin(3, 1e18), end(3, 0.0);
    for (std::size_t n = 0; n < given.nodes; ++n) {
      CHECK_EQUAL(apart.end_ns[n], alone.begin_ns[n] + given.duration[n]);
      CHECK(crowded.end_ns[n] - crowded.begin_ns[n] >= given.duration[n] - 1);
      for (const std::int32_t link : links.of(static_cast<std::int32_t>(n))) {
        const auto l = static_cast<std::size_t>(link);
        work[l] += static_cast<double>(given.duration[n]);
        begin[l] = std::min(begin[l], static_cast<double>(crowded.begin_ns[n]));
        end[l] = std::max(end[l], static_cast<double>(crowded.end_ns[n]));
      }
    }
    for (std::size_t l = 0; l < 3; ++l)
      if (work[l] > 0) CHECK(work[l] <= end[l] - begin[l] + 1);
    // Times are whole numbers, so each change of the crowd on the way costs half of one.
    const auto again = graph::alone(links, crowded.begin_ns, crowded.end_ns);
    for (std::size_t n = 0; n < given.nodes; ++n) {
      const auto apart_by = static_cast<std::int64_t>(again[n]) - given.duration[n];
      CHECK(apart_by <= 10 && apart_by >= -10);
    }
  }
}

// Two nodes of 10 over one link, the second one 4 later: 4 alone, then half each until 16, then 4 alone.
void two_on_one_link() {
  const std::vector<std::int32_t> none, host = {-1, -1}, first = {0, 1, 2}, ids = {0, 0};
  const std::vector<std::int64_t> no_lag, release = {0, 4}, duration = {10, 10};
  const graph::Edges edges{2, none, none, no_lag};
  const graph::Order order = graph::order(edges, release, {});
  const graph::Links links{1, first, ids};
  const graph::SharedReplay found = graph::replay_shared(order, edges, release, duration, {duration, host, {}, links});
  CHECK((found.end_ns == std::vector<std::int64_t>{16, 20}));
  CHECK(graph::alone(links, found.begin_ns, found.end_ns) == duration);
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
    const std::vector<std::int32_t> host = {0, 0, -1};
    const std::vector<double> cpus = {0.5};
    const auto shared = graph::replay_shared(order, given.edges(), given.release, given.duration, {given.begin, host, cpus, {}});
    CHECK_EQUAL(shared.end_ns.size(), given.nodes);
    const std::vector<std::int32_t> links_first = {0, 1, 2, 3}, ids = {0, 0, 0};
    const std::vector<std::int32_t> no_host = {-1, -1, -1};
    const graph::Links links{1, links_first, ids};
    const std::vector<std::int64_t> ends = {kHighest, any, kHighest};
    CHECK_EQUAL(graph::alone(links, given.begin, ends).size(), given.nodes);
    const auto linked = graph::replay_shared(order, given.edges(), given.release, given.duration,
                                             {given.begin, no_host, cpus, links});
    CHECK_EQUAL(linked.end_ns.size(), given.nodes);
  }
}

}  // namespace

int main() {
  sources_come_first(false);
  sources_come_first(true);
  slack_is_what_a_node_has_to_spare();
  cpus_are_shared();
  two_on_one_cpu();
  links_are_shared();
  two_on_one_link();
  numbers_of_damaged_files();
  return result();
}
