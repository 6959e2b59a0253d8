// Steps over JSON text that may end anywhere: strings, values, nesting. SPDX-License-Identifier: Apache-2.0
//
// Called by trace_events on its buffer. Builds nothing: a value is the text between two pointers, which the caller may
// read. Lenient where files in the wild are wrong (control characters in strings, NaN, unknown escapes).
#pragma once

#include <string>
#include <string_view>

#include "importers/text_marks.h"

namespace stashtrace::importers {

// Every step below returns the first position after what it passed, or null if the text ended earlier.

[[nodiscard]] inline bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

[[nodiscard]] inline Position skip_space(Position at, Position end) {
  while (at < end && is_space(*at)) ++at;
  return at;
}

// From after an opening quote to after the closing one.
[[nodiscard]] Position skip_string(Position at, Position end);

// From inside `depth` brackets to after the one that closes them all. Does not distinguish kinds of brackets.
[[nodiscard]] Position skip_nested(Position at, Position end, int depth);

// Any value; one without quotes and brackets ends before a comma, a closing bracket or a space.
[[nodiscard]] Position skip_value(Position at, Position end);

// Returns the text that a string's raw content means: escapes resolved, lone halves of surrogate pairs become U+FFFD.
[[nodiscard]] std::string unescape(std::string_view raw);

}  // namespace stashtrace::importers
