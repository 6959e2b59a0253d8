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
constexpr std::string_view kOpeners = "=;,&|([{'\"";  // before a name within a word
constexpr std::string_view kClosers = ";,&|)]}'\"";   // behind a value within a word
constexpr std::string_view kBlanksAndClosers = " \t\n\r;,&|)]}'\"";
constexpr std::string_view kBlanksQuotesAndSemicolon = " \t\n\r'\";";
constexpr std::string_view kBehindQuote = " \t\n\r,)]}";  // behind the closing quote of an address
constexpr std::string_view kNameSigns = "_.-";
constexpr std::string_view kSchemeSigns = "+.-";
constexpr std::string_view kBlockBegin = "-----BEGIN";
constexpr std::string_view kBlockEnd = "-----END";
constexpr std::string_view kBlockLine = "-----";

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

std::size_t skip_blanks(std::string_view text, std::size_t at) noexcept {
  return std::min(text.find_first_not_of(kBlanks, at), text.size());
}

std::size_t end_of_name(std::string_view text, std::size_t at) noexcept {
  while (at < text.size() && (is_plain(text[at]) || is_in(text[at], kNameSigns))) ++at;
  return at;
}

bool has_at(std::string_view text, std::size_t at, std::string_view part) noexcept {
  return at <= text.size() && text.substr(at, part.size()) == part;
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
  if (name.size() > kLongestName) return SecretKind::kNone;
  std::size_t count = 0;
  std::string_view first;
  for (std::string_view rest = name, word; !(word = take_last_word(rest)).empty(); ++count) first = word;
  if (count == 0 || (count > 1 && is_one_of(first, kRefusals))) return SecretKind::kNone;
  const std::string_view whole = name;
  const bool option = name.starts_with('-');
  // One word is a name only where it can be nothing else: `--key X`, `PASS=X`; not `f(key=...)`.
  const bool alone = count == 1 && (option || std::none_of(name.begin(), name.end(), is_small));
  std::string_view last = take_last_word(name);
  while (is_one_of(last, kEndings)) {
    last = take_last_word(name);
    --count;
  }
  if (last.empty()) return SecretKind::kNone;
  std::string_view before = take_last_word(name);
  if (is_one_of(last, kAddresses) && is_word(before, "webhook")) {
    last = before;
    before = take_last_word(name);
    --count;
  }
  if ((is_word(last, "key") && is_one_of(before, kKeys)) || (is_word(last, "pat") && is_one_of(before, kIssuers)))
    return SecretKind::kSecret;
  const bool is_pass = is_word(last, "pass"), is_short = is_word(last, "pwd") || is_word(last, "pw");
  if ((is_pass || is_short) && (is_one_of(before, kAccounts) || (alone && is_pass))) return SecretKind::kSecret;
  if (alone && is_one_of(last, kAlone)) return SecretKind::kKey;
  if (alone && is_short) return SecretKind::kFolder;
  if (is_word(last, "signature") && is_one_of(before, kSigners)) return SecretKind::kSecret;
  if (is_word(last, "token") && is_one_of(before, kVocabulary)) return SecretKind::kNone;
  if (is_one_of(last, kSecrets) || std::any_of(std::begin(kSuffixes), std::end(kSuffixes),
                                               [last](std::string_view suffix) { return ends_with(last, suffix); }))
    return SecretKind::kSecret;
  if (is_one_of(last, kCookies)) return SecretKind::kCookie;
  if (is_one_of(last, kProxies) && (!is_word(last, "x") || whole == "-x")) return SecretKind::kProxy;
  const bool is_user =
      (alone && is_one_of(last, kUsers)) || (count == 2 && is_word(before, "proxy") && is_word(last, "user"));
  return is_user && option ? SecretKind::kUser : SecretKind::kNone;
}

bool is_authorization(std::string_view word) noexcept { return is_one_of(word, secret_words::kAuthorizations); }

// True if a word stands between a name and its secret: a sign, or how a header calls its credentials.
bool is_between(std::string_view word) noexcept { return word == "=" || word == ":" || is_authorization(word); }

// True if a value is a type or a constant: `token: str`, `"token": null`.
bool is_type(std::string_view value) noexcept {
  if (value.size() > secret_words::kLongestName) return false;
  const std::size_t last = value.find_last_not_of(kClosers);
  value = value.substr(0, last == value.npos ? 0 : last + 1);
  return is_one_of(value.substr(0, value.find('[')), secret_words::kNoValues);
}

template <typename Test>
bool all_of(std::string_view text, Test test) noexcept {
  return std::all_of(text.begin(), text.end(), test);
}

bool is_number(std::string_view text) noexcept {
  return all_of(text, [](char c) { return is_digit(c) || c == '.'; });
}

bool is_plain_word(std::string_view value) noexcept {
  return all_of(value, [](char c) { return is_small(c) || is_in(c, "_.,*-"); }) ||
         all_of(value, [](char c) { return is_capital(c) || c == '_'; }) || is_number(value);
}

// True for what source code and shells have behind a sign of assignment: paths, variables, calls.
bool is_code(std::string_view value) noexcept {
  return all_of(value, [](char c) { return is_letter(c) || is_in(c, "_.,*-"); }) || is_number(value) ||
         is_in(value[0], "/.~$%*+<-") || value.find_first_of("([{") != value.npos;
}

unsigned base64_value(char c) noexcept {
  if (is_capital(c)) return static_cast<unsigned>(c - 'A');
  if (is_small(c)) return static_cast<unsigned>(c - 'a') + 26;
  if (is_digit(c)) return static_cast<unsigned>(c - '0') + 52;
  return c == '+' ? 62 : c == '/' ? 63 : 64;
}

// True for the base64 of USER:PASSWORD.
bool is_user_in_base64(std::string_view value) noexcept {
  if (value.size() < 4 || value.size() % 4 != 0) return false;
  std::size_t padding = 0;
  while (padding < 2 && value.ends_with('=')) {
    value.remove_suffix(1);
    ++padding;
  }
  if (value.size() < 4) return false;
  bool colon = false;
  unsigned bits = 0, held = 0;
  for (const char c : value) {
    const unsigned next = base64_value(c);
    if (next == 64) return false;
    bits = (bits << 6 | next) & 0xFFFF;
    held += 6;
    if (held < 8) continue;
    held -= 8;
    const unsigned byte = bits >> held & 0xFF;
    if (byte < 32 || byte >= 127) return false;
    colon = colon || byte == ':';
  }
  return colon;
}

// Returns how much of USER:PASSWORD or USER:PASSWORD@HOST stays.
std::size_t stays_of_user(SecretKind kind, std::string_view value) noexcept {
  const std::size_t colon = value.find(':');
  if (colon == value.npos) return value.npos;
  const std::string_view user = value.substr(0, colon);
  std::string_view password = value.substr(colon + 1);
  if (kind == SecretKind::kProxy) {
    const std::size_t at_sign = password.rfind('@');
    if (at_sign == password.npos || at_sign + 1 == password.size()) return value.npos;
    password = password.substr(0, at_sign);
    const bool path = password.find('/') != password.npos;
    return user.empty() || end_of_name(user, 0) < user.size() || password.empty() || path ? value.npos : colon + 1;
  }
  const bool number = all_of(user, is_digit) && all_of(password, is_digit);  // docker run --user 1000:1000
  if (user.empty() || password.empty() || is_in(password[0], ":/\\") || user == password || number) return value.npos;
  return colon + 1;
}

// Returns how much of the begin of a value stays; npos: all of it, for it is no secret.
std::size_t stays(SecretKind kind, std::string_view value, bool quoted) noexcept {
  if (is_type(value)) return value.npos;
  switch (kind) {
    case SecretKind::kKey: return is_plain_word(value) || is_authorization(value) ? value.npos : 0;
    case SecretKind::kFolder: return !value.empty() && is_in(value[0], "/.~$") ? value.npos : 0;
    case SecretKind::kAssigned:
      return !quoted && (value.size() < secret_words::kShortestValue || is_code(value)) ? value.npos : 0;
    case SecretKind::kBasic: return is_user_in_base64(value) ? 0 : value.npos;
    case SecretKind::kUser:
    case SecretKind::kProxy: return stays_of_user(kind, value);
    default: return 0;
  }
}

// True if a word is an option and not the value of the one before it, which may begin with two dashes as well.
bool is_option(std::string_view word) noexcept {
  if (!word.starts_with("--")) return false;
  const std::string_view name = word.substr(2, word.substr(2).find('='));
  const auto in_name = [](char c) { return is_plain(c) || is_in(c, kNameSigns); };
  return name.empty() || (is_small(name[0]) && all_of(name, in_name));
}

// Returns the position of the quote that closes the one at a position; npos if none is there, or none closes it.
std::size_t closing_quote(std::string_view text, std::size_t at) noexcept {
  return at < text.size() && is_in(text[at], kQuotes) ? text.find(text[at], at + 1) : text.npos;
}

// Returns where `NAME=VALUE; NAME=VALUE` ends, or one value; `sign` stands between pairs.
std::size_t end_of_pairs(std::string_view text, std::size_t at, char sign, std::string_view ends) noexcept {
  for (;;) {
    std::size_t equals = end_of_name(text, at);
    const std::size_t value = has_at(text, equals, "=") ? equals + 1 : at;
    const std::size_t closing = closing_quote(text, value);
    const std::size_t stop = has_at(text, value, kScrubbed) ? value + kScrubbed.size()
                             : closing != text.npos         ? closing + 1
                                                            : first_of(ends, text, value, text.size());
    if (stop >= text.size() || text[stop] != sign) return stop;
    at = skip_blanks(text, stop + 1);
    equals = end_of_name(text, at);
    if (equals == at || !has_at(text, equals, "=")) return stop;
  }
}

// Returns where a value ends: after its closing quote; at a blank, but not behind the scheme of an authorization.
std::size_t end_of_secret(std::string_view text, std::size_t at, SecretKind kind, std::string_view blanks) noexcept {
  if (const std::size_t closing = closing_quote(text, at); closing != text.npos) return closing + 1;
  if (kind == SecretKind::kCookie) return end_of_pairs(text, at, ';', kBlanksQuotesAndSemicolon);
  if (has_at(text, at, kScrubbed)) return at + kScrubbed.size();  // a second time changes nothing
  const std::size_t stop = first_of(blanks, text, at, text.size());
  if (kind == SecretKind::kSecret && is_authorization(text.substr(at, stop - at))) {
    const std::size_t begin = skip_blanks(text, stop);
    if (stop < begin && begin < text.size()) return end_of_pairs(text, begin, ',', kBlanksAndClosers);
  }
  return stop;
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

// Returns the length of the token that begins at a position, 0 if none does; `skipped` is set to what was looked at.
std::size_t length_of_token(std::string_view text, std::size_t at, std::size_t& skipped) noexcept {
  using namespace secret_words;
  for (const std::string_view begin : kAwsKeys) {
    if (!has_at(text, at, begin)) continue;
    std::size_t end = at + begin.size();
    while (end < text.size() && (is_capital(text[end]) || is_digit(text[end]))) ++end;
    const bool goes_on = end < text.size() && is_small(text[end]);
    if (end - at - begin.size() >= kAwsKeyLength && !goes_on) return skipped = end - at;
  }
  for (const Shape& shape : kShapes) {
    if (text[at] != shape.begin[0] || !has_at(text, at, shape.begin)) continue;
    const std::size_t first = at + shape.begin.size();
    std::size_t end = first;
    while (end < text.size() && (is_plain(text[end]) || is_in(text[end], shape.signs))) ++end;
    if (end - first < kShortestToken) continue;
    skipped = end - at;
    const std::string_view signs = text.substr(first, end - first);
    const bool drawn = shape.begin == "eyJ" ? signs.find(".eyJ") != signs.npos
                                            : std::any_of(signs.begin(), signs.end(),
                                                          [](char c) { return is_capital(c) || is_digit(c); });
    return drawn ? skipped : 0;
  }
  return 0;
}

// True if a token may begin here: at the begin of a word, also behind what a text writes for a line break and for
// another sign of a URL.
bool may_begin_token(std::string_view text, std::size_t at) noexcept {
  const auto is_hex = [](char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); };
  return at == 0 || !is_plain(text[at - 1]) || (at > 1 && text[at - 2] == '\\' && is_in(text[at - 1], "nrt")) ||
         (at > 2 && text[at - 3] == '%' && is_hex(text[at - 2]) && is_hex(text[at - 1]));
}

void add_without_tokens(std::string_view text, TextBuffer& out) noexcept {
  std::size_t kept = 0;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t skipped = 1;
    if (is_letter(text[at]) && may_begin_token(text, at) && length_of_token(text, at, skipped) != 0) {
      out.add(text.substr(kept, at - kept)).add(kScrubbed);
      kept = at + skipped;
    }
    at += skipped;
  }
  out.add(text.substr(kept));
}

// Adds a text that nothing names secret: without tokens, and with URLs without users and queries.
void add_kept(std::string_view text, TextBuffer& out) noexcept {
  if (may_hold_url(text)) return add_scrubbed_urls(text, out);
  add_without_tokens(text, out);
}

struct Range {
  std::size_t begin, end;
};

// A text that is scrubbed word by word from the left; each step goes on behind what it has kept or taken out.
class TextScrubber {
 public:
  TextScrubber(std::string_view text, TextBuffer& out) noexcept : text_(text), out_(out) {}

  // Returns what the text says of the next argument.
  SecretKind scrub() noexcept {
    while (at_ < text_.size()) {
      if (is_in(text_[at_], kBlanks)) {
        keep(skip_blanks(text_, at_));
        continue;
      }
      if (at_ >= end_) begin_word();
      if (take_block() || (pending_ != SecretKind::kNone && take_pending())) continue;
      pending_ = SecretKind::kNone;
      if (!take_named() && !take_spaced() && !take_within()) keep_word();
    }
    return pending_;
  }

 private:
  static constexpr std::size_t kUnknown = static_cast<std::size_t>(-1);

  std::string_view part(std::size_t begin, std::size_t end) const noexcept { return text_.substr(begin, end - begin); }
  bool is_quote(std::size_t at) const noexcept { return at < text_.size() && is_in(text_[at], kQuotes); }

  void begin_word() noexcept {
    end_ = first_of(kBlanks, text_, at_, text_.size());
    url_ = query_ = kUnknown;
    words_[0] = words_[1];
    words_[1] = words_[2];
    words_[2] = part(at_, std::min(end_, at_ + secret_words::kLongestName));
  }

  void keep(std::size_t stop) noexcept {
    out_.add(part(at_, stop));
    at_ = stop;
  }

  std::size_t stays_of(std::size_t begin, std::size_t stop, SecretKind kind) const noexcept {
    return stays(kind, without_quotes(part(begin, stop)), begin < stop && is_quote(begin));
  }

  // Takes out a value, and the quotes around it; returns false if it is no secret.
  bool take(std::size_t begin, std::size_t stop, SecretKind kind) noexcept {
    const std::size_t stay = stays_of(begin, stop, kind);
    if (stay == text_.npos) return false;
    out_.add(without_quotes(part(begin, stop)).substr(0, stay));
    if (stop > begin) out_.add(kScrubbed);
    at_ = stop;
    return true;
  }

  // A private key: from the line that begins it to the one that ends it.
  bool take_block() noexcept {
    if (end_ - at_ < kBlockBegin.size() || !has_at(text_, end_ - kBlockBegin.size(), kBlockBegin)) return false;
    const std::size_t line = text_.substr(0, end_ + secret_words::kLongestName).find(kBlockLine, end_);
    if (line == text_.npos) return false;
    std::string_view what = part(end_, line);
    constexpr std::string_view kBlock = " BLOCK";
    if (what.ends_with(kBlock)) what.remove_suffix(kBlock.size());
    if (!what.ends_with(" PRIVATE KEY")) return false;
    const std::size_t last = text_.find(kBlockEnd, line);
    const std::size_t stop = last == text_.npos ? last : text_.find(kBlockLine, last + kBlockEnd.size());
    add_kept(part(at_, end_ - kBlockBegin.size()), out_);
    out_.add(kScrubbed);
    at_ = stop == text_.npos ? text_.size() : stop + kBlockLine.size();
    pending_ = SecretKind::kNone;
    return true;
  }

  // The value of what the word before this one names.
  bool take_pending() noexcept {
    const std::string_view word = part(at_, end_);
    if (is_option(word)) return false;
    if (is_between(word)) {
      keep(end_);
      return true;
    }
    if (!take(at_, end_of_secret(text_, at_, pending_, kBlanks), pending_)) return false;
    pending_ = SecretKind::kNone;
    return true;
  }

  // `NAME=VALUE`; of `--NAME VALUE` and `NAME= VALUE` the name.
  bool take_named() noexcept {
    const std::size_t longest = std::min(end_, at_ + secret_words::kLongestName + 1);
    const std::size_t found = part(at_, longest).find('=');
    const std::size_t equals = found == text_.npos ? found : at_ + found;
    const std::string_view name = part(at_, equals == text_.npos ? longest : equals);
    const SecretKind kind = may_hold_url(name) ? SecretKind::kNone : kind_of(name);
    if (kind == SecretKind::kNone) return false;
    if (equals == text_.npos) {
      if (!name.starts_with('-')) return false;
      keep(end_);
      pending_ = kind;
      return true;
    }
    const std::size_t begin = equals + 1;
    const bool whole = at_ == 0 && text_.starts_with('-');
    const std::size_t stop = whole ? text_.size() : end_of_secret(text_, begin, kind, kBlanks);
    if (begin == stop && stop < text_.size()) {  // "token= X"; in "TOKEN= python t.py" it is empty
      keep(begin);
      pending_ = is_secret(kind) ? SecretKind::kAssigned : SecretKind::kNone;
      return true;
    }
    if (stays_of(begin, stop, kind) == text_.npos) return false;
    keep(begin);
    return take(begin, stop, kind);
  }

  static bool is_secret(SecretKind kind) noexcept { return kind == SecretKind::kSecret || kind == SecretKind::kCookie; }

  // The name in `NAME = VALUE`, `NAME : VALUE`, and in a list of arguments or of headers: `'NAME', 'VALUE'`.
  bool take_spaced() noexcept {
    const bool comma = text_[end_ - 1] == ',';
    std::size_t last = end_ - (comma ? 1 : 0);
    const bool quoted = last > at_ && is_quote(last - 1);
    if (quoted) --last;
    const std::size_t longest = secret_words::kLongestName;
    const std::size_t first =
        begin_of_run(text_, last > longest ? std::max(at_, last - longest) : at_, last, kNameSigns);
    const char opener = first > at_ ? text_[first - 1] : '\0';
    const std::size_t sign = skip_blanks(text_, end_);
    if (sign == end_ || sign == text_.size() || (opener != '\0' && !is_in(opener, kOpeners)) || (comma && !quoted))
      return false;
    const std::string_view name = part(first, last);
    SecretKind kind = SecretKind::kNone;
    if (comma) {
      const bool is_tuple = first >= at_ + 2 && text_[first - 2] == '(';
      if (!is_quote(sign) || !(name.starts_with('-') || is_tuple)) return false;
      kind = kind_of(name);
    } else {
      const char next = sign + 1 < text_.size() ? text_[sign + 1] : '\0';
      if (!is_in(text_[sign], "=:") || (next != '\0' && is_in(next, "=:/\\"))) return false;
      kind = kind_of(name);
      if (kind == SecretKind::kSecret) kind = SecretKind::kAssigned;
      else if (kind != SecretKind::kCookie) kind = SecretKind::kNone;
    }
    if (kind == SecretKind::kNone) return false;
    add_kept(part(at_, first), out_);
    at_ = first;
    keep(comma ? sign : sign + 1);
    pending_ = kind;
    return true;
  }

  // The value of the first secret name within a word: `a=b;AccountKey=X`, `"token": "X"`, a header. The value may reach
  // beyond the word. What follows a URL is the URL's, but for the next parts of a connection string.
  bool take_within() noexcept {
    if (url_ == kUnknown || url_ < at_) {
      const std::size_t found = part(at_, end_).find(":/");
      url_ = found == text_.npos ? end_ : at_ + found;
      query_ = first_of("?#", text_, url_, end_);
    }
    for (std::size_t sign = at_; (sign = first_of("=:", text_, sign, query_)) < query_; ++sign) {
      const Range name = name_before(sign);
      const SecretKind kind = kind_of(part(name.begin, name.end));
      if (!is_secret(kind)) continue;
      const bool first = at_ == 0 && (name.begin == 0 || name.begin == 2);
      if (first && end_ == text_.size() && end_ == sign + 1 && text_[sign] == ':') {
        keep(end_);
        pending_ = kind;  // its value is the next argument
        return true;
      }
      const Range value = value_behind(sign, name.begin, kind);
      if (value.begin >= value.end || is_type(part(value.begin, value.end))) continue;
      add_kept(part(at_, value.begin), out_);
      at_ = value.end;
      const bool next = value.end == text_.size() && is_authorization(part(value.begin, value.end));
      out_.add(next ? part(value.begin, value.end) : kScrubbed);
      if (next) pending_ = SecretKind::kSecret;  // the credentials are the next argument
      return true;
    }
    return false;
  }

  // Returns where the name before a sign within this word stands; nothing if it is none.
  Range name_before(std::size_t sign) const noexcept {
    const std::size_t last = sign - (sign > at_ && is_quote(sign - 1) ? 1 : 0);
    const std::size_t longest = secret_words::kLongestName + 1;
    std::size_t first = begin_of_run(text_, last > longest ? std::max(at_, last - longest) : at_, last, kNameSigns);
    const char opener = first > at_ ? text_[first - 1] : '\0';
    if (opener != '\0' && !is_in(opener, kOpeners)) return {sign, sign};
    const bool is_header = text_[sign] == ':';
    if (sign >= url_ && (is_header || opener != ';')) return {sign, sign};
    if (is_header && has_at(text_, first, "-H")) first += 2;
    return {first, std::max(first, last)};
  }

  Range value_behind(std::size_t sign, std::size_t first, SecretKind kind) const noexcept {
    const bool closed = is_quote(sign - 1);
    const char opener = first > at_ ? text_[first - 1] : '\0';
    const bool is_header = text_[sign] == ':';
    std::size_t begin = sign + 1;
    if (is_header) {
      if (begin == text_.size() || is_in(text_[begin], ":/\\")) return {begin, begin};
      begin = skip_blanks(text_, begin);
    }
    if (sign >= url_ && query_ < end_) return {begin, end_};  // the query is the URL's, and goes with the value
    if (const std::size_t closing = closing_quote(text_, begin); closing != text_.npos) return {begin + 1, closing};
    if (is_header && opener != '\0' && is_in(opener, kQuotes) && !closed)
      return {begin, std::min(text_.find(opener, begin), text_.size())};
    if (is_header && !closed && at_ == 0 && (opener == '\0' || opener == '=')) return {begin, text_.size()};
    return {begin, end_of_secret(text_, begin, kind, kBlanksAndClosers)};
  }

  void keep_word() noexcept {
    struct Scheme {
      std::string_view name;
      SecretKind kind;
    };
    constexpr Scheme kCredentials[] = {
        {"Bearer", SecretKind::kSecret}, {"bearer", SecretKind::kKey}, {"Basic", SecretKind::kBasic}};
    add_kept(part(at_, end_), out_);
    for (const auto& [name, kind] : kCredentials) {
      if (end_ - at_ < name.size() || !has_at(text_, end_ - name.size(), name)) continue;
      const std::size_t begin = end_ - name.size();
      if ((begin == at_ || !is_plain(text_[begin - 1])) && end_ < text_.size()) pending_ = kind;
    }
    at_ = end_;
    // In netrc the word two before names what stands between: `login NAME password X`.
    const auto is_netrc = [this](std::string_view known) { return words_[0] == known; };
    if (words_[2] == "password" &&
        std::any_of(std::begin(secret_words::kNetrc), std::end(secret_words::kNetrc), is_netrc))
      pending_ = SecretKind::kSecret;
  }

  std::string_view text_;
  TextBuffer& out_;
  std::size_t at_ = 0, end_ = 0;
  std::size_t url_ = kUnknown, query_ = kUnknown;
  SecretKind pending_ = SecretKind::kNone;
  std::string_view words_[3];  // begins of the two words before this one, and of this one
};

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
    add_without_tokens(text.substr(at, begin - at), out);
    add_without_tokens(text.substr(host, stop - host), out);
    add_without_tokens(text.substr(fragment, cut - fragment), out);
    at = search = url_end;
  }
  add_without_tokens(text.substr(at), out);
}

void ArgumentScrubber::add(std::string_view argument, TextBuffer& out) noexcept {
  if (pending_ != SecretKind::kNone && !is_option(argument)) {
    if (is_between(argument)) {
      out.add(argument);
      return;
    }
    const std::size_t stay = stays(pending_, argument, false);
    if (stay != argument.npos) {
      pending_ = SecretKind::kNone;
      out.add(argument.substr(0, stay));
      if (!argument.empty()) out.add(kScrubbed);
      return;
    }
  }
  pending_ = TextScrubber(argument, out).scrub();
}

}  // namespace stashtrace
