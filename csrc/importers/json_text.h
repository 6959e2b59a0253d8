// Steps over JSON text that may end anywhere: strings, values, nesting. SPDX-License-Identifier: Apache-2.0
//
// Called by trace_events on its buffer. Nothing is built: a value is the text between two pointers, and whoever wants
// it reads it. Lenient where files in the wild are wrong (control characters in strings, NaN, unknown escapes).
#pragma once

#include <string>
#include <string_view>

namespace stashtrace::importers {

// Every step below returns the first position after what it passed, or null if the text ended before.
using Position = const char*;

[[nodiscard]] inline bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

[[nodiscard]] inline Position skip_space(Position at, Position end) {
  while (at < end && is_space(*at)) ++at;
  return at;
}

// From after an opening quote to after the closing one.
[[nodiscard]] Position skip_string(Position at, Position end);

// From inside `depth` brackets to after the one that closes them all. Kinds of brackets are not told apart.
[[nodiscard]] Position skip_nested(Position at, Position end, int depth);

// Any value; one that is no string and has no brackets ends before a comma, a closing bracket or a space.
[[nodiscard]] Position skip_value(Position at, Position end);

// What the text between the quotes stands for: escapes resolved, halves of surrogate pairs alone become U+FFFD.
[[nodiscard]] std::string unescape(std::string_view raw);

}  // namespace stashtrace::importers
