// Implementation of shared_links.h. SPDX-License-Identifier: Apache-2.0
#include "kernels/shared_links.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

namespace stashtrace::graph {
namespace {

std::size_t at(std::int32_t id) noexcept { return static_cast<std::size_t>(id); }

// Time from one moment to another that is not before it, also for damaged times: at most the longest Ns.
Ns between(Ns from, Ns to) noexcept {
  const std::uint64_t length = static_cast<std::uint64_t>(to) - static_cast<std::uint64_t>(from);
  return static_cast<Ns>(std::min(length, static_cast<std::uint64_t>(std::numeric_limits<Ns>::max())));
}

}  // namespace

Ids Links::of(std::int32_t node) const noexcept {
  if (first.empty()) return {};
  const std::size_t begin = at(first[at(node)]), end = at(first[at(node) + 1]);
  return ids.subspan(begin, end - begin);
}

LinkUse::LinkUse(const Links& links, std::size_t nodes) : links_(links), users_(links.count) {
  if (links.first.empty()) return;
  slot_.assign(nodes, -1);
  for (std::size_t n = 0; n < nodes; ++n) {
    if (links.first[n] == links.first[n + 1]) continue;
    slot_[n] = static_cast<std::int32_t>(uses_.size());
    uses_.emplace_back();
  }
}

LinkUse::Use& LinkUse::use(std::int32_t node) noexcept { return uses_[at(slot_[at(node)])]; }

double LinkUse::got(std::int32_t node) const noexcept { return uses_[at(slot_[at(node)])].got; }

double LinkUse::crowd(std::int32_t node) const noexcept {
  return static_cast<double>(uses_[at(slot_[at(node)])].crowd);
}

void LinkUse::settle(std::int32_t node, double now, std::size_t crowd) {
  Use& one = use(node);
  one.got += (now - one.at) / static_cast<double>(one.crowd);
  one.at = now;
  one.crowd = crowd;
  changed_.push_back(node);
}

void LinkUse::enter(std::int32_t node, double now) {
  changed_.clear();
  std::size_t crowd = 1;
  for (const std::int32_t link : links_.of(node)) {
    std::vector<std::int32_t>& users = users_[at(link)];
    const std::size_t count = users.size() + 1;
    crowd = std::max(crowd, count);
    for (const std::int32_t other : users)
      if (use(other).crowd < count) settle(other, now, count);
    users.push_back(node);
  }
  use(node) = {0, now, crowd};
  changed_.push_back(node);
}

void LinkUse::leave(std::int32_t node, double now) {
  changed_.clear();
  settle(node, now, 1);
  changed_.clear();
  for (const std::int32_t link : links_.of(node)) {
    std::vector<std::int32_t>& users = users_[at(link)];
    users.erase(std::find(users.begin(), users.end(), node));
  }
  for (const std::int32_t link : links_.of(node)) {
    const std::size_t before = users_[at(link)].size() + 1;
    for (const std::int32_t other : users_[at(link)]) {
      if (use(other).crowd != before) continue;  // another of its links is more crowded, or it was counted already
      std::size_t crowd = 1;
      for (const std::int32_t own : links_.of(other)) crowd = std::max(crowd, users_[at(own)].size());
      if (crowd != before) settle(other, now, crowd);
    }
  }
}

std::vector<Ns> alone(const Links& links, Times begin_ns, Times end_ns) {
  const std::size_t nodes = begin_ns.size();
  std::vector<Ns> found(nodes);
  std::vector<std::tuple<Ns, bool, std::int32_t>> moments;  // ends come first: they make room before others begin
  for (std::size_t n = 0; n < nodes; ++n) {
    const auto node = static_cast<std::int32_t>(n);
    found[n] = end_ns[n] > begin_ns[n] ? between(begin_ns[n], end_ns[n]) : 0;
    if (found[n] == 0 || links.of(node).empty()) continue;
    moments.emplace_back(begin_ns[n], true, node);
    moments.emplace_back(end_ns[n], false, node);
  }
  std::sort(moments.begin(), moments.end());
  LinkUse use(links, nodes);
  const Ns origin = moments.empty() ? 0 : std::get<0>(moments.front());  // doubles hold differences, not time stamps
  for (const auto& [moment, begins, node] : moments) {
    const auto now = static_cast<double>(between(origin, moment));
    if (begins) {
      use.enter(node, now);
    } else {
      use.leave(node, now);
      found[at(node)] = std::min<Ns>(std::llround(std::min(use.got(node), 0x1p62)), found[at(node)]);
    }
  }
  return found;
}

}  // namespace stashtrace::graph
