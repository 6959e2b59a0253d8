// Implementation of shared_replay.h. SPDX-License-Identifier: Apache-2.0
#include "kernels/shared_replay.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

namespace stashtrace::graph {
namespace {

// `done`: the next node of a host has worked enough; `moved`: a node that uses links has.
enum class What : std::uint8_t { begin, work, end, done, moved };

struct Event {
  double at;
  What what;
  std::int32_t id;        // node, or host
  std::uint64_t version;  // of a host, or of a node that uses links: a later version makes this event void

  bool operator>(const Event& other) const noexcept {
    return std::tie(at, what, id, version) > std::tie(other.at, other.what, other.id, other.version);
  }
};

// Work that each of a host's nodes has got so far, the same for all: one that begins at `got` ends at `got` + its work.
struct Host {
  using Due = std::pair<double, std::int32_t>;

  double cpus = 1, got = 0, at = 0;
  std::uint64_t version = 0;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> working;

  double rate() const noexcept {
    const auto count = static_cast<double>(working.size());
    return count > cpus ? cpus / count : 1.0;
  }
  void advance(double now) noexcept {
    if (!working.empty()) got += (now - at) * rate();
    at = now;
  }
};

std::size_t at(std::int32_t id) noexcept { return static_cast<std::size_t>(id); }

class Simulation {
 public:
  Simulation(const Order& order, const Edges& edges, Times release, Times duration, const Sharing& sharing)
      : edges_(edges),
        duration_(duration),
        sharing_(sharing),
        hosts_(sharing.cpus.size()),
        use_(sharing.links, edges.nodes),
        versions_(sharing.links.first.empty() ? 0 : edges.nodes, 0),
        missing_(edges.nodes),
        first_out_(edges.nodes + 1, 0),
        ready_(edges.nodes) {
    found_.begin_ns.assign(edges.nodes, 0);
    found_.end_ns.assign(edges.nodes, 0);
    found_.binding.assign(edges.nodes, -1);
    for (std::size_t h = 0; h < hosts_.size(); ++h) hosts_[h].cpus = sharing.cpus[h];
    for (const std::int32_t e : order.edges) ++first_out_[at(edges.source[at(e)]) + 1];
    for (std::size_t n = 0; n < edges.nodes; ++n) first_out_[n + 1] += first_out_[n];
    out_.resize(order.edges.size());
    std::vector<std::int32_t> next(first_out_.begin(), first_out_.end() - 1);
    for (const std::int32_t e : order.edges) out_[at(next[at(edges.source[at(e)])]++)] = e;
    for (std::size_t n = 0; n < edges.nodes; ++n) {
      missing_[n] = order.first[n + 1] - order.first[n];
      ready_[n] = static_cast<double>(release[n]);
      if (missing_[n] == 0) events_.push({ready_[n], What::begin, static_cast<std::int32_t>(n), 0});
    }
  }

  SharedReplay run() {
    double now = -INFINITY;
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now = std::max(now, event.at);  // a negative lag may let a node begin earlier than it is known
      if (event.what == What::begin) {
        begin(event.id, event.at);
      } else if (event.what == What::work && sharing_.host[at(event.id)] < 0) {
        use_.enter(event.id, now);
        reschedule(now);
      } else if (event.what == What::moved) {
        if (versions_[at(event.id)] != event.version) continue;
        use_.leave(event.id, now);
        end(event.id, now);
        reschedule(now);
      } else if (event.what == What::work) {
        Host& host = hosts_[at(sharing_.host[at(event.id)])];
        host.advance(now);
        host.working.emplace(host.got + busy(event.id), event.id);
        schedule(sharing_.host[at(event.id)], now);
      } else if (event.what == What::end) {
        end(event.id, event.at);
      } else if (Host& host = hosts_[at(event.id)]; host.version == event.version) {
        host.advance(now);
        const auto [due, node] = host.working.top();
        host.working.pop();
        host.got = std::max(host.got, due);
        end(node, now);
        schedule(event.id, now);
      }
    }
    return std::move(found_);
  }

 private:
  double busy(std::int32_t node) const noexcept {
    return static_cast<double>(std::clamp<Ns>(sharing_.busy_ns[at(node)], 0, std::max<Ns>(duration_[at(node)], 0)));
  }

  void begin(std::int32_t node, double moment) {
    found_.begin_ns[at(node)] = std::llround(moment);
    const auto length = static_cast<double>(duration_[at(node)]);
    const bool shares = sharing_.host[at(node)] >= 0 || !sharing_.links.of(node).empty();
    if (!shares || busy(node) <= 0) events_.push({moment + length, What::end, node, 0});
    else events_.push({moment + length - busy(node), What::work, node, 0});
  }

  void end(std::int32_t node, double moment) {
    found_.end_ns[at(node)] = std::llround(moment);
    for (std::int32_t i = first_out_[at(node)]; i < first_out_[at(node) + 1]; ++i) {
      const std::int32_t e = out_[at(i)], target = edges_.target[at(e)];
      const double allowed = moment + static_cast<double>(edges_.lag_ns[at(e)]);
      if (found_.binding[at(target)] < 0 ? allowed >= ready_[at(target)] : allowed > ready_[at(target)]) {
        ready_[at(target)] = allowed;
        found_.binding[at(target)] = e;
      }
      if (--missing_[at(target)] == 0) events_.push({ready_[at(target)], What::begin, target, 0});
    }
  }

  void schedule(std::int32_t id, double now) {
    Host& host = hosts_[at(id)];
    ++host.version;
    if (host.working.empty()) return;
    const double left = std::max(host.working.top().first - host.got, 0.0);
    events_.push({now + left / host.rate(), What::done, id, host.version});
  }

  // For nodes whose links have become more or less crowded: computes when they are done now.
  void reschedule(double now) {
    for (const std::int32_t node : use_.changed()) {
      const double left = std::max(busy(node) - use_.got(node), 0.0);
      events_.push({now + left * use_.crowd(node), What::moved, node, ++versions_[at(node)]});
    }
  }

  const Edges& edges_;
  Times duration_;
  const Sharing& sharing_;
  std::vector<Host> hosts_;
  LinkUse use_;
  std::vector<std::uint64_t> versions_;  // of nodes that use links
  std::vector<std::int32_t> missing_, first_out_, out_;
  std::vector<double> ready_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  SharedReplay found_;
};

}  // namespace

SharedReplay replay_shared(const Order& order, const Edges& edges, Times release_ns, Times duration_ns,
                           const Sharing& sharing) {
  return Simulation(order, edges, release_ns, duration_ns, sharing).run();
}

}  // namespace stashtrace::graph
