// Trace event JSON (Kineto, Chrome) -> columns, in one pass over chunks of bytes. SPDX-License-Identifier: Apache-2.0
//
//   {"schemaVersion": 1, ..., "traceEvents": [ {"ph": "X", "cat": "kernel", "name": ..., "ts": ..., "args": {..}}, ..
//    small top-level values are kept as text    each event is looked at once: a rule names its table
//
// Called by bindings/bind_importers.cpp with the GIL released. No I/O, throws nothing itself, one thread. Memory is
// that of the kept rows, the distinct texts, and one event: a document may be cut anywhere, between chunks or for good.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "importers/json_text.h"
#include "importers/text_pool.h"

namespace stashtrace::importers {

// Value in columns of integers where an event has none.
inline constexpr std::int64_t kAbsent = std::numeric_limits<std::int64_t>::min();

// What to keep of which arguments of an event.
struct TableSpec {
  std::vector<std::string> ints;
  std::vector<std::string> texts;  // strings, and anything else as its JSON text
};

// Events of this phase and category whose name has this prefix go to a table; the first rule that fits decides.
struct Rule {
  std::string phase;
  std::string category;  // empty: events without one
  std::string prefix;
  int table;
};

struct EventTable {
  std::vector<std::int64_t> begin_ns;     // kAbsent: no time
  std::vector<std::int64_t> duration_ns;  // kAbsent: none
  std::vector<std::int32_t> name;         // texts, by number; -1: none
  std::vector<std::int32_t> pid;
  std::vector<std::int32_t> tid;
  std::vector<std::vector<std::int64_t>> ints;   // in the order of the specification
  std::vector<std::vector<std::int32_t>> texts;  // -1: absent
};

struct ScanCounts {
  std::int64_t events = 0;
  std::int64_t kept = 0;
  std::int64_t damaged = 0;    // events that are not JSON
  std::int64_t oversized = 0;  // events larger than kMostPendingBytes
  std::int64_t timeless = 0;   // kept events whose time stamp is not a number
  bool truncated = false;      // the document ended before its last bracket
};

class TraceEvents {
 public:
  static constexpr std::size_t kMostPendingBytes = std::size_t{64} << 20;
  static constexpr std::size_t kMostTopBytes = std::size_t{1} << 20;

  TraceEvents(std::vector<std::string> arrays, std::vector<TableSpec> specs, std::vector<Rule> rules);

  void feed(std::string_view chunk);
  void finish();

  [[nodiscard]] std::vector<EventTable>& tables() { return tables_; }
  [[nodiscard]] const TextPool& pool() const { return pool_; }
  [[nodiscard]] const ScanCounts& counts() const { return counts_; }
  // Top-level keys with the JSON text of their values, except values larger than kMostTopBytes.
  [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& top() const { return top_; }
  // Categories of all events with a duration, kept or not.
  [[nodiscard]] const std::vector<std::pair<std::string, std::int64_t>>& categories() const { return categories_; }

 private:
  enum class State { kBefore, kTop, kTopValue, kEvents, kPassEvent, kResync, kDone };
  enum class Parsed { kDone, kMore, kBad };

  struct Group {
    std::string phase;
    std::string category;
    std::vector<std::pair<std::string, int>> rules;  // prefix, table
  };
  struct Event {
    std::string_view phase, category, name, pid, tid, time, duration;  // as written, quotes included
    int table = -1;
    bool decided = false;
  };
  struct Passing {  // state of a value that is stepped over in pieces
    int depth = 0;
    bool in_string = false, escaped = false, begun = false;
  };

  Position consume(Position at, Position end);
  Position top_level(Position at, Position end);
  Position pass_value(Position at, Position end, bool& finished);
  Position pass_top_value(Position at, Position end);
  Position next_event(Position at, Position end);
  Position resync(Position at, Position end);
  Parsed parse_event(Position& at, Position end);
  Parsed parse_member(Position& at, Position end, std::string_view& key, Position& value);
  Parsed parse_args(Position& at, Position end);
  void note(std::string_view key, std::string_view value);
  void decide();
  void store();
  int slot_of(std::string_view key) const;
  int group_of(std::string_view phase, std::string_view category);
  std::int32_t text_number(std::string_view value);
  void count_category(std::string_view category);

  std::vector<std::string> arrays_;
  std::vector<TableSpec> specs_;
  std::vector<Group> groups_;
  std::vector<EventTable> tables_;
  std::vector<std::pair<std::vector<int>, std::vector<int>>> slots_of_table_;  // of its ints, of its texts
  std::array<std::vector<std::pair<std::string, int>>, 64> slots_;             // by length of the key
  std::vector<std::string_view> args_;
  std::string phases_;  // first letters of the phases that any rule needs
  TextPool pool_;
  ScanCounts counts_;
  std::vector<std::pair<std::string, std::string>> top_;
  std::vector<std::pair<std::string, std::int64_t>> categories_;

  State state_ = State::kBefore;
  bool bare_array_ = false, top_damaged_ = false, capturing_ = false;
  Passing passing_;
  std::string pending_;
  std::size_t retry_size_ = 0;  // an incomplete event is tried again when twice the text is there
  Event event_;
  std::string key_, phase_, category_, name_;  // of the event, where they have escapes
  std::string last_phase_, last_category_;
  int last_group_ = -1;
  std::size_t last_category_row_ = 0;
};

}  // namespace stashtrace::importers
