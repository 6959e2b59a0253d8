// Implementation of scrubbing.h. SPDX-License-Identifier: Apache-2.0
#include "core/scrubbing.h"

#include <algorithm>
#include <initializer_list>

namespace stashtrace {

namespace {

constexpr std::string_view kScrubbed = "<scrubbed>";
constexpr std::string_view kBlanks = " \t\n\r";

bool is_capital(char c) noexcept { return c >= 'A' && c <= 'Z'; }
bool is_letter(char c) noexcept { return is_capital(c) || (c >= 'a' && c <= 'z'); }
bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

std::size_t first_of(std::string_view signs, std::string_view text, std::size_t at) noexcept {
  return std::min(text.find_first_of(signs, at), text.size());
}

// Takes the last word from a name. Words end at punctuation, and where a capital follows a small letter or digit.
std::string_view take_last_word(std::string_view& name) noexcept {
  while (!name.empty() && !is_letter(name.back()) && !is_digit(name.back())) name.remove_suffix(1);
  std::size_t begin = name.size();
  while (begin > 0 && (is_letter(name[begin - 1]) || is_digit(name[begin - 1]))) {
    if (begin < name.size() && is_capital(name[begin]) && !is_capital(name[begin - 1])) break;
    --begin;
  }
  const std::string_view word = name.substr(begin);
  name = name.substr(0, begin);
  return word;
}

// `words` are in small letters.
bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) noexcept {
  for (const std::string_view known : words) {
    const auto same = [](char a, char b) { return (is_capital(a) ? static_cast<char>(a + 'a' - 'A') : a) == b; };
    if (word.size() == known.size() && std::equal(word.begin(), word.end(), known.begin(), same)) return true;
  }
  return false;
}

// Returns where a value ends: after its closing quote, or at a blank.
std::size_t end_of_value(std::string_view text, std::size_t at) noexcept {
  if (at < text.size() && (text[at] == '\'' || text[at] == '"')) {
    const std::size_t closing = text.find(text[at], at + 1);
    if (closing != text.npos) return closing + 1;
  }
  return first_of(kBlanks, text, at);
}

}  // namespace

bool is_secret(std::string_view name) noexcept {
  std::string_view last = take_last_word(name);
  while (is_one_of(last, {"id", "value"})) last = take_last_word(name);
  const std::string_view before = take_last_word(name);
  if (is_one_of(last, {"key"})) return is_one_of(before, {"api", "access", "secret", "auth", "private"});
  if (is_one_of(last, {"token"}))
    return !is_one_of(before, {"pad", "eos", "bos", "unk", "mask", "sep", "cls", "special", "image", "stop", "per"});
  return is_one_of(last, {"password", "passwd", "passphrase", "secret", "credential", "credentials", "apikey",
                          "accesskey", "secretkey", "authtoken", "hftoken"});
}

void add_scrubbed_urls(std::string_view text, TextBuffer& out) noexcept {
  std::size_t at = 0;
  for (std::size_t search = 0;;) {
    const std::size_t colon = text.find("://", search);
    if (colon == text.npos) break;
    std::size_t scheme = colon;
    while (scheme > at && (is_letter(text[scheme - 1]) || is_digit(text[scheme - 1]) || text[scheme - 1] == '+' ||
                           text[scheme - 1] == '.' || text[scheme - 1] == '-'))
      --scheme;
    search = colon + 3;
    if (std::none_of(text.begin() + static_cast<std::ptrdiff_t>(scheme),
                     text.begin() + static_cast<std::ptrdiff_t>(colon), is_letter))
      continue;
    const std::size_t end = first_of("/?#'\"", text, search);
    const std::size_t sign = text.substr(search, end - search).rfind('@');
    const std::size_t host = sign == text.npos ? search : search + sign + 1;
    const std::size_t stop = first_of("?#'\"", text, end);
    out.add(text.substr(at, search - at)).add(text.substr(host, stop - host));
    at = search = stop < text.size() && text[stop] == '?' ? first_of("#'\"", text, stop) : stop;
  }
  out.add(text.substr(at));
}

void ArgumentScrubber::add(std::string_view argument, TextBuffer& out) noexcept {
  if (value_follows_ && !argument.starts_with("--")) {
    value_follows_ = false;
    if (!argument.empty()) out.add(kScrubbed);
    return;
  }
  value_follows_ = false;
  for (std::size_t at = 0; at < argument.size();) {
    if (kBlanks.find(argument[at]) != kBlanks.npos) {
      out.add(argument.substr(at++, 1));
      continue;
    }
    std::size_t end = first_of(kBlanks, argument, at);
    const std::string_view word = argument.substr(at, end - at);
    if (value_follows_ && !word.starts_with("--")) {
      out.add(kScrubbed);
      at = end_of_value(argument, at);
      value_follows_ = false;
      continue;
    }
    const std::string_view name = word.substr(0, word.find('='));
    value_follows_ = false;
    if (!is_secret(name) || name.find("://") != name.npos) {
      add_scrubbed_urls(word, out);
    } else if (name.size() < word.size()) {
      const std::size_t begin = at + name.size() + 1;
      end = at == 0 && argument.starts_with('-') ? argument.size() : end_of_value(argument, begin);
      out.add(name).add("=");
      if (end > begin) out.add(kScrubbed);
    } else {
      value_follows_ = name.starts_with('-');
      out.add(word);
    }
    at = end;
  }
}

}  // namespace stashtrace
