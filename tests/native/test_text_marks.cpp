// Marks of JSON text are found at the same places by blocks as byte by byte. SPDX-License-Identifier: Apache-2.0
#include <string>

#include "check.h"
#include "importers/text_marks.h"

using namespace stashtrace::importers;

namespace {

void check_from_everywhere(const std::string& text) {
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at <= end; ++at) {
    CHECK_EQUAL(find_string_mark(at, end) - at, find_string_mark_by_byte(at, end) - at);
    CHECK_EQUAL(find_nesting_mark(at, end) - at, find_nesting_mark_by_byte(at, end) - at);
  }
}

}  // namespace

int main() {
  // Each value of a byte, alone at each place of two blocks and a rest.
  constexpr std::size_t kBytes = 37;
  for (int value = 0; value < 256; ++value) {
    const bool quotes = value == '"' || value == '\\';
    const bool nests = value == '"' || value == '{' || value == '}' || value == '[' || value == ']';
    for (std::size_t place = 0; place < kBytes; place += quotes || nests ? 1 : 11) {
      std::string text(kBytes, ' ');
      text[place] = static_cast<char>(value);
      const char* const end = text.data() + text.size();
      CHECK_EQUAL(find_string_mark(text.data(), end) - text.data(), static_cast<std::ptrdiff_t>(quotes ? place : kBytes));
      CHECK_EQUAL(find_nesting_mark(text.data(), end) - text.data(), static_cast<std::ptrdiff_t>(nests ? place : kBytes));
      check_from_everywhere(text);
    }
  }
  // Dense text of all bytes: several marks in one block.
  std::string text;
  unsigned state = 1;
  for (int i = 0; i < 700; ++i) {
    state = state * 1664525 + 1013904223;
    text.push_back(state >> 30 != 0 ? static_cast<char>(state >> 20) : "\"\\{}[]"[state >> 8 & 3]);
  }
  check_from_everywhere(text);
  check_from_everywhere("");
  return result();
}
