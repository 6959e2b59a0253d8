// Each distinct text once, numbered from 0 in the order seen. SPDX-License-Identifier: Apache-2.0
//
// Used by trace_events: kernel names are hundreds of characters long and come back thousands of times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace stashtrace::importers {

class TextPool {
 public:
  // Returns the number of the text, which is added if new.
  std::int32_t number(std::string_view text);

  [[nodiscard]] const std::deque<std::string>& texts() const { return texts_; }

 private:
  struct Slot {
    std::uint64_t hash = 0;
    std::int32_t number = -1;
  };

  void grow();

  std::deque<std::string> texts_;  // stable addresses
  std::vector<Slot> slots_ = std::vector<Slot>(1024);
};

}  // namespace stashtrace::importers
