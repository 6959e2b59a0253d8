// SPDX-License-Identifier: Apache-2.0
#include "importers/json_text.h"

#include <cstdint>

namespace stashtrace::importers {

namespace {

constexpr std::uint32_t kReplacement = 0xFFFD;

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// The four hex digits of a \u escape at `at`, or -1.
std::int32_t read_unit(std::string_view raw, std::size_t at) {
  if (raw.size() < at + 4) return -1;
  std::int32_t unit = 0;
  for (std::size_t i = at; i < at + 4; ++i) {
    const int digit = hex_digit(raw[i]);
    if (digit < 0) return -1;
    unit = unit * 16 + digit;
  }
  return unit;
}

void append_utf8(std::string& out, std::uint32_t point) {
  if (point < 0x80) {
    out.push_back(static_cast<char>(point));
    return;
  }
  const int following = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
  constexpr unsigned kLead[] = {0, 0xC0, 0xE0, 0xF0};
  out.push_back(static_cast<char>(kLead[following] | (point >> (6 * following))));
  for (int left = following - 1; left >= 0; --left) {
    out.push_back(static_cast<char>(0x80 | ((point >> (6 * left)) & 0x3F)));
  }
}

// Appends the character of the \u escape whose digits begin at `at`; returns the position after it.
std::size_t append_unicode(std::string& out, std::string_view raw, std::size_t at) {
  const std::int32_t unit = read_unit(raw, at);
  if (unit < 0) {
    out.push_back('u');
    return at;
  }
  at += 4;
  if (unit < 0xD800 || unit > 0xDFFF) {
    append_utf8(out, static_cast<std::uint32_t>(unit));
    return at;
  }
  const bool pair_follows = unit < 0xDC00 && raw.substr(at, 2) == "\\u";
  const std::int32_t low = pair_follows ? read_unit(raw, at + 2) : -1;
  if (low < 0xDC00 || low > 0xDFFF) {
    append_utf8(out, kReplacement);
    return at;
  }
  append_utf8(out, static_cast<std::uint32_t>(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00)));
  return at + 6;
}

}  // namespace

Position skip_string(Position at, Position end) {
  while (true) {
    at = find_string_mark(at, end);
    if (at >= end) return nullptr;
    if (*at == '"') return at + 1;
    if (end - at < 2) return nullptr;
    at += 2;
  }
}

Position skip_nested(Position at, Position end, int depth) {
  while (true) {
    at = find_nesting_mark(at, end);
    if (at >= end) return nullptr;
    const char mark = *at++;
    if (mark == '"') {
      at = skip_string(at, end);
      if (at == nullptr) return nullptr;
    } else if ((mark | 0x20) == '{') {
      ++depth;
    } else if (--depth == 0) {
      return at;
    }
  }
}

Position skip_value(Position at, Position end) {
  if (at >= end) return nullptr;
  if (*at == '"') return skip_string(at + 1, end);
  if ((*at | 0x20) == '{') return skip_nested(at + 1, end, 1);
  while (at < end && *at != ',' && (*at | 0x20) != '}' && !is_space(*at)) ++at;
  return at < end ? at : nullptr;
}

std::string unescape(std::string_view raw) {
  std::string out;
  out.reserve(raw.size());
  for (std::size_t at = 0; at < raw.size();) {
    const char c = raw[at++];
    if (c != '\\' || at == raw.size()) {
      out.push_back(c);
      continue;
    }
    const char kind = raw[at++];
    switch (kind) {
      case 'b': out.push_back('\b'); break;
      case 'f': out.push_back('\f'); break;
      case 'n': out.push_back('\n'); break;
      case 'r': out.push_back('\r'); break;
      case 't': out.push_back('\t'); break;
      case 'u': at = append_unicode(out, raw, at); break;
      default: out.push_back(kind);
    }
  }
  return out;
}

}  // namespace stashtrace::importers
