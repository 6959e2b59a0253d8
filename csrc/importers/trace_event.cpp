// One event: its members are located, not read; once no rule can match, the rest is skipped.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "importers/trace_events.h"

namespace stashtrace::importers {

namespace {

// Text of a string, in `scratch` if it has escapes; empty for anything else.
std::string_view inside(std::string_view value, std::string& scratch) {
  if (value.size() < 2 || value.front() != '"') return {};
  const std::string_view raw = value.substr(1, value.size() - 2);
  if (raw.find('\\') == std::string_view::npos) return raw;
  scratch = unescape(raw);
  return scratch;
}

}  // namespace

// From the opening bracket to after the closing one. Stores nothing unless the event is complete.
TraceEvents::Parsed TraceEvents::parse_event(Position& at, Position end) {
  event_ = {};
  std::fill(args_.begin(), args_.end(), std::string_view());
  Position next = at + 1;
  while (true) {
    std::string_view key;
    Position value = nullptr;
    const Parsed member = parse_member(next, end, key, value);
    if (member != Parsed::kDone) return member;
    if (value == nullptr) break;  // the closing bracket
    if (key == "args" && *value == '{') {
      const Parsed parsed = parse_args(next, end);
      if (parsed != Parsed::kDone) return parsed;
    } else {
      next = skip_value(value, end);
      if (next == nullptr) return Parsed::kMore;
      if (next == value) return Parsed::kBad;
      note(key, {value, static_cast<std::size_t>(next - value)});
    }
    if (event_.decided && event_.table < 0) {
      next = skip_nested(next, end, 1);
      if (next == nullptr) return Parsed::kMore;
      break;
    }
  }
  at = next;
  return Parsed::kDone;
}

// Key of the next member and where its value begins; no value if the object ends here.
TraceEvents::Parsed TraceEvents::parse_member(Position& at, Position end, std::string_view& key, Position& value) {
  bool comma = *(at - 1) == '{';
  for (at = skip_space(at, end); at < end && *at == ','; at = skip_space(at + 1, end)) comma = true;
  if (at == end) return Parsed::kMore;
  if (*at == '}') {
    ++at;
    value = nullptr;
    return Parsed::kDone;
  }
  if (*at != '"' || !comma) return Parsed::kBad;
  const Position start = at + 1;
  at = skip_string(start, end);
  if (at == nullptr) return Parsed::kMore;
  key = {start, static_cast<std::size_t>(at - start - 1)};
  if (key.find('\\') != std::string_view::npos) {
    key_ = unescape(key);
    key = key_;
  }
  at = skip_space(at, end);
  if (at == end) return Parsed::kMore;
  if (*at != ':') return Parsed::kBad;
  at = skip_space(at + 1, end);
  if (at == end) return Parsed::kMore;
  value = at;
  return Parsed::kDone;
}

TraceEvents::Parsed TraceEvents::parse_args(Position& at, Position end) {
  ++at;
  while (true) {
    std::string_view key;
    Position value = nullptr;
    const Parsed member = parse_member(at, end, key, value);
    if (member != Parsed::kDone) return member;
    if (value == nullptr) return Parsed::kDone;
    at = skip_value(value, end);
    if (at == nullptr) return Parsed::kMore;
    if (at == value) return Parsed::kBad;
    const int slot = slot_of(key);
    if (slot >= 0) args_[static_cast<std::size_t>(slot)] = {value, static_cast<std::size_t>(at - value)};
  }
}

void TraceEvents::note(std::string_view key, std::string_view value) {
  if (key == "ph") {
    event_.phase = inside(value, phase_);
    if (event_.phase.empty() || phases_.find(event_.phase.front()) == std::string::npos) event_.decided = true;
  } else if (key == "cat") {
    event_.category = inside(value, category_);
  } else if (key == "name") {
    event_.name = value;
  } else if (key == "ts") {
    event_.time = value;
  } else if (key == "dur") {
    event_.duration = value;
  } else if (key == "pid") {
    event_.pid = value;
  } else if (key == "tid") {
    event_.tid = value;
  } else {
    return;
  }
  if (!event_.decided && !event_.phase.empty() && !event_.category.empty() && !event_.name.empty()) decide();
}

void TraceEvents::decide() {
  event_.decided = true;
  if (event_.phase.empty()) return;
  const int group = group_of(event_.phase, event_.category);
  if (group < 0) return;
  const std::string_view name = inside(event_.name, name_);
  for (const auto& [prefix, table] : groups_[static_cast<std::size_t>(group)].rules) {
    if (name.starts_with(prefix)) {
      event_.table = table;
      return;
    }
  }
}

int TraceEvents::group_of(std::string_view phase, std::string_view category) {
  if (phase == last_phase_ && category == last_category_) return last_group_;
  last_phase_ = phase;
  last_category_ = category;
  last_group_ = -1;
  for (std::size_t at = 0; at < groups_.size() && last_group_ < 0; ++at) {
    if (groups_[at].phase == phase && groups_[at].category == category) last_group_ = static_cast<int>(at);
  }
  return last_group_;
}

int TraceEvents::slot_of(std::string_view key) const {
  for (const auto& [name, slot] : slots_[std::min(key.size(), slots_.size() - 1)]) {
    if (name == key) return slot;
  }
  return -1;
}

}  // namespace stashtrace::importers
