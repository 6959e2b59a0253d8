// SPDX-License-Identifier: Apache-2.0
#include "importers/decimal.h"

#include <limits>

namespace stashtrace::importers {

namespace {

__extension__ using Wide = unsigned __int128;

constexpr int kMostDigits = 37;  // what fits a Wide with room for one carry
constexpr int kFarPower = 400;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Digits of a number without their point, and the power of ten that puts it back.
struct Digits {
  Wide value = 0;
  int count = 0;  // significant ones in `value`
  int power = 0;
  bool any = false;

  void add(char digit, bool fraction) {
    any = true;
    if (count < kMostDigits) {
      value = value * 10 + static_cast<unsigned>(digit - '0');
      if (value != 0) ++count;
      if (fraction) --power;
    } else if (!fraction) {
      ++power;
    }
  }
};

// Reads the exponent from `at`; false for anything else. Far ones are cut off: the result is 0 or too large.
bool read_exponent(std::string_view text, std::size_t at, int& power) {
  if (at == text.size()) return true;
  if (text[at] != 'e' && text[at] != 'E') return false;
  ++at;
  const bool negative = at < text.size() && text[at] == '-';
  if (at < text.size() && (text[at] == '-' || text[at] == '+')) ++at;
  if (at == text.size()) return false;
  int exponent = 0;
  for (; at < text.size(); ++at) {
    if (!is_digit(text[at])) return false;
    if (exponent < kFarPower) exponent = exponent * 10 + (text[at] - '0');
  }
  power += negative ? -exponent : exponent;
  return true;
}

std::optional<std::int64_t> with_sign(Wide value, bool negative) {
  constexpr auto kMost = static_cast<Wide>(std::numeric_limits<std::int64_t>::max());
  if (value > kMost) return std::nullopt;
  const auto magnitude = static_cast<std::int64_t>(value);
  return negative ? -magnitude : magnitude;
}

}  // namespace

std::optional<std::int64_t> scaled_decimal(std::string_view text, int power) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  if (text.empty()) return std::nullopt;
  const bool negative = text.front() == '-';
  std::size_t at = negative || text.front() == '+' ? 1 : 0;

  Digits digits;
  for (; at < text.size() && is_digit(text[at]); ++at) digits.add(text[at], false);
  if (at < text.size() && text[at] == '.') {
    for (++at; at < text.size() && is_digit(text[at]); ++at) digits.add(text[at], true);
  }
  digits.power += power;
  if (!digits.any || !read_exponent(text, at, digits.power)) return std::nullopt;

  Wide value = digits.value;
  if (value == 0) return 0;
  for (; digits.power > 0; --digits.power) {
    if (value > static_cast<Wide>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
    value *= 10;
  }
  if (digits.power < 0) {
    if (-digits.power > kMostDigits) return 0;
    Wide divisor = 1;
    for (; digits.power < 0; ++digits.power) divisor *= 10;
    value = value / divisor + (value % divisor >= divisor - divisor / 2 ? 1 : 0);
  }
  return with_sign(value, negative);
}

}  // namespace stashtrace::importers
