// The document around the events, and what is stored for a kept event; trace_event.cpp reads one event.
// SPDX-License-Identifier: Apache-2.0
#include "importers/trace_events.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "importers/decimal.h"

namespace stashtrace::importers {

namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr int kMicrosecondsToNs = 3;

bool is_quoted(std::string_view value) { return value.size() >= 2 && value.front() == '"'; }

// Inside of a string, or the value itself.
std::string_view bare(std::string_view value) { return is_quoted(value) ? value.substr(1, value.size() - 2) : value; }

std::int64_t integer(std::string_view value) {
  if (value == "true") return 1;
  if (value == "false") return 0;
  return scaled_decimal(bare(value), 0).value_or(kAbsent);
}

}  // namespace

TraceEvents::TraceEvents(std::vector<std::string> arrays, std::vector<TableSpec> specs, std::vector<Rule> rules)
    : arrays_(std::move(arrays)), specs_(std::move(specs)), tables_(specs_.size()) {
  int slots = 0;
  const auto slot = [&](const std::string& key) {
    auto& bucket = slots_[std::min(key.size(), slots_.size() - 1)];
    for (const auto& [name, number] : bucket) {
      if (name == key) return number;
    }
    bucket.emplace_back(key, slots);
    return slots++;
  };
  for (std::size_t at = 0; at < specs_.size(); ++at) {
    auto& [ints, texts] = slots_of_table_.emplace_back();
    for (const std::string& key : specs_[at].ints) ints.push_back(slot(key));
    for (const std::string& key : specs_[at].texts) texts.push_back(slot(key));
    tables_[at].ints.resize(ints.size());
    tables_[at].texts.resize(texts.size());
  }
  args_.resize(static_cast<std::size_t>(slots));
  for (Rule& rule : rules) {
    auto group = std::find_if(groups_.begin(), groups_.end(), [&](const Group& known) {
      return known.phase == rule.phase && known.category == rule.category;
    });
    if (group == groups_.end()) {
      if (!rule.phase.empty()) phases_.push_back(rule.phase.front());
      group = groups_.insert(groups_.end(), {rule.phase, rule.category, {}});
    }
    group->rules.emplace_back(std::move(rule.prefix), rule.table);
  }
}

void TraceEvents::feed(std::string_view chunk) {
  if (state_ == State::kDone) return;
  pending_.append(chunk);
  if (pending_.size() < retry_size_) return;
  const Position begin = pending_.data();
  const Position at = consume(begin, begin + pending_.size());
  pending_.erase(0, static_cast<std::size_t>(at - begin));
  retry_size_ = pending_.size() * 2;
}

void TraceEvents::finish() {
  retry_size_ = 0;
  pending_.push_back('\n');  // ends a number that is the last of the text
  feed({});
  counts_.truncated = state_ != State::kDone;
  pending_ = {};
}

// Parses as far as the text allows; returns the first position that is needed again.
Position TraceEvents::consume(Position at, Position end) {
  while (at < end) {
    const Position before = at;
    const State state = state_;
    switch (state_) {
      case State::kBefore:
        if (*at == kByteOrderMark[0]) {
          if (end - at < static_cast<std::ptrdiff_t>(kByteOrderMark.size())) return at;
          at += kByteOrderMark.size();
        }
        at = skip_space(at, end);
        if (at == end) return at;
        bare_array_ = *at == '[';
        state_ = bare_array_ ? State::kEvents : *at == '{' ? State::kTop : State::kDone;
        if (state_ == State::kDone) ++counts_.damaged;
        ++at;
        break;
      case State::kTop: at = top_level(at, end); break;
      case State::kTopValue: at = pass_top_value(at, end); break;
      case State::kEvents: at = next_event(at, end); break;
      case State::kPassEvent: {
        bool finished = false;
        at = pass_value(at, end, finished);
        if (finished) state_ = State::kEvents;
        break;
      }
      case State::kResync: at = resync(at, end); break;
      case State::kDone: return end;
    }
    if (at == before && state == state_) return at;
  }
  return at;
}

Position TraceEvents::top_level(Position at, Position end) {
  at = skip_space(at, end);
  if (at == end) return at;
  if (*at == '}') {
    state_ = State::kDone;
    return at + 1;
  }
  if (*at != '"') {
    if (*at != ',' && !std::exchange(top_damaged_, true)) ++counts_.damaged;
    return at + 1;
  }
  const Position start = at;
  at = skip_string(at + 1, end);
  if (at == nullptr) return start;
  const std::string_view raw(start + 1, static_cast<std::size_t>(at - start - 2));
  at = skip_space(at, end);
  if (at == end) return start;
  if (*at != ':') {
    if (!std::exchange(top_damaged_, true)) ++counts_.damaged;
    return at;
  }
  at = skip_space(at + 1, end);
  if (at == end) return start;
  std::string key = unescape(raw);
  if (*at == '[' && std::find(arrays_.begin(), arrays_.end(), key) != arrays_.end()) {
    state_ = State::kEvents;
    return at + 1;
  }
  top_.emplace_back(std::move(key), std::string());
  capturing_ = true;
  passing_ = {};
  state_ = State::kTopValue;
  return at;
}

Position TraceEvents::pass_top_value(Position at, Position end) {
  bool finished = false;
  const Position start = at;
  at = pass_value(at, end, finished);
  if (capturing_) {
    std::string& text = top_.back().second;
    text.append(start, static_cast<std::size_t>(at - start));
    if (text.size() > kMostTopBytes) {
      top_.pop_back();
      capturing_ = false;
    }
  }
  if (finished) state_ = State::kTop;
  return at;
}

// Skips a value byte by byte; unlike skip_value it can stop anywhere and go on later.
Position TraceEvents::pass_value(Position at, Position end, bool& finished) {
  for (; at < end; ++at) {
    const char c = *at;
    if (passing_.in_string) {
      if (passing_.escaped) {
        passing_.escaped = false;
      } else if (c == '\\') {
        passing_.escaped = true;
      } else if (c == '"') {
        passing_.in_string = false;
        finished = passing_.depth == 0;
      }
    } else if (c == '"') {
      passing_.in_string = true;
    } else if (c == '{' || c == '[') {
      ++passing_.depth;
    } else if (c == '}' || c == ']') {
      if (passing_.depth == 0) {
        finished = true;
        return at;
      }
      finished = --passing_.depth == 0;
    } else if (passing_.depth == 0) {
      if (c == ',' || (passing_.begun && is_space(c))) {
        finished = true;
        return at;
      }
      passing_.begun = true;
    }
    if (finished) return at + 1;
  }
  return at;
}

Position TraceEvents::next_event(Position at, Position end) {
  at = skip_space(at, end);
  if (at == end) return at;
  if (*at == ',') return at + 1;
  if (*at == ']') {
    state_ = bare_array_ ? State::kDone : State::kTop;
    return at + 1;
  }
  const bool is_object = *at == '{';
  Position next = at;
  Parsed parsed = Parsed::kDone;
  if (is_object) {
    parsed = parse_event(next, end);
  } else {
    next = skip_value(at, end);
    if (next == nullptr) parsed = Parsed::kMore;
    if (next == at) parsed = Parsed::kBad;
  }
  if (parsed == Parsed::kMore) {
    if (static_cast<std::size_t>(end - at) < kMostPendingBytes) return at;
    ++counts_.oversized;
    passing_ = {};
    state_ = State::kPassEvent;
    return at;
  }
  if (parsed == Parsed::kBad) {
    ++counts_.damaged;
    state_ = State::kResync;
    return at + 1;
  }
  if (is_object) {
    ++counts_.events;
    if (!event_.decided) decide();
    if (event_.phase == "X") count_category(event_.category);
    if (event_.table >= 0) store();
  }
  return next;
}

// After an event that is not JSON: finds the next place that looks like the border between two events.
Position TraceEvents::resync(Position at, Position end) {
  while (at < end) {
    const auto* close = static_cast<Position>(std::memchr(at, '}', static_cast<std::size_t>(end - at)));
    if (close == nullptr) return end;
    Position next = skip_space(close + 1, end);
    if (next == end) return close;
    if (*next == ',') {
      next = skip_space(next + 1, end);
      if (next == end) return close;
      if (*next == '{') {
        state_ = State::kEvents;
        return next;
      }
    }
    at = close + 1;
  }
  return at;
}

void TraceEvents::store() {
  const auto time = scaled_decimal(bare(event_.time), kMicrosecondsToNs);
  if (!time && !event_.time.empty()) {
    ++counts_.timeless;
    return;
  }
  const auto at = static_cast<std::size_t>(event_.table);
  EventTable& table = tables_[at];
  table.begin_ns.push_back(time.value_or(kAbsent));
  table.duration_ns.push_back(scaled_decimal(bare(event_.duration), kMicrosecondsToNs).value_or(kAbsent));
  table.name.push_back(text_number(event_.name));
  table.pid.push_back(text_number(event_.pid));
  table.tid.push_back(text_number(event_.tid));
  const auto& [ints, texts] = slots_of_table_[at];
  for (std::size_t i = 0; i < ints.size(); ++i) {
    table.ints[i].push_back(integer(args_[static_cast<std::size_t>(ints[i])]));
  }
  for (std::size_t i = 0; i < texts.size(); ++i) {
    table.texts[i].push_back(text_number(args_[static_cast<std::size_t>(texts[i])]));
  }
  ++counts_.kept;
}

std::int32_t TraceEvents::text_number(std::string_view value) {
  if (value.empty() || value == "null") return -1;
  const std::string_view text = bare(value);
  if (is_quoted(value) && text.find('\\') != std::string_view::npos) return pool_.number(unescape(text));
  return pool_.number(text);
}

void TraceEvents::count_category(std::string_view category) {
  if (last_category_row_ < categories_.size() && categories_[last_category_row_].first == category) {
    ++categories_[last_category_row_].second;
    return;
  }
  for (last_category_row_ = 0; last_category_row_ < categories_.size(); ++last_category_row_) {
    if (categories_[last_category_row_].first == category) break;
  }
  if (last_category_row_ == categories_.size()) categories_.emplace_back(category, 0);
  ++categories_[last_category_row_].second;
}

}  // namespace stashtrace::importers
