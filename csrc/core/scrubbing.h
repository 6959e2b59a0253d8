// Takes secrets out of command lines and URLs before they are stored. SPDX-License-Identifier: Apache-2.0
//
// Follows the rule of stashtrace/scrubbing.py, with the same words; tests/data/scrubbed_arguments.json tests both.
// No allocation, no lock, no system call: hooks may use it, also in signal handlers.
#pragma once

#include <cstddef>
#include <string_view>

#include "core/text_buffer.h"

namespace stashtrace {

// Scrubs the arguments of one command line, one after the other.
class ArgumentScrubber {
 public:
  void add(std::string_view argument, TextBuffer& out) noexcept;

 private:
  bool value_follows_ = false;
};

// Adds a text, with user, password and query removed from its URLs.
void add_scrubbed_urls(std::string_view text, TextBuffer& out) noexcept;

// True if the name of an option or variable says that its value is a secret.
bool is_secret(std::string_view name) noexcept;

}  // namespace stashtrace
