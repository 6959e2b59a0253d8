// Takes secrets out of command lines and URLs before they are stored. SPDX-License-Identifier: Apache-2.0
//
// The rule is that of stashtrace/scrubbing.py, whose words it uses; tests/data/scrubbed_arguments.json holds both to it.
// No allocation, no lock, no call of the system: also for hooks, which may run in signal handlers.
#pragma once

#include <cstddef>
#include <string_view>

#include "core/text_buffer.h"

namespace stashtrace {

// Takes the arguments of one command line, one after the other.
class ArgumentScrubber {
 public:
  void add(std::string_view argument, TextBuffer& out) noexcept;

 private:
  bool value_follows_ = false;
};

// Adds a text whose URLs have neither user and password nor query.
void add_scrubbed_urls(std::string_view text, TextBuffer& out) noexcept;

// Whether a name of an option or variable says that its value is a secret.
bool is_secret(std::string_view name) noexcept;

}  // namespace stashtrace
