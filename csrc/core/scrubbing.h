// Takes secrets out of command lines and URLs before they are stored. SPDX-License-Identifier: Apache-2.0
//
// Follows the rules of stashtrace/scrubbing/secrets.py, function by function, with its words (secret_words.h is generated from
// it); tests/data/scrubbed_arguments.json and scrubbed_names.json test both.
// No allocation, no lock, no system call: hooks may use it, also in signal handlers.
#pragma once

#include <cstddef>
#include <string_view>

#include "core/text_buffer.h"

namespace stashtrace {

// What a name says of its value: nothing; it is secret; it is unless it is a plain word; ... a path; USER:PASSWORD;
// USER:PASSWORD@HOST; a list of pairs; secret unless it looks like source code; if it is base64 of USER:PASSWORD.
enum class SecretKind : unsigned char { kNone, kSecret, kKey, kFolder, kUser, kProxy, kCookie, kAssigned, kBasic };

// Scrubs the arguments of one command line, one after the other.
class ArgumentScrubber {
 public:
  void add(std::string_view argument, TextBuffer& out) noexcept;

 private:
  SecretKind pending_ = SecretKind::kNone;  // what the argument before says of the next one
};

// Whether a text may hold a URL; without one add_scrubbed_urls() changes nothing.
inline bool may_hold_url(std::string_view text) noexcept { return text.find(":/") != text.npos; }

// Adds a text, with user, password and query removed from its URLs.
void add_scrubbed_urls(std::string_view text, TextBuffer& out) noexcept;

}  // namespace stashtrace
