// Implementation of scrubbing.h. SPDX-License-Identifier: Apache-2.0
#include "core/scrubbing.h"

#include <algorithm>
#include <span>

#include "core/secret_words.h"

namespace stashtrace {

namespace {

using Words = std::span<const std::string_view>;

constexpr std::string_view kScrubbed = "<scrubbed>";
constexpr std::string_view kBlanks = " \t\n\r";
constexpr std::string_view kQuotes = "'\"";
constexpr std::string_view kOpeners = "=;,&|([{'\"";                 // before a name within a word
constexpr std::string_view kBlanksAndClosers = " \t\n\r;,&|)]}'\"";  // behind a value within a word
constexpr std::string_view kBehindQuote = " \t\n\r,)]}";             // behind the closing quote of an address
constexpr std::string_view kNameSigns = "_.-";
constexpr std::string_view kSchemeSigns = "+.-";

bool is_in(char c, std::string_view signs) noexcept { return signs.find(c) != signs.npos; }
bool is_capital(char c) noexcept { return c >= 'A' && c <= 'Z'; }
bool is_small(char c) noexcept { return c >= 'a' && c <= 'z'; }
bool is_letter(char c) noexcept { return is_capital(c) || is_small(c); }
bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
bool is_plain(char c) noexcept { return is_letter(c) || is_digit(c); }

std::size_t first_of(std::string_view signs, std::string_view text, std::size_t at, std::size_t end) noexcept {
  return std::min(text.find_first_of(signs, at), end);
}

// Returns where the run of letters, digits and these signs before `end` begins, not before `first`.
std::size_t begin_of_run(std::string_view text, std::size_t first, std::size_t end, std::string_view signs) noexcept {
  while (end > first && (is_plain(text[end - 1]) || is_in(text[end - 1], signs))) --end;
  return end;
}

// Takes the last word from a name. Words end at punctuation, and where a capital follows a small letter or digit.
std::string_view take_last_word(std::string_view& name) noexcept {
  while (!name.empty() && !is_plain(name.back())) name.remove_suffix(1);
  std::size_t begin = name.size();
  while (begin > 0 && is_plain(name[begin - 1])) {
    if (begin < name.size() && is_capital(name[begin]) && !is_capital(name[begin - 1])) break;
    --begin;
  }
  const std::string_view word = name.substr(begin);
  name = name.substr(0, begin);
  return word;
}

// `known` is in small letters.
bool ends_with(std::string_view word, std::string_view known) noexcept {
  const auto same = [](char a, char b) { return (is_capital(a) ? static_cast<char>(a + 'a' - 'A') : a) == b; };
  if (word.size() < known.size()) return false;
  return std::equal(known.begin(), known.end(), word.substr(word.size() - known.size()).begin(),
                    [same](char small, char c) { return same(c, small); });
}
bool is_word(std::string_view word, std::string_view known) noexcept {
  return word.size() == known.size() && ends_with(word, known);
}
bool is_one_of(std::string_view word, Words words) noexcept {
  return std::any_of(words.begin(), words.end(), [word](std::string_view known) { return is_word(word, known); });
}

SecretKind kind_of(std::string_view name) noexcept {
  using namespace secret_words;
  std::size_t count = 0;
  std::string_view first;
  for (std::string_view rest = name, word; !(word = take_last_word(rest)).empty(); ++count) first = word;
  if (count == 0 || (count > 1 && is_one_of(first, kRefusals))) return SecretKind::kNone;
  const bool option = name.starts_with('-');
  // One word is a name only where it can be nothing else: `--key X`, `PASS=X`; not `f(key=...)`.
  const bool alone = count == 1 && (option || std::none_of(name.begin(), name.end(), is_small));
  std::string_view last = take_last_word(name);
  while (is_one_of(last, kEndings)) {
    last = take_last_word(name);
    --count;
  }
  if (last.empty()) return SecretKind::kNone;
  const std::string_view before = take_last_word(name);
  if (is_word(last, "key"))
    return is_one_of(before, kKeys) ? SecretKind::kSecret : alone ? SecretKind::kKey : SecretKind::kNone;
  const bool is_pass = is_word(last, "pass");
  if (is_pass || is_word(last, "pwd")) {
    if (is_one_of(before, kAccounts) || (alone && is_pass)) return SecretKind::kSecret;
    return alone ? SecretKind::kFolder : SecretKind::kNone;
  }
  if (is_word(last, "signature")) return is_one_of(before, kSigners) ? SecretKind::kSecret : SecretKind::kNone;
  if (is_word(last, "token") && is_one_of(before, kVocabulary)) return SecretKind::kNone;
  if (is_one_of(last, kSecrets) || std::any_of(std::begin(kSuffixes), std::end(kSuffixes),
                                               [last](std::string_view suffix) { return ends_with(last, suffix); }))
    return SecretKind::kSecret;
  const bool is_user =
      (alone && is_one_of(last, kUsers)) || (count == 2 && is_word(before, "proxy") && is_word(last, "user"));
  return is_user && option ? SecretKind::kUser : SecretKind::kNone;
}

// Returns how much of the begin of a value stays; npos: all of it, for it is no secret.
std::size_t stays(SecretKind kind, std::string_view value) noexcept {
  if (kind == SecretKind::kKey) {
    const auto in_word = [](char c) { return is_small(c) || is_in(c, "_.,-"); };
    const auto in_number = [](char c) { return is_digit(c) || c == '.'; };
    if (std::all_of(value.begin(), value.end(), in_word) || std::all_of(value.begin(), value.end(), in_number))
      return value.npos;
  }
  if (kind == SecretKind::kFolder && !value.empty() && is_in(value[0], "/.~$")) return value.npos;
  if (kind != SecretKind::kUser) return 0;
  const std::size_t colon = value.find(':');
  if (colon == value.npos) return value.npos;
  const std::string_view user = value.substr(0, colon), password = value.substr(colon + 1);
  const bool number = std::all_of(user.begin(), user.end(), is_digit) &&
                      std::all_of(password.begin(), password.end(), is_digit);  // docker run --user 1000:1000
  if (user.empty() || password.empty() || is_in(password[0], ":/\\") || user == password || number) return value.npos;
  return colon + 1;
}

// True if a word is an option and not the value of the one before it, which may begin with two dashes as well.
bool is_option(std::string_view word) noexcept {
  if (!word.starts_with("--")) return false;
  const std::string_view name = word.substr(2, word.substr(2).find('='));
  const auto in_name = [](char c) { return is_plain(c) || is_in(c, kNameSigns); };
  return name.empty() || (is_small(name[0]) && std::all_of(name.begin(), name.end(), in_name));
}

// Returns where a value ends: after its closing quote, or at a blank.
std::size_t end_of_value(std::string_view text, std::size_t at) noexcept {
  if (at < text.size() && is_in(text[at], kQuotes)) {
    const std::size_t closing = text.find(text[at], at + 1);
    if (closing != text.npos) return closing + 1;
  }
  return first_of(kBlanks, text, at, text.size());
}

std::string_view without_quotes(std::string_view text) noexcept {
  while (!text.empty() && is_in(text.front(), kQuotes)) text.remove_prefix(1);
  while (!text.empty() && is_in(text.back(), kQuotes)) text.remove_suffix(1);
  return text;
}

// Returns where a URL ends: at the quote that closes the one before it, else with the text. A query may hold quotes of
// its own: the closing one is followed by nothing that goes on with the URL.
std::size_t end_of_url(std::string_view text, std::size_t at, char before) noexcept {
  if (!is_in(before, kQuotes)) return text.size();
  for (; (at = text.find(before, at)) != text.npos; ++at)
    if (at + 1 == text.size() || is_in(text[at + 1], kBehindQuote)) return at;
  return text.size();
}

struct Range {
  std::size_t begin, end;
};

// Returns where the value of the first secret name within a word stands: `a=b;AccountKey=X`, `"token": "X"`, a header.
// The value may reach beyond the word. What follows a URL is the URL's.
Range named_within(std::string_view argument, std::size_t at, std::size_t end) noexcept {
  const std::size_t url = std::min(argument.find(":/", at), end);
  // What follows a URL is the URL's, but for the next parts of a connection string.
  const std::size_t query = first_of("?#", argument, url, end);
  for (std::size_t i = at; (i = first_of("=:", argument, i, query)) < query; ++i) {
    const bool closed = i > at && is_in(argument[i - 1], kQuotes);
    const std::size_t last = i - (closed ? 1 : 0);
    std::size_t first = begin_of_run(argument, at, last, kNameSigns);
    const char opener = first > at ? argument[first - 1] : '\0';
    if (opener != '\0' && !is_in(opener, kOpeners)) continue;
    const bool is_header = argument[i] == ':';
    if (i >= url && (is_header || opener != ';')) continue;
    if (is_header && argument.substr(first).starts_with("-H")) first += 2;
    if (first >= last || kind_of(argument.substr(first, last - first)) != SecretKind::kSecret) continue;
    std::size_t begin = i + 1;
    if (is_header) {
      if (begin == argument.size() || is_in(argument[begin], ":/\\")) continue;
      while (begin < argument.size() && is_in(argument[begin], kBlanks)) ++begin;
    }
    const char quote = begin < argument.size() && is_in(argument[begin], kQuotes) ? argument[begin] : '\0';
    std::size_t closing = quote != '\0' ? argument.find(quote, begin + 1) : argument.npos;
    std::size_t stop = argument.size();
    if (i >= url && query < end) {
      stop = end;  // the query is the URL's, and goes with the value
    } else if (closing != argument.npos) {
      ++begin;
      stop = closing;
    } else if (is_header && opener != '\0' && is_in(opener, kQuotes) && !closed) {
      stop = std::min(argument.find(opener, begin), argument.size());
    } else if (!is_header || closed || at != 0 || (opener != '\0' && opener != '=')) {
      stop = first_of(kBlanksAndClosers, argument, begin, argument.size());
    }
    if (begin < stop) return {begin, stop};
  }
  return {end, end};
}

}  // namespace

void add_scrubbed_urls(std::string_view text, TextBuffer& out) noexcept {
  std::size_t at = 0;
  for (std::size_t search = 0, colon; (colon = text.find(":/", search)) != text.npos;) {
    const std::size_t scheme = begin_of_run(text, at, colon, kSchemeSigns);
    const bool whole = text.substr(colon).starts_with("://");
    const std::size_t begin = search = colon + (whole ? 3 : 2);
    const std::string_view name = text.substr(scheme, colon - scheme);
    if (std::none_of(name.begin(), name.end(), is_letter)) continue;
    if (!whole && !is_one_of(name.substr(name.rfind('+') + 1), secret_words::kSchemes)) continue;
    const std::size_t url_end = end_of_url(text, begin, scheme > 0 ? text[scheme - 1] : '\0');
    const std::size_t end = first_of("/?#", text, begin, url_end);
    const std::size_t sign = text.substr(begin, end - begin).rfind('@');
    const std::size_t host = sign == text.npos ? begin : begin + sign + 1;
    const std::size_t stop = first_of("?#", text, end, url_end);
    const std::size_t fragment = first_of("#", text, stop, url_end);
    const std::size_t cut = first_of("?=", text, fragment, url_end);
    out.add(text.substr(at, begin - at)).add(text.substr(host, stop - host)).add(text.substr(fragment, cut - fragment));
    at = search = url_end;
  }
  out.add(text.substr(at));
}

void ArgumentScrubber::add(std::string_view argument, TextBuffer& out) noexcept {
  if (pending_ != SecretKind::kNone && !is_option(argument)) {
    const std::size_t stay = stays(pending_, argument);
    if (stay != argument.npos) {
      pending_ = SecretKind::kNone;
      out.add(argument.substr(0, stay));
      if (!argument.empty()) out.add(kScrubbed);
      return;
    }
  }
  pending_ = SecretKind::kNone;
  for (std::size_t at = 0; at < argument.size();) {
    if (is_in(argument[at], kBlanks)) {
      out.add(argument.substr(at++, 1));
      continue;
    }
    const std::size_t end = first_of(kBlanks, argument, at, argument.size());
    const std::string_view word = argument.substr(at, end - at);
    if (pending_ != SecretKind::kNone && !is_option(word)) {
      const std::size_t stop = end_of_value(argument, at);
      const std::string_view value = without_quotes(argument.substr(at, stop - at));
      const std::size_t stay = stays(pending_, value);
      if (stay != value.npos) {
        out.add(value.substr(0, stay)).add(kScrubbed);
        at = stop;
        pending_ = SecretKind::kNone;
        continue;
      }
    }
    pending_ = SecretKind::kNone;
    const std::string_view name = word.substr(0, word.find('='));
    const SecretKind kind = may_hold_url(name) ? SecretKind::kNone : kind_of(name);
    if (kind != SecretKind::kNone && name.size() < word.size()) {
      const std::size_t begin = at + name.size() + 1;
      const bool whole = at == 0 && argument.starts_with('-');
      const std::size_t stop = whole ? argument.size() : end_of_value(argument, begin);
      const std::string_view value = without_quotes(argument.substr(begin, stop - begin));
      const std::size_t stay = stays(kind, value);
      if (stay != value.npos) {
        out.add(name).add("=").add(value.substr(0, stay));
        if (stop > begin) out.add(kScrubbed);
        at = stop;
        continue;
      }
    } else if (kind != SecretKind::kNone && name.starts_with('-')) {
      out.add(word);
      at = end;
      pending_ = kind;
      continue;
    }
    const Range value = named_within(argument, at, end);
    if (value.begin < value.end) {
      add_scrubbed_urls(argument.substr(at, value.begin - at), out);
      out.add(kScrubbed);
      at = value.end;
      continue;
    }
    add_scrubbed_urls(word, out);
    constexpr std::string_view kBearer = "Bearer";
    if (end < argument.size() && word.ends_with(kBearer) &&
        (word.size() == kBearer.size() || !is_plain(word[word.size() - kBearer.size() - 1])))
      pending_ = SecretKind::kSecret;
    at = end;
  }
}

}  // namespace stashtrace
